#pragma once
/// \file operations.hpp
/// Publish, unpublish and update: one call at a time, as a sequence of steps.
///
///     update:  waiting --> draining --> [revoking -->] pulling --> finishing --> done
///                 |  keep      (own old readers, their keys)  (rest of the group)
///
/// The only shard of a replica has no group to wait for: it is done when it has the bytes. Its report goes
/// on as a notice, which comes before its next call (unless its updates are `awaited` by others).
///
/// During the step `pulling` the set of sources changes: the server adds sources, and sources fail. Other
/// workers may already read the received chunks, at the epoch that was announced with the call. Every call
/// ends in exactly one result, at its deadline at the latest.

#include <optional>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/session/questions.hpp"

namespace tensorhub::inline TENSORHUB_MODE::session_detail {

class operations : public questions {
 public:
  /// The control block must already show the version at `epoch()`. If the version is open, this makes it
  /// whole.
  session_ticket publish(time_point now, version_number version, digest128 root, readable_memory memory,
                         time_point deadline);

  /// Publishes a version whose bytes are yet to come. The control block must already show it as receiving, at
  /// `epoch()`. Workers that wait for it read what is there.
  session_ticket open(time_point now, version_number version, const remote_region& control,
                      time_point deadline);

  /// Ends when no reader is left. At the deadline the memory is returned by force, and remaining readers
  /// fail.
  /// `leaving`: the process is about to end; a retained version is handed over to another process.
  session_ticket unpublish(time_point now, time_point deadline, bool leaving = false);

  /// `control`: the control block, readable while the update runs; empty: no worker may read meanwhile.
  session_ticket update(time_point now, const version_selector& selector, time_point deadline,
                        const std::optional<remote_region>& control = std::nullopt,
                        messages::update_reach reach = messages::update_reach::anywhere, bool ahead = false);

  /// The shell copies `version` into the memory by itself, on the order `start_pull` (without sources).
  /// Readers of what is held end first; where the server is silent, they are cut off. The version is held
  /// when the shell reports `pull_finished`, and the call ends without the server. If it fails before that
  /// order, what was held is held again. A server that refuses the report (other bytes) makes the session
  /// hold nothing. `unavailable`: the version was rolled back, as far as this session has heard; nothing is
  /// drained.
  session_ticket install(time_point now, version_number version, digest128 root, time_point deadline);

  /// Ends a running update with `cancelled`; any other ticket is ignored.
  void cancel(time_point now, session_ticket ticket);

  /// The running call ends by `latest`, whatever it waits for: an update does not wait any longer for the
  /// answer to the report of its failure; an unpublish that was forced by its deadline waits until then for
  /// the server's word on whether the version is lost.
  void end_by(time_point latest) noexcept {
    if (operation_) operation_->latest = latest;
  }

  // ---- reports of the shell

  /// The transfer runs, and `control` can be read from now on. (The server already knows this if no drain was
  /// necessary.)
  void pull_started(time_point now, const remote_region& control);

  /// All bytes of the assigned version were received and verified, and the control block shows them at
  /// `epoch()`.
  void pull_finished(time_point now, readable_memory memory);

  /// No read is outstanding any more. `kept`: the worker's memory, if no byte of the weights was written; the
  /// control block describes the version held before.
  void pull_failed(time_point now, messages::status reason, std::optional<readable_memory> kept);

  /// A source has failed; the transfer continues with the others, and with sources that the server adds.
  /// `chunk`: the one that failed, if the fault is of one.
  void source_failed(time_point now, lease_id lease, errc reason, std::string detail,
                     std::optional<std::uint64_t> chunk = std::nullopt);

  /// No source has had new chunks for a while. Nothing is said while the server has not answered the last
  /// such report.
  void pull_stalled(time_point now, std::string detail);
  /// A shortage (pull::take_shortage). Nothing is said while the server has not answered the last report of a
  /// shortage, or of a stall.
  void pull_ran_short(time_point now);
  /// The action `offload` could not be carried out.
  void offload_failed(time_point now, version_number version, messages::status reason);

  void source_released(time_point now, lease_id lease) {
    request(now, messages::lease_released_request{lease}, purpose::notice);
  }
  void cut_off_done(time_point now, incarnation reader) {
    if (!fatal_ && !contact_.has_left) request(now, messages::cut_off_done_request{reader}, purpose::notice);
  }
  /// The action `cut_off_all` is done. If this throws, for want of memory, the shell reports it again.
  void all_cut_off(time_point now);
  /// The action `cut_off_all` is being carried out.
  [[nodiscard]] bool is_revoking() const noexcept { return revocation_.runs; }

