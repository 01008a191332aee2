#pragma once
/// \file stall_watch.hpp
/// Ends a background transfer that does not advance. A shard may have any size, and a path any speed, so no
/// time-out can say how long one takes: it may go on as long as something new arrives now and then.
///
/// Thread safety: one thread.

#include <chrono>
#include <cstdint>
#include <string>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/options.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class stall_watch {
 public:
  static constexpr std::chrono::hours longest{24};  ///< time-out of an update that is watched
  static constexpr std::chrono::milliseconds look_interval{10};

  /// How long nothing new may arrive, and how long it may take until the transfer begins.
  stall_watch(std::chrono::milliseconds patience, std::chrono::milliseconds patience_to_begin)
      : patience_{patience}, patience_to_begin_{patience_to_begin} {}

  /// Throws `timed_out` if the transfer does not advance. One that has ended waits for those of other shards.
  void look(const update_progress& seen) {
    const bool is_running = seen.version != version_number{};
    const bool begins = is_running && !has_begun_;
    const bool has_ended = has_begun_ && (!is_running || seen.bytes == seen.total_bytes);
    has_begun_ = has_begun_ || is_running;
    const auto now = std::chrono::steady_clock::now();
    if (begins || has_ended || seen.bytes != bytes_) {
      bytes_ = seen.bytes;
      advanced_ = now;
    }
    const auto patience = has_begun_ ? patience_ : patience_to_begin_;
    if (now - advanced_ <= patience) return;
    throw error(errc::timed_out, "nothing new has arrived for " + std::to_string(patience.count()) +
                                     " ms (after " + std::to_string(bytes_) + " bytes)");
  }

 private:
  std::chrono::milliseconds patience_;
  std::chrono::milliseconds patience_to_begin_;
  bool has_begun_ = false;
  std::uint64_t bytes_ = 0;
  std::chrono::steady_clock::time_point advanced_ = std::chrono::steady_clock::now();
};

}  // namespace tensorhub::inline TENSORHUB_MODE
