// expect: (cannot|could not) convert|no known conversion|no viable conversion
#include "tensorhub/types/ids.hpp"

void cut_off(tensorhub::incarnation reader);

#ifdef TENSORHUB_TWIN
void end(tensorhub::incarnation of_whom) {
  cut_off(of_whom);
}
#else
void end(tensorhub::lease_id of_whom) {
  cut_off(of_whom);
}
#endif
