#pragma once
/// \file core.hpp
/// The part that all other parts of the catalog share: the state, the time of the current event, and the
/// output of messages and log lines.
///
/// The parts, each of which uses only those above it:
///
///     core              state, answers and messages     tally             counters
///     versions          held and available versions     questions, stuck  wait, list, describe, why, stuck
///     retention         retained versions, handovers    choosing          candidates for the scheduler
///     drains            who waits for readers to go     leases            permissions to read
///     assignments       which sources a reader has      reader_moves      readers leave a source
///     inherited_leases  those of an earlier server      operation_table   which call is which operation
///     decisions         which version an update gets    update_ends       one end for all its shards
///     update_starts     from calls to sources           update_deadlines  calls and shards that are too late
///     updates           the requests of an update       publishing        publish, unpublish
///     admission         whether a worker fits           membership        join, leave, silence
///     rules             asserts what holds after every event
///
/// `catalog` (service/catalog.hpp) owns the parts, passes each message to the part that handles it, runs the
/// timers, and settles what has become possible.

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/any_policies.hpp"
#include "tensorhub/service/catalog/dead_list.hpp"
#include "tensorhub/service/catalog/options.hpp"
#include "tensorhub/service/catalog/outlived_models.hpp"
#include "tensorhub/service/catalog/state.hpp"
#include "tensorhub/service/catalog/tally.hpp"
#include "tensorhub/service/envelope.hpp"
#include "tensorhub/service/log.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// A message for one worker.
struct outgoing {
  incarnation to{};
  messages::envelope message{};
};

namespace catalog_detail {

/// How many workers have become readable for one shard of one version.
struct fresh_sources {
  model_state* model = nullptr;
  version_number version{};
  std::uint32_t shard = 0;
  std::size_t count = 0;
};

/// While a shard that has not called holds up a holder, another source for it is sought so often.
inline constexpr std::chrono::milliseconds moves_again_after{200};

/// Events whose output is taken together.
struct batch_state {
  bool in_event = false;               ///< an event has begun, and not ended
  bool runs = false;                   ///< more events may follow before that
  std::vector<fresh_sources> fresh{};  ///< hungry readers are given them when the output is taken
  std::string refused{};               ///< the last transition that was not made
  bool is_heard_again = false;  ///< of a worker; what waits for that is looked at when the output is taken
};

struct core {
  catalog_options options{};
  server_epoch epoch{};
  consistency_traits policy{};                      ///< of the server's consistency policy
  time_point now{};                                 ///< of the current event
  time_point recovers_until = time_point::never();  ///< never: no event has happened yet

  std::map<std::string, model_state> models{};
  outlived_models outlived{};  ///< none of those in `models`
  std::unordered_map<incarnation, std::unique_ptr<worker_state>> workers{};
  std::unordered_map<lease_id, lease_state> leases{};  ///< looked up much more often than iterated
  std::set<lease_id> cut_offs{};                       ///< leases that wait for their source's confirmation
  std::set<lease_id> sourceless{};  ///< granted by an earlier server; their source has not joined this one

  bool retention_changed = false;         ///< requests that wait for a handover should be tried again
  std::vector<model_state*> unsettled{};  ///< models in which something has become possible
  std::set<incarnation> suspects{};       ///< workers that are not `heard`
  /// Readers that were left at the deadline of a drain, and the update in which that was.
  std::map<incarnation, operation_counter> lingered{};
  std::vector<std::pair<incarnation, verdict>> condemned{};  ///< found out during this event

  batch_state batch{};

  std::vector<outgoing> output{};
  std::vector<log_line> log_lines{};
  tally counted{};

