/// \file planted.cpp
/// Bugs planted into the worker or the server: the rules of the simulation must see each, in a few histories.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "broken_servers.hpp"
#include "histories.hpp"
#include "support/simulation/server.hpp"
#include "support/simulation/world.hpp"
#include "tensorhub/policy/consistency/independent.hpp"
#include "tensorhub/policy/integrity/none.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;

namespace {

/// The first violation in the first history in which a planted bug was seen; empty: it was not seen.
struct catch_record {
  std::uint64_t histories = 0;
  std::optional<violation> first{};
};

using plant_fault = std::function<void(simulation&)>;

/// Runs histories with a planted fault until one is caught.
template <typename OptionsOf>
catch_record first_violation_with(const simulated_policies& policies, OptionsOf&& options_of,
                                  std::uint64_t limit, const plant_fault& plant = {}) {
  for (std::uint64_t seed = 1; seed <= limit; ++seed) {
    simulation history{options_of(seed), policies};
    if (plant) plant(history);
    history.run();
    if (!history.violations().empty()) return {seed, history.violations().front()};
  }
  return {limit, {}};
}
catch_record first_violation(const simulated_policies& policies, std::uint64_t limit, double careless,
                             duration unpublish_timeout, const plant_fault& plant = {}) {
  const auto options_of = [&](std::uint64_t seed) {
    simulation_options options = options_for(seed);
    options.trainer.careless = careless;
    options.unpublish_timeout = unpublish_timeout;
    return options;
  };
  return first_violation_with(policies, options_of, limit, plant);
}

/// `change` also takes the workers that start later.
plant_fault plant_in_workers(void (*change)(simulated_worker&)) {
  return [change](simulation& history) {
    history.for_each_worker(change);
    history.on_spawn = change;
  };
}

/// A line of the table: the bug, the violation that has shown it, and after how many histories.
void check_caught(const std::string& bug, const catch_record& caught, rule broken) {
  std::cout << "planted: " << bug << " | histories: " << caught.histories << " | "
            << (caught.first ? caught.first->sentence : "NOT CAUGHT") << "\n";
  REQUIRE_MESSAGE(caught.first.has_value(), bug);
  CHECK_MESSAGE(caught.first->broken == broken, bug);
}
void check_not_caught(const catch_record& caught) {
  CHECK_MESSAGE(!caught.first.has_value(), (caught.first ? caught.first->sentence : std::string{}));
}

// ---- broken servers

/// Forgets no answer that is still to come, although its worker has given the request up: 64 of them, and the
/// worker is mute.
class server_that_waits_for_given_up_requests : public simulated_server {
 public:
  using simulated_server::simulated_server;
  void receive(time_point now, const messages::envelope& received) override {
    messages::envelope message = received;
    std::set<request_sequence>& open = unanswered_[message.sender];
    if (holds_alternative<messages::update_request>(message.body) &&
        message.sequence > acknowledged_[message.sender]) {
      open.insert(message.sequence);
    }
    if (!open.empty() && message.acknowledged >= *open.begin())
      message.acknowledged = {open.begin()->value - 1};
    message.open.clear();
    acknowledged_[message.sender] = std::max(acknowledged_[message.sender], message.acknowledged);
    catalog::receive(now, message);
  }
  [[nodiscard]] std::vector<outgoing> take_output() override {
    auto output = catalog::take_output();
    for (const outgoing& out : output) unanswered_[out.to.value].erase(out.message.sequence);
    return output;
  }

