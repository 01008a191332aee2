// A worker that a reader has lost and that the server cannot reach is dead, long before it has been silent
// for `worker_timeout`; who was only stopped, or whose server was, is not.

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <iostream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "hub.hpp"
#include "support/child_process.hpp"

using namespace processes;
using namespace system_tests;

namespace {

constexpr std::size_t large_words = 4u << 20;

}  // namespace

TEST_CASE("kill -9 of the only source: its reader's word and a broken connection are enough") {
  text_pipe pipe;
  child_process source{[&] { return publish_and_stay(pipe.hear(), large_words); }};
  said_lines said;
  tensorhub::reference_server_options how;
  how.catalog.worker_timeout = 180s;  // longer than this test waits for anything
  how.catalog.heartbeat_interval = 200ms;
  how.log = said.writer();
  hub::reference_server server{how};
  pipe.tell(server.address());
  REQUIRE(source.output_line() == "published");
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(8u << 20);
  gated_rollout reader{
      who(server.address(), "rollout-0"), large_words, {.inner = {.peer_timeout = 60s}, .gate = gate}};
  auto running = reader.worker.update_async(latest, 30s);
  REQUIRE(gate->wait_until_shut(20s));
  source.signal(SIGKILL);
  gate->open();
  std::string sentence;
  const errc code = code_of([&] { static_cast<void>(running.wait(35s)); }, &sentence);
  // Not timed_out: it is the broken connection that tells, as silence would after the update's 30 s.
  CHECK_MESSAGE((code == errc::unavailable || code == errc::source_lost), sentence);
  CHECK_MESSAGE(
      comes_true([&] { return contains(said.text(), "cannot be reached, and a reader has lost it"); }),
      said.text());
  CHECK_MESSAGE(!contains(said.text(), "was silent for too long"), said.text());
}

TEST_CASE("kill -9 of a source that has forked: its child does not keep its connections") {
  text_pipe pipe;
  child_process source{[&] {
    trainer own{who(pipe.hear(), "trainer-0"), large_words};
    own.publish(1);
    std::cout << "published" << std::endl;
    if (pipe.hear() != "fork") return 1;
    const ::pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);  // ends it, should this test not do so
      for (;;) ::pause();
    }
    std::cout << child << std::endl;
    std::this_thread::sleep_for(60s);
    return 0;
  }};
  hub::reference_server server;
  pipe.tell(server.address());
  REQUIRE(source.output_line() == "published");
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(8u << 20);
  gated_rollout reader{
      who(server.address(), "rollout-0"), large_words, {.inner = {.peer_timeout = 60s}, .gate = gate}};
  auto running = reader.worker.update_async(latest, 60s);
  REQUIRE(gate->wait_until_shut(20s));
  pipe.tell("fork");
  const ::pid_t grandchild = std::stoi(source.output_line());
  source.signal(SIGKILL);
  gate->open();
  std::string sentence;
  const errc code = code_of([&] { static_cast<void>(running.wait(30s)); }, &sentence);
  CHECK_MESSAGE((code == errc::unavailable || code == errc::source_lost), sentence);
  ::kill(grandchild, SIGKILL);
}

TEST_CASE("a stopped source is not dead because its connections do not answer") {
  text_pipe pipe;
  child_process source{[&] { return publish_and_stay(pipe.hear(), large_words); }};
  said_lines said;
  tensorhub::reference_server_options how;
  how.catalog.worker_timeout = 60s;
  how.catalog.heartbeat_interval = 200ms;
  how.log = said.writer();
  hub::reference_server server{how};
  pipe.tell(server.address());
  REQUIRE(source.output_line() == "published");
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(8u << 20);
  auto options = who(server.address(), "rollout-0");
  options.connect_timeout = 300ms;
  gated_rollout reader{options, large_words, {.inner = {.peer_timeout = 700ms}, .gate = gate}};
  auto running = reader.worker.update_async(latest, 30s);
  REQUIRE(gate->wait_until_shut(20s));
  source.signal(SIGSTOP);
  gate->open();
  std::string sentence;
  const errc code = code_of([&] { static_cast<void>(running.wait(35s)); }, &sentence);
  CHECK_MESSAGE(code == errc::unavailable, sentence);
  CHECK_MESSAGE(contains(sentence, "trainer-0"), sentence);
  CHECK_MESSAGE(contains(said.text(), "lost its source"), said.text());  // the reader's word has come
  std::this_thread::sleep_for(2s);                                       // ten heartbeats
  source.signal(SIGCONT);
  CHECK(reader.worker.update(latest, 30s).version == 1);
  CHECK(reader.memory.holds(1));
  CHECK_MESSAGE(!contains(said.text(), "cannot be reached"), said.text());
  const auto seen = server.statistics();
  CHECK_MESSAGE(seen.workers_dead + seen.workers_unruly == 0, said.text());
}

