/// \file catalog_rights.cpp
/// Who may say what to a secured server (service/catalog/authority.hpp).

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catalog_driver.hpp"

using namespace catalog_test;

namespace {

constexpr std::array every_right{right::read,    right::serve, right::publish, right::retain,
                                 right::replace, right::look,  right::evict};

[[nodiscard]] client_identity client_of(client_rules rules, std::string key = "key") {
  return {std::move(key), std::make_shared<const client_rules>(std::move(rules))};
}
[[nodiscard]] client_identity client_that_may(rights some, std::string key = "key") {
  client_rules rules{"somebody"};
  rules.may = some;
  return client_of(std::move(rules), std::move(key));
}

/// One request, and the rights one of which it needs; none: nothing.
struct row {
  std::string_view name;
  messages::message body;
  rights needed;
};

[[nodiscard]] messages::message order(messages::manage_kind kind) {
  return messages::manage_request{kind, "policy", "trainer", {}};
}
[[nodiscard]] messages::message change_of_retention(messages::retain_request change) {
  return messages::manage_request{messages::manage_kind::retention, "policy", {}, change};
}

/// Every request that a worker, or a process that is none, may send.
[[nodiscard]] std::vector<row> requests(driver<>& server) {
  const rights to_look = right::read | right::publish | right::look;
  messages::retain_request roll_back;
  roll_back.roll_back_to = version_number{0};
  std::vector<row> out;
  out.push_back({"join", server.join_message("trainer"), right::read | right::publish});
  out.push_back({"publish", messages::publish_request{{}, server.reference(2)}, right::publish});
  out.push_back({"unpublish", messages::unpublish_request{1, 1, {}}, {}});
  out.push_back({"update", server.update_message({1}), right::read});
  out.push_back({"sources", messages::sources_request{}, right::read});
  out.push_back({"receiving", messages::receiving_request{}, {}});
  out.push_back({"lease_released", messages::lease_released_request{}, {}});
  out.push_back({"finish", messages::finish_request{}, {}});
  out.push_back({"cut_off_done", messages::cut_off_done_request{{77}}, {}});
  out.push_back({"wait", messages::wait_request{latest, 1000}, right::read});
  out.push_back({"holding", messages::holding_request{server.reference(1)}, right::read | right::publish});
  out.push_back({"retain", messages::retain_request{.keep_latest = 1}, right::retain});
  out.push_back({"pin", messages::retain_request{.pin = 1}, right::retain});
  out.push_back({"release", messages::retain_request{.release = 1}, right::retain});
  out.push_back({"roll back", roll_back, right::publish});
  out.push_back({"offload_failed", messages::offload_failed_request{}, {}});
  out.push_back({"leave", messages::leave_request{}, {}});
  out.push_back({"list", messages::list_request{"policy"}, to_look});
  out.push_back({"list of all", messages::list_request{}, to_look});
  out.push_back({"describe", messages::describe_request{"policy", 0}, to_look});
  out.push_back({"why", messages::why_request{"policy", "trainer", 0}, to_look});
  out.push_back({"stuck", messages::stuck_request{}, to_look});
  out.push_back({"order: retain", change_of_retention({.keep_latest = 1}), right::retain});
  out.push_back({"order: roll back", change_of_retention(roll_back), right::publish});
  out.push_back({"order: evict", order(messages::manage_kind::evict), right::evict});
  out.push_back({"order: drain", order(messages::manage_kind::drain), right::evict});
  out.push_back({"order: resume", order(messages::manage_kind::resume), right::evict});
  return out;
}

}  // namespace

TEST_CASE("catalog rights: each request with each single right, and with none") {
  driver probe;
  const std::size_t count = requests(probe).size();
  for (std::size_t at = 0; at < count; ++at) {
    for (std::size_t held = 0; held <= every_right.size(); ++held) {
      driver server;
      const incarnation worker = server.join(1, "trainer");
      REQUIRE(server.publish(worker, 1).ok());
      const row asked = std::move(requests(server)[at]);
      const rights may = held < every_right.size() ? rights{every_right[held]} : rights{};
      CAPTURE(asked.name);
      CAPTURE(to_string(may));
      server.clients[worker] = client_that_may(may);
      const std::uint64_t sequence = server.send(worker, asked.body);
      const auto result = server.result_of(worker, sequence);
      const bool is_refused = result && result->code == errc::refused;
      CHECK(is_refused == !(asked.needed.empty() || asked.needed.has_any_of(may)));
      if (is_refused) CHECK(result->sentence.find("the key 'somebody' may not") != std::string::npos);
      CHECK(server.core.statistics().requests_refused == (is_refused ? 1 : 0));
    }
  }
}

