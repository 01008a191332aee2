// expect: may change value|changes value|implicit conversion|no known|no (matching|viable)
#include "support/archetypes/transport.hpp"
#include "tensorhub/publisher.hpp"

using publisher = tensorhub::publisher<tensorhub::testing::transport_archetype>;

#ifdef TENSORHUB_TWIN
void run(publisher& trainer) {
  trainer.publish(2);
}
#else
void run(publisher& trainer) {
  trainer.publish(1.5);
}
#endif
