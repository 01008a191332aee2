#pragma once
/// \file world.hpp
/// One simulated history: a reference server, a trainer group and rollout replicas, with seeded delays,
/// reordering between connections, lost connections and killed processes; the contract is checked after every
/// event.
///
///     tensorhub::testing::simulation<> history{{.seed = 17}};
///     history.run();
///     for (const std::string& broken : history.violations()) ...  // each names seed, time and rule
///
/// What is checked (numbers of DESIGN section 2):
///   1  an unforced unpublish ends with no lease left on the worker; bytes of a worker change only after its
///      epoch was raised
///   2  every accepted chunk has its version's bytes; whoever shows a version holds exactly its bytes
///   3  the shards of a replica get one version per operation, and an update succeeds for all of them or for
///      none
///   6  every call ends by its deadline (and the time that one answer needs)
/// and that no worker both serves new readers and reads, so that leases form no cycle.

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/policy/integrity/xxh3_128.hpp"
#include "tensorhub/service/catalog.hpp"
#include "tensorhub/testing/simulation/worker.hpp"

namespace tensorhub::testing {

struct simulation_options {
  std::uint64_t seed = 1;
  std::uint32_t shards = 2;
  std::size_t rollouts = 3;
  duration length = std::chrono::seconds{3};  ///< of virtual time during which calls are started
  double connection_losses_per_second = 1.0;  ///< over all control connections
  double kills_per_second = 0.3;  ///< of rollout workers; a new process takes the place after a while
  double careless_trainer = 0.0;  ///< chance per version that a trainer overwrites without unpublish
  duration unpublish_timeout = std::chrono::milliseconds{100};
};

struct simulation_statistics {
  std::uint64_t events = 0;
  std::uint64_t versions = 0;
  std::uint64_t updates = 0;  ///< successful calls that moved bytes
  std::uint64_t kept = 0;
  std::uint64_t failed = 0;  ///< calls that ended in a named error
  std::uint64_t forced_drains = 0;
  std::uint64_t chunks = 0;
  std::uint64_t kills = 0;
  std::uint64_t lost_connections = 0;
  simulation_statistics& operator+=(const simulation_statistics& other) {
    events += other.events;
    versions += other.versions;
    updates += other.updates;
    kept += other.kept;
    failed += other.failed;
    forced_drains += other.forced_drains;
    chunks += other.chunks;
    kills += other.kills;
    lost_connections += other.lost_connections;
    return *this;
  }
};

template <scheduler Scheduler = nearest_source, consistency Consistency = group_consistent,
          integrity Integrity = xxh3_128>
class simulation {
 public:
  using worker_type = simulated_worker<Integrity>;

  explicit simulation(simulation_options options)
      : options_{options},
        events_{options.seed},
        shape_{{{"norm", dtype::f32, {10}},
                {"bias", dtype::u8, {77}},
                {"wq", dtype::bf16, {16, 20}},
                {"wk", dtype::f32, {130}},
                {"gate", dtype::u8, {256}}},
               256},
        server_{catalog_settings(), server_epoch{options.seed + 1}} {
    for (std::uint32_t shard = 0; shard < options_.shards; ++shard) {
      const std::size_t slot = spawn("trainer", shard, false);
      events_.after(delay(), [this, slot] { train(slot, version_number{1}); });
    }
    for (std::size_t i = 0; i < options_.rollouts; ++i) {
      const std::string replica = "rollout-" + std::to_string(i);
      for (std::uint32_t shard = 0; shard < options_.shards; ++shard) spawn(replica, shard, true);
      events_.after(delay(), [this, replica] { next_round(replica); });
    }
    if (options_.connection_losses_per_second > 0) schedule_loss();
    if (options_.kills_per_second > 0) schedule_kill();
    tick_server();
  }

  /// Runs the history to its end; afterwards every call must have ended.
  void run() {
    const time_point end = time_point{} + options_.length + grace;
    while (violations_.empty() && events_.step(end)) check_calls();
    for (const auto& [key, call] : calls_) {
      if (find(key.first) != nullptr) violate(call.what + " of " + call.who + " never ended");
    }
    statistics_.events = events_.executed();
    for (const auto& worker : workers_) statistics_.chunks += worker->confirmed_chunks();
  }

  [[nodiscard]] const std::vector<std::string>& violations() const noexcept { return violations_; }
  [[nodiscard]] const simulation_statistics& statistics() const noexcept { return statistics_; }
  template <typename Visitor>
  void for_each_worker(Visitor&& visit) {
    for (const auto& worker : workers_) visit(*worker);
  }
  /// Called for every worker that starts later: plants faults.
  std::function<void(worker_type&)> on_spawn{};
  /// Receives the server's log lines, for the replay of a failing seed.
  std::function<void(const log_line&)> log{};
  /// Check rule 3 although the policy does not promise it.
  bool expect_groups = Consistency::decides_per_group;

