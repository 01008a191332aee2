// expect: the consistency of hub must model tensorhub::consistency
#include "support/archetypes.hpp"
#include "tensorhub/tensorhub.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::independent;
#else
struct chosen {
  using concept_tag = tensorhub::consistency_tag;
};
#endif

template struct tensorhub::hub<transport_archetype, chosen>;
