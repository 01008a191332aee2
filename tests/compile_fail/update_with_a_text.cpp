// expect: cannot convert|could not convert|no known|no (matching|viable)|invalid conversion|cannot initialize
#include "support/archetypes/transport.hpp"
#include "tensorhub/subscriber.hpp"

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