 private:
  static constexpr duration grace = std::chrono::seconds{12};
  static constexpr duration answer_time = std::chrono::milliseconds{600};

  struct connection_state {
    std::uint64_t generation = 0;
    time_point to_server{};
    time_point to_worker{};
  };
  struct call_state {
    std::string who{};
    std::string what{};
    time_point deadline{};
    std::function<void(const session_result&)> done{};
  };
  struct round_state {
    std::size_t open = 0;
    version_number version{};
    bool some_succeeded = false;
    bool some_failed = false;
    std::string failures{};
  };

  [[nodiscard]] static catalog_options catalog_settings() {
    catalog_options out;
    out.heartbeat_interval = std::chrono::milliseconds{50};
    out.worker_timeout = std::chrono::milliseconds{400};
    out.group_timeout = std::chrono::milliseconds{800};
    return out;
  }

  [[nodiscard]] duration delay() {
    return events_.between(std::chrono::microseconds{30}, std::chrono::microseconds{900});
  }
  [[nodiscard]] bool over() const { return events_.now() > time_point{} + options_.length; }

  void violate(const std::string& what) {
    violations_.push_back("seed " + std::to_string(options_.seed) + ", " +
                          std::to_string(to_seconds(events_.now() - time_point{})) + " s: " + what);
  }

  // ---- processes ----------------------------------------------------------------------------------------

  std::size_t spawn(const std::string& replica, std::uint32_t shard, bool rollout) {
    session_options options;
    options.server = "simulated";
    options.model = "policy";
    options.replica = replica;
    options.shard = {shard, options_.shards};
    options.place.host = replica;
    options.consistency = Consistency::name;
    options.integrity = Integrity::name;
    options.transport = "simulated";
    options.request_retry = std::chrono::milliseconds{100};
    options.drain_timeout = std::chrono::milliseconds{150};
    typename worker_type::services world;
    world.send = [this](worker_type& from, messages::envelope message) {
      to_server(from, std::move(message));
    };
    world.find = [this](incarnation id) { return find(id); };
    world.violation = [this](const std::string& what) { violate(what); };
    world.result = [this](worker_type& worker, const session_result& result) { on_result(worker, result); };
    const incarnation self{++last_incarnation_};
    const std::size_t slot = workers_.size();
    workers_.push_back(
        std::make_unique<worker_type>(events_, std::move(world), std::move(options), self, shape_));
    by_id_[self] = workers_.back().get();
    if (rollout) places_[{replica, shard}] = slot;
    if (on_spawn) on_spawn(*workers_.back());
    call(
        *workers_.back(), "join", std::chrono::seconds{5},
        [](session& core, time_point now, time_point deadline) { return core.join(now, deadline); },
        [](const auto&) {});
    return slot;
  }

  [[nodiscard]] worker_type* find(incarnation id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() || !found->second->alive() ? nullptr : found->second;
  }

  void schedule_kill() {
    const auto mean = 1.0 / options_.kills_per_second;
    events_.after(duration{static_cast<std::int64_t>(
                      mean * 1e9 * (0.5 + static_cast<double>(events_.below(1000)) / 1000.0))},
                  [this] {
                    if (over()) return;
                    kill_one();
                    schedule_kill();
                  });
  }

  void kill_one() {
    auto place = places_.begin();
    std::advance(place, static_cast<std::ptrdiff_t>(events_.below(places_.size())));
    const auto [replica, shard] = place->first;
    worker_type& victim = *workers_[place->second];
    if (!victim.alive()) return;
    ++statistics_.kills;
    victim.kill();
    // Its calls end with it.
    for (auto call = calls_.begin(); call != calls_.end();) {
      if (call->first.first != victim.core().self()) {
        ++call;
        continue;
      }
      auto done = std::move(call->second.done);
      call = calls_.erase(call);
      session_result gone;
      gone.outcome = {errc::replaced, "killed"};
      done(gone);
    }
    events_.after(events_.between(std::chrono::milliseconds{1}, std::chrono::milliseconds{700}),
                  [this, replica = replica, shard = shard] {
                    if (!over()) spawn(replica, shard, true);
                  });
  }

  // ---- calls --------------------------------------------------------------------------------------------

  template <typename Start>
  void call(worker_type& worker, std::string what, duration timeout, Start&& start,
            std::function<void(const session_result&)> done) {
    const time_point deadline = events_.now() + timeout;
    const session_ticket ticket = start(worker.core(), events_.now(), deadline);
    calls_[{worker.core().self(), ticket}] = {worker.name(), std::move(what), deadline + answer_time,
                                              std::move(done)};
    worker.settle();
  }

