#pragma once
/// \file rules.hpp
/// What must hold between a server and its workers at every moment of a history.
///
///   leases    they form no cycle, and each is on a worker that the server takes for a holder of its version
///   answers   what the protocol answers at once (messages.hpp) is answered at once, to everybody
///   beliefs   of a worker at rest the server knows what it holds
///   places    an incarnation joins at one place
///   goodbyes  only who was silent, has a successor or has left is told that it is dead
///
/// Rules about bytes and calls are checked where bytes and calls are: worker.hpp, world.hpp.

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "tensorhub/service/catalog.hpp"
#include "tensorhub/service/session.hpp"
#include "tensorhub/testing/simulation/options.hpp"

namespace tensorhub::testing {

template <typename Server>
class contract_rules {
 public:
  /// Of the join requests that no session has sent (`double_joins_per_second`).
  static constexpr request_sequence double_join{std::uint64_t{1} << 60};

  /// All are borrowed.
  contract_rules(const Server& server, const catalog_options& settings, simulation_statistics& statistics,
                 std::function<void(const std::string&)> violate)
      : server_{&server}, settings_{settings}, statistics_{&statistics}, violate_{std::move(violate)} {}

  // ---- around each message that the server receives

  void before(time_point now, const messages::envelope& message) {
    const incarnation from{message.sender};
    known_ = server_->knows(from);
    if (!known_) return;
    peer_state& peer = peers_[from];
    peer.last_heard = now;
    peer.acknowledged = std::max(peer.acknowledged, message.acknowledged);
    if (std::holds_alternative<messages::leave_request>(message.body)) told_.insert(from);
  }

  void after(const messages::envelope& message, std::span<const outgoing> output) {
    const incarnation from{message.sender};
    if (!known_ || !is_answered_at_once(message.body)) return;
    if (message.sequence <= peers_[from].acknowledged) return;  // stale
    for (const outgoing& out : output) {
      if (out.to == from && out.message.sequence == message.sequence) return;
    }
    violate_("a request of worker " + to_hex(from) + " was not answered (message type " +
             std::to_string(message.body.index()) + ")");
  }

  // ---- after each event of the server

  void check_output(time_point now, const outgoing& out, bool has_successor) {
    if (const auto* join = std::get_if<messages::join_reply>(&out.message.body)) {
      if (out.message.sequence == double_join && join->result.ok() && !join->wants_layout)
        violate_("worker " + to_hex(out.to) + " has joined at a second place");
    }
    const auto* goodbye = std::get_if<messages::goodbye_push>(&out.message.body);
    if (goodbye == nullptr || goodbye->rejoin || has_successor || !told_.insert(out.to).second) return;
    const auto peer = peers_.find(out.to);
    if (peer == peers_.end() || now - peer->second.last_heard > settings_.worker_timeout) return;
    violate_("worker " + to_hex(out.to) +
             " was heard and has no successor, but was told: " + goodbye->reason.sentence);
  }

  /// A worker that reads gives no new lease, so whoever has a running lease on a source sees a source that
  /// reads from nobody, or one that began to read later and waits for its readers first.
  void check_leases() {
    std::map<incarnation, incarnation> reads_from;
    server_->for_each_lease([&](const auto& lease) {
      if (!lease.cutting_off && !lease.moving && lease.reader) reads_from[lease.reader] = lease.source;
      const auto* source = server_->record_of(lease.source);
      if (source == nullptr || (source->held && source->held->version == lease.version)) return;
      violate_("a lease on version " + to_string(lease.version) + " is left at worker " +
               to_hex(lease.source) + ", which does not hold it any more");
    });
    for (const auto& [reader, source] : reads_from) {
      incarnation at = source;
      for (std::size_t steps = 0; reads_from.contains(at); ++steps) {
        at = reads_from[at];
        if (at == reader || steps > reads_from.size()) return violate_("leases form a cycle");
      }
    }
  }

  /// An unforced unpublish has returned.
  void check_drained(const session& worker, const std::string& name) {
    server_->for_each_lease([&](const auto& lease) {
      if (lease.source == worker.self())
        violate_("unpublish of " + name + " returned although a lease is left on it");
    });
  }

  /// A worker that waits for nothing and the server agree on what it holds.
  void check_belief(const session& worker, const std::string& name) {
    if (!worker.at_rest()) return;
    const auto* record = server_->record_of(worker.self());
    if (record == nullptr) return;  // about to be told
    ++statistics_->beliefs;
    const auto describe = [](const std::optional<messages::reference>& held) {
      return held ? "version " + to_string(held->version) + " at epoch " + std::to_string(held->epoch)
                  : std::string{"nothing"};
    };
    const bool equal = record->held.has_value() == worker.held().has_value() &&
                       (!record->held || (record->held->version == worker.held()->version &&
                                          record->held->epoch == worker.held()->epoch));
    if (!equal) {
      violate_("the server believes that " + name + " holds " + describe(record->held) + ", but it holds " +
               describe(worker.held()));
    }
  }

 private:
  struct peer_state {
    time_point last_heard{};
    request_sequence acknowledged{};
  };

  [[nodiscard]] static bool is_answered_at_once(const messages::message& body) {
    if (const auto* finish = std::get_if<messages::finish_request>(&body)) return !finish->result.ok();
    return std::holds_alternative<messages::publish_request>(body) ||
           std::holds_alternative<messages::source_failed_request>(body) ||
           std::holds_alternative<messages::lease_released_request>(body) ||
           std::holds_alternative<messages::cut_off_done_request>(body) ||
           std::holds_alternative<messages::leave_request>(body);
  }

  const Server* server_;
  catalog_options settings_;
  simulation_statistics* statistics_;
  std::function<void(const std::string&)> violate_;
  std::map<incarnation, peer_state> peers_;
  std::set<incarnation> told_;  ///< that they are dead, or have left
  bool known_ = false;
};

}  // namespace tensorhub::testing
