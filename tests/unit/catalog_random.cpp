/// \file catalog_random.cpp
/// The catalog under workers that come, read, lose sources, stall, die and are replaced in any order: leases
/// keep their rules at every step (catalog_driver.hpp, check_leases), and everybody gets what was published
/// in the end.

#include <iterator>
#include <random>
#include <set>

#include "catalog_driver.hpp"
#include "support/catalog_of.hpp"
#include "tensorhub/policy/scheduler/chain.hpp"
#include "tensorhub/policy/scheduler/least_loaded.hpp"
#include "tensorhub/policy/scheduler/one_to_many.hpp"

using namespace catalog_test;

namespace {

/// What a worker's session and transfer would do, as far as the server can see it.
struct member {
  incarnation id{};
  std::string replica{};
  location place{};
  std::uint64_t pending = 0;  ///< an update that was not answered yet
  operation_counter operation{};
  version_number reading{};  ///< zero: nothing
  version_number held{};
  std::uint64_t epoch = 1;
  bool shows = true;
  std::map<lease_id, incarnation> sources{};
  std::vector<lease_id> letting_go{};  ///< reads of these have not ended
};

template <typename Scheduler>
class random_cluster {
 public:
  random_cluster(std::uint64_t seed, Scheduler scheduler, std::size_t datacenters)
      : random_{seed}, server_{{}, std::move(scheduler)} {
    trainer_ = server_.join_at(1, "trainer", place_of(0, datacenters));
    for (std::size_t i = 0; i < 24; ++i) {
      member& made = members_.emplace_back();
      made.replica = "rollout-" + std::to_string(i);
      made.place = place_of(i, datacenters);
      made.shows = below(8) != 0;
      enter(made);
    }
    publish();
  }

  void run(std::size_t steps) {
    for (std::size_t step = 0; step < steps; ++step) {
      act(members_[below(members_.size())]);
      if (below(200) == 0) publish();
      settle();
    }
    // Peace: nobody dies any more. Everybody has the latest version then.
    peace_ = true;
    for (int round = 0; round < 400 && !all_hold_latest(); ++round) {
      for (member& worker : members_) {
        act(worker);
        settle();
      }
    }
    CHECK(all_hold_latest());
  }
  /// Something of each kind has happened.
  std::map<std::string, int> happened{};

 private:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  [[nodiscard]] static location place_of(std::size_t i, std::size_t datacenters) {
    location out{"d" + std::to_string(i % datacenters), {}, {}, {}};
    out.rack = out.datacenter + "-r" + std::to_string(i / datacenters % 3);
    return out;
  }
  void enter(member& worker) {
    worker.id = server_.join_at(++last_id_, worker.replica, worker.place);
    worker.sources.clear();
    worker.letting_go.clear();
    worker.pending = 0;
    worker.reading = {};
    worker.held = {};
  }
  template <typename Message>
  std::uint64_t send(member& worker, Message message) {
    return server_.send(worker.id, std::move(message));
  }
  /// A request whose answer comes at once.
  template <typename Answer, typename Message>
  Answer ask(member& worker, Message message) {
    return server_.template ask<Answer>(worker.id, std::move(message));
  }

  /// The next version, at the trainer alone, whose memory is at once what it is to be: its readers are cut
  /// off.
  void publish() {
    ++latest_.value;
    ++happened["published"];
    messages::reference held = server_.reference(latest_);
    held.epoch = latest_.value;
    REQUIRE(server_.template ask<messages::status_reply>(trainer_, messages::publish_request{{}, held})
                .result.ok());
    // Readers of the version before learn of it from the control block.
    for (member& worker : members_) {
      if (!worker.reading) continue;
      for (const auto& [lease, source] : std::map{worker.sources}) {
        if (source == trainer_ && worker.reading != latest_)
          fail_source(worker, lease, errc::contract_broken);
      }
    }
  }