TEST_CASE("catalog rights: to roll back and to retain in one request needs both rights") {
  driver server;
  const incarnation worker = server.join(1, "trainer");
  REQUIRE(server.publish(worker, 1).ok());
  messages::retain_request both{.keep_latest = 1};
  both.roll_back_to = version_number{1};
  const auto result_with = [&](rights may) {
    server.clients[worker] = client_that_may(may);
    return server.ask<messages::status_reply>(worker, both).result.code;
  };
  CHECK(result_with(right::retain) == errc::refused);
  CHECK(result_with(right::publish) == errc::refused);
  CHECK(result_with(right::publish | right::retain) == errc::ok);
}

TEST_CASE("catalog rights: a key joins as the replicas, and speaks of the models, that its rules name") {
  driver server;
  client_rules rules{"rollouts"};
  rules.models = {"policy"};
  rules.replicas = {"rollout-*"};
  rules.may = right::read | right::serve | right::retain | right::evict;
  server.clients[{2}] = server.clients[{3}] = server.clients[{9}] = client_of(rules);
  const incarnation trainer = server.join(1, "trainer");
  REQUIRE(server.publish(trainer, 1).ok());
  CHECK(server.ask<messages::join_reply>({2}, server.join_message("trainer")).result.code == errc::refused);
  CHECK(server.core.record_of(trainer) != nullptr);
  auto other_model = server.join_message("rollout-0");
  other_model.model = "value";
  CHECK(server.ask<messages::join_reply>({2}, other_model).result.code == errc::refused);
  CHECK(server.core.record_of_model("value") == nullptr);
  server.join(2, "rollout-0");
  CHECK(server.start_update({2}).source == trainer);

  // Another model, of which it hears nothing.
  other_model.replica = "trainer";
  REQUIRE(server.ask<messages::join_reply>({5}, other_model).result.ok());
  CHECK(server.ask<messages::list_reply>({5}, messages::list_request{}).models.size() == 2);
  const auto seen = server.ask<messages::list_reply>({9}, messages::list_request{});
  REQUIRE(seen.models.size() == 1);
  CHECK(seen.models.front().name == "policy");
  CHECK(server.ask<messages::list_reply>({9}, messages::list_request{"value"}).result.code == errc::refused);
  CHECK(server.ask<messages::describe_reply>({9}, messages::describe_request{"value", 0}).result.code ==
        errc::refused);
  CHECK(server.ask<messages::stuck_reply>({9}, messages::stuck_request{"value", 0}).result.code ==
        errc::refused);
  CHECK(server
            .ask<messages::manage_reply>(
                {9}, messages::manage_request{messages::manage_kind::evict, "policy", "trainer", {}})
            .result.code == errc::refused);
  CHECK(server
            .ask<messages::manage_reply>(
                {9}, messages::manage_request{messages::manage_kind::evict, "policy", "rollout-0", {}})
            .result.ok());

  // The patterns are narrowed while it runs.
  server.join(3, "rollout-1");
  rules.replicas = {"rollout-0"};
  server.clients[{3}] = client_of(rules);
  CHECK(server.ask<messages::update_reply>({3}, server.update_message({3})).result.code == errc::refused);
}

TEST_CASE("catalog rights: a worker that may not serve reads, and nobody reads from it") {
  driver server;
  const incarnation trainer = server.join(1, "trainer");
  REQUIRE(server.publish(trainer, 1).ok());
  server.clients[{2}] = client_that_may(right::read);
  const incarnation reader = server.join(2, "rollout-0");
  const auto source = server.start_shown(reader).front();
  const incarnation other = server.join(3, "rollout-1");
  const auto beside = server.start_shown(other);  // it would read from one that receives as well
  for (const auto& each : beside) CHECK(each.source == trainer);
  server.finish(reader, source);
  server.finish(other, beside.front());
  CHECK(server.entry("rollout-0").version == version_number{1});
  CHECK(server.ask<messages::update_reply>(reader, server.update_message(reader)).keep);

  server.unpublish(trainer, 1);
  server.unpublish(other, 1);
  CHECK(server.available().empty());  // only the reader has it, and readers do not get it there
  const incarnation late = server.join(4, "rollout-2");
  const std::uint64_t waits = server.update(late, exactly(1));
  CHECK(server.ask<messages::status_reply>(trainer, messages::retain_request{.pin = 1}).result.code !=
        errc::refused);

  // The list of keys is read again: its next message makes it a source.
  server.clients[reader] = client_that_may(right::read | right::serve);
  server.send_as(reader, 0, messages::heartbeat_request{});
  CHECK(server.available() == versions{{1}});
  const auto answer = server.answer<messages::update_reply>(late, waits);
  if (answer) CHECK_MESSAGE(answer->result.code == errc::unavailable, answer->result.sentence);
  const auto again = server.start_update(late, exactly(1));
  CHECK(again.source == reader);

  // And no more, while it is being read: the reader is moved, or told.
  server.clients[reader] = client_that_may(right::read);
  server.send_as(reader, 0, messages::heartbeat_request{});
  CHECK(server.available().empty());
}

