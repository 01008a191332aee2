// expect: the integrity of hub must model tensorhub::integrity
#include "support/archetypes.hpp"
#include "tensorhub/tensorhub.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::no_integrity;
#else
struct chosen {
  using concept_tag = tensorhub::integrity_tag;
};
#endif

template struct tensorhub::hub<transport_archetype, chosen>;
