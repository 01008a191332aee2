/// \file etcd.cpp
/// Reference servers that a real etcd elects: kill -9 and SIGSTOP of the leader, etcd killed and back, the
/// leader's end. Trainer and rollouts know both servers' addresses.

#include "etcd.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <tensorhub/etcd/gateway.hpp>
#include <tensorhub/key_files.hpp>
#include <tensorhub/server.hpp>
#include <tensorhub/service/codec.hpp>
#include <tensorhub/service/zmq_socket.hpp>
#include <thread>

#include "hub.hpp"
#include "tensorhub/service/codec.hpp"

using namespace processes;
using namespace system_tests;

namespace {

using standby = tensorhub::standby_server<>;
constexpr auto patience = 60s;

[[nodiscard]] std::string address_of(std::uint16_t port) {
  return "tcp://127.0.0.1:" + std::to_string(port);
}

[[nodiscard]] tensorhub::standby_server_options candidate(const etcd_member& etcd,
                                                          const std::string& address) {
  tensorhub::standby_server_options out;
  out.server.address = address;
  out.server.catalog.heartbeat_interval = 200ms;
  out.server.catalog.worker_timeout = 3000ms;
  out.server.catalog.recovery_grace = 3000ms;
  out.etcd.endpoints = etcd.url();
  out.election.name = "servers";
  out.election.lease = 2s;
  out.election.margin = 300ms;
  out.election.keep_alive = 200ms;
  out.election.poll = 100ms;
  out.election.answer_time = 500ms;
  return out;
}

/// In a process of its own: says its log, until it is killed.
int serve(const etcd_member& etcd, const std::string& address) {
  tensorhub::standby_server_options options = candidate(etcd, address);
  options.server.log = [](const tensorhub::log_line& line) { std::cout << line.text << std::endl; };
  const standby server{options};
  for (;;) ::pause();
}

/// Reads the process's lines up to one with `part`, which it returns.
std::string line_with(child_process& from, const std::string& part) {
  for (;;) {
    std::string line = from.output_line(patience);
    if (contains(line, part)) return line;
  }
}

[[nodiscard]] tensorhub::worker_options member_of(const std::string& servers, const std::string& replica) {
  tensorhub::worker_options out = who(servers, replica);
  out.server_timeout = 700ms;
  out.request_retry = 300ms;
  out.join_timeout = 60s;
  return out;
}

/// A control connection without a worker behind it.
class raw_client {
 public:
  explicit raw_client(const std::string& server)
      : context_{tensorhub::detail::shared_context()},
        socket_{tensorhub::detail::bounded_socket(*context_, zmq::socket_type::dealer)} {
    socket_.connect(server);
  }
  void ask() {
    const auto frame = encoder_.encode({4711, {++sequence_}, {}, tensorhub::messages::list_request{}});
    REQUIRE(socket_.send(zmq::const_buffer{frame.data(), frame.size()}, zmq::send_flags::none));
  }
  /// The term of the server that answers; empty: nobody does within the time.
  [[nodiscard]] std::optional<std::uint64_t> answer(std::chrono::milliseconds within) {
    socket_.set(zmq::sockopt::rcvtimeo, static_cast<int>(within.count()));
    zmq::message_t frame;
    if (!socket_.recv(frame)) return std::nullopt;
    tensorhub::decoder decoder;
    const auto decoded = decoder.decode({static_cast<const std::byte*>(frame.data()), frame.size()});
    REQUIRE(decoded.ok());
    return tensorhub::term_of(tensorhub::server_epoch{decoded.message.sender});
  }

