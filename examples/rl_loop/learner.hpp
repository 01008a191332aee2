#pragma once
/// \file learner.hpp
/// Learning: one shard's part of an actor-critic policy gradient.
///
/// The value head is the baseline (generalised advantage estimation, Schulman et al. 2015); the policy's step
/// is bounded by clipping the probability ratio between the current and the generating policy (PPO, Schulman
/// et al. 2017). That ratio also corrects for episodes that were generated a version or two ago.
///
/// Every shard of the trainer sees the same episodes and the same summed outputs, and so takes the same
/// decisions; `sum` is the only exchange: it replaces a shard's partial outputs by the sum over the shards.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "env.hpp"
#include "episode.hpp"
#include "policy.hpp"

namespace rl_loop {

/// Sums over the shards, in place.
using sum_over_shards = std::function<void(std::span<outputs>)>;

struct learner_settings {
  float discount = 0.99f;
  float trace = 0.95f;               // lambda of generalised advantage estimation
  float clip = 0.2f;                 // bound of the probability ratio
  float entropy = 0.003f;            // reward for staying undecided
  float largest_divergence = 0.03f;  // an update ends early when the policy has moved this far
  std::size_t passes = 1;            // over each batch
  std::size_t minibatch_steps = 512;
  float head_rate = 0.3f;      // learning rate of the heads, times 1 / hidden
  float encoder_rate = 0.01f;  // learning rate of the encoder, times 1 / sqrt(hidden)
};

/// One step of an episode, ready to learn from.
struct sample {
  encoding input;
  std::uint8_t action;
  float log_chosen;
  float advantage;
  float value_target;
};

class learner {
 public:
  /// `weights` is this shard, `hidden` the width of the whole model.
  learner(policy_shard weights, std::size_t hidden, learner_settings settings, std::uint64_t seed)
      : weights_{weights},
        settings_{settings},
        order_{seed},
        gradient_memory_(weights.all().size()),
        mean_(weights.all().size()),
        square_(weights.all().size()),
        gradient_{gradient_memory_.data(), weights.units()},
        head_rate_{settings.head_rate / static_cast<float>(hidden)},
        encoder_rate_{settings.encoder_rate / std::sqrt(static_cast<float>(hidden))} {}

  /// Improves the weights in place.
  void improve(const std::vector<wave>& batch, const sum_over_shards& sum) {
    std::vector<sample> samples = evaluate(batch, sum);
    for (std::size_t pass = 0; pass < settings_.passes; ++pass) {
      for (std::size_t i = samples.size(); i > 1; --i) std::swap(samples[i - 1], samples[order_.next() % i]);
      for (std::size_t first = 0; first < samples.size(); first += settings_.minibatch_steps) {
        const std::size_t count = std::min(settings_.minibatch_steps, samples.size() - first);
        if (!step(std::span{samples}.subspan(first, count), sum)) return;
      }
    }
  }

 private:
  /// Advantages by the value head as it is before the update.
  [[nodiscard]] std::vector<sample> evaluate(const std::vector<wave>& batch, const sum_over_shards& sum) {
    std::vector<encoding> inputs;
    for (const auto& w : batch) {
      for (const auto& e : w.episodes) {
        for (const auto& seen : e.seen) inputs.push_back(encode(seen));
      }
    }
    const std::vector<outputs> known = forward(inputs, sum);

    std::vector<sample> samples;
    std::size_t first = 0;  // of the episode, in `inputs`
    for (const auto& w : batch) {
      for (const auto& e : w.episodes) {
        const auto value = [&](std::size_t t) { return value_scale * known[first + t][action_count]; };
        float advantage = 0.0f;
        for (std::size_t t = e.steps(); t-- > 0;) {
          const bool end = t + 1 == e.steps() && e.fell;
          const float next_value = end ? 0.0f : value(t + 1);
          advantage = 1.0f + settings_.discount * next_value - value(t) +
                      settings_.discount * settings_.trace * advantage;
          samples.push_back(
              {inputs[first + t], e.actions[t], e.log_chosen[t], advantage, advantage + value(t)});
        }
        first += e.seen.size();
      }
    }
    float mean = 0.0f, square = 0.0f;
    for (const auto& s : samples) mean += s.advantage / static_cast<float>(samples.size());
    for (const auto& s : samples) {
      square += (s.advantage - mean) * (s.advantage - mean) / static_cast<float>(samples.size());
    }
    for (auto& s : samples) s.advantage = (s.advantage - mean) / (std::sqrt(square) + 1e-6f);
    return samples;
  }

