// expect: no matching (member )?function
#include "support/archetypes/transport.hpp"
#include "tensorhub/double_buffered_subscriber.hpp"

using subscriber = tensorhub::double_buffered_subscriber<tensorhub::testing::transport_archetype>;

#ifdef TENSORHUB_TWIN
void run(subscriber& rollout) {
  rollout.add("w", {4, 4}, tensorhub::dtype::f32);
}
#else
void run(subscriber& rollout, float* weights) {
  rollout.add("w", weights, {4, 4}, tensorhub::dtype::f32);
}
#endif