 private:
  std::shared_ptr<zmq::context_t> context_;
  zmq::socket_t socket_;
  tensorhub::encoder encoder_;
  std::uint64_t sequence_ = 0;
};

/// From now on etcd answers its root, and a user `servers` whose role may do no more than the election.
void ask_for_passwords(const etcd_member& etcd) {
  const auto coded = [](const std::string& text) { return tensorhub::etcd_detail::to_base64(text); };
  etcd.order("/v3/auth/user/add", R"({"name": "root", "password": "of root"})");
  etcd.order("/v3/auth/role/add", R"({"name": "root"})");
  etcd.order("/v3/auth/user/grant", R"({"user": "root", "role": "root"})");
  etcd.order("/v3/auth/user/add", R"({"name": "servers", "password": "a \"secret\""})");
  etcd.order("/v3/auth/role/add", R"({"name": "tensorhub"})");
  const std::string keys = R"("key": ")" + coded("tensorhub/") + R"(", "range_end": ")" + coded("tensorhub0");
  etcd.order("/v3/auth/role/grant",
             R"({"name": "tensorhub", "perm": {"permType": "READWRITE", )" + keys + R"("}})");
  etcd.order("/v3/auth/user/grant", R"({"user": "servers", "role": "tensorhub"})");
  etcd.order("/v3/auth/enable", "{}");
}

}  // namespace

TEST_CASE("etcd: kill -9 of the leading server: the other takes over, and everything goes on") {
  if (etcd_program().empty()) return;
  etcd_member etcd;
  etcd.start();
  const std::string a = address_of(free_port()), b = address_of(free_port());
  child_process first{[&] { return serve(etcd, a); }};
  CHECK(contains(line_with(first, "this server leads"), "term 1"));
  child_process second{[&] { return serve(etcd, b); }};

  trainer source{member_of(a + "," + b, "trainer-0")};
  rollout early{member_of(a + "," + b, "rollout-0")};
  rollout late{member_of(b + "," + a, "rollout-1")};  // finds the leader at the end of its list
  source.publish(1);
  CHECK(early.worker.update(exactly(1), patience).version == 1);
  source.worker.unpublish(20s);
  source.publish(2);
  late.worker.join();
  std::this_thread::sleep_for(600ms);  // some heartbeats: by them workers learn how many they are

  first.signal(SIGKILL);
  // `latest` is asked all the time: it must not become what it was before.
  CHECK(late.worker.update(latest, patience).version == 2);
  CHECK(late.memory.holds(2));
  CHECK(contains(line_with(second, "this server leads"), "term 2"));
  CHECK(late.worker.newer().value_or(2) == 2);
  // What was published before is still there, from the reader that holds it, for one who has just come.
  rollout fresh{member_of(a + "," + b, "rollout-2")};
  CHECK(fresh.worker.update(exactly(1), patience).version == 1);
  CHECK(fresh.memory.holds(1));

  source.worker.unpublish(20s);
  source.publish(3);
  for (rollout* reader : {&early, &late, &fresh}) {
    CHECK(reader->worker.update(at_least(3), patience).version == 3);
    CHECK(reader->memory.holds(3));
  }
}

TEST_CASE("etcd: a leading server that was stopped beyond its lease says nothing more when it goes on") {
  if (etcd_program().empty()) return;
  etcd_member etcd;
  etcd.start();
  const std::string a = address_of(free_port()), b = address_of(free_port());
  child_process first{[&] { return serve(etcd, a); }};
  CHECK(contains(line_with(first, "this server leads"), "term 1"));
  child_process second{[&] { return serve(etcd, b); }};

  raw_client client{a};
  client.ask();
  CHECK(client.answer(patience) == 1u);
  trainer source{member_of(a + "," + b, "trainer-0")};
  rollout reader{member_of(a + "," + b, "rollout-0")};
  source.publish(1);
  CHECK(reader.worker.update(latest, patience).version == 1);

  first.signal(SIGSTOP);
  CHECK(contains(line_with(second, "this server leads"), "term 2"));
  client.ask();  // waits in the stopped process
  source.worker.unpublish(30s);
  source.publish(2);
  CHECK(reader.worker.update(at_least(2), patience).version == 2);

  first.signal(SIGCONT);
  CHECK(contains(line_with(first, "no leader any more"), "term 1"));
  CHECK_FALSE(client.answer(200ms));  // it had been asked, and could have answered
  // It is a candidate like any other: when the second one dies it leads again, in a term of its own.
  second.signal(SIGKILL);
  CHECK(contains(line_with(first, "this server leads"), "term 3"));
  CHECK(client.answer(0ms).value_or(3) == 3u);  // connected anew, it may have been asked again
  client.ask();
  CHECK(client.answer(patience) == 3u);
  source.worker.unpublish(30s);
  source.publish(3);
  CHECK(reader.worker.update(at_least(3), patience).version == 3);
  CHECK(reader.memory.holds(3));
}

