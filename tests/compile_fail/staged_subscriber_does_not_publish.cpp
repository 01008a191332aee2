// expect: is private within this context|inaccessible|is a private member
#include "support/archetypes/transport.hpp"
#include "tensorhub/staged_subscriber.hpp"

using subscriber = tensorhub::staged_subscriber<tensorhub::testing::transport_archetype>;

#ifdef TENSORHUB_TWIN
void run(subscriber& rollout) {
  rollout.stage();
}
#else
void run(subscriber& rollout) {
  rollout.publish(3);
}
#endif
