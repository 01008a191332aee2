#pragma once
/// \file listener_pause.hpp
/// When there is no descriptor, or no memory, for another connection: the listener is not watched for a
/// moment. The readers wait in its backlog meanwhile, instead of keeping its thread busy.
///
/// Thread safety: the listener's thread owns it; any thread may ask for `shortages` and `text`. No errors.

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/descriptor_limit.hpp"
#include "tensorhub/detail/epoll_set.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

class listener_pause {
 public:
  using time = std::chrono::steady_clock::time_point;
  /// Shorter than a reader's patience (contact_options::next_connect_timeout).
  static constexpr std::chrono::milliseconds length{100};

  /// `accept` has failed with this errno. The listener is in `set`, under this number.
  void begin_if_short(int error, epoll_set& set, int listener, std::uint64_t number, time now) noexcept {
    if (!is_out_of_descriptors(error)) return;
    set.change(listener, 0, number);
    until_ = now + length;
    error_ = error;
    if (!latest_ || now - *latest_ >= apart) ++shortages_;
    latest_ = now;
  }
  void end_if_over(epoll_set& set, int listener, std::uint64_t number, time now) noexcept {
    if (!until_ || now < *until_) return;
    until_.reset();
    set.change(listener, EPOLLIN, number);
  }
  /// How long the thread may sleep that would sleep for `usual`.
  [[nodiscard]] std::chrono::milliseconds at_most(std::chrono::milliseconds usual) const noexcept {
    return until_ ? std::min(length, usual) : usual;
  }
  /// How many there were so far: a pause that begins soon after another one is of the same shortage.
  [[nodiscard]] std::uint64_t shortages() const noexcept { return shortages_; }
  /// For an operator, of the latest.
  [[nodiscard]] std::string text() const {
    return std::string{"this process can accept no further connection ("} + std::strerror(error_) +
           "), and its readers wait: raise the limit of open files (ulimit -n)";
  }

 private:
  static constexpr std::chrono::minutes apart{1};

  std::optional<time> until_{};   ///< empty: the listener is watched
  std::optional<time> latest_{};  ///< when the latest pause began
  std::atomic<int> error_ = 0;    ///< its errno
  std::atomic<std::uint64_t> shortages_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