  /// The version that was held when the session ended, and whose bytes are still the session's.
  [[nodiscard]] const std::optional<messages::reference>& kept() const noexcept { return kept_; }

 protected:
  using wanted = messages::sources_wanted;
  using questions::handle;
  using questions::questions;

  void handle(time_point now, const pending_request& pending, const messages::status_reply& reply);

  void handle(time_point now, const pending_request& pending, const messages::drained_reply& reply);

  void handle(time_point now, const pending_request& pending, const messages::update_reply& reply);

  void on_push(time_point now, const messages::reassign_push& push);

  void on_push(time_point, const messages::committed_push& push) {
    if (operation_ && push.version == operation_->version) become_whole(push.root);
  }

  void on_push(time_point now, const messages::abort_push& push) {
    if (operation_ && push.operation == counter_ && !operation_->is_local()) abort(now, push.reason);
  }

  /// Runs the timers of the call.
  void advance_operation(time_point now);
  [[nodiscard]] time_point operation_deadline() const noexcept;

  /// The session ends: no reader may read from this worker any more.
  void end_operation(const messages::status& reason);

  /// Ends a running update with this reason, and any other running call by `until`.
  void end_running(time_point now, time_point until, const messages::status& reason);

  [[nodiscard]] bool admit(session_ticket ticket);
  void begin(session_ticket ticket, step at, time_point deadline);

 private:
  /// Starts reading after the server has decided the version and assigned sources.
  void begin_pull(time_point now, const pending_request& pending, const messages::update_reply& reply);

  /// Asks the server to show `operation_->target`.
  void ask_publish(time_point now);
  /// The version of an update is not open any more.
  void become_whole(digest128 root);

  /// Shows nothing any more: the bytes may change.
  void hide(std::uint64_t announced = 0);
  /// A publish was refused, because the server knows of a roll back of which this worker has heard since:
  /// asks again.
  [[nodiscard]] bool publishes_again(time_point now);
  void start_pull();
  /// The transfer has been told of the source of this lease, and may have reads of it outstanding.
  [[nodiscard]] bool may_be_read(lease_id lease) const {
    return operation_ && operation_->is_pulling() && operation_->sources.contains(lease);
  }
  /// Adds one source. False: it is known already, and perhaps given up since: the message is a copy.
  bool take_source(const messages::assignment& source, lease_id released);
  void stop_pull(const messages::status& reason);

  /// Readers that did not end in time lose their permission immediately.
  void force_drain();
  /// Orders `cut_off_all`. `tells`: the server waits for its end.
  void revoke(bool tells);
  void revoke_before_pull(bool tells);

  /// A transfer whose call has ended (with the session) may have shown what it received: hides that.
  void hide_leftover();

  /// Ends an update early, on behalf of the caller, the group, or the deadline.
  void abort(time_point now, messages::status reason);

  /// Ends an installation: with what is held now, of which the server is told.
  void end_install(time_point now, messages::status outcome);
  /// When the readers of the previous version are cut off. An installation does not wait for a server that is
  /// silent, unless the version may have to be kept elsewhere first.
  /// Pre-condition: the call is at `draining`.
  [[nodiscard]] time_point drains_until() const noexcept;
  /// Where the server has the same deadline, its word is waited for a little longer: it says what there is.
  [[nodiscard]] time_point expires_at() const noexcept;

  /// Reports to the server that this shard's update failed; the call ends with the answer. `held`: the
  /// version that the memory holds now, if the server's record may differ.
  void report_failure(time_point now, messages::status reason, bool intact,
                      std::optional<messages::reference> held);

  void expire_operation(time_point now);
  /// The deadline of an unpublish: the memory is the caller's again.
  void force_unpublish(time_point now);
  /// A call after which the memory is the caller's: its result waits for the end of a revocation.
  void end_with(session_result result);
  /// Ends the running call with this result.
  void conclude(session_result result);
  void conclude(messages::status outcome, version_number version, bool kept = false);

  /// The order `cut_off_all`, and what its end lets go on.
  struct revocation {
    bool runs = false;
    bool tells = false;                     ///< the server waits for its end
    std::vector<session_result> results{};  ///< of calls after which the memory is the caller's
  };

  std::optional<messages::reference> kept_;
  revocation revocation_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::session_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/session/impl/operations.ipp"
#endif