  void act(member& worker) {
    for (const lease_id lease : std::exchange(worker.letting_go, {}))
      send(worker, messages::lease_released_request{lease});
    if (worker.pending != 0) return server_.pass(20ms);
    if (!worker.reading) return begin(worker);
    switch (below(peace_ ? 2 : 9)) {
      case 0:
        return finish(worker);
      case 1:
        return stall(worker);
      case 2:
      case 3:
        if (!worker.sources.empty())
          fail_source(
              worker,
              std::next(worker.sources.begin(), static_cast<std::ptrdiff_t>(below(worker.sources.size())))
                  ->first,
              below(2) == 0 ? errc::source_lost : errc::corrupt);
        return;
      case 4:
        return give_up(worker);
      case 5:
        ++happened["died"];
        return enter(worker);
      default:
        return;
    }
  }

  void begin(member& worker) {
    if (peace_ && worker.held == latest_) return;
    messages::update_request request;
    request.selector = latest;
    request.timeout_ms = 600'000;
    if (worker.shows) {
      request.shows = driver<>::shows();
      request.shows->epoch = ++worker.epoch;
    }
    worker.pending = send(worker, request);
  }
  void take(member& worker, const std::vector<messages::assignment>& sources) {
    for (const messages::assignment& source : sources) {
      REQUIRE(source.version == worker.reading);
      REQUIRE(source.operation == worker.operation);
      REQUIRE(source.source != worker.id);
      worker.sources[source.lease] = source.source;
    }
  }
  void take_reply(member& worker, const messages::update_reply& reply) {
    worker.pending = 0;
    if (!reply.result.ok()) {
      ++happened["refused: " + std::string{to_string(reply.result.code)}];
      return;
    }
    if (reply.keep) {
      worker.held = reply.version;
      return;
    }
    ++happened[reply.sources.size() > 1 ? "several sources" : "one source"];
    worker.operation = reply.operation;
    worker.reading = reply.version;
    worker.held = {};
    take(worker, reply.sources);
  }

  void finish(member& worker) {
    const auto* record = server_.core.record_of(worker.id);
    REQUIRE(record != nullptr);
    // It has everything only if somebody gave it everything.
    if (worker.sources.empty()) return;
    messages::reference held = server_.reference(worker.reading);
    held.epoch = worker.epoch;
    ++happened["finished"];
    const version_number version = worker.reading;
    stop(worker);
    REQUIRE(ask<messages::status_reply>(
                worker, messages::finish_request{worker.operation, version, {}, false, held, {}})
                .result.ok());
    worker.held = version;
  }
  void give_up(member& worker) {
    ++happened["gave up"];
    const version_number version = worker.reading;
    stop(worker);
    static_cast<void>(ask<messages::status_reply>(
        worker, messages::finish_request{
                    worker.operation, version, {errc::cancelled, "cancelled"}, false, std::nullopt, {}}));
  }
  void stop(member& worker) {
    worker.reading = {};
    worker.sources.clear();
    worker.letting_go.clear();
  }
  void stall(member& worker) {
    ++happened["stalled"];
    take_more(worker, ask<messages::update_reply>(worker, messages::source_failed_request{
                                                              worker.operation, {}, errc::timed_out, "x"}));
  }
  void fail_source(member& worker, lease_id lease, errc reason) {
    ++happened["lost a source"];
    worker.sources.erase(lease);
    take_more(worker, ask<messages::update_reply>(
                          worker, messages::source_failed_request{worker.operation, lease, reason, "x"}));
  }
  void take_more(member& worker, const messages::update_reply& reply) {
    if (reply.result.ok()) return take(worker, reply.sources);
    ++happened["nobody left"];
    REQUIRE(reply.result.code == errc::unavailable);
    give_up(worker);
  }

