#pragma once
/// \file statistics.hpp
/// What a worker counts of itself: calls and how they ended, bytes and where they came from, times.
///
///     const tensorhub::worker_statistics seen = rollout.statistics();
///     std::cout << seen.updates.of(tensorhub::errc::ok) << " updates, " << seen.received_bytes() << " B\n";
///
/// Counters grow from the worker's construction; a rate is the difference of two looks. Bytes are counted
/// when a transfer ends, whether it succeeded or not (while it runs, `update_handle::progress` has them).
/// What others read from this worker is not known here: reads are one-sided, the readers count them.
///
/// Thread safety: `worker_statistics` is a value; `worker_recorder` may be used by any thread, and what it
/// does during a transfer is an atomic addition.

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/options.hpp"
#include "tensorhub/service/recorders.hpp"
#include "tensorhub/service/statistics.hpp"
#include "tensorhub/transfer/pull_driver.hpp"
#include "tensorhub/transfer/registration.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// What came by one kind of path.
struct path_bytes {
  std::string path{};     ///< the transport's name: "tcp", "same_host"; "copy": from a neighbour's memory
  bool crossing = false;  ///< from another datacenter
  std::uint64_t bytes = 0;
};

struct worker_statistics {
  std::string model{};  ///< whose these are
  std::string replica{};
  std::uint32_t shard = 0;
  outcome_counts publishes{};
  outcome_counts unpublishes{};
  outcome_counts updates{};           ///< `ok`: the version is held, read or kept
  std::uint64_t updates_kept = 0;     ///< of those: was held already
  std::uint64_t drains_forced = 0;    ///< unpublish: the deadline came, and readers were cut off
  std::uint64_t readers_moved = 0;    ///< unpublish: readers that went on with another source
  std::uint64_t readers_cut_off = 0;  ///< unpublish: readers that the server had declared dead
  outcome_counts sources_failed{};    ///< sources that were given up during a transfer, and why
  std::uint64_t stalls = 0;           ///< no source has had anything new for a while
  std::uint64_t chunks = 0;           ///< received and verified
  std::vector<path_bytes> received{};
  seconds_histogram publish{};    ///< whole calls that succeeded, as all that follow
  seconds_histogram digest{};     ///< packing and digesting, of a publish
  seconds_histogram unpublish{};  ///< that is: the drain
  seconds_histogram update{};
  seconds_histogram wait{};  ///< of an update, until the transfer began
  seconds_histogram pull{};  ///< of an update, the transfer
  registration_cost registration{};

  /// Sources that were given up because a chunk did not have its digest.
  [[nodiscard]] std::uint64_t chunks_refused() const noexcept { return sources_failed.of(errc::corrupt); }
  /// Sources that were given up because they had raised their epoch while they were read.
  [[nodiscard]] std::uint64_t epochs_refused() const noexcept {
    return sources_failed.of(errc::contract_broken);
  }
  [[nodiscard]] std::uint64_t received_bytes() const noexcept {
    std::uint64_t total = 0;
    for (const auto& part : received) total += part.bytes;
    return total;
  }
};

/// Counts; `values` is a copy of what was counted.
class worker_recorder {
 public:
  /// Runs a call of the worker and counts how it ended.
  template <typename Call>
  publish_report publish(Call&& call) {
    const publish_report done = counted(publishes_, std::forward<Call>(call));
    publish_.add_seconds(done.seconds);
    digest_.add_seconds(done.digest_seconds);
    return done;
  }
  template <typename Call>
  unpublish_report unpublish(Call&& call) {
    const unpublish_report done = counted(unpublishes_, std::forward<Call>(call));
    unpublish_.add_seconds(done.seconds);
    drains_forced_.add(done.forced ? 1 : 0);
    readers_moved_.add(done.moved);
    readers_cut_off_.add(done.cut_off);
    return done;
  }
  template <typename Call>
  update_report update(Call&& call) {
    update_report done = counted(updates_, std::forward<Call>(call));
    update_.add_seconds(done.seconds);
    if (done.kept) {
      updates_kept_.add();
    } else {
      wait_.add_seconds(done.wait_seconds);
      pull_.add_seconds(done.pull_seconds);
    }
    return done;
  }

  void source_failed(errc reason) noexcept { sources_failed_.add(reason); }
  void stalled() noexcept { stalls_.add(); }
  /// A transfer has ended, well or not.
  void transferred(const pull_progress& transfer) {
    chunks_.add(transfer.chunks);
    for (const source_progress& source : transfer.sources)
      received(source.path.substr(0, source.path.find(' ')), source.far, source.bytes);
  }
  void received(std::string path, bool crossing, std::uint64_t bytes) {
    if (bytes == 0) return;
    const std::lock_guard lock{mutex_};
    for (path_bytes& known : received_) {
      if (known.path == path && known.crossing == crossing) {
        known.bytes += bytes;
        return;
      }
    }
    received_.push_back({std::move(path), crossing, bytes});
  }

  [[nodiscard]] worker_statistics values(const worker_options& whose,
                                         const registration_cost& registration) const {
    worker_statistics out;
    out.model = whose.model;
    out.replica = whose.replica;
    out.shard = whose.shard.index;
    out.publishes = publishes_.values();
    out.unpublishes = unpublishes_.values();
    out.updates = updates_.values();
    out.updates_kept = updates_kept_.value();
    out.drains_forced = drains_forced_.value();
    out.readers_moved = readers_moved_.value();
    out.readers_cut_off = readers_cut_off_.value();
    out.sources_failed = sources_failed_.values();
    out.stalls = stalls_.value();
    out.chunks = chunks_.value();
    out.publish = publish_.values();
    out.digest = digest_.values();
    out.unpublish = unpublish_.values();
    out.update = update_.values();
    out.wait = wait_.values();
    out.pull = pull_.values();
    const std::lock_guard lock{mutex_};
    out.registration = registration;
    out.received = received_;
    return out;
  }

 private:
  template <typename Call>
  static auto counted(detail::outcomes& ended, Call&& call) {
    try {
      auto done = std::forward<Call>(call)();
      ended.add(errc::ok);
      return done;
    } catch (const error& e) {
      ended.add(e.code());
      throw;
    } catch (...) {
      ended.add(errc::system_failed);
      throw;
    }
  }

  detail::outcomes publishes_, unpublishes_, updates_, sources_failed_;
  detail::counter updates_kept_, drains_forced_, readers_moved_, readers_cut_off_, stalls_, chunks_;
  detail::seconds_recorder publish_, digest_, unpublish_, update_, wait_, pull_;
  mutable std::mutex mutex_;
  std::vector<path_bytes> received_;  ///< guarded by mutex_; a handful
};

}  // namespace tensorhub::inline TENSORHUB_MODE
