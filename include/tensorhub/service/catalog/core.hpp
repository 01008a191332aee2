#pragma once
/// \file core.hpp
/// What all parts of the catalog share: its memory, the time of the event at hand, and the way out for
/// messages and log lines.
///
/// The parts, each of which knows only those above it:
///
///     core          state, answers and messages
///     versions      who holds what, what is available     questions         wait, list, describe
///     leases        sources, permissions, drains          operation_table   which call is which operation
///     updates       the course of an update
///     publishing    publish, unpublish                    admission         whether a worker fits
///     membership    join, leave, silence
///
/// `catalog` (service/catalog.hpp) owns them, hands each message to the part that understands it, and keeps
/// the timers.

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/service/catalog/state.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/service/messages.hpp"

namespace tensorhub {

struct catalog_options {
  std::chrono::milliseconds heartbeat_interval = defaults::heartbeat_interval;
  /// Silence after which a worker is dead.
  std::chrono::milliseconds worker_timeout = defaults::worker_timeout;
  /// From the decision until all shards have called.
  std::chrono::milliseconds group_timeout = defaults::group_timeout;
  std::size_t retained_versions = 16;  ///< version records (digests) kept beyond those that somebody holds
  std::string transport{};             ///< policy names that workers must have; empty: any
  std::string integrity{};
};

/// A message for one worker.
struct outgoing {
  incarnation to{};
  messages::envelope message{};
};

namespace catalog_detail {

struct core {
  catalog_options options{};
  server_epoch epoch{};
  time_point now{};  ///< of the event at hand

  std::map<std::string, model_state> models{};
  std::unordered_map<incarnation, std::unique_ptr<worker_state>> workers{};
  std::map<lease_id, lease_state> leases{};

  std::vector<outgoing> output{};
  std::vector<log_line> log_lines{};

  /// Null: not joined, or not any more.
  [[nodiscard]] worker_state* find(incarnation id) const {
    const auto found = workers.find(id);
    return found == workers.end() ? nullptr : found->second.get();
  }

  void send(incarnation to, request_sequence sequence, messages::message body) {
    output.push_back({to, {epoch.value, sequence, {}, std::move(body)}});
  }
  /// Sends the answer to a request, and stores it for retries.
  void answer(worker_state& worker, request_sequence sequence, messages::message body) {
    const auto slot = worker.answers.find(sequence.value);
    if (slot != worker.answers.end()) slot->second = body;
    send(worker.id, sequence, std::move(body));
  }
  void log(log_level level, std::string text) { log_lines.push_back({level, std::move(text)}); }
};

}  // namespace catalog_detail
}  // namespace tensorhub
