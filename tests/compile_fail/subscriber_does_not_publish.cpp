// expect: no member named
#include "support/archetypes/transport.hpp"
#include "tensorhub/subscriber.hpp"

using subscriber = tensorhub::subscriber<tensorhub::testing::transport_archetype>;

#ifdef TENSORHUB_TWIN
void run(subscriber& rollout) {
  rollout.update(tensorhub::latest);
}
#else
void run(subscriber& rollout) {
  rollout.publish(3);
}
#endif
