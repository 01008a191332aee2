#pragma once
/// \file update_deadlines.hpp
/// Nothing in an update waits for ever: not a call for a version or a source, not a group for a shard that
/// has not called, and not a holder for a reader that has not come.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/operation_table.hpp"
#include "tensorhub/service/catalog/reader_moves.hpp"
#include "tensorhub/service/catalog/update_ends.hpp"
#include "tensorhub/service/catalog/update_replies.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class update_deadlines {
 public:
  update_deadlines(core& core, reader_moves& moves, operation_table& operations, update_ends& ends)
      : core_{core}, moves_{moves}, table_{operations}, ends_{ends} {}

  /// Ends operations that have waited for a version, or for a shard, beyond their deadline.
  void expire() {
    while (operation_state* operation = table_.take_due(core_.now)) {
      if (!operation->is_publish) expire(*operation);
    }
  }

  /// `failed`: the last call of the group, if it has failed without this worker.
  [[nodiscard]] alone_state alone_after(const operation_state* failed) const {
    if (failed == nullptr) return {};
    return {core_.now + core_.options.late_shard_timeout, failed->failure, failed->counter};
  }

  /// A shard has called. One that is new and alone, and whose group's last call has failed without it, waits
  /// for company before it hears of that failure: the other shards may be new as well, and call this one.
  void await_company(operation_state& operation, const member_state& caller, bool is_new,
                     const alone_state& alone) const {
    if (callers_of(operation) == 1)
      operation.alone = alone;
    else if (!is_new || !lacks_one_that_knows(operation))
      operation.alone = {};
    if (operation.alone.until == time_point::never()) return;
    operation.alone.until = std::min(operation.alone.until, caller.deadline);
    table_.look_at(operation, operation.alone.until);
  }

 private:
  void expire(operation_state& operation) {
    if (core_.now >= operation.alone.until) return tell_of_failure_before(operation);
    if (core_.is_held_up(operation)) move_again(operation);
    time_point next = core_.is_held_up(operation) ? core_.now + moves_again_after : time_point::never();
    for_each_member(operation, [&](const member_state& member, std::uint32_t shard) {
      const bool waits = member.phase == phase::waiting;
      const bool is_missing = operation.has_version() && member.phase == phase::absent;
      if (operation.is_closed() || (!waits && !is_missing)) return;
      const time_point deadline = waits ? member.deadline : operation.arrival_deadline;
      if (core_.now < deadline)
        next = std::min(next, deadline);
      else if (waits)
        ends_.close_failed(operation, waited_in_vain(operation, member, shard));
      else
        ends_.close_failed(operation, came_too_late(operation, shard));
    });
    table_.look_at(operation, next);
  }

  /// A source may have room by now for the shards that have not called.
  void move_again(operation_state& operation) {
    bool is_held_up = false;
    for_each_member(operation, [&](const member_state& member, std::uint32_t) {
      const auto lease = core_.leases.find(member.lease);
      if (member.phase != phase::absent || lease == core_.leases.end() || !lease->second.is_reserved())
        return;
      worker_state* const source = core_.find(lease->second.source);
      if (source == nullptr || source->as_source.offered != offer::none) return;
      const lease_id id = lease->first;
      moves_.move_reader(*source, id);
      is_held_up = is_held_up || member.lease == id;
    });
    if (!is_held_up) operation.arrival_deadline = operation.decided_at + core_.options.group_timeout;
  }

  /// The callers hear of the failure before, which the other shards know, so that all are in step again.
  void tell_of_failure_before(operation_state& operation) {
    for_each_member(operation, [&](member_state& member, std::uint32_t shard) {
      worker_state* const worker = operation.replica->workers[shard];
      if (member.phase != phase::waiting || worker == nullptr) return;
      core_.answer(*worker, std::exchange(member.sequence, {}),
                   refused(operation.alone.failure, operation.alone.failed));
    });
    table_.cancel(operation);
  }
  [[nodiscard]] static std::ptrdiff_t callers_of(const operation_state& operation) {
    return detail::count_if(operation.members,
                            [](const member_state& each) { return each.phase != phase::absent; });
  }
  /// A worker that is not new has not called: it knows of the failure before.
  [[nodiscard]] static bool lacks_one_that_knows(const operation_state& operation) {
    return detail::any_of(operation.replica->workers, [&operation](const worker_state* each) {
      return each != nullptr && each->past.called && !operation.has_called(each->shard.index);
    });
  }

  [[nodiscard]] messages::status waited_in_vain(const operation_state& operation, const member_state& member,
                                                std::uint32_t shard) const {
    const model_state& model = *operation.replica->model;
    if (operation.is_decided() || operation.starved != 0)
      return {errc::timed_out, "no source of version " + to_string(operation.version) + " of model '" +
                                   model.name + "' became free in time for shard " + std::to_string(shard) +
                                   " of replica '" + operation.replica->name + "'"};
    std::string sentence = "no version (" + to_string(member.selector) + ") of model '" + model.name +
                           "' became available; " + core_.what_there_is(model, member.selector);
    const auto latest = model.versions.find(model.latest_ever);
    if (member.reach == messages::update_reach::prefer_local && latest != model.versions.end() &&
        latest->second.complete_replicas > 0 && accepts(member.selector, model.latest_ever))
      sentence +=
          ", but no worker of this shard's datacenter holds it, and the call asked for those alone "
          "(prefer_local): does a seeder run there?";
    return {errc::timed_out, std::move(sentence)};
  }
  [[nodiscard]] messages::status came_too_late(const operation_state& operation, std::uint32_t shard) const {
    std::string out = "shard " + std::to_string(shard) + " of replica '" + operation.replica->name +
                      "' did not call update() within ";
    if (core_.is_held_up(operation))
      out += std::to_string(core_.options.late_shard_timeout.count()) + " ms after the holder of version " +
             to_string(operation.version) +
             " had let go of it, and no other holder has room: call update() in all shards at about the same "
             "time";
    else
      out += std::to_string(core_.options.group_timeout.count()) + " ms of the first one";
    return {errc::group_failed, std::move(out)};
  }

  core& core_;
  reader_moves& moves_;
  operation_table& table_;
  update_ends& ends_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
