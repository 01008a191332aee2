#pragma once
/// \file retained_versions.hpp
/// Contract 4: which versions the reliable processes of a history really hold, whatever the server believes.
///
/// A version is safe while all shards of some replica hold it, in processes that live and are not spot. If a
/// version stops being safe, a process must have been killed or cut short by a deadline; otherwise the server
/// has allowed the loss.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/session.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

template <typename Worker>
class retained_versions {
 public:
  /// `patience`: how long the server may believe in a worker that it has heard: two heartbeats.
  explicit retained_versions(duration patience) : patience_{patience} {}

  /// This worker ends, or gives up its memory, without permission: the server may rely on it for a while.
  void excuse(time_point now, const session& worker) {
    if (worker.held()) excuse(now, worker.held()->version);
    excuse_replica(now, worker.options().replica);
  }
  void excuse(time_point now, version_number version) { excused_[version] = now + patience_; }
  void excuse_all(time_point now) {
    for (const auto& [version, by] : safe_) excuse(now, version);
  }

  /// The server has declared this worker dead; the worker may not know it yet.
  void condemn(time_point now, const session& worker) {
    condemned_.insert(worker.self());
    excuse(now, worker);
  }

  [[nodiscard]] bool is_condemned(incarnation worker) const { return condemned_.contains(worker); }
  /// A new server knows of no such verdict and lets every worker join again.
  void forget_verdicts() { condemned_.clear(); }

  /// Calls `vanished(version, replicas)` for each version that was safe at the last call, is not safe now,
  /// and has no excuse. `is_retained(version)`: it was promised (promised_retention.hpp). `agrees(worker)`:
  /// it has told the server what it holds, and makes no call. `counts(worker, version)`: the server says that
  /// it counts on this worker's replica for the version.
  template <typename Retained, typename Agrees, typename Counts, typename Vanished>
  void look(time_point now, const std::vector<std::unique_ptr<Worker>>& workers, std::uint32_t shards,
            Retained&& is_retained, Agrees&& agrees, Counts&& counts, Vanished&& vanished) {
    std::map<std::pair<std::string, version_number>, holders> held;
    std::map<version_number, std::string> safe;
    std::set<version_number> counted;
    std::set<version_number> agreed;
    for (const auto& worker : workers) {
      if (!worker->alive()) continue;
      const session& core = worker->core();
      if (core.fatal()) excuse_replica(now, core.options().replica);
      const version_number version = shown_by(*worker);
      if (!version || core.options().spot || core.fatal() || condemned_.contains(core.self())) continue;
      holders& replica = held[{core.options().replica, version}];
      replica.agreeing += agrees(*worker) ? 1 : 0;
      if (++replica.all < shards) continue;
      safe[version] += (safe.contains(version) ? ", " : "") + core.options().replica;
      if (replica.agreeing == shards) agreed.insert(version);
      if (replica.agreeing == shards || counts(core.self(), version)) counted.insert(version);
      holders_[core.options().replica] = version;
    }
    for (const auto& [version, by] : safe_) {
      // What counts is the moment at which the server let the last holder go, which may use that late.
      if (counted.contains(version)) released_.erase(version);
      const time_point permitted = released_.try_emplace(version, now).first->second;
      if (safe.contains(version)) continue;
      released_.erase(version);
      if (protected_.contains(version) && excused_[version] < permitted) vanished(version, by);
    }
    // The version was retained late: its holder may have had permission to give it up before.
    for (const auto& [version, by] : safe) {
      if (!is_retained(version))
        protected_.erase(version);
      else if (agreed.contains(version))
        protected_.try_emplace(version, now);
    }
    std::erase_if(protected_, [&](const auto& each) { return !safe.contains(each.first); });
    safe_ = std::move(safe);
  }
  /// Calls `visit(version, since)` for each retained version that must not vanish without an excuse.
  template <typename Visitor>
  void for_each_protected(Visitor&& visit) const {
    for (const auto& [version, since] : protected_) visit(version, since);
  }

 private:
  struct holders {
    std::uint32_t all = 0;
    std::uint32_t agreeing = 0;
  };
  /// The bytes stay until the keys are revoked. Only the end of the call, which may be an installation, says
  /// whether it was forced.
  [[nodiscard]] version_number shown_by(const Worker& worker) {
    version_number& last = shown_[worker.core().self()];
    const bool goes = worker.core().is_revoking() || worker.is_installing();
    if (worker.shown() || !goes) last = worker.shown();
    return last;
  }
  void excuse_replica(time_point now, const std::string& replica) {
    if (const auto known = holders_.find(replica); known != holders_.end()) excuse(now, known->second);
  }

  duration patience_;
  std::map<incarnation, version_number> shown_;  ///< at the last call, by worker
  std::map<version_number, std::string> safe_;   ///< with the replicas that hold each
  /// Of the safe versions: those that are retained and that the server must know as held, since when.
  std::map<version_number, time_point> protected_;
  /// Of the safe versions that no replica counts for: since when.
  std::map<version_number, time_point> released_;
  std::set<incarnation> condemned_;
  std::map<version_number, time_point> excused_;   ///< with the end of the excuse
  std::map<std::string, version_number> holders_;  ///< the version that each replica last held completely
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
