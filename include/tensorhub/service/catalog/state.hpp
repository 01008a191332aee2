#pragma once
/// \file state.hpp
/// The state of the catalog: plain records and look-ups, no decisions.
///
///     model --< replica --< worker >-- held reference          lease: reader -> source
///       \--< version: roots and holders per shard              operation: one call of a replica's shards
///
/// All of it is soft state: a new server rebuilds it from the announcements of the workers.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/source_index.hpp"
#include "tensorhub/service/catalog/states.hpp"
#include "tensorhub/service/catalog/upstream_chains.hpp"
#include "tensorhub/service/catalog/waiter_table.hpp"
#include "tensorhub/service/envelope.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/service/rollbacks.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/replica_name.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

struct model_state;
struct replica_state;

/// A reader's permission to read one source. It counts from its assignment, and ends when the reader reports
/// the end or the source has confirmed that the reader is cut off.
struct lease_state {
  lease_id id{};
  incarnation source{};
  incarnation reader{};  ///< zero while reserved for a shard whose worker has not joined
  version_number version{};
  std::string replica{};  ///< of the reader
  std::uint32_t shard = 0;
  lease_stage stage = lease_stage::reserved;
  bool inherited = false;     ///< granted by an earlier server
  time_point cut_off_at{};    ///< when the reader was declared dead
  bool upstream = false;      ///< the lease through which the reader is certain to get every chunk
  bool crossing = false;      ///< source and reader are in different datacenters
  bool seeds = false;         ///< likewise, and others there wait for the reader: it is (or will be) a source
  std::string datacenter{};   ///< of the reader
  std::uint64_t ordinal = 0;  ///< number among the counted leases on this source
  operation_counter operation{};
  time_point given{};

  [[nodiscard]] bool is_reserved() const noexcept { return stage == lease_stage::reserved; }
  /// Counts in its source's load, and among the seeds.
  [[nodiscard]] bool lasts() const noexcept {
    return stage != lease_stage::moving && stage != lease_stage::cutting_off;
  }
};

/// A drain in progress at a source: the contents of its deferred answer.
struct drain_state {
  request_sequence sequence{};
  time_point begun{};
  std::uint32_t finished = 0;
  std::uint32_t moved = 0;
  std::uint32_t cut_off = 0;
};

/// How a source was chosen, for `why`. Texts are static; names are looked up when the question is asked.
struct decision_state {
  time_point at{};
  version_number version{};
  incarnation source{};  ///< zero: no source was chosen
  std::string_view reason{};
  std::uint32_t candidates = 0;
  std::uint32_t load = 0;  ///< of the source, before this decision
  locality distance{};
  bool upstream = false;
  incarnation displaced{};  ///< the reader that lost its lease on `source`
  incarnation given{};      ///< what that reader reads instead; zero: the asking worker
};

/// Whether a worker is offered to readers, and in which state.
enum class offer : std::uint8_t { none, receiving, complete };

/// The kind of a request, for the statistics.
enum class request_kind : std::uint8_t { other, update, finish, drain, publish };

/// The answer to one request.
struct answer_state {
  std::optional<messages::message> message{};  ///< empty: the answer is deferred
  time_point asked{};
  request_kind kind = request_kind::other;
};

/// How others read a worker.
struct access_state {
  std::string transport{};
  std::string integrity{};
  transport_address address{};
  std::string capability_key{};  ///< empty: readers need no capability
  bool may_read = true;          ///< its key has that right, for this replica (authority.hpp)
  bool may_serve = true;         ///< likewise
  bool may_publish = true;       ///< likewise
  std::string key{};             ///< with which it has joined; empty without security
};

/// The last signs of a worker's life.
struct sign_state {
  liveness life = liveness::heard;
  time_point last_heard{};
};

