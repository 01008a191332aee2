#pragma once
/// \file episode.hpp
/// What a rollout tells the trainer: episodes, each generated with one version of the weights.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "env.hpp"

namespace rl_loop {

struct episode {
  std::vector<observation> seen;      ///< before each action, and one more: after the last
  std::vector<std::uint8_t> actions;  ///< one per step
  std::vector<float> log_chosen;      ///< logarithm of the probability with which the action was drawn
  bool fell = false;                  ///< false: the episode was cut at its limit, the pole still stood

  [[nodiscard]] std::size_t steps() const { return actions.size(); }
};

/// Episodes of one rollout replica, all begun and ended with the same version.
struct wave {
  std::uint64_t version = 0;
  std::vector<episode> episodes;

  [[nodiscard]] std::size_t steps() const {
    std::size_t sum = 0;
    for (const auto& e : episodes) sum += e.steps();
    return sum;
  }
};

}  // namespace rl_loop
