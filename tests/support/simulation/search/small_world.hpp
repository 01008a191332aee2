#pragma once
/// \file small_world.hpp
/// One trainer and a few rollouts around the real catalog, in which nothing happens by itself: the search
/// chooses every step (choice.hpp).
///
/// Messages of one connection arrive in their order and take no time. Time passes in ticks of one second, and
/// only when nothing else can happen: a time-out fires early for a worker that is stopped meanwhile. The
/// faults are counted (`small_world_options`).
///
/// Two kinds of steps are no choices, to keep the world small: a message that only tells a newer version, or
/// what is retained, arrives as soon as it is the next one; and the heartbeats of a tick, with repeated
/// requests that the server will answer later, arrive with it, unless their sender has said more.
///
/// Left out: joins at the start, a second server beside the first, calls that are cancelled, leaving, copies
/// of a version in host memory (nobody has room for one), and processes that start again. One step of the
/// server handles one message.
///
/// What is checked, besides the rules of rules.hpp:
///   calls           every call ends; without a fault, none waits for a time-out or fails
///   end_of_history  at last everything is at rest, and no lease is left
///   grace           an update does not get an older version than one that an earlier call got, and that a
///                   worker still shows
///   group_...       as in group_rule.hpp
///   permission, bytes_of_version, received_chunks, sources, drains: as in world.hpp (small_worker.hpp)
///   retention       a retained version that some replica held whole does not vanish by the will of workers

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/simulation/group_rule.hpp"
#include "support/simulation/options.hpp"
#include "support/simulation/rules.hpp"
#include "support/simulation/search/choice.hpp"
#include "support/simulation/search/small_worker.hpp"
#include "support/simulation/search/state_digest.hpp"
#include "support/simulation/trace.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

struct small_world_options {
  std::uint32_t shards = 1;
  std::uint32_t rollouts = 2;
  std::uint64_t versions = 2;     ///< the trainer publishes each, and unpublishes all but the last
  std::uint64_t updates = 2;      ///< calls of each rollout: for version 1 or later, then for 2 or later, ...
  bool asks_latest = false;       ///< rollouts ask for the latest version; otherwise for at least the next
  std::uint32_t keep_latest = 0;  ///< versions that the trainer retains
  small_faults planted{};         ///< of every worker
  // How many there may be of each fault.
  std::uint32_t losses = 0;   ///< of what is under way on a worker's connection
  std::uint32_t kills = 0;    ///< of workers
  std::uint32_t servers = 0;  ///< a new server replaces the old one at once
  std::uint32_t pauses = 0;   ///< of one worker, across a time-out
};

class small_world {
 public:
  explicit small_world(const small_world_options& options, simulated_policies policies = policies_of())
      : options_{options},
        policies_{std::move(policies)},
        left_{options.losses, options.kills, options.servers, options.pauses},
        shape_{{{"w", dtype::u8, {1}}}, 1},
        rules_{settings(), statistics_, [this](violation found) { violate(std::move(found)); }} {
    rules_.datacenter_of = [](incarnation) { return std::string{}; };
    start_server();
    for (std::uint32_t shard = 0; shard < options_.shards; ++shard) spawn("trainer", shard, 0);
    for (std::uint32_t i = 0; i < options_.rollouts; ++i)
      for (std::uint32_t shard = 0; shard < options_.shards; ++shard)
        spawn("rollout-" + std::to_string(i), shard, i + 1);
    join_all();
  }
  small_world(const small_world&) = delete;
  small_world& operator=(const small_world&) = delete;

  [[nodiscard]] const std::vector<violation>& violations() const noexcept { return violations_; }
  /// Receives what happens in words.
  std::function<void(const std::string&)> log{};

