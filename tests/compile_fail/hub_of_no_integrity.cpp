// expect: the integrity of hub must model tensorhub::integrity
#include "support/archetypes/transport.hpp"
#include "tensorhub/hub.hpp"
#include "tensorhub/policy/integrity/none.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::no_integrity;
#else
struct chosen {
  using concept_tag = tensorhub::integrity_tag;
};
#endif

static_assert(sizeof(tensorhub::hub<transport_archetype, chosen>) > 0);