TEST_CASE(
    "catalog rights: a key that may not read any more ends the call that waits, and it may call again") {
  driver server;
  const incarnation trainer = server.join(1, "trainer");
  server.clients[{2}] = client_that_may(right::read | right::serve);
  const incarnation reader = server.join(2, "rollout-0");
  const messages::message call = server.update_message(reader, at_least(1));
  server.send_as(reader, 70, call);
  CHECK_FALSE(server.answer<messages::update_reply>(reader, 70).has_value());
  server.clients[reader] = client_that_may(right::serve);
  server.send_as(reader, 70, call);  // as sessions repeat what is not answered
  const auto refused = server.answer<messages::update_reply>(reader, 70);
  REQUIRE(refused.has_value());
  CHECK(refused->result.code == errc::refused);
  REQUIRE(server.publish(trainer, 1).ok());
  CHECK(server.core.statistics().leases == 0);
  server.clients[reader] = client_that_may(right::read | right::serve);
  CHECK(server.start_update(reader).source == trainer);
  CHECK_FALSE(server.core.verdict_of(reader).has_value());
}

TEST_CASE("catalog rights: when the list has changed, everybody has the rights of now, without a message") {
  driver server;
  const auto rules_now = [](rights some) {
    return [some](const std::string& key) { return key == "gone" ? nullptr : client_that_may(some).rules; };
  };
  const auto joins = [&](std::uint64_t id, const std::string& key, bool tells) {
    server.clients[{id}] = client_that_may(right::read | right::publish | right::serve, key);
    auto join = server.join_message("worker-" + std::to_string(id));
    if (!tells) join.form.tensors.clear();
    return server.send({id}, join);
  };
  for (const std::uint64_t asked : {1u, 2u, 3u}) static_cast<void>(joins(asked, "good", false));
  const std::uint64_t waits = joins(4, "good", false);
  static_cast<void>(joins(5, "gone", false));
  REQUIRE((server.core.is_joining({4}) && server.core.is_joining({5})));
  server.core.review(server.now, rules_now(right::look));
  CHECK_FALSE(server.core.is_joining({5}));
  static_cast<void>(joins(6, "gone", true));  // the layout comes
  CHECK(server.core.record_of({4}) == nullptr);
  const auto refused = server.answer<messages::join_reply>({4}, waits);
  REQUIRE(refused.has_value());
  CHECK(refused->result.code == errc::refused);
  CHECK(server.core.record_of({5}) == nullptr);
  REQUIRE(server.publish({6}, 1).ok());
  CHECK(server.available() == versions{1});
  server.core.review(server.now, rules_now(right::look));
  CHECK(server.available().empty());
}

TEST_CASE("catalog rights: a key that may not read any more, for its model or at all, ends what it reads") {
  driver server;
  const incarnation trainer = server.join(1, "trainer");
  REQUIRE(server.publish(trainer, 1).ok());
  client_rules rules{"somebody"};
  rules.may = right::read | right::serve;
  server.clients[{2}] = client_of(rules);
  const incarnation reader = server.join(2, "rollout-0");
  const messages::assignment source = server.start_update(reader);
  SUBCASE("at all") {
    rules.may = right::serve;
  }
  SUBCASE("for its model") {
    rules.models = {"value"};
  }
  SUBCASE("as its replica") {
    rules.replicas = {"rollout-1"};
  }
  server.clients[reader] = client_of(rules);
  server.send_as(reader, 0, messages::heartbeat_request{});
  const auto abort = server.push<messages::abort_push>(reader);
  REQUIRE(abort.has_value());
  CHECK(abort->reason.code == errc::refused);
  server.fail(reader, source, abort->reason, false);
  CHECK(server.core.statistics().leases == 0);
  CHECK(server.ask<messages::drained_reply>(trainer, messages::unpublish_request{1, 1, {}}).result.ok());
}