namespace {

/// Reads version 1 and stops in the middle; when it goes on, that update ends, and the next one takes 2.
int read_and_stop(const std::string& server) {
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(8u << 20);
  gated_rollout reader{who(server, "rollout-0"), large_words, {.gate = gate}};
  auto running = reader.worker.update_async(latest, 60s);
  if (!gate->wait_until_shut(30s)) return 4;
  const auto before = reader.worker.self();
  std::cout << "reading" << std::endl;
  ::raise(SIGSTOP);
  gate->open();
  std::string sentence;
  const errc code = code_of([&] { static_cast<void>(running.wait(60s)); }, &sentence);
  std::cout << to_string(code) << ": " << sentence << std::endl;
  const auto done = reader.worker.update(at_least(2), 60s);
  std::cout << done.version.value << (reader.memory.holds(2) ? " whole" : " WRONG")
            << (reader.worker.self() == before ? ", the same incarnation" : ", another incarnation")
            << std::endl;
  return 0;
}

/// Publishes 1, and 2 when it is told to; the same object.
int publish_twice(text_pipe& orders) {
  trainer own{who(orders.hear(), "trainer-0"), large_words};
  for (std::uint64_t version = 1; version <= 2; ++version) {
    own.worker.unpublish(20s);
    own.publish(version, 20s);
    std::cout << "published" << std::endl;
    static_cast<void>(orders.hear());
  }
  return 0;
}

/// How many workers the server has declared dead for their silence.
std::size_t silent_in(const std::string& log) {
  std::istringstream lines{log};
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("worker ") && line.ends_with(" was silent for too long")) ++count;
  return count;
}

}  // namespace

TEST_CASE("a process that was stopped for longer than worker_timeout joins again, with what it holds") {
  text_pipe orders, server_of_reader;
  child_process source{[&] { return publish_twice(orders); }};
  child_process reader{[&] { return read_and_stop(server_of_reader.hear()); }};
  said_lines said;
  tensorhub::reference_server_options how;
  how.catalog.worker_timeout = 1000ms;
  how.catalog.heartbeat_interval = 200ms;
  how.log = said.writer();
  hub::reference_server server{how};
  orders.tell(server.address());
  REQUIRE(source.output_line() == "published");
  server_of_reader.tell(server.address());
  REQUIRE(reader.output_line() == "reading");
  source.signal(SIGSTOP);
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (silent_in(said.text()) < 2 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(10ms);
  REQUIRE_MESSAGE(silent_in(said.text()) == 2, said.text());
  source.signal(SIGCONT);
  rollout newcomer{who(server.address(), "rollout-1"), large_words};
  CHECK(newcomer.worker.update(latest, 30s).version == 1);
  CHECK(newcomer.memory.holds(1));
  reader.signal(SIGCONT);
  const std::string ended = reader.output_line(60s);
  CHECK_MESSAGE(contains(ended, "disconnected: "), ended);
  CHECK_MESSAGE(contains(ended, "it joins again by itself: repeat the call"), ended);
  orders.tell("publish 2");
  CHECK(source.output_line(60s) == "published");
  CHECK(reader.output_line(60s) == "2 whole, another incarnation");
  orders.tell("end");
}

TEST_CASE("a server that was stopped for longer than worker_timeout declares nobody dead") {
  child_process program{[] {
    tensorhub::reference_server_options how;
    how.catalog.worker_timeout = 1000ms;
    how.catalog.heartbeat_interval = 200ms;
    how.log = [](const tensorhub::log_line& line) { std::cout << line.text << std::endl; };
    hub::reference_server server{how};
    std::cout << server.address() << std::endl;
    std::this_thread::sleep_for(60s);
    return 0;
  }};
  const std::string address = program.output_line();
  trainer source{who(address, "trainer-0")};
  source.publish(1);
  CHECK(contains(program.output_line(), "joined"));
  const auto self = source.worker.self();
  program.signal(SIGSTOP);
  std::this_thread::sleep_for(2s);
  program.signal(SIGCONT);
  CHECK(contains(program.output_line(), "was stopped for"));
  rollout reader{who(address, "rollout-0")};
  CHECK(reader.worker.update(latest, 20s).version == 1);
  CHECK(code_of([&] { source.worker.unpublish(20s); }) == errc::ok);
  CHECK(source.worker.self() == self);  // one that was declared dead would be another incarnation
}

TEST_CASE("a server notices also that it was stopped in the middle of its work") {
  said_lines said;
  tensorhub::reference_server_options how;
  how.catalog.worker_timeout = 1000ms;
  how.catalog.heartbeat_interval = 200ms;
  how.log = [write = said.writer(), stopped = false](const tensorhub::log_line& line) mutable {
    write(line);
    if (contains(line.text, "joined") && !std::exchange(stopped, true)) std::this_thread::sleep_for(2s);
  };
  hub::reference_server server{how};
  trainer source{who(server.address(), "trainer-0")};
  source.publish(1);
  CHECK_MESSAGE(comes_true([&] { return contains(said.text(), "was stopped for"); }), said.text());
  CHECK(code_of([&] { source.worker.unpublish(20s); }) == errc::ok);  // a round trip later
  CHECK_MESSAGE(!contains(said.text(), "was silent for too long"), said.text());
}
