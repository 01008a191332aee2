#pragma once
/// \file kept_lane.hpp
/// What a lane of a worker's updates keeps from one update to the next, whatever the transport.
///
/// A lane is borrowed for one update, and given back when none of its reads is outstanding. A connection is
/// kept with the lane that made it, under the names of both ends; nobody looks at it until the next update,
/// so that it may have ended meanwhile. At most `most_kept` connections of a lane are kept, the latest
/// ones. An update that begins closes those that no update has used for `kept_for`: longer than a step of
/// reinforcement learning usually takes, because a new connection over a wide-area path begins slowly. For
/// the same reason each lane of an update gets what the lane of the same number had in the update before.
///
/// Thread safety: any thread may call `idle_lanes`; a lane belongs to its borrower.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Both ends of a connection. The capability is not among them: a connection lasts as long as its ends want
/// it.
struct connection_ends {
  std::string address{};
  incarnation source{};
  incarnation reader{};
  bool operator==(const connection_ends&) const = default;
};

/// A lane as its pool knows it: scratch memory, and the places at which it keeps connections.
class kept_lane {
 public:
  static constexpr std::size_t most_kept = 8;
  static constexpr std::chrono::minutes kept_for{30};
  using clock = std::chrono::steady_clock;

  explicit kept_lane(std::size_t scratch_words);
  virtual ~kept_lane();
  kept_lane(const kept_lane&) = delete;
  kept_lane& operator=(const kept_lane&) = delete;

  [[nodiscard]] std::span<const std::byte> scratch() const noexcept {
    return std::as_bytes(std::span{scratch_});
  }
  [[nodiscard]] bool has_idle(clock::time_point now) const noexcept;
  void close_idle(clock::time_point now);
  [[nodiscard]] virtual std::size_t outstanding() const noexcept = 0;

 protected:
  [[nodiscard]] memory_range scratch_range() noexcept;
  /// The place of the connection between these ends, which is given up with this; empty: there is none.
  [[nodiscard]] std::optional<std::size_t> take_place(const connection_ends& ends);
  /// A place for one more: a free one, or that of the oldest.
  [[nodiscard]] std::size_t new_place(connection_ends ends);
  /// Closes the connection at this place.
  virtual void close(std::size_t place) noexcept = 0;

 private:
  struct kept_connection {
    connection_ends ends;
    clock::time_point since;
    std::size_t place;
  };
  std::vector<std::uint64_t> scratch_;
  std::vector<kept_connection> kept_;  ///< oldest first
};

/// The lanes of a pool that nobody has borrowed.
class idle_lanes {
 public:
  idle_lanes();
  ~idle_lanes();
  idle_lanes(const idle_lanes&) = delete;
  idle_lanes& operator=(const idle_lanes&) = delete;

  /// The lane that was given back under this number, or else any. Null: none is idle, or the one taken had
  /// less scratch memory than this, and was closed.
  [[nodiscard]] std::unique_ptr<kept_lane> take(std::size_t number, std::size_t scratch_words,
                                                kept_lane::clock::time_point now);
  /// A lane with reads outstanding, which nobody waits for any more, is not kept.
  void give_back(std::size_t number, std::unique_ptr<kept_lane> lane);

 private:
  struct idle_lane {
    std::size_t number = 0;  ///< in the update that gave it back
    std::unique_ptr<kept_lane> lane{};
  };
  std::mutex mutex_;
  std::vector<idle_lane> idle_;  ///< guarded by mutex_
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transfer/impl/kept_lane.ipp"
#endif
