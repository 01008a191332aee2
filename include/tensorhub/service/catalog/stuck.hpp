#pragma once
/// \file stuck.hpp
/// Answers the question `stuck`: what in the whole system is waiting, for what, since when, and what the user
/// can do about it.
///
/// The answer is computed from the catalog's state; nothing is changed or stored for it. Work that makes
/// progress is not listed. The server learns of received chunks from heartbeats, so a transfer is listed only
/// after two heartbeats reported the same number.
///
/// | kind             | age since                          | peers                                          |
/// |------------------|------------------------------------|------------------------------------------------|
/// | no_version       | the call                           | -                                              |
/// | no_credit        | the call                           | the holders of the version                     |
/// | absent_shards    | the decision (publish: first call) | shards that have not called                    |
/// | no_progress      | the last chunk, or the decision    | the sources                                    |
/// | draining         | the call                           | the readers                                    |
/// | unfinished_group | everything had been received       | shards that are not done                       |
/// | cut_off          | the reader was declared dead       | the dead reader; the entry is its source's     |
/// | silent_worker    | its last message                   | -                                              |

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/types/client_rules.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class stuck {
 public:
  static constexpr std::size_t most_entries = 256;  ///< in one reply
  static constexpr std::size_t most_peers = 8;      ///< named in one entry

  /// `limits`: of the scheduler.
  stuck(core& core, source_limits limits) : core_{core}, limits_{limits} {}

  /// The answer has only the models that the asker's rules name.
  void on_stuck(incarnation from, request_sequence sequence, const messages::stuck_request& request,
                const client_rules& rules) {
    messages::stuck_reply reply;
    const std::chrono::milliseconds least{request.older_than_ms};
    bool known = request.model.empty();
    for (const auto& [name, model] : core_.models) {
      if (request.model.empty() ? !rules.may_speak_of(name) : request.model != name) continue;
      known = true;
      look_at(model, least, reply.entries);
    }
    if (!known && core_.recovering())
      return core_.show_life(from);  // its workers may be on their way: the question is repeated
    if (!known) reply.result = {errc::not_found, "no worker of a model '" + request.model + "' has joined"};
    std::sort(reply.entries.begin(), reply.entries.end(),
              [](const messages::stuck_entry& a, const messages::stuck_entry& b) {
                return std::tie(b.waited_ms, a.kind, a.model, a.replica, a.shard) <
                       std::tie(a.waited_ms, b.kind, b.model, b.replica, b.shard);
              });
    if (reply.entries.size() > most_entries) {
      reply.left_out = static_cast<std::uint32_t>(reply.entries.size() - most_entries);
      reply.entries.resize(most_entries);
    }
    for (messages::stuck_entry& each : reply.entries) each.version = each.version.number();
    core_.send(from, sequence, std::move(reply));
  }

 private:
  using entries = std::vector<messages::stuck_entry>;
  using kind = messages::stuck_kind;

  void look_at(const model_state& model, duration least, entries& out) const {
    for (const auto& [key, waiter] : model.waiters) {
      const worker_state* worker = core_.find(waiter.worker);
      if (worker == nullptr) continue;
      if (auto* entry = add(out, kind::no_version, *worker, asked_at(*worker, waiter.sequence), least))
        tell_missing(*entry, model, waiter.selector, "wait()");
    }
    for (const auto& [serial, operation] : model.operations.all) look_at(model, *operation, least, out);
    for_each_worker(model, [&](const worker_state& worker) { look_at(worker, least, out); });
    for (const lease_id id : core_.cut_offs) {
      const lease_state& lease = core_.leases.at(id);
      const worker_state* source = core_.find(lease.source);
      if (source == nullptr || source->model != &model) continue;
      auto* entry = add(out, kind::cut_off, *source, lease.cut_off_at, least);
      if (entry == nullptr) continue;
      entry->version = lease.version;
      entry->operation = lease.operation;
      entry->peers = lease.replica + "/" + std::to_string(lease.shard) + " (" + to_hex(lease.reader) + ")";
      entry->advice =
          "this source has not confirmed that it has cut off a reader that was declared dead; its "
          "lease lasts until then, and an unpublish() waits for it: is the source alive?";
    }
  }

  void look_at(const worker_state& worker, duration least, entries& out) const {
    const duration silence = core_.now - worker.signs.last_heard;
    if (silence > 2 * core_.options.heartbeat_interval) {
      if (auto* entry = add(out, kind::silent_worker, worker, worker.signs.last_heard, least)) {
        entry->advice = "no heartbeat; it is declared dead after " +
                        std::to_string(core_.options.worker_timeout.count()) +
                        " ms of silence: is the process stopped, or its network gone?";
      }
    }
    if (worker.drain) {
      auto* entry = add(out, kind::draining, worker, asked_at(worker, worker.drain->sequence), least);
      if (entry != nullptr) {
        if (worker.held) entry->version = worker.held->version;
        entry->peers = names_of(worker.as_source.readers, &lease_state::reader);
        entry->advice = std::string{worker.holding == holding::withdrawn ? "unpublish()" : "update()"} +
                        " waits for " + std::to_string(worker.as_source.readers.size()) +
                        " readers of what is in its memory; at its deadline they are cut off";
      }
    }
  }

  void look_at(const model_state& model, const operation_state& operation, duration least,
               entries& out) const {
    if (operation.is_decided()) incomplete(operation, least, out);
    for_each_member(operation, [&](const member_state& member, std::uint32_t shard) {
      const worker_state* worker = operation.replica->workers[shard];
      if (worker == nullptr) return;
      switch (member.phase) {
        case phase::waiting:
          waiting(model, operation, member, *worker, least, out);
          break;
        case phase::assigned:
          if (!worker->drain) reading(operation, *worker, least, out);
          break;
        case phase::finished:
          finished(operation, member, *worker, least, out);
          break;
        case phase::absent:
        case phase::failed:
        case phase::intact:
          break;
      }
    });
  }

  void waiting(const model_state& model, const operation_state& operation, const member_state& member,
               const worker_state& worker, duration least, entries& out) const {
    auto* entry = add(out, operation.starved != 0 ? kind::no_credit : kind::no_version, worker,
                      asked_at(worker, member.sequence), least);
    if (entry == nullptr) return;
    entry->operation = operation.counter;
    if (operation.starved == 0) return tell_missing(*entry, model, member.selector, "update()");
    entry->version = operation.version;
    std::size_t count = 0;
    bool has_credit = false;
    for (const auto& [name, replica] : model.replicas) {
      const worker_state* holder = replica->workers[worker.shard.index];
      if (holder != nullptr && holder->as_source.offered != offer::none &&
          holder->as_source.version == operation.version) {
        append(entry->peers, name_of(*holder), count);
        has_credit = has_credit || holder->as_source.load < limits_.credits;
      }
    }
    end_list(entry->peers, count);
    entry->advice = "version " + to_string(operation.version) + " is available, but " +
                    (has_credit ? why_not_read(worker, operation.version)
                                : "all its holders have the maximum number of readers: the update begins "
                                  "when one of them finishes; more holders, or a scheduler with more "
                                  "credits, help");
  }
  /// Why a worker waits for a source although one has a credit left: by the last choice for it.
  [[nodiscard]] static std::string why_not_read(const worker_state& worker, version_number version) {
    const auto& choices = worker.as_reader.decisions;
    const auto last = std::find_if(choices.rbegin(), choices.rend(),
                                   [&](const decision_state& each) { return each.version == version; });
    if (last == choices.rend() || last->candidates == 0)
      return "its holders with a credit left are not offered to this worker now: they have failed it, or are "
             "in another datacenter, from which one worker reads for all";
    if (last->source) return "another shard of the replica has no source yet";
    return "the scheduler has chosen none of " + std::to_string(last->candidates) + " candidates" +
           (last->reason.empty() ? std::string{} : ": " + std::string{last->reason}) +
           "; a holder has a credit left (`why` tells how sources were chosen)";
  }

  void reading(const operation_state& operation, const worker_state& worker, duration least,
               entries& out) const {
    const duration patience = 2 * core_.options.heartbeat_interval;
    auto* entry =
        add(out, kind::no_progress, worker, worker.progress.progressed, std::max<duration>(least, patience));
    if (entry == nullptr) return;
    entry->version = operation.version;
    entry->operation = operation.counter;
    entry->chunks = worker.progress.chunks_received;
    entry->peers = names_of(worker.as_reader.leases, &lease_state::source);
    const auto& known = worker.model->layouts[worker.shard.index];
    entry->advice = "received " + std::to_string(worker.progress.chunks_received) + " of " +
                    std::to_string(known ? known->chunk_count() : 0) +
                    " chunks, and none lately: are its sources stopped, or is the network between them? "
                    "(`why` tells how they were chosen)";
  }

  /// Some shards have called and others have not: makes one entry, for the first shard that has called.
  void incomplete(const operation_state& operation, duration least, entries& out) const {
    const worker_state* caller = nullptr;
    std::string absent;
    std::size_t count = 0;
    for (std::uint32_t shard = 0; shard < operation.replica->workers.size(); ++shard) {
      if (!operation.is_of(shard)) continue;
      if (!operation.has_called(shard))
        append(absent, name_of(*operation.replica, shard), count);
      else if (caller == nullptr)
        caller = operation.replica->workers[shard];
    }
    // A shard that has begun another call no longer waits for its publish.
    if (count == 0 || caller == nullptr) return;
    if (operation.is_publish && (!caller->holds() || caller->held->version != operation.version)) return;
    auto* entry = add(out, kind::absent_shards, *caller, operation.decided_at, least);
    if (entry == nullptr) return;
    end_list(absent, count);
    entry->version = operation.version;
    entry->operation = operation.counter;
    entry->chunks = caller->progress.chunks_received;
    entry->peers = std::move(absent);
    entry->advice =
        operation.is_publish
            ? "version " + to_string(operation.version) +
                  " is not available before all shards of the replica have published it"
            : "the version is decided: all shards of the replica must call update() within " +
                  std::to_string(core_.options.group_timeout.count()) + " ms of that" +
                  (core_.is_held_up(operation) ? ", or late_shard_timeout after its holder let go" : "");
  }

  /// A shard has received every chunk, while others of its replica are still reading, or wait for a source.
  void finished(const operation_state& operation, const member_state& member, const worker_state& worker,
                duration least, entries& out) const {
    std::string unfinished;
    std::size_t count = 0;
    for_each_member(operation, [&](const member_state& other, std::uint32_t shard) {
      if (other.phase == phase::assigned || other.phase == phase::waiting)
        append(unfinished, name_of(*operation.replica, shard), count);
    });
    if (count == 0 || !member.sequence) return;
    auto* entry = add(out, kind::unfinished_group, worker, asked_at(worker, member.sequence), least);
    if (entry == nullptr) return;
    end_list(unfinished, count);
    entry->version = operation.version;
    entry->operation = operation.counter;
    entry->chunks = worker.progress.chunks_received;
    entry->peers = std::move(unfinished);
    entry->advice = "it has everything; the replica holds the version when these shards have it too";
  }

  void tell_missing(messages::stuck_entry& entry, const model_state& model, const version_selector& selector,
                    const std::string& call) const {
    entry.version = selector.version;
    entry.advice = call + " waits for a version (" + to_string(selector) +
                   ") that some replica holds completely: a trainer must publish it; " +
                   core_.what_there_is(model, selector);
  }

  /// Null: the worker has not waited long enough to be listed.
  messages::stuck_entry* add(entries& out, kind why, const worker_state& worker, time_point since,
                             duration least) const {
    const duration waited = core_.now - since;
    if (waited <= least) return nullptr;
    messages::stuck_entry& entry = out.emplace_back();
    entry.kind = why;
    entry.model = worker.model->name;
    entry.replica = worker.replica->name;
    entry.shard = worker.shard.index;
    entry.worker = worker.id;
    entry.waited_ms =
        static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(waited).count());
    return &entry;
  }

  /// The arrival time of an unanswered request; the present time if it is unknown.
  [[nodiscard]] time_point asked_at(const worker_state& worker, request_sequence sequence) const {
    const auto slot = worker.requests.answers.find(sequence.value);
    return slot == worker.requests.answers.end() ? core_.now : slot->second.asked;
  }

  [[nodiscard]] static std::string name_of(const worker_state& worker) {
    return worker.replica->name + "/" + std::to_string(worker.shard.index) + " (" + to_hex(worker.id) + ")";
  }
  [[nodiscard]] static std::string name_of(const replica_state& replica, std::size_t shard) {
    const worker_state* worker = replica.workers[shard];
    return worker != nullptr ? name_of(*worker)
                             : replica.name + "/" + std::to_string(shard) + " (not joined)";
  }
  [[nodiscard]] std::string names_of(const std::vector<lease_id>& leases,
                                     incarnation lease_state::*side) const {
    std::string text;
    std::size_t count = 0;
    for (const lease_id id : leases) {
      const lease_state& lease = core_.leases.at(id);
      const worker_state* worker = core_.find(lease.*side);
      if (worker != nullptr)
        append(text, name_of(*worker), count);
      else if (side == &lease_state::reader)
        append(text,
               lease.replica + "/" + std::to_string(lease.shard) +
                   (lease.reader ? " (" + to_hex(lease.reader) + ", gone)" : " (has not called yet)"),
               count);
      else
        append(text, to_hex(lease.*side) + " (gone)", count);
    }
    end_list(text, count);
    return text;
  }
  static void append(std::string& list, const std::string& name, std::size_t& count) {
    if (++count <= most_peers) list += (list.empty() ? "" : ", ") + name;
  }
  static void end_list(std::string& list, std::size_t count) {
    if (count > most_peers) list += " and " + std::to_string(count - most_peers) + " more";
  }

  core& core_;
  source_limits limits_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
