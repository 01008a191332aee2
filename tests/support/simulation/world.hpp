#pragma once
/// \file world.hpp
/// One simulated history: a reference server, a trainer group and rollout replicas, with seeded delays,
/// faults of the control network, processes that die and callers that cancel. The contract is checked after
/// every event.
///
///     tensorhub::testing::simulation history{{.seed = 17}};
///     history.run();
///     for (const violation& each : history.violations()) ...  // each sentence names seed and time
///
/// What is checked (numbers of DESIGN section 2):
///   1  an unforced unpublish ends with no lease left on the worker; bytes change only when no reader can
///      still read what was promised
///   2  every accepted chunk has its version's bytes, and was read before its source withdrew it; a worker
///      that shows a chunk, shows or keeps a version, or holds one after a failed call has exactly its bytes
///   3  the shards of a replica get one version per operation, and an update succeeds for all of them or for
///      none
///   4  a retained version does not vanish (retained_versions.hpp)
///   5  a server, also a new one, does not forget existing versions (grace_rule.hpp)
///   6  every call ends by its deadline (and the time that one answer needs)
/// The rules of rules.hpp hold too. A history ends with a finale without faults, in which every replica must
/// get the last version, and no lease may be left.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/simulation/calls.hpp"
#include "support/simulation/control_network.hpp"
#include "support/simulation/grace_rule.hpp"
#include "support/simulation/group_rule.hpp"
#include "support/simulation/leavers.hpp"
#include "support/simulation/operators.hpp"
#include "support/simulation/options.hpp"
#include "support/simulation/places.hpp"
#include "support/simulation/promised_retention.hpp"
#include "support/simulation/retained_versions.hpp"
#include "support/simulation/rules.hpp"
#include "support/simulation/server.hpp"
#include "support/simulation/servers.hpp"
#include "support/simulation/trace.hpp"
#include "support/simulation/trainers.hpp"
#include "support/simulation/worker.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/session/joining.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

class simulation {
 public:
  using worker_type = simulated_worker;

  explicit simulation(simulation_options options, simulated_policies policies = policies_of());
  ~simulation();
  simulation(const simulation&) = delete;
  simulation& operator=(const simulation&) = delete;

  /// Runs the history to its end; by then every call must have ended.
  void run();

  [[nodiscard]] const std::vector<violation>& violations() const noexcept { return violations_; }
  [[nodiscard]] const simulation_statistics& statistics() const noexcept { return statistics_; }
  template <typename Visitor>
  void for_each_worker(Visitor&& visit) {
    for (const auto& worker : workers_) visit(*worker);
  }
  /// Called for every worker that starts later, to plant faults.
  std::function<void(worker_type&)> on_spawn{};
  /// Receives the server's log lines, for the replay of a failing seed.
  std::function<void(const log_line&)> log{};
  /// Violations to ignore, for tests of one guard alone.
  std::set<rule> overlooked{};
  /// Whether rule 3 is checked. The constructor sets it to what the consistency policy promises.
  bool expect_groups = true;

 private:
  friend simulated_leavers<simulation>;
  friend simulated_operator<simulation>;
  friend simulated_trainers<simulation>;

  static constexpr duration grace = std::chrono::seconds{12};
  static constexpr const char* trainer = "trainer";

  using place = std::pair<std::string, std::uint32_t>;  ///< replica and shard

  struct round_state {
    std::string replica{};
    std::size_t open = 0;
    bool last = false;   ///< of the finale
    bool local = false;  ///< takes versions only from its own datacenter
    bool all_succeeded = true;
    std::string failures{};
    messages::retention valid{};  ///< when the first shard could call
    /// By call that each shard makes in this round, without waiting for the others in between.
    std::vector<operation_counter> numbers{{}};
  };
  [[nodiscard]] static catalog_options catalog_settings() {
    catalog_options out;
    out.heartbeat_interval = std::chrono::milliseconds{50};
    out.worker_timeout = std::chrono::milliseconds{400};
    out.progress_timeout = std::chrono::milliseconds{60};
    out.group_timeout = std::chrono::milliseconds{800};
    out.recovery_grace = std::chrono::milliseconds{400};
    return out;
  }

  void inform_rules();
  void begin_faults();

  [[nodiscard]] bool over() const { return events_.now() > time_point{} + options_.length; }
  [[nodiscard]] bool servers_fail() const {
    return options_.server_kills_per_second + options_.takeovers_per_second > 0;
  }
  [[nodiscard]] bool settled() const {
    return events_.now() > time_point{} + options_.length + options_.settling;
  }