 private:
  std::map<std::uint64_t, std::set<request_sequence>> unanswered_;
  std::map<std::uint64_t, request_sequence> acknowledged_;
};

/// Forgets answers up to the first request that is open: a request that waits long holds all others.
class server_that_acknowledges_in_order : public simulated_server {
 public:
  using simulated_server::simulated_server;
  void receive(time_point now, const messages::envelope& received) override {
    messages::envelope message = received;
    if (!message.open.empty()) message.acknowledged = {message.open.front().value - 1};
    message.open.clear();
    catalog::receive(now, message);
  }
};

/// Lets an incarnation join at as many places as it likes.
class server_with_many_places : public simulated_server {
 public:
  using simulated_server::simulated_server;
  void receive(time_point now, const messages::envelope& received) override {
    messages::envelope message = received;
    const auto* join = get_if<messages::join_request>(&message.body);
    if (join != nullptr && knows(incarnation{message.sender})) {
      const auto* known = record_of(incarnation{message.sender});
      const bool elsewhere = known->replica->name != join->replica || known->shard != join->shard;
      if (elsewhere) {
        const std::uint64_t other = message.sender + (std::uint64_t{1} << 40);
        names_[other] = message.sender;
        message.sender = other;
      }
    }
    catalog::receive(now, message);
  }
  [[nodiscard]] std::vector<outgoing> take_output() override {
    auto output = catalog::take_output();
    for (outgoing& out : output) {
      if (const auto name = names_.find(out.to.value); name != names_.end())
        out.to = incarnation{name->second};
    }
    return output;
  }

 private:
  std::map<std::uint64_t, std::uint64_t> names_;
};

/// Believes that a worker that has failed still holds what it held before.
class server_that_forgets_overwriting : public simulated_server {
 public:
  using simulated_server::simulated_server;
  void receive(time_point now, const messages::envelope& received) override {
    messages::envelope message = received;
    if (auto* finish = get_if<messages::finish_request>(&message.body)) finish->intact = true;
    catalog::receive(now, message);
  }
};

/// Takes every replica for a datacenter of its own: each gets the version from afar.
class server_that_crosses_often : public simulated_server {
 public:
  using simulated_server::simulated_server;
  void receive(time_point now, const messages::envelope& received) override {
    messages::envelope message = received;
    if (auto* join = get_if<messages::join_request>(&message.body)) join->location.datacenter = join->replica;
    catalog::receive(now, message);
  }
};

/// Promises less than it gives.
class server_without_credits : public simulated_server {
 public:
  using simulated_server::simulated_server;
  [[nodiscard]] source_limits limits() const noexcept override { return {8, 1}; }
};

/// Relies on machines that may vanish.
class server_that_relies_on_spot : public simulated_server {
 public:
  using simulated_server::simulated_server;
  void receive(time_point now, const messages::envelope& received) override {
    messages::envelope message = received;
    if (auto* join = get_if<messages::join_request>(&message.body)) join->spot = false;
    catalog::receive(now, message);
  }
};

/// Counts a holder as a survivor until it is declared dead, however long it has been silent.
class server_that_relies_on_the_silent : public simulated_server {
 public:
  using simulated_server::simulated_server;
  void receive(time_point now, const messages::envelope& message) override {
    const auto others = others_than(message.sender);
    std::map<incarnation, time_point> heard;
    for (catalog_detail::worker_state* other : others)
      heard[other->id] = std::exchange(other->signs.last_heard, now);
    catalog::receive(now, message);
    for (catalog_detail::worker_state* other : others_than(message.sender)) {
      if (heard.contains(other->id)) other->signs.last_heard = heard[other->id];
    }
  }

 private:
  [[nodiscard]] std::vector<catalog_detail::worker_state*> others_than(std::uint64_t sender) const {
    std::vector<catalog_detail::worker_state*> out;
    const auto* model = record_of_model("policy");
    if (model == nullptr) return out;
    for (const auto& [name, replica] : model->replicas) {
      for (catalog_detail::worker_state* worker : replica->workers) {
        if (worker != nullptr && worker->id.value != sender) out.push_back(worker);
      }
    }
    return out;
  }
};

/// Believes that each receiving worker's upstreams lead to one that has everything, whomever they pass.
class server_that_looks_up_no_chain : public simulated_server {
 public:
  using simulated_server::simulated_server;
  ~server_that_looks_up_no_chain() override { lead_to(nullptr); }
  void receive(time_point now, const messages::envelope& message) override {
    lead_to(&source_of_all_.as_reader.chain);
    catalog::receive(now, message);
    lead_to(nullptr);
  }