  /// What can happen next; empty: everything has been done and is at rest.
  [[nodiscard]] std::vector<choice> choices() const {
    using kind = choice::kind_type;
    if (is_over()) return {};
    std::vector<choice> out;
    for (std::uint8_t w = 0; w < workers_.size(); ++w) {
      const member& each = *workers_[w];
      if (!each.up.empty()) out.push_back({kind::up, w, 0});
      if (!each.alive || each.paused) continue;
      if (may_call(each)) out.push_back({kind::call, w, 0});
      if (!each.down.empty()) out.push_back({kind::down, w, 0});
      if (each.shell.core().next_deadline() <= now_) out.push_back({kind::wake, w, 0});
      const std::size_t sources = each.shell.transfer() ? each.shell.transfer()->sources.size() : 0;
      for (std::uint8_t slot = 0; slot < sources; ++slot)
        if (each.shell.can_read(slot)) out.push_back({kind::read, w, slot});
    }
    const bool is_quiet = std::ranges::all_of(
        out, [&](choice each) { return each.kind == kind::up && workers_[each.worker]->paused; });
    add_faults(out);
    if (is_quiet && paused_ticks_ < longest_pause) out.push_back({kind::tick, 0, 0});
    return out;
  }

  void apply(choice next) {
    using kind = choice::kind_type;
    if (log) log(to_string(next) + "  " + describe(next));
    member& worker = *workers_[next.worker];
    const bool was_busy = worker.shell.transfer() || worker.shell.core().next_deadline() <= now_;
    const auto seen_before = worker.shell.visible();
    switch (next.kind) {
      case kind::call:
        begin_call(worker);
        break;
      case kind::up:
        deliver_up(worker);
        break;
      case kind::down:
        deliver_down(worker);
        break;
      case kind::read:
        worker.shell.read(now_, next.source);
        break;
      case kind::wake:
        worker.shell.core().advance(now_);
        break;
      case kind::tick:
        tick();
        break;
      default:
        fail(next.kind, worker);
        break;
    }
    settle_all();
    look(next.kind == kind::kill || next.kind == kind::replace_server);
    was_private_ = next.kind == kind::down && !was_busy && !may_call(worker) && !may_fail() &&
                   worker.shell.visible() == seen_before;
  }
  /// The last step commutes with every other that was possible, and with all that these lead to: a message
  /// was delivered to a worker that had nothing else to do, and nobody else can see what it has changed.
  /// No fault can happen any more. The search need not try the other steps first. (Rules that compare a
  /// worker with the server see fewer moments therefore.)
  [[nodiscard]] bool was_private() const noexcept { return was_private_; }

  /// The memory of rules.hpp and group_rule.hpp is not part of it: as far as it matters it follows from what
  /// the server has heard, and from the results.
  [[nodiscard]] digest128 digest() const {
    state_digest out{now_};
    out.add(*server_, servers_started_, last_lease_, quiet_ticks_, paused_ticks_, left_, told_, safe_,
            excused_, version_number{violations_.size()});
    for (const auto& each : workers_) {
      out.add(each->alive, each->paused, each->done, each->open, each->open_deadline, each->floor,
              each->results, each->up, each->down, server_->knows(each->shell.core().self()));
      const auto verdict = server_->verdict_of(each->shell.core().self());
      out.add(verdict);
      if (each->alive) each->shell.add_to(out);
    }
    return out.result();
  }

  [[nodiscard]] const simulation_statistics& statistics() const noexcept { return statistics_; }

 private:
  struct call {
    enum class kind_type : std::uint8_t { retain, publish, unpublish, update };
    kind_type kind = kind_type::update;
    version_number version{};
  };
  /// A process with its script, its connection, and what its calls have returned.
  struct member {
    small_worker shell;
    std::vector<call> script{};
    std::size_t done = 0;
    session_ticket open = 0;
    time_point open_deadline{};
    version_number floor{};  ///< what an earlier call of anybody had got when the open call began
    std::vector<std::uint64_t> results{};
    std::deque<messages::envelope> up{};
    std::deque<messages::envelope> down{};
    bool alive = true;
    bool paused = false;
    bool is_trainer = false;
  };
  [[nodiscard]] bool may_fail() const {
    const auto is_stopped = [](const auto& each) { return each->paused; };
    return std::ranges::any_of(left_, [](std::uint32_t left) { return left > 0; }) ||
           std::ranges::any_of(workers_, is_stopped);
  }
  enum fault : std::size_t { losses, kills, servers, pauses };

