// expect: the first argument of hub must model tensorhub::transport
#include "tensorhub/tensorhub.hpp"
#include "tensorhub/testing/archetypes.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = transport_archetype;
#else
using chosen = int;
#endif

template struct tensorhub::hub<chosen>;