 private:
  void lead_to(catalog_detail::chain_node* end) {
    source_of_all_.held.emplace();
    const auto* model = record_of_model("policy");
    if (model == nullptr) return;
    for (const auto& [name, replica] : model->replicas) {
      for (const catalog_detail::worker_state* worker : replica->workers)
        if (worker != nullptr && worker->receiving) worker->as_reader.chain.follow(end);
    }
  }
  catalog_detail::worker_state source_of_all_;
};

/// Forgets for which call it has granted a lease: what its reader reads from already is offered again.
class server_that_grants_twice : public simulated_server {
 public:
  using simulated_server::simulated_server;
  void receive(time_point now, const messages::envelope& message) override {
    for_each_lease([](const catalog_detail::lease_state& lease) {
      const_cast<catalog_detail::lease_state&>(lease).operation = {};
    });
    catalog::receive(now, message);
  }
};

/// One version for all shards of a replica, and each ends alone.
class ends_alone : public group_consistent {
 public:
  using group_consistent::group_consistent;
  static constexpr std::string_view name = "ends_alone";
  static constexpr bool completes_per_group = false;
};
static_assert(consistency<ends_alone>);

/// `overlooked`: what the bug breaks too, and perhaps earlier.
template <typename Server>
catch_record first_violation_of(const std::set<rule>& overlooked = {}) {
  return first_violation(decided_by<Server>(), 300, 0.0, std::chrono::milliseconds{100},
                         [&](auto& history) { history.overlooked = overlooked; });
}

/// The lease of a dead reader ends at once: its source is not told to cut it off, nor waited for.
class server_that_expires_leases : public simulated_server {
 public:
  using simulated_server::simulated_server;
  void receive(time_point now, const messages::envelope& message) override {
    catalog::receive(now, message);
    expire(now);
  }
  void advance(time_point now) override {
    catalog::advance(now);
    expire(now);
  }
  [[nodiscard]] std::vector<outgoing> take_output() override {
    auto output = catalog::take_output();
    std::erase_if(output, [](const outgoing& out) {
      return holds_alternative<messages::cut_off_push>(out.message.body);
    });
    return output;
  }

 private:
  void expire(time_point now) {
    std::vector<std::pair<incarnation, incarnation>> ended;
    for_each_lease([&](const auto& lease) {
      if (lease.stage == catalog_detail::lease_stage::cutting_off)
        ended.emplace_back(lease.source, lease.reader);
    });
    for (const auto& [source, reader] : ended) {
      catalog::receive(
          now,
          {source.value, {++last_ | std::uint64_t{1} << 50}, {}, messages::cut_off_done_request{reader}});
    }
  }
  std::uint64_t last_ = 0;
};

/// Counts a replica as a survivor until it is gone, although it has asked to let go: of two that leave, each
/// is told that the other one stays.
class server_that_trusts_leavers : public simulated_server {
 public:
  using simulated_server::simulated_server;
  void receive(time_point now, const messages::envelope& message) override {
    const auto* record = record_of(incarnation{message.sender});
    const version_number version =
        record != nullptr && record->held ? record->held->version : version_number{};
    const auto holds = [version](const catalog_detail::worker_state* worker) {
      return worker != nullptr && !worker->spot && worker->held && worker->held->version == version;
    };
    std::set<std::string> trusted;
    for_each_replica([&](catalog_detail::replica_state& other) {
      const bool leaves = version && other.counts_for != version && &other != record->replica;
      if (!leaves || !std::ranges::all_of(other.workers, holds)) return;
      trusted.insert(other.name);
      count_for(other, version);
    });
    catalog::receive(now, message);
    for_each_replica([&](catalog_detail::replica_state& other) {
      if (trusted.contains(other.name) && other.counts_for == version) count_for(other, {});
    });
  }

