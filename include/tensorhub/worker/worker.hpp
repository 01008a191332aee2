#pragma once
/// \file worker.hpp
/// One process's part of a model, with what `publisher` and `subscriber` have in common.
///
/// A worker owns a data plane (its transport, control block and registered tensors) and a client of the
/// reference server. It registers the user's tensors where they are, once; it never copies a large one. Small
/// tensors (types/layout.hpp) are packed at publish and unpacked after an update. They lie in host memory,
/// or where the memory space says (a device's).
///
/// Only readers with a lease on it can connect to it (service/guarding.hpp).
///
/// Threads: one for the control connection, and the transport's own; one for the log, from its first line on.
/// An update works in the calling thread and in `lanes - 1` more while it runs.
///
/// Thread safety: every member may be called from any thread. `publish`, `open`, `unpublish`, `update` and
/// `update_from` are one at a time: a second call fails with `errc::busy` at once. `leave` ends the one that
/// runs; calls beside it fail with `busy` or `cancelled`, and after it with `invalid_argument`. All others
/// may run beside them, and wait for a join that runs. `add` must not run beside any.
///
/// All time-outs are of the whole call (`milliseconds::max()`, for ever, is a year); a call ends by then,
/// with a result or an `error` that names what it waited for. Nothing interrupts work on the user's bytes
/// that has begun (digests, packing, registration, a copy): a call ends after it.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/options.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/tensor.hpp"
#include "tensorhub/types/version_number.hpp"
#include "tensorhub/worker/data_plane.hpp"
#include "tensorhub/worker/statistics.hpp"
#include "tensorhub/worker/update_handle.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class worker_recorder;
struct worker_state;

/// Second argument of `publish`: which tensors have changed, by name.
struct changed_tensors {
  std::vector<std::string> names{};
};
/// `publish(step, changed({"lora.a", "lora.b"}))`
[[nodiscard]] inline changed_tensors changed(std::vector<std::string> names) {
  return {std::move(names)};
}

class worker {
 public:
  /// Starts the transport and the control connection; throws if either cannot be. Nothing waits for the
  /// server yet.
  TENSORHUB_DECL worker(worker_options options, worker_policies policies, worker_role role = {});
  /// Leaves politely but quickly: readers that are still reading are cut off.
  TENSORHUB_DECL ~worker();
  worker(const worker&) = delete;
  worker& operator=(const worker&) = delete;

  /// Tells of one tensor: `data` stays the user's, must not move, and must outlive the worker. All tensors
  /// are added, in the same order in every worker of the shard, before the first other call.
  TENSORHUB_DECL void add(std::string name, const void* data, std::span<const std::uint64_t> shape,
                          dtype type);
  TENSORHUB_DECL void add(std::string name, const void* data, std::initializer_list<std::uint64_t> shape,
                          dtype type);
  /// What owns memory of tensors (such as a framework's reference) is let go of when the worker has ended.
  TENSORHUB_DECL void keep_alive(std::shared_ptr<const void> owner);

  /// Joins the model. Implied by the first publish or update; call it to find errors early.
  TENSORHUB_DECL void join();
  /// The same for a call that has a deadline of its own: the time-out is the shorter one.
  TENSORHUB_DECL void join_by(std::chrono::steady_clock::time_point until);

  /// Shows the tensors' bytes as `version`. They must not change until `unpublish` has returned.
  TENSORHUB_DECL publish_report publish(version_number version,
                                        std::chrono::milliseconds timeout = defaults::join_timeout);

  /// The same where only these tensors have changed since this worker last published: their chunks are
  /// digested again, and all others keep their digests. Where none are known (at the first publish, after a
  /// publish that failed, or when an update has written to the tensors since), everything is digested.
  /// A tensor that has changed and was left out stays as it was, in this version, at whoever has its last
  /// bytes, and they hand it on; the bytes here are refused (`errc::corrupt`). So a publish also digests a
  /// sample of what was left out, and throws `contract_broken` if that has changed: a chunk of each tensor,
  /// at random, but no more than a 64th of the chunks, or eight. Throws `invalid_argument` for a name that
  /// was not added.
  TENSORHUB_DECL publish_report publish(version_number version, const changed_tensors& changed,
                                        std::chrono::milliseconds timeout = defaults::join_timeout);