  static constexpr duration tick_length = std::chrono::seconds{1};
  static constexpr std::uint32_t longest_pause = 5;  ///< in ticks: longer than the server's patience
  /// Ticks in a row without a call that begins or ends; the longest call takes `update_ticks`.
  static constexpr std::uint32_t most_quiet_ticks = 20;
  static constexpr std::int64_t update_ticks = 12;

  [[nodiscard]] static catalog_options settings() {
    catalog_options out;
    out.heartbeat_interval = std::chrono::seconds{1};
    out.worker_timeout = std::chrono::seconds{3};
    out.recovery_grace = std::chrono::seconds{3};
    out.group_timeout = std::chrono::seconds{5};
    out.progress_timeout = std::chrono::seconds{6};
    return out;
  }

  void violate(violation found) { violations_.push_back(std::move(found)); }
  [[nodiscard]] std::uint32_t faults_so_far() const {
    const std::array most{options_.losses, options_.kills, options_.servers, options_.pauses};
    std::uint32_t out = 0;
    for (std::size_t i = 0; i < left_.size(); ++i) out += most[i] - left_[i];
    return out;
  }

  // ---- the start

  void start_server() {
    server_ = policies_.make_server(settings(), server_epoch{++servers_started_});
    rules_.attach(*server_);
  }
  void spawn(const std::string& replica, std::uint32_t shard, std::uint32_t number) {
    session_options options;
    options.server = "search";
    options.model = "policy";
    options.replica = replica;
    options.shard = {shard, options_.shards};
    options.location.host = replica;
    options.transport = "search";
    options.consistency = std::string{policies_.consistency.name};
    options.integrity = "none";
    options.request_retry = std::chrono::seconds{1};
    options.drain_timeout = std::chrono::seconds{5};
    typename small_worker::services world;
    world.find = [this](incarnation id) {
      const member* found = find(id);
      return found == nullptr ? nullptr : &found->shell;
    };
    world.reader_of = [this](const small_worker& holder) {
      const auto reader = std::ranges::find_if(
          workers_, [&](const auto& each) { return each->alive && each->shell.may_read(holder); });
      return reader == workers_.end() ? std::string{} : (*reader)->shell.name();
    };
    world.violate = [this](violation found) { violate(std::move(found)); };
    const incarnation self{101 + workers_.size()};
    workers_.push_back(std::make_unique<member>(
        member{small_worker{std::move(options), self, shape_, std::move(world)}, script_of(number == 0)}));
    workers_.back()->is_trainer = number == 0;
    workers_.back()->shell.faults = options_.planted;
  }
  [[nodiscard]] std::vector<call> script_of(bool trains) const {
    std::vector<call> out;
    if (trains && options_.keep_latest > 0) out.push_back({call::kind_type::retain, {}});
    const std::uint64_t last = trains ? options_.versions : options_.updates;
    for (version_number version{1}; version.value <= last; ++version.value) {
      out.push_back({trains ? call::kind_type::publish : call::kind_type::update, version});
      if (trains && version.value < last) out.push_back({call::kind_type::unpublish, version});
    }
    return out;
  }
  /// The world begins with all workers joined: one after the other, without choices.
  void join_all() {
    for (const auto& each : workers_) {
      each->shell.core().join(now_, time_point::never());
      settle_all();
      while (!each->up.empty() || !each->down.empty()) {
        if (!each->up.empty()) deliver_up(*each);
        settle_all();
        if (!each->down.empty()) deliver_down(*each);
        settle_all();
      }
    }
  }

  // ---- who is there

