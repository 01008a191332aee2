/// \file planted.cpp
/// Bugs planted into the worker or the server: the rules of the simulation must see each, in a few histories.

#include <doctest/doctest.h>

#include <chrono>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <variant>

#include "histories.hpp"
#include "tensorhub/policy/consistency/independent.hpp"
#include "tensorhub/testing/simulation/world.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;

namespace {

/// Runs histories with a planted fault until one is caught; returns the violation (empty: it was not seen).
template <typename Simulation, typename Plant>
std::string first_violation(std::uint64_t limit, double careless, duration unpublish_timeout, Plant&& plant) {
  for (std::uint64_t seed = 1; seed <= limit; ++seed) {
    simulation_options options = options_for(seed);
    options.careless_trainer = careless;
    options.unpublish_timeout = unpublish_timeout;
    Simulation history{options};
    plant(history);
    history.run();
    if (!history.violations().empty()) return history.violations().front();
  }
  return {};
}

using default_simulation = simulation<>;

template <typename Change>
auto plant_in_workers(Change change) {
  return [change](default_simulation& history) {
    history.for_each_worker(change);
    history.on_spawn = change;
  };
}

void check_caught(const char* bug, const std::string& violation, const char* rule) {
  std::cout << "planted: " << bug << " -> " << (violation.empty() ? "NOT CAUGHT" : violation) << "\n";
  CHECK_MESSAGE(violation.find(rule) != std::string::npos, bug);
}

// ---- broken servers

/// Forgets no answer that is still to come, although its worker has given the request up: 64 of them, and the
/// worker is mute.
class server_that_waits_for_given_up_requests : public catalog<> {
 public:
  using catalog<>::catalog;
  void receive(time_point now, messages::envelope message) {
    std::set<request_sequence>& open = unanswered_[message.sender];
    if (std::holds_alternative<messages::update_request>(message.body) &&
        message.sequence > acknowledged_[message.sender]) {
      open.insert(message.sequence);
    }
    if (!open.empty() && message.acknowledged >= *open.begin())
      message.acknowledged = {open.begin()->value - 1};
    acknowledged_[message.sender] = std::max(acknowledged_[message.sender], message.acknowledged);
    catalog<>::receive(now, message);
  }
  [[nodiscard]] std::vector<outgoing> take_output() {
    auto output = catalog<>::take_output();
    for (const outgoing& out : output) unanswered_[out.to.value].erase(out.message.sequence);
    return output;
  }

 private:
  std::map<std::uint64_t, std::set<request_sequence>> unanswered_;
  std::map<std::uint64_t, request_sequence> acknowledged_;
};

/// Lets an incarnation join at as many places as it likes.
class server_with_many_places : public catalog<> {
 public:
  using catalog<>::catalog;
  void receive(time_point now, messages::envelope message) {
    const auto* join = std::get_if<messages::join_request>(&message.body);
    if (join != nullptr && knows(incarnation{message.sender})) {
      const auto* known = record_of(incarnation{message.sender});
      const bool elsewhere = known->replica->name != join->replica || known->shard != join->shard;
      if (elsewhere) {
        const std::uint64_t other = message.sender + (std::uint64_t{1} << 40);
        names_[other] = message.sender;
        message.sender = other;
      }
    }
    catalog<>::receive(now, message);
  }
  [[nodiscard]] std::vector<outgoing> take_output() {
    auto output = catalog<>::take_output();
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
class server_that_forgets_overwriting : public catalog<> {
 public:
  using catalog<>::catalog;
  void receive(time_point now, messages::envelope message) {
    if (auto* finish = std::get_if<messages::finish_request>(&message.body)) finish->intact = true;
    catalog<>::receive(now, message);
  }
};

template <typename Server>
using simulation_of = simulation<nearest_source, group_consistent, xxh3_128, Server>;

template <typename Server>
std::string first_violation_of() {
  return first_violation<simulation_of<Server>>(300, 0.0, std::chrono::milliseconds{100}, [](auto&) {});
}

}  // namespace

TEST_CASE("planted: a careless trainer and readers that skip the digests") {
  check_caught("digests skipped, trainer overwrites early",
               first_violation<default_simulation>(
                   200, 0.5, std::chrono::milliseconds{100},
                   plant_in_workers([](auto& worker) { worker.faults.skip_digests = true; })),
               "wrong bytes");
}

TEST_CASE("planted: a source that does not cut off, and readers that skip both checks") {
  check_caught("no cut-off, no header check, no digests",
               first_violation<default_simulation>(400, 0.0, std::chrono::milliseconds{1},
                                                   plant_in_workers([](auto& worker) {
                                                     worker.faults.no_cut_off = true;
                                                     worker.faults.skip_header_check = true;
                                                     worker.faults.skip_digests = true;
                                                   })),
               "wrong bytes");
}

TEST_CASE("planted: the epoch is not raised and digests are skipped") {
  check_caught("no cut-off, epoch not raised, no digests",
               first_violation<default_simulation>(400, 0.0, std::chrono::milliseconds{1},
                                                   plant_in_workers([](auto& worker) {
                                                     worker.faults.no_cut_off = true;
                                                     worker.faults.no_epoch = true;
                                                     worker.faults.skip_digests = true;
                                                   })),
               "wrong bytes");
}

TEST_CASE("without cut-off the header check alone still keeps the bytes apart") {
  const std::string violation = first_violation<default_simulation>(100, 0.0, std::chrono::milliseconds{1},
                                                                    plant_in_workers([](auto& worker) {
                                                                      worker.faults.no_cut_off = true;
                                                                      worker.faults.skip_digests = true;
                                                                    }));
  CHECK_MESSAGE(violation.empty(), violation);
}

TEST_CASE("planted: latest is resolved per shard") {
  check_caught(
      "each shard decides for itself",
      first_violation<simulation<nearest_source, independent>>(
          200, 0.0, std::chrono::milliseconds{100}, [](auto& history) { history.expect_groups = true; }),
      "got versions");
}

TEST_CASE("planted: a server that waits for requests that were given up") {
  check_caught("given-up requests fill the server's table",
               first_violation_of<server_that_waits_for_given_up_requests>(), "was not answered");
}

TEST_CASE("planted: an incarnation may join at a second place") {
  check_caught("two places for one incarnation", first_violation_of<server_with_many_places>(),
               "a newer process has taken this worker's place");
}

TEST_CASE("planted: a server that takes overwritten memory for intact") {
  check_caught("a failed update is taken for harmless", first_violation_of<server_that_forgets_overwriting>(),
               "the server believes");
}

TEST_CASE("planted: an update given up while its group finishes says that nothing was overwritten") {
  check_caught("an unconfirmed success is forgotten",
               first_violation<default_simulation>(
                   600, 0.0, std::chrono::milliseconds{100},
                   plant_in_workers([](auto& worker) { worker.faults.forgets_success = true; })),
               "the server believes");
}