  [[nodiscard]] std::vector<outputs> forward(std::span<const encoding> inputs, const sum_over_shards& sum) {
    std::vector<outputs> result(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) result[i] = weights_.partial_outputs(inputs[i]);
    sum(result);
    return result;
  }

  /// One minibatch. False: the policy has moved far enough from the one that generated the episodes.
  [[nodiscard]] bool step(std::span<const sample> samples, const sum_over_shards& sum) {
    std::vector<encoding> inputs;
    for (const auto& s : samples) inputs.push_back(s.input);
    const std::vector<outputs> known = forward(inputs, sum);
    std::ranges::fill(gradient_memory_, 0.0f);
    const float share = 1.0f / static_cast<float>(samples.size());
    float divergence = 0.0f;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const sample& s = samples[i];
      const auto log_now = log_probabilities(known[i]);
      const float log_ratio = log_now[s.action] - s.log_chosen;
      const float ratio = std::exp(log_ratio);
      divergence += share * (ratio - 1.0f - log_ratio);
      const bool clipped = s.advantage > 0.0f ? ratio > 1.0f + settings_.clip : ratio < 1.0f - settings_.clip;
      const float entropy = -(std::exp(log_now[0]) * log_now[0] + std::exp(log_now[1]) * log_now[1]);
      outputs by_output{};
      for (std::size_t a = 0; a < action_count; ++a) {
        const float probability = std::exp(log_now[a]);
        const float chosen = a == s.action ? 1.0f : 0.0f;
        if (!clipped) by_output[a] -= share * s.advantage * ratio * (chosen - probability);
        by_output[a] += share * settings_.entropy * probability * (log_now[a] + entropy);
      }
      const float value_error = known[i][action_count] - s.value_target / value_scale;
      by_output[action_count] = share * value_error;
      weights_.add_gradient(s.input, by_output, gradient_);
    }
    if (divergence > settings_.largest_divergence) return false;
    descend();
    return true;
  }

  /// Adam (Kingma and Ba 2014). The rates shrink with the width, so that one step moves the outputs equally
  /// far in a narrow and in a wide model.
  void descend() {
    ++steps_;
    const float correct_mean = 1.0f - std::pow(0.9f, static_cast<float>(steps_));
    const float correct_square = 1.0f - std::pow(0.999f, static_cast<float>(steps_));
    const auto all = weights_.all();
    const auto heads = static_cast<std::size_t>(weights_.head(0) - all.data());
    const auto move = [&](std::size_t from, std::size_t to, float rate) {
      for (std::size_t i = from; i < to; ++i) {
        mean_[i] = 0.9f * mean_[i] + 0.1f * gradient_memory_[i];
        square_[i] = 0.999f * square_[i] + 0.001f * gradient_memory_[i] * gradient_memory_[i];
        all[i] -= rate * (mean_[i] / correct_mean) / (std::sqrt(square_[i] / correct_square) + 1e-8f);
      }
    };
    move(0, heads, encoder_rate_);
    move(heads, all.size(), head_rate_);
  }

  /// The value head predicts in units of this many steps, so that both heads have outputs of about one.
  static constexpr float value_scale = 50.0f;

  policy_shard weights_;
  learner_settings settings_;
  random_stream order_;
  std::vector<float> gradient_memory_;
  std::vector<float> mean_;
  std::vector<float> square_;
  policy_shard gradient_;
  float head_rate_;
  float encoder_rate_;
  std::size_t steps_ = 0;
};

}  // namespace rl_loop
