// expect: hub takes one policy of each kind, and two of its arguments are of the same kind
#include "support/archetypes.hpp"
#include "tensorhub/tensorhub.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::independent;
#else
using chosen = tensorhub::xxh3_128;
#endif

template struct tensorhub::hub<transport_archetype, tensorhub::no_integrity, chosen>;
