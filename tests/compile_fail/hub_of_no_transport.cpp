// expect: the first argument of hub must model tensorhub::transport
#include "support/archetypes.hpp"
#include "tensorhub/tensorhub.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = transport_archetype;
#else
using chosen = int;
#endif

template struct tensorhub::hub<chosen>;
