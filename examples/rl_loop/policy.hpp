#pragma once
/// \file policy.hpp
/// The model: an embedding of the observation, one wide hidden layer, a policy head and a value head; and one
/// shard of it.
///
///     observation (4) -> 4 x 64 bins, 2 neighbours of each active   encoder.<dimension>  [64, hidden]
///                     -> hidden = relu(sum of 8 weighted rows + b)   encoder.bias         [hidden]
///                     -> 2 logits, 1 value                           heads.weight         [3, hidden]
///                                                                    heads.bias           [3]
///
/// Tensor parallel: shard i of n holds an equal run of the hidden units, which are columns of the encoder and
/// columns of the heads. A shard computes its hidden units alone; the three outputs are the sum of the
/// shards' partial outputs, the only numbers that shards exchange. Backwards nothing is exchanged at all: the
/// gradient at the outputs is known to every shard, and all else is local.
///
/// Most weights lie in the encoder, of which one observation touches eight rows: a model of many megabytes
/// that two cores can train while you watch.
///
/// Memory: a `policy_shard` owns none. The weights live where the caller says, because TensorHub publishes
/// them in place.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "env.hpp"

namespace rl_loop {

inline constexpr std::size_t bins = 64;
inline constexpr std::size_t output_count = action_count + 1;  // the logits, then the value
inline constexpr std::size_t block_units = 64;  // hidden units computed together; a shard holds a multiple

using outputs = std::array<float, output_count>;

/// The eight active rows of the encoder and their weights. Each dimension is read linearly between two bins.
struct encoding {
  std::array<std::uint32_t, 8> row{};  // in 0 .. 4 * bins - 1
  std::array<float, 8> weight{};
};

[[nodiscard]] inline encoding encode(const observation& seen) {
  constexpr std::array<float, 4> range{2.4f, 3.0f, 0.21f, 3.5f};  // what is beyond counts as the edge
  encoding result;
  for (std::size_t d = 0; d < 4; ++d) {
    const float unit = std::clamp(seen[d] / range[d], -1.0f, 1.0f);
    const float place = (unit + 1.0f) * 0.5f * static_cast<float>(bins - 1);
    const auto low = std::min(static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(bins - 2));
    const float part = place - static_cast<float>(low);
    result.row[2 * d] = static_cast<std::uint32_t>(d * bins) + low;
    result.row[2 * d + 1] = result.row[2 * d] + 1;
    result.weight[2 * d] = 1.0f - part;
    result.weight[2 * d + 1] = part;
  }
  return result;
}

/// One tensor of a shard, as it is named to TensorHub. All are f32.
struct named_tensor {
  std::string name;
  float* data;
  std::vector<std::uint64_t> shape;
};

/// One shard's weights, or anything of the same form (gradients, moments of the optimiser).
class policy_shard {
 public:
  /// `hidden` counts the whole model's units. Throws `invalid_argument` if they cannot be split evenly.
  [[nodiscard]] static std::size_t units_of(std::size_t hidden, std::size_t shards) {
    if (hidden == 0 || hidden % (shards * block_units) != 0) {
      throw std::invalid_argument("the hidden layer must be a multiple of " +
                                  std::to_string(shards * block_units) + " units wide");
    }
    return hidden / shards;
  }
  [[nodiscard]] static std::size_t float_count(std::size_t units) {
    return (4 * bins + 1 + output_count) * units + output_count;
  }

  /// Pre-condition: `memory` holds float_count(units) floats and outlives this object.
  policy_shard(float* memory, std::size_t units)
      : units_{units},
        encoder_{memory},
        encoder_bias_{encoder_ + 4 * bins * units},
        heads_{encoder_bias_ + units},
        heads_bias_{heads_ + output_count * units} {}

  [[nodiscard]] std::size_t units() const { return units_; }
  [[nodiscard]] std::span<float> all() const { return {encoder_, float_count(units_)}; }
  [[nodiscard]] float* encoder_row(std::size_t row) const { return encoder_ + row * units_; }
  [[nodiscard]] float* encoder_bias() const { return encoder_bias_; }
  [[nodiscard]] float* head(std::size_t output) const { return heads_ + output * units_; }
  [[nodiscard]] float* heads_bias() const { return heads_bias_; }

