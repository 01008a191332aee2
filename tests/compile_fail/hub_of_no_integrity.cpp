// expect: the fourth argument of hub must model tensorhub::integrity
#include "support/archetypes.hpp"
#include "tensorhub/tensorhub.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::no_integrity;
#else
using chosen = tensorhub::nearest_source;
#endif

template struct tensorhub::hub<transport_archetype, tensorhub::nearest_source, tensorhub::group_consistent,
                               chosen>;