 private:
  template <typename Visitor>
  void for_each_replica(Visitor&& visit) const {
    const auto* model = record_of_model("policy");
    if (model == nullptr) return;
    for (const auto& [name, replica] : model->replicas) visit(*replica);
  }
  static void count_for(catalog_detail::replica_state& replica, version_number version) {
    if (const auto old = replica.model->versions.find(replica.counts_for);
        old != replica.model->versions.end())
      old->second.reliable_replicas.erase(&replica);
    replica.counts_for = version;
    if (const auto fresh = replica.model->versions.find(version); fresh != replica.model->versions.end())
      fresh->second.reliable_replicas.insert(&replica);
  }
};

/// Two replicas are told to leave at the same moment, again and again.
inline simulation_options leaving_options_for(std::uint64_t seed) {
  simulation_options options = retaining_options_for(seed);
  options.shards = 1;
  options.rollouts = 2;
  options.polite_leavers_per_second = 20;
  options.leave_together = 0.8;
  options.kills_per_second = 0;
  options.no_room = 0;
  return options;
}

}  // namespace

TEST_CASE("planted: a careless trainer and readers that skip the digests") {
  check_caught("digests skipped, trainer overwrites early",
               first_violation(policies_of(), 200, 0.5, std::chrono::milliseconds{100},
                               plant_in_workers([](auto& worker) { worker.faults.skip_digests = true; })),
               rule::shown_chunks);
}

TEST_CASE("planted: readers that believe without a look that a chunk is here") {
  check_caught("chunks taken for unchanged unseen",
               first_violation(policies_of(), 400, 0.0, std::chrono::milliseconds{100},
                               plant_in_workers([](auto& worker) { worker.faults.skip_checks = true; })),
               rule::shown_chunks);
}

namespace {

/// ... with the rules overlooked that see at once that memory is given back too early: what comes of it?
plant_fault plant_and_wait_for_bytes(void (*change)(simulated_worker&)) {
  return [change](simulation& history) {
    plant_in_workers(change)(history);
    history.overlooked = {rule::permission, rule::sources};
  };
}

}  // namespace

TEST_CASE("planted: a source that does not cut off, and readers that skip both checks") {
  check_caught("no cut-off, no header check, no digests",
               first_violation(policies_of(), 400, 0.0, std::chrono::milliseconds{1},
                               plant_and_wait_for_bytes([](auto& worker) {
                                 worker.faults.no_cut_off = true;
                                 worker.faults.skip_header_check = true;
                                 worker.faults.skip_digests = true;
                               })),
               rule::shown_chunks);
}

TEST_CASE("planted: the epoch is not raised and digests are skipped") {
  check_caught("no cut-off, epoch not raised, no digests",
               first_violation(policies_of(), 400, 0.0, std::chrono::milliseconds{1},
                               plant_and_wait_for_bytes([](auto& worker) {
                                 worker.faults.no_cut_off = true;
                                 worker.faults.no_epoch = true;
                                 worker.faults.skip_digests = true;
                               })),
               rule::shown_chunks);
}

TEST_CASE("planted: a reader shows chunks before they have arrived, and its readers skip the digests") {
  check_caught("chunks shown before their arrival, no digests",
               first_violation(policies_of(), 400, 0.0, std::chrono::milliseconds{100},
                               plant_in_workers([](auto& worker) {
                                 worker.faults.shows_early = true;
                                 worker.faults.skip_digests = true;
                               })),
               rule::shown_chunks);
}

TEST_CASE("planted: a chunk is served on before it was verified") {
  check_caught("chunks served on unverified, flipped bits",
               first_violation_with(policies_of(), hard_options_for, 200, plant_in_workers([](auto& worker) {
                                      worker.faults.shows_unverified = true;
                                    })),
               rule::shown_chunks);
}

TEST_CASE("planted: a reader takes an open version for whole") {
  check_caught(
      "an open version counts when all of it is there",
      first_violation(policies_of(), 200, 0.0, std::chrono::milliseconds{100},
                      [](auto& history) {
                        plant_in_workers([](auto& worker) { worker.faults.ends_open = true; })(history);
                        // The server believes nothing of that, and names no root for it.
                        history.overlooked = {rule::beliefs, rule::grace, rule::readable};
                      }),
      rule::whole);
}

