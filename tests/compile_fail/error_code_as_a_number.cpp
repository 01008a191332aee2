// expect: no match for .operator==.|invalid operands
#include "tensorhub/error.hpp"

#ifdef TENSORHUB_TWIN
bool timed_out(tensorhub::errc code) {
  return code == tensorhub::errc::timed_out;
}
#else
bool timed_out(tensorhub::errc code) {
  return code == 9;
}
#endif
