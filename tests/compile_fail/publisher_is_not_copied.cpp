// expect: deleted
#include "tensorhub/publisher.hpp"
#include "tensorhub/testing/archetypes.hpp"

using publisher = tensorhub::publisher<tensorhub::testing::transport_archetype>;

#ifdef TENSORHUB_TWIN
publisher& second(publisher& first) {
  return first;
}
#else
publisher second(publisher& first) {
  return first;
}
#endif
