#pragma once
/// \file options.hpp
/// The command line: what a user may set, and what the launcher tells its children.

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace rl_loop {

struct options {
  // For the user.
  double seconds = 100.0;
  std::size_t rollouts = 3;
  std::size_t hidden = 8192;
  std::uint64_t seed = 1;
  bool kills = false;
  bool quiet = false;
  bool help = false;

  // From the launcher to its children.
  std::string role = "launcher";
  std::string name;        // of the replica
  std::uint32_t rank = 0;  // of the shard in its replica
  std::string server;      // address of the reference server
  std::uint16_t episode_port = 0;
};

inline constexpr std::string_view usage =
    "rl_loop: a trainer group and several rollout replicas learn to balance a pole, weights by TensorHub\n"
    "  --seconds N    train for so long (default 100; the pole is learnt in about half of that)\n"
    "  --rollouts N   rollout replicas at the start (default 3; one more joins later, one leaves)\n"
    "  --hidden N     width of the hidden layer (default 8192: 8.5 MB of weights; 262144: 273 MB)\n"
    "  --seed N       of the weights and of all randomness (default 1)\n"
    "  --kills        kill -9 of the server, and of a rollout that others read from; both start again\n"
    "  --quiet        only the closing summary\n";

/// Throws `runtime_error` that says what is wrong.
[[nodiscard]] inline options parse_options(int argc, char** argv) {
  options result;
  const std::vector<std::string> words(argv + 1, argv + argc);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& name = words[i];
    const auto value = [&]() -> const std::string& {
      if (i + 1 == words.size()) throw std::runtime_error(name + " needs a value");
      return words[++i];
    };
    const auto number = [&](auto low, auto high) {
      const std::string& text = value();
      decltype(low) parsed{};
      const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), parsed);
      if (failed != std::errc{} || end != text.data() + text.size() || !(parsed >= low && parsed <= high)) {
        throw std::runtime_error(name + " must be a number from " + std::to_string(low) + " to " +
                                 std::to_string(high) + ", not '" + text + "'");
      }
      return parsed;
    };
    if (name == "--seconds") {
      result.seconds = number(1.0, 86400.0);
    } else if (name == "--rollouts") {
      result.rollouts = number(std::size_t{1}, std::size_t{64});
    } else if (name == "--hidden") {
      result.hidden = number(std::size_t{128}, std::size_t{1} << 22);
    } else if (name == "--seed") {
      result.seed = number(std::uint64_t{0}, UINT64_MAX);
    } else if (name == "--kills") {
      result.kills = true;
    } else if (name == "--quiet") {
      result.quiet = true;
    } else if (name == "--help" || name == "-h") {
      result.help = true;
    } else if (name == "--role") {
      result.role = value();
    } else if (name == "--name") {
      result.name = value();
    } else if (name == "--rank") {
      result.rank = number(std::uint32_t{0}, std::uint32_t{1});
    } else if (name == "--server") {
      result.server = value();
    } else if (name == "--episode-port") {
      result.episode_port = number(std::uint16_t{1}, std::uint16_t{65535});
    } else {
      throw std::runtime_error("unknown option '" + name + "' (--help lists them)");
    }
  }
  return result;
}

}  // namespace rl_loop
