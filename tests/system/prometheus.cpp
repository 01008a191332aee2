/// \file prometheus.cpp
/// The Prometheus endpoint of a server and its workers, scraped by plain HTTP: its numbers are what was done.

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <map>
#include <string>
#include <string_view>
#include <tensorhub/detail/random_id.hpp>
#include <tensorhub/detail/unique_fd.hpp>
#include <tensorhub/prometheus.hpp>
#include <tensorhub/server.hpp>
#include <tensorhub/shared_copy.hpp>
#include <thread>
#include <vector>

#include "hostile.hpp"
#include "hub.hpp"
#include "support/child_process.hpp"

using namespace processes;
using namespace system_tests;

namespace {

[[nodiscard]] tensorhub::detail::unique_fd connect_to(const std::string& address) {
  tensorhub::detail::unique_fd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  REQUIRE(socket.get() >= 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  return socket;
}

/// The answer to one GET, head and body.
std::string get(const std::string& address, const std::string& path) {
  const auto socket = connect_to(address);
  const timeval patience{20, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  REQUIRE(::send(socket.get(), request.data(), request.size(), 0) == static_cast<ssize_t>(request.size()));
  std::string answer;
  char part[4096];
  for (ssize_t got = 0; (got = ::recv(socket.get(), part, sizeof part, 0)) > 0;)
    answer.append(part, static_cast<std::size_t>(got));
  return answer;
}

/// Samples by their whole name, labels included.
using samples = std::map<std::string, double>;

samples scrape(const tensorhub::prometheus_exporter& exporter) {
  const std::string answer = get(exporter.address(), "/metrics");
  REQUIRE_MESSAGE(answer.starts_with("HTTP/1.1 200"), answer.substr(0, 200));
  std::string_view text = answer;
  text.remove_prefix(text.find("\r\n\r\n") + 4);
  samples out;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const std::size_t space = line.rfind(' ');
    if (!line.starts_with("tensorhub_") || space == std::string_view::npos) continue;
    CHECK(out.emplace(std::string{line.substr(0, space)}, std::stod(std::string{line.substr(space + 1)}))
              .second);
  }
  return out;
}

double value(const samples& seen, const std::string& name) {
  const auto found = seen.find(name);
  REQUIRE_MESSAGE(found != seen.end(), "no sample ", name);
  return found->second;
}

/// The server counts after it has answered: it may be a moment behind.
samples scrape_until(const tensorhub::prometheus_exporter& exporter, const std::string& name, double wanted) {
  for (int round = 0; round < 2000; ++round) {
    samples seen = scrape(exporter);
    if (seen.contains(name) && seen.at(name) == wanted) return seen;
    std::this_thread::sleep_for(5ms);
  }
  FAIL("never " << name << " = " << wanted);
  return {};
}

}  // namespace

TEST_CASE("prometheus: a scrape tells what a server and its workers have done, and only grows") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  rollout reader{who(server.address(), "rollout \"7\"\\")};  // a name that has to be escaped
  tensorhub::prometheus_exporter exporter{{.address = "127.0.0.1:0"}};
  exporter.watch(server);
  exporter.watch(source.worker);
  exporter.watch(reader.worker, {{"cluster", "here"}});

  const std::string me = "{model=\"policy\",replica=\"rollout \\\"7\\\"\\\\\",shard=\"0\",cluster=\"here\"";
  const std::string trainer_is = "{model=\"policy\",replica=\"trainer-0\",shard=\"0\"";
  const samples before = scrape(exporter);
  CHECK(value(before, "tensorhub_server_workers") == 0);
  CHECK(value(before, "tensorhub_updates_total" + me + ",result=\"ok\"}") == 0);

  source.publish(1);
  reader.worker.update(exactly(1), 20s);                                               // reads
  reader.worker.update(exactly(1), 20s);                                               // keeps
  CHECK(code_of([&] { reader.worker.update(exactly(2), 50ms); }) == errc::timed_out);  // never comes
  REQUIRE(reader.memory.holds(1));