/// What a worker brings from the time before: from earlier calls, and from earlier servers.
struct past_state {
  bool called = false;                ///< it has made a group call since it joined
  bool missed = false;                ///< its last call came after its operation had failed
  bool ended_well = true;             ///< the call `ended_before` succeeded
  operation_counter ended_before{};   ///< number of its last call that an earlier server had ended
  version_number published{};         ///< the last version that it has published with this server
  bool was_elsewhere = false;         ///< it was joined to an earlier server
  std::vector<incarnation> barred{};  ///< the last few readers that it has cut off for good
  bool has_old_keys = false;          ///< readers with leases that no longer count may still read its memory
};

/// How far a worker's update has come.
struct progress_state {
  std::uint64_t chunks_received = 0;  ///< chunks of `receiving`, by the last heartbeat
  std::uint64_t most_chunks = 0;      ///< the highest number that was reported in this update
  time_point progressed{};            ///< the update was decided, or more chunks were reported
  bool updating = false;              ///< the end of an update that was called is not in the statistics yet
};

/// The first chunk of a version that a reader has refused.
struct refused_chunk {
  version_number version{};
  std::uint64_t chunk = 0;
};

/// A worker as a source.
struct source_state {
  offer offered = offer::none;  ///< its state in version_state::sources
  version_number version{};     ///< the version that is offered
  std::uint32_t load = 0;       ///< leases on it that last
  source_places places{};       ///< its positions in version_state::sources
  std::vector<lease_id> readers{};
  std::optional<refused_chunk> refused{};  ///< of the last version of which a chunk was
};

/// A worker as a reader.
struct reader_state {
  std::vector<lease_id> leases{};
  operation_counter operation{};     ///< the last update for which it was given sources
  worker_state* upstream = nullptr;  ///< source of its upstream lease
  lease_id upstream_lease{};
  mutable chain_node chain;      ///< follows `upstream` while it receives
  version_number hungry_for{};   ///< the version whose version_state::hungry contains it
  version_number stalled_for{};  ///< the version of which its sources once had no new chunks for it
  std::deque<decision_state> decisions{};
};

/// The end of a worker's hold on its version.
struct parting_state {
  bool leaving = false;                                 ///< its process is about to end
  std::optional<messages::unpublish_request> parked{};  ///< waits until the held version is safe elsewhere
  request_sequence sequence{};                          ///< of `parked`
};

/// The requests of a worker.
struct request_state {
  /// Answers by sequence number; an answer without message is deferred. Answers to closed requests are
  /// forgotten, and those requests are never executed again.
  std::map<std::uint64_t, answer_state> answers{};
  messages::closed_requests closed{};
};

struct worker_state {
  incarnation id{};
  model_state* model = nullptr;
  replica_state* replica = nullptr;
  shard_of shard{};
  tensorhub::location location{};
  bool spot = false;
  access_state access{};
  sign_state signs{};

  catalog_detail::holding holding = catalog_detail::holding::nothing;
  catalog_detail::writing writing = catalog_detail::writing::idle;
  std::optional<messages::reference> held{};
  bool publisher = false;                          ///< published `held` itself
  std::optional<messages::reference> receiving{};  ///< the reference that it shows during a running update

  past_state past{};
  progress_state progress{};
  source_state as_source{};
  reader_state as_reader{.chain = chain_node{this}};
  std::optional<drain_state> drain{};
  parting_state parting{};
  request_state requests{};

  /// The worker holds a version that counts for its replica.
  [[nodiscard]] bool holds() const noexcept {
    return holding == catalog_detail::holding::whole && writing == catalog_detail::writing::idle;
  }
  /// Shows an open version.
  [[nodiscard]] bool shows_open() const noexcept { return holding == catalog_detail::holding::open; }
  /// The worker has the bytes of this version, if only until it makes the call that overwrites them.
  [[nodiscard]] bool still_has(version_number version) const noexcept {
    return holding == catalog_detail::holding::whole && held->version == version;
  }
  /// An update has been decided that writes into its memory, and has not ended.
  [[nodiscard]] bool is_overwritten() const noexcept { return writing != catalog_detail::writing::idle; }
  /// A reader has lost it, and no message has come from it since.
  [[nodiscard]] bool is_suspect() const noexcept {
    return signs.life == liveness::suspect || signs.life == liveness::missing;
  }
  /// It is read by nobody, whatever it holds: by an order, or because its key lacks that right.
  [[nodiscard]] bool is_barred_as_source() const noexcept;
  /// The reference that readers get; null: none.
  [[nodiscard]] const messages::reference* shown() const noexcept {
    return receiving ? &*receiving : held ? &*held : nullptr;
  }
};