  [[nodiscard]] member* find(incarnation id) const {
    const auto found = std::ranges::find_if(
        workers_, [&](const auto& each) { return each->alive && each->shell.core().self() == id; });
    return found == workers_.end() ? nullptr : found->get();
  }
  [[nodiscard]] static bool has_ended(const member& each) {
    return !each.alive || each.shell.core().fatal() || (each.done == each.script.size() && each.open == 0);
  }
  /// A trainer's shards step together.
  [[nodiscard]] bool may_call(const member& worker) const {
    if (has_ended(worker) || worker.open != 0) return false;
    return !worker.is_trainer || std::ranges::all_of(workers_, [&](const auto& each) {
      return !each->is_trainer || has_ended(*each) || each->done > worker.done ||
             (each->done == worker.done && each->open == 0);
    });
  }
  [[nodiscard]] bool is_over() const {
    bool has_leases = false;
    server_->for_each_lease([&](const auto&) { has_leases = true; });
    return !has_leases && std::ranges::all_of(workers_, [](const auto& each) {
      const session& core = each->shell.core();
      const bool rests = !each->alive || core.fatal() || core.at_rest();
      return has_ended(*each) && each->up.empty() && each->down.empty() && !each->paused && rests;
    });
  }

  // ---- messages

  void deliver_up(member& worker) {
    const messages::envelope message = std::move(worker.up.front());
    worker.up.pop_front();
    const bool is_known = rules_.before(now_, message);
    server_->receive(now_, message);
    flush_server(is_known ? &message : nullptr);
  }
  void deliver_down(member& worker) {
    const messages::envelope message = std::move(worker.down.front());
    worker.down.pop_front();
    worker.shell.core().receive(now_, message);
  }
  void flush_server(const messages::envelope* cause) {
    for (bool first = true;; first = false) {
      const std::vector<outgoing> output = server_->take_output();
      if (first && cause != nullptr) rules_.after(*cause, output);
      if (output.empty()) break;
      for (const outgoing& out : output) {
        member* const to = find(out.to);
        const bool is_barred =
            std::ranges::any_of(workers_, [&](const auto& holder) { return holder->shell.bars(out.to); });
        rules_.check_output(now_, out, to == nullptr || is_barred);
        if (to != nullptr)
          to->down.push_back(out.message);
        else
          server_->unreachable(now_, out.to);
      }
    }
    for (const log_line& line : server_->take_log())
      if (log) log("      server: " + line.text);
    rules_.check_leases();
    server_->for_each_lease([&](const auto& lease) { last_lease_ = std::max(last_lease_, lease.id); });
  }
  [[nodiscard]] static bool only_tells(const messages::envelope& message) {
    return holds_alternative<messages::version_push>(message.body) ||
           holds_alternative<messages::heartbeat_reply>(message.body) ||
           holds_alternative<messages::retention_push>(message.body);
  }
  /// Carries out what the sessions have ordered, and delivers what only tells.
  void settle_all() {
    for (const auto& each : workers_) {
      if (!each->alive || each->paused) continue;
      for (;;) {
        each->shell.act(now_);
        session& core = each->shell.core();
        for (messages::envelope& message : core.take_output()) each->up.push_back(std::move(message));
        const auto results = core.take_results();
        for (const session_result& result : results) end_call(*each, result);
        const bool tells = !each->down.empty() && only_tells(each->down.front());
        if (tells) deliver_down(*each);
        if (results.empty() && !tells) break;
      }
    }
  }

  // ---- calls

