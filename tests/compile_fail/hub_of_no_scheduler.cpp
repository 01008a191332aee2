// expect: the second argument of hub must model scheduler
#include "support/archetypes.hpp"
#include "tensorhub/tensorhub.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::least_loaded;
#else
using chosen = tensorhub::group_consistent;
#endif

template struct tensorhub::hub<transport_archetype, chosen>;
