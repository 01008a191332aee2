#pragma once
/// \file state.hpp
/// What the catalog remembers: plain state and look-ups, no decisions.
///
///     model --< replica --< worker >-- held reference          lease: reader -> source
///       \--< version: roots and holders per shard              operation: one call of a replica's shards
///
/// Everything is soft: a new server rebuilds it from what the workers announce.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog/source_index.hpp"
#include "tensorhub/service/envelope.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

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
  bool reserved = true;       ///< the reader has not been told yet
  bool cutting_off = false;   ///< the reader was declared dead; ends when the source confirms
  time_point cut_off_at{};    ///< when that was
  bool moving = false;        ///< the reader is to let go of this source and has not said yet that it has
  bool upstream = false;      ///< the lease through which the reader is certain to get everything
  bool crossing = false;      ///< from one datacenter into another: the reader is a seed
  std::string datacenter{};   ///< of the reader
  std::uint64_t ordinal = 0;  ///< among those of this source that last
  bool counted = false;       ///< in the source's load, and among the crossings
  bool adopted = false;       ///< an earlier server gave it
  operation_counter operation{};
  time_point given{};
};

/// Drain in progress at a source: what its deferred answer will say.
struct drain_state {
  request_sequence sequence{};
  std::uint32_t finished = 0;
  std::uint32_t moved = 0;
  std::uint32_t cut_off = 0;
};

/// How a source was chosen, for `why`. Texts are static; names are looked up when somebody asks.
struct decision_state {
  time_point at{};
  version_number version{};
  incarnation source{};  ///< zero: nobody
  std::string_view reason{};
  std::uint32_t candidates = 0;
  std::uint32_t load = 0;  ///< of the source before
  locality distance{};
  bool upstream = false;
  incarnation displaced{};  ///< who reads from the asker now instead
};

/// Whether and as what a worker is offered to readers.
enum class offer : std::uint8_t { none, receiving, complete };

/// What a request was about, for the statistics.
enum class request_kind : std::uint8_t { other, update, finish, drain, publish };

/// The answer to one request.
struct answer_state {
  std::optional<messages::message> message{};  ///< empty: it is deferred
  time_point asked{};
  request_kind kind = request_kind::other;
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
  std::string capability_key{};  ///< empty: asks its readers for none
  time_point last_heard{};

  std::optional<messages::reference> held{};
  bool publisher = false;             ///< published `held` itself
  bool withdrawn = false;             ///< unpublish has begun
  bool overwriting = false;           ///< was told to read into its memory: `held` may be gone at any time
  bool group_pending = false;         ///< has finished an update that its group has not
  bool called = false;                ///< has made a group call since it joined
  bool missed = false;                ///< its last call came after its operation had failed
  bool ended_well = true;             ///< the last of these
  operation_counter ended_before{};   ///< calls that had ended when it joined: with an earlier server
  version_number published{};         ///< the last version that it has published with this server
  bool was_elsewhere = false;         ///< has come from an earlier server
  std::vector<incarnation> barred{};  ///< readers that it has cut off for good, the last few
  bool has_old_keys = false;          ///< others may still read its memory, by leases that count no more
  bool suspect = false;               ///< a reader has lost it, and it has not been heard since
  bool unreachable = false;  ///< its connection to the server is broken, and it has not been heard since
  std::vector<lease_id> readers{};  ///< leases on it
  std::vector<lease_id> reading{};  ///< leases that it has on others

  std::optional<messages::reference> receiving{};  ///< what it shows of the update that is running
  std::uint64_t chunks_received = 0;               ///< of that
  std::uint64_t most_chunks = 0;                   ///< that it has told of in this update
  time_point progressed{};                         ///< its update was decided, or it has told of more chunks
  bool updating = false;                           ///< has called an update whose end has not been counted
  worker_state* upstream = nullptr;                ///< source of its upstream lease
  lease_id upstream_lease{};
  offer offered = offer::none;  ///< in which way it is in version_state::sources
  version_number offered_version{};
  std::uint32_t load = 0;           ///< leases on it that last
  source_places places{};           ///< in version_state::sources
  std::uint64_t mark = 0;           ///< of the query that has seen it last
  version_number hungry_for{};      ///< is in version_state::hungry of this version
  operation_counter reading_for{};  ///< the last update that it was given sources for
  std::deque<decision_state> decisions{};
  std::optional<drain_state> drain{};
  bool leaving = false;                                 ///< its process is about to end
  std::optional<messages::unpublish_request> parked{};  ///< until what it holds is safe elsewhere
  request_sequence parked_sequence{};

  /// Answers by sequence number; one without message is deferred. Up to `acknowledged` they are forgotten and
  /// never made again.
  std::map<std::uint64_t, answer_state> answers{};
  std::uint64_t acknowledged = 0;

  /// Holds a version that counts for its replica.
  [[nodiscard]] bool holds() const noexcept { return held && !withdrawn && !overwriting && !group_pending; }
  /// What readers are told of it; null: nothing.
  [[nodiscard]] const messages::reference* shown() const noexcept {
    return receiving ? &*receiving : held ? &*held : nullptr;
  }
};

/// What one shard has done in a group operation.
struct member_state {
  enum class phase_type : std::uint8_t { absent, waiting, assigned, finished, failed };
  phase_type phase = phase_type::absent;
  request_sequence sequence{};  ///< the unanswered request, if there is one
  request_sequence called{};    ///< the request that began it
  version_selector selector{};
  messages::update_reach reach = messages::update_reach::anywhere;
  std::optional<messages::announcement> shows{};
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
  bool starved = false;  ///< is in model_state::starved
  bool decided = false;
  bool closed = false;
  messages::status failure{};  ///< of a closed operation
  version_number version{};
  version_number fixed{};  ///< what an earlier server has decided; zero: as far as is known nothing
  time_point arrival_deadline = time_point::never();
  std::vector<member_state> members{};  ///< by shard; one entry if only_shard
};