  void begin_call(member& worker) {
    const call& next = worker.script[worker.done++];
    session& core = worker.shell.core();
    quiet_ticks_ = 0;
    worker.floor = told_;
    const std::int64_t ticks = next.kind == call::kind_type::update ? update_ticks : 8;
    worker.open_deadline = now_ + ticks * tick_length;
    switch (next.kind) {
      case call::kind_type::retain:
        worker.open = core.retain(now_, {options_.keep_latest, {}, {}}, worker.open_deadline);
        return;
      case call::kind_type::publish:
        worker.open = worker.shell.publish(now_, next.version, worker.open_deadline);
        return;
      case call::kind_type::unpublish:
        worker.open = core.unpublish(now_, worker.open_deadline);
        return;
      case call::kind_type::update:
        const version_selector wanted = options_.asks_latest ? latest : at_least(next.version);
        worker.open = worker.shell.update(now_, wanted, worker.open_deadline);
        return;
    }
  }
  void end_call(member& worker, const session_result& result) {
    if (worker.open == 0 || result.ticket != worker.open) return;
    worker.open = 0;
    quiet_ticks_ = 0;
    const call& ended = worker.script[worker.done - 1];
    const bool ok = result.outcome.ok();
    worker.results.push_back(static_cast<std::uint64_t>(result.outcome.code) << 32 | result.version.value);
    if (log)
      log("      " + worker.shell.name() + ": " + describe(ended) + " ends: " +
          (ok ? (result.forced ? "forced" : "version " + to_string(result.version))
              : result.outcome.sentence));
    if (!ok && faults_so_far() == 0)
      violate({rule::calls, describe(ended) + " of " + worker.shell.name() +
                                " failed without a fault: " + result.outcome.sentence});
    if (ended.kind == call::kind_type::unpublish) {
      if (!result.forced && ok && worker.shell.core().server() == server_->epoch())
        rules_.check_drained(worker.shell.core(), worker.shell.name());
      if (result.forced) excused_.insert(ended.version);
      worker.shell.overwrite();
    }
    if (ended.kind == call::kind_type::update) check_update(worker, result);
    if (ok && (ended.kind == call::kind_type::update || options_.shards == 1))
      told_ = std::max(told_, result.version);
    worker.floor = {};
  }
  void check_update(const member& worker, const session_result& result) {
    const std::string& name = worker.shell.name();
    const session& core = worker.shell.core();
    if (result.operation)
      groups_.check(
          core.self(), core.server(), name, core.options().replica, result, true, true,
          [this](incarnation id) { return find(id) != nullptr; },
          [this](violation found) { violate(std::move(found)); });
    if (!result.outcome.ok()) return;
    if (worker.shell.memory().content != result.version.value)
      violate({rule::bytes_of_version, name + " got version " + to_string(result.version) +
                                           " with the bytes of " +
                                           std::to_string(worker.shell.memory().content)});
    const bool is_there = std::ranges::any_of(
        whole_holders(), [&](const auto& holder) { return holder.second && holder.first >= worker.floor; });
    if (result.version < worker.floor && is_there)
      violate({rule::grace, name + " got version " + to_string(result.version) + ", but version " +
                                to_string(worker.floor) + " was there before it asked, and still is"});
  }

  // ---- time and faults

  void tick() {
    if (faults_so_far() == 0)
      violate({rule::calls, "without a fault something waits for a time-out: " + waiting()});
    now_ = now_ + tick_length;
    ++quiet_ticks_;
    if (std::ranges::any_of(workers_, [](const auto& each) { return each->paused; })) ++paused_ticks_;
    for (const auto& each : workers_) {
      if (!each->alive || each->paused) continue;
      each->shell.note_stall(now_, tick_length);
      if (each->shell.core().next_deadline() <= now_) each->shell.core().advance(now_);
    }
    settle_all();
    server_->advance(now_);
    flush_server(nullptr);
    for (const auto& each : workers_) {
      const bool lives = each->alive && !each->paused;
      const bool only_beats =
          std::ranges::all_of(each->up, [&](const auto& message) { return only_beats_again(message); });
      while (lives && only_beats && !each->up.empty()) deliver_up(*each);
    }
    settle_all();
    if (quiet_ticks_ <= most_quiet_ticks) return;
    const bool is_open =
        std::ranges::any_of(workers_, [](const auto& each) { return !has_ended(*each) && each->open != 0; });
    violate({is_open ? rule::calls : rule::end_of_history, "it never ends: " + waiting()});
  }
  /// A heartbeat, or a request that the server has heard and will answer later.
  [[nodiscard]] bool only_beats_again(const messages::envelope& message) const {
    if (holds_alternative<messages::heartbeat_request>(message.body)) return true;
    const auto* record = server_->record_of(incarnation{message.sender});
    if (record == nullptr) return false;
    const auto answer = record->requests.answers.find(message.sequence.value);
    return answer != record->requests.answers.end() && !answer->second.message;
  }
  [[nodiscard]] std::string waiting() const {
    std::string out;
    for (const auto& each : workers_) {
      if (each->alive && each->open != 0)
        out += " " + each->shell.name() + " waits in " + describe(each->script[each->done - 1]) + ";";
    }
    server_->for_each_lease([&](const auto& lease) {
      out += " a lease of " + lease.replica + "/" + std::to_string(lease.shard) + " on " +
             to_hex(lease.source) + " is left;";
    });
    return out;
  }

