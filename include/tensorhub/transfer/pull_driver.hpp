#pragma once
/// \file pull_driver.hpp
/// Runs a `pull` in several lanes: what they share, and what their owner may ask of them.
///
///     pull_driver      this file: one `pull` under one mutex, its sources, and the threads
///     pull_lane        pull_lane.hpp: the steps of one lane
///     transport_pull   transport_pull.hpp: what a lane does with a transport and with the bytes of a chunk
///
/// `run` works in the calling thread and in `lanes - 1` more threads, but no more than the shard has chunks,
/// and no more than the system can start. The mutex is held for decisions only, never while the bytes of a
/// chunk are read or digested. `pull_contacts` decides which lane connects to which source.
///
/// Thread safety: `add_source`, `release_source`, `commit`, `prefer`, `stop`, `progress` may be called by any
/// thread while `run` runs; `run` is called once, and the rest is for the time after it.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transfer/control_block.hpp"
#include "tensorhub/transfer/pull.hpp"
#include "tensorhub/transfer/pull_contacts.hpp"
#include "tensorhub/transfer/pull_report.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class pull_lane;

/// The thread of a lane, to others.
class lane_thread {
 public:
  /// Ends its wait.
  virtual void wake() noexcept = 0;

 protected:
  ~lane_thread() = default;
};

struct pull_driver_options {
  std::size_t lanes = 1;
  std::size_t window_chunks = 4;  ///< per lane
  contact_options contacts{};
  /// For the whole transfer, from its construction: no attempt to connect goes on beyond it.
  duration time_left = std::chrono::hours{24};
  pull_options rules{};  ///< everything but the window, which is `window_chunks`
  incarnation reader{};  ///< as which the lanes connect (concepts/shared_transport.hpp)
};

/// What a pull needs of an integrity policy once per source or version.
struct pull_digests {
  bool enabled = false;
  digest128 (*root)(std::uint64_t seed, std::span<const digest128> table) noexcept = nullptr;
  digest_seeds seeds{};
};

/// What a session has to know of the sources. Any lane calls it, without a lock.
struct source_events {
  /// Asks for another source.
  std::function<void(const source_failure&)> source_failed{};
  /// Nothing of this source is outstanding any more.
  std::function<void(lease_id)> source_released{};
  /// No source has had a new chunk for a while.
  std::function<void(const std::string&)> stalled{};
  /// A source that has every chunk would help (pull::take_shortage).
  std::function<void()> ran_short{};
};

class pull_driver {
 public:
  struct callbacks : source_events {
    /// The digest table is known, so confirmed chunks may be shown from now on. Called once, before any
    /// `confirmed`, while the driver's lock is held: it must be short and must not call the driver.
    std::function<void(std::span<const digest128>)> believed{};
    /// Other workers may read these chunks, whose digests are in the table. Called while the driver's lock is
    /// held: it must be short and must not call the driver.
    std::function<void(std::span<const chunk_index>, std::span<const digest128>)> confirmed{};
    /// The version was open, and this is its table. Called once, as `confirmed`.
    std::function<void(std::span<const digest128>)> settled{};
    /// The transfer has ended, and this is what lies in the target memory now (pull::present). Called once by
    /// `run`, without a lock.
    std::function<void(std::span<const digest128>)> left{};
    /// The user's. Any lane calls it, without a lock; what it throws ends the transfer.
    std::function<void(const chunk_event&)> traced{};
  };

  virtual ~pull_driver();
  pull_driver(const pull_driver&) = delete;
  pull_driver& operator=(const pull_driver&) = delete;

  /// As at `pull`.
  void assume(std::span<const digest128> present) { core_.assume(present); }

  void add_source(pull_target target);

  /// Stops reading from the source of this lease. `source_released` follows when nothing of that source is
  /// outstanding.
  void release_source(lease_id released);

  /// As at `pull`.
  void commit(digest128 root);
  /// As at `pull`.
  void prefer(std::span<const chunk_index> chunks);

  /// Makes `run` end soon. Idempotent.
  void stop();

  /// Reads until all chunks are confirmed (returns true) or until `stop` (returns false). No read is
  /// outstanding when it returns. Rethrows errors of a lane's set-up (queue, registration of scratch memory).
  bool run();

  [[nodiscard]] pull_progress progress() const;
  /// For use after `run`: no byte of the target memory was written.
  [[nodiscard]] bool intact() const { return core_.intact(); }
  /// For use after `run` has returned true.
  [[nodiscard]] std::span<const digest128> table() const { return core_.table(); }

 protected:
  /// Borrows the layout.
  pull_driver(const layout& shape, const pull_digests& digests, chunk_index first_chunk,
              const pull_driver_options& options, callbacks handlers);

  /// The whole work of one lane, in a thread of its own. What it throws ends the pull.
  virtual void run_lane(lane_id number) = 0;

  [[nodiscard]] const pull_driver_options& options() const noexcept { return options_; }
  [[nodiscard]] std::size_t most_reads() const noexcept { return core_.most_reads(); }
  [[nodiscard]] const digest_seeds& seeds() const noexcept { return digests_.seeds; }

 private:
  friend pull_lane;  // its steps decide under the same lock

  struct source_record {
    pull_target target{};
    bool report_release = false;
    std::string path{};
    std::string failed_here{};  ///< the path through which a read has failed at this end; empty: none has
  };

  [[nodiscard]] static time_point now() noexcept {
    return {
        std::chrono::duration_cast<duration>(std::chrono::steady_clock::now().time_since_epoch()).count()};
  }
  /// So much of `patience` as the transfer has left.
  [[nodiscard]] duration in_time(duration patience) const noexcept;

  void guarded_lane(lane_id number);

  // For all of these the lock is held.

  /// `but`: this one is awake.
  void wake_all(const lane_thread* but = nullptr) noexcept;
  /// After a report that may have confirmed chunks of this source, or lost it.
  void show_confirmed(source_slot slot);
  /// After a report that may have confirmed chunks.
  void show_confirmed();
  /// Compares what was collected of an open version with its root.
  void settle();
  /// Records how a source is reached. The longest text has the reason for a detour.
  void note_path(source_slot slot, std::string path);
  /// A source is free, and no lane has reported so yet.
  [[nodiscard]] bool has_released() const;
  /// Pre-condition: the core has just reported a stall.
  [[nodiscard]] std::string describe_stall();

  const layout* layout_;
  control_offsets offsets_;
  pull_digests digests_;
  pull_driver_options options_;
  const time_point began_ = now();
  callbacks handlers_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t look_bytes_ = 0;  ///< of a task `map`

  mutable std::mutex mutex_;
  pull core_;
  pull_contacts contacts_;
  bool showing_ = false;               ///< `believed` was called
  std::deque<source_record> sources_;  ///< a deque, because lanes keep pointers into it
  bool stopped_ = false;
  std::vector<lane_thread*> lanes_;  ///< those that work
  std::exception_ptr failure_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transfer/impl/pull_driver.ipp"
#endif
