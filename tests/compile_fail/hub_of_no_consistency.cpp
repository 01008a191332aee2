// expect: the consistency of hub must model tensorhub::consistency
#include "support/archetypes/transport.hpp"
#include "tensorhub/hub.hpp"
#include "tensorhub/policy/consistency/independent.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::independent;
#else
struct chosen {
  using concept_tag = tensorhub::consistency_tag;
};
#endif

static_assert(sizeof(tensorhub::hub<transport_archetype, chosen>) > 0);
