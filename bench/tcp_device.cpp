// The TCP transport through its pinned staging rings against itself between host memory, with the fake
// device: shows that it runs, and what the rings cost the CPU. A fake device's copies are a thread's memcpy
// on the processors that the network needs too, so its ratio is no measure of a GPU's.

#include <tensorhub/testing/fake_device.hpp>
#include <tensorhub/transports/tcp.hpp>

#include "device_transport.hpp"

int main(int argc, char** argv) {
  bench::compare_device<tensorhub::transports::tcp, tensorhub::testing::fake_device_memory>(
      bench::parse(argc, argv), "the fake device", 0);
}
