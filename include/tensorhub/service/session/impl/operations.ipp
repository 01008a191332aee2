#pragma once
/// \file operations.ipp
/// Definitions of operations.hpp.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/session/joining.hpp"
#include "tensorhub/service/session/operations.hpp"

namespace tensorhub::inline TENSORHUB_MODE::session_detail {

[[nodiscard]] TENSORHUB_DECL std::string awaited_version(const version_selector& selector,
                                                         std::uint32_t shards) {
  return "a version (" + to_string(selector) + ")" +
         (shards > 1 ? ", or for the other shards to make this call" : "");
}

TENSORHUB_DECL session_ticket operations::publish(time_point now, version_number version, digest128 root,
                                                  readable_memory memory, time_point deadline) {
  const session_ticket ticket = new_ticket();
  ++counter_.value;
  if (!admit(ticket)) return ticket;
  version = valid_version(versions_.keeps, version);
  if (held_ && !(held_->open && held_->version == version)) {
    finish(ticket, still_published());
    return ticket;
  }
  begin(ticket, step::publishing, deadline);
  operation_->target = {version, epoch_, root};
  operation_->target.name_memory(std::move(memory));
  ask_publish(now);
  return ticket;
}

TENSORHUB_DECL session_ticket operations::open(time_point now, version_number version,
                                               const remote_region& control, time_point deadline) {
  const session_ticket ticket = new_ticket();
  if (!admit(ticket)) return ticket;
  if (held_) {
    finish(ticket, still_published());
    return ticket;
  }
  begin(ticket, step::publishing, deadline);
  operation_->target = {valid_version(versions_.keeps, version), epoch_, {}, control, true};
  ask_publish(now);
  return ticket;
}

TENSORHUB_DECL void operations::ask_publish(time_point now) {
  const bool is_call = !operation_->target.open;
  request(now, messages::publish_request{is_call ? known_counter() : operation_counter{}, operation_->target},
          purpose::publish);
}

TENSORHUB_DECL session_ticket operations::unpublish(time_point now, time_point deadline, bool leaving) {
  const session_ticket ticket = new_ticket();
  if (fatal_ && !operation_) {  // all readers were cut off when the session ended
    kept_.reset();              // the caller is about to write into it
    session_result done;
    done.ticket = ticket;
    end_with(std::move(done));
    return ticket;
  }
  if (!admit(ticket)) return ticket;
  if (!held_) {
    finish(ticket, {});
    return ticket;
  }
  begin(ticket, step::unpublishing, deadline);
  request(now, messages::unpublish_request{held_->version, held_->epoch, {}, leaving}, purpose::drain);
  return ticket;
}

TENSORHUB_DECL session_ticket operations::update(time_point now, const version_selector& selector,
                                                 time_point deadline,
                                                 const std::optional<remote_region>& control,
                                                 messages::update_reach reach, bool ahead) {
  const session_ticket ticket = new_ticket();
  if (is_open()) {
    finish(ticket, {errc::still_published, "version " + to_string(held_->version) +
                                               " is published and not whole yet: call unpublish() first"});
    return ticket;
  }
  ++counter_.value;
  if (!admit(ticket)) return ticket;
  begin(ticket, step::waiting, deadline);
  operation_->selector = selector;
  messages::update_request call{known_counter(), selector, session_detail::milliseconds_until(now, deadline),
                                reach,           {},       ahead};
  if (control) {
    operation_->announced = ++last_epoch_;
    call.shows = messages::announcement{operation_->announced, *control};
  }
  request(now, std::move(call), purpose::update);
  return ticket;
}

TENSORHUB_DECL session_ticket operations::install(time_point now, version_number version, digest128 root,
                                                  time_point deadline) {
  const session_ticket ticket = new_ticket();
  if (!admit(ticket)) return ticket;
  if (is_withdrawn(versions_.keeps, version)) {
    finish(ticket, {errc::unavailable, "version " + to_string(version) + " was rolled back"});
    return ticket;
  }
  const bool is_retained =
      held_ && (versions_.keeps.keep_latest > 0 || is_pinned(versions_.keeps, held_->version));
  begin(ticket, step::draining, deadline);
  operation_->copies = is_retained ? local_copy::over_retained : local_copy::over_any;
  if (held_ && held_->version == version) {
    conclude({}, version, true);
    return ticket;
  }
  operation_->version = version;
  operation_->root = root;
  operation_->previous = held_;
  if (!held_) {
    hide();
    start_pull();
    return ticket;
  }
  operation_->drain_deadline = now + options_.drain_timeout;
  request(now, messages::unpublish_request{held_->version, held_->epoch, {}}, purpose::drain);
  return ticket;
}

TENSORHUB_DECL void operations::end_install(time_point now, messages::status outcome) {
  outbox_.forget({purpose::drain});
  if (held_) request(now, messages::holding_request{*held_}, purpose::notice);
  conclude(std::move(outcome), operation_->version);
}

TENSORHUB_DECL void operations::cancel(time_point now, session_ticket ticket) {
  if (operation_ && operation_->ticket == ticket && operation_->at != step::publishing &&
      operation_->at != step::unpublishing) {
    operation_->latest = std::min(operation_->latest, now + options_.request_retry + options_.request_retry);
    abort(now, {errc::cancelled, "the caller cancelled the update"});
  }
}

TENSORHUB_DECL void operations::pull_started(time_point now, const remote_region& control) {
  if (!operation_ || operation_->at != step::pulling) return;
  operation_->control = control;
  if (std::exchange(operation_->told, true)) return;
  request(now, messages::receiving_request{known_counter(), {epoch_, control}}, purpose::notice);
}

TENSORHUB_DECL void operations::pull_finished(time_point now, readable_memory memory) {
  if (!operation_ || !operation_->is_pulling()) return hide_leftover();
  if (operation_->abort && !operation_->is_local()) return pull_failed(now, *operation_->abort, {});
  held_ = messages::reference{operation_->version, epoch_, operation_->root.value_or(digest128{})};
  held_->name_memory(std::move(memory));
  if (operation_->is_local()) return end_install(now, {});
  operation_->at = step::finishing;
  outbox_.forget({purpose::sources});  // a new server would assign sources for a version that is complete
  messages::finish_request done;  // filled member by member: g++ 12 at -O3 mistakes a list for uninitialised
  done.operation = counter_;
  done.version = operation_->version;
  done.held = held_;
  done.lease = operation_->first_lease();
  if (options_.shard.count > 1 || options_.awaited) return request(now, std::move(done), purpose::finish);
  request(now, std::move(done), purpose::notice);
  conclude({}, held_->version);
}

TENSORHUB_DECL void operations::pull_failed(time_point now, messages::status reason,
                                            std::optional<readable_memory> kept) {
  if (!operation_ || !operation_->is_pulling()) return hide_leftover();
  if (operation_->abort) reason = *operation_->abort;
  raise_epoch();  // the received chunks were shown to readers
  if (kept && operation_->previous) {
    held_ = operation_->previous;
    held_->epoch = epoch_;
    held_->name_memory(*std::move(kept));  // keys may have been renewed since
    act(session_actions::restore{*held_});
  }
  if (operation_->is_local()) return end_install(now, std::move(reason));
  report_failure(now, std::move(reason), kept.has_value(), held_);
}

TENSORHUB_DECL void operations::hide_leftover() {
  if (!held_) raise_epoch();
}

TENSORHUB_DECL void operations::source_failed(time_point now, lease_id lease, errc reason, std::string detail,
                                              std::optional<std::uint64_t> chunk) {
  if (!operation_ || operation_->at != step::pulling) return;
  if (!operation_->sources.give_up(lease)) return;
  request(now,
          messages::sources_request{counter_, wanted::one_failed, lease, reason, std::move(detail), chunk},
          purpose::sources);
}

TENSORHUB_DECL void operations::pull_stalled(time_point now, std::string detail) {
  if (!operation_ || operation_->at != step::pulling) return;
  if (outbox_.wants_sources(wanted::all_stalled)) return;
  request(now, messages::sources_request{counter_, wanted::all_stalled, {}, {}, std::move(detail), {}},
          purpose::sources);
}

TENSORHUB_DECL void operations::pull_ran_short(time_point now) {
  if (!operation_ || operation_->at != step::pulling) return;
  if (outbox_.wants_sources(wanted::all_stalled) || outbox_.wants_sources(wanted::short_of_chunks)) return;
  request(now, messages::sources_request{counter_, wanted::short_of_chunks}, purpose::sources);
}

TENSORHUB_DECL void operations::offload_failed(time_point now, version_number version,
                                               messages::status reason) {
  request(now, messages::offload_failed_request{version, std::move(reason)}, purpose::notice);
}

TENSORHUB_DECL void operations::handle(time_point now, const pending_request& pending,
                                       const messages::status_reply& reply) {
  switch (pending.why) {
    case purpose::publish:
      if (!operation_ || operation_->at != step::publishing) return;
      if (!operation_->target.open) learn_counter(reply.operation);
      if (reply.result.code == errc::version_conflict && publishes_again(now)) return;
      if (reply.result.ok()) {
        held_ = operation_->target;
        if (!held_->open) hear_of(held_->version);
      } else if (!held_) {  // else it is still open
        raise_epoch();
      }
      return conclude(reply.result, operation_->target.version);
    case purpose::finish:
      if (!operation_) return;
      if (operation_->at == step::failing) return conclude(operation_->failure, {});
      if (operation_->at == step::finishing)
        return conclude(reply.result, held_ ? held_->version : version_number{});
      return;
    case purpose::notice: {
      const auto* said = get_if<messages::holding_request>(&pending.body);
      const bool is_refused = said != nullptr && !reply.result.ok();
      if (is_refused && held_ && held_->epoch == said->held.epoch && !operation_) hide();
      return;
    }
    default:
      return;
  }
}

TENSORHUB_DECL void operations::handle(time_point now, const pending_request& pending,
                                       const messages::drained_reply& reply) {
  if (!operation_ || pending.why != purpose::drain) return;
  const bool revokes = reply.result.ok() && reply.revoke;
  if (operation_->at == step::unpublishing) {
    session_result result;
    result.drained = reply;
    result.version = held_ ? held_->version : operation_->target.version;
    if (operation_->forced) {
      result.forced = true;
    } else {
      hide();
      if (revokes || (reply.result.ok() && options_.revokes_cheaply)) revoke(false);
      result.outcome = reply.result;
    }
    conclude(std::move(result));
  } else if (operation_->at == step::draining) {
    if (!reply.result.ok()) return abort(now, reply.result);
    if (operation_->is_local()) operation_->lost = reply.lost;
    if (revokes) return revoke_before_pull(false);
    hide(operation_->announced);
    start_pull();
  }
}

TENSORHUB_DECL void operations::handle(time_point now, const pending_request& pending,
                                       const messages::update_reply& reply) {
  if (!operation_) return;
  if (pending.why == purpose::update && operation_->at == step::waiting)
    return begin_pull(now, pending, reply);
  if (pending.why != purpose::sources || operation_->at != step::pulling) return;
  const auto* asked = get_if<messages::sources_request>(&pending.body);
  const bool can_go_on = asked != nullptr && asked->why == wanted::short_of_chunks;
  if (!reply.result.ok() && can_go_on) return;
  if (!reply.result.ok()) return abort(now, reply.result);
  if (!reply.open) become_whole(reply.root);
  for (const messages::assignment& source : reply.sources) take_source(source, {});
}

TENSORHUB_DECL void operations::on_push(time_point now, const messages::reassign_push& push) {
  const lease_id added = push.source.lease;
  const lease_id old = push.old_lease;
  const bool reads = operation_ && operation_->takes_sources();
  const bool is_ours =
      reads && push.source.operation == counter_ && push.source.version == operation_->version;
  // The transfer reports the end of the reads of what it knows, and the push may be a copy of an old one.
  if (added && !is_ours && !may_be_read(added)) source_released(now, added);
  // Before the answer that names the old lease has arrived, the session does not know whether that source
  // will be read.
  const bool is_unknown = operation_ && operation_->at == step::waiting;
  const bool releases_old = old && !is_unknown && !may_be_read(old);

  const bool is_given_up = reads && (is_ours || !added) && operation_->sources.give_up(old);
  const bool is_in_transfer = is_given_up && operation_->at == step::pulling;
  const bool is_replaced = is_ours && added && take_source(push.source, is_in_transfer ? old : lease_id{});
  if (is_in_transfer && !is_replaced) act(session_actions::release_source{old});
  if (releases_old) source_released(now, old);
}

TENSORHUB_DECL void operations::advance_operation(time_point now) {
  if (operation_ && now >= expires_at()) expire_operation(now);
  if (operation_ && operation_->at == step::draining && now >= drains_until()) force_drain();
}

TENSORHUB_DECL time_point operations::operation_deadline() const noexcept {
  if (!operation_) return time_point::never();
  return operation_->at == step::draining ? std::min(expires_at(), drains_until()) : expires_at();
}

TENSORHUB_DECL time_point operations::expires_at() const noexcept {
  if (operation_->at != step::waiting || operation_->latest == time_point::never())
    return operation_->deadline;
  const duration spare = operation_->latest - operation_->deadline;
  return operation_->deadline + std::max(spare / 2, duration{0});
}

TENSORHUB_DECL time_point operations::drains_until() const noexcept {
  const bool needs_no_server = operation_->copies == local_copy::over_any;
  const time_point silent_at = contact_.heard + options_.server_timeout;
  return needs_no_server ? std::min(operation_->drain_deadline, silent_at) : operation_->drain_deadline;
}

TENSORHUB_DECL void operations::end_operation(const messages::status& reason) {
  if (operation_ && operation_->is_pulling()) act(session_actions::stop_pull{reason});
  if ((!operation_ || operation_->at != step::unpublishing) && !is_open()) kept_ = held_;
  if (operation_ && operation_->at == step::revoking) kept_ = operation_->previous;
  if (held_ || operation_) {
    hide();
    revoke(false);
  }
  if (operation_) conclude(operation_->at == step::unpublishing ? messages::status{} : reason, {});
}

TENSORHUB_DECL bool operations::admit(session_ticket ticket) {
  if (fatal_)
    finish(ticket, *fatal_);
  else if (operation_ || revocation_.runs)
    finish(ticket, {errc::busy, "another publish, unpublish or update of this worker is running"});
  return !fatal_ && !operation_ && !revocation_.runs;
}

TENSORHUB_DECL void operations::begin(session_ticket ticket, step at, time_point deadline) {
  operation_.emplace();
  operation_->ticket = ticket;
  operation_->at = at;
  operation_->deadline = deadline;
}

TENSORHUB_DECL void operations::begin_pull(time_point now, const pending_request& pending,
                                           const messages::update_reply& reply) {
  learn_counter(reply.operation);
  if (!reply.result.ok()) return conclude(reply.result, {});
  if (reply.keep) return conclude({}, reply.version, true);
  if (reply.sources.empty())
    return conclude({errc::protocol_mismatch, "the server's answer names no source"}, {});
  operation_->version = reply.version;
  if (!reply.open) operation_->root = reply.sources.front().root;
  operation_->sources.current = reply.sources;
  operation_->ordinal = reply.ordinal;
  operation_->previous = held_;
  operation_->lost = reply.lost;
  if (now >= operation_->deadline)  // the server's word was waited for (expires_at), and these are sources
    return abort(now, late(now, awaited_version(operation_->selector, options_.shard.count)));
  const bool drained = reply.sources.front().drained;
  const auto* call = get_if<messages::update_request>(&pending.body);
  operation_->told = drained && call != nullptr && call->shows;
  if (held_ && !drained) {
    operation_->at = step::draining;
    operation_->drain_deadline = now + options_.drain_timeout;
    request(now, messages::unpublish_request{held_->version, held_->epoch, counter_}, purpose::drain);
    return;
  }
  hide(operation_->announced);
  start_pull();
}

TENSORHUB_DECL void operations::hide(std::uint64_t announced) {
  raise_epoch(announced);
  held_.reset();
}

TENSORHUB_DECL bool operations::publishes_again(time_point now) {
  version_number& version = operation_->target.version;
  if (!is_void(versions_.keeps, version)) return false;
  version = valid_version(versions_.keeps, version);
  ask_publish(now);
  return true;
}

TENSORHUB_DECL void operations::start_pull() {
  act(session_actions::start_pull{operation_->version, operation_->sources.current, operation_->ordinal,
                                  !operation_->root});
  operation_->at = step::pulling;
}

TENSORHUB_DECL void operations::become_whole(digest128 root) {
  if (!operation_->version || operation_->root) return;
  operation_->root = root;
  for (messages::assignment& source : operation_->sources.current) source.root = root;
  if (operation_->at == step::pulling) act(session_actions::commit_pull{root});
}

TENSORHUB_DECL bool operations::take_source(const messages::assignment& source, lease_id released) {
  if (operation_->sources.contains(source.lease) || source.version != operation_->version) return false;
  if (source.root) become_whole(source.root);
  operation_->sources.current.push_back(source);
  if (operation_->at == step::pulling) act(session_actions::add_source{source, released});
  return true;
}

TENSORHUB_DECL void operations::stop_pull(const messages::status& reason) {
  act(session_actions::stop_pull{reason});
  operation_->at = step::stopping;
}

TENSORHUB_DECL void operations::force_drain() {
  outbox_.make_notice(purpose::drain);
  // Nobody has said that another holder has it.
  if (operation_->copies == local_copy::over_retained) operation_->lost = true;
  revoke_before_pull(true);
}

TENSORHUB_DECL void operations::revoke(bool tells) {
  revocation_.tells = revocation_.tells || tells;
  if (!std::exchange(revocation_.runs, true)) act(session_actions::cut_off_all{});
}

TENSORHUB_DECL void operations::revoke_before_pull(bool tells) {
  hide(operation_->announced);
  operation_->at = step::revoking;
  revoke(tells);
}

TENSORHUB_DECL void operations::all_cut_off(time_point now) {
  if (!revocation_.runs) return;
  // If there is no memory for a step, the shell reports again: what was done before it is not repeated.
  results_.reserve(results_.size() + revocation_.results.size());
  if (revocation_.tells) cut_off_done(now, {});
  revocation_.tells = false;
  if (operation_ && operation_->at == step::revoking) start_pull();
  if (operation_ && operation_->at == step::pulling && operation_->abort)
    stop_pull(*operation_->abort);  // its end restores what was held
  if (operation_ && operation_->forced && operation_->deadline == time_point::never())
    operation_->deadline = now + options_.request_retry;
  for (session_result& each : std::exchange(revocation_.results, {})) results_.push_back(std::move(each));
  revocation_.runs = false;
}

TENSORHUB_DECL void operations::abort(time_point now, messages::status reason) {
  switch (operation_->at) {
    case step::pulling:
      operation_->abort = reason;
      return stop_pull(reason);
    case step::revoking:
      if (!operation_->abort) operation_->abort = std::move(reason);
      operation_->deadline = time_point::never();  // the shell is about to report
      return;
    case step::stopping:
      return;
    case step::waiting:
    case step::draining:
      if (operation_->is_local()) return end_install(now, std::move(reason));
      return report_failure(now, std::move(reason), true, {});
    case step::finishing:
      // This shard keeps the received version; only the group has not finished. The report of success may be
      // lost.
      return report_failure(now, std::move(reason), false, held_);
    case step::publishing:
    case step::unpublishing:
    case step::failing:
      return;
  }
}

TENSORHUB_DECL void operations::report_failure(time_point now, messages::status reason, bool intact,
                                               std::optional<messages::reference> held) {
  outbox_.forget({purpose::update, purpose::drain, purpose::sources, purpose::finish});
  operation_->failure = reason;
  operation_->at = step::failing;
  // The call's own deadline may have passed, and a server that is gone never answers.
  const time_point called = operation_->deadline == time_point::never() ? now : operation_->deadline;
  operation_->deadline =
      std::min(std::max(called, now + options_.request_retry + options_.request_retry), operation_->latest);
  request(now,
          messages::finish_request{known_counter(), operation_->version, std::move(reason), intact,
                                   std::move(held), operation_->first_lease()},
          purpose::finish);
}

TENSORHUB_DECL void operations::expire_operation(time_point now) {
  switch (operation_->at) {
    case step::publishing:
      outbox_.forget({purpose::publish});
      hide();
      request(now, messages::unpublish_request{operation_->target.version, operation_->target.epoch, {}},
              purpose::notice);
      revoke(true);  // the server lets go at once then, also of a version that it retains
      return conclude(
          operation_->failure.ok() ? late(now, "the server's answer to publish()") : operation_->failure, {});
    case step::unpublishing:
      return force_unpublish(now);
    case step::failing:
      outbox_.make_notice(purpose::finish);
      return conclude(operation_->failure, {});
    case step::stopping:
      operation_->deadline = time_point::never();
      return;  // the shell is about to report
    case step::waiting:
      return abort(
          now,
          late(now, "a version (" + to_string(operation_->selector) + ")" +
                        (options_.shard.count > 1 ? ", or for the other shards to make this call" : "")));
    case step::draining:
    case step::revoking:
      return abort(now, late(now, "the readers of the version held before"));
    case step::pulling:
      if (operation_->is_local()) {  // a copy that has begun is not stopped
        operation_->deadline = time_point::never();
        return;
      }
      return abort(now, late(now, "the bytes of version " + to_string(operation_->version) + " from " +
                                      operation_->source_names()));
    case step::finishing:
      return abort(now, late(now, options_.shard.count > 1 ? "the other shards of the replica"
                                                           : "the server's answer to its report"));
  }
}

TENSORHUB_DECL void operations::force_unpublish(time_point now) {
  if (!operation_->forced) {
    operation_->forced = true;
    operation_->target.version = held_->version;
    hide();
    revoke(true);
    if (joined_ && operation_->latest != time_point::never() && now < operation_->latest) {
      operation_->deadline = operation_->latest;
      return;
    }
  } else if (revocation_.runs) {  // the server answers after its end
    operation_->deadline = time_point::never();
    return;
  }
  outbox_.make_notice(purpose::drain);
  session_result result;
  result.forced = true;
  // Nobody has said that another holder has it.
  result.drained.lost =
      versions_.keeps.keep_latest > 0 || is_pinned(versions_.keeps, operation_->target.version);
  conclude(std::move(result));
}

TENSORHUB_DECL void operations::end_running(time_point now, time_point until,
                                            const messages::status& reason) {
  if (!operation_) return;
  operation_->latest = std::min(operation_->latest, until);
  const step at = operation_->at;
  if (at == step::publishing) operation_->failure = reason;
  if (at == step::publishing || at == step::unpublishing || at == step::failing)
    operation_->deadline = std::min(operation_->deadline, until);
  else
    abort(now, reason);
}

TENSORHUB_DECL void operations::conclude(session_result result) {
  result.ticket = operation_->ticket;
  result.drained.lost = result.drained.lost || operation_->lost;
  if (operation_->at != step::unpublishing && !operation_->is_local()) ended_well_ = result.outcome.ok();
  result.operation = known_counter();
  counter_ = std::max(counter_, std::exchange(closed_meanwhile_, {}));
  operation_.reset();
  end_with(std::move(result));
}

TENSORHUB_DECL void operations::end_with(session_result result) {
  (revocation_.runs ? revocation_.results : results_).push_back(std::move(result));
}

TENSORHUB_DECL void operations::conclude(messages::status outcome, version_number version, bool kept) {
  session_result result;
  result.outcome = std::move(outcome);
  result.version = version;
  result.kept = kept;
  conclude(std::move(result));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::session_detail