  void add_faults(std::vector<choice>& out) const {
    using kind = choice::kind_type;
    const bool nobody_stopped = std::ranges::none_of(workers_, [](const auto& each) { return each->paused; });
    for (std::uint8_t w = 0; w < workers_.size(); ++w) {
      const member& each = *workers_[w];
      const bool under_way = !each.up.empty() || !each.down.empty();
      if (under_way && (left_[losses] > 0 || !each.alive)) out.push_back({kind::lose, w, 0});
      if (!each.alive) continue;
      if (each.paused) out.push_back({kind::resume, w, 0});
      if (left_[kills] > 0) out.push_back({kind::kill, w, 0});
      if (left_[pauses] > 0 && nobody_stopped) out.push_back({kind::pause, w, 0});
    }
    if (left_[servers] > 0) out.push_back({kind::replace_server, 0, 0});
  }
  void fail(choice::kind_type what, member& worker) {
    using kind = choice::kind_type;
    quiet_ticks_ = 0;
    if (what != kind::replace_server) excuse(worker);
    if (what == kind::lose) {
      if (worker.alive) --left_[losses];
      worker.up.clear();
      worker.down.clear();
    } else if (what == kind::kill) {
      --left_[kills];
      worker.alive = worker.paused = false;
      worker.down.clear();
    } else if (what == kind::pause) {
      --left_[pauses];
      worker.paused = true;
      paused_ticks_ = 0;
    } else if (what == kind::resume) {
      worker.paused = false;
      paused_ticks_ = 0;
    } else {
      --left_[servers];
      for (const auto& each : workers_) {
        each->up.clear();
        each->down.clear();
      }
      start_server();
    }
  }
  /// The server may have relied upon this worker.
  void excuse(const member& worker) {
    if (worker.shell.shown()) excused_.insert(worker.shell.shown());
  }

  // ---- rules