  [[nodiscard]] std::vector<named_tensor> tensors() const {
    return {{"encoder.position", encoder_row(0), {bins, units_}},
            {"encoder.velocity", encoder_row(bins), {bins, units_}},
            {"encoder.angle", encoder_row(2 * bins), {bins, units_}},
            {"encoder.turning", encoder_row(3 * bins), {bins, units_}},
            {"encoder.bias", encoder_bias_, {units_}},
            {"heads.weight", heads_, {output_count, units_}},
            {"heads.bias", heads_bias_, {output_count}}};
  }

  /// This shard's share of the outputs. Sum over the shards to get the model's.
  [[nodiscard]] outputs partial_outputs(const encoding& input) const {
    outputs sum{};
    for (std::size_t first = 0; first < units_; first += block_units) {
      const auto active = hidden_block(input, first);
      for (std::size_t o = 0; o < output_count; ++o) sum[o] += dot(head(o) + first, active);
    }
    for (std::size_t o = 0; o < output_count; ++o) sum[o] += heads_bias_[o];
    return sum;
  }

  /// Adds this observation's gradient to `gradient`, given the derivative of the loss by the (summed)
  /// outputs. The hidden units are computed again rather than kept: that is cheaper than storing them.
  void add_gradient(const encoding& input, const outputs& by_output, const policy_shard& gradient) const {
    for (std::size_t first = 0; first < units_; first += block_units) {
      const auto active = hidden_block(input, first);
      block by_hidden{};
      for (std::size_t o = 0; o < output_count; ++o) {
        add_scaled(by_hidden.data(), head(o) + first, by_output[o]);
        add_scaled(gradient.head(o) + first, active.data(), by_output[o]);
      }
      for (std::size_t u = 0; u < block_units; ++u) by_hidden[u] = active[u] > 0.0f ? by_hidden[u] : 0.0f;
      add_scaled(gradient.encoder_bias() + first, by_hidden.data(), 1.0f);
      for (std::size_t k = 0; k < 8; ++k) {
        add_scaled(gradient.encoder_row(input.row[k]) + first, by_hidden.data(), input.weight[k]);
      }
    }
    for (std::size_t o = 0; o < output_count; ++o) gradient.heads_bias()[o] += by_output[o];
  }

  /// First weights: the encoder begins as a random linear map of the observation (a usual layer's start), the
  /// heads at zero, so that both actions begin equally likely.
  void initialise(std::uint64_t seed) const {
    random_stream random{seed};
    std::ranges::fill(all(), 0.0f);
    for (std::size_t u = 0; u < units_; ++u) {
      for (std::size_t d = 0; d < 4; ++d) {
        const float slope = random.normal();
        for (std::size_t b = 0; b < bins; ++b) {
          const float centre = 2.0f * static_cast<float>(b) / static_cast<float>(bins - 1) - 1.0f;
          encoder_row(d * bins + b)[u] = slope * centre;
        }
      }
      encoder_bias_[u] = 0.5f * random.normal();
    }
  }

 private:
  // Loops over a block have a constant length, so that every compiler turns them into vector instructions.
  using block = std::array<float, block_units>;

  static void add_scaled(float* to, const float* from, float factor) {
    for (std::size_t u = 0; u < block_units; ++u) to[u] += factor * from[u];
  }
  [[nodiscard]] static float dot(const float* a, const block& b) {
    std::array<float, 8> lanes{};
    for (std::size_t u = 0; u < block_units; u += 8) {
      for (std::size_t lane = 0; lane < 8; ++lane) lanes[lane] += a[u + lane] * b[u + lane];
    }
    float sum = 0.0f;
    for (const float lane : lanes) sum += lane;
    return sum;
  }
  [[nodiscard]] block hidden_block(const encoding& input, std::size_t first) const {
    block sum;
    std::copy_n(encoder_bias_ + first, block_units, sum.begin());
    for (std::size_t k = 0; k < 8; ++k) {
      add_scaled(sum.data(), encoder_row(input.row[k]) + first, input.weight[k]);
    }
    for (float& unit : sum) unit = std::max(unit, 0.0f);
    return sum;
  }

  std::size_t units_;
  float* encoder_;       // [4 * bins, units]: the four tables, one after the other
  float* encoder_bias_;  // [units]
  float* heads_;         // [output_count, units]
  float* heads_bias_;    // [output_count]; the sum of the shards' is the model's
};

/// The action probabilities' logarithms, from the summed outputs.
[[nodiscard]] inline std::array<float, action_count> log_probabilities(const outputs& sum) {
  const float top = std::max(sum[0], sum[1]);
  const float norm = top + std::log(std::exp(sum[0] - top) + std::exp(sum[1] - top));
  return {sum[0] - norm, sum[1] - norm};
}

}  // namespace rl_loop
