// expect: (cannot|could not) convert|no known conversion|no matching|no viable conversion
#include "tensorhub/subscriber.hpp"
#include "tensorhub/testing/archetypes.hpp"

using subscriber = tensorhub::subscriber<tensorhub::testing::transport_archetype>;

#ifdef TENSORHUB_TWIN
void run(subscriber& rollout) {
  rollout.update(tensorhub::latest);
}
#else
void run(subscriber& rollout) {
  rollout.update("latest");
}
#endif
