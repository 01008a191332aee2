#pragma once
/// \file catalog.ipp
/// Definitions of service/catalog.hpp: passes requests to the part that handles them, keeps requests
/// idempotent, and runs the timers.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tensorhub/service/catalog.hpp"
#include "tensorhub/service/catalog/assignments.hpp"
#include "tensorhub/service/catalog/authority.hpp"
#include "tensorhub/service/catalog/choosing.hpp"
#include "tensorhub/service/catalog/drains.hpp"
#include "tensorhub/service/catalog/inherited_leases.hpp"
#include "tensorhub/service/catalog/leases.hpp"
#include "tensorhub/service/catalog/membership.hpp"
#include "tensorhub/service/catalog/operation_table.hpp"
#include "tensorhub/service/catalog/orders.hpp"
#include "tensorhub/service/catalog/publishing.hpp"
#include "tensorhub/service/catalog/questions.hpp"
#include "tensorhub/service/catalog/reader_moves.hpp"
#include "tensorhub/service/catalog/retention.hpp"
#include "tensorhub/service/catalog/rules.hpp"
#include "tensorhub/service/catalog/stuck.hpp"
#include "tensorhub/service/catalog/update_deadlines.hpp"
#include "tensorhub/service/catalog/update_ends.hpp"
#include "tensorhub/service/catalog/update_starts.hpp"
#include "tensorhub/service/catalog/updates.hpp"
#include "tensorhub/service/catalog/versions.hpp"

namespace tensorhub::inline TENSORHUB_MODE {
namespace catalog_detail {

inline constexpr std::chrono::milliseconds tick_interval{20};
/// A change seldom makes more than three others possible in turn.
inline constexpr std::size_t most_rounds = 64;

/// Forgets answers that the worker no longer waits for: it has received them, or has given up the requests.
TENSORHUB_DECL void forget_answers(catalog_detail::worker_state& worker, const messages::envelope& said) {
  worker.requests.closed.learn(said);
  std::erase_if(worker.requests.answers,
                [&](const auto& entry) { return worker.requests.closed.contains({entry.first}); });
}

}  // namespace catalog_detail

/// The parts hold references to each other, so they keep their addresses when the catalog is moved.
struct catalog::parts {
  parts(catalog_options options, server_epoch epoch, any_scheduler scheduler, any_consistency consistency)
      : core{std::move(options), epoch, consistency.traits()},
        authority{core},
        versions{core},
        retention{core, versions},
        questions{core},
        stuck{core, scheduler.limits()},
        choosing{core, std::move(scheduler)},
        drains{core, versions},
        leases{core, versions, drains},
        assignments{core, choosing, leases},
        moves{core, choosing, leases, assignments},
        inherited{core, leases, assignments},
        operations{core},
        update_ends{core, versions, drains, leases, moves, operations},
        update_starts{core,        versions, retention,  questions,   leases,
                      assignments, moves,    operations, update_ends, std::move(consistency)},
        update_deadlines{core, moves, operations, update_ends},
        updates{core,  versions,   choosing,    drains,        leases,          assignments,
                moves, operations, update_ends, update_starts, update_deadlines},
        publishing{core,       versions,    retention,     drains, leases,
                   operations, update_ends, update_starts, updates},
        membership{core,  versions,  retention,  questions,   drains,        leases,
                   moves, inherited, operations, update_ends, update_starts, updates},
        orders{core, versions, retention, moves, membership} {}
  parts(const parts&) = delete;
  parts& operator=(const parts&) = delete;

