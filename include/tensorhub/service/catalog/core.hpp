#pragma once
/// \file core.hpp
/// What all parts of the catalog share: its memory, the time of the event at hand, and the way out for
/// messages and log lines.
///
/// The parts, each of which knows only those above it:
///
///     core          state, answers and messages       tally         what is counted
///     versions      who holds what, what is available     questions, stuck  wait, list, describe, why, stuck
///     retention     what is not to be lost, handovers
///     leases        sources, permissions, drains          operation_table   which call is which operation
///     updates       the course of an update
///     publishing    publish, unpublish                    admission         whether a worker fits
///     membership    join, leave, silence
///
/// `catalog` (service/catalog.hpp) owns them, hands each message to the part that understands it, and keeps
/// the timers.

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
#include "tensorhub/service/any_policies.hpp"
#include "tensorhub/service/catalog/bounds.hpp"
#include "tensorhub/service/catalog/options.hpp"
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

struct core {
  catalog_options options{};
  server_epoch epoch{};
  consistency_traits policy{};                      ///< of the server's consistency policy
  time_point now{};                                 ///< of the event at hand
  time_point recovers_until = time_point::never();  ///< never: nothing has happened yet

  std::map<std::string, model_state> models{};
  std::unordered_map<incarnation, std::unique_ptr<worker_state>> workers{};
  std::unordered_map<lease_id, lease_state> leases{};  ///< looked up much more often than walked through
  std::set<lease_id> cut_offs{};                       ///< leases that wait for their source's confirmation
  std::set<lease_id> sourceless{};  ///< given by an earlier server; their source has not joined this one

  bool retention_changed = false;    ///< somebody who waits to let go should ask again
  std::set<incarnation> suspects{};  ///< may be dead: `suspect` or `unreachable`
  std::vector<std::pair<incarnation, verdict>> condemned{};  ///< as has turned out during this event

  std::vector<outgoing> output{};
  std::vector<log_line> log_lines{};
  tally counted{};

  void begin(time_point at) {
    now = at;
    if (recovers_until == time_point::never()) recovers_until = at + options.recovery_grace;
  }
  /// Models of an earlier server may be unknown still.
  [[nodiscard]] bool recovering() const noexcept { return now < recovers_until; }
  /// Workers of this model may be on their way here: fewer are back than an earlier server has counted, or
  /// none of them has the latest version that was told. (Counts come with heartbeats: the last to join may
  /// have been counted by nobody who is back.)
  [[nodiscard]] bool recovering(const model_state& model) const noexcept {
    if (!recovering() || !model.succeeds) return false;
    if (model.workers_before == 0 || model.workers_back < model.workers_before) return true;
    for (auto from = model.versions.lower_bound(model.latest_told); from != model.versions.end(); ++from)
      if (from->second.complete_replicas > 0) return false;
    return bool{model.latest_told};
  }

  /// What its workers are told again and again: no count while some of them may be on their way.
  [[nodiscard]] messages::heartbeat_reply beat_for(const model_state& model) const noexcept {
    return {epoch, model.latest_ever, recovering(model) ? 0 : model.workers};
  }

  /// Null: not joined, or not any more.
  [[nodiscard]] worker_state* find(incarnation id) const {
    const auto found = workers.find(id);
    return found == workers.end() ? nullptr : found->second.get();
  }

  /// All leases in the order in which they were given.
  [[nodiscard]] std::vector<lease_id> leases_in_order() const {
    std::vector<lease_id> ids;
    ids.reserve(leases.size());
    for (const auto& [id, lease] : leases) ids.push_back(id);
    std::ranges::sort(ids);
    return ids;
  }

  void send(incarnation to, request_sequence sequence, messages::message body) {
    if (!sequence) counted.pushed(body);
    output.push_back({to, {epoch.value, sequence, {}, std::move(body)}});
  }
  /// Sends the answer to a request, and stores it for retries.
  void answer(worker_state& worker, request_sequence sequence, messages::message body) {
    const auto slot = worker.answers.find(sequence.value);
    if (slot != worker.answers.end()) {
      counted.answered(worker, slot->second, body, now);
      slot->second.message = body;
    }
    send(worker.id, sequence, std::move(body));
  }
  /// One decision in one line.
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
    if (decision.displaced) text += "; " + name(decision.displaced) + " reads from the newcomer instead";
    return text;
  }
  void log(log_level level, std::string text, log_fields about = {}) {
    log_lines.push_back({level, std::move(text), std::move(about)});
  }
};

}  // namespace catalog_detail
}  // namespace tensorhub::inline TENSORHUB_MODE
