#pragma once
/// \file rules.hpp
/// The rules that hold between a server and its workers at every moment of a history.
///
///   catalog   what service/catalog/rules.hpp asserts of the server alone (that upstreams form no cycle, too)
///   leases    each is on a worker that shows its version; no worker has more readers than the scheduler's
///             credits
///   seeds     at most one lease of a version and shard crosses into a datacenter
///   answers   requests that the protocol answers at once (messages.hpp) are answered at once
///   beliefs   the server knows what an idle worker holds, and that nothing is written there
///   places    an incarnation joins in one role
///   goodbyes  a worker is told that it is dead only if it was silent, has a successor, has left, is cut
///             off by a source, or was left at the deadlines of two drains
///
/// Rules for bytes and calls are checked with the bytes and calls: worker.hpp, world.hpp.

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include "support/simulation/options.hpp"
#include "support/simulation/server.hpp"
#include "support/simulation/violation.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/session.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

class contract_rules {
 public:
  /// The incarnations of join requests that no session has sent (`double_joins_per_second`).
  static constexpr request_sequence double_join{std::uint64_t{1} << 60};

  /// Borrows all arguments.
  contract_rules(const catalog_options& settings, simulation_statistics& statistics, report_violation violate)
      : settings_{settings}, statistics_{&statistics}, violate_{std::move(violate)} {}

  /// The server that is authoritative from now on; it knows no worker yet.
  void attach(const simulated_server& server) {
    server_ = &server;
    peers_.clear();
    notified_.clear();
  }

  // ---- around each message that the server receives

  /// Whether the server knows the sender.
  bool before(time_point now, const messages::envelope& message) {
    const incarnation from{message.sender};
    const bool is_known = server_->knows(from);
    const bool joins = holds_alternative<messages::join_request>(message.body);
    if (!is_known && !joins) return false;
    peer_state& peer = peers_[from];
    if (message.sequence != double_join) {
      peer.last_heard = now;
    }
    peer.closed.learn(message);
    if (holds_alternative<messages::leave_request>(message.body)) notified_.insert(from);
    return is_known;
  }

  /// Of a message whose sender the server knew.
  void after(const messages::envelope& message, std::span<const outgoing> output) {
    const incarnation from{message.sender};
    if (!is_answered_at_once(message.body)) return;
    if (peers_[from].closed.contains(message.sequence)) return;  // stale
    for (const outgoing& out : output) {
      if (out.to == from && out.message.sequence == message.sequence) return;
    }
    violate_({rule::answers, "a request of worker " + to_hex(from) + " was not answered (message type " +
                                 std::to_string(message.body.index()) + ")"});
  }

  // ---- after each event of the server

  void check_output(time_point now, const outgoing& out, bool may_be_dead) {
    if (const auto* join = get_if<messages::join_reply>(&out.message.body)) {
      if (out.message.sequence == double_join && join->result.ok() && !join->wants_layout)
        violate_({rule::places, "worker " + to_hex(out.to) + " has joined at a second place"});
    }
    const auto* goodbye = get_if<messages::goodbye_push>(&out.message.body);
    if (goodbye == nullptr || goodbye->rejoin || may_be_dead || !notified_.insert(out.to).second) return;
    const auto peer = peers_.find(out.to);
    if (peer == peers_.end() || now - peer->second.last_heard > settings_.worker_timeout) return;
    violate_({rule::goodbyes, "worker " + to_hex(out.to) + " was heard and has no successor, but was told: " +
                                  goodbye->reason.sentence});
  }

  void check_leases() {
    if (const std::string broken = server_->broken_rule(); !broken.empty()) violate_({rule::catalog, broken});
    std::map<incarnation, std::uint32_t> readers;
    std::map<std::tuple<std::string, version_number, std::uint32_t>, std::size_t> seeds;
    std::set<std::pair<incarnation, incarnation>> running;
    std::set<std::pair<incarnation, incarnation>> reads_from;
    server_->for_each_lease([&](const auto& lease) {
      if (lease.inherited) return;  // an earlier server granted the lease, by its own view
      const bool lasts = lease.lasts();
      if (lasts) ++readers[lease.source];
      if (lasts && running.contains({lease.source, lease.reader})) ++statistics_->origins.trades;
      if (lasts) running.emplace(lease.reader, lease.source);
      if (lasts && !lease.is_reserved() && lease.reader &&
          !reads_from.emplace(lease.reader, lease.source).second)
        violate_({rule::leases,
                  "worker " + to_hex(lease.reader) + " was given source " + to_hex(lease.source) + " twice"});
      if (lasts && lease.replica.find('~') == std::string::npos && is_drained(lease.source, lease.given))
        violate_({rule::leases, "worker " + to_hex(lease.reader) + " was given source " +
                                    to_hex(lease.source) + ", which is drained"});
      const std::string here = datacenter_of(lease.reader);
      if (const std::string there = datacenter_of(lease.source);
          lasts && !here.empty() && !there.empty() && here != there && may_seed(lease.reader, lease.given)) {
        ++statistics_->seeds;
        if (++seeds[{here, lease.version, lease.shard}] > 1)
          violate_({rule::seeds,
                    "two leases of version " + to_string(lease.version) + " cross into datacenter " + here});
      }
      const auto* source = server_->record_of(lease.source);
      const auto* shown = source != nullptr ? source->shown() : nullptr;
      if (source == nullptr || (shown != nullptr && shown->version == lease.version)) return;
      // The source is drained for its next version.
      if (source->held && source->held->version == lease.version) return;
      violate_({rule::leases, "a lease on version " + to_string(lease.version) + " is left at worker " +
                                  to_hex(lease.source) + ", which does not show it any more"});
    });
    for (const auto& [worker, count] : readers) {
      if (count > server_->limits().credits)
        violate_({rule::credits, "worker " + to_hex(worker) + " has " + std::to_string(count) + " readers"});
    }
  }

