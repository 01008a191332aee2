#pragma once
/// \file state.hpp
/// What the catalog remembers: plain state and look-ups, no decisions.
///
///     model --< replica --< worker >-- held reference          lease: reader -> source
///       \--< version: roots and holders per shard              operation: one call of a replica's shards
///
/// Everything is soft: a new server rebuilds it from what the workers announce.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tensorhub/service/messages.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::catalog_detail {

struct model_state;
struct replica_state;

/// A reader's permission to read one source. Counted from its assignment; ends when the reader says so, or
/// when the source has confirmed that the reader is cut off.
struct lease_state {
  lease_id id{};
  incarnation source{};
  incarnation reader{};  ///< zero while reserved for a shard whose worker has not joined
  version_number version{};
  std::string replica{};  ///< of the reader
  std::uint32_t shard = 0;
  bool reserved = true;      ///< the reader has not been told yet
  bool cutting_off = false;  ///< the reader was declared dead; ends when the source confirms
  bool moving = false;       ///< the reader was given another source and has not released this one yet
  operation_counter operation{};
};

/// Drain in progress at a source: what its deferred answer will say.
struct drain_state {
  request_sequence sequence{};
  std::uint32_t finished = 0;
  std::uint32_t moved = 0;
  std::uint32_t cut_off = 0;
};

struct worker_state {
  incarnation id{};
  model_state* model = nullptr;
  replica_state* replica = nullptr;
  shard_of shard{};
  location place{};
  bool spot = false;
  std::string transport{};
  std::string integrity{};
  transport_address address{};
  time_point last_heard{};

  std::optional<messages::reference> held{};
  bool publisher = false;           ///< published `held` itself
  bool withdrawn = false;           ///< unpublish has begun
  bool overwriting = false;         ///< was told to read into its memory: `held` may be gone at any time
  bool group_pending = false;       ///< has finished an update that its group has not
  bool called = false;              ///< has made a group call since it joined
  bool missed = false;              ///< its last call came after its operation had failed
  bool indexed = false;             ///< is in version_state::holders
  std::vector<lease_id> readers{};  ///< leases on it
  std::vector<lease_id> reading{};  ///< leases that it has on others
  std::optional<drain_state> drain{};

  /// Answers by sequence number; an empty one is deferred. Up to `acknowledged` they are forgotten and never
  /// made again.
  std::map<std::uint64_t, std::optional<messages::message>> answers{};
  std::uint64_t acknowledged = 0;

  /// Holds a version, and nothing of its own stands against serving it.
  [[nodiscard]] bool holds() const noexcept { return held && !withdrawn && !overwriting && !group_pending; }
};

/// What one shard has done in a group operation.
struct member_state {
  enum class phase_type : std::uint8_t { absent, waiting, assigned, finished, failed };
  phase_type phase = phase_type::absent;
  request_sequence sequence{};  ///< the unanswered request, if there is one
  request_sequence called{};    ///< the request that began it
  version_selector selector{};
  bool keeps = false;   ///< holds the decided version already
  bool intact = false;  ///< failed without having overwritten anything
  time_point deadline = time_point::never();
  lease_id lease{};
  std::vector<incarnation> excluded{};  ///< sources that failed this shard in this operation
  std::uint32_t retries = 0;
};

/// One call of update() by all shards of a replica (or by one worker, if the consistency policy decides per
/// worker).
struct operation_state {
  operation_counter counter{};
  replica_state* replica = nullptr;
  std::optional<std::uint32_t> only_shard{};  ///< set if the operation is one worker's own
  bool is_publish = false;
  bool decided = false;
  bool closed = false;
  messages::status failure{};  ///< of a closed operation
  version_number version{};
  time_point arrival_deadline = time_point::never();
  std::vector<member_state> members{};  ///< by shard; one entry if only_shard
};

