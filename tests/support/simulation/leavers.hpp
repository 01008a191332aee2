#pragma once
/// \file leavers.hpp
/// Retention in a simulated history: pinned versions, processes that take versions into their host memory,
/// and processes that leave within a grace period.

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/session.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// A part of `simulation` (world.hpp) and its friend.
template <typename World>
class simulated_leavers {
 public:
  using worker_type = typename World::worker_type;
  using place = std::pair<std::string, std::uint32_t>;  ///< replica and shard

  explicit simulated_leavers(World& world) : world_{&world} {}

  /// Copies a version into the host memory of a worker's process, as `offloads` does: touches fresh memory,
  /// and then receives as long as something arrives.
  void offload(worker_type& host, version_number version, const std::string& replica) {
    const place where{replica, host.shard().index};
    if (world_->at(where) != nullptr || touching_.contains(where)) return;
    ++world_->statistics_.offloads;
    if (!world_->over() && world_->events_.chance(world_->options_.no_room))
      return refuse(host, version, {errc::limit_exceeded, "no memory"});
    touching_.insert(where);
    const duration touches =
        static_cast<std::int64_t>(world_->shape_.bytes()) * time_per_byte(world_->events_);
    world_->events_.after(touches, [this, &host, version, where] { receive(host, version, where); });
  }
  void drop(worker_type& holder) {
    if (world_->log) world_->note(holder.name() + " is to be dropped");
    if (!dropping_.insert(holder.core().self()).second) return;
    leave_with_grace(holder, std::chrono::milliseconds{200}, [this, &holder] {
      if (holder.alive()) world_->end_process(holder);
    });
  }
  /// Does what `worker::leave` does: cancels a running update and waits for the end of the running call,
  /// hands over the held versions, and leaves, all by one deadline. Then calls `done`.
  void leave_with_grace(worker_type& worker, duration patience, std::function<void()> done) {
    if (world_->log) world_->note(worker.name() + " is to leave");
    const time_point until = world_->events_.now() + patience;
    leaving_.insert(&worker);
    if (worker.core().busy()) ++world_->statistics_.processes.busy_leavers;
    worker.core().make_way(world_->events_.now(), until);
    worker.settle();
    when_idle(worker, until, std::move(done));
  }
  /// It makes no other calls any more.
  [[nodiscard]] bool is_leaving(const worker_type& worker) const { return leaving_.contains(&worker); }
  /// All processes of a rollout replica leave within a grace period, and new ones replace them. The processes
  /// of other replicas may do the same at that time.
  void retire_random_replica() {
    const place& chosen = world_->rollouts_[world_->events_.below(world_->rollouts_.size())];
    retire(chosen);
    if (!world_->events_.chance(world_->options_.leave_together)) return;
    for (const place& other : world_->rollouts_) {
      if (other.first != chosen.first && other.second == 0) retire(other);
    }
  }
  void retain(worker_type& worker, messages::retain_request change) {
    world_->promises_.retained.begins(change);
    world_->call(
        worker, "retain", std::chrono::milliseconds{400},
        [change](session& core, time_point now, time_point deadline) {
          return core.retain(now, change, deadline);
        },
        [this, &worker, change](const session_result& result) {
          if (result.outcome.ok() && world_->uses_current_server(worker))
            world_->promises_.retained.succeeded(world_->events_.now(), change, worker.core().self());
        });
  }
  /// A replica that could have had this version in its host memory, all the time since then; empty: none.
  /// Three replicas that could not read it at its holder are enough for the server.
  [[nodiscard]] std::string able_host(version_number version, time_point since) const {
    std::map<std::string, std::uint32_t> able;
    for (const auto& [where, worker] : world_->places_) {
      const session& core = worker->core();
      const bool is_able = worker->alive() && !worker->paused() && !is_leaving(*worker) &&
                           world_->uses_current_server(*worker) && core.joined() && !core.fatal() &&
                           !core.options().spot && !core.options().temporary &&
                           std::max(worker->started(), worker->running_since()) < since &&
                           world_->operator_.is_free_since(where.first, since);
      if (is_able && ++able[where.first] == world_->options_.shards && !has_refused(where.first, version))
        return unreadable_.contains(version) && unreadable_.at(version).size() >= 3 ? "" : where.first;
    }
    return {};
  }
  void pin_for_a_while(worker_type& worker, version_number version) {
    retain(worker, {{}, version, {}});
    world_->events_.after(
        world_->events_.between(std::chrono::milliseconds{20}, std::chrono::milliseconds{600}),
        [this, version] {
          worker_type* present = world_->at({World::trainer, 0});
          if (present != nullptr) retain(*present, {{}, {}, version});
        });
  }

