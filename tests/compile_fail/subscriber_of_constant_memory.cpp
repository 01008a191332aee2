// expect: invalid conversion from 'const void\*'|invalid conversion|no (matching|viable)|no known
#include "support/archetypes/transport.hpp"
#include "tensorhub/subscriber.hpp"

using subscriber = tensorhub::subscriber<tensorhub::testing::transport_archetype>;

#ifdef TENSORHUB_TWIN
void run(subscriber& rollout, void* memory) {
  rollout.add("w", memory, {4}, tensorhub::dtype::f32);
}
#else
void run(subscriber& rollout, const void* memory) {
  rollout.add("w", memory, {4}, tensorhub::dtype::f32);
}
#endif
