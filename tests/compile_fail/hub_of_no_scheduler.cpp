// expect: the second argument of hub must model scheduler
#include "support/archetypes/transport.hpp"
#include "tensorhub/hub.hpp"
#include "tensorhub/policy/scheduler/least_loaded.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::least_loaded;
#else
using chosen = tensorhub::group_consistent;
#endif

static_assert(sizeof(tensorhub::hub<transport_archetype, chosen>) > 0);
