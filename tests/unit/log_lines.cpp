/// \file log_lines.cpp
/// Log lines as text and as JSON: every field is there, and no name breaks either form.

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "catalog_driver.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/service/log_limiter.hpp"
#include "tensorhub/service/log_queue.hpp"

using namespace catalog_test;
using json = nlohmann::json;

namespace {

log_line full() {
  log_line line{log_level::warning, "lost its source", {}};
  line.about.model = "policy";
  line.about.replica = "rollout 7";
  line.about.shard = 0;
  line.about.worker = {0x1f};
  line.about.peer = {0xabc};
  line.about.version = 12;
  line.about.operation = {3};
  line.about.lease = {99};
  line.about.chunk = 0;
  line.about.code = errc::source_lost;
  return line;
}

}  // namespace

TEST_CASE("log: a queue calls the log aside, in order, and its end waits for the last line") {
  std::vector<std::string> said;
  std::binary_semaphore may_go_on{0};
  {
    const auto log = queued([&](const log_line& line) {
      if (said.empty()) may_go_on.acquire();
      said.push_back(line.text);
    });
    for (int i = 0; i < 10; ++i) log({log_level::info, std::to_string(i), {}});
    may_go_on.release();
  }
  CHECK(said == std::vector<std::string>{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"});
  CHECK(!queued({}));
}

TEST_CASE("log: all that have a copy of a queued log share one queue") {
  const auto queues = [] {  // their threads
    std::ptrdiff_t count = 0;
    for (const auto& each : std::filesystem::directory_iterator{"/proc/self/task"}) {
      std::ifstream file{each.path() / "comm"};
      std::string name;
      std::getline(file, name);
      count += name == "tensorhub-log" ? 1 : 0;
    }
    return count;
  };
  // One that has ended may be listed for a moment more.
  const auto becomes = [&](std::ptrdiff_t wanted) {
    for (int tries = 0; tries < 5000 && queues() != wanted; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    return queues() == wanted;
  };
  REQUIRE(becomes(0));
  std::counting_semaphore said{0};
  const auto first = queued([&](const log_line&) { said.release(); });
  for (const auto& each : {first, queued(first), queued(queued(first))}) {
    each({log_level::info, "said", {}});
    said.acquire();
    CHECK(becomes(1));
  }
}

TEST_CASE("log: a queued line has the time at which it was said, not that at which it is told") {
  std::vector<log_line> said;
  std::binary_semaphore may_go_on{0};
  const auto before = std::chrono::system_clock::now();
  std::chrono::system_clock::time_point after;
  {
    const auto log = queued([&](const log_line& line) {
      may_go_on.acquire();
      said.push_back(line);
      may_go_on.release();
    });
    log({log_level::info, "first", {}});
    log({log_level::info, "second", {}});
    after = std::chrono::system_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
    may_go_on.release();
  }
  REQUIRE(said.size() == 2);
  for (const log_line& line : said) CHECK((before <= line.time && line.time <= after));
  log_line told;
  never_throwing([&told](const log_line& line) { told = line; })({log_level::info, "at once", {}});
  CHECK(told.time >= after);
}

TEST_CASE("log: a queue is bounded, and says how much is missing") {
  std::vector<std::string> said;
  std::binary_semaphore has_begun{0};
  std::binary_semaphore may_go_on{0};
  {
    const auto log = queued([&](const log_line& line) {
      if (said.empty()) {
        has_begun.release();
        may_go_on.acquire();
      }
      said.push_back(line.text);
    });
    log({log_level::info, "first", {}});
    has_begun.acquire();
    for (std::size_t i = 0; i < log_queue::most_lines + 7; ++i) log({log_level::info, "more", {}});
    may_go_on.release();
  }
  REQUIRE(said.size() == log_queue::most_lines + 2);
  CHECK(said.back() == "7 lines are missing here: this log is too slow");
}

TEST_CASE("log: a line as text has its sentence and then its fields") {
  CHECK(to_text(full()) ==
        "lost its source model=policy replica=\"rollout 7\" shard=0 worker=000000000000001f "
        "peer=0000000000000abc version=12 operation=3 lease=99 chunk=0 code=source_lost");
  CHECK(to_text({log_level::info, "plain", {}}) == "plain");
}

TEST_CASE("log: a line as JSON is an object that a parser reads") {
  log_line line = full();
  line.time = std::chrono::system_clock::time_point{std::chrono::milliseconds{1'767'323'045'067}};
  const json read = json::parse(to_json(line));
  CHECK(read["time"] == "2026-01-02T03:04:05.067Z");
  CHECK(read["level"] == "warning");
  CHECK(read["text"] == "lost its source");
  CHECK(read["model"] == "policy");
  CHECK(read["replica"] == "rollout 7");
  CHECK(read["shard"] == 0);
  CHECK(read["worker"] == "000000000000001f");
  CHECK(read["peer"] == "0000000000000abc");
  CHECK(read["version"] == 12);
  CHECK(read["operation"] == 3);
  CHECK(read["lease"] == 99);
  CHECK(read["chunk"] == 0);
  CHECK(read["code"] == "source_lost");
  CHECK(json::parse(to_json({log_level::info, "plain", {}})).size() == 2);
}

TEST_CASE("log: whatever bytes a name has, the line stays one line and valid") {
  std::string name;
  for (int byte = 0; byte < 256; ++byte) name += static_cast<char>(byte);
  name += "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xed\xa0\x80 \xc0\xaf \xf4\x90\x80\x80 \xe2\x82";
  log_line line{log_level::error, "a\nb\r\t\"c\"\\", {}};
  line.about.replica = name;
  const std::string out = to_json(line);
  CHECK(out.find('\n') == std::string::npos);
  CHECK(out.find('\r') == std::string::npos);
  const json read = json::parse(out);  // throws if it is no JSON, or no UTF-8
  CHECK(read["text"] == line.text);
  const std::string back = read["replica"];
  CHECK(back.find("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80") != std::string::npos);  // good characters stay
  CHECK(back.substr(0, 128) == name.substr(0, 128));
  CHECK(back.find("\xed\xa0\x80") == std::string::npos);
  const std::string text = to_text(line);
  CHECK(text.find('\n') == std::string::npos);
}

TEST_CASE("log: nobody's text forges a line, or speaks to the terminal that shows it") {
  const std::string forged =
      "x\nerror: the disk is full\r\x1b[2J\x7f \xc2\x9b"
      "31m \x9b"
      "31m \xc3\xa9";
  log_line line{log_level::warning, "refused " + forged, {}};
  line.about.model = forged;
  const std::string as_text = to_text(line);
  const std::string as_json = to_json(line);
  for (const std::string* shown : {&as_text, &as_json}) {
    CAPTURE(*shown);
    for (const char* byte : {"\n", "\r", "\x1b", "\x7f", "\xc2\x9b", "\x9b"})
      CHECK(shown->find(byte) == std::string::npos);
    CHECK(shown->find("\xc3\xa9") != std::string::npos);  // a letter is none of that
  }
  CHECK(as_text.starts_with(
      "refused x\\x0aerror: the disk is full\\x0d\\x1b[2J\\x7f \\xc2\\x9b31m \\x9b31m \xc3\xa9 model="));
}

TEST_CASE("log: a limiter passes a burst, then so many a second, and says what it left out") {
  detail::log_limiter limiter{3, 2};
  auto now = detail::log_limiter::clock::time_point{} + 1s;
  int passed = 0;
  for (int i = 0; i < 100; ++i) passed += limiter.pass({log_level::warning, "x", {}}, now) ? 1 : 0;
  CHECK(passed == 3);
  now += 500ms;
  const auto next = limiter.pass({log_level::warning, "x", {}}, now);
  REQUIRE(next);
  CHECK(next->text == "x (and 97 more lines were left out)");
  CHECK_FALSE(limiter.pass({log_level::warning, "x", {}}, now));
}

TEST_CASE("log: an error's line has what its context says") {
  error_context context;
  context.model = "policy";
  context.replica = "r";
  context.shard = 3;
  context.version = 9;
  context.peer = "trainer-0/3";
  context.chunk = 17;
  const log_line line = line_of(log_level::warning, error(errc::corrupt, "bad digest", context), {5});
  CHECK(line.text == "bad digest (peer: trainer-0/3)");
  CHECK(line.about.shard == 3);
  CHECK(line.about.version == 9);
  CHECK(line.about.chunk == 17);
  CHECK(line.about.worker == incarnation{5});
  CHECK(line.about.code == errc::corrupt);
}

TEST_CASE("log: the catalog's lines name worker, peer, version, lease and operation") {
  driver<> server{{.heartbeat_interval = 200ms, .worker_timeout = 1000ms}};
  const incarnation trainer = server.join(1, "trainer");
  const incarnation reader = server.join(2, "rollout");
  auto lines = server.core.take_log();
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].about.model == "policy");
  CHECK(lines[1].about.replica == "rollout");
  CHECK(lines[1].about.worker == reader);
  REQUIRE(server.publish(trainer, 4).ok());
  const auto source = server.start_update(reader);
  server.lose_source(reader, source, errc::corrupt);
  lines = server.core.take_log();
  REQUIRE_FALSE(lines.empty());
  CHECK(lines[0].about.worker == reader);
  CHECK(lines[0].about.peer == trainer);
  CHECK(lines[0].about.version == 4);
  CHECK(lines[0].about.lease == source.lease);
  CHECK(lines[0].about.operation == source.operation);
  CHECK(lines[0].about.code == errc::corrupt);
  for (int i = 0; i < 20; ++i) {
    server.send_as(reader, 0, messages::heartbeat_request{});
    server.pass(100ms);
  }
  lines = server.core.take_log();
  REQUIRE_FALSE(lines.empty());
  CHECK(lines[0].about.worker == trainer);
  CHECK(lines[0].about.replica == "trainer");
}
