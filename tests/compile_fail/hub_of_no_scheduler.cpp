// expect: the scheduler of hub must model tensorhub::scheduler
#include "support/archetypes/transport.hpp"
#include "tensorhub/hub.hpp"
#include "tensorhub/policy/scheduler/least_loaded.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::least_loaded;
#else
struct chosen {
  using concept_tag = tensorhub::scheduler_tag;
};
#endif

static_assert(sizeof(tensorhub::hub<transport_archetype, chosen>) > 0);