  /// False: an exception, for want of memory, has ended the event before in the middle.
  [[nodiscard]] bool begin(time_point at) {
    now = at;
    if (recovers_until == time_point::never()) recovers_until = at + options.recovery_grace;
    return !std::exchange(batch.in_event, true);
  }
  void end() noexcept { batch.in_event = false; }
  /// This server may not know all models of an earlier server yet.
  [[nodiscard]] bool recovering() const noexcept { return now < recovers_until; }
  /// More workers of this model may join: nobody comes from the server just before this one, fewer are back
  /// than an earlier server counted, or no complete replica has the latest version that the workers reported.
  /// (Workers learn the count from heartbeats, so the count of the workers that are back may miss those that
  /// joined last.)
  [[nodiscard]] bool recovering(const model_state& model) const noexcept {
    if (!recovering() || !model.before.awaited) return false;
    if (model.before.term + 1 < term_of(epoch)) return true;
    if (model.before.workers == 0 || model.before.back < model.before.workers) return true;
    for (auto from = model.versions.lower_bound(model.before.latest); from != model.versions.end(); ++from)
      if (from->second.complete_replicas > 0) return false;
    return bool{model.before.latest};
  }

  /// The record of this model, which is new or has outlived its workers.
  [[nodiscard]] model_state& open_model(const std::string& name, std::uint32_t shards) {
    const auto [entry, is_new] = models.try_emplace(name);
    model_state& model = entry->second;
    if (!is_new) return model;
    model.name = name;
    model.shards = shards;
    model.layouts.resize(shards);
    if (auto kept = outlived.take(name)) {
      model.latest_seen = kept->latest_seen;
      model.keeps = std::move(kept->keeps);
      model.before.missing = missing_workers::all;
    }
    return model;
  }
  /// Pre-condition: it has no workers.
  void close_model(model_state& model) {
    if (model.before.missing != missing_workers::none && model.latest_seen)
      outlived.keep(model.name, {0, model.latest_seen, std::move(model.keeps)});
    models.erase(std::string{model.name});
  }

  /// The end of a sentence about a version that did not come.
  [[nodiscard]] std::string what_there_is(const model_state& model, const version_selector& selector) const {
    std::string out = model.latest_ever   ? "the latest was " + to_string(model.latest_ever)
                      : model.latest_seen ? "none is known yet"
                                          : "no worker has told this server of any: is this the name of the "
                                            "publisher's model, and has it published?";
    if (model.before.missing == missing_workers::all)
      out += "; the server has lost all workers that had version " + to_string(model.latest_seen) +
             ", and none of them is back";
    else if (model.latest_seen > model.latest_ever && !is_void(model, model.latest_seen) &&
             accepts(selector, model.latest_seen))
      out += ", and of " + to_string(model.latest_seen) + " only some shards were published";
    if (recovering(model))
      out += "; this server has just begun, and not all workers have told it what they hold";
    return out;
  }

  /// A holder that lets go of the version waits for a shard that has not called.
  [[nodiscard]] bool is_held_up(const operation_state& operation) const noexcept {
    return operation.has_version() &&
           operation.arrival_deadline < operation.decided_at + options.group_timeout;
  }

  /// The model's workers may show, or use, what is void: `update_ends::withdraw_void` runs before the event
  /// ends.
  void note_void(model_state& model) noexcept { model.has_void = retention_changed = true; }

  // ---- what `catalog::settle` is to look at before the event ends

  void mark_calls(model_state& model) { list(model).calls = true; }
  void mark_calls(const replica_state& replica) { list(*replica.model).replicas.insert(replica.name); }
  void mark_credits(model_state& model) { list(model).credits = true; }
  void mark_source(model_state& model, version_number version, std::uint32_t shard) {
    list(model).sources.emplace(version, shard);
  }
  /// It is not known any more what has become possible.
  void mark_everything() {
    unsettled.clear();
    for (auto& [name, model] : models) model.unsettled.is_listed = false;
    for (auto& [name, model] : models) {
      list(model).calls = model.unsettled.credits = true;
      model.waits_to_let_go = true;
    }
    retention_changed = true;
  }
  /// Pre-condition: a batch runs.
  void put_off(model_state& model, version_number version, std::uint32_t shard) {
    const auto same = [&](const fresh_sources& each) {
      return each.model == &model && each.version == version && each.shard == shard;
    };
    const auto found = detail::find_if(batch.fresh, same);
    if (found == batch.fresh.end())
      batch.fresh.push_back({&model, version, shard, 1});
    else
      ++found->count;
  }
  unsettled_state& list(model_state& model) {
    if (!std::exchange(model.unsettled.is_listed, true)) unsettled.push_back(&model);
    return model.unsettled;
  }