struct replica_state {
  std::string name{};
  model_state* model = nullptr;
  std::vector<worker_state*> workers{};  ///< by shard; null: not joined
  bool torn = false;
  version_number complete{};             ///< held by all shards; zero: none
  operation_counter closed_operation{};  ///< highest operation that has ended
  std::map<std::pair<std::uint64_t, std::uint32_t>, operation_state> operations{};
};

struct version_state {
  std::vector<digest128> roots{};                     ///< by shard; zero: unknown
  std::vector<std::vector<worker_state*>> holders{};  ///< by shard: who accepts readers now
  std::uint32_t complete_replicas = 0;
  bool ever_complete = false;
};

/// A worker that asked to be told when a version is there.
struct waiter_state {
  incarnation worker{};
  request_sequence sequence{};
  version_selector selector{};
  time_point deadline{};
};

struct model_state {
  std::string name{};
  std::uint32_t shards = 0;
  std::vector<std::optional<layout>> layouts{};
  std::map<version_number, version_state> versions{};
  std::map<std::string, std::unique_ptr<replica_state>> replicas{};
  version_number latest_seen{};  ///< highest that any shard ever published
  version_number latest_ever{};  ///< highest that was ever complete
  std::uint32_t workers = 0;
  std::vector<waiter_state> waiters{};
  std::vector<operation_state*> open_operations{};  ///< owned by their replicas; removed when closed
};

/// Incarnations that were declared dead, oldest forgotten first.
class dead_list {
 public:
  static constexpr std::size_t capacity = 1u << 16;
  void insert(incarnation id) {
    if (!set_.insert(id).second) return;
    order_.push_back(id);
    if (order_.size() > capacity) {
      set_.erase(order_.front());
      order_.pop_front();
    }
  }
  [[nodiscard]] bool contains(incarnation id) const { return set_.contains(id); }

 private:
  std::unordered_set<incarnation> set_;
  std::deque<incarnation> order_;
};

// ---- look-ups

using phase = member_state::phase_type;

/// Second part of an operation's key when it is the call of all shards.
inline constexpr std::uint32_t all_shards = UINT32_MAX;

/// Null: the operation is another shard's own.
[[nodiscard]] inline member_state* member_of(operation_state& operation, std::uint32_t shard) {
  if (!operation.only_shard) return &operation.members[shard];
  return *operation.only_shard == shard ? &operation.members.front() : nullptr;
}

/// The operation that this shard takes part in under this number: the replica's, or its own.
[[nodiscard]] inline operation_state* find_operation(replica_state& replica, operation_counter counter,
                                                     std::uint32_t shard) {
  auto found = replica.operations.find({counter.value, all_shards});
  if (found == replica.operations.end()) found = replica.operations.find({counter.value, shard});
  return found == replica.operations.end() ? nullptr : &found->second;
}
/// The oldest operation that this shard had called when it sent `before`, and has not ended.
[[nodiscard]] inline operation_state* unfinished_operation(replica_state& replica, std::uint32_t shard,
                                                           request_sequence before) {
  for (auto& [key, operation] : replica.operations) {
    const member_state* member = member_of(operation, shard);
    if (operation.closed || member == nullptr || member->called >= before) continue;
    if (member->phase != phase::absent && member->phase != phase::failed) return &operation;
  }
  return nullptr;
}
/// The operation for which a lease was given.
[[nodiscard]] inline operation_state* find_operation(model_state& model, const lease_state& lease) {
  const auto replica = model.replicas.find(lease.replica);
  return replica == model.replicas.end() ? nullptr
                                         : find_operation(*replica->second, lease.operation, lease.shard);
}

[[nodiscard]] inline bool accepts(const version_selector& selector, version_number version) noexcept {
  if (selector.kind == version_selector::kind_type::exactly) return version == selector.version;
  return selector.kind == version_selector::kind_type::latest || version >= selector.version;
}

/// For sentences and log lines.
[[nodiscard]] inline std::string who(const worker_state& worker) {
  return "worker " + worker.model->name + "/" + worker.replica->name + "/" + to_string(worker.shard) + " (" +
         to_hex(worker.id) + ")";
}

}  // namespace tensorhub::catalog_detail
