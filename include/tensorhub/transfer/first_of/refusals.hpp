#pragma once
/// \file refusals.hpp
/// The reasons why members of a composition are not in use, for people, and the members that are not worth
/// another try.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE::first_of_detail {

/// Members and reasons, in order. Not thread-safe.
class refusals {
 public:
  /// `why` may begin with the member's name, as the errors of transports do.
  void add(std::string_view member, std::string why) {
    const std::string named = std::string{member} + ": ";
    while (why.starts_with(named)) why.erase(0, named.size());
    all_.emplace_back(member, std::move(why));
  }
  [[nodiscard]] bool empty() const noexcept { return all_.empty(); }
  [[nodiscard]] std::string of(std::string_view member) const;
  /// "verbs: no device; tcp: refused".
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::pair<std::string_view, std::string>> all_;
};

/// Remembers which members failed with which peer, and until when: a failure counts for the longest time, and
/// one that was only a time-out for the shortest time first, then twice as long each time. Bounded.
/// Thread-safe.
class failure_memory {
  using steady = std::chrono::steady_clock;

 public:
  struct times {
    std::chrono::milliseconds shortest{};
    std::chrono::milliseconds longest{};
  };
  /// Both have a bit per member: `failed` for all that failed, `late` for those of them that timed out.
  void note(incarnation peer, std::uint32_t failed, std::uint32_t late, const times& how_long);
  /// The member has connected.
  void forget(incarnation peer, std::size_t member);
  [[nodiscard]] bool holds(incarnation peer, std::size_t member);

 private:
  static constexpr std::size_t max_entries = 4096;
  struct entry {
    std::chrono::milliseconds how_long{0};
    steady::time_point until{};
  };
  std::mutex mutex_;
  std::map<std::pair<incarnation, std::size_t>, entry> entries_;  ///< by peer and member
};

}  // namespace tensorhub::inline TENSORHUB_MODE::first_of_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transfer/first_of/impl/refusals.ipp"
#endif