TEST_CASE("planted: the lanes of a pull connect without knowing of each other") {
  check_caught(
      "all lanes wait for the same source",
      first_violation(policies_of(), 200, 0.0, std::chrono::milliseconds{100},
                      plant_in_workers([](auto& worker) { worker.faults.lanes_connect_alone = true; })),
      rule::lanes);
}

TEST_CASE("a reader that shows chunks before they have arrived is seen through by digests alone") {
  const catch_record caught =
      first_violation(policies_of(), 60, 0.0, std::chrono::milliseconds{100}, [](auto& history) {
        plant_in_workers([](auto& worker) { worker.faults.shows_early = true; })(history);
        history.overlooked = {rule::shown_chunks};
      });
  check_not_caught(caught);
}

TEST_CASE("without cut-off the header check alone still keeps the bytes apart") {
  const catch_record caught = first_violation(policies_of(), 100, 0.0, std::chrono::milliseconds{1},
                                              plant_and_wait_for_bytes([](auto& worker) {
                                                worker.faults.no_cut_off = true;
                                                worker.faults.skip_digests = true;
                                              }));
  check_not_caught(caught);
}

TEST_CASE("planted: a source that does not cut off") {
  check_caught("no cut-off",
               first_violation(policies_of(), 200, 0.0, std::chrono::milliseconds{1},
                               plant_in_workers([](auto& worker) { worker.faults.no_cut_off = true; })),
               rule::permission);
}

namespace {

simulation_options many_stand_still(std::uint64_t seed) {
  simulation_options options = patient_options_for(seed);
  options.paused_readers = 0.3;
  return options;
}

}  // namespace

TEST_CASE("planted: the epoch check is skipped, without digests, and processes are restarted at once") {
  const auto with_overlooked = [](const std::set<rule>& overlooked) {
    return first_violation_with(
        policies_of<nearest_source, group_consistent, no_integrity>(), many_stand_still, 600,
        [&](auto& history) {
          plant_in_workers([](auto& worker) { worker.faults.skip_header_check = true; })(history);
          history.overlooked = overlooked;
        });
  };
  check_caught("header not read again, no digests", with_overlooked({}), rule::sources);
  check_caught("header not read again, no digests: what comes of it", with_overlooked({rule::sources}),
               rule::shown_chunks);
}

TEST_CASE("planted: leases of dead readers expire without cut-off") {
  check_caught("expiry without cut-off",
               first_violation_with(decided_by<server_that_expires_leases>(), patient_options_for, 300),
               rule::permission);
}

TEST_CASE("planted: the keys of an earlier server's readers stay valid") {
  check_caught("keys not revoked after a fail-over",
               first_violation_with(decided_by<server_that_revokes_nothing>(), patient_options_for, 500),
               rule::permission);
}

TEST_CASE("planted: a lease counts from the start of its transfer") {
  check_caught("lease counted at transfer start",
               first_violation_with(decided_by<server_that_counts_at_the_start>(), patient_options_for, 300,
                                    // It answers before it has done what it says.
                                    [](auto& history) {
                                      history.overlooked = {rule::beliefs, rule::drains};
                                    }),
               rule::permission);
}

TEST_CASE("planted: an unpublish that has returned leaves leases behind") {
  check_caught("leases left by an unpublish",
               first_violation_with(decided_by<server_that_counts_at_the_start>(), patient_options_for, 300,
                                    [](auto& history) {
                                      history.overlooked = {rule::beliefs, rule::permission};
                                    }),
               rule::drains);
}

TEST_CASE("planted: a new server grants itself no grace") {
  const auto many_servers = [](std::uint64_t seed) {
    simulation_options options = hard_options_for(seed);
    options.server_kills_per_second *= 4;
    options.takeovers_per_second *= 4;
    return options;
  };
  check_caught(
      "grace period left out",
      first_violation_with(with_grace(std::chrono::milliseconds{60}), many_servers, 600,
                           // With so many changes of server a trainer may be too late without any bug.
                           [](auto& history) { history.overlooked = {rule::trainers}; }),
      rule::grace);
}

