// expect: the scheduler of hub must model tensorhub::scheduler
#include "support/archetypes.hpp"
#include "tensorhub/tensorhub.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::least_loaded;
#else
struct chosen {
  using concept_tag = tensorhub::scheduler_tag;
};
#endif

template struct tensorhub::hub<transport_archetype, chosen>;
