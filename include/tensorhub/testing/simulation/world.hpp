#pragma once
/// \file world.hpp
/// One simulated history: a reference server, a trainer group and rollout replicas, with seeded delays,
/// faults of the control network, processes that die and callers that change their minds; the contract is
/// checked after every event.
///
///     tensorhub::testing::simulation<> history{{.seed = 17}};
///     history.run();
///     for (const std::string& broken : history.violations()) ...  // each names seed, time and rule
///
/// What is checked (numbers of DESIGN section 2):
///   1  an unforced unpublish ends with no lease left on the worker; bytes of a worker change only after its
///      epoch was raised
///   2  every accepted chunk has its version's bytes; whoever shows or keeps a version, or holds one after a
///      call that failed, has exactly its bytes
///   3  the shards of a replica get one version per operation, and an update succeeds for all of them or for
///      none
///   6  every call ends by its deadline (and the time that one answer needs)
/// and the rules of rules.hpp. A history ends with a finale without faults, in which every replica must get
/// the last version, and no lease may be left.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/policy/integrity/xxh3_128.hpp"
#include "tensorhub/service/catalog.hpp"
#include "tensorhub/testing/simulation/control_network.hpp"
#include "tensorhub/testing/simulation/options.hpp"
#include "tensorhub/testing/simulation/rules.hpp"
#include "tensorhub/testing/simulation/worker.hpp"

namespace tensorhub::testing {

/// `Server`: the catalog, or a broken one that the rules must catch.
template <scheduler Scheduler = nearest_source, consistency Consistency = group_consistent,
          integrity Integrity = xxh3_128, typename Server = catalog<Scheduler, Consistency>>
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
        network_{events_, options_, statistics_},
        server_{catalog_settings(), server_epoch{options.seed + 1}},
        rules_{server_, catalog_settings(), statistics_, [this](const std::string& what) { violate(what); }} {
    network_.connect({[this](const messages::envelope& message) { at_server(message); },
                      [this](incarnation id, const messages::envelope& message) { at_worker(id, message); }});
    for (std::uint32_t shard = 0; shard < options_.shards; ++shard) {
      spawn({trainer, shard});
      events_.after(network_.delay(), [this, shard] { train(shard, version_number{1}, false); });
    }
    for (std::size_t i = 0; i < options_.rollouts; ++i) {
      const std::string replica = "rollout-" + std::to_string(i);
      for (std::uint32_t shard = 0; shard < options_.shards; ++shard) {
        rollouts_.push_back({replica, shard});
        if (events_.chance(options_.late_starters))
          spawn_later({replica, shard}, std::chrono::milliseconds{500});
        else
          spawn({replica, shard});
      }
      events_.after(network_.delay(), [this, replica] { next_round(replica); });
    }
    repeat(options_.connection_losses_per_second, [this] { network_.lose_one(); });
    repeat(options_.kills_per_second, [this] { kill(rollouts_[events_.below(rollouts_.size())]); });
    repeat(options_.double_joins_per_second, [this] { join_twice(); });
    tick_server();
  }

