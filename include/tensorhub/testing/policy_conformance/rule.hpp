#pragma once
/// \file rule.hpp
/// The common parts of the policy suites: the outcome of a rule, and numbers from which inputs are made.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// The observed violations, as sentences. Empty: the rule holds. At most `shown` are kept; more are only
/// counted.
class violations {
 public:
  static constexpr std::size_t shown = 5;

  void add(std::string sentence) {
    if (++count_ <= shown) sentences_.push_back(std::move(sentence));
  }
  /// Adds the sentence unless `holds`.
  void require(bool holds, std::string_view sentence) {
    if (!holds) add(std::string{sentence});
  }
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] const std::vector<std::string>& sentences() const noexcept { return sentences_; }

 private:
  std::vector<std::string> sentences_;
  std::size_t count_ = 0;
};

/// One rule of a suite, after it ran.
struct rule_result {
  std::string_view rule;
  violations seen;
  [[nodiscard]] bool ok() const noexcept { return seen.empty(); }
};

[[nodiscard]] inline std::string to_string(const rule_result& result) {
  std::string text{result.rule};
  text += result.ok() ? ": holds" : ": violated " + std::to_string(result.seen.count()) + " times";
  for (const std::string& sentence : result.seen.sentences()) text += "\n  " + sentence;
  return text;
}

namespace policy_detail {

/// A generator with the same sequence on every machine (splitmix64).
class suite_random {
 public:
  explicit suite_random(std::uint64_t seed) noexcept : state_{seed} {}
  std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  /// Below `bound`, which is small.
  std::uint64_t below(std::uint64_t bound) noexcept { return next() % bound; }

 private:
  std::uint64_t state_;
};

}  // namespace policy_detail

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