/// A retained version on its way into somebody's host memory, because its last reliable holder wants to let
/// go.
struct handover_state {
  version_number version{};
  std::string from{};       ///< replica that lets go
  std::string host{};       ///< replica whose processes take it; empty: none chosen
  std::string temporary{};  ///< name of the replica that they will show
  bool given_up = false;    ///< nobody can take it
  std::set<std::string> failed{};
};

struct replica_state {
  std::string name{};
  model_state* model = nullptr;
  std::vector<worker_state*> workers{};  ///< by shard; null: not joined
  bool torn = false;
  version_number complete{};             ///< held by all shards; zero: none
  bool temporary = false;                ///< shows what was handed over (retention.hpp)
  bool dropping = false;                 ///< temporary, and not needed any more
  version_number letting_go{};           ///< wants to, of this version
  version_number counts_for{};           ///< is counted in version_state::reliable_replicas of this version
  operation_counter closed_operation{};  ///< highest operation that has ended
  std::map<std::pair<std::uint64_t, std::uint32_t>, operation_state> operations{};
};

struct version_state {
  std::vector<digest128> roots{};                        ///< by shard; zero: unknown
  std::vector<std::unique_ptr<source_index>> sources{};  ///< by shard: who accepts readers now
  std::vector<std::deque<incarnation>> hungry{};         ///< by shard: readers that could use more sources
  /// By shard and datacenter: the lease that crosses into it. (A set, but one at most lasts.)
  std::vector<std::map<std::string, std::set<lease_id>>> crossings{};
  /// By shard and datacenter: when readers there may look again for somebody who does not come on.
  std::vector<std::map<std::string, time_point>> next_look{};
  std::vector<std::uint64_t> ordinals{};  ///< by shard: readers so far
  std::uint32_t complete_replicas = 0;
  std::uint32_t reliable_replicas = 0;  ///< of these, that will stay
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
  std::size_t layout_bytes = 0;  ///< about what these take
  std::map<version_number, version_state> versions{};
  std::map<std::string, std::unique_ptr<replica_state>> replicas{};
  version_number latest_seen{};  ///< highest that any shard ever published
  version_number latest_ever{};  ///< highest that was ever complete
  std::uint32_t workers = 0;
  version_number latest_told{};      ///< highest that a worker has heard of from an earlier server
  bool succeeds = false;             ///< an earlier server has known this model
  std::uint32_t workers_before = 0;  ///< that it had then, as far as is known
  std::uint32_t workers_back = 0;    ///< of these, that have joined this server
  messages::retention keeps{};
  std::map<version_number, handover_state> handovers{};
  bool waits_to_let_go = false;     ///< somebody does, and should ask again when something has changed
  std::set<version_number> lost{};  ///< retained, and nobody has them any more
  std::vector<waiter_state> waiters{};
  std::vector<operation_state*> open_operations{};  ///< owned by their replicas; removed when closed
  std::deque<operation_state*> starved{};           ///< of these: the version is there, but no credit for it
};

/// Why the server declared a worker dead.
enum class verdict : std::uint8_t {
  silent,    ///< not heard for too long
  replaced,  ///< a newer process has its place
  earlier,   ///< an earlier server has declared it dead
  unruly     ///< has broken the protocol
};

/// Incarnations that left or were declared dead; the list is bounded and forgets the oldest first.
class dead_list {
 public:
  static constexpr std::size_t capacity = 1u << 16;
  /// `why`: empty if the worker left of its own accord.
  void insert(incarnation id, std::optional<verdict> why) {
    if (!verdicts_.try_emplace(id, why).second) return;
    order_.push_back(id);
    if (order_.size() > capacity) {
      verdicts_.erase(order_.front());
      order_.pop_front();
    }
  }
  [[nodiscard]] bool contains(incarnation id) const { return verdicts_.contains(id); }
  /// Empty: the worker left, or is not in the list.
  [[nodiscard]] std::optional<verdict> verdict_of(incarnation id) const {
    const auto found = verdicts_.find(id);
    return found == verdicts_.end() ? std::nullopt : found->second;
  }

 private:
  std::unordered_map<incarnation, std::optional<verdict>> verdicts_;
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
/// The oldest operation that this shard had called when it sent `before`, and has not ended. (One that it has
/// not called here it may take part in all the same: by what it did with an earlier server.)
[[nodiscard]] inline operation_state* unfinished_operation(replica_state& replica, std::uint32_t shard,
                                                           request_sequence before) {
  for (auto& [key, operation] : replica.operations) {
    const member_state* member = member_of(operation, shard);
    if (operation.closed || member == nullptr || !member->called || member->called >= before) continue;
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

/// For log lines.
[[nodiscard]] inline log_fields about(const worker_state& worker) {
  log_fields out;
  out.model = worker.model->name;
  out.replica = worker.replica->name;
  out.shard = worker.shard.index;
  out.worker = worker.id;
  return out;
}
/// For sentences and log lines.
[[nodiscard]] inline std::string who(const worker_state& worker) {
  return "worker " + worker.model->name + "/" + worker.replica->name + "/" + to_string(worker.shard) + " (" +
         to_hex(worker.id) + ")";
}

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
