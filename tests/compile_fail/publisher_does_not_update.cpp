// expect: is private within this context|inaccessible|is a private member
#include "support/archetypes/transport.hpp"
#include "tensorhub/publisher.hpp"

using publisher = tensorhub::publisher<tensorhub::testing::transport_archetype>;

#ifdef TENSORHUB_TWIN
void run(publisher& trainer) {
  trainer.publish(3);
}
#else
void run(publisher& trainer) {
  trainer.update(tensorhub::latest);
}
#endif
