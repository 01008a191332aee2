#pragma once
/// \file snapshots.hpp
/// A trainer's copies of its weights, published in the place of the weights themselves.
///
/// There are two, made when first used, in memory of the library's own, each as large as the shard: while the
/// readers of one version still read, the next one is copied beside it. Each belongs to a worker of its own,
/// listed by the server as replicas "<replica>@snapshot-0" and "-1". Which one a version goes to follows from
/// its number alone, so that all shards of a replica choose alike, and one that is started anew as well.
///
/// Thread safety: every member may be called from any thread; one call at a time, a second one fails with
/// `errc::busy`.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/options.hpp"
#include "tensorhub/types/version_number.hpp"
#include "tensorhub/worker/call_turn.hpp"
#include "tensorhub/worker/data_plane.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Second argument of `publish`: publish a copy. Successive versions take turns in two memories; a trainer
/// that publishes every tenth number only says `snapshot.every(10)`, or each copy would wait for the readers
/// of the one before.
struct snapshot_mode {
  std::uint64_t stride = 1;
  [[nodiscard]] constexpr snapshot_mode every(std::uint64_t versions) const noexcept {
    return {versions == 0 ? 1 : versions};
  }
  /// The memory that a version goes to, the same in all shards.
  [[nodiscard]] constexpr std::size_t slot_of(version_number version) const noexcept {
    return static_cast<std::size_t>(version.value / stride % 2);
  }
};
inline constexpr snapshot_mode snapshot{};

class worker;

class snapshots {
 public:
  /// `options` and `policies` are those of the publisher.
  TENSORHUB_DECL snapshots(worker_options options, worker_policies policies);
  TENSORHUB_DECL ~snapshots();
  snapshots(const snapshots&) = delete;
  snapshots& operator=(const snapshots&) = delete;

  /// Copies the tensors of `from` and publishes the copy. If the memory holds an older version still, that
  /// one is taken back first: its readers have half the time, and at most the drain time-out.
  TENSORHUB_DECL snapshot_report publish(version_number version, snapshot_mode how, const data_plane& from,
                                         std::chrono::milliseconds timeout);
  /// Takes both back, and what `original` shows in place, at the same time (`unpublish_together`).
  [[nodiscard]] TENSORHUB_DECL unpublish_report unpublish(worker& original,
                                                          std::chrono::milliseconds timeout);
  /// No memory is made any more. Returns what shows those that are there, for leaving; may be called beside
  /// any other call.
  [[nodiscard]] TENSORHUB_DECL std::vector<worker*> close();
  /// What shows those that are there; may be called beside any other call.
  [[nodiscard]] TENSORHUB_DECL std::vector<worker*> workers() const;
  /// The newest version that is shown; zero: none.
  [[nodiscard]] TENSORHUB_DECL version_number held_version();
  /// A snapshot was made: the set of tensors is fixed.
  [[nodiscard]] bool used() const noexcept { return used_; }
  /// An error that names this publisher.
  [[nodiscard]] TENSORHUB_DECL error failure(errc code, const std::string& sentence,
                                             version_number version = {}) const;

 private:
  struct slot;

  /// One call at a time, as at `worker`: throws `busy` if another one runs.
  [[nodiscard]] TENSORHUB_DECL held_turn take_turn();
  [[nodiscard]] TENSORHUB_DECL slot& open(std::size_t index, const data_plane& from);
  /// Throws what the server would say of a number, before a memory's version is taken back for it.
  TENSORHUB_DECL void check_number(version_number version, std::chrono::milliseconds timeout);

  worker_options options_;
  worker_policies policies_;
  call_turn operating_;
  mutable std::mutex opening_;  ///< guards the pointers of `slots_`, and:
  bool closed_ = false;         ///< the publisher has left
  std::atomic<bool> used_ = false;
  std::array<std::unique_ptr<slot>, 2> slots_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/worker/impl/snapshots.ipp"
#endif