 private:
  void refuse(worker_type& host, version_number version, const messages::status& why) {
    const std::string& replica = host.core().options().replica;
    refused_.insert({replica, version});
    if (why.code != errc::limit_exceeded && why.code != errc::cancelled) unreadable_[version].insert(replica);
    if (!host.alive()) return;
    host.core().offload_failed(world_->events_.now(), version, why);
    host.settle();
  }
  [[nodiscard]] bool has_refused(const std::string& replica, version_number version) const {
    return refused_.contains({replica, version});
  }
  /// The memory of the copy was touched.
  void receive(worker_type& host, version_number version, const place& where) {
    if (host.alive() && host.paused()) {
      world_->events_.after(look_interval, [this, &host, version, where] { receive(host, version, where); });
      return;
    }
    touching_.erase(where);
    if (!host.alive() || is_leaving(host))
      return refuse(host, version, {errc::cancelled, "the process ends"});
    worker_type& holder = world_->spawn(where, host.core().self());
    world_->owners_[holder.core().self()] = host.core().self();
    const session_ticket ticket = world_->call(
        holder, "update of a temporary replica", std::chrono::hours{24},  // progress decides
        [&holder, version](session&, time_point, time_point) {
          return holder.update(exactly(version), std::chrono::hours{24});
        },
        [this, &holder, &host, version](const session_result& result) {
          if (result.outcome.ok()) {
            ++world_->statistics_.handed_over;
            return;
          }
          world_->events_.after(duration{0}, [this, &holder] {
            if (holder.alive()) world_->end_process(holder);
          });
          refuse(host, version, result.outcome);
        });
    look_at_progress(holder, ticket, 0, world_->events_.now());
  }
  void look_at_progress(worker_type& holder, session_ticket ticket, std::uint64_t chunks,
                        time_point advanced) {
    world_->events_.after(std::chrono::milliseconds{10}, [this, &holder, ticket, chunks, advanced] {
      if (!holder.alive() || !world_->calls_.is_open(holder.core().self(), ticket)) return;
      const std::uint64_t seen = holder.confirmed_chunks();
      const bool is_whole = seen >= world_->shape_.chunk_count();  // waits for other shards
      const time_point now = world_->events_.now();
      const time_point last = is_whole || seen > chunks ? now : advanced;
      if (now - last > longest_silence && !holder.paused()) {
        holder.core().cancel(now, ticket);
        holder.settle();
      }
      look_at_progress(holder, ticket, seen, last);
    });
  }
  void retire(const place& chosen) {
    for (std::uint32_t shard = 0; shard < world_->options_.shards; ++shard) {
      const place where{chosen.first, shard};
      worker_type* worker = world_->at(where);
      if (worker == nullptr || !worker->core().joined() || is_leaving(*worker)) continue;
      ++world_->statistics_.retired;
      leave_with_grace(*worker, std::chrono::milliseconds{300}, [this, worker, where] {
        if (worker->alive()) world_->end_process(*worker);
        world_->spawn_later(where, std::chrono::milliseconds{200});
      });
    }
  }
  void when_idle(worker_type& worker, time_point until, std::function<void()> done) {
    if (!worker.alive()) return done();
    const time_point now = world_->events_.now();
    if (!worker.core().busy() && !worker.paused()) return hand_over(worker, until, std::move(done));
    if (now >= until && !worker.paused()) {
      world_->retained_.excuse(now, worker.core());
      worker.core().abandon(now);
      worker.settle();
      return done();
    }
    world_->events_.after(look_interval, [this, &worker, until, done] { when_idle(worker, until, done); });
  }
  void hand_over(worker_type& worker, time_point until, std::function<void()> done) {
    const version_number held = worker.core().held() ? worker.core().held()->version : version_number{};
    const duration left = std::max(until - world_->events_.now(), duration{0});
    world_->call(
        worker, "unpublish before leaving", left,
        [](session& core, time_point now, time_point deadline) {
          return core.unpublish(now, deadline, true);
        },
        [this, &worker, held, done](const session_result& result) {
          if (result.forced) world_->retained_.excuse(world_->events_.now(), held);
          if (!worker.alive()) return done();
          world_->call(
              worker, "leave", std::chrono::milliseconds{500},
              [](session& core, time_point now, time_point deadline) { return core.leave(now, deadline); },
              [this, done](const session_result&) { world_->events_.after(duration{0}, done); });
        });
  }

  static constexpr duration longest_silence = std::chrono::milliseconds{800};
  static constexpr duration look_interval = std::chrono::microseconds{200};

  World* world_;
  std::set<place> touching_;  ///< temporary replicas whose memory is being touched
  std::set<std::pair<std::string, version_number>> refused_;    ///< by replica
  std::map<version_number, std::set<std::string>> unreadable_;  ///< likewise, for the holder's sake
  std::set<incarnation> dropping_;
  std::set<const worker_type*> leaving_;  ///< also those that have left
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
