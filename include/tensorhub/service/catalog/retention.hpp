#pragma once
/// \file retention.hpp
/// Retained versions, and the handover that precedes the release of the last reliable copy.
///
/// A replica is *reliable* for a version while it holds the version completely, none of its workers is spot,
/// and it has not asked to release it. Another replica may release the version in its favour only while all
/// its workers were heard within two heartbeats and no reader has lost them: a process that has died must not
/// count until its death is found out. Otherwise the request waits until they are heard, or declared dead.
/// When the last reliable replica asks (by unpublish, leave, or an update
/// that overwrites), it must wait for a *handover*: a host takes the version into host memory and shows it as
/// a temporary replica.
///
///     host:  the asking replica's own processes, by a local copy;
///            if they are about to end, the nearest other replica's processes, by an update
///
/// A replica stops counting as reliable as soon as it asks, so two replicas that ask at the same time cannot
/// each rely on the other. It counts again if its call ends without the release, and it does not ask once
/// more within `worker_timeout`. A handover ends when the temporary replica is complete, or when no replica
/// can be the host; in that case the version is lost and is reported as lost. A temporary replica is dropped
/// when its version is no longer retained, when another reliable replica holds it, or when it stays
/// incomplete because one of its processes has died.

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/versions.hpp"
#include "tensorhub/types/replica_name.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class retention {
 public:
  retention(core& core, versions& versions) : core_{core}, versions_{versions} {}

  // ---- what is retained

  void on(worker_state& worker, request_sequence sequence, const messages::retain_request& request) {
    if (is_too_early(*worker.model, request)) {
      worker.requests.answers.erase(sequence.value);
      return;
    }
    core_.answer(worker, sequence,
                 messages::status_reply{change(*worker.model, &worker, request, who(worker)), {}});
  }
  /// A new server may not have heard yet of what is to be withdrawn: the request is repeated meanwhile.
  [[nodiscard]] bool is_too_early(const model_state& model, const messages::retain_request& request) const {
    if (!request.roll_back_to || !core_.recovering() || has_newer(model, *request.roll_back_to)) return false;
    return detail::none_of(model.meanwhile.changes, [&](const retention_change& each) {  // by another shard
      return each.request.roll_back_to == request.roll_back_to;
    });
  }
  /// `by`: the worker that wants it; null: an operator. `name`: who that is, for the log.
  [[nodiscard]] messages::status change(model_state& model, const worker_state* by,
                                        const messages::retain_request& request, const std::string& name) {
    messages::retention next = model.keeps;
    if (request.roll_back_to) {
      const version_number to = *request.roll_back_to;
      if (by != nullptr && by->held && by->held->version.value > to.value &&
          by->holding != holding::withdrawn && !is_void(model, by->held->version))
        return {errc::still_published, "version " + to_string(by->held->version) +
                                           " is still published by this worker: call unpublish() first"};
      if (!has_newer(model, to)) return {};
    }
    if (messages::status failure = apply(next, model, {request, model.latest_seen}); !failure.ok())
      return failure;
    if (by == nullptr || is_other(next, model.keeps)) note(model, request, name);
    if (core_.recovering() && model.meanwhile.changes.size() < most_changes_meanwhile)
      model.meanwhile.changes.push_back({request, model.latest_seen});
    adopt(model, next);
    tell_all(model);
    core_.retention_changed = true;
    return {};
  }
  void on(worker_state& worker, request_sequence sequence, const messages::offload_failed_request& request) {
    core_.answer(worker, sequence, messages::status_reply{});
    const auto found = worker.model->handovers.find(request.version);
    if (found == worker.model->handovers.end() || found->second.host != worker.replica->name) return;
    core_.log(log_level::warning, who(worker) + " cannot take version " + to_string(request.version) +
                                      " into its host memory: " + request.reason.sentence);
    found->second.failed.insert(worker.replica->name);
    found->second.unreadable += is_of_holder(request.reason.code) ? 1 : 0;
    choose_host(*worker.model, found->second);
  }

  /// Merges the retention that a joining worker knows from an earlier server: the higher revision wins while
  /// the server recovers, and a roll back stays one. Afterwards a joiner is believed only where the server
  /// knows of no retention, and withdraws no version of others.
  void learn(model_state& model, const messages::retention& told) {
    const bool is_believed =
        core_.recovering() || (model.keeps.revision == 0 && (told.rollbacks.empty() || model.workers == 0));
    if (!is_believed || !is_sound(told)) return;
    messages::retention next = told;
    const bool is_changed = core_.recovering() && !model.meanwhile.changes.empty();
    if (is_changed && told.revision > model.meanwhile.revision_told) {
      for (retention_change each : model.meanwhile.changes) {
        if (is_withdrawn(next, each.seen)) each.request.roll_back_to.reset();  // it is known
        static_cast<void>(apply(next, model, each));
      }
      next.revision = std::max(next.revision, model.keeps.revision) + 1;
    } else if (told.revision <= model.keeps.revision) {
      // What this server was told to retain meanwhile does not undo a roll back that it had not heard of.
      if (!core_.recovering() || told.rollbacks.empty() || !model.keeps.rollbacks.empty()) return;
      next = model.keeps;
      next.rollbacks = told.rollbacks;
      ++next.revision;
    }
    model.meanwhile.revision_told = std::max(model.meanwhile.revision_told, told.revision);
    adopt(model, next);
    tell_all(model);
  }
  void greet(const worker_state& worker) {
    if (worker.replica->temporary) remember_temporary(*worker.replica);
    if (worker.model->keeps.revision > 0)
      core_.send(worker.id, {}, messages::retention_push{worker.model->keeps});
  }

  [[nodiscard]] bool is_retained(const model_state& model, version_number version) const {
    if (is_void(model, version)) return false;
    if (is_pinned(model.keeps, version)) return true;
    std::uint32_t newer = 0;
    for (auto each = model.versions.rbegin(); each != model.versions.rend(); ++each) {
      if (newer >= model.keeps.keep_latest) return false;
      if (is_void(model, each->first)) continue;
      if (each->first <= version) return each->first == version && each->second.ever_complete;
      if (each->second.ever_complete) ++newer;
    }
    return false;
  }

  // ---- letting go

  /// Whether a replica may release the version that it holds. False: a handover has begun, or the server is
  /// recovering; ask again when `core::retention_changed` is set.
  [[nodiscard]] bool may_let_go(replica_state& replica, bool is_leaving) {
    model_state& model = *replica.model;
    // The server may not know yet which versions are retained, or which version the replica holds.
    if (core_.recovering(model) || misses_shard(replica)) return wait_to_let_go(replica);
    const version_number version = replica.complete;
    if (!version || replica.dropping || !is_retained(model, version) || has_spot(replica)) return true;
    if (has_heard_others(replica, version)) return true;
    if (count_others(replica, version) > 0)  // another one has it, unless its processes have just died
      return wait_to_let_go(replica);
    stop_relying_on(replica);
    const auto [position, fresh] = model.handovers.try_emplace(version);
    handover_state& handover = position->second;
    if (fresh) {
      handover.version = version;
      handover.from = replica.name;
    }
    if (is_leaving && handover.host == replica.name) handover.host.clear();
    if (is_leaving) handover.failed.insert(replica.name);
    if (handover.host.empty() && !handover.given_up) choose_host(model, handover);
    model.waits_to_let_go = model.waits_to_let_go || !handover.given_up;
    return handover.given_up;
  }
  /// A worker of this replica says that it holds its version: unless another call may release it, the replica
  /// does not ask any more. Recompute it afterwards.
  static void keep_on(replica_state& replica) {
    if (!may_ask(replica)) replica.letting_go = {};
  }
  /// The owner reclaimed the memory before a handover completed.
  void note_forced(const replica_state& replica, version_number version) {
    if (is_retained(*replica.model, version) && !has_spot(replica) && count_others(replica, version) == 0)
      note_lost(*replica.model, version,
                "its last holder '" + replica.name + "' had to release it at its deadline");
  }
  [[nodiscard]] static bool is_lost(const model_state& model, version_number version) {
    return model.lost.contains(version);
  }

  // ---- periodic work

  /// Replicas that have asked to let go, and hold their version after all, are relied upon again. They have
  /// time to ask once more before: a caller may repeat an update with a short time-out until its handover is
  /// complete.
  void rely_again(model_state& model) {
    for (const auto& [name, replica] : model.replicas) {
      letting_go_state& asked = replica->letting_go;
      if (!asked.version) continue;
      asked.unasked_since =
          may_ask(*replica) ? time_point::never() : std::min(asked.unasked_since, core_.now);
      if (core_.now < asked.unasked_since + core_.options.worker_timeout) continue;
      asked = {};
      versions_.recompute(*replica);
    }
  }
  /// Repeats orders, replaces hosts that are gone, and drops temporary replicas that are no longer needed.
  void look_after(model_state& model) {
    for (auto entry = model.handovers.begin(); entry != model.handovers.end();) {
      handover_state& handover = entry->second;
      const auto temporary = model.replicas.find(handover.temporary);
      const bool is_there = temporary != model.replicas.end() && !temporary->second->dropping &&
                            temporary->second->complete == handover.version;
      const auto from = model.replicas.find(handover.from);
      const bool is_wanted =
          from != model.replicas.end() && from->second->letting_go.version == handover.version;
      if (is_there || !is_wanted) {
        entry = model.handovers.erase(entry);
        continue;
      }
      if (!handover.given_up) order(model, handover);
      ++entry;
    }
    std::erase_if(model.temporaries, [&](const std::string& name) {
      const auto replica = model.replicas.find(name);
      if (replica == model.replicas.end() || !replica->second->temporary) return true;
      drop_if_unneeded(*replica->second);
      return false;
    });
  }

 private:
  /// A call of the replica waits to let go of its version, or may do so when there is a newer one.
  [[nodiscard]] static bool may_ask(const replica_state& replica) {
    const auto asks = [](const worker_state* w) { return w != nullptr && w->parting.parked; };
    const auto may_ask = [](const operation_state* each) { return !each->is_publish && !each->is_decided(); };
    return detail::any_of(replica.workers, asks) || detail::any_of(replica.open, may_ask);
  }
  /// Until it has let go, or does not ask any more. Otherwise two that let go at once would each take the
  /// other for the survivor.
  void stop_relying_on(replica_state& replica) {
    replica.letting_go = {.version = replica.complete};
    versions_.recompute(replica);
  }
  /// Returns false, as `may_let_go` does.
  bool wait_to_let_go(replica_state& replica) {
    replica.model->waits_to_let_go = true;
    if (replica.complete) stop_relying_on(replica);
    return false;
  }
  static void remember_temporary(const replica_state& replica) {
    const auto& replicas = replica.model->replicas;
    auto& names = replica.model->temporaries;
    if (names.size() >= replicas.size())  // they come from workers, which may join under ever new ones
      std::erase_if(names, [&](const std::string& name) { return !replicas.contains(name); });
    names.insert(replica.name);
  }
  /// A version above `to` may be valid. Those that were published after the last roll back and never became
  /// complete do not count while they are published: another shard of the same trainer has called first.
  [[nodiscard]] static bool has_newer(const model_state& model, version_number to) {
    const auto& rollbacks = model.keeps.rollbacks;
    if (model.latest_seen.line > last_line(model.keeps)) return true;       // nobody has told of its line
    if (!rollbacks.empty() && to.value < rollbacks.back().to) return true;  // of an earlier line
    const bool is_newer_seen = model.latest_seen.value > to.value && !is_void(model, model.latest_seen);
    const bool is_repeated = !rollbacks.empty() && rollbacks.back().to == to.value;
    if (!is_newer_seen || !is_repeated) return is_newer_seen;
    if (!model.versions.contains(model.latest_seen)) return true;  // its publishers are gone
    const auto is_underway = [&](const auto& entry) {
      const auto& [version, state] = entry;
      if (version.value <= to.value || is_void(model, version)) return true;
      for (std::uint32_t shard = 0; shard < model.shards; ++shard) {
        if (state.roots[shard] && !is_published(model, version, shard)) return false;
      }
      return !state.ever_complete;
    };
    return !detail::all_of(model.versions, is_underway);
  }
  [[nodiscard]] static bool is_published(const model_state& model, version_number version,
                                         std::uint32_t shard) {
    return detail::any_of(model.replicas, [&](const auto& entry) {
      const worker_state* worker = entry.second->workers[shard];
      return worker != nullptr && worker->publisher && worker->held && worker->held->version == version;
    });
  }
  /// `keeps` with this change; an error leaves it as it is.
  [[nodiscard]] static messages::status apply(messages::retention& keeps, const model_state& model,
                                              const retention_change& change) {
    const auto& [request, seen] = change;
    messages::retention next = keeps;
    if (request.keep_latest) next.keep_latest = *request.keep_latest;
    const version_number pin = request.pin.number();
    if (request.release) std::erase(next.pinned, request.release.number());
    if (pin && !is_pinned(next, pin))
      next.pinned.insert(std::upper_bound(next.pinned.begin(), next.pinned.end(), pin), pin);
    if (next.pinned.size() > limits::retained_versions || next.keep_latest > limits::retained_versions) {
      return {errc::limit_exceeded, "more than " + std::to_string(limits::retained_versions) +
                                        " versions of a model cannot be retained: release some"};
    }
    if (request.roll_back_to && !roll_back(next, *request.roll_back_to, seen))
      return {errc::limit_exceeded, "model '" + model.name + "' was rolled back " +
                                        std::to_string(limits::rollbacks) +
                                        " times, each time to a later version: go back to an earlier one"};
    ++next.revision;
    keeps = std::move(next);
    return {};
  }
  [[nodiscard]] static bool is_other(const messages::retention& next, const messages::retention& keeps) {
    return next.keep_latest != keeps.keep_latest || next.pinned != keeps.pinned ||
           next.rollbacks != keeps.rollbacks;
  }
  /// One line for each thing that was ordered.
  void note(const model_state& model, const messages::retain_request& request, const std::string& by) {
    const std::string name = "model '" + model.name + "'";
    const auto say = [&](log_level level, std::string sentence, version_number version) {
      core_.log(level, std::move(sentence), {.model = model.name, .version = version});
    };
    if (request.keep_latest)
      say(log_level::info,
          name + " retains its latest " + std::to_string(*request.keep_latest) + " versions, by order of " +
              by,
          {});
    for (const auto& [version, does] : {std::pair{request.pin, " was pinned by "},  //
                                        std::pair{request.release, " was released by "}}) {
      if (version) say(log_level::info, "version " + to_string(version) + " of " + name + does + by, version);
    }
    if (const auto to = request.roll_back_to)
      say(log_level::warning, name + " was rolled back to version " + to_string(*to) + " by " + by, *to);
  }
  void adopt(model_state& model, const messages::retention& keeps) {
    const bool rolls_back = model.keeps.rollbacks != keeps.rollbacks;
    model.keeps = keeps;
    if (rolls_back) core_.note_void(model);
  }
  /// What `change` could have made. (A revision at the end of all numbers could not be changed any more.)
  [[nodiscard]] static bool is_sound(const messages::retention& told) {
    return told.revision < UINT64_MAX / 2 && told.keep_latest <= limits::retained_versions &&
           told.pinned.size() <= limits::retained_versions &&
           std::is_sorted(told.pinned.begin(), told.pinned.end()) && tensorhub::is_sound(told.rollbacks);
  }
  void tell_all(const model_state& model) {
    for_each_worker(model, [&](const worker_state& worker) {
      core_.send(worker.id, {}, messages::retention_push{model.keeps});
    });
  }

  /// A shard of this replica has not joined, although the count may say that all workers of an earlier server
  /// are back. The replica may turn out to hold its version completely.
  [[nodiscard]] bool misses_shard(const replica_state& replica) const {
    if (!core_.recovering() || replica.model->before.back == 0) return false;
    const auto is_absent = [](const worker_state* w) { return w == nullptr; };
    const auto holds = [](const worker_state* w) { return w != nullptr && w->held; };
    return detail::any_of(replica.workers, is_absent) && detail::any_of(replica.workers, holds);
  }
  [[nodiscard]] static bool has_spot(const replica_state& replica) {
    return detail::any_of(replica.workers, [](const worker_state* w) { return w != nullptr && w->spot; });
  }
  [[nodiscard]] std::size_t count_others(const replica_state& replica, version_number version) const {
    const auto record = replica.model->versions.find(version);
    if (record == replica.model->versions.end()) return 0;
    return record->second.reliable_replicas.size() - record->second.reliable_replicas.count(&replica);
  }

  /// Another reliable replica has the version, and all its workers were heard lately.
  [[nodiscard]] bool has_heard_others(const replica_state& replica, version_number version) const {
    const auto record = replica.model->versions.find(version);
    return record != replica.model->versions.end() &&
           detail::any_of(record->second.reliable_replicas,
                          [&](const replica_state* other) { return other != &replica && is_heard(*other); });
  }
  [[nodiscard]] bool is_heard(const replica_state& replica) const {
    return detail::all_of(replica.workers,
                          [this](const worker_state* w) { return w != nullptr && core_.is_heard(*w); });
  }

  /// A replica could not take the version because it could not read it, not because of its own state.
  [[nodiscard]] static bool is_of_holder(errc code) noexcept {
    switch (code) {
      case errc::not_found:
      case errc::unavailable:
      case errc::timed_out:
      case errc::torn:
      case errc::group_failed:
      case errc::contract_broken:
      case errc::corrupt:
      case errc::source_lost:
        return true;
      default:
        return false;
    }
  }
  /// Between the shards that are the furthest from each other.
  [[nodiscard]] static locality distance_between(const replica_state& a, const replica_state& b) {
    locality out = locality::same_host;
    for (std::size_t i = 0; i < a.workers.size(); ++i) {
      if (a.workers[i] == nullptr || b.workers[i] == nullptr) continue;
      out = std::max(out, locality_between(a.workers[i]->location, b.workers[i]->location));
    }
    return out;
  }
  using host_rank = std::tuple<bool, bool, locality, std::size_t, std::size_t>;
  /// How suitable a replica is as the host of a version that `from` releases, the best first: one that has no
  /// older copy to end before; the nearest; and of equally near ones the one with the fewest handovers, then
  /// with the fewest leases.
  [[nodiscard]] static host_rank rank_of(const replica_state& host, const replica_state& from,
                                         version_number version) {
    const model_state& model = *host.model;
    const auto older = model.replicas.find(name_of_copy(host.name, version));
    const bool gives_one_up = older != model.replicas.end() && older->second->dropping;
    std::size_t handovers = 0;
    for (const auto& [number, other] : model.handovers) handovers += other.host == host.name ? 1 : 0;
    std::size_t leases = 0;
    for (const worker_state* worker : host.workers)
      leases += worker->as_source.readers.size() + worker->as_reader.leases.size();
    return {gives_one_up, &host != &from, distance_between(host, from), handovers, leases};
  }

  /// Sets `host`, or `given_up` if no replica can be the host.
  void choose_host(model_state& model, handover_state& handover) {
    handover.host.clear();
    core_.retention_changed = true;
    if (handover.unreadable >= most_unreadable) {
      return give_up(model, handover,
                     "its last holder '" + handover.from + "' releases it, and " +
                         std::to_string(handover.unreadable) +
                         " replicas in turn could not read it there: no other one is asked (look at the "
                         "holder's network)");
    }
    const auto fits = [&](const replica_state& replica) {
      return !replica.temporary && !handover.failed.contains(replica.name) &&
             name_of_copy(replica.name, handover.version) != handover.from &&  // has it, and lets go of it
             detail::all_of(replica.workers, [](const worker_state* w) {
               return w != nullptr && !w->spot && !w->parting.leaving && !w->is_barred_as_source();
             });
    };
    const replica_state* best = nullptr;
    host_rank best_rank;
    const auto from = model.replicas.find(handover.from);
    for (const auto& [name, replica] : model.replicas) {
      if (from == model.replicas.end() || !fits(*replica)) continue;
      const host_rank rank = rank_of(*replica, *from->second, handover.version);
      if (best != nullptr && best_rank <= rank) continue;
      best = replica.get();
      best_rank = rank;
    }
    if (best != nullptr) {
      handover.host = best->name;
      handover.temporary = name_of_copy(best->name, handover.version);
      core_.log(log_level::info, "version " + to_string(handover.version) + " of model '" + model.name +
                                     "' is handed over by '" + handover.from + "': '" + handover.host +
                                     "' takes it into host memory");
      return order(model, handover);
    }
    give_up(model, handover,
            "its last holder '" + handover.from + "' releases it, and no other reliable replica can take it");
  }
  void give_up(model_state& model, handover_state& handover, const std::string& why) {
    handover.given_up = true;
    note_lost(model, handover.version, why);
  }
  void note_lost(model_state& model, version_number version, const std::string& why) {
    if (!model.lost.insert(version).second) return;
    if (model.lost.size() > limits::retained_versions) model.lost.erase(model.lost.begin());
    core_.log(log_level::error, "the retained version " + to_string(version) + " of model '" + model.name +
                                    "' is lost: " + why);
  }

  void order(model_state& model, handover_state& handover) {
    const auto host = model.replicas.find(handover.host);
    const bool is_whole =
        host != model.replicas.end() && detail::all_of(host->second->workers, [](const worker_state* w) {
          return w != nullptr && !w->parting.leaving;
        });
    if (!is_whole) {
      handover.failed.insert(handover.host);
      if (!handover.host.empty()) choose_host(model, handover);
      return;
    }
    for (const worker_state* worker : host->second->workers)
      core_.send(worker->id, {}, messages::offload_push{handover.version, handover.temporary});
  }

  void drop_if_unneeded(replica_state& replica) {
    if (!replica.dropping) {
      note_abandoned(replica);
      if (core_.recovering(*replica.model) || is_needed(replica)) return;
      replica.dropping = true;
      versions_.recompute(replica);
    }
    for (const worker_state* worker : replica.workers) {
      if (worker != nullptr) core_.send(worker->id, {}, messages::drop_push{});
    }
  }
  /// Of a temporary replica.
  [[nodiscard]] bool is_needed(const replica_state& replica) const {
    const model_state& model = *replica.model;
    const version_number version = replica.complete;
    if (!version) {
      return model.waits_to_let_go || core_.now < replica.abandoned_since + core_.options.worker_timeout;
    }
    // Of a version that nobody else may read, the record may have been forgotten.
    const auto record = model.versions.find(version);
    const bool elsewhere = record != model.versions.end() &&
                           detail::any_of(record->second.reliable_replicas, [&](const replica_state* other) {
                             return !other->temporary && is_heard(*other);
                           });
    return is_retained(model, version) && !elsewhere;
  }
  /// A temporary replica that is incomplete belongs to a handover, or one of its processes has died: then
  /// nobody completes it. (A copy may still be finished after its handover has ended at a deadline.)
  void note_abandoned(replica_state& replica) const {
    const bool is_abandoned = !replica.complete && !may_complete(replica) && !has_readable(replica);
    replica.abandoned_since =
        is_abandoned ? std::min(replica.abandoned_since, core_.now) : time_point::never();
  }
  [[nodiscard]] bool may_complete(const replica_state& replica) const {
    const auto is_about_it = [&](const auto& entry) { return entry.second.temporary == replica.name; };
    return core_.recovering(*replica.model) || !replica.open.empty() ||
           detail::any_of(replica.model->handovers, is_about_it);
  }
  /// Single shards of a retained version can be read: the policy decides for each worker alone.
  [[nodiscard]] bool has_readable(const replica_state& replica) const {
    return !core_.policy.decides_per_group && detail::any_of(replica.workers, [&](const worker_state* w) {
      return w != nullptr && w->holds() && is_retained(*replica.model, w->held->version);
    });
  }

  static constexpr std::uint32_t most_unreadable = 3;  ///< replicas that try in turn to read from one holder

  static constexpr std::size_t most_changes_meanwhile = 256;  // clients may send as many as they like

  core& core_;
  versions& versions_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
