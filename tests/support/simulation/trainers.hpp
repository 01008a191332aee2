#pragma once
/// \file trainers.hpp
/// The trainer group of a simulated history: each shard publishes a version, keeps it published for a while,
/// unpublishes it, changes every byte, and meets the other shards. Some versions are filled while they are
/// open, chunk by chunk, and some of those are given up.
///
/// Some trainers are killed in the middle or leave in order; another process replaces each. The last version
/// stays published: it is published when all shards are present, after the last fault.

#include <chrono>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "support/simulation/event_queue.hpp"
#include "support/simulation/options.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/rollbacks.hpp"
#include "tensorhub/service/session.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// A part of `simulation` (world.hpp) and its friend.
template <typename World>
class simulated_trainers {
 public:
  using worker_type = typename World::worker_type;

  explicit simulated_trainers(World& world) : world_{&world} {}

  /// A shard has taken this version back before it was whole.
  [[nodiscard]] bool has_given_up(version_number version) const { return given_up_.contains(version); }

  /// What is valid, by the calls of the trainer that have succeeded.
  [[nodiscard]] const messages::retention& valid() const noexcept { return valid_; }
  /// The trainer has gone back behind this version, or is about to: its call has not returned yet.
  [[nodiscard]] bool has_withdrawn(version_number version) const {
    return is_void(valid_, version) || (goes_back_to_ && version.value > goes_back_to_.value);
  }

  /// One step of one shard. `last`: the version stays published.
  void train(std::uint32_t shard, version_number version, bool last) {
    worker_type* worker = world_->at({World::trainer, shard});
    if (worker == nullptr) return meet(shard, version);  // the others publish without it
    if (worker->paused()) return soon([this, shard, version, last] { train(shard, version, last); });
    if (shard == 0) ++world_->statistics_.versions;
    world_->promises_.retained.publishes(version);
    if (!last && is_filled(version)) return open(*worker, shard, version);
    worker->write_version(version);
    publish(worker, shard, version, last);
  }

 private:
  /// It joins again when its keys are revoked, or has done so already. `self`: as which it called.
  [[nodiscard]] static bool was_declared_dead(const worker_type& worker, incarnation self,
                                              const session_result& result) {
    const session& core = worker.core();
    return result.outcome.code == errc::replaced || core.may_return() ||
           (core.fatal() && core.is_revoking()) || core.self() != self;
  }

  /// All shards do the same.
  [[nodiscard]] bool is_filled(version_number version) const {
    return world_->options_.fills() && version.value % 2 == 0;
  }
  [[nodiscard]] static bool is_given_up(version_number version) { return version.value % 8 == 6; }
  /// In the middle, or when only the last word is missing.
  [[nodiscard]] chunk_index given_up_at(version_number version) const {
    const chunk_index all = world_->shape_.chunk_count();
    return version.value % 16 == 6 ? all / 2 : all;
  }
  void open(worker_type& worker, std::uint32_t shard, version_number version) {
    world_->call(
        worker, "open", std::chrono::seconds{2},
        [&worker, version](session&, time_point, time_point) {
          return worker.open(version, std::chrono::seconds{2});
        },
        [this, &worker, shard, version, self = worker.core().self()](const session_result& result) {
          if (result.outcome.ok()) return fill(worker, shard, version, 0);
          if (!was_declared_dead(worker, self, result))
            world_->violate({rule::trainers, "open failed: " + result.outcome.sentence});
          meet(shard, version);
        });
  }
  void fill(worker_type& worker, std::uint32_t shard, version_number version, chunk_index chunk) {
    event_queue& events = world_->events_;
    if (!worker.alive()) return meet(shard, version);
    if (worker.paused())
      return soon([this, &worker, shard, version, chunk] { fill(worker, shard, version, chunk); });
    const bool is_open = worker.core().is_open() && worker.core().held()->version == version;
    if (!is_open) {  // it was declared dead meanwhile, and publishes the whole version when it is back
      worker.write_version(version);
      return publish(&worker, shard, version, false);
    }
    if (is_given_up(version) && chunk == given_up_at(version)) {
      given_up_.insert(version);
      return take_back(worker, shard, version);
    }
    if (chunk == world_->shape_.chunk_count()) return publish(&worker, shard, version, false);
    worker.fill(version, chunk);
    events.after(events.between(duration{0}, std::chrono::milliseconds{4}),
                 [this, &worker, shard, version, chunk] { fill(worker, shard, version, chunk + 1); });
  }

  void publish(worker_type* worker, std::uint32_t shard, version_number version, bool last) {
    world_->call(
        *worker, "publish", std::chrono::seconds{2},
        [worker, version](session&, time_point, time_point) {
          return worker->publish(version, std::chrono::seconds{2});
        },
        [this, worker, shard, version, last, self = worker->core().self()](const session_result& result) {
          if (result.outcome.ok()) return published(*worker, shard, version, last);
          // A process that missed one of its group's calls may not know that after the end of a server.
          const bool out_of_step = world_->servers_fail() && result.outcome.code == errc::group_failed;
          if (out_of_step) ++world_->statistics_.refused_publishes;
          if (!was_declared_dead(*worker, self, result) && !out_of_step)
            world_->violate({rule::trainers, "publish failed: " + result.outcome.sentence});
          meet(shard, version);
        });
  }

  void published(worker_type& worker, std::uint32_t shard, version_number version, bool last) {
    const simulation_options& options = world_->options_;
    if (shard == 0) last_published_ = version;
    if (shard == 0 && options.keep_latest > 0 && version.value % 8 == 1)
      world_->leavers_.retain(worker, {options.keep_latest, {}, {}});
    if (shard == 0 && !world_->over() && world_->events_.chance(options.pins))
      world_->leavers_.pin_for_a_while(worker, version);
    if (last) {
      world_->finale_.version = version;
      return;
    }
    world_->events_.after(
        world_->events_.between(std::chrono::milliseconds{1}, std::chrono::milliseconds{60}),
        [this, &worker, shard, version] { take_back(worker, shard, version); });
  }

