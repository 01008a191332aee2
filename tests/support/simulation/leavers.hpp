#pragma once
/// \file leavers.hpp
/// Retention in a simulated history: pinned versions, processes that take versions into their host memory,
/// and processes that leave within a grace period.

#include <chrono>
#include <functional>
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

  /// Copies a version into the host memory of a worker's process.
  void offload(worker_type& host, version_number version, const std::string& replica) {
    const place where{replica, host.shard().index};
    if (world_->at(where) != nullptr) return;
    ++world_->statistics_.offloads;
    const auto fail = [this, &host, version](const messages::status& why) {
      if (!host.alive()) return;
      host.core().offload_failed(world_->events_.now(), version, why);
      host.settle();
    };
    if (!world_->over() && world_->events_.chance(world_->options_.no_room))
      return fail({errc::limit_exceeded, "no memory"});
    worker_type& holder = world_->spawn(where, host.core().self());
    world_->owners_[holder.core().self()] = host.core().self();
    world_->call(
        holder, "update of a temporary replica", std::chrono::milliseconds{800},
        [&holder, version](session&, time_point, time_point) {
          return holder.update(exactly(version), std::chrono::milliseconds{800});
        },
        [this, &holder, fail](const session_result& result) {
          if (result.outcome.ok()) {
            ++world_->statistics_.handed_over;
            return;
          }
          world_->events_.after(duration{0}, [this, &holder] {
            if (holder.alive()) world_->end_process(holder);
          });
          fail(result.outcome);
        });
  }
  void drop(worker_type& holder) {
    if (world_->log) world_->note(holder.name() + " is to be dropped");
    if (!dropping_.insert(holder.core().self()).second) return;
    leave_with_grace(holder, std::chrono::milliseconds{200}, [this, &holder] {
      if (holder.alive()) world_->end_process(holder);
    });
  }
  /// Hands over the held versions and leaves; then calls `done`.
  void leave_with_grace(worker_type& worker, duration patience, std::function<void()> done) {
    if (world_->log) world_->note(worker.name() + " is to leave");
    const version_number held = worker.core().held() ? worker.core().held()->version : version_number{};
    world_->call(
        worker, "unpublish before leaving", patience,
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
    world_->call(
        worker, "retain", std::chrono::milliseconds{400},
        [change](session& core, time_point now, time_point deadline) {
          return core.retain(now, change, deadline);
        },
        [](const auto&) {});
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
  void retire(const place& chosen) {
    for (std::uint32_t shard = 0; shard < world_->options_.shards; ++shard) {
      const place where{chosen.first, shard};
      worker_type* worker = world_->at(where);
      if (worker == nullptr || worker->core().busy() || !worker->core().joined()) continue;
      ++world_->statistics_.retired;
      leave_with_grace(*worker, std::chrono::milliseconds{300}, [this, worker, where] {
        if (worker->alive()) world_->end_process(*worker);
        world_->spawn_later(where, std::chrono::milliseconds{200});
      });
    }
  }
  World* world_;
  std::set<incarnation> dropping_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