  /// Versions that all shards of a replica show, and whether these are at rest.
  [[nodiscard]] std::vector<std::pair<version_number, bool>> whole_holders() const {
    std::vector<std::pair<version_number, bool>> out;
    for (std::size_t first = 0; first < workers_.size(); first += options_.shards) {
      const version_number version = workers_[first]->shell.shown();
      bool whole = static_cast<bool>(version);
      bool rests = true;
      for (std::size_t i = first; i < first + options_.shards; ++i) {
        const small_worker& each = workers_[i]->shell;
        whole = whole && workers_[i]->alive && !each.core().fatal() && each.shown() == version;
        rests = rests && each.core().at_rest() && each.core().held();
      }
      if (whole) out.emplace_back(version, rests);
    }
    return out;
  }
  void look(bool is_fault) {
    for (const auto& each : workers_) {
      if (each->alive && !each->paused && each->shell.core().server() == server_->epoch())
        rules_.check_belief(each->shell.core(), each->shell.name(), held_by_group(each->shell));
    }
    if (options_.keep_latest == 0) return;
    std::set<version_number> safe;
    for (const auto& [version, rests] : whole_holders()) safe.insert(version);
    for (const version_number version : safe_) {
      if (safe.contains(version) || is_fault || excused_.contains(version) || !is_promised(version)) continue;
      if (!server_->has_lost("policy", version) || !have_refused(version))
        violate(
            {rule::retention, "no replica holds the retained version " + to_string(version) + " any more"});
    }
    safe_ = std::move(safe);
  }
  /// As `check_belief` takes it.
  [[nodiscard]] std::optional<version_number> held_by_group(const small_worker& worker) const {
    const version_number version = worker.core().valid_version_held();
    bool all = true;
    for (const auto& each : workers_) {
      const session& core = each->shell.core();
      if (core.options().replica != worker.core().options().replica) continue;
      if (!each->alive || each->paused || !core.at_rest() || core.server() != server_->epoch())
        return std::nullopt;
      all = all && core.valid_version_held() == version;
    }
    return all ? version : version_number{};
  }
  /// The trainer has asked for its retention with success, and has not begun to publish what replaces it.
  /// (What a new server has heard of that is its own word.)
  [[nodiscard]] bool is_promised(version_number version) const {
    version_number newest;
    for (const auto& each : workers_) {
      if (!each->is_trainer) continue;
      if (each->results.empty() || each->results.front() >> 32 != 0) return false;
      for (std::size_t i = 0; i < each->done; ++i) newest = std::max(newest, each->script[i].version);
    }
    return newest.value < version.value + options_.keep_latest &&
           (servers_started_ == 1 || server_->retains("policy", version));
  }
  /// Every living process was asked to take this version into its host memory.
  [[nodiscard]] bool have_refused(version_number version) const {
    return std::ranges::all_of(workers_, [version](const auto& each) {
      return !each->alive || each->shell.core().fatal() || each->shell.has_refused(version);
    });
  }

  // ---- words

  [[nodiscard]] static std::string describe(const call& what) {
    static constexpr std::array names{"retain", "publish", "unpublish", "update"};
    return std::string{names[static_cast<std::size_t>(what.kind)]} + "(" + to_string(what.version) + ")";
  }
  [[nodiscard]] static std::string describe(const messages::envelope& message) {
    const std::string known = describe_message(message);
    return "message " + std::to_string(message.body.index()) + " (request " +
           std::to_string(message.sequence.value) + ")" + (known.empty() ? "" : ":" + known);
  }
  [[nodiscard]] std::string describe(choice next) const {
    using kind = choice::kind_type;
    const member& worker = *workers_[next.worker];
    const std::string& name = worker.shell.name();
    switch (next.kind) {
      case kind::call:
        return name + " calls " + describe(worker.script[worker.done]);
      case kind::up:
        return "from " + name + ": " + describe(worker.up.front());
      case kind::down:
        return "to " + name + ": " + describe(worker.down.front());
      case kind::read:
        return name + " reads from " + to_hex(worker.shell.transfer()->sources[next.source].from.source);
      case kind::wake:
        return name + " sees what is overdue";
      case kind::tick:
        return "a second passes";
      case kind::lose:
        return "what is under way between " + name + " and the server is lost";
      case kind::kill:
        return name + " is killed";
      case kind::pause:
        return name + " is stopped";
      case kind::resume:
        return name + " goes on";
      case kind::replace_server:
        return "a new server replaces the old one";
    }
    return {};
  }

  small_world_options options_;
  simulated_policies policies_;
  std::array<std::uint32_t, 4> left_;  ///< faults that may still happen
  layout shape_;
  simulation_statistics statistics_;
  contract_rules rules_;
  std::unique_ptr<simulated_server> server_;
  std::vector<std::unique_ptr<member>> workers_;
  time_point now_ = time_point{} + std::chrono::hours{1};
  std::uint64_t servers_started_ = 0;
  lease_id last_lease_{};
  bool was_private_ = false;
  std::uint32_t quiet_ticks_ = 0;
  std::uint32_t paused_ticks_ = 0;
  version_number told_{};             ///< the highest version that a call has returned
  std::set<version_number> safe_;     ///< held by a whole replica after the last step
  std::set<version_number> excused_;  ///< some holder was killed, stopped, or cut short by its deadline
  group_rule groups_;
  std::vector<violation> violations_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
