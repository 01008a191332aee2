// expect: inaccessible|is a private member|cannot cast .* to its private base class|no member named
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