  void on_result(worker_type& worker, const session_result& result) {
    const auto found = calls_.find({worker.core().self(), result.ticket});
    if (found == calls_.end()) return violate("a result without a call at " + worker.name());
    auto done = std::move(found->second.done);
    calls_.erase(found);
    done(result);
  }

  void check_calls() {
    if (++steps_ % 64 != 0) return;
    for (const auto& [key, call] : calls_) {
      if (events_.now() > call.deadline) {
        violate(call.what + " of " + call.who + " did not end by its deadline");
        return;
      }
    }
  }

  // ---- the trainer --------------------------------------------------------------------------------------

  /// Publishes `version`, lets it be read for a while, takes it back, changes every byte, and meets the other
  /// shards.
  void train(std::size_t slot, version_number version) {
    worker_type& worker = *workers_[slot];
    if (over()) return;
    worker.write_version(version);
    const session_ticket ticket = worker.publish(version, std::chrono::seconds{2});
    if (worker.shard().index == 0) ++statistics_.versions;
    calls_[{worker.core().self(), ticket}] = {
        worker.name(), "publish", events_.now() + std::chrono::seconds{2} + answer_time,
        [this, slot, version](const session_result& result) {
          if (!result.outcome.ok()) {
            violate("publish failed: " + result.outcome.sentence);
            return;
          }
          events_.after(events_.between(std::chrono::milliseconds{1}, std::chrono::milliseconds{60}),
                        [this, slot, version] { take_back(slot, version); });
        }};
    worker.settle();
  }

  void take_back(std::size_t slot, version_number version) {
    worker_type& worker = *workers_[slot];
    if (events_.chance(options_.careless_trainer))
      worker.scribble();  // breaks the contract: readers must notice
    call(
        worker, "unpublish", options_.unpublish_timeout,
        [](session& core, time_point now, time_point deadline) { return core.unpublish(now, deadline); },
        [this, slot, version](const session_result& result) {
          worker_type& self = *workers_[slot];
          if (!result.outcome.ok()) violate("unpublish failed: " + result.outcome.sentence);
          if (result.forced)
            ++statistics_.forced_drains;
          else
            check_no_lease_on(self);
          self.scribble();
          meet(slot, version);
        });
  }

  void check_no_lease_on(const worker_type& worker) {
    const incarnation self = const_cast<worker_type&>(worker).core().self();
    server_.for_each_lease([&](const auto& lease) {
      if (lease.source == self)
        violate("unpublish of " + worker.name() + " returned although a lease is left on it");
    });
  }

  /// A trainer group is synchronous: all shards finish a step before the next begins.
  void meet(std::size_t slot, version_number version) {
    waiting_trainers_.push_back(slot);
    if (waiting_trainers_.size() < options_.shards) return;
    for (const std::size_t each : std::exchange(waiting_trainers_, {})) {
      events_.after(delay(), [this, each, version] { train(each, version_number{version.value + 1}); });
    }
  }

  // ---- the rollouts -------------------------------------------------------------------------------------

  /// All shards of a replica call update() with the same selector, at different moments.
  void next_round(const std::string& replica) {
    if (over()) return;
    const auto round = std::make_shared<round_state>();
    round->open = options_.shards;
    const version_selector selector = random_selector();
    const duration timeout = events_.between(std::chrono::milliseconds{50}, std::chrono::milliseconds{1500});
    for (std::uint32_t shard = 0; shard < options_.shards; ++shard) {
      const std::size_t slot = places_.at({replica, shard});
      events_.after(events_.between(duration{0}, std::chrono::milliseconds{20}),
                    [this, slot, round, replica, selector, timeout] {
                      worker_type& worker = *workers_[slot];
                      const auto ended = [this, slot, round, replica](const session_result& result) {
                        end_update(slot, replica, *round, result);
                      };
                      if (!worker.alive()) {
                        session_result gone;
                        gone.outcome = {errc::replaced, "killed"};
                        return ended(gone);
                      }
                      call(
                          worker, "update", timeout,
                          [selector](session& core, time_point now, time_point deadline) {
                            return core.update(now, selector, deadline);
                          },
                          ended);
                    });
    }
  }

  [[nodiscard]] version_selector random_selector() {
    const version_number latest_known = latest_published_;
    switch (events_.below(6)) {
      case 0:
        return at_least(version_number{latest_known.value + 1});
      case 1:
        return exactly(version_number{latest_known.value + events_.below(2)});
      default:
        return tensorhub::latest;
    }
  }