  void take_back(worker_type& worker, std::uint32_t shard, version_number version) {
    event_queue& events = world_->events_;
    if (!worker.alive()) return meet(shard, version);
    if (worker.paused()) return soon([this, &worker, shard, version] { take_back(worker, shard, version); });
    if (events.chance(world_->options_.trainer.careless))
      worker.scribble();  // breaks the contract: readers must detect it
    const bool exits = !world_->over() && events.chance(world_->options_.trainer.exits);
    const bool politely = exits && events.chance(0.5);
    if (exits && !politely) {
      events.after(events.between(duration{0}, std::chrono::milliseconds{4}), [this, &worker] {
        ++world_->statistics_.trainers.exits;
        if (worker.alive()) world_->kill(World::place_of(worker.core()));
      });
    }
    world_->call(
        worker, "unpublish", world_->options_.unpublish_timeout,
        [](session& core, time_point now, time_point deadline) { return core.unpublish(now, deadline); },
        [this, &worker, shard, version, politely](const session_result& result) {
          if (!worker.alive()) return meet(shard, version);
          if (!result.outcome.ok())
            world_->violate({rule::trainers, "unpublish failed: " + result.outcome.sentence});
          if (result.forced) world_->retained_.excuse(world_->events_.now(), version);
          if (result.forced)
            ++world_->statistics_.forced_drains;
          else if (!worker.core().fatal())
            world_->check_drained(worker);
          worker.check_unread("its trainer changes them");
          worker.scribble();
          if (politely) return leave(worker, shard, version);
          meet(shard, version);
        });
  }

  /// A stopped process makes its call when it goes on, perhaps before it hears that it was declared dead.
  template <typename Call>
  void soon(Call call) {
    world_->events_.after(world_->events_.between(duration{0}, std::chrono::milliseconds{2}),
                          std::move(call));
  }

  /// The process leaves and ends, perhaps while the other shards still drain; another one replaces it.
  void leave(worker_type& worker, std::uint32_t shard, version_number version) {
    ++world_->statistics_.trainers.exits;
    world_->call(
        worker, "leave", std::chrono::milliseconds{500},
        [](session& core, time_point now, time_point deadline) { return core.leave(now, deadline); },
        [this, &worker, shard, version](const session_result&) {
          if (worker.alive()) {
            world_->events_.after(duration{0}, [this, &worker] { world_->end_process(worker); });
            world_->spawn_later({World::trainer, shard}, std::chrono::milliseconds{200});
          }
          meet(shard, version);
        });
  }

  /// A trainer group is synchronous: all shards finish a step before the next begins.
  void meet(std::uint32_t shard, version_number version) {
    waiting_.push_back(shard);
    if (waiting_.size() < world_->options_.shards) return;
    waiting_.clear();
    const bool last = world_->over();
    if (!last && last_published_ == version && version.value > 4 &&
        world_->events_.chance(world_->options_.trainer.rollbacks))
      return roll_back({version.value - 1 - world_->events_.below(3)});
    step(after(version), last, last && !world_->settled() ? world_->options_.settling : duration{0});
  }
  [[nodiscard]] version_number after(version_number version) const {
    return valid_version(valid_, {version.value + 1});
  }

  /// The group goes back to this version, by a call of its first shard, which repeats itself.
  void roll_back(version_number to) {
    const auto again = [this, to] {
      world_->events_.after(std::chrono::milliseconds{20}, [this, to] { roll_back(to); });
    };
    worker_type* worker = world_->at({World::trainer, 0});
    if (worker == nullptr || worker->paused() || worker->core().fatal()) return again();
    goes_back_to_ = to;
    world_->call(
        *worker, "roll back", std::chrono::milliseconds{400},
        [to](session& core, time_point now, time_point deadline) {
          return core.retain(now, {{}, {}, {}, to}, deadline);
        },
        [this, to, again](const session_result& result) {
          if (!result.outcome.ok()) return again();
          goes_back_to_ = {};
          ++world_->statistics_.trainers.rollbacks;
          if (!tensorhub::roll_back(valid_, to, {}))
            world_->violate({rule::trainers, "the trainer goes back too often"});
          step(after(to), world_->over(), duration{0});
        });
  }

  void step(version_number version, bool last, duration pause) {
    if (last && pause == duration{0} && !is_whole()) pause = std::chrono::milliseconds{50};
    if (pause != duration{0})
      return world_->events_.after(pause, [this, version, last] { step(version, last, duration{0}); });
    for (std::uint32_t shard = 0; shard < world_->options_.shards; ++shard)
      world_->events_.after(world_->network_.delay(),
                            [this, shard, version, last] { train(shard, version, last); });
  }
  /// All shards are present, and none is about to learn that it was declared dead.
  [[nodiscard]] bool is_whole() const {
    for (std::uint32_t shard = 0; shard < world_->options_.shards; ++shard) {
      const worker_type* worker = world_->at({World::trainer, shard});
      if (worker == nullptr || worker->paused() || worker->core().fatal()) return false;
    }
    return true;
  }

  World* world_;
  messages::retention valid_;
  version_number goes_back_to_;         ///< by a call that has not succeeded yet; zero: there is none
  version_number last_published_;       ///< by the first shard
  std::vector<std::uint32_t> waiting_;  ///< shards that have finished the step
  std::set<version_number> given_up_;   ///< before they were whole
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