namespace {

/// Who holds a version that is asked for keeps it, whatever newer one there is.
class keeps_what_it_has : public group_consistent {
 public:
  using group_consistent::group_consistent;
  [[nodiscard]] version_decision decide(const version_selector& selector,
                                        const version_view& view) const noexcept {
    version_decision decision = group_consistent::decide(selector, view);
    const bool takes = decision.kind == version_decision::kind_type::take;
    if (takes && view.held && accepts(selector, view.held))
      decision = {version_decision::kind_type::keep, view.held, errc::ok};
    return decision;
  }
};
static_assert(consistency<keeps_what_it_has>);

}  // namespace

TEST_CASE("planted: a replica keeps its version while there is a newer one") {
  check_caught("latest is what the caller holds",
               first_violation(policies_of<nearest_source, keeps_what_it_has>(), 60, 0.0,
                               std::chrono::milliseconds{100}),
               rule::grace);
}

TEST_CASE("planted: of two that leave, each is told that the other one stays") {
  check_caught("two leavers trust each other",
               first_violation_with(decided_by<server_that_trusts_leavers>(), leaving_options_for, 500),
               rule::retention);
  const catch_record sound = first_violation_with(policies_of(), leaving_options_for, 100);
  check_not_caught(sound);
}

TEST_CASE("planted: latest is resolved per shard") {
  check_caught(
      "each shard decides for itself",
      first_violation(policies_of<nearest_source, independent>(), 200, 0.0, std::chrono::milliseconds{100},
                      [](auto& history) {
                        history.expect_groups = true;
                        history.overlooked = {rule::steps};
                      }),
      rule::group_version);
}

TEST_CASE("planted: the shards of a replica count their calls alone") {
  check_caught(
      "each shard counts for itself",
      first_violation(policies_of<nearest_source, independent>(), 200, 0.0, std::chrono::milliseconds{100},
                      [](auto& history) { history.expect_groups = true; }),
      rule::steps);
}

TEST_CASE("planted: an update ends for each shard alone") {
  simulated_policies alone = policies_of<nearest_source, ends_alone>();
  alone.consistency.completes_per_group = true;
  check_caught("each shard ends for itself",
               first_violation(alone, 200, 0.0, std::chrono::milliseconds{100},
                               [](auto& history) {
                                 history.overlooked = {rule::beliefs, rule::goodbyes};
                               }),
               rule::group_end);
}

TEST_CASE("planted: a server that waits for requests that were given up") {
  check_caught("given-up requests fill the server's table",
               first_violation_of<server_that_waits_for_given_up_requests>(), rule::answers);
}

TEST_CASE("planted: a server that forgets answers in order") {
  check_caught("a long wait fills the server's table",
               first_violation_of<server_that_acknowledges_in_order>(), rule::answers);
}

TEST_CASE("planted: a silent holder is relied upon until it is declared dead") {
  check_caught(
      "the silent relied upon",
      first_violation_with(decided_by<server_that_relies_on_the_silent>(), retaining_options_for, 600),
      rule::retention);
}

TEST_CASE("planted: an incarnation may join at a second place") {
  check_caught("two places for one incarnation, and one worker too many",
               first_violation_of<server_with_many_places>(), rule::goodbyes);
  check_caught("two places for one incarnation",
               first_violation_of<server_with_many_places>({rule::goodbyes}), rule::places);
}

TEST_CASE("planted: a server that lets everybody cross") {
  check_caught("many seeds", first_violation_of<server_that_crosses_often>(), rule::seeds);
}

TEST_CASE("planted: a server that gives more than it promises") {
  check_caught("more readers than credits", first_violation_of<server_without_credits>(), rule::credits);
}

TEST_CASE("planted: a server that takes overwritten memory for intact") {
  check_caught("a failed update is taken for harmless", first_violation_of<server_that_forgets_overwriting>(),
               rule::beliefs);
}