  const samples seen = scrape_until(exporter, "tensorhub_server_updates_total{result=\"timed_out\"}", 1);
  const double bytes = static_cast<double>(reader.worker.shard_layout().bytes());
  CHECK(value(seen, "tensorhub_publishes_total" + trainer_is + ",result=\"ok\"}") == 1);
  CHECK(value(seen, "tensorhub_publish_seconds_count" + trainer_is + "}") == 1);
  CHECK(value(seen, "tensorhub_updates_total" + me + ",result=\"ok\"}") == 1);
  CHECK(value(seen, "tensorhub_updates_total" + me + ",result=\"kept\"}") == 1);
  CHECK(value(seen, "tensorhub_updates_total" + me + ",result=\"timed_out\"}") == 1);
  CHECK(value(seen, "tensorhub_received_bytes_total" + me + ",path=\"tcp\",crossing=\"false\"}") == bytes);
  CHECK(value(seen, "tensorhub_received_chunks_total" + me + "}") ==
        static_cast<double>(reader.worker.shard_layout().chunk_count()));
  CHECK(value(seen, "tensorhub_update_seconds_count" + me + "}") == 2);
  CHECK(value(seen, "tensorhub_pull_seconds_count" + me + "}") == 1);
  CHECK(value(seen, "tensorhub_update_seconds_bucket" + me + ",le=\"+Inf\"}") == 2);
  CHECK(value(seen, "tensorhub_update_seconds_sum" + me + "}") >=
        value(seen, "tensorhub_pull_seconds_sum" + me + "}"));
  CHECK(value(seen, "tensorhub_server_workers") == 2);
  CHECK(value(seen, "tensorhub_server_replicas") == 2);
  CHECK(value(seen, "tensorhub_server_publishes_total{result=\"ok\"}") == 1);
  CHECK(value(seen, "tensorhub_server_updates_total{result=\"ok\"}") == 1);
  CHECK(value(seen, "tensorhub_server_updates_total{result=\"kept\"}") == 1);
  CHECK(value(seen, "tensorhub_server_update_wait_seconds_count") >= 2);
  CHECK(value(seen, "tensorhub_server_assignments_total") == 1);
  CHECK(value(seen, "tensorhub_server_crossings_total") == 0);
  CHECK(value(seen, "tensorhub_server_sources_exchanged_total") == 0);

  // A second look: what is a total has not become less, and there is more of it.
  source.worker.unpublish(10s);
  const samples after = scrape_until(exporter, "tensorhub_server_drains_total", 1);
  for (const auto& sample : seen) {
    const std::string& name = sample.first;
    const bool grows = name.find("_total") != std::string::npos ||
                       name.find("_bucket") != std::string::npos ||
                       name.find("_count") != std::string::npos || name.find("_sum") != std::string::npos;
    if (grows) CHECK_MESSAGE(value(after, name) >= sample.second, name);
  }
  CHECK(value(after, "tensorhub_unpublishes_total" + trainer_is + ",result=\"ok\"}") == 1);
  CHECK(value(after, "tensorhub_server_messages_total") > value(seen, "tensorhub_server_messages_total"));

  exporter.forget(reader.worker);
  CHECK_FALSE(scrape(exporter).contains("tensorhub_updates_total" + me + ",result=\"ok\"}"));
}

