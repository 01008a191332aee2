// expect: every argument of hub after the transport must be a scheduler, a consistency, an integrity
#include "support/archetypes.hpp"
#include "tensorhub/tensorhub.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::host_memory;
#else
using chosen = int;
#endif

template struct tensorhub::hub<transport_archetype, tensorhub::no_integrity, chosen>;
