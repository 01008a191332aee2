#pragma once
/// \file input.hpp
/// The fuzzer's bytes as a row of decisions, and the way to say that a promise was broken.
///
/// Everything is defined for every input: when the bytes are used up, all further numbers are zero.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace fuzz {

/// Ends the process, which the fuzzer reports as a finding, with the input that led here.
inline void require(bool condition, const char* promise) {
  if (condition) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

class input {
 public:
  input(const std::uint8_t* data, std::size_t bytes) : left_{data, bytes} {}

  [[nodiscard]] bool empty() const noexcept { return left_.empty(); }
  [[nodiscard]] std::size_t left_bytes() const noexcept { return left_.size(); }

  template <typename T>
  [[nodiscard]] T take() noexcept {
    T value{};
    const std::size_t bytes = std::min(sizeof value, left_.size());
    if (bytes != 0) std::memcpy(&value, left_.data(), bytes);
    left_ = left_.subspan(bytes);
    return value;
  }
  [[nodiscard]] std::uint8_t byte() noexcept { return take<std::uint8_t>(); }
  /// Below `bound`, which is at most 256.
  [[nodiscard]] std::size_t below(std::size_t bound) noexcept { return byte() % bound; }
  /// True once in `times`, of equally likely bytes.
  [[nodiscard]] bool once_in(std::size_t times) noexcept { return below(times) == times - 1; }

  /// Small mostly; now and then one of the values at which arithmetic goes wrong.
  [[nodiscard]] std::uint64_t number() noexcept {
    const std::uint8_t first = byte();
    if (first < 0xe0) return first % 16;
    if (first < 0xf0) return take<std::uint64_t>();
    static constexpr std::uint64_t edges[] = {UINT64_MAX,
                                              UINT64_MAX - 1,
                                              1ull << 63,
                                              (1ull << 63) - 1,
                                              UINT32_MAX,
                                              1ull << 32,
                                              1ull << 46,
                                              1ull << 26,
                                              UINT64_MAX - 16,
                                              1ull << 20,
                                              4096,
                                              65536,
                                              1024,
                                              255,
                                              256,
                                              17};
    return edges[first & 0xf];
  }

  /// At most `bytes` of what is left.
  [[nodiscard]] std::span<const std::uint8_t> bytes(std::size_t count) noexcept {
    const auto out = left_.first(std::min(count, left_.size()));
    left_ = left_.subspan(out.size());
    return out;
  }
  [[nodiscard]] std::string text(std::size_t most) {
    const auto raw = bytes(below(most + 1));
    return {reinterpret_cast<const char*>(raw.data()), raw.size()};
  }
  [[nodiscard]] std::string_view rest() noexcept {
    const auto raw = bytes(left_.size());
    return {reinterpret_cast<const char*>(raw.data()), raw.size()};
  }

 private:
  std::span<const std::uint8_t> left_;
};

}  // namespace fuzz

/// What libFuzzer calls; every target defines it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes);