/// The part of one shard in a group operation.
struct member_state {
  catalog_detail::phase phase = catalog_detail::phase::absent;
  request_sequence sequence{};  ///< the unanswered request, if there is one
  request_sequence called{};    ///< the request by which the shard called the operation
  version_selector selector{};
  messages::update_reach reach = messages::update_reach::anywhere;
  std::shared_ptr<const messages::announcement> shows{};  ///< most of the bytes, and seldom there
  bool ahead = false;                                     ///< rather than wait, it reads an open version
  bool keeps = false;                                     ///< holds the decided version already
  time_point deadline = time_point::never();
  lease_id lease{};
  std::vector<incarnation> excluded{};  ///< sources that failed this shard in this operation
  std::uint32_t retries = 0;
  std::string failed_whole{};  ///< why the last source failed that had every chunk; empty: none has
};

/// The number of a call and the shard that it belongs to alone, or `all_shards`.
using operation_key = std::pair<std::uint64_t, std::uint32_t>;
inline constexpr std::uint32_t all_shards = UINT32_MAX;

/// The workers that have called an operation are new, and may be one call ahead of the other shards, which
/// know of a failure before it. Nothing is decided until one of those shards calls too; if none has called
/// by `until`, the callers hear of that failure in the place of their call.
struct alone_state {
  time_point until = time_point::never();  ///< never: that is not so
  messages::status failure{};
  operation_counter failed{};
};

/// One call of update() by all shards of a replica (or by one worker, if the consistency policy decides per
/// worker).
struct operation_state {
  operation_counter counter{};
  replica_state* replica = nullptr;
  std::uint64_t serial = 0;                   ///< its key in open_operations::all
  std::optional<std::uint32_t> only_shard{};  ///< set if the operation belongs to one worker alone
  bool is_publish = false;
  std::uint64_t starved = 0;  ///< its key in open_operations::starved; zero: it is not there
  operation_stage stage = operation_stage::undecided;
  bool inherited = false;      ///< an earlier server has decided its version
  messages::status failure{};  ///< of a closed operation
  version_number version{};
  time_point decided_at{};
  time_point closed_at{};
  alone_state alone{};
  time_point arrival_deadline = time_point::never();  ///< by when all shards must have called
  time_point looked_at = time_point::never();  ///< when its deadlines are examined next; never: it has none
  std::vector<member_state> members{};  ///< of an update: by shard, or one if only_shard; empty: `callers`
  /// By shard, who has called. A publish needs no more of its members; nor does an update that has ended,
  /// once there is a later one. (There may be many calls of many shards.)
  std::vector<bool> callers{};

  [[nodiscard]] operation_key key() const noexcept {
    return {counter.value, only_shard.value_or(all_shards)};
  }
  [[nodiscard]] bool is_closed() const noexcept { return stage >= operation_stage::ended; }
  /// Also of a closed operation: it was.
  [[nodiscard]] bool is_decided() const noexcept {
    return stage == operation_stage::decided || stage == operation_stage::ended ||
           stage == operation_stage::failed;
  }
  [[nodiscard]] bool has_version() const noexcept { return inherited || is_decided(); }
  [[nodiscard]] bool is_finished() const noexcept {
    if (is_publish) return detail::all_of(callers, [](bool has_called) { return has_called; });
    return detail::all_of(members,
                          [](const member_state& m) { return m.phase == catalog_detail::phase::finished; });
  }
  /// It is this shard's, too.
  [[nodiscard]] bool is_of(std::uint32_t shard) const noexcept { return only_shard.value_or(shard) == shard; }
  /// Pre-condition: it is of this shard.
  [[nodiscard]] bool has_called(std::uint32_t shard) const {
    const std::size_t slot = only_shard ? 0 : shard;
    return members.empty() ? callers[slot] : members[slot].phase != catalog_detail::phase::absent;
  }
  /// Pre-condition: it is closed.
  void forget_members() {
    if (members.empty()) return;
    for (const member_state& each : members) callers.push_back(each.phase != catalog_detail::phase::absent);
    std::vector<member_state>{}.swap(members);
  }
};