TEST_CASE("etcd: without etcd the leader stops in time, and says so; when etcd is back there is one again") {
  if (etcd_program().empty()) return;
  etcd_member etcd;
  etcd.start();
  const std::string address = address_of(free_port());
  said_lines said;
  auto options = candidate(etcd, address);
  options.server.log = said.writer();
  standby server{options};
  REQUIRE(comes_true([&] { return server.leads(); }));
  CHECK(server.term() == 1);
  trainer source{member_of(address, "trainer-0")};
  rollout reader{member_of(address, "rollout-0")};
  source.publish(1);
  CHECK(reader.worker.update(latest, patience).version == 1);
  raw_client client{address};
  client.ask();
  CHECK(client.answer(patience) == 1u);

  etcd.kill();
  REQUIRE(comes_true([&] { return contains(said.text(), "no leader any more (term 1): its lease may"); }));
  CHECK(contains(said.text(), "a request to etcd failed: http://127.0.0.1:"));
  CHECK_FALSE(server.leads());
  client.ask();
  CHECK_FALSE(client.answer(100ms));
  // The address is free: nobody listens there.
  { const tensorhub::reference_server<> other{{.address = address}}; }
  CHECK(server.statistics().workers == 0);
  CHECK(reader.memory.holds(1));  // what the workers have they have

  etcd.start();
  REQUIRE(comes_true([&] { return server.leads(); }));
  CHECK(server.term() == 2);
  CHECK(contains(said.text(), "etcd answers again"));
  source.worker.unpublish(30s);
  source.publish(2);
  CHECK(reader.worker.update(at_least(2), patience).version == 2);
  CHECK(reader.memory.holds(2));
}

TEST_CASE("etcd: a leader whose server hangs in its log is replaced, and nobody waits for the log") {
  if (etcd_program().empty()) return;
  etcd_member etcd;
  etcd.start();
  const std::string a = address_of(free_port()), b = address_of(free_port());
  std::atomic<bool> hangs = false, goes_on = false;
  auto hanging = candidate(etcd, a);
  hanging.server.log = [&](const tensorhub::log_line& line) {
    if (!contains(line.text, "joined")) return;
    hangs = true;
    while (!goes_on) std::this_thread::sleep_for(10ms);
  };
  const standby first{hanging};
  const struct release_at_end {  // also if this test fails: else `first` would wait for its log
    std::atomic<bool>& flag;
    ~release_at_end() { flag = true; }
  } at_end{goes_on};
  REQUIRE(comes_true([&] { return first.leads(); }));
  const standby second{candidate(etcd, b)};
  trainer source{member_of(a + "," + b, "trainer-0")};
  source.publish(1, patience);
  CHECK(hangs);
  CHECK(comes_true([&] { return second.leads() && !first.leads(); }));
}

