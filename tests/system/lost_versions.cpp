/// \file lost_versions.cpp
/// A retained version whose last copy goes is said to be lost, in the report of whatever call let it go.

#include <doctest/doctest.h>

#include <csignal>
#include <memory>
#include <string>

#include "hub.hpp"
#include "near_hub.hpp"
#include "support/child_process.hpp"

using namespace system_tests;
using tensorhub::snapshot;

namespace {

constexpr std::size_t few_words = 1000;

tensorhub::worker_options without_room(const std::string& server, std::string replica) {
  auto options = who(server, std::move(replica));
  options.offload_limit_bytes = 100;
  return options;
}

}  // namespace

TEST_CASE("lost: snapshots that are taken back") {
  hub::reference_server server;
  trainer source{without_room(server.address(), "trainer-0"), few_words};
  source.worker.publish(1, snapshot);
  source.worker.retain(3);
  CHECK(source.worker.unpublish().lost);
}

TEST_CASE("lost: a snapshot that takes the memory of an earlier one") {
  hub::reference_server server;
  trainer source{without_room(server.address(), "trainer-0"), few_words};
  source.worker.publish(1, snapshot);
  source.worker.retain(3);
  CHECK_FALSE(source.worker.publish(2, snapshot).lost);
  CHECK(source.worker.publish(3, snapshot).lost);
}

TEST_CASE("lost: an unpublish that is forced while the version is being handed over") {
  hub::reference_server server;
  // The process that has room for it cannot read.
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(0);
  gated_rollout host{who(server.address(), "rollout-0"), few_words, {.gate = gate}};
  host.worker.join();
  trainer source{without_room(server.address(), "trainer-0"), few_words};
  source.worker.publish(1);
  source.worker.retain(1);
  const auto report = source.worker.unpublish(1s);
  CHECK(report.forced);
  CHECK(report.lost);
  gate->open();
}

TEST_CASE("lost: a forced unpublish of what somebody else holds loses nothing") {
  hub::reference_server server;
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(3u << 20);
  trainer source{who(server.address(), "trainer-0"), 1u << 20};
  rollout holder{who(server.address(), "rollout-0"), 1u << 20};
  gated_rollout slow{who(server.address(), "rollout-1"), 1u << 20, {.gate = gate}};
  source.worker.publish(1);
  source.worker.retain(1);
  auto reading = slow.worker.update_async(exactly(1), 60s);
  REQUIRE(gate->wait_until_shut(20s));
  CHECK(holder.worker.update(exactly(1), 20s).version == 1);
  const auto report = source.worker.unpublish(1s);
  CHECK(report.forced);
  CHECK_FALSE(report.lost);
  gate->open();
}

TEST_CASE("lost: the report of leave") {
  hub::reference_server server;
  trainer source{without_room(server.address(), "trainer-0"), few_words};
  SUBCASE("of a version in place") {
    source.worker.publish(1);
    source.worker.retain(1);
    CHECK(source.worker.leave(5s).lost);
  }
  SUBCASE("of snapshots") {
    source.worker.publish(1, snapshot);
    source.worker.retain(1);
    CHECK(source.worker.leave(5s).lost);
  }
  SUBCASE("not lost: another process takes it") {
    rollout host{who(server.address(), "rollout-0"), few_words};
    host.worker.join();
    source.worker.publish(1);
    source.worker.retain(1);
    CHECK_FALSE(source.worker.leave(10s).lost);
    CHECK(host.worker.update(exactly(1), 20s).version == 1);
  }
}

TEST_CASE("lost: what an update overwrites, in place or by an install") {
  hub::reference_server server;
  trainer source{without_room(server.address(), "trainer-0"), few_words};
  source.worker.publish(1);
  source.worker.retain(1);
  SUBCASE("an update in place") {
    rollout reader{without_room(server.address(), "rollout-0"), few_words};
    CHECK_FALSE(reader.worker.update(exactly(1), 20s).lost);
    CHECK_FALSE(source.worker.unpublish().lost);  // the reader has it
    source.worker.pin(1);
    source.worker.publish(2);
    CHECK(reader.worker.update(exactly(2), 20s).lost);
  }
  SUBCASE("an install") {
    member<staged_of<hub::subscriber>> reader{without_room(server.address(), "rollout-0"), few_words};
    CHECK_FALSE(reader.worker.update(exactly(1), 20s).lost);
    CHECK_FALSE(source.worker.unpublish().lost);
    source.worker.pin(1);
    source.worker.publish(2);
    reader.worker.stage(exactly(2), 20s);
    CHECK(reader.worker.install(20s).lost);
  }
}

namespace {

/// Whether the only copy of a version can be read again after its process was stopped until all of it was
/// declared dead.
template <typename Hub, typename Trainer, typename Rollout>
void stop_the_holder() {
  const processes::child_process holder{[](processes::channel& line) {  // forked before there are threads
    Trainer source{who(line.hear(), "trainer-0"), few_words};
    source.publish(1);
    source.worker.retain(1);
    source.worker.unpublish();
    line.say(source.worker.offloaded_bytes() > 0 ? "kept" : "not kept");
    static_cast<void>(line.hear());
  }};
  tensorhub::reference_server_options how;
  how.catalog.heartbeat_interval = 100ms;
  how.catalog.worker_timeout = 1s;
  const typename Hub::reference_server server{how};
  holder.line().say(server.address());
  REQUIRE(holder.line().hear() == "kept");
  tensorhub::server_client asking{{.server = server.address()}};
  const auto is_gone = [&] {
    return code_of([&] { static_cast<void>(asking.list("policy", 5s)); }) == errc::not_found;
  };
  holder.signal(SIGSTOP);
  CHECK(comes_true(is_gone));
  holder.signal(SIGCONT);
  Rollout reader{who(server.address(), "rollout-0"), few_words};
  CHECK(code_of([&] { static_cast<void>(reader.worker.update(tensorhub::exactly(1), 30s)); }) == errc::ok);
  CHECK(reader.memory.holds(1));
}

}  // namespace

TEST_CASE("lost: not a copy in host memory whose process was only stopped") {
  SUBCASE("tcp") {
    stop_the_holder<hub, trainer, rollout>();
  }
  SUBCASE("first_of, whose readers take time to cut off") {
    stop_the_holder<near_hub, member<near_hub::publisher>, member<near_hub::subscriber>>();
  }
}
