#pragma once
/// \file player.hpp
/// Generating episodes: one shard's part.
///
/// Both shards of a replica run the same environments with the same seeds, add up the same outputs and draw
/// the same random numbers, and so take the same actions: per step they exchange three numbers per
/// environment.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "env.hpp"
#include "episode.hpp"
#include "exchange.hpp"
#include "policy.hpp"

namespace rl_loop {

class player {
 public:
  player(policy_shard policy, std::uint64_t seed, std::size_t environments) : policy_{policy}, random_{seed} {
    for (std::size_t i = 0; i < environments; ++i) worlds_.emplace_back(random_.next());
  }

  /// One episode in every environment, side by side, until all are over.
  [[nodiscard]] wave play(std::uint64_t version, exchange& shards) {
    wave result{version, std::vector<episode>(worlds_.size())};
    std::vector<std::size_t> running;
    for (std::size_t i = 0; i < worlds_.size(); ++i) {
      worlds_[i].reset();
      result.episodes[i].seen.push_back(worlds_[i].state());
      running.push_back(i);
    }
    std::vector<outputs> sums;
    while (!running.empty()) {
      sums.clear();
      for (const std::size_t i : running) sums.push_back(policy_.partial_outputs(encode(worlds_[i].state())));
      shards.sum(sums);
      for (std::size_t k = 0; k < running.size(); ++k) {
        auto& world = worlds_[running[k]];
        auto& e = result.episodes[running[k]];
        const auto log_each = log_probabilities(sums[k]);
        const std::uint8_t action = random_.uniform() < std::exp(log_each[1]) ? 1 : 0;
        world.step(action);
        e.actions.push_back(action);
        e.log_chosen.push_back(log_each[action]);
        e.seen.push_back(world.state());
        e.fell = world.fell();
      }
      std::erase_if(running, [this](std::size_t i) { return worlds_[i].over(); });
    }
    return result;
  }

 private:
  policy_shard policy_;
  random_stream random_;
  std::vector<cart_pole> worlds_;
};

}  // namespace rl_loop