  /// Runs the history to its end; afterwards every call must have ended.
  void run() {
    const time_point end = time_point{} + options_.length + grace;
    while (violations_.empty() && !is_at_rest() && events_.step(end)) check_calls();
    if (violations_.empty()) check_end();
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
  /// After the last fault: everybody who is going to be declared dead has been, and is replaced.
  static constexpr duration settling = std::chrono::milliseconds{1500};
  static constexpr const char* trainer = "trainer";

  using place = std::pair<std::string, std::uint32_t>;  ///< replica and shard

  struct call_state {
    std::string who{};
    std::string what{};
    time_point deadline{};
    std::function<void(const session_result&)> done{};
  };
  struct round_state {
    std::string replica{};
    std::size_t open = 0;
    bool last = false;  ///< of the finale
    bool all_succeeded = true;
    std::string failures{};
  };
  /// How the shards' calls of one operation have ended.
  struct operation_outcome {
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

  [[nodiscard]] bool over() const { return events_.now() > time_point{} + options_.length; }
  [[nodiscard]] bool settled() const { return events_.now() > time_point{} + options_.length + settling; }

  void violate(const std::string& what) {
    violations_.push_back("seed " + std::to_string(options_.seed) + ", " +
                          std::to_string(to_seconds(events_.now() - time_point{})) + " s: " + what);
  }

  /// Again and again until the faults end, `per_second` times a second on average.
  void repeat(double per_second, std::function<void()> what) {
    if (per_second <= 0) return;
    const double seconds = (0.5 + static_cast<double>(events_.below(1000)) / 1000.0) / per_second;
    events_.after(duration{static_cast<std::int64_t>(seconds * 1e9)}, [this, per_second, what] {
      if (over()) return;
      what();
      repeat(per_second, what);
    });
  }

  // ---- processes ----------------------------------------------------------------------------------------

  void spawn(const place& where) {
    session_options options;
    options.server = "simulated";
    options.model = "policy";
    options.replica = where.first;
    options.shard = {where.second, options_.shards};
    options.place.host = where.first;
    options.consistency = Consistency::name;
    options.integrity = Integrity::name;
    options.transport = "simulated";
    options.request_retry = std::chrono::milliseconds{100};
    options.drain_timeout = std::chrono::milliseconds{150};
    typename worker_type::services world;
    world.send = [this](worker_type& from, messages::envelope message) {
      network_.to_server(from.core().self(), std::move(message));
    };
    world.find = [this](incarnation id) { return find(id); };
    world.violation = [this](const std::string& what) { violate(what); };
    world.result = [this](worker_type& worker, const session_result& result) { on_result(worker, result); };
    const incarnation self{++last_incarnation_};
    workers_.push_back(
        std::make_unique<worker_type>(events_, std::move(world), std::move(options), self, shape_));
    worker_type& worker = *workers_.back();
    by_id_[self] = &worker;
    places_[where] = &worker;
    if (on_spawn) on_spawn(worker);
    call(
        worker, "join", std::chrono::seconds{5},
        [](session& core, time_point now, time_point deadline) { return core.join(now, deadline); },
        [](const auto&) {});
  }
  void spawn_later(const place& where, duration at_most) {
    events_.after(events_.between(std::chrono::milliseconds{1}, at_most), [this, where] {
      if (at(where) == nullptr) spawn(where);
    });
  }

  /// Null: dead, or unknown.
  [[nodiscard]] worker_type* find(incarnation id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() || !found->second->alive() ? nullptr : found->second;
  }
  /// Null: nobody is there now.
  [[nodiscard]] worker_type* at(const place& where) const {
    const auto found = places_.find(where);
    return found == places_.end() || !found->second->alive() ? nullptr : found->second;
  }
  [[nodiscard]] static place place_of(const session& core) {
    return {core.options().replica, core.options().shard.index};
  }

  void kill(const place& where) {
    worker_type* victim = at(where);
    if (victim == nullptr) return;
    ++statistics_.kills;
    end_process(*victim);
    spawn_later(where, std::chrono::milliseconds{700});
  }

  /// Its calls end with it.
  void end_process(worker_type& victim) {
    victim.kill();
    std::vector<std::function<void(const session_result&)>> ended;
    for (auto call = calls_.begin(); call != calls_.end();) {
      if (call->first.first != victim.core().self()) {
        ++call;
        continue;
      }
      ended.push_back(std::move(call->second.done));
      call = calls_.erase(call);
    }
    for (const auto& done : ended) done(gone());
  }
  [[nodiscard]] static session_result gone() {
    session_result out;
    out.outcome = {errc::replaced, "killed"};
    return out;
  }

  /// Somebody who has joined asks to join as another worker too, as one that mixes up its options would.
  void join_twice() {
    auto who = places_.begin();
    std::advance(who, static_cast<std::ptrdiff_t>(events_.below(places_.size())));
    const place& other = rollouts_[events_.below(rollouts_.size())];
    worker_type* worker = at(who->first);
    if (worker == nullptr || !worker->core().joined() || other == who->first) return;
    ++statistics_.double_joins;
    messages::join_request join;
    join.model = "policy";
    join.replica = other.first;
    join.shard = {other.second, options_.shards};
    join.transport = "simulated";
    join.consistency = Consistency::name;
    join.integrity = Integrity::name;
    join.layout_digest = shape_.digest();
    join.chunk_bytes = shape_.chunk_bytes();
    join.chunk_count = shape_.chunk_count();
    join.tensors.assign(shape_.tensors().begin(), shape_.tensors().end());
    const messages::envelope message{worker->core().self().value, rules_type::double_join, {}, join};
    events_.after(network_.delay(), [this, message] {
      if (server_.knows(incarnation{message.sender})) at_server(message);
    });
  }

  // ---- calls --------------------------------------------------------------------------------------------

  template <typename Start>
  session_ticket call(worker_type& worker, std::string what, duration timeout, Start&& start,
                      std::function<void(const session_result&)> done) {
    const time_point deadline = events_.now() + timeout;
    const session_ticket ticket = start(worker.core(), events_.now(), deadline);
    calls_[{worker.core().self(), ticket}] = {worker.name(), std::move(what), deadline + answer_time,
                                              std::move(done)};
    worker.settle();
    return ticket;
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
  /// shards. `last`: leaves it published.
  void train(std::uint32_t shard, version_number version, bool last) {
    worker_type* worker = at({trainer, shard});
    if (worker == nullptr) return meet(shard, version);  // the others publish without it
    worker->write_version(version);
    if (shard == 0) ++statistics_.versions;
    call(
        *worker, "publish", std::chrono::seconds{2},
        [&](session&, time_point, time_point) { return worker->publish(version, std::chrono::seconds{2}); },
        [this, worker, shard, version, last](const session_result& result) {
          if (!result.outcome.ok()) {
            if (result.outcome.code != errc::replaced) violate("publish failed: " + result.outcome.sentence);
            return meet(shard, version);
          }
          if (last) {
            final_version_ = version;
            return;
          }
          events_.after(events_.between(std::chrono::milliseconds{1}, std::chrono::milliseconds{60}),
                        [this, worker, shard, version] { take_back(*worker, shard, version); });
        });
  }

  void take_back(worker_type& worker, std::uint32_t shard, version_number version) {
    if (!worker.alive()) return meet(shard, version);
    if (events_.chance(options_.careless_trainer))
      worker.scribble();  // breaks the contract: readers must notice
    const bool exits = !over() && events_.chance(options_.trainer_exits);
    const bool politely = exits && events_.chance(0.5);
    if (exits && !politely) {
      events_.after(events_.between(duration{0}, std::chrono::milliseconds{4}), [this, &worker] {
        ++statistics_.exits;
        if (worker.alive()) kill(place_of(worker.core()));
      });
    }
    call(
        worker, "unpublish", options_.unpublish_timeout,
        [](session& core, time_point now, time_point deadline) { return core.unpublish(now, deadline); },
        [this, &worker, shard, version, politely](const session_result& result) {
          if (!worker.alive()) return meet(shard, version);
          if (!result.outcome.ok()) violate("unpublish failed: " + result.outcome.sentence);
          if (result.forced)
            ++statistics_.forced_drains;
          else if (!worker.core().fatal())
            rules_.check_drained(worker.core(), worker.name());
          worker.scribble();
          if (politely) return leave(worker, shard, version);
          meet(shard, version);
        });
  }

  /// The process says goodbye and ends, perhaps while the other shards still drain; another one goes on.
  void leave(worker_type& worker, std::uint32_t shard, version_number version) {
    ++statistics_.exits;
    call(
        worker, "leave", std::chrono::milliseconds{500},
        [](session& core, time_point now, time_point deadline) { return core.leave(now, deadline); },
        [this, &worker, shard, version](const session_result&) {
          if (worker.alive()) {
            events_.after(duration{0}, [this, &worker] { end_process(worker); });
            spawn_later({trainer, shard}, std::chrono::milliseconds{200});
          }
          meet(shard, version);
        });
  }

  /// A trainer group is synchronous: all shards finish a step before the next begins.
  void meet(std::uint32_t shard, version_number version) {
    waiting_trainers_.push_back(shard);
    if (waiting_trainers_.size() < options_.shards) return;
    const bool last = over();
    const duration pause = last && !settled() ? settling : duration{0};
    for (const std::uint32_t each : std::exchange(waiting_trainers_, {})) {
      events_.after(pause + network_.delay(),
                    [this, each, version, last] { train(each, version_number{version.value + 1}, last); });
    }
  }

  // ---- the rollouts -------------------------------------------------------------------------------------

  /// All shards of a replica call update() with the same selector, at different moments.
  void next_round(const std::string& replica) {
    const auto round = std::make_shared<round_state>();
    round->replica = replica;
    round->open = options_.shards;
    round->last = settled();
    version_selector selector = random_selector();
    duration timeout = events_.between(std::chrono::milliseconds{50}, std::chrono::milliseconds{1500});
    if (events_.chance(options_.short_deadlines))
      timeout = events_.between(std::chrono::milliseconds{1}, std::chrono::milliseconds{20});
    const bool fickle = !over() && events_.chance(options_.fickle_callers);
    if (round->last) {
      if (!final_version_) return try_again(replica);
      selector = exactly(final_version_);
      timeout = std::chrono::milliseconds{1500};
    }
    for (std::uint32_t shard = 0; shard < options_.shards; ++shard) {
      duration pause = events_.between(duration{0}, std::chrono::milliseconds{20});
      if (!round->last && events_.chance(options_.late_shards))
        pause += events_.between(duration{0}, std::chrono::milliseconds{700});
      events_.after(pause, [this, shard, round, selector, timeout, fickle] {
        worker_type* worker = at({round->replica, shard});
        if (fickle && worker != nullptr) return give_up_often(*worker, round, many_calls);
        begin_update(worker, round, selector, timeout);
      });
    }
  }
  void try_again(const std::string& replica) {
    events_.after(events_.between(std::chrono::milliseconds{1}, std::chrono::milliseconds{80}),
                  [this, replica] { next_round(replica); });
  }

  void begin_update(worker_type* worker, const std::shared_ptr<round_state>& round,
                    const version_selector& selector, duration timeout) {
    if (worker == nullptr) return end_update(nullptr, *round, gone());
    const session_ticket ticket = call(
        *worker, "update", timeout,
        [selector](session& core, time_point now, time_point deadline) {
          return core.update(now, selector, deadline);
        },
        [this, worker, round](const session_result& result) { end_update(worker, *round, result); });
    if (round->last || !events_.chance(options_.cancels)) return;
    // Most updates take some milliseconds.
    const duration patience = events_.chance(0.7) ? std::chrono::milliseconds{15} : timeout;
    events_.after(events_.between(duration{0}, patience),
                  [this, worker, ticket] { cancel(*worker, ticket); });
  }

  void cancel(worker_type& worker, session_ticket ticket) {
    if (!worker.alive() || !calls_.contains({worker.core().self(), ticket})) return;
    ++statistics_.cancelled;
    worker.core().cancel(events_.now(), ticket);
    worker.settle();
  }

  /// Asks for what will not come, and asks for something else before it can be answered.
  void give_up_often(worker_type& worker, const std::shared_ptr<round_state>& round, std::size_t times) {
    if (!worker.alive() || worker.core().fatal() || times == 0) return end_update(nullptr, *round, gone());
    const session_ticket ticket = call(
        worker, "update", std::chrono::milliseconds{500},
        [this](session& core, time_point now, time_point deadline) {
          return core.update(now, at_least(version_number{latest_published_.value + 1000}), deadline);
        },
        [this, &worker, round, times](const session_result&) {
          events_.after(duration{0},
                        [this, &worker, round, times] { give_up_often(worker, round, times - 1); });
        });
    events_.after(events_.between(duration{0}, std::chrono::milliseconds{1}),
                  [this, &worker, ticket] { cancel(worker, ticket); });
  }

  [[nodiscard]] version_selector random_selector() {
    const version_number latest_known = latest_published_;
    if (events_.chance(options_.old_versions)) {
      const std::uint64_t back = events_.below(std::min<std::uint64_t>(latest_known.value, 4));
      return exactly(version_number{latest_known.value - back});
    }
    switch (events_.below(6)) {
      case 0:
        return at_least(version_number{latest_known.value + 1});
      case 1:
        return exactly(version_number{latest_known.value + events_.below(2)});
      default:
        return tensorhub::latest;
    }
  }

  /// `worker` is null if there is none (any more).
  void end_update(worker_type* worker, round_state& round, const session_result& result) {
    if (worker != nullptr && worker->alive()) {
      const auto& held = worker->core().held();
      if (held && !worker->holds_bytes_of(held->version))
        violate(worker->name() + " says that it holds version " + to_string(held->version) +
                ", but has other bytes");
    }
    if (result.outcome.ok()) {
      ++(result.kept ? statistics_.kept : statistics_.updates);
      if (!worker->holds_bytes_of(result.version))
        violate(worker->name() + " got version " + to_string(result.version) + " with other bytes");
    } else {
      ++statistics_.failed;
      round.all_succeeded = false;
      round.failures +=
          " [" + (worker != nullptr ? worker->name() : "nobody") + ": " + result.outcome.sentence + "]";
    }
    if (worker != nullptr && result.operation) check_group(*worker, round.replica, result);
    if (--round.open != 0) return;
    if (round.last && round.all_succeeded) {
      ++replicas_at_rest_;
      return;
    }
    if (round.last) last_failures_[round.replica] = round.failures;
    try_again(round.replica);
  }

  /// One version, and one end, for all shards that have called the same operation.
  void check_group(const worker_type& worker, const std::string& replica, const session_result& result) {
    auto& operations = operations_[replica];
    operation_outcome& all = operations[result.operation];
    if (result.outcome.ok()) {
      if (expect_groups && all.version && all.version != result.version) {
        violate("shards of " + replica + " got versions " + to_string(all.version) + " and " +
                to_string(result.version));
      }
      all.version = result.version;
      all.some_succeeded = true;
    } else {
      // Whoever gave up, was told nothing in time, or is dead may not know that the group succeeded.
      const errc code = result.outcome.code;
      const bool did_not_hear = code == errc::timed_out || code == errc::disconnected ||
                                code == errc::replaced || code == errc::cancelled;
      if (!did_not_hear) all.some_failed = true;
      all.failures += " [" + worker.name() + ": " + result.outcome.sentence + "]";
    }
    if (Consistency::completes_per_group && all.some_succeeded && all.some_failed) {
      violate("an update of " + replica + " succeeded for some shards and failed for others:" + all.failures);
    }
  }

  // ---- the end ------------------------------------------------------------------------------------------

  /// Every replica holds the last version, and nobody waits for anything.
  [[nodiscard]] bool is_at_rest() const {
    return replicas_at_rest_ == options_.rollouts && calls_.empty() &&
           std::ranges::all_of(places_, [](const auto& entry) { return entry.second->core().at_rest(); });
  }

  void check_end() {
    for (const auto& [key, call] : calls_) {
      if (find(key.first) != nullptr) violate(call.what + " of " + call.who + " never ended");
    }
    if (replicas_at_rest_ != options_.rollouts) {
      std::string failures;
      for (const auto& [replica, sentence] : last_failures_) failures += " " + replica + sentence;
      violate("without faults, only " + std::to_string(replicas_at_rest_) + " of " +
              std::to_string(options_.rollouts) + " replicas got the last version (" +
              to_string(final_version_) + "):" + failures);
    }
    if (!is_at_rest()) violate("a worker did not come to rest without faults");
    server_.for_each_lease([&](const auto& lease) {
      violate("a lease of " + lease.replica + "/" + std::to_string(lease.shard) + " is left at the end");
    });
    for (const auto& [where, worker] : places_) rules_.check_belief(worker->core(), worker->name());
  }

  // ---- the server ---------------------------------------------------------------------------------------

  void at_server(const messages::envelope& message) {
    if (const auto* join = std::get_if<messages::join_request>(&message.body)) {
      const bool first = std::ranges::none_of(by_id_, [&](const auto& entry) {
        return entry.second->core().options().replica == join->replica && server_.knows(entry.first);
      });
      if (first) operations_.erase(join->replica);  // the server counts from one again
    }
    rules_.before(events_.now(), message);
    server_.receive(events_.now(), message);
    flush_server(&message);
    if (const worker_type* worker = find(incarnation{message.sender}))
      rules_.check_belief(worker->core(), worker->name());
  }

  void at_worker(incarnation id, const messages::envelope& message) {
    worker_type* worker = find(id);
    if (worker == nullptr) return;
    worker->receive(message);
    rules_.check_belief(worker->core(), worker->name());
    if (!worker->core().fatal() || !ending_.insert(id).second) return;
    // Its user sees the error and starts it anew.
    events_.after(events_.between(duration{0}, std::chrono::milliseconds{5}), [this, worker] {
      if (worker->alive()) kill(place_of(worker->core()));
    });
  }

  /// Sends what the server says, and looks at its state. `cause`: what it has received, if anything.
  void flush_server(const messages::envelope* cause) {
    const std::vector<outgoing> output = server_.take_output();
    if (cause != nullptr) rules_.after(*cause, output);
    for (const outgoing& out : output) {
      if (const auto* push = std::get_if<messages::version_push>(&out.message.body)) {
        latest_published_ = std::max(latest_published_, push->version);
      }
      const worker_type* worker = find(out.to);
      const bool is_current = worker != nullptr && at(place_of(worker->core())) == worker;
      rules_.check_output(events_.now(), out, !is_current);
      network_.to_worker(out.to, out.message);
    }
    for (const log_line& line : server_.take_log()) {
      if (log) log(line);
    }
    rules_.check_leases();
  }

  void tick_server() {
    const time_point next = std::max(server_.next_deadline(), events_.now() + std::chrono::milliseconds{5});
    events_.schedule(next, [this] {
      server_.advance(events_.now());
      flush_server(nullptr);
      tick_server();
    });
  }

  using rules_type = contract_rules<Server>;

  /// More than a worker may have in flight.
  static constexpr std::size_t many_calls = limits::worker_requests_in_flight + 10;

  simulation_options options_;
  simulation_statistics statistics_;
  event_queue events_;
  layout shape_;
  control_network network_;
  Server server_;
  rules_type rules_;
  std::vector<std::unique_ptr<worker_type>> workers_;
  std::map<incarnation, worker_type*> by_id_;
  std::map<place, worker_type*> places_;  ///< who was started there last
  std::vector<place> rollouts_;
  std::set<incarnation> ending_;
  std::map<std::pair<incarnation, session_ticket>, call_state> calls_;
  std::map<std::string, std::map<operation_counter, operation_outcome>> operations_;
  std::vector<std::uint32_t> waiting_trainers_;
  std::uint64_t last_incarnation_ = 100;
  std::uint64_t steps_ = 0;
  version_number latest_published_{1};
  version_number final_version_{};
  std::size_t replicas_at_rest_ = 0;
  std::map<std::string, std::string> last_failures_;
  std::vector<std::string> violations_;
};

}  // namespace tensorhub::testing