/// Calls `visit(member, shard)` for each shard that takes part in the operation.
template <typename Operation, typename Visitor>
void for_each_member(Operation& operation, Visitor&& visit) {
  for (std::size_t i = 0; i < operation.members.size(); ++i)
    visit(operation.members[i], operation.only_shard.value_or(static_cast<std::uint32_t>(i)));
}

/// A retained version that is being copied into a host's memory, because its last reliable holder asks to
/// release it.
struct handover_state {
  version_number version{};
  std::string from{};            ///< replica that asks to release it
  std::string host{};            ///< replica whose processes take the copy; empty: none chosen
  std::string temporary{};       ///< name of the temporary replica that they will show
  bool given_up = false;         ///< no replica can take the copy
  std::uint32_t unreadable = 0;  ///< replicas that could not read it at its holder
  std::set<std::string> failed{};
};

/// The version that a replica asks to release, and is not relied upon for.
struct letting_go_state {
  version_number version{};                        ///< zero: none
  time_point unasked_since = time_point::never();  ///< none of its calls may ask any more
};

struct replica_state {
  std::string name{};
  model_state* model = nullptr;
  std::vector<worker_state*> workers{};  ///< by shard; null: not joined
  bool torn = false;
  version_number complete{};   ///< held by all shards; zero: none
  version_number available{};  ///< likewise, and readers get it; in version_state::complete_replicas
  bool temporary = false;      ///< shows a copy made by a handover (retention.hpp)
  bool dropping = false;       ///< temporary, and no longer needed
  std::string set_aside_as{};  ///< offered to nobody, by an order about this replica (orders.hpp)
  letting_go_state letting_go{};
  version_number counts_for{};  ///< the version whose version_state::reliable_replicas counts it
  time_point abandoned_since = time_point::never();  ///< temporary and incomplete, and nobody completes it
  operation_counter closed_operation{};              ///< highest operation that has ended
  std::map<operation_key, operation_state> operations{};
  /// Those of them that are open, in their order: the others are only remembered.
  std::vector<operation_state*> open{};
};

[[nodiscard]] inline bool worker_state::is_barred_as_source() const noexcept {
  return !replica->set_aside_as.empty() || !access.may_serve;
}

struct version_state {
  std::vector<digest128> roots{};                        ///< by shard; zero: unknown
  std::vector<std::unique_ptr<source_index>> sources{};  ///< by shard: workers that accept readers now
  std::vector<std::deque<incarnation>> hungry{};         ///< by shard: readers that could use more sources
  /// By shard and datacenter: the leases that seed it. (At most one of them counts.)
  std::vector<std::map<std::string, std::set<lease_id>>> seeds{};
  /// By shard and datacenter: when the next search for a reader without progress may run.
  std::vector<std::map<std::string, time_point>> next_look{};
  std::vector<std::uint64_t> ordinals{};  ///< by shard: readers so far
  std::uint32_t filling = 0;              ///< workers that hold it open
  std::uint32_t complete_replicas = 0;
  std::set<const replica_state*> reliable_replicas{};  ///< those of them that are reliable (retention.hpp)
  bool was_held = false;                               ///< by some worker
  std::vector<bool> vouched{};  ///< by shard: a worker that was believed has held it whole, or read it
  bool ever_complete = false;
};

/// What a server was told to retain, or to roll back, and the latest version that it had seen then.
struct retention_change {
  messages::retain_request request{};
  version_number seen{};
};

/// How the retention came to be while the server recovered.
struct recovered_retention {
  std::vector<retention_change> changes{};  ///< that this server was told
  std::uint64_t revision_told = 0;          ///< the highest one that a worker has brought
};