  catalog_detail::core core;
  catalog_detail::authority authority;
  catalog_detail::versions versions;
  catalog_detail::retention retention;
  catalog_detail::questions questions;
  catalog_detail::stuck stuck;
  catalog_detail::choosing choosing;
  catalog_detail::drains drains;
  catalog_detail::leases leases;
  catalog_detail::assignments assignments;
  catalog_detail::reader_moves moves;
  catalog_detail::inherited_leases inherited;
  catalog_detail::operation_table operations;
  catalog_detail::update_ends update_ends;
  catalog_detail::update_starts update_starts;
  catalog_detail::update_deadlines update_deadlines;
  catalog_detail::updates updates;
  catalog_detail::publishing publishing;
  catalog_detail::membership membership;
  catalog_detail::orders orders;
};

TENSORHUB_DECL catalog::catalog(catalog_options options, server_epoch epoch, any_scheduler scheduler,
                                any_consistency consistency)
    : parts_{std::make_unique<parts>(validated(std::move(options)), epoch, std::move(scheduler),
                                     std::move(consistency))} {}
TENSORHUB_DECL catalog::~catalog() = default;
TENSORHUB_DECL catalog::catalog(catalog&& other) noexcept = default;
TENSORHUB_DECL catalog& catalog::operator=(catalog&& other) noexcept = default;

TENSORHUB_DECL catalog_detail::core& catalog::core() noexcept {
  return parts_->core;
}
TENSORHUB_DECL const catalog_detail::core& catalog::core() const noexcept {
  return parts_->core;
}

TENSORHUB_DECL void catalog::receive(time_point now, const messages::envelope& envelope,
                                     const client_identity& from, bool more) {
  begin(now);
  core().batch.runs = more;
  catalog_detail::worker_state* const worker = core().find(incarnation{envelope.sender});
  if (worker != nullptr && !holds_alternative<messages::join_request>(envelope.body))
    note_rights(*worker, from.may());
  if (envelope.sender != 0 && parts_->authority.allows(from.may(), envelope, worker)) handle(envelope, from);
  settle();
}

TENSORHUB_DECL void catalog::advance(time_point now, bool behind) {
  begin(now);
  if (!recovered_ && !core().recovering()) {
    recovered_ = true;
    parts_->membership.end_recovery();
  }
  if (now >= next_tick_) {
    next_tick_ = now + catalog_detail::tick_interval;
    expire_waiting(behind);
  }
  if (now >= next_check_) {
    next_check_ = now + core().options.heartbeat_interval;
    if (!behind) parts_->membership.declare_silent_workers_dead();
    parts_->membership.repeat_cut_offs();
    for (auto& [name, model] : core().models) {
      if (model.keeps.revision == 0) continue;
      parts_->retention.rely_again(model);
      parts_->retention.look_after(model);
    }
  }
  settle();
}

TENSORHUB_DECL time_point catalog::next_deadline() const noexcept {
  const time_point next = recovered_ ? next_check_ : std::min(next_check_, core().recovers_until);
  return has_waiting_requests() ? std::min(next_tick_, next) : next;
}

TENSORHUB_DECL void catalog::unreachable(time_point now, incarnation worker) {
  begin(now);
  parts_->membership.on_unreachable(worker);
  settle();
}

TENSORHUB_DECL void catalog::review(time_point now, const rules_lookup& rules_of) {
  begin(now);
  parts_->membership.review_joins(rules_of);
  client_rules nothing;
  nothing.may = rights{};
  for (const incarnation id : core().workers_in_order()) {
    catalog_detail::worker_state* const worker = core().find(id);
    if (worker == nullptr) continue;
    const auto rules = rules_of(worker->access.key);
    note_rights(*worker, rules ? *rules : nothing);
  }
  settle();
}

TENSORHUB_DECL std::vector<outgoing> catalog::take_output() {
  const bool is_whole = !std::exchange(core().batch.in_event, true);  // else the next event repairs it
  core().batch.runs = false;
  for (const auto& [model, version, shard, count] : std::exchange(core().batch.fresh, {}))
    parts_->assignments.feed(*model, version, shard, count);
  settle_all();
  if (is_whole) core().end();
  auto output = std::exchange(core().output, {});
  std::erase_if(output, [this](const outgoing& each) { return parts_->leases.is_moot(each); });
  return output;
}
TENSORHUB_DECL std::vector<log_line> catalog::take_log() {
  return std::exchange(core().log_lines, {});
}
TENSORHUB_DECL source_limits catalog::limits() const noexcept {
  return parts_->choosing.limits();
}

TENSORHUB_DECL catalog_statistics catalog::statistics() const {
  catalog_statistics out = core().counted.seen;
  out.workers = core().workers.size();
  out.models = core().models.size();
  for (const auto& [name, model] : core().models) out.replicas += model.replicas.size();
  out.leases = core().leases.size();
  out.operations = parts_->operations.open_count();
  out.cut_offs = core().cut_offs.size();
  return out;
}
TENSORHUB_DECL std::vector<model_versions> catalog::versions() const {
  std::vector<model_versions> out;
  out.reserve(core().models.size());
  for (const auto& [name, model] : core().models) {
    model_versions row{name, model.latest_ever.value};
    for (const auto& [version, state] : model.versions) row.available += state.complete_replicas > 0 ? 1 : 0;
    out.push_back(std::move(row));
  }
  return out;
}
TENSORHUB_DECL bool catalog::is_joining(incarnation worker) const {
  return parts_->membership.is_joining(worker);
}
TENSORHUB_DECL std::string catalog::broken_rule() const {
  return catalog_detail::rule_check{core(), limits()}.run();
}
TENSORHUB_DECL const catalog_detail::worker_state* catalog::record_of(incarnation worker) const {
  return core().find(worker);
}
TENSORHUB_DECL std::optional<catalog_detail::verdict> catalog::verdict_of(incarnation worker) const {
  return parts_->membership.verdict_of(worker);
}
TENSORHUB_DECL const catalog_detail::model_state* catalog::record_of_model(const std::string& name) const {
  const auto found = core().models.find(name);
  return found == core().models.end() ? nullptr : &found->second;
}
TENSORHUB_DECL bool catalog::retains(const std::string& model, version_number version) const {
  const auto found = core().models.find(model);
  return found != core().models.end() && parts_->retention.is_retained(found->second, version);
}
TENSORHUB_DECL bool catalog::has_lost(const std::string& model, version_number version) const {
  const auto found = core().models.find(model);
  return found != core().models.end() && parts_->retention.is_lost(found->second, version);
}
TENSORHUB_DECL void catalog::join(const messages::envelope& envelope, const client_identity& client) {
  parts_->membership.on_join(envelope, *get_if<messages::join_request>(&envelope.body), client);
  // Requests that an earlier server has answered may still arrive late; they must not be executed again.
  if (catalog_detail::worker_state* joined = core().find(incarnation{envelope.sender}))
    catalog_detail::forget_answers(*joined, envelope);
  for (const auto& waited : parts_->membership.take_told()) {
    const incarnation from{waited.said.sender};
    if (parts_->authority.allows(waited.client.may(), waited.said, core().find(from)))
      join(waited.said, waited.client);
  }
}

/// True: it was a question or an order, for which nobody has to join.
TENSORHUB_DECL bool catalog::ask(const messages::envelope& envelope, const client_rules& rules) {
  const incarnation from{envelope.sender};
  if (const auto* list = get_if<messages::list_request>(&envelope.body))
    parts_->questions.on_list(from, envelope.sequence, *list, rules);
  else if (const auto* describe = get_if<messages::describe_request>(&envelope.body))
    parts_->questions.on_describe(from, envelope.sequence, *describe);
  else if (const auto* why = get_if<messages::why_request>(&envelope.body))
    parts_->questions.on_why(from, envelope.sequence, *why);
  else if (const auto* stuck = get_if<messages::stuck_request>(&envelope.body))
    parts_->stuck.on_stuck(from, envelope.sequence, *stuck, rules);
  else if (const auto* order = get_if<messages::manage_request>(&envelope.body))
    parts_->orders.on_manage(from, envelope.sequence, *order, rules);
  else
    return false;
  return true;
}

/// The list of keys may have been read again since the worker's last message.
TENSORHUB_DECL void catalog::note_rights(catalog_detail::worker_state& worker, const client_rules& rules) {
  const bool is_its = rules.may_speak_of(worker.model->name) && rules.may_be(worker.replica->name);
  worker.access.may_publish = is_its && rules.has_any_of(right::publish);
  const bool may_read = is_its && rules.has_any_of(right::read);
  if (std::exchange(worker.access.may_read, may_read) && !may_read) parts_->update_ends.refuse(worker);
  const bool may_serve = is_its && rules.has_any_of(right::serve);
  if (std::exchange(worker.access.may_serve, may_serve) == may_serve) return;
  parts_->versions.recompute(*worker.replica);
  if (!may_serve) parts_->moves.bar(worker);
}

TENSORHUB_DECL void catalog::handle(const messages::envelope& envelope, const client_identity& client) {
  const incarnation from{envelope.sender};
  if (holds_alternative<messages::join_request>(envelope.body)) return join(envelope, client);
  if (ask(envelope, client.may())) return;
  catalog_detail::worker_state* worker = core().find(from);
  if (worker == nullptr) return parts_->membership.notify_goodbye(from);
  // Requests may wait for a sign of life of this worker.
  if (worker->model->waits_to_let_go && !core().is_heard(*worker)) core().batch.is_heard_again = true;
  worker->signs.last_heard = core().now;
  core().move_to(worker->signs.life, catalog_detail::liveness::heard);
  catalog_detail::forget_answers(*worker, envelope);
  if (const auto* beat = get_if<messages::heartbeat_request>(&envelope.body)) {
    if (beat->retention < worker->model->keeps.revision)
      core().send(from, {}, messages::retention_push{worker->model->keeps});
    if (beat->chunks > worker->progress.most_chunks) worker->progress.progressed = core().now;
    worker->progress.most_chunks = std::max(worker->progress.most_chunks, beat->chunks);
    worker->progress.chunks_received = beat->chunks;
    return core().send(from, {}, core().beat_for(*worker->model));
  }
  if (!envelope.sequence || worker->requests.closed.contains(envelope.sequence)) return;
  if (worker->requests.answers.size() >= limits::worker_requests_in_flight &&
      !worker->requests.answers.contains(envelope.sequence.value)) {
    return core().log(log_level::warning, who(*worker) + " has too many requests in flight; one was dropped",
                      about(*worker));
  }
  const auto [answer, fresh] = worker->requests.answers.try_emplace(envelope.sequence.value);
  if (!fresh) {
    if (answer->second.message) return core().send(from, envelope.sequence, *answer->second.message);
    // An exception may have kept it from its answer: it is handled anew.
    if (catalog_detail::is_awaited(*worker, envelope.sequence)) return;
  }
  answer->second.asked = core().now;
  core().counted.asked(*worker, answer->second, envelope.body);
  dispatch(*worker, envelope.sequence, envelope.body);
}

/// Passes the request to the part that has an `on` for it.
TENSORHUB_DECL void catalog::dispatch(catalog_detail::worker_state& worker, request_sequence sequence,
                                      const messages::message& body) {
  visit([&](const auto& request) { give(worker, sequence, request); }, body);
}
template <typename Request>
void catalog::give(catalog_detail::worker_state& worker, request_sequence sequence, const Request& request) {
  if constexpr (requires { parts_->updates.on(worker, sequence, request); }) {
    parts_->updates.on(worker, sequence, request);
  } else if constexpr (requires { parts_->publishing.on(worker, sequence, request); }) {
    parts_->publishing.on(worker, sequence, request);
  } else if constexpr (requires { parts_->membership.on(worker, sequence, request); }) {
    parts_->membership.on(worker, sequence, request);
  } else if constexpr (requires { parts_->retention.on(worker, sequence, request); }) {
    parts_->retention.on(worker, sequence, request);
  } else if constexpr (requires { parts_->questions.on(worker, sequence, request); }) {
    parts_->questions.on(worker, sequence, request);
  } else {
    worker.requests.answers.erase(sequence.value);
    core().log(log_level::warning, who(worker) + " sent a message that only a server sends; it was ignored",
               about(worker));
  }
}

TENSORHUB_DECL void catalog::begin(time_point now) {
  if (core().begin(now)) return;
  core().mark_everything();
  try {
    parts_->leases.end_forgotten();
    for (auto& [name, model] : core().models) parts_->updates.repair(model);
  } catch (...) {  // the calls of what is left end at their deadlines
  }
}

TENSORHUB_DECL void catalog::settle() {
  settle_all();
  core().end();
}
/// Handlers change states and mark what has become possible. Here it happens, until nothing is left to do.
TENSORHUB_DECL void catalog::settle_all() {
  for (std::size_t round = 0; round < catalog_detail::most_rounds; ++round) {
    parts_->membership.confirm_verdicts();
    if (!core().batch.runs && std::exchange(core().batch.is_heard_again, false))
      core().retention_changed = true;
    if (std::exchange(core().retention_changed, false)) let_go();
    if (core().unsettled.empty() && !core().retention_changed) return;
    for (catalog_detail::model_state* model : std::exchange(core().unsettled, {}))
      parts_->update_starts.settle(*model);
  }
  core().log(log_level::error, "a fault of the catalog: it does not settle");
}

/// Decides again the requests that wait until a retained version may be released.
TENSORHUB_DECL void catalog::let_go() {
  for (auto& [name, model] : core().models) {
    if (std::exchange(model.has_void, false)) parts_->update_ends.withdraw_void(model);
    if (model.keeps.revision > 0) parts_->retention.look_after(model);
    if (!std::exchange(model.waits_to_let_go, false)) continue;
    parts_->publishing.retry_parked(model);
    core().mark_calls(model);
  }
}

TENSORHUB_DECL bool catalog::has_waiting_requests() const noexcept {
  return parts_->operations.open_count() + parts_->questions.waiter_count() + core().suspects.size() > 0;
}
TENSORHUB_DECL void catalog::expire_waiting(bool behind) {
  if (!has_waiting_requests()) return;
  if (!behind) parts_->membership.judge_suspects();
  for (auto& [name, model] : core().models) {
    if (!model.operations.starved.empty()) core().mark_credits(model);
    parts_->questions.expire(model);
  }
  parts_->update_deadlines.expire();
}

}  // namespace tensorhub::inline TENSORHUB_MODE