  /// Opens a version whose bytes are yet to come: each chunk is read as soon as `data()` has sealed it, and
  /// `publish` of the same version makes it whole. See arena_publisher.hpp.
  TENSORHUB_DECL void open(version_number version,
                           std::chrono::milliseconds timeout = defaults::join_timeout);

  /// Hides the version and returns when nobody reads it any more. At the deadline the remaining readers are
  /// cut off: the memory is the caller's again when this returns, whatever happens. (A transport that has to
  /// register the memory again for that, such as verbs, may take longer than `timeout`.)
  TENSORHUB_DECL unpublish_report unpublish(std::chrono::milliseconds timeout = defaults::drain_timeout);

  /// Reads a version into the tensors, in place. Their bytes are undefined while this runs, and after an
  /// error unless the error says otherwise; after success this worker is a source itself. (The server hears
  /// so a moment later if this is the only shard: `list`, and readers that prefer what is near, may see what
  /// was held before until then.) A version that is held already is returned at once.
  ///
  /// `latest` takes what is there now: if nothing newer than what is held can be read now, that is kept, and
  /// nothing is waited for. (`newer` may have told of a version that is hidden again, because its trainer
  /// works on the next one; `at_least` waits for that one.) A worker that holds nothing waits for the first.
  ///
  /// All shards of a replica make the same calls in the same order, within `group_timeout` of each other. A
  /// call can fail in one shard alone (it was cancelled, or the answer was lost): then all shards repeat it.
  /// The shards that had succeeded hold that version, and return at once unless there is a newer one.
  ///
  /// While it runs, what has arrived is already served to others. With `prefer_local` only a version is taken
  /// that somebody in this datacenter holds completely; if there is none newer than what is held, that is
  /// kept.
  TENSORHUB_DECL update_report update(version_selector selector = latest,
                                      std::chrono::milliseconds timeout = defaults::update_timeout,
                                      update_reach reach = update_reach::anywhere);
  /// The same, repeated while it fails for reasons that may pass (`error::retryable`), all within `timeout`;
  /// its last error goes on. Throws `invalid_argument` for one of several shards.
  TENSORHUB_DECL update_report update(version_selector selector, retry_t,
                                      std::chrono::milliseconds timeout = defaults::update_timeout,
                                      update_reach reach = update_reach::anywhere);

  /// Like `update`, in a thread of its own; the operation has begun when this returns. The worker must
  /// outlive the update. `ahead`: where it would wait for a version, it may read one that is open (see
  /// `open`), and ends when that one is whole; it fails with `unavailable` if that never happens.
  [[nodiscard]] TENSORHUB_DECL update_handle update_async(
      version_selector selector = latest, std::chrono::milliseconds timeout = defaults::update_timeout,
      update_reach reach = update_reach::anywhere, bool ahead = false);

  /// Takes over the version that `neighbour` holds: another worker of this process, for the same shard and of
  /// the same policies. Its bytes were verified when they arrived and cannot change meanwhile (it is busy),
  /// so they are copied by `lanes` threads rather than read again, and its digest table is taken over. The
  /// server decides nothing and is only told: a silent server costs at most `server_timeout`, after which the
  /// readers of what was held are cut off (unless a version is retained: then it is waited for). Until the
  /// copy begins a failure leaves shown what was held before. Throws `not_found` if the neighbour holds
  /// nothing that is valid, `unavailable` if this worker alone has heard that it was rolled back.
  TENSORHUB_DECL update_report update_from(worker& neighbour,
                                           std::chrono::milliseconds timeout = defaults::update_timeout);

