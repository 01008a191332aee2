#pragma once
/// \file state_digest.hpp
/// A digest of what decides the future of a catalog and of its sessions: of several worlds with one digest,
/// the exhaustive search continues one.
///
/// Times count relative to the present. Private state is read through explicit instantiations, which may name
/// private members. Records of the catalog are taken apart by structured bindings: a new field does not
/// compile until it is added here. A new member of a session must be added to the lists of members by hand.
///
/// Not part of the digest:
///  - what is only reported: tallies, log lines, `decisions` (for `why`), when a request was asked;
///  - which of equally good sources is found first: the order within a load class of source_index, the
///    catalog's random number, and the marks of a query. Of two worlds that differ in this alone, the search
///    continues the first;
///  - addresses, places and layouts, which never change in the search;
///  - whom the server has asked for a layout: of up to three workers of a shard it asks everyone;
///  - the number of the last lease and the verdicts on dead workers, which the world adds.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog.hpp"
#include "tensorhub/service/codec.hpp"
#include "tensorhub/service/session.hpp"
#include "tensorhub/types/xxh3.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {
namespace open_state {

/// `reach(tag)`: pointers to these members.
template <typename Tag, auto... Members>
struct opened {
  friend constexpr auto reach(Tag) { return std::tuple{Members...}; }
};

struct catalog_core {
  using type = const catalog_detail::core& (catalog::*)() const noexcept;
  friend constexpr auto reach(catalog_core);
};
template struct opened<catalog_core, static_cast<catalog_core::type>(&catalog::core)>;

struct catalog_timers {
  friend constexpr auto reach(catalog_timers);
};
template struct opened<catalog_timers, &catalog::next_tick_, &catalog::next_check_, &catalog::recovered_>;

struct closed_members {
  friend constexpr auto reach(closed_members);
};
using closed_requests = messages::closed_requests;
template struct opened<closed_members, &closed_requests::all_up_to_, &closed_requests::open_>;

struct outbox_members {
  friend constexpr auto reach(outbox_members);
};
using outbox = session_detail::outbox;
template struct opened<outbox_members, &outbox::last_sequence_, &outbox::chunks_, &outbox::retention_,
                       &outbox::open_>;

struct state_members {
  friend constexpr auto reach(state_members);
};
using state = session_detail::state;
template struct opened<state_members, &state::outbox_, &state::joined_, &state::fatal_, &state::server_,
                       &state::contact_, &state::counter_, &state::closed_meanwhile_, &state::counted_,
                       &state::ended_well_, &state::operation_, &state::held_, &state::versions_,
                       &state::epoch_, &state::last_epoch_>;

struct session_members {
  friend constexpr auto reach(session_members);
};
template struct opened<session_members, &session::believed_, &session::ended_, &session::leaving_,
                       &session::peers_, &session::counted_at_, &session::beats_answered_,
                       &session::worker_timeout_, &session::heartbeat_interval_, &session::barred_,
                       &session::returns_, &session::joined_at_, &session::next_heartbeat_, &session::joins_>;

}  // namespace open_state

class state_digest {
 public:
  explicit state_digest(time_point now) : now_{now} {}

  [[nodiscard]] digest128 result() const noexcept { return detail::xxh3_128(bytes_, 0); }

  template <typename... Parts>
  void add(const Parts&... parts) {
    (fold(parts), ...);
  }

 private:
  // ---- what everything is made of

