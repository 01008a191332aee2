// hello_rollout: reads three versions into its own memory, in place. Start it beside hello_trainer.
#include <algorithm>
#include <cstdio>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <vector>

using hub = tensorhub::hub<tensorhub::transports::tcp>;

int main(int argc, char** argv) {
  const char* const server = argc > 1 ? argv[1] : "tcp://127.0.0.1:5570";
  std::vector<float> weights(1 << 20);
  hub::subscriber rollout{{.server = server, .model = "policy", .replica = "rollout-0"}};
  rollout.add("layers.0.wq", weights.data(), {1024, 1024}, tensorhub::dtype::f32);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const auto update =
        rollout.update(step);  // waits for the version, then reads it from a worker that holds it
    const bool right = std::ranges::count(weights, static_cast<float>(step)) == 1 << 20;
    std::printf("rollout: version %d from %s, %.1f MB in %.1f ms, bytes are %s\n", static_cast<int>(step),
                update.sources.front().c_str(), static_cast<double>(update.bytes) / 1e6,
                update.pull_seconds * 1e3, right ? "right" : "wrong");
    if (!right) return 1;
  }
  return 0;
}