TEST_CASE("prometheus: a server tells the latest version of each model, and how many are available") {
  hub::reference_server server;
  tensorhub::prometheus_exporter exporter{{.address = "127.0.0.1:0"}};
  exporter.watch(server, {{"cluster", "here"}});
  trainer source{who(server.address(), "trainer-0")};
  rollout reader{who(server.address(), "rollout-0")};
  auto of_other = who(server.address(), "rollout-0");
  of_other.model = "other";
  rollout other{of_other};
  other.worker.join();
  source.publish(7);
  reader.worker.update(exactly(7), 20s);
  const auto name = [](const char* what, const char* model) {
    return std::string{"tensorhub_server_"} + what + "{model=\"" + model + "\",cluster=\"here\"}";
  };
  static_cast<void>(scrape_until(exporter, name("latest_version", "policy"), 7));
  source.worker.unpublish();
  source.publish(8);
  const samples seen = scrape_until(exporter, name("latest_version", "policy"), 8);
  CHECK(value(seen, name("available_versions", "policy")) == 2);  // the rollout has the other one
  CHECK(value(seen, name("latest_version", "other")) == 0);
  CHECK(value(seen, name("available_versions", "other")) == 0);
}

TEST_CASE(
    "prometheus: a candidate of an election tells whether it leads, in which term, and whether etcd "
    "answers") {
  struct candidate {
    bool has_etcd = true;
    [[nodiscard]] static tensorhub::reference_server_statistics statistics() { return {}; }
    [[nodiscard]] static std::vector<tensorhub::model_versions> versions() { return {}; }
    [[nodiscard]] bool leads() const { return has_etcd; }
    [[nodiscard]] static std::uint64_t term() { return 5; }
    [[nodiscard]] bool etcd_answers() const { return has_etcd; }
  };
  candidate server;
  tensorhub::prometheus_exporter exporter{{.address = "127.0.0.1:0"}};
  exporter.watch(server);
  for (const bool has_etcd : {true, false}) {
    server.has_etcd = has_etcd;
    const samples seen = scrape(exporter);
    CHECK(value(seen, "tensorhub_server_leading") == (has_etcd ? 1 : 0));
    CHECK(value(seen, "tensorhub_server_term") == 5);
    CHECK(value(seen, "tensorhub_server_etcd_answers") == (has_etcd ? 1 : 0));
  }
}

