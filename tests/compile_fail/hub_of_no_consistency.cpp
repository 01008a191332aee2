// expect: the third argument of hub must model consistency
#include "support/archetypes/transport.hpp"
#include "tensorhub/hub.hpp"
#include "tensorhub/policy/consistency/independent.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::independent;
#else
using chosen = tensorhub::xxh3_128;
#endif

static_assert(sizeof(tensorhub::hub<transport_archetype, tensorhub::nearest_source, chosen>) > 0);
