#pragma once
/// \file env.hpp
/// The environment: a pole on a cart, to be balanced by pushing the cart left or right.
///
/// Physics and limits as in Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve
/// difficult learning control problems" (1983): Euler steps of 20 ms, a force of 10 N either way, the episode
/// fails beyond 2.4 m or 12 degrees, and it is cut after 500 steps. Each step is worth 1, so that the return
/// of an episode is its length: about 20 by chance, 500 at best.
///
/// Deterministic: equal seeds and equal actions give equal states, bit for bit. Both shards of a rollout
/// replica run the same environments, so that no observation has to travel between them.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace rl_loop {

/// splitmix64 (Steele, Lea, Flood 2014): small, seedable, the same on every machine.
class random_stream {
 public:
  explicit random_stream(std::uint64_t seed) : state_{seed} {}

  [[nodiscard]] std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  /// In [0, 1).
  [[nodiscard]] float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }
  [[nodiscard]] float uniform(float low, float high) { return low + (high - low) * uniform(); }
  /// Mean 0, variance 1 (Box-Muller).
  [[nodiscard]] float normal() {
    const float radius = std::sqrt(-2.0f * std::log(1.0f - uniform()));
    return radius * std::cos(6.2831853f * uniform());
  }

 private:
  std::uint64_t state_;
};

/// Cart position (m) and velocity (m/s), pole angle (rad) and angular velocity (rad/s).
using observation = std::array<float, 4>;

inline constexpr std::size_t action_count = 2;  // 0 pushes left, 1 pushes right
inline constexpr std::size_t episode_limit_steps = 500;

class cart_pole {
 public:
  explicit cart_pole(std::uint64_t seed) : random_{seed} { reset(); }

  void reset() {
    for (float& value : state_) value = random_.uniform(-0.05f, 0.05f);
    steps_ = 0;
  }

  [[nodiscard]] const observation& state() const { return state_; }
  [[nodiscard]] bool fell() const {
    return std::fabs(state_[0]) > 2.4f || std::fabs(state_[2]) > 0.20943951f;  // 12 degrees
  }
  [[nodiscard]] bool over() const { return fell() || steps_ >= episode_limit_steps; }

  /// Pre-condition: not over.
  void step(std::uint8_t action) {
    constexpr float gravity = 9.8f, cart_kg = 1.0f, pole_kg = 0.1f, half_pole_m = 0.5f;
    constexpr float total_kg = cart_kg + pole_kg, moment = pole_kg * half_pole_m;
    constexpr float force_n = 10.0f, step_s = 0.02f;
    auto& [position, velocity, angle, turning] = state_;
    const float force = action == 1 ? force_n : -force_n;
    const float cosine = std::cos(angle), sine = std::sin(angle);
    const float push = (force + moment * turning * turning * sine) / total_kg;
    const float turn = (gravity * sine - cosine * push) /
                       (half_pole_m * (4.0f / 3.0f - pole_kg * cosine * cosine / total_kg));
    const float acceleration = push - moment * turn * cosine / total_kg;
    position += step_s * velocity;
    velocity += step_s * acceleration;
    angle += step_s * turning;
    turning += step_s * turn;
    ++steps_;
  }

 private:
  random_stream random_;
  observation state_{};
  std::size_t steps_ = 0;
};

}  // namespace rl_loop