TEST_CASE("prometheus: what readers ask sources for is told by its reasons") {
  namespace m = tensorhub::messages;
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.publish(1);
  tensorhub::prometheus_exporter exporter{{.address = "127.0.0.1:0"}};
  exporter.watch(server);
  liar reader{server.address()};
  reader.join("rollout-0");
  const auto found = reader.ask<m::update_reply>(m::update_request{{1}, {}, 10'000});
  REQUIRE(found.sources.size() == 1);
  const m::assignment& first = found.sources[0];
  const auto ask = [&](m::sources_wanted why, tensorhub::lease_id lease, int times) {
    for (int i = 0; i < times; ++i)
      static_cast<void>(
          reader.ask<m::update_reply>(m::sources_request{first.operation, why, lease, errc::corrupt, {}}));
  };
  ask(m::sources_wanted::all_stalled, {}, 2);
  ask(m::sources_wanted::one_failed, {first.lease.value + 1}, 1);  // not this reader's: it does not count
  ask(m::sources_wanted::one_failed, first.lease, 1);
  ask(m::sources_wanted::short_of_chunks, {}, 3);
  const samples seen = scrape_until(exporter, "tensorhub_server_shortages_total", 3);
  CHECK(value(seen, "tensorhub_server_sources_exchanged_total") == 0);
  CHECK(value(seen, "tensorhub_server_stalls_total") == 2);
  CHECK(value(seen, "tensorhub_server_sources_failed_total{reason=\"corrupt\"}") == 1);
}

TEST_CASE("prometheus: of a subscriber that stages both workers are shown") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  member<staged_of<hub::subscriber>> reader{who(server.address(), "rollout-0")};
  tensorhub::prometheus_exporter exporter{{.address = "127.0.0.1:0"}};
  exporter.watch(reader.worker);
  source.publish(1);
  reader.worker.stage(exactly(1), 20s);
  reader.worker.install();
  const samples seen = scrape(exporter);
  const double bytes = static_cast<double>(reader.worker.shard_layout().bytes());
  const auto received = [&](const std::string& replica, const std::string& path) {
    return value(seen, "tensorhub_received_bytes_total{model=\"policy\",replica=\"" + replica +
                           "\",shard=\"0\",path=\"" + path + "\",crossing=\"false\"}");
  };
  CHECK(received("rollout-0@stage", "tcp") == bytes);
  CHECK(received("rollout-0", "copy") == bytes);

  const tensorhub::shared_copy<tensorhub::transports::tcp> copy{
      who(server.address(), "host-0"), "test-" + std::to_string(tensorhub::detail::random_number())};
  exporter.watch(copy);
  const samples both = scrape(exporter);
  for (const std::string side : {"a", "b"}) {
    CHECK(both.contains("tensorhub_stalls_total{model=\"policy\",replica=\"host-0@" + side +
                        "\",shard=\"0\"}"));
  }
}

TEST_CASE("prometheus: nothing but the metrics is served, and what cannot be bound is refused") {
  const tensorhub::prometheus_exporter exporter{{.address = "127.0.0.1:0"}};
  CHECK(get(exporter.address(), "/").starts_with("HTTP/1.1 404"));
  CHECK(get(exporter.address(), "/etc/passwd").starts_with("HTTP/1.1 404"));
  std::string sentence;
  CHECK(code_of([&] { tensorhub::prometheus_exporter{{.address = exporter.address()}}; }, &sentence) ==
        errc::transport_failed);
  CHECK(contains(sentence, exporter.address()));
  CHECK(code_of([] { tensorhub::prometheus_exporter{{.address = "9464"}}; }) == errc::invalid_argument);
  const tensorhub::prometheus_exporter elsewhere{{.address = "127.0.0.1:0", .path = "/numbers"}};
  CHECK(get(elsewhere.address(), "/numbers").starts_with("HTTP/1.1 200"));
  CHECK(get(elsewhere.address(), "/metrics").starts_with("HTTP/1.1 404"));
}

TEST_CASE("prometheus: a label that would make the page unreadable is refused") {
  tensorhub::prometheus_exporter exporter{{.address = "127.0.0.1:0"}};
  hub::reference_server server;
  for (const char* name : {"data-center", "", "1st", "__name__", "model", "le"})
    CHECK_MESSAGE(code_of([&] { exporter.watch(server, {{name, "x"}}); }) == errc::invalid_argument, name);
  CHECK(code_of([&] { exporter.watch(server, {{"zone", "a"}, {"zone", "b"}}); }) == errc::invalid_argument);
  exporter.watch(server, {{"zone_2", "a-b \"c\""}});
  CHECK(contains(get(exporter.address(), "/metrics"), "zone_2"));
}

TEST_CASE("prometheus: connections that say nothing do not blind it") {
  const tensorhub::prometheus_exporter exporter{{.address = "127.0.0.1:0"}};
  std::vector<tensorhub::detail::unique_fd> silent;
  for (int i = 0; i < 8; ++i) silent.push_back(connect_to(exporter.address()));
  CHECK(get(exporter.address(), "/metrics").starts_with("HTTP/1.1 200"));
}

#ifdef TENSORHUB_REFERENCE_SERVER
TEST_CASE("prometheus: the reference server's program has an endpoint, if it is asked for one") {
  child_process program{
      {TENSORHUB_REFERENCE_SERVER, "--address", "tcp://127.0.0.1:*", "--metrics", "127.0.0.1:0"}};
  const std::string serving = program.output_line();
  const std::string said = program.output_line();
  REQUIRE_MESSAGE(contains(said, "metrics at http://127.0.0.1:"), said);
  trainer source{who(serving.substr(serving.rfind(' ') + 1), "trainer-0")};
  source.worker.join();
  const std::string page = get(said.substr(0, said.rfind('/')), "/metrics");
  CHECK(page.starts_with("HTTP/1.1 200"));
  CHECK(contains(page, "tensorhub_server_workers_joined_total"));
  program.signal(SIGTERM);
  CHECK(program.wait() == 0);
}
#endif
