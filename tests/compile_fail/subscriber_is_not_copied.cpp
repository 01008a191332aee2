// expect: deleted
#include "support/archetypes/transport.hpp"
#include "tensorhub/subscriber.hpp"

using subscriber = tensorhub::subscriber<tensorhub::testing::transport_archetype>;

#ifdef TENSORHUB_TWIN
subscriber& second(subscriber& first) {
  return first;
}
#else
subscriber second(subscriber& first) {
  return first;
}
#endif