TEST_CASE("etcd: a leader that ends gives way at once; one whose address is taken stands back") {
  if (etcd_program().empty()) return;
  etcd_member etcd;
  etcd.start();
  const std::string a = address_of(free_port()), b = address_of(free_port());
  auto patient = candidate(etcd, a);
  patient.election.lease = 3600s;  // nobody would wait for its end
  said_lines said;
  std::optional<standby> first{patient};
  REQUIRE(comes_true([&] { return first->leads(); }));
  auto other = candidate(etcd, b);
  other.server.log = said.writer();
  std::optional<standby> second{other};
  CHECK_FALSE(second->leads());
  first.reset();
  REQUIRE(comes_true([&] { return second->leads(); }));
  CHECK(second->term() == 2);

  second.reset();
  const tensorhub::reference_server<> squatter{{.address = b}};
  second.emplace(other);
  REQUIRE(
      comes_true([&] { return contains(said.text(), "term 3): the reference server cannot listen at"); }));
  CHECK_FALSE(second->leads());
  first.emplace(patient);
  REQUIRE(comes_true([&] { return first->leads(); }));
  CHECK(first->term() >= 4);
}

TEST_CASE(
    "etcd: two candidates in one process, ended and replaced in turn: they are never seen to lead both") {
  if (etcd_program().empty()) return;
  etcd_member etcd;
  etcd.start();
  const std::string a = address_of(free_port()), b = address_of(free_port());
  std::optional<standby> one{candidate(etcd, a)}, other{candidate(etcd, b)};
  std::uint64_t last = 0;
  for (int round = 0; round < 6; ++round) {
    REQUIRE(comes_true([&] {
      const bool first = one->leads();
      const bool second = other->leads();
      CHECK_FALSE((first && second));
      return first != second && std::max(one->term(), other->term()) > last;
    }));
    std::optional<standby>& leader = one->leads() ? one : other;
    last = leader->term();
    leader.reset();
    leader.emplace(candidate(etcd, &leader == &one ? a : b));
  }
  CHECK(last >= 6);
}

TEST_CASE("etcd: several endpoints, of which one answers; who is allowed before a server leads, and by it") {
  if (etcd_program().empty()) return;
  etcd_member etcd;  // not started: nobody can lead
  const auto server_keys = tensorhub::make_curve_keys();
  const auto one = tensorhub::make_curve_keys(), other = tensorhub::make_curve_keys();
  const std::string address = address_of(free_port());
  auto how = candidate(etcd, address);
  how.etcd.endpoints = "http://127.0.0.1:1," + etcd.url();  // nobody is at the first
  how.server.security = tensorhub::server_security{.keys = server_keys, .allowed_clients = {}};
  standby server{how};
  server.allow(one.public_key, "one");
  server.allow(other.public_key, "other");
  CHECK(server.revoke(other.public_key));
  CHECK_FALSE(server.revoke(other.public_key));
  etcd.start();
  REQUIRE(comes_true([&] { return server.leads(); }));
  const auto join_of = [&](const tensorhub::curve_key_pair& keys, const std::string& replica) {
    auto options = member_of(address, replica);
    options.join_timeout = 20s;
    options.security =
        tensorhub::client_security{.server_key = server_keys.public_key, .keys = keys, .trust_sources = true};
    rollout joins{options, 100};
    return code_of([&] { joins.worker.join(); });
  };
  CHECK(join_of(one, "rollout-0") == errc::ok);
  CHECK(join_of(other, "rollout-1") == errc::refused);
  server.allow(other.public_key, "other");
  CHECK(join_of(other, "rollout-2") == errc::ok);
  CHECK(server.revoke(one.public_key));
  CHECK(join_of(one, "rollout-3") == errc::refused);
}

