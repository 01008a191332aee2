#pragma once
/// \file updates.hpp
/// The receiving half of a worker: update, update_async and update_from.
///
///     caller                                session (in the control thread, or in a caller's)
///     update ------------------------------> asks the server for a version and sources
///     carries the order out as a transfer <- start_pull; meanwhile add_source, release_source, stop_pull
///     tells how it ended ------------------> the result, which the call returns or throws
///
/// A transfer runs in the calling thread and in `lanes - 1` more. What has arrived is shown to others while
/// it runs; a copy of a neighbour's bytes only when it is complete.
///
/// Thread safety: one operation at a time, progress and cancel from any thread. What the session orders comes
/// with the client's mutex held, and is never waited for.
///
/// A part of worker/state.hpp, which is the header to include.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/wake_event.hpp"
#include "tensorhub/options.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/service/session/actions.hpp"
#include "tensorhub/transfer/tensor_arrivals.hpp"
#include "tensorhub/types/version_number.hpp"
#include "tensorhub/worker/call_turn.hpp"
#include "tensorhub/worker/data_plane.hpp"
#include "tensorhub/worker/pull_order.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct worker_state;
class session;
class update_handle;

/// What an `update_handle` and the update's thread share.
struct update_state {
  worker_state* owner = nullptr;
  mutable std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  std::exception_ptr failure;
  update_report report;
  session_ticket join_ticket = 0;  ///< of the join before it; guarded by the client's mutex
  session_ticket ticket = 0;
  bool cancelled = false;
  std::size_t cancelling = 0;  ///< calls of `cancel` that use the owner: the update ends after them
  std::optional<tensor_arrivals> arrivals{};  ///< once a transfer has begun
  std::uint64_t transfer = 0;                 ///< of those of the data plane, the one that is this update's
  std::vector<std::size_t> order{};           ///< the tensors that were asked for one by one
  std::optional<detail::wake_event> completion{};  ///< once somebody has asked for it

  [[nodiscard]] bool is_cancelled() const {
    const std::lock_guard lock{mutex};
    return cancelled;
  }
  [[nodiscard]] bool has_ended() const {
    const std::lock_guard lock{mutex};
    return ended;
  }
};

class worker_updates {
 public:
  /// `whole` is the worker that this is a part of.
  explicit worker_updates(worker_state& whole) : whole_{&whole} {}

  TENSORHUB_DECL update_report update(version_selector selector, std::chrono::milliseconds timeout,
                                      update_reach reach);
  [[nodiscard]] TENSORHUB_DECL update_handle update_async(version_selector selector,
                                                          std::chrono::milliseconds timeout,
                                                          update_reach reach, bool ahead);
  /// Copies what a neighbour of this process holds. If the neighbour takes the version back meanwhile, the
  /// copy fails with `source_lost`.
  TENSORHUB_DECL update_report update_from(worker_state& neighbour, std::chrono::milliseconds timeout);

  /// As all operations: one at a time.
  [[nodiscard]] std::uint64_t succeeded() const noexcept { return succeeded_; }
  /// Chunks received by the update that is running.
  [[nodiscard]] std::uint64_t chunks_received() const noexcept { return chunks_received_; }

  // ---- for handles

  TENSORHUB_DECL void cancel(update_state& handle);
  [[nodiscard]] TENSORHUB_DECL update_progress progress_of(const update_state& handle);
  /// The transfer that runs, if one does, is to read these chunks first.
  TENSORHUB_DECL void prefer(std::span<const chunk_index> chunks);

  // ---- the session's orders. Pre-condition: the client's mutex is held

  TENSORHUB_DECL void perform(session& core, session_actions::start_pull& order);
  TENSORHUB_DECL void perform(session& core, const session_actions::commit_pull& order);
  TENSORHUB_DECL void perform(session& core, session_actions::add_source& order);
  TENSORHUB_DECL void perform(session& core, const session_actions::release_source& order);
  TENSORHUB_DECL void perform(session& core, const session_actions::stop_pull& order);

 private:
  /// A neighbour's bytes, and which version they are.
  struct copy_origin {
    worker_state* owner = nullptr;
    messages::reference held{};
  };

  TENSORHUB_DECL update_report run(held_turn busy, const version_selector& selector,
                                   std::chrono::milliseconds timeout, update_reach reach, bool ahead,
                                   update_state* handle);
  /// From the session's answer to the report.
  [[nodiscard]] TENSORHUB_DECL update_report end_of(const session_result& result, time_point started,
                                                    update_report report);
  /// Carries out what the session orders, until it has the call's result.
  [[nodiscard]] TENSORHUB_DECL session_result carry_out(session_ticket ticket,
                                                        std::chrono::steady_clock::time_point until,
                                                        time_point started, update_report& report,
                                                        update_state* handle = nullptr);
  /// In the place of a transfer: the neighbour's bytes. Nothing can stop it once it has begun.
  TENSORHUB_DECL void copy_now(const pull_order& order, update_report& report);
  /// Its part before the session is told: how it ended.
  [[nodiscard]] TENSORHUB_DECL messages::status copy(update_report& report, std::vector<digest128>& digests,
                                                     bool& is_intact);
  /// The digests of the bytes that were copied. Throws `source_lost` if they may have changed meanwhile.
  [[nodiscard]] TENSORHUB_DECL std::vector<digest128> digests_of_copy();
  /// One transfer, until it is complete, failed or stopped; tells the session how it ended.
  TENSORHUB_DECL void pull_now(pull_order order, update_report& report, update_state* handle);
  /// Its part before the session is told: how it ended.
  [[nodiscard]] TENSORHUB_DECL messages::status pull_all(pull_order order,
                                                         std::unique_ptr<pull_driver>& begun,
                                                         update_state* handle);
  /// The transfer has ended. Pre-condition: the client's mutex is held.
  TENSORHUB_DECL void forget_transfer() noexcept;
  /// There is no memory to say how it ended: the session ends. Pre-condition: an exception is being handled.
  TENSORHUB_DECL void fail_transfer() noexcept;
  /// What a transfer tells while it runs; its lanes call.
  [[nodiscard]] TENSORHUB_DECL transfer_events events_of(const pull_order& order, update_state* handle);
  /// What the caller waits for first, if it takes tensors one by one.
  [[nodiscard]] TENSORHUB_DECL static std::vector<chunk_index> first_wanted(update_state* handle);
  TENSORHUB_DECL void change_sources(pull_change change);

  worker_state* whole_;

  // As all operations: one at a time.
  std::optional<copy_origin> copied_from_;  ///< of the update that is running
  std::uint64_t succeeded_ = 0;
  std::atomic<std::uint64_t> chunks_received_ = 0;  ///< of the update that is running

  // Guarded by the client's mutex.
  pull_driver* running_ = nullptr;
  version_number reading_version_{};
  bool stop_requested_ = false;
  std::vector<pull_change> pending_changes_;
  std::vector<chunk_index> preferred_;  ///< by the transfer that is about to run
  std::optional<digest128> committed_;  ///< what the transfer that is about to run is to be told
};

}  // namespace tensorhub::inline TENSORHUB_MODE
