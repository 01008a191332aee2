// expect: the third argument of hub must model consistency
#include "support/archetypes.hpp"
#include "tensorhub/tensorhub.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::independent;
#else
using chosen = tensorhub::xxh3_128;
#endif

template struct tensorhub::hub<transport_archetype, tensorhub::nearest_source, chosen>;