TEST_CASE("etcd: what cannot be is refused, and an etcd that is none is said") {
  const auto refused = [](auto change) {
    tensorhub::standby_server_options options;
    options.server.address = address_of(1);
    options.election.name = "servers";
    change(options);
    return code_of([&] { const standby server{options}; });
  };
  using options = tensorhub::standby_server_options;
  CHECK(refused([](options& o) { o.server.address = "tcp://127.0.0.1:0"; }) == errc::invalid_argument);
  CHECK(refused([](options& o) { o.server.address = "tcp://127.0.0.1:*"; }) == errc::invalid_argument);
  CHECK(refused([](options& o) { o.election.name = ""; }) == errc::invalid_argument);
  CHECK(refused([](options& o) { o.etcd.endpoints = "127.0.0.1:2379"; }) == errc::invalid_argument);
  CHECK(refused([](options& o) { o.etcd.endpoints = ""; }) == errc::invalid_argument);
  CHECK(refused([](options& o) { o.etcd.key_file = "key.pem"; }) == errc::invalid_argument);

  // A reference server where etcd should be: no HTTP.
  const tensorhub::reference_server<> none;
  said_lines said;
  tensorhub::standby_server_options how;
  how.server.address = address_of(free_port());
  how.server.log = said.writer();
  how.election.name = "servers";
  how.election.answer_time = 200ms;
  how.etcd.endpoints = "http" + none.address().substr(3);
  const standby server{how};
  REQUIRE(comes_true([&] { return contains(said.text(), "a request to etcd failed: http://127.0.0.1:"); }));
  CHECK_FALSE(server.leads());
}

TEST_CASE("etcd: with a user and a password, of a role that may do no more than the election") {
  if (etcd_program().empty()) return;
  etcd_member etcd;
  etcd.start();
  ask_for_passwords(etcd);
  const auto password = [&](const std::string& name, const std::string& text, mode_t mode) {
    const std::string file = (etcd.folder() / name).string();
    std::ofstream{file} << text << "\n";
    REQUIRE(::chmod(file.c_str(), mode) == 0);
    return file;
  };
  auto options = candidate(etcd, address_of(free_port()));
  options.etcd.user = "servers";
  options.etcd.password_file = password("right", "a \"secret\"", 0600);
  {
    const standby server{options};
    REQUIRE(comes_true([&] { return server.leads(); }));
    // A new password, even the same, makes the user's tokens invalid.
    const std::string root =
        etcd.order("/v3/auth/authenticate", R"({"name": "root", "password": "of root"})");
    etcd.order("/v3/auth/user/changepw", R"({"name": "servers", "password": "a \"secret\""})",
               tensorhub::token_in(root));
    std::this_thread::sleep_for(options.election.lease + 1s);  // beyond what the old token has renewed
    CHECK(comes_true([&] { return server.leads(); }));
  }
  // An attempt that took too long may have another reason first.
  const auto complains = [&](tensorhub::etcd_options how, const std::string& of) {
    said_lines said;
    auto other = options;
    how.endpoints = etcd.url();
    other.etcd = std::move(how);
    other.server.log = said.writer();
    const standby server{other};
    CHECK_MESSAGE(comes_true([&] { return contains(said.text(), of); }), said.text());
    CHECK_FALSE(server.leads());
  };
  complains({}, "user name is empty");
  complains({.user = "servers", .password_file = password("wrong", "guessed", 0600)},
            "etcd gives the user 'servers' no token");
  const auto refused = [&](const std::string& user, const std::string& file) {
    auto wrong = options;
    wrong.etcd.user = user;
    wrong.etcd.password_file = file;
    return code_of([&] { const standby server{wrong}; });
  };
  CHECK(refused("servers", "") == errc::invalid_argument);
  CHECK(refused("servers", password("shown", "a", 0644)) == errc::invalid_argument);
  CHECK(refused("servers", password("empty", "", 0600)) == errc::invalid_argument);
  CHECK(refused("servers", password("long", std::string(2000, 'a'), 0600)) == errc::limit_exceeded);
}

TEST_CASE("etcd: an endpoint that other machines see in the clear is said") {
  CHECK(tensorhub::plain_endpoints({"http://127.0.0.1:1, https://10.0.0.7:2379,http://[::1]:2379"}).empty());
  CHECK(tensorhub::plain_endpoints({"http://10.0.0.7:2379,https://10.0.0.8:1,http://etcd:2379"}) ==
        "http://10.0.0.7:2379, http://etcd:2379");
  said_lines said;
  tensorhub::standby_server_options options;
  options.server.address = address_of(free_port());
  options.server.log = said.writer();
  options.election.name = "servers";
  options.etcd.endpoints = "http://192.0.2.1:2379";  // nobody's
  const standby server{options};
  CHECK(comes_true([&] { return contains(said.text(), "in the clear at http://192.0.2.1:2379"); }));
}