  void end_update(std::size_t slot, const std::string& replica, round_state& round,
                  const session_result& result) {
    worker_type& worker = *workers_[slot];
    if (result.outcome.ok()) {
      ++(result.kept ? statistics_.kept : statistics_.updates);
      if (!worker.holds_bytes_of(result.version))
        violate(worker.name() + " got version " + to_string(result.version) + " with other bytes");
      if (expect_groups && round.version && round.version != result.version) {
        violate("shards of " + replica + " got versions " + to_string(round.version) + " and " +
                to_string(result.version));
      }
      round.version = result.version;
      round.some_succeeded = true;
    } else {
      ++statistics_.failed;
      // Whoever was told nothing in time (or is dead) may not know that the group succeeded.
      const errc code = result.outcome.code;
      const bool did_not_hear =
          code == errc::timed_out || code == errc::disconnected || code == errc::replaced;
      if (!did_not_hear) round.some_failed = true;
      round.failures += " [" + worker.name() + ": " + result.outcome.sentence + "]";
    }
    if (Consistency::completes_per_group && round.some_succeeded && round.some_failed) {
      violate("an update of " + replica +
              " succeeded for some shards and failed for others:" + round.failures);
    }
    if (--round.open == 0) {
      events_.after(events_.between(std::chrono::milliseconds{1}, std::chrono::milliseconds{80}),
                    [this, replica] { next_round(replica); });
    }
  }

  // ---- the control network ------------------------------------------------------------------------------

  void to_server(worker_type& from, messages::envelope message) {
    const incarnation id = from.core().self();
    connection_state& connection = connections_[id];
    connection.to_server =
        std::max(connection.to_server, events_.now() + delay());  // in order within a connection
    events_.schedule(connection.to_server,
                     [this, id, generation = connection.generation, message = std::move(message)] {
                       if (connections_[id].generation != generation) return;
                       server_.receive(events_.now(), message);
                       flush_server();
                     });
  }

  void flush_server() {
    for (outgoing& out : server_.take_output()) {
      if (const auto* push = std::get_if<messages::version_push>(&out.message.body)) {
        latest_published_ = std::max(latest_published_, push->version);
      }
      connection_state& connection = connections_[out.to];
      connection.to_worker = std::max(connection.to_worker, events_.now() + delay());
      events_.schedule(connection.to_worker, [this, id = out.to, generation = connection.generation,
                                              message = std::move(out.message)] {
        if (connections_[id].generation != generation) return;
        if (worker_type* worker = find(id)) worker->receive(message);
      });
    }
    for (const log_line& line : server_.take_log()) {
      if (log) log(line);
    }
    check_no_cycle();
  }

  /// A worker that reads gives no new lease, so whoever has a running lease on a source sees a source that
  /// reads from nobody, or one that began to read later and waits for its readers first.
  void check_no_cycle() {
    std::map<incarnation, incarnation> reads_from;
    server_.for_each_lease([&](const auto& lease) {
      if (!lease.cutting_off && !lease.moving && lease.reader) reads_from[lease.reader] = lease.source;
    });
    for (const auto& [reader, source] : reads_from) {
      incarnation at = source;
      for (std::size_t steps = 0; reads_from.contains(at); ++steps) {
        at = reads_from[at];
        if (at == reader || steps > reads_from.size()) return violate("leases form a cycle");
      }
    }
  }

  void schedule_loss() {
    const auto mean = 1.0 / options_.connection_losses_per_second;
    events_.after(duration{static_cast<std::int64_t>(
                      mean * 1e9 * (0.5 + static_cast<double>(events_.below(1000)) / 1000.0))},
                  [this] {
                    if (over()) return;
                    auto connection = connections_.begin();
                    std::advance(connection, static_cast<std::ptrdiff_t>(events_.below(connections_.size())));
                    ++connection->second.generation;  // everything in flight, in both directions, is lost
                    ++statistics_.lost_connections;
                    schedule_loss();
                  });
  }

  void tick_server() {
    const time_point next = std::max(server_.next_deadline(), events_.now() + std::chrono::milliseconds{5});
    events_.schedule(next, [this] {
      server_.advance(events_.now());
      flush_server();
      tick_server();
    });
  }

  simulation_options options_;
  event_queue events_;
  layout shape_;
  catalog<Scheduler, Consistency> server_;
  std::vector<std::unique_ptr<worker_type>> workers_;
  std::map<incarnation, worker_type*> by_id_;
  std::map<std::pair<std::string, std::uint32_t>, std::size_t> places_;
  std::map<incarnation, connection_state> connections_;
  std::map<std::pair<incarnation, session_ticket>, call_state> calls_;
  std::vector<std::size_t> waiting_trainers_;
  std::uint64_t last_incarnation_ = 100;
  std::uint64_t steps_ = 0;
  version_number latest_published_{1};
  std::vector<std::string> violations_;
  simulation_statistics statistics_;
};

}  // namespace tensorhub::testing
