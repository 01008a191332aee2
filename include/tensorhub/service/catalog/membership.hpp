#pragma once
/// \file membership.hpp
/// Handles workers that join (also a new server, with the versions that they hold), leave, are replaced or
/// fall silent.
///
/// A dead reader's lease ends when its source has confirmed the cut-off, or is gone itself.

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/barred_readers.hpp"
#include "tensorhub/service/catalog/admission.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/dead_list.hpp"
#include "tensorhub/service/catalog/drains.hpp"
#include "tensorhub/service/catalog/inherited_leases.hpp"
#include "tensorhub/service/catalog/leases.hpp"
#include "tensorhub/service/catalog/operation_table.hpp"
#include "tensorhub/service/catalog/questions.hpp"
#include "tensorhub/service/catalog/reader_moves.hpp"
#include "tensorhub/service/catalog/update_ends.hpp"
#include "tensorhub/service/catalog/update_starts.hpp"
#include "tensorhub/service/catalog/updates.hpp"
#include "tensorhub/service/catalog/versions.hpp"
#include "tensorhub/types/replica_name.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class membership {
 public:
  membership(core& core, versions& versions, retention& retention, questions& questions, drains& drains,
             leases& leases, reader_moves& moves, inherited_leases& inherited, operation_table& operations,
             update_ends& ends, update_starts& starts, updates& updates)
      : core_{core},
        versions_{versions},
        retention_{retention},
        questions_{questions},
        drains_{drains},
        leases_{leases},
        moves_{moves},
        inherited_{inherited},
        table_{operations},
        ends_{ends},
        starts_{starts},
        updates_{updates},
        admission_{core, core.policy.name} {}

  /// `join`: the body of `said`.
  void on_join(const messages::envelope& said, const messages::join_request& join,
               const client_identity& client) {
    const incarnation from{said.sender};
    const request_sequence sequence = said.sequence;
    if (dead_.contains(from)) return notify_goodbye(from);
    messages::join_reply reply;
    reply.epoch = core_.epoch;
    reply.heartbeat_interval_ms = milliseconds(core_.options.heartbeat_interval);
    reply.worker_timeout_ms = milliseconds(core_.options.worker_timeout);
    reply.group_timeout_ms = milliseconds(core_.options.group_timeout);
    reply.result = check_place(from, join);
    if (reply.result.ok() && join.before.returns) reply.result = check_vacant(from, join);
    if (reply.result.ok()) reply.result = check_not_split(join);
    if (reply.result.ok()) reply.result = check_replaces(from, join, client);
    if (reply.result.ok()) reply.result = admission_.check_join(from, join);
    if (reply.result.ok()) {
      reply.result = admission_.check_form(join, reply.wants_layout);
      if (is_misfit(reply.result) && is_form_open(join) && decides_form(said, join, client, reply)) return;
    }
    if (reply.wants_layout) {
      const auto asked = admission_.whom_to_ask(said, join, client);
      if (asked) core_.send(asked->from, asked->sequence, std::move(reply));
      if (!asked || asked->from != from) core_.show_life(from);
      return;
    }
    if (reply.result.ok()) {
      if (may_tell(client)) retention_.learn(core_.models.at(join.model), join.before.keeps);
      worker_state& worker = admit(said, join, client);
      if (worker.model->before.awaited && !core_.recovering(*worker.model)) end_recovery(*worker.model);
      // Replicas that waited for this shard may be allowed to release their version now.
      core_.retention_changed =
          core_.retention_changed ||
          (core_.recovering() && worker.model->waits_to_let_go && !core_.recovering(*worker.model));
      questions_.retry_unknown();
      retention_.greet(worker);
      reply.operation = worker.replica->closed_operation;
      reply.latest = worker.model->latest_ever;
      reply.workers = worker.model->workers;
    }
    if (!reply.result.ok()) {
      core_.counted.seen.joins_refused.add(reply.result.code);
      log_fields about{.model = join.model, .replica = join.replica, .shard = join.shard.index};
      about.worker = from;
      about.code = reply.result.code;
      core_.log(log_level::warning,
                "refused " + join.model + "/" + join.replica + ": " + reply.result.sentence,
                std::move(about));
    }
    core_.send(from, sequence, std::move(reply));
  }

  void on(worker_state& worker, request_sequence sequence, const messages::leave_request&) {
    const incarnation id = worker.id;
    core_.log(log_level::info, who(worker) + " left", about(worker));
    ++core_.counted.seen.workers_left;
    dead_.insert(id,
                 std::nullopt);  // for good: a late repetition of its join must not take a successor's place
    remove(worker, {errc::group_failed, who(worker) + " left"}, true);
    core_.send(id, sequence, messages::status_reply{});
  }

  [[nodiscard]] bool is_joining(incarnation id) const { return admission_.is_waiting(id); }
  template <typename Lookup>
  void review_joins(const Lookup& rules_of) {
    admission_.review(rules_of);
  }
  /// Joins that waited for a layout which the server has learnt since: they are to be handled again.
  [[nodiscard]] std::vector<waiting_join> take_told() { return admission_.take_told(); }

  void notify_goodbye(incarnation id) {
    admission_.forget(id);
    if (!dead_.contains(id)) return send_goodbye(id, {}, true);
    const auto found = dead_.verdict_of(id);
    send_goodbye(id, found ? reason_of(*found)
                           : messages::status{errc::replaced,
                                              "this worker has left; construct a new one to join again"});
  }

  /// By an order, `by` an operator or a key.
  void evict(incarnation id, const std::string& by) {
    if (worker_state* worker = core_.find(id))
      declare_dead(*worker, "was evicted by " + by, verdict::evicted);
  }

  void declare_silent_workers_dead() {
    std::vector<incarnation> silent;
    for (const auto& [id, worker] : core_.workers) {
      if (core_.now - worker->signs.last_heard > core_.options.worker_timeout) silent.push_back(id);
    }
    std::sort(silent.begin(), silent.end());
    for (const incarnation id : silent) {
      if (worker_state* worker = core_.find(id))
        declare_dead(*worker, "was silent for too long", verdict::silent);
    }
    for (auto& [name, model] : core_.models) {
      std::erase_if(model.replicas, [](const auto& entry) { return is_deserted(*entry.second); });
    }
  }

  // ---- suspicion: a worker that is silent, unreachable and reported lost by a reader is declared dead

  /// The connection between this worker and the server is gone.
  void on_unreachable(incarnation id) {
    worker_state* worker = core_.find(id);
    if (worker == nullptr) return admission_.forget(id);
    liveness& life = worker->signs.life;
    core_.move_to(life, worker->is_suspect() ? liveness::missing : liveness::unreachable);
    core_.suspects.insert(id);
  }
  /// Declares a suspect dead if a reader has lost it, the server cannot reach it, and it has been silent for
  /// longer than a heartbeat interval.
  void judge_suspects() {
    for (const incarnation id : std::set<incarnation>{core_.suspects}) {
      worker_state* worker = core_.find(id);
      if (worker == nullptr || worker->signs.life == liveness::heard) {
        core_.suspects.erase(id);
      } else if (worker->signs.life == liveness::missing &&
                 core_.now - worker->signs.last_heard > core_.options.heartbeat_interval) {
        core_.suspects.erase(id);
        declare_dead(*worker, "cannot be reached, and a reader has lost it", verdict::silent);
      }
    }
  }

  /// Declares condemned workers dead: those that broke the protocol, and those that an earlier server
  /// declared dead without being able to tell them. The latter must join anew, because the sources that cut
  /// them off will never serve them again. The server needs two reports for this: the source announced the
  /// order to cut the reader off, and the reader reported the loss of that source. A source that lies can
  /// refuse its own readers in any case; this rule lets it make some of them join anew, each once per
  /// server, but no worker that joined this server first.
  void confirm_verdicts() {
    for (const auto& [id, found] : std::exchange(core_.condemned, {})) {
      worker_state* worker = core_.find(id);
      if (worker == nullptr) continue;
      declare_dead(
          *worker,
          found == verdict::unruly   ? "called update() before it had reported the end of its last call"
          : found == verdict::silent ? "does not confirm that it has cut off dead readers"
          : found == verdict::lingering
              ? "was the second time left at the deadline of an unpublish() or update() of its source"
              : "was declared dead by an earlier server: its source has cut it off",
          found);
    }
  }

  /// Why this worker was declared dead; empty: it was not, or the server has forgotten.
  [[nodiscard]] std::optional<verdict> verdict_of(incarnation id) const { return dead_.verdict_of(id); }

  // ---- recovery after a server's start

  /// No more workers of an earlier server are expected: runs the decisions that were deferred until now.
  void end_recovery() {
    for (auto& [name, model] : core_.models) {
      end_recovery(model);
      core_.mark_calls(model);  // also of a model that no earlier server has known
    }
    core_.retention_changed = true;
    questions_.retry_unknown();  // what is still unknown is not found
  }

  void repeat_cut_offs() {
    for (const lease_id id : core_.cut_offs) {
      const lease_state& lease = core_.leases.at(id);
      core_.send(lease.source, {}, messages::cut_off_push{lease.reader});
    }
  }

 private:
  /// An incarnation belongs to one model, replica and shard for its whole life.
  [[nodiscard]] messages::status check_place(incarnation from, const messages::join_request& join) const {
    const worker_state* present = core_.find(from);
    if (present == nullptr || (present->model->name == join.model && present->replica->name == join.replica &&
                               present->shard == join.shard)) {
      return {};
    }
    return {errc::invalid_argument,
            "this worker has joined already, as " + who(*present) + ": it cannot join as another one too"};
  }

  /// A process that returns takes no place from one that was started after it.
  [[nodiscard]] messages::status check_vacant(incarnation from, const messages::join_request& join) const {
    const worker_state* present = worker_at(join);
    return present == nullptr || present->id == from ? messages::status{} : reason_of(verdict::replaced);
  }

  /// A living worker is replaced by the owner of its key, or by one with the right to.
  [[nodiscard]] messages::status check_replaces(incarnation from, const messages::join_request& join,
                                                const client_identity& client) const {
    if (client.may().has_any_of(right::replace)) return {};
    const worker_state* present = worker_at(join);
    if (present == nullptr || present->id == from || present->access.key == client.key) return {};
    // Its readers may say what they like of it.
    const bool is_reachable =
        present->signs.life == liveness::heard || present->signs.life == liveness::suspect;
    if (!is_reachable || !core_.was_heard_lately(*present)) return {};
    return {errc::refused,
            "the key '" + client.may().name + "' may not replace " + who(*present) +
                ", which has another key and is alive: wait until it has left, or give the key "
                "the right 'replace' in the server's allow-list"};
  }
  /// The worker in the place of this join; null: none.
  [[nodiscard]] const worker_state* worker_at(const messages::join_request& join) const {
    const auto model = core_.models.find(join.model);
    if (model == core_.models.end() || join.shard.index >= model->second.shards) return nullptr;
    const auto replica = model->second.replicas.find(join.replica);
    return replica == model->second.replicas.end() ? nullptr : replica->second->workers[join.shard.index];
  }

  /// Without an election nobody knows whether the server that a worker comes from has ended, or is only slow:
  /// both would go on with a part of the workers. Only a server that has just been started, for all of them,
  /// takes over. One that the worker had left for the other knows what is out of date by now.
  [[nodiscard]] messages::status check_not_split(const messages::join_request& join) const {
    const bool has_election = term_of(core_.epoch) != 0;
    if (!join.before.moved || has_election || core_.recovering()) return {};
    if (detail::contains(taken_over_, join.before.server)) return {};
    return {errc::unavailable,
            "this reference server has no election, and does not take over workers of another one that may "
            "still run: if that one has ended, restart this one; or run both as candidates of an etcd "
            "(standby_server)"};
  }

  [[nodiscard]] static bool is_misfit(const messages::status& result) noexcept {
    return result.code == errc::layout_mismatch || result.code == errc::policy_mismatch;
  }
  /// Only readers have told what the model looks like, and its publisher may know better: one reader with
  /// another layout, which has joined first, does not keep everybody else out. Once there is a version, that
  /// is so for those alone that an earlier server has known. False also without keys.
  [[nodiscard]] bool is_form_open(const messages::join_request& join) const {
    const auto found = core_.models.find(join.model);
    if (found == core_.models.end()) return false;
    const model_state& model = found->second;
    const bool is_known = core_.recovering() && join.before.server;
    const bool is_held = model.before.missing == missing_workers::none && model.latest_seen;
    const bool has_versions = is_held || !model.versions.empty();
    if (!is_known && (model.before.awaited || has_versions)) return false;
    const auto may_publish = [](const worker_state* w) { return w != nullptr && w->access.may_publish; };
    return detail::none_of(model.replicas, [&](const auto& entry) {
      return detail::any_of(entry.second->workers, may_publish);
    });
  }
  /// A join that does not fit while the form is open. True: it is handled, or not to be answered yet.
  bool decides_form(const messages::envelope& said, const messages::join_request& join,
                    const client_identity& client, messages::join_reply& reply) {
    if (!client.may().has_any_of(right::publish)) {
      if (!core_.recovering() || !join.before.server) return false;
      core_.show_life(incarnation{said.sender});  // it asks again: the publisher may be on its way
      return true;
    }
    if (join.form.tensors.empty()) {  // before others have to yield, it shows what it has
      reply.result = {};
      reply.wants_layout = true;
      core_.send(incarnation{said.sender}, said.sequence, std::move(reply));
      return true;
    }
    if (!admission::has_its_layout(join)) return false;
    dissolve(join.model);
    on_join(said, join, client);
    return true;
  }
  /// Its workers are declared dead, and the model is forgotten.
  void dissolve(const std::string& name) {
    std::vector<incarnation> all;
    for_each_worker(core_.models.at(name), [&](const worker_state& worker) { all.push_back(worker.id); });
    for (const incarnation id : all)
      declare_dead(*core_.find(id), "does not fit to the model's publisher", verdict::misfit);
  }

  /// The replica by whose name one that is to join was set aside (orders.hpp), as a part of it; empty: none.
  [[nodiscard]] static std::string order_about(const model_state& model, const std::string& replica) {
    for (std::string_view whole = replica; !whole.empty(); whole = whole_of(whole)) {
      const auto is_ordered = [whole](const replica_state* each) { return each->set_aside_as == whole; };
      if (detail::any_of(parts_of(model, std::string{whole}), is_ordered)) return std::string{whole};
    }
    return {};
  }
  /// `join`: the body of `said`.
  worker_state& admit(const messages::envelope& said, const messages::join_request& join,
                      const client_identity& client) {
    const incarnation id{said.sender};
    model_state& model = core_.models.at(join.model);
    auto& slot = model.replicas[join.replica];
    if (!slot) {
      slot = std::make_unique<replica_state>();
      slot->name = join.replica;
      slot->model = &model;
      slot->workers.resize(model.shards);
      slot->set_aside_as = order_about(model, slot->name);
    }
    worker_state* present = slot->workers[join.shard.index];
    if (present != nullptr && present->id != id) {
      ++model.workers;  // keeps model and replica while the old worker is removed
      declare_dead(*present, "was replaced by a newer process", verdict::replaced);
      --model.workers;
      present = nullptr;
    }
    replica_state& replica = *model.replicas[join.replica];
    const bool is_fresh = present == nullptr;
    const bool is_first_word = is_fresh || brings_first_word(*present, said, join);
    if (is_fresh) {
      auto owned = std::make_unique<worker_state>();
      present = owned.get();
      present->id = id;
      present->model = &model;
      present->replica = &replica;
      present->shard = join.shard;
      present->progress.progressed = core_.now;
      core_.workers[id] = std::move(owned);
      replica.workers[join.shard.index] = present;
      ++model.workers;
      core_.log(log_level::info, who(*present) + " joined", about(*present));
      ++core_.counted.seen.workers_joined;
    }
    worker_state& worker = *present;
    worker.location = join.location;
    if (is_fresh) inherited_.find_source(worker);
    worker.spot = join.spot;
    replica.temporary = replica.temporary || join.temporary;
    worker.access.transport = join.form.transport;
    worker.access.integrity = join.form.integrity;
    worker.access.address = join.address;
    worker.access.capability_key = join.capability_key;
    worker.access.key = client.key;
    worker.access.may_read = client.may().has_any_of(right::read);
    worker.access.may_serve = client.may().has_any_of(right::serve);
    worker.access.may_publish = client.may().has_any_of(right::publish);
    if (!is_fresh && model.waits_to_let_go && !core_.is_heard(worker)) core_.batch.is_heard_again = true;
    worker.signs.last_heard = core_.now;
    worker.past.called = worker.past.called || join.before.operation.value != 0;
    replica.closed_operation = std::max(replica.closed_operation, join.before.operation);
    if (is_first_word) succeed(worker, join, client);  // a repeated join may arrive late and be out of date
    versions_.recompute(replica);
    return worker;
  }
  /// The worker has a record already, but a late copy of its very first join has made it, which an earlier
  /// server had answered. The worker has not heard of this server yet, and says only now what it knows.
  [[nodiscard]] bool brings_first_word(const worker_state& present, const messages::envelope& said,
                                       const messages::join_request& join) const {
    const bool is_blank = !present.past.was_elsewhere && !present.past.called && !present.held;
    return is_blank && !is_new(join) && join.before.server != core_.epoch &&
           !present.requests.closed.contains(said.sequence);
  }
  /// The worker comes from no earlier server, and nothing has happened to it.
  [[nodiscard]] static bool is_new(const messages::join_request& join) {
    return !join.before.server && join.before.operation.value == 0 && !join.before.held &&
           !join.before.latest && join.before.reading.empty();
  }

  /// Which versions there were, and which are retained or rolled back, is not for readers to say.
  [[nodiscard]] static bool may_tell(const client_identity& client) {
    return client.may().has_any_of(right::retain | right::publish);
  }
  /// Takes over what the worker knows from an earlier server.
  void succeed(worker_state& worker, const messages::join_request& join, const client_identity& client) {
    model_state& model = *worker.model;
    if (core_.recovering() && !detail::contains(taken_over_, join.before.server)) {
      std::rotate(taken_over_.begin(), taken_over_.begin() + 1, taken_over_.end());
      taken_over_.back() = join.before.server;
    }
    worker.past.ended_before = std::max(worker.past.ended_before, join.before.operation);
    worker.past.ended_well = join.before.ended_well;
    const bool is_known = !is_new(join);
    worker.past.was_elsewhere = is_known;
    if (is_known && model.before.missing == missing_workers::all)
      model.before.missing = missing_workers::some;
    for (const incarnation reader : join.before.barred) bar(worker.past.barred, reader);
    model.before.awaited = model.before.awaited || is_known;
    if (is_known && join.before.server != core_.epoch)
      count_back(model, join);  // once for each that came back
    // What cannot be checked is believed only while the server recovers. Afterwards a joiner does not
    // change which version numbers may be published, unless its key may publish.
    if (core_.recovering() && is_possible(join.before.latest)) {
      const version_number valid = is_void(model, join.before.latest) ? version_number{} : join.before.latest;
      model.before.latest = std::max(model.before.latest, valid);
      if (may_tell(client)) {  // it counts for as long as this server runs
        model.latest_seen = std::max(model.latest_seen, join.before.latest);
        model.latest_ever = std::max(model.latest_ever, valid);
      }
    }
    // This applies even if the worker holds nothing: it may be publishing while the answer was lost.
    worker.past.has_old_keys = worker.past.has_old_keys || is_known;
    if (join.before.decided) {
      versions_.know(worker, join.before.decided, {});
      updates_.adopt_update(worker, {join.before.operation.value + 1}, join.before.decided);
    }
    if (!join.before.reading.empty()) {
      const messages::assignment& first = join.before.reading.front();
      versions_.know(worker, first.version, first.root);
      versions_.begin_overwriting(worker);
      // Afterwards nobody may claim to read from others: their drains would wait for it. A worker that comes
      // late and does read is stopped by its source's next drain, which makes the old keys invalid.
      if (core_.recovering()) inherited_.adopt(worker, join.before.reading);
    }
    const bool shows = join.before.receiving && !join.before.reading.empty() && !worker.receiving;
    if (shows && (versions_.is_trusted(worker) || versions_.may_bring(worker, *join.before.receiving)))
      versions_.receive(worker, *join.before.receiving);
    if (join.before.held && !worker.held && versions_.may_bring(worker, *join.before.held))
      versions_.hold(worker, *join.before.held, join.before.held->open);
    starts_.resolve_ended(*worker.replica);
    updates_.await_decided(worker, nullptr);
    inherited_.lead_readers(worker);
    versions_.forget_old(model);
  }

  /// The workers of an older server do not count: there may be others that had moved on from it, and only the
  /// last server knew those that were new there.
  static void count_back(model_state& model, const messages::join_request& join) {
    model.before.workers = std::max(model.before.workers, join.before.peers);
    const std::uint64_t term = term_of(join.before.server);
    if (term > model.before.term) {
      model.before.term = term;
      model.before.back = 0;
    }
    model.before.back += term == model.before.term ? 1 : 0;
  }

  void end_recovery(model_state& model) {
    if (!std::exchange(model.before.awaited, false)) return;
    core_.retention_changed = true;
    std::vector<worker_state*> draining;
    for_each_worker(model, [&](worker_state& worker) {
      if (worker.drain) draining.push_back(&worker);
    });
    for (worker_state* worker : draining) drains_.check_drained(*worker);
    core_.mark_calls(model);
  }

  /// Of a goodbye. `disconnected`: the process may join again, as another incarnation.
  [[nodiscard]] static messages::status reason_of(verdict found) {
    switch (found) {
      case verdict::silent:
        return {errc::disconnected, "the server did not hear from this worker and declared it dead"};
      case verdict::replaced:
        return {errc::replaced,
                "a newer process has taken this worker's place: it has the same model, replica and shard; "
                "give each process a replica name of its own"};
      case verdict::earlier:
        return {errc::disconnected,
                "an earlier server declared this worker dead, and its sources have cut it off"};
      case verdict::unruly:
        return {errc::protocol_mismatch,
                "this worker called update() before it had reported the end of its last call: one call at a "
                "time; construct a new one to join again"};
      case verdict::lingering:
        return {errc::disconnected,
                "this worker was still reading at the deadline of its source's unpublish() or update(), the "
                "second time, and the server has declared it dead"};
      case verdict::evicted:
        return {errc::replaced, "an operator has evicted this worker; construct a new one to join again"};
      case verdict::misfit:
        return {errc::replaced,
                "this worker joined before its model's publisher, with another layout, number of shards, "
                "transport or integrity policy: construct a new one that has the publisher's"};
    }
    return {};
  }

  /// As another incarnation, with what it holds.
  [[nodiscard]] static bool may_return(verdict found) noexcept {
    return found == verdict::silent || found == verdict::unruly || found == verdict::lingering;
  }
  void declare_dead(worker_state& worker, std::string_view why, verdict found) {
    const std::string sentence = who(worker) + " " + std::string{why};
    core_.log(log_level::warning, sentence, about(worker));
    catalog_statistics& seen = core_.counted.seen;
    ++(found == verdict::replaced                                ? seen.workers_replaced
       : found == verdict::unruly || found == verdict::lingering ? seen.workers_unruly
                                                                 : seen.workers_dead);
    dead_.insert(worker.id, found);
    missing_workers& missing = worker.model->before.missing;
    if (may_return(found)) missing = std::max(missing, missing_workers::some);
    const incarnation id = worker.id;
    remove(worker, {errc::group_failed, sentence}, false);
    send_goodbye(id, reason_of(found));
  }
  void send_goodbye(incarnation id, messages::status reason, bool rejoin = false) {
    core_.send(id, {}, messages::goodbye_push{core_.epoch, rejoin, std::move(reason), id});
  }

  /// Removes a worker from all records. `gone_politely`: the worker itself reported that it no longer reads.
  void remove(worker_state& worker, const messages::status& reason, bool gone_politely) {
    worker.drain.reset();  // its readers are moved, not waited for, so it must get no drained_reply
    for (const lease_id id : std::vector<lease_id>{worker.as_reader.leases}) {
      lease_state& lease = core_.leases.at(id);
      const worker_state* source = core_.find(lease.source);
      if (gone_politely || lease.is_reserved() || source == nullptr) {
        leases_.end(id, &drain_state::finished);
      } else {
        leases_.begin_cut_off(lease);
        if (leases_.confirms_nothing(*source)) core_.condemned.emplace_back(source->id, verdict::silent);
      }
    }
    worker.as_reader.leases.clear();
    worker.as_reader.upstream = nullptr;
    update_chain(worker);
    core_.move_to(worker.signs.life, liveness::gone);
    versions_.withdraw(worker);
    if (worker.held && worker.held->open) ends_.give_up_open(worker, who(worker) + " is gone");
    for (const lease_id id : std::vector<lease_id>{worker.as_source.readers})
      moves_.abandon(worker, id, &drain_state::moved);
    versions_.end_receiving(worker);
    versions_.drop(worker);
    replica_state& replica = *worker.replica;
    model_state& model = *worker.model;
    for (operation_state* operation : std::vector{replica.open}) {
      if (operation->is_closed() || operation->is_publish) continue;
      const member_state* member = member_of(*operation, worker.shard.index);
      if (member != nullptr && (operation->is_decided() || member->phase != phase::absent))
        ends_.close_failed(*operation, reason);
    }
    questions_.forget(worker);
    replica.workers[worker.shard.index] = nullptr;
    versions_.recompute(replica);
    core_.lingered.erase(worker.id);
    core_.workers.erase(worker.id);
    --model.workers;
    if (is_deserted(replica)) {
      while (!replica.open.empty()) table_.close(*replica.open.front());
      replica.dropping = false;  // a new copy may have the same name
      replica.set_aside_as.clear();
    }
    if (model.workers == 0) {
      questions_.forget(model);
      std::erase(core_.unsettled, &model);
      std::erase_if(core_.batch.fresh, [&](const fresh_sources& each) { return each.model == &model; });
      core_.close_model(model);
    }
  }

  [[nodiscard]] static std::uint32_t milliseconds(std::chrono::milliseconds value) noexcept {
    return static_cast<std::uint32_t>(std::clamp<std::int64_t>(value.count(), 0, UINT32_MAX));
  }

  core& core_;
  versions& versions_;
  retention& retention_;
  questions& questions_;
  drains& drains_;
  leases& leases_;
  reader_moves& moves_;
  inherited_leases& inherited_;
  operation_table& table_;
  update_ends& ends_;
  update_starts& starts_;
  updates& updates_;
  admission admission_;
  dead_list dead_;
  std::array<server_epoch, 4> taken_over_{};  ///< the last few servers whose workers came while it recovered
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
