#pragma once
/// \file pull_contacts.hpp
/// Decides which lane of a pull connects to which source, when, and for how long: a pure state machine beside
/// `pull` (pull.hpp).
///
/// Every lane connects to every source. A lane reads nothing while it connects, and a stopped process still
/// accepts connections but never answers. Therefore only one lane at a time tries a source that no lane has
/// reached yet, and the other lanes keep reading. The first attempt is short, the more so if there are other
/// sources, and later attempts are longer; the lane does its other work between attempts, and the update ends
/// if it is done or cancelled. As soon as another source is connected, the attempts are limited by
/// `next_connect_timeout`.
///
/// The lane that reaches a wide-area source first may read all of a small version through its own connection
/// (pull.hpp). It is the first lane, unless that one is busy with something that may take long. So every
/// update finds the connection that the updates before have used: a new one begins slowly.
///
/// Thread safety: none; the shell serialises all calls together with those of the pull.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transfer/pull.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct contact_options {
  duration connect_timeout = defaults::connect_timeout;
  /// Time-out for connecting to a further source while other sources are connected.
  duration next_connect_timeout = std::chrono::milliseconds{500};
  /// Time-out of the first attempt to reach a source; each further attempt takes twice as long.
  duration first_try = std::chrono::milliseconds{200};
  /// The same if there is no other source yet: one may come meanwhile. The next attempt has the rest.
  duration first_try_alone = std::chrono::seconds{2};
  duration shortest_try = std::chrono::milliseconds{20};
};

class pull_contacts {
 public:
  /// A lane is to connect to a source, and to give up after `patience`.
  struct attempt {
    source_slot slot = 0;
    duration patience{};
    bool explores = false;  ///< no lane has reached this source yet
  };

  /// Borrows `transfer`, whose sources these are.
  pull_contacts(pull& transfer, const contact_options& options);

  /// The next attempt of this lane; empty: there is none until an attempt of any lane ends or a source comes.
  /// Pre-condition: no attempt of this lane runs. Until the lane asks the pull for a task, its reads are not
  /// late.
  [[nodiscard]] std::optional<attempt> next(lane_id lane);

  /// The lane has connected: opens its channel. `ordered_read_bytes`: of the endpoint.
  channel_id made(lane_id lane, const attempt& ended, std::uint64_t ordered_read_bytes = 0);

  /// The lane has not connected. Returns true if the source is to be tried again; else the pull has lost it.
  /// `reason`: `errc::timed_out`, if nobody has answered for `patience`; `errc::system_failed`, if this
  /// machine has nothing left to connect with: then a lane does without a source that another lane has
  /// reached.
  [[nodiscard]] bool failed(lane_id lane, const attempt& ended, errc reason, const std::string& sentence);

  /// Time-out for connecting to a source: shorter while another one is connected.
  [[nodiscard]] duration patience_for(source_slot slot) const;

  /// The pull loses a source that cannot be connected to, for this reason.
  void lose(source_slot slot, errc reason, const std::string& sentence);

 private:
  /// Whether a lane has connected to a source.
  enum class contact : std::uint8_t { none, trying, made };
  struct source_record {
    contact met = contact::none;
    duration tried{};  ///< time spent on failed attempts
  };
  struct lane_record {
    std::uint64_t seen = 0;   ///< `changes()` when there was nothing to try
    bool is_trying = false;   ///< an attempt of this lane runs
    std::vector<bool> met{};  ///< by source: this lane has a channel to it, or will never have one
  };

  /// Grows with everything that may give a lane something to try.
  [[nodiscard]] std::uint64_t changes() const noexcept { return ended_ + transfer_->source_count(); }
  /// `leaves_far`: the first lane will explore the wide-area sources.
  [[nodiscard]] std::optional<source_slot> next_to_meet(lane_record& lane, bool leaves_far) const;
  /// A lane has something to do for another source, which may be one that was released.
  [[nodiscard]] bool has_others(source_slot slot) const;

  pull* transfer_;
  contact_options options_;
  std::vector<source_record> sources_{};
  std::vector<lane_record> lanes_{};
  std::uint64_t ended_ = 0;  ///< attempts to reach a source that no lane had reached
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transfer/impl/pull_contacts.ipp"
#endif
