// expect: the memory space of hub must model tensorhub::memory_space
#include "support/archetypes/transport.hpp"
#include "tensorhub/hub.hpp"
#include "tensorhub/memory/host.hpp"

using tensorhub::testing::transport_archetype;

#ifdef TENSORHUB_TWIN
using chosen = tensorhub::host_memory;
#else
struct chosen {
  using concept_tag = tensorhub::memory_space_tag;
};
#endif

static_assert(sizeof(tensorhub::hub<transport_archetype, chosen>) > 0);