TEST_CASE("etcd: over TLS, with certificates of both sides") {
  if (etcd_program().empty()) return;
  if (std::system("openssl version >/dev/null 2>&1") != 0) {
    std::cout << "SKIPPED: system.etcd: there is no openssl program here to make certificates" << std::endl;
    return;
  }
  etcd_member etcd{"https"};
  const auto file = [&](const std::string& name) { return (etcd.folder() / name).string(); };
  // An authority, and what it signs: etcd's certificate, and a candidate's.
  const auto make = [&](const std::string& name, const std::string& more) {
    const std::string command =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1" +
        (" -keyout " + file(name + ".key") + " -out " + file(name + ".pem")) + " -subj /CN=" + name + more +
        " 2>" + file("openssl.log");
    REQUIRE(std::system(command.c_str()) == 0);
  };
  const std::string signed_by_us = " -CA " + file("authority.pem") + " -CAkey " + file("authority.key") +
                                   " -addext basicConstraints=critical,CA:FALSE";
  make("authority", "");
  make("other", "");
  make("etcd", signed_by_us + " -addext subjectAltName=IP:127.0.0.1");
  make("candidate", signed_by_us);
  const tensorhub::etcd_options ours{etcd.url(), file("authority.pem"), file("candidate.pem"),
                                     file("candidate.key")};
  etcd.start({"--cert-file=" + file("etcd.pem"), "--key-file=" + file("etcd.key"),
              "--trusted-ca-file=" + file("authority.pem"), "--client-cert-auth"},
             ours);

  auto options = candidate(etcd, address_of(free_port()));
  options.etcd = ours;
  {
    const standby server{options};
    CHECK(comes_true([&] { return server.leads(); }));
  }
  // An attempt that took too long may have another reason first.
  const auto complains = [&](tensorhub::etcd_options how, const std::string& of) {
    said_lines said;
    options.etcd = std::move(how);
    options.server.log = said.writer();
    const standby server{options};
    const auto heard = [&] {
      const std::string text = said.text();
      return contains(text, "a request to etcd failed: " + etcd.url()) && contains(text, of);
    };
    CHECK_MESSAGE(comes_true(heard), said.text());
    CHECK_FALSE(server.leads());
  };
  complains({etcd.url(), file("other.pem"), ours.certificate_file, ours.key_file}, "certificate");
  complains({etcd.url(), ours.ca_file, {}, {}}, "");
#ifdef TENSORHUB_REFERENCE_SERVER
  const std::string address = address_of(free_port());
  child_process program{{TENSORHUB_REFERENCE_SERVER, "--address", address, "--etcd", etcd.url(), "--election",
                         "servers", "--etcd-ca", ours.ca_file, "--etcd-certificate", ours.certificate_file,
                         "--etcd-key", ours.key_file}};
  raw_client client{address};
  client.ask();
  CHECK(client.answer(patience));
#endif
}