/// The open operations of a model, which their replicas own. There may be ten thousand, so the end of one
/// must not visit the others. `operation_table` keeps the indexes up to date.
struct open_operations {
  std::map<std::uint64_t, operation_state*> all{};      ///< in the order in which they were opened
  std::map<std::uint64_t, operation_state*> starved{};  ///< those that wait for a free credit, by their turn
  std::map<version_number, std::uint32_t> users{};      ///< how many of them have this version
};

/// What has become possible in a model since it was settled (`catalog::settle`).
struct unsettled_state {
  bool is_listed = false;            ///< in core::unsettled
  bool calls = false;                ///< whoever waits for a version may get one
  bool credits = false;              ///< operations that wait for a free credit may get one
  std::set<std::string> replicas{};  ///< the waiting calls of these replicas may go on
  std::set<std::pair<version_number, std::uint32_t>>
      sources{};  ///< versions and shards that have a new source
};

/// Of the workers that were declared dead, which may only have been cut off. `all`: there was a time without
/// workers, and none has come back since, so a trainer that counts anew begins a new line.
enum class missing_workers : std::uint8_t { none, some, all };

/// What a server learns from workers that come back, of servers before it, or of the time before it lost
/// them.
struct predecessor_state {
  bool awaited = false;       ///< an earlier server knew this model, and not all of its workers may be back
  version_number latest{};    ///< highest that a worker knows from an earlier server
  std::uint64_t term = 0;     ///< the highest term of a server that a worker comes from
  std::uint32_t workers = 0;  ///< workers of the model at an earlier server, as far as is known
  std::uint32_t back = 0;     ///< those that have joined this server, of that term's
  missing_workers missing = missing_workers::none;  ///< of this server's own
};

struct model_state {
  std::string name{};
  std::uint32_t shards = 0;
  std::vector<std::optional<layout>> layouts{};
  std::size_t layout_bytes = 0;  ///< approximate memory of the layouts
  std::map<version_number, version_state> versions{};
  std::map<std::string, std::unique_ptr<replica_state>> replicas{};
  version_number latest_seen{};  ///< highest that any shard ever published
  version_number latest_ever{};  ///< highest that was ever complete
  std::uint32_t workers = 0;
  predecessor_state before{};
  messages::retention keeps{};
  recovered_retention meanwhile{};
  bool has_void = false;  ///< what a roll back has made void may be shown, or in use, still
  std::map<version_number, handover_state> handovers{};
  std::set<std::string> temporaries{};  ///< names of replicas that are, or were, temporary
  bool waits_to_let_go = false;         ///< a request waits for a handover; try again after a change
  std::set<version_number> lost{};      ///< retained versions that no worker holds any more
  waiter_table waiters{};
  open_operations operations{};
  unsettled_state unsettled{};
};

/// The replica of this name and those that are parts of it.
[[nodiscard]] inline std::vector<replica_state*> parts_of(const model_state& model,
                                                          const std::string& replica) {
  std::vector<replica_state*> out;
  for (auto each = model.replicas.lower_bound(replica); each != model.replicas.end(); ++each) {
    if (!each->first.starts_with(replica)) break;
    if (is_part_of(each->first, replica)) out.push_back(each->second.get());
  }
  return out;
}

/// The replica that this one is, or is a part of, and all of its parts.
[[nodiscard]] inline std::vector<replica_state*> relatives_of(const replica_state& replica) {
  const std::string_view whole = whole_of(replica.name);
  return parts_of(*replica.model, std::string{whole.empty() ? replica.name : whole});
}

// ---- look-ups

/// Null: the operation belongs to another shard alone, or has no members but callers.
[[nodiscard]] inline member_state* member_of(operation_state& operation, std::uint32_t shard) {
  if (operation.members.empty()) return nullptr;
  if (!operation.only_shard) return &operation.members[shard];
  return *operation.only_shard == shard ? &operation.members.front() : nullptr;
}

