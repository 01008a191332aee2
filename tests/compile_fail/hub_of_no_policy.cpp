// expect: every argument of hub after the transport must be a scheduler, a consistency, an integrity
#include "support/archetypes/transport.hpp"
#include "tensorhub/hub.hpp"
#include "tensorhub/policy/consistency/independent.hpp"
#include "tensorhub/policy/integrity/none.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::host_memory;
#else
using chosen = int;
#endif

static_assert(sizeof(tensorhub::hub<transport_archetype, tensorhub::no_integrity, chosen>) > 0);
