// expect: the third argument of hub must model consistency
#include "tensorhub/tensorhub.hpp"
#include "tensorhub/testing/archetypes.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::independent;
#else
using chosen = tensorhub::xxh3_128;
#endif

template struct tensorhub::hub<transport_archetype, tensorhub::nearest_source, chosen>;