TEST_CASE(
    "catalog rights: a source whose key is for other models, or other replicas, now is a source no more") {
  driver server;
  client_rules rules{"somebody"};
  rules.may = right::publish | right::serve;
  server.clients[{1}] = client_of(rules);
  const incarnation trainer = server.join(1, "trainer");
  REQUIRE(server.publish(trainer, 1).ok());
  CHECK(server.available() == versions{1});
  SUBCASE("models") {
    rules.models = {"value"};
  }
  SUBCASE("replicas") {
    rules.replicas = {"rollout-*"};
  }
  server.clients[trainer] = client_of(rules);
  server.send_as(trainer, 0, messages::heartbeat_request{});
  CHECK(server.available().empty());
}

TEST_CASE("catalog rights: a temporary replica that may not serve outlives the record of its version") {
  driver server;
  const incarnation trainer = server.join(1, "trainer");
  REQUIRE(server.publish(trainer, 1).ok());
  REQUIRE(server.ask<messages::status_reply>(trainer, messages::retain_request{.pin = 1}).result.ok());
  const incarnation temporary{2};
  server.clients[temporary] = client_that_may(right::read);
  auto join = server.join_message("trainer~1");
  join.temporary = true;
  REQUIRE(server.ask<messages::join_reply>(temporary, join).result.ok());
  server.finish(temporary, server.start_update(temporary, exactly(1)));
  const std::uint64_t last = 2 + catalog_options{}.retained_versions;
  for (std::uint64_t number = 2; number <= last; ++number) REQUIRE(server.publish(trainer, number).ok());
  server.pass_alive(1500ms, {trainer, temporary});
  CHECK(server.entry("trainer~1").version == version_number{1});  // the last copy of a pinned version
  CHECK_FALSE(server.push<messages::drop_push>(temporary).has_value());
}

TEST_CASE("catalog rights: the place of a living worker is its key's, but for those that may replace") {
  driver server;
  server.clients[{1}] = client_that_may(right::publish | right::serve, "trainers");
  const incarnation trainer = server.join(1, "trainer");
  const auto join_as = [&](std::uint64_t id, rights may, std::string key) {
    server.clients[{id}] = client_that_may(may, std::move(key));
    return server.ask<messages::join_reply>({id}, server.join_message("trainer")).result;
  };
  const auto refused = join_as(2, right::read | right::publish, "rollouts");
  CHECK(refused.code == errc::refused);
  CHECK(refused.sentence.find("alive") != std::string::npos);
  CHECK(server.core.record_of(trainer) != nullptr);
  SUBCASE("a reader's word that it is gone does not open its place") {
    server.clients[{2}] = client_that_may(right::read, "rollouts");
    const incarnation reader = server.join(2, "rollout-0");
    REQUIRE(server.publish(trainer, 1).ok());
    static_cast<void>(server.lose_source(reader, server.start_update(reader)));
    CHECK(join_as(3, right::read | right::publish, "rollouts").code == errc::refused);
    CHECK(server.core.record_of(trainer) != nullptr);
  }
  SUBCASE("its own key always may") {
    CHECK(join_as(3, right::publish, "trainers").ok());
    CHECK(server.core.record_of(trainer) == nullptr);
  }
  SUBCASE("the right to replace") {
    CHECK(join_as(3, right::publish | right::replace, "operators").ok());
    CHECK(server.core.record_of(trainer) == nullptr);
  }
  SUBCASE("a silent worker is replaced") {
    server.pass(3 * catalog_options{}.heartbeat_interval);
    CHECK(join_as(3, right::publish, "operators").ok());
    CHECK(server.core.record_of(trainer) == nullptr);
  }
}

TEST_CASE("catalog rights: a reader does not tell a new server what is retained, or rolled back") {
  driver server{catalog_options{}, server_epoch{78}};
  auto join = server.join_message("rollout-0");
  join.before.server = {77};
  join.before.keeps.revision = 900;
  join.before.keeps.keep_latest = 5;
  join.before.keeps.rollbacks = {{1, 0}};
  const auto keeps_after = [&](rights may) {
    server.clients[{2}] = client_that_may(may);
    REQUIRE(server.ask<messages::join_reply>({2}, join).result.ok());
    return server.core.record_of_model("policy")->keeps.revision;
  };
  SUBCASE("one that reads") {
    CHECK(keeps_after(right::read | right::serve) == 0);
  }
  SUBCASE("one that may retain") {
    CHECK(keeps_after(right::read | right::retain) == 900);
  }
  SUBCASE("one that publishes") {
    CHECK(keeps_after(right::publish) == 900);
  }
}

