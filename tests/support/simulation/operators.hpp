#pragma once
/// \file operators.hpp
/// An operator in a simulated history: drains replicas for a while, and evicts some (catalog/orders.hpp).

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// A part of `simulation` (world.hpp) and its friend.
template <typename World>
class simulated_operator {
 public:
  explicit simulated_operator(World& world) : world_{&world} {}

  void give_order() {
    const auto& rollouts = world_->rollouts_;
    const bool to_trainer = world_->events_.chance(0.1);
    const std::string replica =
        to_trainer ? World::trainer : rollouts[world_->events_.below(rollouts.size())].first;
    if (!to_trainer && world_->events_.chance(0.2)) return evict(replica);
    if (!aside_.insert(replica).second) return;
    ++world_->statistics_.processes.drained;
    send(messages::manage_kind::drain, replica);
    world_->events_.after(
        world_->events_.between(std::chrono::milliseconds{5}, std::chrono::milliseconds{400}),
        [this, replica] { resume(replica, resumes); });
  }

  /// The server may send nobody there.
  [[nodiscard]] bool is_aside(const std::string& replica) const { return aside_.contains(host_of(replica)); }
  /// It has not been aside since then.
  [[nodiscard]] bool is_free_since(const std::string& replica, time_point since) const {
    const auto ended = ended_.find(host_of(replica));
    return !is_aside(replica) && (ended == ended_.end() || ended->second < since);
  }
  [[nodiscard]] bool has_evicted(incarnation worker) const { return evicted_.contains(worker); }
  /// The present server had said by then that it sends nobody to this worker. (Whoever joins later may belong
  /// to a replica that has left meanwhile, and with it the order.)
  [[nodiscard]] bool is_drained(incarnation worker, time_point at) const {
    return std::ranges::any_of(drained_, [&](const auto& entry) {
      return entry.second.since < at && entry.second.workers.contains(worker);
    });
  }

  /// To whomever the server speaks.
  void hear(const outgoing& out) {
    const auto* reply = get_if<messages::manage_reply>(&out.message.body);
    const auto asked = asked_.find(out.message.sequence);
    if (out.to != self || reply == nullptr || !reply->result.ok() || asked == asked_.end()) return;
    drained_[asked->second] = {world_->events_.now(), workers_of(asked->second)};
  }
  /// A new server knows of no order.
  void forget() {
    asked_.clear();
    drained_.clear();
  }

 private:
  static constexpr incarnation self{50};
  /// A new server does not answer an order about a replica that has not joined it yet.
  static constexpr int resumes = 12;

  /// An order is about the replica's temporary copies, too.
  [[nodiscard]] static std::string host_of(const std::string& replica) {
    return replica.substr(0, replica.find('~'));
  }
  void resume(const std::string& replica, int times) {
    std::erase_if(asked_, [&](const auto& each) { return each.second == replica; });
    drained_.erase(replica);
    send(messages::manage_kind::resume, replica);
    world_->events_.after(std::chrono::milliseconds{50}, [this, replica, times] {
      if (times > 1) return resume(replica, times - 1);
      aside_.erase(replica);
      ended_[replica] = world_->events_.now();
    });
  }
  void evict(const std::string& replica) {
    ++world_->statistics_.processes.evicted;
    send(messages::manage_kind::evict, replica);
  }
  void send(messages::manage_kind kind, const std::string& replica) {
    const messages::envelope order{
        self.value, {++sequence_}, {}, messages::manage_request{kind, "policy", replica, {}}};
    if (kind == messages::manage_kind::drain) asked_[order.sequence] = replica;
    world_->events_.after(world_->network_.delay(), [this, kind, replica, order] {
      if (world_->servers_.current() == nullptr) return;
      if (world_->log)
        world_->note("an order about " + replica + ": " + std::to_string(static_cast<int>(kind)));
      if (kind == messages::manage_kind::evict) note_evicted(replica);
      world_->at_server(world_->servers_.current_index(), order);
    });
  }
  /// The server may have no such worker yet, and then does not carry the order out.
  void note_evicted(const std::string& replica) { evicted_.merge(workers_of(replica)); }
  [[nodiscard]] std::set<incarnation> workers_of(const std::string& replica) const {
    std::set<incarnation> out;
    for (const auto& worker : world_->workers_)
      if (worker->alive() && host_of(worker->core().options().replica) == replica)
        out.insert(worker->core().self());
    return out;
  }
  struct drained_replica {
    time_point since{};  ///< when the server said so
    std::set<incarnation> workers{};
  };

  World* world_;
  std::uint64_t sequence_ = 0;
  std::set<std::string> aside_;                    ///< from the order to drain to the last one to resume
  std::map<std::string, time_point> ended_;        ///< when that was, the last time
  std::map<request_sequence, std::string> asked_;  ///< orders to drain
  std::map<std::string, drained_replica> drained_;
  std::set<incarnation> evicted_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
