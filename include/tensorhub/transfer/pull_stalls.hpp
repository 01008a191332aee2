#pragma once
/// \file pull_stalls.hpp
/// When a pull asks for other sources although none of its sources has failed: in a *stall*, when nothing has
/// arrived for a while, and in a *shortage*, when no source is known to have every chunk and those that there
/// are leave its windows empty.
///
/// Thread safety: as a value.

#include <algorithm>
#include <cstdint>
#include <optional>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transfer/pull_task.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class pull_stalls {
 public:
  void progressed(time_point now) noexcept {
    last_progress_ = now;
    is_reported_ = false;
  }
  /// The time until the next stall begins anew, but a stall that was reported has not ended. Default: with
  /// the next call of `is_due`.
  void begin_anew(time_point at = {}) noexcept { last_progress_ = at; }
  /// The sources that are left may be waiting for the lost one.
  void lost_source() noexcept { reported_of_orphans_ = 0; }

  /// Nothing has arrived for `patience`, and that was not reported.
  [[nodiscard]] bool is_due(time_point now, duration patience) noexcept {
    if (last_progress_ == time_point{}) last_progress_ = now;
    return !is_reported_ && now - last_progress_ >= patience;
  }
  void report(time_point now) noexcept {
    is_reported_ = true;
    last_progress_ = now;
  }
  /// A stall is reported again if it continues after this call.
  void forgive(time_point now) noexcept {
    progressed(now);
    if (reported_of_orphans_) ++*reported_of_orphans_;
  }

  /// The stall time-out. It is shorter when a source was lost, unless it `is_certain` that a source has all
  /// chunks. The server may first have to hear the same from other readers, so the stall is reported several
  /// times; `most_of_orphans` bounds that, because a chain that is merely slow is not stalled.
  [[nodiscard]] duration patience(const pull_options& options, bool is_certain,
                                  duration usual) const noexcept {
    if (is_certain || !reported_of_orphans_ || *reported_of_orphans_ >= most_of_orphans)
      return options.stall_timeout;
    return std::min(options.stall_timeout, std::max(options.orphan_timeout, options.slow_factor * usual));
  }

  // ---- shortages: the time until the next report doubles with each, until there is a complete source

  void end_shortage() noexcept { shortage_patience_ = 1; }
  [[nodiscard]] time_point shortage_reported() const noexcept { return shortage_reported_; }
  /// `since`: no read was begun. True once per shortage.
  [[nodiscard]] bool take_shortage(time_point now, time_point since, duration once) noexcept {
    if (now - since < shortage_patience_ * once) return false;
    shortage_reported_ = now;
    shortage_patience_ = std::min(2 * shortage_patience_, most_shortage_patience);
    return true;
  }

 private:
  static constexpr std::uint32_t most_of_orphans = 6;
  static constexpr std::int64_t most_shortage_patience = 1024;

  bool is_reported_ = false;
  time_point last_progress_{};
  std::optional<std::uint32_t> reported_of_orphans_;  ///< empty: no source was lost
  time_point shortage_reported_{};
  std::int64_t shortage_patience_ = 1;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