TEST_CASE("catalog rights: a reader does not tell a new server which versions cannot be published any more") {
  driver server{catalog_options{}, server_epoch{78}};
  server.clients[{1}] = client_that_may(right::publish | right::serve);
  server.clients[{2}] = client_that_may(right::read | right::serve);
  auto join = server.join_message("rollout-0");
  join.before.server = {77};
  join.before.latest = {UINT64_MAX};
  join.before.peers = 2;
  SUBCASE("of the first line") {}
  SUBCASE("of a line after which there can be none") {
    join.before.latest.line = UINT32_MAX;
    join.before.held = server.reference(join.before.latest);
  }
  SUBCASE("that it says it has received") {
    join.before.latest.line = UINT32_MAX;
    REQUIRE(server.ask<messages::join_reply>({2}, join).result.ok());
    static_cast<void>(
        server.send({2}, messages::finish_request{
                             {1}, join.before.latest, {}, false, server.reference(join.before.latest), {}}));
  }
  REQUIRE(server.ask<messages::join_reply>({2}, join).result.ok());
  const incarnation trainer = server.join(1, "trainer");
  server.pass_alive(catalog_options{}.recovery_grace + 100ms, {trainer, {2}});
  CHECK(server.publish(trainer, 8).ok());
  CHECK(server.core.record_of(trainer)->model->latest_ever == version_number{8});
  static_cast<void>(server.unpublish(trainer, 8));
  messages::retain_request back;
  back.roll_back_to = version_number{7};
  REQUIRE(server.ask<messages::status_reply>(trainer, back).result.ok());
  CHECK(is_sound(server.core.record_of(trainer)->model->keeps.rollbacks));
}

namespace {

[[nodiscard]] bool is_misfit(driver<>& server, std::uint64_t worker, const messages::join_request& join) {
  const auto refused = server.ask<messages::join_reply>(incarnation{worker}, join).result;
  return refused.code == errc::layout_mismatch || refused.code == errc::policy_mismatch;
}

}  // namespace

TEST_CASE("catalog rights: the first reader does not decide what a model looks like; its publisher does") {
  driver server{catalog_options{}, server_epoch{78}};
  server.clients[{1}] = client_that_may(right::publish | right::serve);
  for (const std::uint64_t reader : {2u, 3u}) server.clients[{reader}] = client_that_may(right::read);
  auto misfit = server.join_message("rollout-0");
  SUBCASE("another layout") {
    driver<>::set_layout(misfit, layout{{{"wq", dtype::f32, {9}}}, 64});
  }
  SUBCASE("another number of shards") {
    misfit.shard = {0, 3};
  }
  SUBCASE("another transport") {
    misfit.form.transport = "verbs";
  }
  REQUIRE(server.ask<messages::join_reply>({2}, misfit).result.ok());
  auto back = server.join_message("rollout-1");
  back.before.server = {77};
  const std::uint64_t asked = server.send({3}, back);
  CHECK_FALSE(server.result_of({3}, asked).has_value());  // it is neither admitted nor sent away
  auto broken = server.join_message("trainer");
  broken.form.tensors.pop_back();
  CHECK(is_misfit(server, 1, broken));  // nobody yields to what is no layout
  CHECK(server.core.record_of({2}) != nullptr);
  auto asked_first = server.join_message("trainer");
  asked_first.form.tensors.clear();
  CHECK(server.ask<messages::join_reply>({1}, asked_first).wants_layout);
  CHECK(server.core.record_of({2}) != nullptr);
  const incarnation trainer = server.join(1, "trainer");
  CHECK(server.core.record_of({2}) == nullptr);
  const auto told = server.push<messages::goodbye_push>({2});
  REQUIRE(told.has_value());
  CHECK(told->reason.code == errc::replaced);
  CHECK(server.ask<messages::join_reply>({3}, back).result.ok());
  CHECK(server.publish(trainer, 1).ok());
  // Where there is a publisher, or its versions, everybody has to fit.
  server.clients[{4}] = client_that_may(right::publish);
  CHECK(is_misfit(server, 4, misfit));
  server.send(trainer, messages::leave_request{});
  server.pass_alive(catalog_options{}.recovery_grace + 100ms, {{3}});
  CHECK(is_misfit(server, 4, misfit));
  CHECK(server.core.record_of({3}) != nullptr);
}

namespace {

/// What a worker that joins says of version `claimed`, of bytes that nobody has published.
[[nodiscard]] messages::reference forged(driver<>& server, version_number claimed) {
  messages::reference out = server.reference(claimed);
  out.root.low ^= 1;
  return out;
}

}  // namespace