  /// The answer to a heartbeat of this model's workers. It has no count while more workers may join.
  [[nodiscard]] messages::heartbeat_reply beat_for(const model_state& model) const noexcept {
    return {epoch, model.latest_ever, recovering(model) ? 0 : model.workers};
  }

  /// Null: the worker has not joined, or was removed.
  [[nodiscard]] worker_state* find(incarnation id) const {
    const auto found = workers.find(id);
    return found == workers.end() ? nullptr : found->second.get();
  }

  [[nodiscard]] bool was_heard_lately(const worker_state& worker) const noexcept {
    return now - worker.signs.last_heard <= 2 * options.heartbeat_interval;
  }
  /// The worker was heard lately, and nobody has lost it since.
  [[nodiscard]] bool is_heard(const worker_state& worker) const noexcept {
    return was_heard_lately(worker) && worker.signs.life == liveness::heard;
  }

  /// Makes a transition. One that its table does not have is a fault of the catalog: it is not made,
  /// and logged; `catalog::broken_rule` reports it.
  template <typename State>
  void move_to(State& state, State next) {
    if (state == next) return;
    if (may_follow(state, next)) {
      state = next;
      return;
    }
    batch.refused = std::string{name_of(state)} + " -> " + std::string{name_of(next)};
    log(log_level::error, "a fault of the catalog: it has no transition " + batch.refused);
  }

  template <typename Records>
  [[nodiscard]] static auto ids_in_order(const Records& records) {
    std::vector<typename Records::key_type> ids;
    ids.reserve(records.size());
    for (const auto& [id, record] : records) ids.push_back(id);
    std::sort(ids.begin(), ids.end());
    return ids;
  }
  /// All leases, in the order in which they were granted; those of earlier servers before or after.
  [[nodiscard]] std::vector<lease_id> leases_in_order() const { return ids_in_order(leases); }
  [[nodiscard]] std::vector<incarnation> workers_in_order() const { return ids_in_order(workers); }

  void send(incarnation to, request_sequence sequence, messages::message body) {
    if (!sequence) counted.pushed(body);
    output.push_back({to, {epoch.value, sequence, {}, std::move(body)}});
  }
  /// Tells the sender of a request that has to wait that this server lives. Otherwise the sender, which may
  /// not have joined, would turn to the next server of its list.
  void show_life(incarnation to) { send(to, {}, messages::version_push{}); }
  /// Sends the answer to a request, and stores it for retries.
  void answer(worker_state& worker, request_sequence sequence, messages::message body) {
    const auto slot = worker.requests.answers.find(sequence.value);
    if (slot != worker.requests.answers.end()) {
      counted.answered(worker, slot->second, body, now);
      slot->second.message = body;
    }
    send(worker.id, sequence, std::move(body));
  }
  /// Describes one decision in one line.
  [[nodiscard]] std::string describe(const worker_state* reader, const decision_state& decision) const {
    const auto name = [this](incarnation id) {
      const worker_state* worker = find(id);
      return worker == nullptr ? to_hex(id)
                               : worker->replica->name + "/" + std::to_string(worker->shard.index);
    };
    std::string text = reader == nullptr ? std::string{"a shard that has not joined"} : name(reader->id);
    text += ", version " + to_string(decision.version) + (decision.upstream ? ", upstream: " : ", trade: ");
    if (!decision.source) return text + std::string{decision.reason};
    text += name(decision.source) + " (" + std::string{to_string(decision.distance)} + ", " +
            std::to_string(decision.load) + " readers), of " + std::to_string(decision.candidates) +
            " candidates: " + std::string{decision.reason};
    if (decision.displaced)
      text += "; " + name(decision.displaced) + " reads from " +
              (decision.given ? name(decision.given) : std::string{"the newcomer"}) + " instead";
    return text;
  }
  void log(log_level level, std::string text, log_fields about = {}) {
    log_lines.push_back({level, std::move(text), std::move(about)});
  }
};

}  // namespace catalog_detail
}  // namespace tensorhub::inline TENSORHUB_MODE
