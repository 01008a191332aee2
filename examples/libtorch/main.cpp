// libtorch: a module of torch::nn learns in one process, and another process has its weights in place.
//
//     libtorch trainer [SERVER]    learns a function of two variables; publishes a version every 50 steps
//     libtorch rollout [SERVER]    receives each version in its own module and evaluates it on the same batch
//
// The trainer is the reference server as well. The loss that it measured travels as one of the module's
// buffers: the rollout computes the loss itself, and both must be equal bit for bit.

#include <torch/torch.h>

#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/torch.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <thread>

namespace {

using hub = tensorhub::hub<tensorhub::transports::tcp>;

constexpr std::uint64_t versions = 8;
constexpr int steps_per_version = 50;

/// What is learned: sin(3x) cos(2y) at random points, the same ones in both processes.
struct batch {
  at::Tensor points, values;

  batch() {
    torch::manual_seed(1);
    points = torch::rand({512, 2}) * 2 - 1;
    values = torch::sin(points.slice(1, 0, 1) * 3) * torch::cos(points.slice(1, 1, 2) * 2);
  }
};

struct policy_impl : torch::nn::Module {
  policy_impl() {
    layers =
        register_module("layers", torch::nn::Sequential(torch::nn::Linear(2, 64), torch::nn::BatchNorm1d(64),
                                                        torch::nn::Tanh(), torch::nn::Linear(64, 64),
                                                        torch::nn::Tanh(), torch::nn::Linear(64, 1)));
    measured_loss = register_buffer("measured_loss", torch::zeros({}));
  }
  at::Tensor loss(const batch& of) {
    return torch::mse_loss(layers->forward<at::Tensor>(of.points), of.values);
  }
  /// Of the weights as they are, without learning.
  float evaluate(const batch& of) {
    const torch::NoGradGuard no_grad;
    eval();
    const float value = loss(of).item<float>();
    train();
    return value;
  }

  torch::nn::Sequential layers{nullptr};
  at::Tensor measured_loss;
};

/// All of a module, in the order that both processes have.
template <typename Worker>
void add_all(Worker& worker, const torch::nn::Module& module) {
  tensorhub::torch::add(worker, module.named_parameters());
  tensorhub::torch::add(worker, module.named_buffers());
}

/// For a minute at most.
template <typename Condition>
bool wait_for(Condition&& condition) {
  for (int i = 0; i < 6000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds{10});
  return condition();
}

int train(const std::string& address) {
  hub::reference_server server{{.address = address}};
  const batch all;
  policy_impl policy;
  torch::optim::Adam optimizer{policy.parameters(), 3e-3};
  hub::publisher trainer{{.server = server.address(), .model = "policy", .replica = "trainer-0"}};
  add_all(trainer, policy);
  const float first_loss = policy.evaluate(all);
  for (std::uint64_t version = 1; version <= versions; ++version) {
    for (int step = 0; step < steps_per_version; ++step) {
      optimizer.zero_grad();
      policy.loss(all).backward();
      optimizer.step();
    }
    policy.measured_loss.fill_(policy.evaluate(all));
    trainer.publish(version);  // in place: nothing changes the module from here ...
    if (!wait_for([&] { return server.statistics().updates.of(tensorhub::errc::ok) >= version; })) return 1;
    trainer.unpublish();  // ... to here
  }
  const float last_loss = policy.measured_loss.item<float>();
  std::printf("trainer: the loss has fallen from %.6f to %.6f\n", first_loss, last_loss);
  const bool has_ended = wait_for([&] { return server.statistics().workers_left > 0; });
  return has_ended && last_loss < first_loss / 4 ? 0 : 1;
}

int roll_out(const std::string& address) {
  const batch all;
  torch::manual_seed(2);
  policy_impl policy;  // with other weights than the trainer's: all of them come from there
  hub::subscriber rollout{{.server = address, .model = "policy", .replica = "rollout-0"}};
  add_all(rollout, policy);
  for (std::uint64_t version = 1; version <= versions; ++version) {
    const auto update = rollout.update(version);
    const float here = policy.evaluate(all);
    const float there = policy.measured_loss.item<float>();
    const bool is_equal = std::bit_cast<std::uint32_t>(here) == std::bit_cast<std::uint32_t>(there);
    std::printf("rollout: version %d from %s, loss %.9g, the trainer's %.9g: %s\n", static_cast<int>(version),
                update.sources.front().c_str(), here, there, is_equal ? "equal bit for bit" : "NOT EQUAL");
    if (!is_equal) return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string role = argc > 1 ? argv[1] : "";
    const std::string address = argc > 2 ? argv[2] : "tcp://127.0.0.1:5570";
    torch::set_num_threads(1);  // sums in the same order in both processes
    if (role == "trainer") return train(address);
    if (role == "rollout") return roll_out(address);
    std::fprintf(stderr, "libtorch: say which process this is: libtorch trainer|rollout [SERVER]\n");
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "libtorch: %s\n", problem.what());
  }
  return EXIT_FAILURE;
}
