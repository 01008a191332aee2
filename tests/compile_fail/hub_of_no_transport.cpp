// expect: the first argument of hub must model tensorhub::transport
#include "support/archetypes/transport.hpp"
#include "tensorhub/hub.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = transport_archetype;
#else
using chosen = int;
#endif

static_assert(sizeof(tensorhub::hub<chosen>) > 0);