#ifdef TENSORHUB_REFERENCE_SERVER
TEST_CASE("etcd: the reference server's program is a candidate, if it is told to be one") {
  if (etcd_program().empty()) return;
  etcd_member etcd;
  etcd.start();
  const std::string a = address_of(free_port()), b = address_of(free_port());
  const auto program = [&](const std::string& address) {
    return std::vector<std::string>{TENSORHUB_REFERENCE_SERVER,
                                    "--address",
                                    address,
                                    "--etcd",
                                    etcd.url(),
                                    "--election",
                                    "servers",
                                    "--lease-s",
                                    "2"};
  };
  child_process first{program(a)};
  CHECK(first.output_line() == "candidate at " + a);
  raw_client client{a};
  client.ask();
  CHECK(client.answer(patience) == 1u);
  child_process second{program(b)};
  CHECK(second.output_line() == "candidate at " + b);
  first.signal(SIGTERM);
  CHECK(first.wait() == 0);
  raw_client other{b};
  other.ask();
  CHECK(other.answer(patience) == 2u);
  second.signal(SIGTERM);
  CHECK(second.wait() == 0);

  child_process alone{std::vector<std::string>{TENSORHUB_REFERENCE_SERVER, "--etcd", etcd.url()}};
  CHECK(alone.wait() == 2);
  child_process nowhere{
      std::vector<std::string>{TENSORHUB_REFERENCE_SERVER, "--etcd", etcd.url(), "--election", "servers"}};
  CHECK(nowhere.wait() == 2);
}

TEST_CASE("etcd: a program that is a candidate tells Prometheus whether it leads, and whether etcd answers") {
  if (etcd_program().empty()) return;
  etcd_member etcd;
  etcd.start();
  child_process program{{TENSORHUB_REFERENCE_SERVER, "--address", address_of(free_port()), "--etcd",
                         etcd.url(), "--election", "servers", "--lease-s", "2", "--metrics", "127.0.0.1:0",
                         "--log-level", "error"}};
  static_cast<void>(program.output_line());
  const std::string said = program.output_line();
  REQUIRE_MESSAGE(contains(said, "metrics at "), said);
  const std::string url = said.substr(said.find("http"));
  const auto tells = [&](const std::string& sample) {
    return comes_true([&] { return contains(got_from(url), "\n" + sample + "\n"); });
  };
  CHECK(tells("tensorhub_server_leading 1"));
  CHECK(tells("tensorhub_server_term 1"));
  CHECK(tells("tensorhub_server_etcd_answers 1"));
  etcd.kill();
  CHECK(tells("tensorhub_server_etcd_answers 0"));
  CHECK(tells("tensorhub_server_leading 0"));
  CHECK(tells("tensorhub_server_term 1"));
}

TEST_CASE("etcd: a program that is a candidate reads the list of keys again") {
  if (etcd_program().empty()) return;
  etcd_member etcd;
  etcd.start();
  const auto keys = etcd.folder() / "keys";
  const auto of_server = tensorhub::make_curve_keys();
  const auto removed = tensorhub::make_curve_keys(), added = tensorhub::make_curve_keys();
  tensorhub::write_curve_keys(keys, "server", of_server);
  tensorhub::write_allow_list(keys / "clients.allow", {{removed.public_key, "removed"}});
  const std::string address = address_of(free_port());
  child_process program{{TENSORHUB_REFERENCE_SERVER, "--address", address, "--etcd", etcd.url(), "--election",
                         "servers", "--keys", keys / "server.secret", "--allow", keys / "clients.allow",
                         "--log-level", "error"}};
  CHECK(program.output_line() == "candidate at " + address);
  const auto join_of = [&](const tensorhub::curve_key_pair& own, const std::string& replica) {
    auto options = member_of(address, replica);
    options.security =
        tensorhub::client_security{.server_key = of_server.public_key, .keys = own, .trust_sources = true};
    rollout joins{options, 100};
    return code_of([&] { joins.worker.join(); });
  };
  CHECK(join_of(removed, "rollout-0") == errc::ok);
  CHECK(join_of(added, "rollout-1") == errc::refused);
  std::filesystem::remove(keys / "clients.allow");  // what is there is not overwritten
  tensorhub::write_allow_list(keys / "clients.allow", {{added.public_key, "added"}});
  program.signal(SIGHUP);
  CHECK(comes_true([&] { return join_of(removed, "rollout-2") == errc::refused; }));
  CHECK(join_of(added, "rollout-3") == errc::ok);
}
#endif