TEST_CASE("catalog rights: the readers of a source that may not serve any more go on elsewhere") {
  driver server;
  const incarnation trainer = server.join(1, "trainer");
  REQUIRE(server.publish(trainer, 1).ok());
  server.clients[{2}] = client_that_may(right::read | right::serve);
  const incarnation holder = server.join(2, "rollout-0");
  server.finish(holder, server.start_update(holder));
  const incarnation reader = server.join(3, "rollout-1");
  const auto sources = server.sources_of(reader, server.update(reader));
  REQUIRE(sources.size() == 2);
  server.clients[holder] = client_that_may(right::read);
  server.send_as(holder, 0, messages::heartbeat_request{});
  const auto push = server.push<messages::reassign_push>(reader);
  REQUIRE(push.has_value());
  CHECK(push->old_lease == (sources.front().source == holder ? sources.front() : sources.back()).lease);
}

TEST_CASE("catalog rights: for a shard that may not serve, and comes late, nobody of its datacenter waits") {
  driver server;
  for (const std::uint32_t shard : {0u, 1u}) {
    const incarnation trainer = server.join_at(1 + shard, "trainer", {.datacenter = "x"}, {shard, 2});
    REQUIRE(server.publish(trainer, 1).ok());
  }
  const location there{.datacenter = "y"};
  const incarnation first = server.join_at(3, "rollout", there, {0, 2});
  REQUIRE(!server.sources_of(first, server.update_shown(first)).empty());  // the other shard has its place
  server.clients[{4}] = client_that_may(right::read);
  const incarnation second = server.join_at(4, "rollout", there, {1, 2});
  server.start_update(second);
  const incarnation other = server.join_at(5, "other", there, {0, 2});
  CHECK(server.start_update(other).source == first);
  server.check_rules();
}

TEST_CASE("catalog rights: a key that may not publish brings no version, and blocks none, by its join") {
  driver server;
  const incarnation trainer = server.join(1, "trainer");
  REQUIRE(server.publish(trainer, 1).ok());
  server.clients[{2}] = client_that_may(right::read | right::serve);
  auto lie = server.join_message("rollout-0");
  lie.before.server = {76};
  messages::assignment source;
  source.source = trainer;
  source.version = 2;
  SUBCASE("it holds a later version") {
    lie.before.held = server.reference(9);
  }
  SUBCASE("and is filling it") {
    lie.before.held = server.reference(9);
    lie.before.held->open = true;
  }
  SUBCASE("it holds the last version of all") {
    lie.before.held = server.reference(version_number{UINT64_MAX});
  }
  SUBCASE("it reads the next version, of another root") {
    source.root = forged(server, 2).root;
    lie.before.reading = {source};
  }
  SUBCASE("and shows it") {
    lie.before.reading = {source};
    lie.before.receiving = forged(server, 2);
  }
  SUBCASE("it has been told to read it") {
    lie.before.decided = 2;
  }
  REQUIRE(server.ask<messages::join_reply>({2}, lie).result.ok());
  server.send({2}, messages::finish_request{{1}, 2, {}, false, forged(server, 2), {}});
  CHECK(server.available() == versions{1});
  CHECK(server.publish(trainer, 2).ok());
  CHECK(server.available() == versions{2});
  CHECK(server.core.record_of_model("policy")->latest_ever == version_number{2});
}

TEST_CASE(
    "catalog rights: a key that may not publish displaces no known version by numbers that it invents") {
  driver server;
  const incarnation trainer = server.join(1, "trainer");
  REQUIRE(server.publish(trainer, 1).ok());
  server.unpublish(trainer, 1);
  bool is_told = false;
  SUBCASE("it has been told to read them") {
    is_told = true;
  }
  SUBCASE("it reads them") {}
  for (std::uint64_t i = 0; i < 2 * catalog_options{}.retained_versions; ++i) {
    const incarnation liar{100 + i};
    server.clients[liar] = client_that_may(right::read);
    auto lie = server.join_message("rollout-0");
    lie.before.server = {76};
    if (is_told) {
      lie.before.decided = 1000 + i;
    } else {
      messages::assignment source;
      source.source = trainer;
      source.version = 1000 + i;
      lie.before.reading = {source};
    }
    REQUIRE(server.ask<messages::join_reply>(liar, lie).result.ok());
    server.send(liar, messages::leave_request{});
  }
  CHECK(server.publish(trainer, forged(server, 1)).code == errc::version_conflict);
  CHECK(server.publish(trainer, 1).ok());
}