  void violate(violation found) {
    if (overlooked.contains(found.broken)) return;
    found.sentence = "seed " + std::to_string(options_.seed) + ", " +
                     std::to_string(to_seconds(events_.now() - time_point{})) + " s: " + found.sentence;
    violations_.push_back(std::move(found));
  }

  void note(const std::string& what) const {
    log({log_level::debug,
         "    " + std::to_string(to_seconds(events_.now() - time_point{})) + " s: " + what,
         {}});
  }
  void note_message(const messages::envelope& message) const {
    const worker_type* from = find(incarnation{message.sender});
    const std::string what = describe_message(message);
    if (from != nullptr && !what.empty()) note(from->name() + what);
  }

  /// Repeats an action until the faults end, `per_second` times a second on average.
  void repeat(double per_second, std::function<void()> what) {
    if (per_second <= 0) return;
    const double seconds = static_cast<double>(events_.below(2000)) / 1000.0 / per_second;
    events_.after(duration{static_cast<std::int64_t>(seconds * 1e9)}, [this, per_second, what] {
      if (over()) return;
      what();
      repeat(per_second, what);
    });
  }

  // ---- processes

  /// `owner`: for a temporary replica, the worker in whose process it runs; empty: a process of its own.
  worker_type& spawn(const place& where, incarnation owner = {}) {
    session_options options = simulated_place(where.first, where.second, options_, static_cast<bool>(owner));
    options.consistency = policies_.consistency.name;
    options.integrity = policies_.integrity.name;
    typename worker_type::services world;
    world.send = [this](worker_type& from, messages::envelope message) {
      const incarnation self = from.core().self();
      network_.to_server(self, asks_[self], std::move(message));
    };
    world.use_server = [this](worker_type& from, std::size_t index) {
      asks_[from.core().self()] = index;
      network_.lose(from.core().self());
    };
    world.resumed = [this](worker_type& worker) { look_at(worker); };
    world.returns_as = [this](worker_type& worker) { return return_of(worker); };
    world.offload = [this](worker_type& host, version_number version, const std::string& replica) {
      leavers_.offload(host, version, replica);
    };
    world.drop = [this](worker_type& holder) { leavers_.drop(holder); };
    world.flips_a_bit = [this] {
      const bool flips = !over() && events_.chance(options_.reads.flipped_bits);
      if (flips) ++statistics_.flipped_bits;
      return flips;
    };
    world.slowness = [this](incarnation source) {
      const bool is_slow = static_cast<double>(source.value * 0x9e3779b97f4a7c15ull >> 32) <
                           options_.reads.slow_links * 4294967296.0;
      return is_slow && !over() ? events_.between(duration{0}, std::chrono::milliseconds{150}) : duration{0};
    };
    world.answers = [this](incarnation id) { return answering(id); };
    world.reader_of = [this](const worker_type& holder) {
      const auto reader =
          std::ranges::find_if(workers_, [&](const auto& each) { return each->may_read(holder); });
      return reader == workers_.end() ? std::string{} : (*reader)->name();
    };
    world.violate = [this](violation found) { violate(std::move(found)); };
    world.result = [this](worker_type& worker, const session_result& result) { calls_.end(worker, result); };
    const incarnation self{++last_.incarnation};
    workers_.push_back(std::make_unique<worker_type>(events_, std::move(world), std::move(options), self,
                                                     shape_, policies_.integrity));
    worker_type& worker = *workers_.back();
    by_id_[self] = &worker;
    places_[where] = &worker;
    if (on_spawn) on_spawn(worker);
    call(
        worker, "join", std::chrono::seconds{5},
        [](session& core, time_point now, time_point deadline) { return core.join(now, deadline); },
        [](const auto&) {});
    return worker;
  }
  /// Some processes go on after they were declared dead; the others are restarted by their user (`look_at`).
  std::optional<incarnation> return_of(worker_type& worker) {
    const incarnation before = worker.core().self();
    if (ending_.contains(before) || at(place_of(worker.core())) != &worker || !events_.chance(0.7)) {
      look_at(worker);
      return std::nullopt;
    }
    const incarnation next{++last_.incarnation};
    asks_[next] = asks_[before];
    by_id_[next] = &worker;
    ++statistics_.processes.returns;
    return next;
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
  /// Null: the place has no worker now.
  [[nodiscard]] worker_type* at(const place& where) const {
    const auto found = places_.find(where);
    return found == places_.end() || !found->second->alive() ? nullptr : found->second;
  }
  /// A process that restarts at once gets the address of its predecessor.
  [[nodiscard]] const worker_type* answering(incarnation id) const {
    const worker_type* itself = find(id);
    if (itself != nullptr || options_.instant_restarts <= 0) return itself;
    const auto gone = by_id_.find(id);
    return gone == by_id_.end() ? nullptr : at(place_of(gone->second->core()));
  }
  [[nodiscard]] static place place_of(const session& core) {
    return {core.options().replica, core.options().shard.index};
  }

  void kill(const place& where) {
    worker_type* victim = at(where);
    if (victim == nullptr) return;
    ++statistics_.processes.kills;
    end_process(*victim);
    if (victim->core().options().temporary) return;
    if (!events_.chance(options_.instant_restarts)) return spawn_later(where, std::chrono::milliseconds{700});
    events_.after(events_.between(duration{0}, std::chrono::microseconds{100}), [this, where] {
      if (at(where) == nullptr) spawn(where);
    });
  }

  /// The calls of the process end with it.
  void end_process(worker_type& victim) {
    if (log) note("the process of " + victim.name() + " ends");
    retained_.excuse(events_.now(), victim.core());
    victim.kill();
    for (const auto& [holder, owner] : std::map<incarnation, incarnation>{owners_}) {
      if (owner != victim.core().self()) continue;
      owners_.erase(holder);
      if (worker_type* worker = find(holder)) end_process(*worker);
    }
    for (const auto& done : calls_.end_all_of(victim.core().self())) done(gone());
  }
  [[nodiscard]] static session_result gone() {
    session_result out;
    out.outcome = {errc::replaced, "killed"};
    return out;
  }

  /// A joined worker asks to join as another worker too, as a worker with mixed-up options would.
  void join_twice() {
    auto chosen = places_.begin();
    std::advance(chosen, static_cast<std::ptrdiff_t>(events_.below(places_.size())));
    const place& other = rollouts_[events_.below(rollouts_.size())];
    worker_type* worker = at(chosen->first);
    if (worker == nullptr || !worker->core().joined() || other == chosen->first) return;
    ++statistics_.double_joins;
    messages::join_request join =
        session_detail::join_request_of(simulated_place(other.first, other.second, options_, false), shape_);
    join.form.consistency = policies_.consistency.name;
    join.form.integrity = policies_.integrity.name;
    join.form.tensors.assign(shape_.tensors().begin(), shape_.tensors().end());
    const messages::envelope message{worker->core().self().value, rules_type::double_join, {}, join};
    events_.after(network_.delay(), [this, message] {
      if (servers_.current() != nullptr && servers_.current()->knows(incarnation{message.sender}))
        at_server(servers_.current_index(), message);
    });
  }

  /// It has joined the current server, and is connected to it.
  [[nodiscard]] bool uses_current_server(const worker_type& worker) const {
    const auto asked = asks_.find(worker.core().self());
    const std::size_t index = asked == asks_.end() ? 0 : asked->second;
    return index == servers_.current_index() && worker.core().server() == servers_.epoch();
  }
  /// Compares the current server's record with a worker that is connected to it.
  void check_belief(const worker_type& worker) {
    if (uses_current_server(worker) && worker.core().at_rest())
      rules_.check_belief(worker.core(), worker.name(), held_by_group(worker));
  }
  /// As `check_belief` takes it.
  [[nodiscard]] std::optional<version_number> held_by_group(const worker_type& worker) const {
    const version_number version = worker.core().valid_version_held();
    bool all = true;
    for (std::uint32_t shard = 0; shard < options_.shards; ++shard) {
      const worker_type* other = at({worker.core().options().replica, shard});
      if (other == nullptr || !other->core().at_rest() || !is_known_to_server(*other)) return std::nullopt;
      all = all && other->core().valid_version_held() == version;
    }
    return all ? version : version_number{};
  }
  void check_drained(const worker_type& worker) {
    if (worker.core().server() == servers_.epoch()) rules_.check_drained(worker.core(), worker.name());
  }

  // ---- calls

  template <typename Start>
  session_ticket call(worker_type& worker, std::string what, duration timeout, Start&& start,
                      std::function<void(const session_result&)> done) {
    return calls_.begin(worker, std::move(what), events_.now(), timeout, std::forward<Start>(start),
                        std::move(done));
  }

  // ---- the rollouts

  /// All shards of a replica call update() with the same selector, at different moments.
  void next_round(const std::string& replica) {
    const auto round = std::make_shared<round_state>();
    round->replica = replica;
    round->valid = trainers_.valid();
    round->open = options_.shards;
    round->last = settled();
    round->local = events_.chance(options_.local_updates);
    version_selector selector = random_selector();
    duration timeout = events_.between(std::chrono::milliseconds{50}, std::chrono::milliseconds{1500});
    if (events_.chance(options_.short_deadlines))
      timeout = events_.between(std::chrono::milliseconds{1}, std::chrono::milliseconds{20});
    const bool fickle = !over() && events_.chance(options_.fickle_callers);
    const bool installs = !over() && options_.installs() > 0 && events_.chance(options_.installs());
    if (options_.hasty() > 0 && events_.chance(options_.hasty())) round->numbers.resize(3);
    if (round->last) {
      if (!finale_.version) return try_again(replica);
      selector = exactly(finale_.version);
      timeout = std::chrono::milliseconds{1500};
    }
    for (std::uint32_t shard = 0; shard < options_.shards; ++shard) {
      duration pause = events_.between(duration{0}, std::chrono::milliseconds{20});
      if (!round->last && events_.chance(options_.late_shards))
        pause += events_.between(duration{0}, std::chrono::milliseconds{700});
      events_.after(pause, [this, shard, round, selector, timeout, fickle, installs] {
        worker_type* worker = at({round->replica, shard});
        if (worker != nullptr && leavers_.is_leaving(*worker)) worker = nullptr;
        const worker_type* neighbour = installs ? random_holder(shard) : nullptr;
        if (worker != nullptr && neighbour != nullptr && neighbour != worker)
          return begin_install(*worker, *neighbour, round, timeout);
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
                    const version_selector& selector, duration timeout, std::size_t call_of_round = 0) {
    if (worker == nullptr) return end_update(nullptr, *round, gone());
    const messages::update_reach reach = !round->last && round->local ? messages::update_reach::prefer_local
                                                                      : messages::update_reach::anywhere;
    const bool ahead = options_.fills() && events_.chance(0.5);
    const session_ticket ticket = call(
        *worker, "update", timeout,
        [worker, selector, timeout, reach, ahead](session&, time_point, time_point) {
          return worker->update(selector, timeout, reach, ahead);
        },
        [this, worker, round, selector, timeout, call_of_round](const session_result& result) {
          check_step(*round, call_of_round, *worker, result);
          check_valid(*round, *worker, result);
          if (result.outcome.ok() && !accepts(selector, result.version))
            violate({rule::group_version, worker->name() + " asked for " + to_string(selector) +
                                              " and got version " + to_string(result.version)});
          if (result.outcome.ok() && trainers_.has_given_up(result.version))
            violate({rule::whole, worker->name() + " got version " + to_string(result.version) +
                                      ", which its publisher has taken back before it was whole"});
          if (!result.outcome.ok() || call_of_round + 1 == round->numbers.size())
            return end_update(worker, *round, result);
          if (result.operation) check_group(*worker, round->replica, result);
          const duration pause = events_.between(duration{0}, std::chrono::milliseconds{20});
          events_.after(pause, [this, worker, round, selector, timeout, call_of_round] {
            const bool may_call = worker->alive() && !worker->core().fatal() && !leavers_.is_leaving(*worker);
            begin_update(may_call ? worker : nullptr, round, selector, timeout, call_of_round + 1);
          });
        });
    if (!over() && events_.chance(options_.paused_readers)) {
      events_.after(events_.between(duration{0}, std::chrono::milliseconds{6}), [this, worker] {
        if (worker->alive() && worker->is_reading()) pause(*worker, options_.settling / 5);
      });
    }
    if (!over() && events_.chance(options_.watchers())) watch(*worker);
    if (round->last || !events_.chance(options_.cancels)) return;
    // Most updates take some milliseconds.
    const duration patience = events_.chance(0.7) ? std::chrono::milliseconds{15} : timeout;
    events_.after(events_.between(duration{0}, patience),
                  [this, worker, ticket] { cancel(*worker, ticket); });
  }

  /// A rollout that holds a version in this shard; null: the one that was drawn holds none.
  [[nodiscard]] const worker_type* random_holder(std::uint32_t shard) {
    const place& drawn = rollouts_[events_.below(rollouts_.size())];
    const worker_type* holder = at({drawn.first, shard});
    return holder != nullptr && holder->alive() && holder->core().held() ? holder : nullptr;
  }
  void begin_install(worker_type& worker, const worker_type& neighbour,
                     const std::shared_ptr<round_state>& round, duration timeout) {
    call(
        worker, "install", timeout,
        [&](session&, time_point, time_point) { return worker.install(neighbour, timeout); },
        [this, &worker, round, before = worker.core().held()](session_result result) {
          if (before && result.drained.lost) retained_.excuse(events_.now(), before->version);
          result.operation = {};  // it is no call of the replica
          end_update(&worker, *round, result);
        });
  }

  /// Another caller of the process waits for the next version, or until the end for one that does not come.
  void watch(worker_type& worker) {
    const std::uint64_t number = ++last_.watch % 2 == 0 ? UINT64_MAX : last_.published.value + 1;
    const version_selector wanted = at_least(version_number{number});
    call(
        worker, "wait", time_point{} + options_.length - events_.now(),
        [wanted](session& core, time_point now, time_point deadline) {
          return core.wait(now, wanted, deadline);
        },
        [this, wanted](const session_result& result) {
          if (!result.outcome.ok()) return;
          ++statistics_.waits;
          if (!accepts(wanted, result.version))
            violate({rule::calls, "a wait for " + to_string(wanted) + " has ended with version " +
                                      to_string(result.version)});
        });
  }

  void cancel(worker_type& worker, session_ticket ticket) {
    if (!worker.alive() || !calls_.is_open(worker.core().self(), ticket)) return;
    ++statistics_.cancelled;
    worker.core().cancel(events_.now(), ticket);
    worker.settle();
  }

  /// Asks for a version that will not come, and asks for another one before the server can answer.
  void give_up_often(worker_type& worker, const std::shared_ptr<round_state>& round, std::size_t times) {
    if (!worker.alive() || worker.core().fatal() || leavers_.is_leaving(worker) || times == 0)
      return end_update(nullptr, *round, gone());
    const session_ticket ticket = call(
        worker, "update", std::chrono::milliseconds{500},
        [this](session& core, time_point now, time_point deadline) {
          return core.update(now, at_least(version_number{last_.published.value + 1000}), deadline);
        },
        [this, &worker, round, times](const session_result&) {
          events_.after(duration{0},
                        [this, &worker, round, times] { give_up_often(worker, round, times - 1); });
        });
    events_.after(events_.between(duration{0}, std::chrono::milliseconds{1}),
                  [this, &worker, ticket] { cancel(worker, ticket); });
  }

  [[nodiscard]] version_selector random_selector() {
    const version_number latest_known = last_.published;
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

  /// `worker` is null if there is none any more.
  void end_update(worker_type* worker, round_state& round, const session_result& result) {
    if (worker != nullptr && worker->alive()) {
      const auto& held = worker->core().held();
      if (held && !worker->holds_bytes_of(held->version))
        violate({rule::bytes_of_version, worker->name() + " says that it holds version " +
                                             to_string(held->version) + ", but has other bytes"});
    }
    if (result.outcome.ok()) {
      ++(result.kept ? statistics_.kept : statistics_.updates);
      if (!worker->holds_bytes_of(result.version))
        violate({rule::bytes_of_version,
                 worker->name() + " got version " + to_string(result.version) + " with other bytes"});
    } else {
      ++statistics_.failed;
      round.all_succeeded = false;
      round.failures +=
          " [" + (worker != nullptr ? worker->name() : "nobody") + ": " + result.outcome.sentence + "]";
    }
    if (worker != nullptr && result.operation) check_group(*worker, round.replica, result);
    if (--round.open != 0) return;
    if (round.last && round.all_succeeded) {
      ++finale_.replicas_at_rest;
      return;
    }
    if (round.last) finale_.failures[round.replica] = round.failures;
    try_again(round.replica);
  }

  /// Nothing has happened that lets shards count their calls differently.
  [[nodiscard]] bool is_faultless() const {
    const simulation_statistics& seen = statistics_;
    return seen.failed + seen.processes.kills + seen.processes.returns + seen.trainers.exits + seen.retired +
               seen.server_kills + seen.takeovers + seen.cancelled + seen.pauses ==
           0;
  }
  void check_step(round_state& round, std::size_t call_of_round, const worker_type& worker,
                  const session_result& result) {
    if (!result.outcome.ok() || !expect_groups || options_.installs() > 0 || !is_faultless()) return;
    operation_counter& number = round.numbers[call_of_round];
    if (number && number != result.operation)
      violate({rule::steps, worker.name() + " made call " + std::to_string(result.operation.value) +
                                ", another shard of its replica call " + std::to_string(number.value) +
                                ", which is the same one"});
    number = result.operation;
  }

  /// What was rolled back before the call is not its result.
  void check_valid(const round_state& round, const worker_type& worker, const session_result& result) {
    if (!result.outcome.ok() || result.version.line > last_line(round.valid) ||
        !is_void(round.valid, result.version) || groups_.has_succeeded(round.replica, result.operation))
      return;
    violate({rule::valid, worker.name() + " got version " + to_string(result.version) +
                              ", which had been rolled back before it asked"});
  }
  void check_group(const worker_type& worker, const std::string& replica, const session_result& result) {
    if (log) note(worker.name() + describe_end(result));
    groups_.check(
        worker.core().self(), worker.core().server(), worker.name(), replica, result, expect_groups,
        policies_.consistency.completes_per_group,
        [this](incarnation id) {
          const worker_type* process = find(id);
          return process != nullptr && process->core().self() == id;
        },
        [this](violation found) { violate(std::move(found)); });
  }

  // ---- the end

  /// Every replica holds the last version, and no call is waiting.
  [[nodiscard]] bool is_at_rest() const {
    return finale_.replicas_at_rest == options_.rollouts && calls_.empty() &&
           std::ranges::all_of(places_, [](const auto& entry) {
             const worker_type& worker = *entry.second;
             return worker.core().at_rest() || (!worker.alive() && worker.core().options().temporary);
           });
  }

  void check_end() {
    calls_.for_each([this](incarnation caller, const std::string& what) {
      if (find(caller) != nullptr) violate({rule::calls, what + " never ended"});
    });
    if (finale_.replicas_at_rest != options_.rollouts) {
      std::string failures;
      for (const auto& [replica, sentence] : finale_.failures) failures += " " + replica + sentence;
      violate({rule::end_of_history, "without faults, only " + std::to_string(finale_.replicas_at_rest) +
                                         " of " + std::to_string(options_.rollouts) +
                                         " replicas got the last version (" + to_string(finale_.version) +
                                         "):" + failures});
    }
    if (!is_at_rest()) violate({rule::end_of_history, "a worker did not come to rest without faults"});
    if (servers_.current() == nullptr)
      return violate({rule::end_of_history, "there is no server at the end"});
    servers_.current()->for_each_lease([&](const auto& lease) {
      violate({rule::end_of_history,
               "a lease of " + lease.replica + "/" + std::to_string(lease.shard) + " is left at the end"});
    });
    for (const auto& [where, worker] : places_) check_belief(*worker);
  }

  // ---- the server

  void pause_random_worker() {
    auto chosen = places_.begin();
    std::advance(chosen, static_cast<std::ptrdiff_t>(events_.below(places_.size())));
    worker_type* worker = at(chosen->first);
    if (worker != nullptr) pause(*worker, std::chrono::milliseconds{1});
  }
  void pause(worker_type& worker, duration at_least) {
    if (worker.paused()) return;
    ++statistics_.pauses;
    worker.pause(events_.between(at_least, options_.settling * 3 / 5));
  }

  void at_server(std::size_t index, const messages::envelope& message) {
    simulated_server* const server = servers_.at(index);
    if (server == nullptr) return network_.lose(incarnation{message.sender});
    if (const auto* join = get_if<messages::join_request>(&message.body)) {
      const bool first = std::ranges::none_of(by_id_, [&](const auto& entry) {
        return entry.second->core().options().replica == join->replica && server->knows(entry.first);
      });
      if (first) groups_.forget(join->replica);  // the server numbers the calls from one again
    }
    if (index != servers_.current_index()) {
      server->takes_more = false;
      server->receive(events_.now(), message);
      return flush_server(index);
    }
    if (const auto* join = get_if<messages::join_request>(&message.body)) {
      if (is_alone(incarnation{message.sender})) promises_.retained.forget();
      promises_.retained.hear(events_.now(), incarnation{message.sender}, join->before.keeps);
    }
    if (log) note_message(message);
    // A message of a process that has ended arrives late: the server believes in that process once more.
    if (const auto ended = by_id_.find(incarnation{message.sender});
        ended != by_id_.end() && !ended->second->alive())
      retained_.excuse(events_.now(), ended->second->core());
    const bool is_known = rules_.before(events_.now(), message);
    grace_.before(message);
    server->takes_more = options_.batches();
    server->receive(events_.now(), message);
    if (batch_.server != server->epoch()) batch_ = {server->epoch(), {}, {}};
    if (is_known) batch_.asked.push_back(message);
    batch_.heard.push_back(incarnation{message.sender});
    if (!server->takes_more) return flush_server(index);
    if (batch_.heard.size() > 1) return;
    events_.after(events_.between(duration{0}, std::chrono::microseconds{100}),
                  [this, index, epoch = server->epoch()] {
                    if (servers_.at(index) != nullptr && servers_.at(index)->epoch() == epoch)
                      flush_server(index);
                  });
  }

  /// Nobody else has joined: with its last worker a server forgets a model, and what was to be retained.
  [[nodiscard]] bool is_alone(incarnation id) const {
    return std::ranges::none_of(workers_, [&](const auto& each) {
      return each->alive() && each->core().self() != id && each->core().joined() &&
             uses_current_server(*each);
    });
  }
  void at_worker(std::size_t server, incarnation id, const messages::envelope& message) {
    worker_type* worker = find(id);
    if (worker == nullptr || asks_[id] != server) return;
    worker->receive(message);
    look_at(*worker);
  }
  void look_at(worker_type& worker) {
    if (worker.paused() || !worker.alive()) return;
    check_belief(worker);
    if (!worker.core().fatal()) return;
    const bool returns_soon =
        worker.core().is_revoking() && worker.core().fatal()->code == errc::disconnected;
    if (returns_soon || !ending_.insert(worker.core().self()).second) return;
    // The user sees the error and restarts the worker.
    events_.after(events_.between(duration{0}, std::chrono::milliseconds{5}), [this, &worker] {
      if (worker.alive()) kill(place_of(worker.core()));
    });
  }

  /// Other policies let replicas keep an older version.
  [[nodiscard]] bool checks_grace() const { return policies_.consistency.name == group_consistent::name; }

  /// Sends the server's output and checks its state.
  void flush_server(std::size_t index) {
    simulated_server& server = *servers_.at(index);
    const std::vector<outgoing> output = server.take_output();
    if (index != servers_.current_index()) {
      excuse_by_deposed();
      for (const outgoing& out : output) network_.to_worker(index, out.to, out.message);
      return;
    }
    const batch done = std::exchange(batch_, {server.epoch(), {}, {}});
    if (done.server == server.epoch())
      for (const messages::envelope& each : done.asked) rules_.after(each, output);
    note_goodbyes(output);
    for (const outgoing& out : output) {
      operator_.hear(out);
      if (const auto* push = get_if<messages::version_push>(&out.message.body)) {
        last_.published = std::max(last_.published, push->version);
      }
      const worker_type* worker = find(out.to);
      const bool is_current = worker != nullptr && at(place_of(worker->core())) == worker;
      // To a new server, a late join of a process that has ended looks like a join of a newer process.
      const auto* goodbye = get_if<messages::goodbye_push>(&out.message.body);
      const bool by_a_late_join = servers_fail() && goodbye != nullptr && !goodbye->rejoin &&
                                  server.verdict_of(out.to) == catalog_detail::verdict::replaced;
      // An earlier server has declared the worker dead, and the worker was not told.
      const bool is_barred =
          std::ranges::any_of(workers_, [&](const auto& holder) { return holder->bars(out.to); });
      const bool is_by_verdict =
          server.verdict_of(out.to) == catalog_detail::verdict::lingering || operator_.has_evicted(out.to);
      rules_.check_output(events_.now(), out, !is_current || by_a_late_join || is_barred || is_by_verdict);
      if (checks_grace()) grace_.check(events_.now(), out, server.record_of(out.to));
      network_.to_worker(index, out.to, out.message);
    }
    if (checks_grace()) grace_.look(events_.now(), server.record_of_model("policy"));
    for (const log_line& line : server.take_log()) {
      if (log) log(line);
    }
    rules_.check_leases();
    if (options_.keep_latest > 0 || options_.pins > 0) check_retained(server);
    for (const incarnation each : done.heard)
      if (const worker_type* worker = find(each)) check_belief(*worker);
  }

  void note_goodbyes(const std::vector<outgoing>& output) {
    for (const outgoing& out : output) {
      const auto* goodbye = get_if<messages::goodbye_push>(&out.message.body);
      const worker_type* worker = find(out.to);
      if (goodbye != nullptr && !goodbye->rejoin && worker != nullptr && worker->core().self() == out.to)
        retained_.condemn(events_.now(), worker->core());
    }
  }
  /// A deposed server may allow what its successor does not know.
  void excuse_by_deposed() { retained_.excuse_all(events_.now()); }
  /// Contract 4: a retained version does not vanish with a worker that asked before it gave the version up.
  void check_retained(const simulated_server& server) {
    if (servers_.two()) excuse_by_deposed();
    note_lost(server);
    retained_.look(
        events_.now(), workers_, options_.shards,
        [&](version_number version) {
          return promises_.retained.holds(version, trainers_.valid()) && !trainers_.has_withdrawn(version);
        },
        [&](const worker_type& worker) { return holds_at_rest(worker) && uses_current_server(worker); },
        [&](incarnation id, version_number version) {
          const auto* record = server.record_of(id);
          return record != nullptr && record->replica->counts_for == version;
        },
        [&](version_number version, const std::string& replicas) {
          const auto lost = promises_.given_up.find(version);
          if (lost != promises_.given_up.end() && (lost->second.empty() || has_installing(replicas))) {
            ++statistics_.lost;
            return;
          }
          violate({rule::retention, "the retained version " + to_string(version) +
                                        " is held by no reliable replica any more; it was by " + replicas +
                                        (lost == promises_.given_up.end()
                                             ? ""
                                             : ", and " + lost->second + " could have taken it")});
        });
  }
  /// A process of these replicas copies another version over what it held: whether it was forced to let go,
  /// only the end of its call says.
  [[nodiscard]] bool has_installing(const std::string& replicas) const {
    return std::ranges::any_of(workers_, [&](const auto& worker) {
      return worker->alive() && worker->is_installing() &&
             replicas.find(worker->core().options().replica) != std::string::npos;
    });
  }
  /// Which versions the server says are lost, and who could have taken each when it said so.
  void note_lost(const simulated_server& server) {
    std::erase_if(promises_.given_up,
                  [&](const auto& each) { return !server.has_lost("policy", each.first); });
    retained_.for_each_protected([&](version_number version, time_point since) {
      if (server.has_lost("policy", version) && !promises_.given_up.contains(version))
        promises_.given_up[version] = leavers_.able_host(version, since);
    });
  }

  /// The newest version for which `counts(worker)` is true of all shards of some replica: they hold it, and
  /// have reported that to the last server that they used. What the trainer has withdrawn is not there,
  /// although replicas hold it until their next update.
  template <typename Counts>
  [[nodiscard]] version_number newest_there(Counts&& counts) const {
    version_number newest;
    std::map<std::pair<std::string, version_number>, std::uint32_t> shards;
    for (const auto& worker : workers_) {
      if (!worker->alive() || !holds_at_rest(*worker) || !counts(*worker)) continue;
      if (operator_.is_aside(worker->core().options().replica)) continue;
      const version_number version = worker->core().held()->version;
      if (version > newest && ++shards[{worker->core().options().replica, version}] == options_.shards &&
          !trainers_.has_withdrawn(version))
        newest = version;
    }
    return newest;
  }
  /// It has not been declared dead either, which it may not have heard yet.
  [[nodiscard]] bool is_known_to_server(const worker_type& worker) const {
    return uses_current_server(worker) && !retained_.is_condemned(worker.core().self());
  }
  [[nodiscard]] bool is_there(version_number version) const {
    return version && newest_there([&](const worker_type& worker) {
                        return worker.core().held()->version == version;
                      }) == version;
  }
  /// The same, and the present server has been told.
  [[nodiscard]] bool is_known(version_number version) const {
    return version && newest_there([&](const worker_type& worker) {
                        return worker.core().held()->version == version && is_known_to_server(worker);
                      }) == version;
  }
  [[nodiscard]] static bool holds_at_rest(const worker_type& worker) {
    const session& core = worker.core();
    return core.at_rest() && core.held() && !core.is_open();
  }

  using rules_type = contract_rules;
  /// More requests than a worker may have in flight.
  static constexpr std::size_t many_calls = limits::worker_requests_in_flight + 10;

  simulation_options options_;
  simulated_policies policies_;
  simulation_statistics statistics_;
  event_queue events_;
  layout shape_;
  control_network network_;
  simulated_servers servers_;
  /// What the current server has received since its output was taken last.
  struct batch {
    server_epoch server{};
    std::vector<messages::envelope> asked{};  ///< of workers that it knew
    std::vector<incarnation> heard{};
  } batch_{};
  std::map<incarnation, std::size_t> asks_;  ///< the server that each worker uses
  rules_type rules_;
  std::vector<std::unique_ptr<worker_type>> workers_;
  std::map<incarnation, worker_type*> by_id_;
  std::map<place, worker_type*> places_;  ///< the last worker started at each place
  std::vector<place> rollouts_;
  std::set<incarnation> ending_;
  simulated_leavers<simulation> leavers_{*this};
  simulated_operator<simulation> operator_{*this};
  simulated_trainers<simulation> trainers_{*this};
  /// For workers of temporary replicas: the worker in whose process they run.
  std::map<incarnation, incarnation> owners_;
  struct {
    promised_retention retained{2 * duration{catalog_settings().heartbeat_interval}};
    /// Versions that the server says are lost, each with a replica that could have taken it then.
    std::map<version_number, std::string> given_up{};
  } promises_;
  retained_versions<worker_type> retained_{2 * duration{catalog_settings().heartbeat_interval}};
  simulated_calls<worker_type> calls_{[this](violation found) { violate(std::move(found)); }};
  group_rule groups_;
  grace_rule grace_{
      catalog_settings().recovery_grace,
      {[this](version_number number) { return valid_version(trainers_.valid(), number); },
       [this](version_number version) { return is_there(version); },
       [this] { return newest_there([this](const auto& worker) { return is_known_to_server(worker); }); },
       [this](version_number version) { return is_known(version); },
       [this](violation found) { violate(std::move(found)); }}};
  struct {
    std::uint64_t incarnation = 100, step = 0, watch = 0;
    version_number published{1};
  } last_;
  struct {
    version_number version{};
    std::size_t replicas_at_rest = 0;
    std::map<std::string, std::string> failures{};  ///< by replica, of its last round
  } finale_;
  std::vector<violation> violations_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