  /// Runs `call(held, updates)` while no operation of this worker runs or begins (throws `busy` if one does):
  /// the version that is held, and how many updates have succeeded so far.
  TENSORHUB_DECL void at_rest(const std::function<void(version_number, std::uint64_t)>& call);

  /// The newest version that the server has told of, if it is newer than what is held. Never waits, and
  /// throws nothing: while nothing is known there is nothing newer. (A worker that has not joined asks for
  /// the server's list in the background, a few times in a second.) A version that was told of may be hidden
  /// again: see `update`.
  [[nodiscard]] TENSORHUB_DECL std::optional<version_number> newer();

  /// Waits until such a version is available; reads nothing. The server's word that none has come ends it up
  /// to 250 ms before the timeout.
  TENSORHUB_DECL version_number wait(version_selector selector,
                                     std::chrono::milliseconds timeout = defaults::update_timeout);

  /// Leaves the model for good, all within `grace`: an update that runs is cancelled, readers drain, and what
  /// is retained and nobody else has is handed over. At the end of the grace the remaining readers are cut
  /// off (which may take longer, as at `unpublish`). The worker can only be destroyed after that, also after
  /// an error: it says that the server has not confirmed that the worker has left.
  TENSORHUB_DECL unpublish_report leave(std::chrono::milliseconds grace = defaults::drain_timeout);

  /// The calls of this worker that run in other threads end soon: an unpublish and a leave as at their
  /// deadline, the others with `cancelled`, unless they have just succeeded. Copies and digests that run are
  /// finished first. A call that has not begun to wait yet is not noticed: repeat this until it has ended.
  TENSORHUB_DECL void interrupt();
  /// How often it was called: what repeats a call ends when this has changed.
  [[nodiscard]] std::uint64_t interrupts() const noexcept { return interrupts_; }

  // ---- questions to the server: one request and its answer each, also while an update runs

  /// What the server knows of a model (empty: of all models). Works without any tensor.
  [[nodiscard]] TENSORHUB_DECL std::vector<model_entry> list(
      std::string model = {}, std::chrono::milliseconds timeout = defaults::join_timeout);
  /// The tensors of a shard of this worker's model, as its first worker announced them. Works without any
  /// tensor.
  [[nodiscard]] TENSORHUB_DECL model_description
  describe_model(std::uint32_t shard, std::chrono::milliseconds timeout = defaults::join_timeout);
  /// How the server has chosen this worker's sources: a line per decision (candidates, cost, choice), the
  /// latest last.
  [[nodiscard]] TENSORHUB_DECL std::string why(std::chrono::milliseconds timeout = defaults::join_timeout);
  /// What in this model is waiting for what, and for longer than `older_than`; the oldest first.
  [[nodiscard]] TENSORHUB_DECL stuck_report
  stuck(std::chrono::milliseconds older_than = std::chrono::seconds{1},
        std::chrono::milliseconds timeout = defaults::join_timeout);

  /// Waits until this many replicas beside this one hold `version`, or a newer one, in all their shards, and
  /// returns their names. They have *received* it: a rollout that stages counts before it has installed it.
  /// Parts of a replica, such as "rollout-0@stage", count as one, by what stands before the "@". A seeder or
  /// another trainer counts as any replica does; a copy that `retain` has made does not. A replica that dies,
  /// or begins another update in place, does not count any more.
  ///
  /// It asks for `list` every 10 ms to 200 ms, more rarely where answers take long; of a trainer of several
  /// shards one is enough to call it. `timed_out` says who holds the version, and what the others hold;
  /// `unavailable`: it was there, and for 5 s nobody has held it or read anything; `not_found`: no worker of
  /// the model has joined.
  TENSORHUB_DECL std::vector<std::string> wait_held(
      version_number version, std::uint32_t replicas,
      std::chrono::milliseconds timeout = defaults::update_timeout);
  /// The same, until all replicas of these names hold it, which may have yet to join.
  TENSORHUB_DECL std::vector<std::string> wait_held(
      version_number version, std::vector<std::string> replicas,
      std::chrono::milliseconds timeout = defaults::update_timeout);

