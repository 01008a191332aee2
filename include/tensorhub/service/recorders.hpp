#pragma once
/// \file recorders.hpp
/// Statistics (service/statistics.hpp) that threads share, with lock-free writes and reads.
///
/// Any thread may add to `counter`, `outcomes` and `seconds_recorder`; every addition is one or two relaxed
/// atomic additions. `mirrored` is for values that one thread owns and other threads read: the writer copies
/// them into atomics, and a reader gets the values of one such copy, never a mixture.

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/statistics.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

class counter {
 public:
  void add(std::uint64_t more = 1) noexcept { value_.fetch_add(more, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_ = 0;
};

class outcomes {
 public:
  void add(errc code) noexcept { by_code_[outcome_counts::index_of(code)].add(); }
  [[nodiscard]] outcome_counts values() const noexcept {
    outcome_counts out;
    for (std::size_t i = 0; i < by_code_.size(); ++i) out.by_code[i] = by_code_[i].value();
    return out;
  }

 private:
  std::array<counter, outcome_counts::codes> by_code_{};
};

class seconds_recorder {
 public:
  void add(duration took) noexcept {
    counts_[seconds_histogram::bucket_of(took)].add();
    if (took.count() > 0) sum_nanoseconds_.add(static_cast<std::uint64_t>(took.count()));
  }
  void add_seconds(double took) noexcept { add(duration{static_cast<std::int64_t>(took * 1e9)}); }
  [[nodiscard]] seconds_histogram values() const noexcept {
    seconds_histogram out;
    for (std::size_t i = 0; i < counts_.size(); ++i) out.counts[i] = counts_[i].value();
    out.sum_nanoseconds = sum_nanoseconds_.value();
    return out;
  }

 private:
  std::array<counter, seconds_histogram::bounds.size() + 1> counts_{};
  counter sum_nanoseconds_;
};

/// One writer, any number of readers. The writer never waits; a reader retries while the writer is copying.
template <typename T>
class mirrored {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(std::uint64_t) == 0);
  static constexpr std::size_t words = sizeof(T) / sizeof(std::uint64_t);

 public:
  /// To be called by the writer only.
  void show(const T& value) noexcept {
    const auto plain = std::bit_cast<std::array<std::uint64_t, words>>(value);
    const std::uint64_t round = round_.load(std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_relaxed);
    for (std::size_t i = 0; i < words; ++i) words_[i].store(plain[i], std::memory_order_release);
    round_.store(round + 2, std::memory_order_release);
  }
  /// A sequence lock: a reader that sees a word newer than `before` also sees the odd number of that round.
  [[nodiscard]] T look() const noexcept {
    std::array<std::uint64_t, words> plain;
    for (;;) {
      const std::uint64_t before = round_.load(std::memory_order_acquire);
      for (std::size_t i = 0; i < words; ++i) plain[i] = words_[i].load(std::memory_order_acquire);
      if (before % 2 == 0 && round_.load(std::memory_order_relaxed) == before) break;
    }
    return std::bit_cast<T>(plain);
  }

 private:
  std::atomic<std::uint64_t> round_ = 0;
  std::array<std::atomic<std::uint64_t>, words> words_{};
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
