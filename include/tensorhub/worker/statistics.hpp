#pragma once
/// \file statistics.hpp
/// What a worker counts of itself: calls and how they ended, bytes and where they came from, times.
///
///     const tensorhub::worker_statistics seen = rollout.statistics();
///     std::cout << seen.updates.of(tensorhub::errc::ok) << " updates, " << seen.received_bytes() << " B\n";
///
/// Counters (all but `digested_chunks` and `registration`) grow from the worker's construction; a rate is the
/// difference of two looks. Bytes are counted when a transfer ends, whether it succeeded or not (while it
/// runs, `update_handle::progress` has them).
/// What others read from this worker is not known here: reads are one-sided, the readers count them.
///
/// Thread safety: values.

#include <cstdint>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/service/statistics.hpp"
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
  std::uint64_t unchanged_bytes = 0;  ///< of versions, that were here already, and read from nobody
  std::uint64_t digested_chunks = 0;  ///< by the last publish; the others kept their digests
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
  /// Sources that held the whole version and were given up because they had raised their epoch meanwhile.
  [[nodiscard]] std::uint64_t epochs_refused() const noexcept {
    return sources_failed.of(errc::contract_broken);
  }
  [[nodiscard]] std::uint64_t received_bytes() const noexcept {
    std::uint64_t total = 0;
    for (const auto& part : received) total += part.bytes;
    return total;
  }

  /// Adds the counters of another worker; model, replica, shard, `digested_chunks` and `registration` stay.
  TENSORHUB_DECL worker_statistics& operator+=(const worker_statistics& other);
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/worker/impl/statistics.ipp"
#endif
