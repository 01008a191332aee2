// expect: no match for .operator\+.|invalid operands
#include "tensorhub/types/ids.hpp"

#ifdef TENSORHUB_TWIN
tensorhub::lease_id after(tensorhub::lease_id lease) {
  return {lease.value + 1};
}
#else
tensorhub::lease_id after(tensorhub::lease_id lease) {
  return lease + 1;
}
#endif
