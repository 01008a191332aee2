// expect: deleted
#include "support/archetypes/transport.hpp"
#include "tensorhub/publisher.hpp"

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
