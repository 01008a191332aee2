// hello_trainer: publishes three versions of its weights in place. It is the reference server as well.
#include <algorithm>
#include <cstdio>
#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <thread>
#include <vector>

using hub = tensorhub::hub<tensorhub::transports::tcp>;

int main(int argc, char** argv) {
  hub::reference_server server{{.address = argc > 1 ? argv[1] : "tcp://127.0.0.1:5570"}};
  std::vector<float> weights(1 << 20);
  hub::publisher trainer{{.server = server.address(), .model = "policy", .replica = "trainer-0"}};
  trainer.add("layers.0.wq", weights.data(), {1024, 1024}, tensorhub::dtype::f32);
  const auto wait_for = [](auto&& condition) {  // for a minute at most
    for (int i = 0; i < 6000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds{10});
    return condition();
  };
  for (std::uint64_t step = 1; step <= 3; ++step) {
    std::ranges::fill(weights, static_cast<float>(step));  // an optimizer step
    trainer.publish(step);                                 // the bytes must not change from here ...
    // ... and here the trainer goes on with what only reads the weights, until the rollouts have them
    if (!wait_for([&] { return server.statistics().updates.of(tensorhub::errc::ok) >= step; })) return 1;
    trainer.unpublish();  // ... to here: no reader is left
    std::printf("trainer: version %d was read\n", static_cast<int>(step));
  }
  return wait_for([&] { return server.statistics().workers_left > 0; }) ? 0 : 1;  // the rollout has ended
}
