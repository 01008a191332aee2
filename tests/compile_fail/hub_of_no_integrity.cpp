// expect: the fourth argument of hub must model tensorhub::integrity
#include "support/archetypes/transport.hpp"
#include "tensorhub/hub.hpp"
#include "tensorhub/policy/integrity/none.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::no_integrity;
#else
using chosen = tensorhub::nearest_source;
#endif

static_assert(sizeof(tensorhub::hub<transport_archetype, tensorhub::nearest_source,
                                    tensorhub::group_consistent, chosen>) > 0);