  /// Takes in all pushes and answers, and looks at the leases.
  void settle() {
    for (member& worker : members_) {
      if (worker.pending != 0) {
        if (const auto reply = server_.template answer<messages::update_reply>(worker.id, worker.pending))
          take_reply(worker, *reply);
      }
      while (const auto push = server_.template push<messages::reassign_push>(worker.id)) on(worker, *push);
      while (server_.template push<messages::abort_push>(worker.id))
        FAIL("replicas of one shard abort nobody");
    }
    // Whoever is to cut somebody off has done so.
    for (const incarnation id : everybody()) {
      while (const auto push = server_.template push<messages::cut_off_push>(id))
        server_.send(id, messages::cut_off_done_request{push->reader});
    }
    for (const member& worker : members_) {
      const std::uint64_t answered =
          worker.pending != 0 ? worker.pending - 1 : server_.last_sequence(worker.id);
      server_.acknowledge(worker.id, answered);
      static_cast<void>(server_.template push<messages::heartbeat_reply>(worker.id));
    }
    server_.acknowledge(trainer_, server_.last_sequence(trainer_));
    static_cast<void>(server_.template push<messages::heartbeat_reply>(trainer_));
    server_.clear_answered();
    server_.check_leases();
    check_sources();
  }
  [[nodiscard]] std::vector<incarnation> everybody() const {
    std::vector<incarnation> out{trainer_};
    for (const member& worker : members_) out.push_back(worker.id);
    return out;
  }

  void on(member& worker, const messages::reassign_push& push) {
    const bool mine =
        worker.reading && push.source.operation == worker.operation && push.source.version == worker.reading;
    if (push.old_lease) {
      ++happened[push.source.lease ? "moved" : "dismissed"];
      worker.sources.erase(push.old_lease);
      if (mine)
        worker.letting_go.push_back(push.old_lease);
      else
        send(worker, messages::lease_released_request{push.old_lease});
    }
    if (!push.source.lease) return;
    if (mine)
      take(worker, {push.source});
    else
      send(worker, messages::lease_released_request{push.source.lease});
  }

  /// What the reader reads from is what the server believes, and those it may read.
  void check_sources() {
    std::map<incarnation, std::set<lease_id>> leased;
    std::set<std::pair<incarnation, incarnation>> pairs;
    server_.core.for_each_lease([&](const auto& lease) {
      if (lease.moving || lease.cutting_off || lease.reserved) return;
      leased[lease.reader].insert(lease.id);
      REQUIRE(pairs.insert({lease.reader, lease.source}).second);  // nobody is given the same source twice
    });
    for (const member& worker : members_) {
      if (!worker.reading) continue;
      for (const lease_id lease : leased[worker.id]) REQUIRE(worker.sources.contains(lease));
      for (const auto& [lease, source] : worker.sources) {
        const auto* record = server_.core.record_of(source);
        if (record == nullptr || !leased[worker.id].contains(lease)) continue;
        REQUIRE(record->shown() != nullptr);
        REQUIRE(record->shown()->version == worker.reading);
      }
    }
  }

  [[nodiscard]] bool all_hold_latest() const {
    return std::ranges::all_of(members_, [&](const member& m) { return m.held == latest_ && !m.reading; });
  }

  std::mt19937_64 random_;
  driver<testing::catalog_of<Scheduler>> server_;
  incarnation trainer_{};
  std::vector<member> members_;
  std::uint64_t last_id_ = 100;
  version_number latest_{};
  bool peace_ = false;
};

template <typename Scheduler>
void run_all(typename Scheduler::options options, std::vector<std::string> expected) {
  std::map<std::string, int> happened;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    random_cluster<Scheduler> cluster{seed, Scheduler{options}, 1 + seed % 3};
    cluster.run(600);
    for (const auto& [what, count] : cluster.happened) happened[what] += count;
  }
  for (const std::string& what : expected) {
    CAPTURE(what);
    CHECK(happened[what] > 20);  // the histories were not idle
  }
}

TEST_CASE("catalog, random histories: nearest_source") {
  run_all<nearest_source>({}, {"finished", "died", "gave up", "stalled", "lost a source", "several sources",
                               "moved", "dismissed", "published"});
}
TEST_CASE("catalog, random histories: nearest_source with few credits") {
  run_all<nearest_source>({.most = {3, 2}}, {"finished", "died", "several sources", "moved", "dismissed"});
}
TEST_CASE("catalog, random histories: least_loaded") {
  run_all<least_loaded>({.most = {2, 3}}, {"finished", "died", "several sources", "moved"});
}
TEST_CASE("catalog, random histories: chain") {
  run_all<chain>({}, {"finished", "died", "one source"});
}
TEST_CASE("catalog, random histories: one_to_many") {
  run_all<one_to_many>({}, {"finished", "died", "one source"});
}

}  // namespace