  /// Called when an unforced unpublish has returned.
  void check_drained(const session& worker, const std::string& name) {
    server_->for_each_lease([&](const auto& lease) {
      if (lease.source == worker.self())
        violate_({rule::drains, "unpublish of " + name + " returned although a lease is left on it"});
    });
  }

  /// Checks that an idle worker and the server agree on what the worker holds. `group`: the version that all
  /// shards of its replica hold, zero if they hold none together; empty: some shard is not idle.
  void check_belief(const session& worker, const std::string& name, std::optional<version_number> group) {
    if (!worker.at_rest()) return;
    const auto* record = server_->record_of(worker.self());
    if (record == nullptr) return;  // the worker will soon be told
    ++statistics_->beliefs;
    const auto describe = [](const std::optional<messages::reference>& held) {
      return held ? "version " + to_string(held->version) + " at epoch " + std::to_string(held->epoch)
                  : std::string{"nothing"};
    };
    const bool equal = record->held.has_value() == worker.held().has_value() &&
                       (!record->held || (record->held->version == worker.held()->version &&
                                          record->held->epoch == worker.held()->epoch));
    if (!equal) {
      violate_({rule::beliefs, "the server believes that " + name + " holds " + describe(record->held) +
                                   ", but it holds " + describe(worker.held())});
    }
    check_state(*record, worker, name, group);
  }

  /// Others wait for what this reader brings into its datacenter, and did so all the time since then.
  std::function<bool(incarnation, time_point)> may_seed = [](incarnation, time_point) { return true; };
  /// The server had said by then that it sends nobody to this worker, but who copies a version for retention.
  std::function<bool(incarnation, time_point)> is_drained = [](incarnation, time_point) { return false; };
  /// The real datacenter of a worker; empty: the worker has ended.
  std::function<std::string(incarnation)> datacenter_of{};

 private:
  struct peer_state {
    time_point last_heard{};
    messages::closed_requests closed{};
  };

  /// An update of the group may be decided before this shard calls it.
  void check_state(const catalog_detail::worker_state& record, const session& worker, const std::string& name,
                   std::optional<version_number> group) {
    using catalog_detail::holding;
    using catalog_detail::writing;
    const holding expected = !worker.held()     ? holding::nothing
                             : worker.is_open() ? holding::open
                                                : holding::whole;
    const bool writes = record.writing != writing::idle || record.receiving;
    if (record.holding != expected || (group && writes))
      violate_({rule::beliefs, "the server takes the memory of " + name + ", which is idle, for " +
                                   std::string{name_of(record.holding)} + " and " +
                                   std::string{name_of(record.writing)}});
    if (group && *group && !is_void(*record.model, *group) && record.replica->complete != *group)
      violate_({rule::beliefs, "all shards of " + name + "'s replica hold version " + to_string(*group) +
                                   ", and the server does not know it as complete"});
  }

  [[nodiscard]] static bool is_answered_at_once(const messages::message& body) {
    if (const auto* finish = get_if<messages::finish_request>(&body)) return !finish->result.ok();
    return holds_alternative<messages::publish_request>(body) ||
           holds_alternative<messages::sources_request>(body) ||
           holds_alternative<messages::lease_released_request>(body) ||
           holds_alternative<messages::cut_off_done_request>(body) ||
           holds_alternative<messages::leave_request>(body);
  }

  const simulated_server* server_ = nullptr;
  catalog_options settings_;
  simulation_statistics* statistics_;
  report_violation violate_;
  std::map<incarnation, peer_state> peers_;
  std::set<incarnation> notified_;  ///< workers that were told that they are dead or have left
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