/// The operation with this number in which the shard takes part: the replica's, or the shard's own.
[[nodiscard]] inline operation_state* find_operation(replica_state& replica, operation_counter counter,
                                                     std::uint32_t shard) {
  if (replica.operations.empty()) return nullptr;
  auto found = std::prev(replica.operations.end());  // most often it is the newest, and the others are cold
  if (found->first != operation_key{counter.value, all_shards})
    found = replica.operations.find({counter.value, all_shards});
  if (found == replica.operations.end()) found = replica.operations.find({counter.value, shard});
  return found == replica.operations.end() ? nullptr : &found->second;
}
/// The oldest operation that this shard had called before it sent the request `before`, and that has not
/// ended.
/// (The shard may also take part in operations that it called at an earlier server only.)
[[nodiscard]] inline operation_state* unfinished_operation(replica_state& replica, std::uint32_t shard,
                                                           request_sequence before) {
  for (operation_state* operation : replica.open) {
    const member_state* member = member_of(*operation, shard);
    if (member == nullptr || !member->called || member->called >= before) continue;
    const bool has_failed = member->phase == phase::failed || member->phase == phase::intact;
    if (member->phase != phase::absent && !has_failed) return operation;
  }
  return nullptr;
}
/// The update for which the worker is reading; null: none.
[[nodiscard]] inline operation_state* operation_read_by(const worker_state& reader) {
  operation_state* operation =
      find_operation(*reader.replica, reader.as_reader.operation, reader.shard.index);
  if (operation == nullptr || operation->is_closed() || operation->is_publish) return nullptr;
  const member_state* member = member_of(*operation, reader.shard.index);
  return member != nullptr && member->phase == phase::assigned ? operation : nullptr;
}
/// Something that waits knows of this request of the worker, and will answer it.
[[nodiscard]] inline bool is_awaited(const worker_state& worker, request_sequence sequence) {
  if (worker.drain && worker.drain->sequence == sequence) return true;
  if (worker.parting.parked && worker.parting.sequence == sequence) return true;
  if (worker.model->waiters.contains(worker.id, sequence)) return true;
  return detail::any_of(worker.replica->open, [&](operation_state* operation) {
    const member_state* member = member_of(*operation, worker.shard.index);
    // (An exception has kept a shard with sources from its answer.)
    return member != nullptr && member->sequence == sequence && member->phase != phase::assigned;
  });
}
/// The operation for which a lease was granted.
[[nodiscard]] inline operation_state* find_operation(model_state& model, const lease_state& lease) {
  const auto replica = model.replicas.find(lease.replica);
  return replica == model.replicas.end() ? nullptr
                                         : find_operation(*replica->second, lease.operation, lease.shard);
}

/// Nobody of this replica has joined, or all have left.
[[nodiscard]] inline bool is_deserted(const replica_state& replica) {
  return detail::all_of(replica.workers, [](const worker_state* worker) { return worker == nullptr; });
}
/// Of those that have joined, in their order; `call` lets no one join or leave.
template <typename Call>
void for_each_worker(const model_state& model, Call&& call) {
  for (const auto& [name, replica] : model.replicas) {
    for (worker_state* const worker : replica->workers) {
      if (worker != nullptr) call(*worker);
    }
  }
}

/// A roll back has withdrawn this version (service/rollbacks.hpp).
[[nodiscard]] inline bool is_void(const model_state& model, version_number version) noexcept {
  return is_void(model.keeps, version);
}

/// The fields of a log line that describe this worker.
[[nodiscard]] inline log_fields about(const worker_state& worker) {
  log_fields out;
  out.model = worker.model->name;
  out.replica = worker.replica->name;
  out.shard = worker.shard.index;
  out.worker = worker.id;
  return out;
}
/// After a change of `receiving` or `upstream`: a chain ends at the first worker that does not receive.
inline void update_chain(worker_state& worker) {
  const bool goes_on = worker.receiving && worker.as_reader.upstream != nullptr;
  worker.as_reader.chain.follow(goes_on ? &worker.as_reader.upstream->as_reader.chain : nullptr);
}

/// The name of this worker in sentences and log lines.
[[nodiscard]] inline std::string who(const worker_state& worker) {
  return "worker " + worker.model->name + "/" + worker.replica->name + "/" + to_string(worker.shard) + " (" +
         to_hex(worker.id) + ")";
}

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