TEST_CASE(
    "catalog rights: who comes late is believed to hold what the server knows, or what it may publish") {
  driver server;
  const incarnation trainer = server.join(1, "trainer");
  REQUIRE(server.publish(trainer, 1).ok());
  REQUIRE(server.publish(trainer, 2).ok());
  const auto joins_with = [&](std::uint64_t id, rights may, const messages::reference& held) {
    server.clients[{id}] = client_that_may(may, std::to_string(id));
    auto join = server.join_message("rollout-" + std::to_string(id));
    join.before.server = {76};
    join.before.held = held;
    REQUIRE(server.ask<messages::join_reply>({id}, join).result.ok());
    return server.core.record_of({id})->held.has_value();
  };
  CHECK(joins_with(2, right::read | right::serve, server.reference(2)));
  CHECK(joins_with(3, right::read | right::serve, server.reference(1)));
  CHECK_FALSE(joins_with(4, right::read | right::serve, forged(server, 2)));
  CHECK_FALSE(joins_with(5, right::read | right::serve, server.reference(9)));
  CHECK(joins_with(6, right::read | right::serve | right::publish, server.reference(9)));
  CHECK(server.available() == versions{1, 2, 9});
  // Without integrity there are no roots.
  messages::reference bare = server.reference(9);
  bare.root = {};
  CHECK_FALSE(joins_with(7, right::read | right::serve, bare));
}

TEST_CASE("catalog rights: a new server believes all that come while it recovers") {
  driver server{catalog_options{.recovery_grace = 1000ms}, server_epoch{78}};
  server.clients[{2}] = client_that_may(right::read | right::serve);
  auto join = server.join_message("rollout-0");
  join.before.server = {77};
  join.before.held = server.reference(9);
  REQUIRE(server.ask<messages::join_reply>({2}, join).result.ok());
  CHECK(server.available() == versions{9});
}

TEST_CASE(
    "catalog rights: who may not publish does not report what the server has forgotten, or never knew") {
  driver server;
  const incarnation trainer = server.join(1, "trainer");
  REQUIRE(server.publish(trainer, 10).ok());
  REQUIRE(server.publish(trainer, 20).ok());
  const auto is_held_by = [&](std::uint64_t id, rights may) {
    server.clients[{id}] = client_that_may(may, std::to_string(id));
    server.join(id, "rollout-" + std::to_string(id));
    server.send({id}, messages::holding_request{server.reference(15)});
    return server.core.record_of({id})->held.has_value();
  };
  CHECK_FALSE(is_held_by(2, right::read | right::serve));
  CHECK(is_held_by(3, right::read | right::publish));
}

TEST_CASE("catalog rights: while a shard is still to be published, nobody has received it") {
  for (const bool opened : {false, true}) {
    CAPTURE(opened);
    driver server;
    const incarnation t0 = server.join(1, "trainer", {0, 2});
    const incarnation t1 = server.join(2, "trainer", {1, 2});
    const incarnation liar = server.join(3, "liar", {1, 2});
    auto first = server.reference(2);
    first.open = opened;
    REQUIRE(server.publish(t0, first).ok());
    SUBCASE("by a report of an update's end") {
      server.send(liar, messages::finish_request{{1}, 2, {}, false, forged(server, 2), {}});
    }
    SUBCASE("by a report of a copy") {
      server.send(liar, messages::holding_request{forged(server, 2)});
    }
    CHECK(server.publish(t1, 2).ok());
  }
}

namespace {

/// As a policy without digests leaves it.
[[nodiscard]] messages::reference bare(const driver<>& server, version_number version) {
  messages::reference out = server.reference(version);
  out.root = {};
  return out;
}

/// A worker that may not publish says in many ways that it holds version 15, which nobody has published.
void bring_unpublished(bool has_roots) {
  driver server;
  const incarnation trainer = server.join(1, "trainer");
  for (const version_number version : versions{10, 20})
    REQUIRE(server.publish(trainer, has_roots ? server.reference(version) : bare(server, version)).ok());
  const incarnation liar{2};
  server.clients[liar] = client_that_may(right::read | right::serve);
  auto lie = server.join_message("rollout-0");
  lie.before.server = {76};
  messages::assignment source;
  source.source = trainer;
  source.version = 15;
  messages::message next = messages::heartbeat_request{};
  const messages::finish_request ended{{1}, 15, {}, false, bare(server, 15), {}};
  SUBCASE("by its join") {
    lie.before.held = bare(server, 15);
  }
  SUBCASE("by its join, and shows it") {
    lie.before.reading = {source};
    lie.before.receiving = bare(server, 15);
  }
  SUBCASE("by a report of a copy") {
    next = messages::holding_request{bare(server, 15)};
  }
  SUBCASE("by a report of an update's end") {
    next = ended;
  }
  SUBCASE("of one that it has been told to make") {
    lie.before.decided = 15;
    next = ended;
  }
  SUBCASE("of one that reads") {
    lie.before.reading = {source};
    next = ended;
  }
  REQUIRE(server.ask<messages::join_reply>(liar, lie).result.ok());
  server.send(liar, next);
  REQUIRE(server.core.knows(liar));
  CHECK_FALSE(server.core.record_of(liar)->held.has_value());
  CHECK(server.core.record_of(liar)->as_source.offered == catalog_detail::offer::none);
  CHECK(server.available() == versions{20});
}

}  // namespace

