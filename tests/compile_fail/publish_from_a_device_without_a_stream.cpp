// expect: use of deleted function|attempt to use a deleted function|call to deleted member function
#include "support/archetypes/transport.hpp"
#include "tensorhub/publisher.hpp"
#include "tensorhub/testing/fake_device.hpp"

using device_publisher =
    tensorhub::publisher<tensorhub::testing::transport_archetype, tensorhub::group_consistent,
                         tensorhub::xxh3_128, tensorhub::testing::fake_device_memory>;

#ifdef TENSORHUB_TWIN
void run(device_publisher& trainer) {
  trainer.publish(3, tensorhub::all_done);
}
#else
void run(device_publisher& trainer) {
  trainer.publish(3);
}
#endif