TEST_CASE("planted: an update given up while its group finishes says that nothing was overwritten") {
  check_caught("an unconfirmed success is forgotten",
               first_violation(policies_of(), 600, 0.0, std::chrono::milliseconds{100},
                               plant_in_workers([](auto& worker) { worker.faults.forgets_success = true; })),
               rule::beliefs);
}

TEST_CASE("planted: a failed update leaves another version's description beside the bytes that are kept") {
  check_caught(
      "what was held is shown under another description",
      first_violation(policies_of(), 600, 0.0, std::chrono::milliseconds{100},
                      plant_in_workers([](auto& worker) { worker.faults.forgets_description = true; })),
      rule::readable);
}

TEST_CASE("planted: a pull that was stopped says that it has overwritten nothing") {
  check_caught(
      "a torn version is shown again",
      first_violation(policies_of(), 60, 0.0, std::chrono::milliseconds{100},
                      plant_in_workers([](auto& worker) { worker.faults.forgets_overwriting = true; })),
      rule::bytes_of_version);
}

TEST_CASE("planted: a read changes a chunk that was accepted before") {
  check_caught("reads overrun their chunks",
               first_violation(policies_of(), 60, 0.0, std::chrono::milliseconds{100},
                               plant_in_workers([](auto& worker) { worker.faults.overruns = true; })),
               rule::received_chunks);
}

TEST_CASE("planted: a server that lets upstreams form a cycle") {
  check_caught("a cycle of upstreams", first_violation_of<server_that_looks_up_no_chain>(), rule::catalog);
}

TEST_CASE("planted: a server that grants the same source twice") {
  check_caught("a source is granted twice", first_violation_of<server_that_grants_twice>(), rule::leases);
}

TEST_CASE("planted: flipped bits, and readers that skip the digests") {
  check_caught("bits flip, digests skipped",
               first_violation_with(policies_of(), hard_options_for, 60, plant_in_workers([](auto& worker) {
                                      worker.faults.skip_digests = true;
                                    })),
               rule::shown_chunks);
}

TEST_CASE("planted: a server that promises retention and retains nothing") {
  check_caught("retention forgotten",
               first_violation_with(decided_by<server_that_retains_nothing>(), retaining_options_for, 60),
               rule::retention);
}

TEST_CASE("planted: a server that retains one version less than it was asked to") {
  check_caught("one version less is retained",
               first_violation_with(decided_by<server_that_retains_one_less>(), retaining_options_for, 60),
               rule::retention);
}

TEST_CASE("planted: a server that gives a retained version up when one process has no room for it") {
  check_caught("a version is given up too early",
               first_violation_with(decided_by<server_that_gives_versions_up>(), retaining_options_for, 60),
               rule::retention);
}

TEST_CASE("planted: a server that says that it has drained a replica, and has not") {
  check_caught("an order to drain forgotten",
               first_violation_with(decided_by<server_that_drains_nobody>(), ordered_options_for, 60),
               rule::leases);
}

TEST_CASE("planted: a server that says that it has rolled a model back, and has not") {
  check_caught("roll back forgotten",
               first_violation_with(decided_by<server_that_rolls_nothing_back>(), rollback_options_for, 60),
               rule::trainers);
  // The trainer's next version is refused; its bytes are not the old version's, which nobody keeps.
  const std::set<rule> earlier{rule::trainers, rule::shown_chunks, rule::received_chunks,
                               rule::bytes_of_version, rule::retention};
  check_caught("what was rolled back is offered on",
               first_violation_with(decided_by<server_that_rolls_nothing_back>(), rollback_options_for, 60,
                                    [&](auto& history) { history.overlooked = earlier; }),
               rule::valid);
}

TEST_CASE("planted: spot replicas count for retention") {
  check_caught("spot relied upon",
               first_violation_with(decided_by<server_that_relies_on_spot>(), retaining_options_for, 100),
               rule::retention);
}
