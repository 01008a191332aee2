/// \file rights.cpp
/// What each key of a fleet can do to it, with real processes' parts: a trainer's, the rollouts', a spot
/// reader's and an operator's. (The table of messages is in unit/catalog_rights.cpp.)

#include <doctest/doctest.h>

#include <string>
#include <tensorhub/security.hpp>
#include <tensorhub/server.hpp>
#include <tensorhub/server_client.hpp>

#include "hub.hpp"

using namespace system_tests;
using tensorhub::client_rules;
using tensorhub::client_rules_of;
using tensorhub::client_security;
using tensorhub::curve_key_pair;
using tensorhub::make_curve_keys;

namespace {

constexpr std::size_t few_words = 1000;

struct fleet {
  curve_key_pair server_keys = make_curve_keys();
  curve_key_pair trainers = make_curve_keys();
  curve_key_pair rollouts = make_curve_keys();
  curve_key_pair spot = make_curve_keys();
  curve_key_pair operators = make_curve_keys();
  hub::reference_server server{
      {.security = tensorhub::server_security{
           server_keys,
           {{trainers.public_key, of_trainers()},
            {rollouts.public_key, client_rules_of("rollouts replicas=rollout-* may=read,serve")},
            {spot.public_key, client_rules_of("spot replicas=spot-* may=read")},
            {operators.public_key, client_rules_of("oncall may=look,evict")}}}}};

  [[nodiscard]] static client_rules of_trainers() {
    return client_rules_of("trainers replicas=trainer-* may=publish,serve,retain,replace");
  }
  [[nodiscard]] client_security as(const curve_key_pair& keys) const {
    return {server_keys.public_key, keys, true};
  }
  [[nodiscard]] tensorhub::worker_options who_has(const curve_key_pair& keys,
                                                  const std::string& replica) const {
    auto options = who(server.address(), replica);
    options.security = as(keys);
    return options;
  }
};

/// A fleet whose trainer has published version 1.
struct running_fleet : fleet {
  trainer source{who_has(trainers, "trainer-0"), few_words};
  running_fleet() { source.publish(1); }
};

}  // namespace

TEST_CASE("rights: a rollout's key takes no trainer's place, publishes nothing, and orders nothing") {
  running_fleet all;
  std::string sentence;
  {
    trainer liar{all.who_has(all.rollouts, "trainer-0"), few_words};
    CHECK(code_of([&] { liar.worker.publish(2); }, &sentence) == errc::refused);
    CHECK_MESSAGE(contains(sentence, "the key 'rollouts' may not send a join"), sentence);
  }
  {
    trainer liar{all.who_has(all.rollouts, "rollout-9"), few_words};
    CHECK(code_of([&] { liar.worker.publish(2); }, &sentence) == errc::refused);
    CHECK_MESSAGE(contains(sentence, "may not send a publish"), sentence);
  }
  tensorhub::server_client orders{{.server = all.server.address(), .security = all.as(all.rollouts)}};
  CHECK(code_of([&] { orders.evict("policy", "trainer-0"); }) == errc::refused);
  CHECK(code_of([&] { orders.drain("policy", "trainer-0"); }) == errc::refused);
  CHECK(code_of([&] { orders.retain("policy", 3); }) == errc::refused);
  CHECK(code_of([&] { orders.roll_back_to("policy", 0); }) == errc::refused);
  CHECK(orders.list("policy").size() == 1);
  CHECK(comes_true([&] { return all.server.statistics().requests_refused >= 6; }));

  rollout reader{all.who_has(all.rollouts, "rollout-0"), few_words};
  CHECK(reader.worker.update().version == 1);
  CHECK(reader.memory.holds(1));
  all.source.worker.unpublish();
  all.source.publish(2);
  CHECK(reader.worker.update(exactly(2), 20s).version == 2);
}

TEST_CASE("rights: a key that only reads is a source for nobody") {
  running_fleet all;
  rollout reader{all.who_has(all.spot, "spot-0"), few_words};
  CHECK(reader.worker.update().version == 1);
  CHECK(reader.worker.update().kept);
  all.source.worker.unpublish();
  rollout late{all.who_has(all.rollouts, "rollout-0"), few_words};
  CHECK(code_of([&] { late.worker.update(exactly(1), 300ms); }) != errc::ok);
  all.source.publish(2);
  CHECK(late.worker.update(latest, 20s).sources == std::vector<std::string>{"trainer-0/0"});
}

TEST_CASE("rights: a rollout takes over the retained version of a trainer, which has another key") {
  running_fleet all;
  all.source.worker.retain(1);
  rollout host{all.who_has(all.rollouts, "rollout-0"), few_words};
  host.worker.join();
  CHECK_FALSE(all.source.worker.leave(20s).lost);
  rollout late{all.who_has(all.rollouts, "rollout-1"), few_words};
  CHECK(late.worker.update(exactly(1), 20s).sources == std::vector<std::string>{"rollout-0~1/0"});
}

TEST_CASE("rights: an operator's key sees everything and evicts, and joins nothing") {
  running_fleet all;
  tensorhub::server_client orders{{.server = all.server.address(), .security = all.as(all.operators)}};
  CHECK(orders.list().size() == 1);
  CHECK(orders.stuck().entries.empty());
  CHECK(code_of([&] { orders.pin("policy", 1); }) == errc::refused);
  rollout nobody{all.who_has(all.operators, "rollout-0"), few_words};
  CHECK(code_of([&] { nobody.worker.update(); }) == errc::refused);
  CHECK(orders.evict("policy", "trainer-0") == 1);
  CHECK(comes_true([&] { return all.server.statistics().workers == 0; }));
}

TEST_CASE("rights: what a running worker may do changes with the list") {
  running_fleet all;
  all.source.worker.unpublish();
  all.server.allow(all.trainers.public_key, client_rules_of("trainers may=read"));
  std::string sentence;
  CHECK(code_of([&] { all.source.worker.publish(2); }, &sentence) == errc::refused);
  CHECK_MESSAGE(contains(sentence, "the key 'trainers' may not send a publish"), sentence);
  all.server.allow(all.trainers.public_key, fleet::of_trainers());
  all.source.worker.publish(2);
  rollout reader{all.who_has(all.rollouts, "rollout-0"), few_words};
  CHECK(reader.worker.update(exactly(2), 20s).version == 2);
}

TEST_CASE("rights: nobody is sent to a source whose key was revoked, also before it is declared dead") {
  running_fleet all;
  tensorhub::server_client looks{{.server = all.server.address(), .security = all.as(all.operators)}};
  REQUIRE(looks.list("policy").front().available.size() == 1);
  REQUIRE(all.server.revoke(all.trainers.public_key));
  CHECK(comes_true([&] {
    const auto models = looks.list();
    return models.size() == 1 && models.front().available.empty() && all.server.statistics().workers == 1;
  }));
}

TEST_CASE("rights: a living trainer is not replaced by another key without that right") {
  running_fleet all;
  const curve_key_pair second = make_curve_keys();
  std::string sentence;
  const auto publish_with = [&](const std::string& rules) {
    all.server.allow(second.public_key, client_rules_of(rules));
    trainer other{all.who_has(second, "trainer-0"), few_words};
    other.memory.fill(2);
    return code_of([&] { other.worker.publish(2); }, &sentence);
  };
  CHECK(publish_with("other may=publish,serve") == errc::refused);
  CHECK_MESSAGE(contains(sentence, "may not replace"), sentence);
  CHECK(all.server.statistics().workers_replaced == 0);
  CHECK(publish_with("other may=publish,serve,replace") == errc::ok);
  CHECK(all.server.statistics().workers_replaced == 1);
}