  void number(std::uint64_t value) {
    const auto* first = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), first, first + sizeof value);
  }
  template <typename Value>
  requires std::integral<Value> || std::is_enum_v<Value>
  void fold(Value value) { number(static_cast<std::uint64_t>(value)); }
  /// Zero and `never` are no moments.
  void fold(time_point at) {
    const bool is_moment = at != time_point{} && at != time_point::never();
    number(at == time_point{} ? 0 : is_moment ? 1 : 2);
    if (is_moment) number(static_cast<std::uint64_t>((at - now_).count()));
  }
  void fold(std::string_view text) {
    number(text.size());
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), first, first + text.size());
  }
  void fold(const std::string& text) { fold(std::string_view{text}); }
  void fold(duration length) { number(static_cast<std::uint64_t>(length.count())); }
  void fold(version_number version) { add(version.value, version.line); }
  template <typename Tag>
  void fold(strong_id<Tag> id) {
    number(id.value);
  }
  void fold(digest128 digest) { add(digest.low, digest.high); }
  template <typename Value>
  void fold(const std::optional<Value>& value) {
    number(value.has_value() ? 1 : 0);
    if (value) fold(*value);
  }
  template <typename First, typename Second>
  void fold(const std::pair<First, Second>& both) {
    add(both.first, both.second);
  }
  template <typename Value>
  void fold(const std::shared_ptr<Value>& value) {
    number(value != nullptr ? 1 : 0);
    if (value) fold(*value);
  }
  template <typename Value>
  void fold(const std::unique_ptr<Value>& value) {
    fold(*value);
  }
  /// Ordered containers.
  template <typename Many>
  requires requires(const Many& many) {
    many.begin();
    many.size();
  }
  void fold(const Many& many) {
    number(many.size());
    for (const auto& each : many) fold(each);
  }
  /// Hash tables, in the order of their keys.
  template <typename Table>
  void fold_by_key(const Table& table) {
    std::vector<typename Table::key_type> keys;
    keys.reserve(table.size());
    for (const auto& entry : table) keys.push_back(entry.first);
    std::ranges::sort(keys);
    number(keys.size());
    for (const auto& key : keys) fold(table.at(key));
  }

  // ---- messages

  void fold(const messages::envelope& message) {
    const auto frame = encoder_.encode(message);
    number(frame.size());
    bytes_.insert(bytes_.end(), frame.begin(), frame.end());
  }
  void fold(const messages::message& body) { fold(messages::envelope{0, {}, {}, body, {}}); }
  void fold(const messages::assignment& source) {
    fold(messages::message{messages::reassign_push{{}, source}});
  }
  void fold(const messages::status& outcome) { add(outcome.code, outcome.sentence); }
  void fold(const remote_region& region) {
    add(region.base, region.bytes,
        std::string_view{reinterpret_cast<const char*>(region.key.bytes.data()),
                         std::size_t{region.key.used_bytes}});
  }
  void fold(const told_region& region) { add(region.base, region.bytes, region.key); }
  void fold(const messages::reference& held) {
    add(held.version, held.epoch, held.root, held.control, held.open, held.segments);
  }
  void fold(const messages::announcement& shows) { add(shows.epoch, shows.control); }
  void fold(const messages::retention& keeps) {
    add(keeps.revision, keeps.keep_latest, keeps.pinned, keeps.rollbacks);
  }
  void fold(const catalog_detail::recovered_retention& meanwhile) {
    add(meanwhile.changes, meanwhile.revision_told);
  }
  void fold(const catalog_detail::retention_change& change) {
    fold(messages::message{change.request});
    fold(change.seen);
  }
  void fold(const messages::rollback& each) { add(each.line, each.to); }
  void fold(const messages::unpublish_request& request) { fold(messages::message{request}); }
  void fold(const messages::closed_requests& closed) { fold_members(closed, open_state::closed_members{}); }
  void fold(const version_selector& wanted) { add(wanted.kind, wanted.version); }

  // ---- a session

  template <typename Owner, typename Tag>
  void fold_members(const Owner& owner, Tag tag) {
    std::apply([&](auto... member) { (fold(owner.*member), ...); }, reach(tag));
  }
  void fold(const session& core) {
    fold_members(core, open_state::state_members{});
    fold_members(core, open_state::session_members{});
    add(core.is_revoking());
  }
  void fold(const session_detail::heard_versions& heard) { add(heard.keeps, heard.keeps_from, heard.latest); }
  void fold(const session_detail::waiting_join& join) { add(join.ticket, join.deadline); }
  void fold(const session_detail::contact& contact) {
    fold(contact.heard);
    fold(contact.asked_since);
    fold(contact.idle_since);
    fold(contact.beat_since);
    add(contact.server, contact.refused_since, contact.refusals, contact.rejoins_at, contact.has_left);
  }
  void fold(const session_detail::outbox& outbox) { fold_members(outbox, open_state::outbox_members{}); }
  void fold(const session_detail::pending_request& pending) {
    const auto& [body, why, ticket, next_send, deadline, without_joining] = pending;
    add(body, why, ticket, next_send, deadline, without_joining);
  }
  void fold(const session_detail::running& call) {
    const auto& [ticket, at, deadline, drain_deadline, latest, lost, forced, copies, selector, target,
                 version, root, sources, ordinal, control, announced, told, previous, abort, failure] = call;
    add(ticket, at, deadline, drain_deadline, latest, lost, forced, copies, selector, target, version, root,
        sources.current, sources.given_up, ordinal, control, announced, told, previous, abort, failure);
  }

  // ---- a catalog

  void fold(const catalog& server) {
    const auto& core = (server.*std::get<0>(reach(open_state::catalog_core{})))();
    fold_members(server, open_state::catalog_timers{});
    add(core.epoch, core.recovers_until, core.models, core.outlived.all());
    fold_by_key(core.workers);
    fold_by_key(core.leases);
    add(core.cut_offs, core.sourceless, core.retention_changed, core.suspects, core.lingered);
  }
  void fold(const catalog_detail::lease_state& lease) {
    const auto& [id, source, reader, version, replica, shard, stage, inherited, cut_off_at, upstream,
                 crossing, seeds, datacenter, ordinal, operation, given] = lease;
    add(id, source, reader, version, replica, shard, stage, inherited, cut_off_at, upstream, crossing, seeds,
        datacenter, ordinal, operation, given);
  }
  void fold(const catalog_detail::drain_state& drain) {
    add(drain.sequence, drain.begun, drain.finished, drain.moved, drain.cut_off);
  }
  void fold(const catalog_detail::answer_state& answer) { add(answer.message, answer.kind); }
  void fold(const catalog_detail::past_state& past) {
    const auto& [called, missed, ended_well, ended_before, published, was_elsewhere, barred, has_old_keys] =
        past;
    add(called, missed, ended_well, ended_before, published, was_elsewhere, barred, has_old_keys);
  }
  void fold(const catalog_detail::progress_state& progress) {
    const auto& [chunks_received, most_chunks, progressed, updating] = progress;
    static_cast<void>(updating);
    add(chunks_received, most_chunks, progressed);
  }
  void fold(const catalog_detail::refused_chunk& refused) { add(refused.version, refused.chunk); }
  void fold(const catalog_detail::source_state& source) {
    const auto& [offered, version, load, places, readers, refused] = source;
    static_cast<void>(places);
    add(offered, version, load, readers, refused);
  }
  void fold(const catalog_detail::reader_state& reader) {
    const auto& [leases, operation, upstream, upstream_lease, chain, hungry_for, stalled_for, decisions] =
        reader;
    static_cast<void>(std::tie(chain, decisions));
    add(leases, operation, upstream == nullptr ? incarnation{} : upstream->id, upstream_lease, hungry_for,
        stalled_for);
  }
  void fold(const catalog_detail::parting_state& parting) {
    add(parting.leaving, parting.parked, parting.sequence);
  }
  void fold(const catalog_detail::request_state& requests) { add(requests.answers, requests.closed); }
  void fold(const catalog_detail::worker_state& worker) {
    const auto& [id, model, replica, shard, place, spot, access, signs, holding, writing, held, publisher,
                 receiving, past, progress, as_source, as_reader, drain, parting, requests] = worker;
    static_cast<void>(std::tie(model, place, spot, access));
    add(id, replica->name, shard.index, signs.life, signs.last_heard, holding, writing, held, publisher,
        receiving, past, progress, as_source, as_reader, drain, parting, requests);
  }
  void fold(const catalog_detail::member_state& member) {
    const auto& [phase, sequence, called, selector, reach_wanted, shows, ahead, keeps, deadline, lease,
                 excluded, retries, failed_whole] = member;
    add(phase, sequence, called, selector, reach_wanted, shows, ahead, keeps, deadline, lease, excluded,
        retries, failed_whole);
  }
  void fold(const catalog_detail::alone_state& alone) {
    const auto& [until, failure, failed] = alone;
    add(until, failure, failed);
  }
  void fold(const catalog_detail::operation_state& operation) {
    const auto& [counter, replica, serial, only_shard, is_publish, starved, stage, inherited, failure,
                 version, decided_at, closed_at, alone, arrival_deadline, looked_at, members, callers] =
        operation;
    static_cast<void>(std::tie(replica, serial));
    add(counter, only_shard, is_publish, starved != 0, stage, inherited, failure, version, decided_at,
        closed_at, alone, arrival_deadline, looked_at, members, callers);
  }
  void fold(const catalog_detail::handover_state& handover) {
    const auto& [version, from, host, temporary, given_up, unreadable, failed] = handover;
    add(version, from, host, temporary, given_up, unreadable, failed);
  }
  void fold(const catalog_detail::worker_state* worker) { number(worker == nullptr ? 0 : worker->id.value); }
  void fold(const catalog_detail::operation_state* operation) {
    add(operation->replica->name, operation->counter, operation->only_shard);
  }
  void fold(const catalog_detail::letting_go_state& asked) {
    const auto& [version, unasked_since] = asked;
    add(version, unasked_since);
  }
  void fold(const catalog_detail::replica_state& replica) {
    const auto& [name, model, workers, torn, complete, available, temporary, dropping, set_aside_as,
                 letting_go, counts_for, abandoned_since, closed_operation, operations, open] = replica;
    static_cast<void>(std::tie(model, available, open));  // which follows from what else is there
    number(workers.size());
    for (const catalog_detail::worker_state* worker : workers) fold(worker);
    add(name, torn, complete, temporary, dropping, set_aside_as, letting_go, counts_for, abandoned_since,
        closed_operation, operations);
  }
  /// The load classes follow from the workers' `offered` and `load`.
  void fold(const catalog_detail::version_state& version) {
    const auto& [roots, sources, hungry, seeds, next_look, ordinals, filling, complete_replicas,
                 reliable_replicas, was_held, vouched, ever_complete] = version;
    static_cast<void>(std::tie(sources, filling));
    std::vector<std::string> reliable;
    for (const catalog_detail::replica_state* each : reliable_replicas) reliable.push_back(each->name);
    std::ranges::sort(reliable);
    add(roots, hungry, seeds, next_look, ordinals, complete_replicas, reliable, was_held, vouched,
        ever_complete);
  }
  void fold(const catalog_detail::waiter_state& waiter) {
    add(waiter.worker, waiter.sequence, waiter.selector, waiter.deadline);
  }
  void fold(const catalog_detail::predecessor_state& before) {
    add(before.awaited, before.latest, before.term, before.workers, before.back, before.missing);
  }
  void fold(const catalog_detail::outlived_model& model) {
    add(model.latest_seen, model.keeps);  // `turn` decides only if there are very many
  }
  void fold(const catalog_detail::model_state& model) {
    const auto& [name, shards, layouts, layout_bytes, versions, replicas, latest_seen, latest_ever, workers,
                 before, keeps, meanwhile, has_void, handovers, temporaries, waits_to_let_go, lost, waiters,
                 operations, unsettled] = model;
    static_cast<void>(std::tie(shards, layouts, layout_bytes, unsettled));  // it is empty between events
    add(name, versions, replicas, latest_seen, latest_ever, workers, before, keeps, meanwhile, has_void,
        handovers, temporaries, waits_to_let_go, lost, waiters, operations);
  }
  /// The numbers themselves grow with the history; their order decides. `users` follows from the operations.
  void fold(const catalog_detail::open_operations& open) {
    const auto& [all, starved, users] = open;
    static_cast<void>(users);
    for (const auto* order : {&all, &starved}) {
      number(order->size());
      for (const auto& [key, operation] : *order) fold(operation);
    }
  }

  time_point now_;
  std::vector<std::byte> bytes_;
  encoder encoder_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