  // ---- what the server is to retain

  /// Of this model the latest `versions` are not to be lost (and those that are pinned): the last reliable
  /// holder of one hands it over, to the host memory of some process, before it lets go.
  TENSORHUB_DECL void retain(std::uint32_t versions,
                             std::chrono::milliseconds timeout = defaults::join_timeout);
  /// The same for one version, until it is released. It should be published still, or retained already.
  TENSORHUB_DECL void pin(version_number version, std::chrono::milliseconds timeout = defaults::join_timeout);
  TENSORHUB_DECL void release(version_number version,
                              std::chrono::milliseconds timeout = defaults::join_timeout);
  /// The model goes back to this version (0: to none): all later ones are withdrawn at once, wherever they
  /// are held. Their numbers may be published again, with other bytes. Updates that read one of them fail as
  /// `unavailable`, its holders serve it no more, and `latest` is what is left. Of a trainer of several
  /// shards one calls this, or each before it publishes again. A server that has just started and knows of no
  /// later version waits first for those that may hold one (`recovery_grace`). `still_published`: this worker
  /// has published a later version itself; `limit_exceeded`: limits::rollbacks.
  TENSORHUB_DECL void roll_back_to(version_number version,
                                   std::chrono::milliseconds timeout = defaults::join_timeout);
  /// Host memory in which this worker keeps retained versions for others (worker/offloads.hpp).
  [[nodiscard]] TENSORHUB_DECL std::uint64_t offloaded_bytes() const;

  // ---- what it is, and what it has done

  /// The version that is held completely; zero: none.
  [[nodiscard]] TENSORHUB_DECL version_number held_version();
  [[nodiscard]] TENSORHUB_DECL incarnation self() const noexcept;
  [[nodiscard]] TENSORHUB_DECL const layout& shard_layout() const noexcept;
  /// Registration and packing: what they cost, once.
  [[nodiscard]] TENSORHUB_DECL registration_cost cost() const noexcept;
  /// What it has done since it was constructed (worker/statistics.hpp).
  [[nodiscard]] TENSORHUB_DECL worker_statistics statistics() const;
  [[nodiscard]] TENSORHUB_DECL data_plane& data() noexcept;
  /// For calls that another object carries out for this one.
  [[nodiscard]] TENSORHUB_DECL worker_recorder& recorder() noexcept;

  /// What is left of `timeout` when the work that `stream` holds now is done. `stream` points to a stream of
  /// the worker's memory space (worker/stream_order.hpp). `cancelled`: interrupted, or the worker leaves.
  [[nodiscard]] TENSORHUB_DECL std::chrono::milliseconds await_stream(const void* stream,
                                                                      std::chrono::milliseconds timeout);

 private:
  friend class offloads;
  friend unpublish_report unpublish_together(std::span<worker* const>, std::chrono::milliseconds);
  std::vector<std::shared_ptr<const void>> owners_;  ///< guarded as the tensors are; outlives them
  std::atomic<std::uint64_t> interrupts_ = 0;
  std::unique_ptr<worker_state> state_;
};

/// These workers, of which there is at least one, take back what they hold at the same time, all within
/// `timeout`. The report is of all of them, and the first one counts it. Throws `busy` before anything is
/// hidden, or the first error, when all have ended.
TENSORHUB_DECL unpublish_report unpublish_together(std::span<worker* const> workers,
                                                   std::chrono::milliseconds timeout);

/// These leave at the same time, all within `grace`; the report is of all of them. Throws the first error,
/// when all have ended.
TENSORHUB_DECL unpublish_report leave_together(std::span<worker* const> workers,
                                               std::chrono::milliseconds grace);

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/worker/impl/questions.ipp"
#include "tensorhub/worker/impl/worker.ipp"
#endif