TEST_CASE("catalog rights: a key that may not publish brings no version, without a root either") {
  bring_unpublished(true);
}
TEST_CASE("catalog rights: a key that may not publish brings no version of a model that has no roots") {
  bring_unpublished(false);
}

TEST_CASE("catalog rights: nor what was only opened, or of which only another shard was published") {
  driver server;
  const incarnation t0 = server.join(1, "trainer", {0, 2});
  const incarnation t1 = server.join(2, "trainer", {1, 2});
  server.clients[{3}] = client_that_may(right::read | right::serve);
  const incarnation liar = server.join(3, "liar", {1, 2});
  SUBCASE("another shard was published") {
    REQUIRE(server.publish(t0, bare(server, 2)).ok());
  }
  SUBCASE("it was opened, and taken back") {
    auto opened = bare(server, 2);
    opened.open = true;
    REQUIRE(server.publish(t1, opened).ok());
    server.unpublish(t1, 2);
  }
  server.send(liar, messages::holding_request{bare(server, 2)});
  CHECK_FALSE(server.core.record_of(liar)->held.has_value());
}

TEST_CASE("catalog rights: without roots a reader is believed to hold what was published") {
  driver server;
  const rights may = right::read | right::serve;
  const incarnation trainer = server.join(1, "trainer");
  REQUIRE(server.publish(trainer, bare(server, 1)).ok());
  server.clients[{2}] = server.clients[{3}] = server.clients[{4}] = client_that_may(may);
  const auto read = [&](std::uint64_t id) {
    server.join(id, "rollout-" + std::to_string(id));
    const auto source = server.start_update({id});
    server.send({id},
                messages::finish_request{source.operation, 1, {}, false, bare(server, 1), source.lease});
    return server.core.record_of({id})->held.has_value();
  };
  CHECK(read(2));
  SUBCASE("of one that reads from another reader, when the record was forgotten meanwhile") {
    server.clients[{2}] = client_that_may(right::read);  // it is offered to nobody
    server.send_as({2}, 0, messages::heartbeat_request{});
    const std::uint64_t last = 2 + catalog_options{}.retained_versions;
    for (std::uint64_t number = 2; number <= last; ++number)
      REQUIRE(server.publish(trainer, bare(server, number)).ok());
    server.unpublish(trainer, last);
    server.clients[{2}] = client_that_may(may);
    server.send_as({2}, 0, messages::heartbeat_request{});
    CHECK(read(3));
  }
  SUBCASE("of one that comes late, too") {
    auto join = server.join_message("rollout-4");
    join.before.server = {76};
    join.before.held = bare(server, 1);
    REQUIRE(server.ask<messages::join_reply>({4}, join).result.ok());
    CHECK(server.core.record_of({4})->held.has_value());
  }
  SUBCASE("but of none that says it was filling the version") {
    auto join = server.join_message("rollout-4");
    join.before.server = {76};
    join.before.held = bare(server, 1);
    join.before.held->open = true;
    REQUIRE(server.ask<messages::join_reply>({4}, join).result.ok());
    CHECK_FALSE(server.core.record_of({4})->held.has_value());
  }
}

TEST_CASE("catalog rights: a reader ends after the recovery of a new server what it has read without roots") {
  driver server{catalog_options{.recovery_grace = 1000ms}, server_epoch{78}};
  const incarnation reader{2};
  server.clients[reader] = client_that_may(right::read | right::serve);
  auto join = server.join_message("rollout");
  join.before.server = {77};
  join.before.decided = 7;
  join.before.latest = version_number{7};
  messages::assignment source;
  source.operation = {1};
  source.lease = {41};
  source.version = 7;
  source.source = {1};  // which does not come back
  SUBCASE("it has sources") {
    join.before.reading = {source};
  }
  SUBCASE("it has none yet") {}
  REQUIRE(server.ask<messages::join_reply>(reader, join).result.ok());
  server.pass_alive(1100ms, {reader});
  server.send(reader, messages::finish_request{{1}, 7, {}, false, bare(server, 7), {41}});
  CHECK(server.core.record_of(reader)->held.has_value());
  CHECK(server.available() == versions{7});
}
