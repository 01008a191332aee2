// expect: hub takes one policy of each kind, and two of its arguments are of the same kind
#include "support/archetypes/transport.hpp"
#include "tensorhub/hub.hpp"
#include "tensorhub/policy/consistency/independent.hpp"
#include "tensorhub/policy/integrity/none.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::independent;
#else
using chosen = tensorhub::xxh3_128;
#endif

static_assert(sizeof(tensorhub::hub<transport_archetype, tensorhub::no_integrity, chosen>) > 0);
