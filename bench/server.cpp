// The reference server against a bare ROUTER loop: updates per second with many connected workers.
//
// One update is three exchanges: update (answered with a source), finish, unpublish. The same client process
// drives both; the bare server answers each request with an answer of the same type and size that was made
// before, so the difference is the catalog and the codec.
//
// With --connections N: so many connections at once, and no rival (many_connections.hpp).

#include <sys/epoll.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>
#include <string_view>
#include <tensorhub/server.hpp>
#include <tensorhub/service/codec.hpp>
#include <tensorhub/types/incarnation_proof.hpp>
#include <tensorhub/types/layout.hpp>
#include <zmq.hpp>

#include "control_messages.hpp"
#include "harness.hpp"
#include "many_connections.hpp"
#include "support/child_process.hpp"
#include "tensorhub/detail/unique_fd.hpp"

namespace {

namespace messages = tensorhub::messages;
using tensorhub::incarnation;

/// One worker: a DEALER socket and where it is in its update.
class client {
 public:
  client(zmq::context_t& context, const std::string& address, std::uint64_t number,
         const tensorhub::layout& shape, const std::optional<tensorhub::client_security>& security)
      : socket_{context, zmq::socket_type::dealer},
        id_{number},
        self_{security ? tensorhub::new_incarnation(security->keys.public_key)
                       : tensorhub::proven_incarnation{{number}, {}}},
        shape_{&shape} {
    socket_.set(zmq::sockopt::linger, 0);
    if (security) {
      socket_.set(zmq::sockopt::curve_serverkey, security->server_key);
      socket_.set(zmq::sockopt::curve_publickey, security->keys.public_key);
      socket_.set(zmq::sockopt::curve_secretkey, security->keys.secret_key);
    }
    socket_.connect(address);
  }

  [[nodiscard]] zmq::socket_t& socket() { return socket_; }
  [[nodiscard]] std::uint64_t updates() const { return updates_; }
  [[nodiscard]] std::uint64_t received() const { return received_; }
  [[nodiscard]] bool joined() const { return joined_; }

  void join(bool with_layout) {
    messages::join_request join = bench::join_of(id_, *shape_, with_layout);
    join.proof = self_.proof;
    send(std::move(join));
  }
  void publish() { send(messages::publish_request{{1}, bench::held_by(1, 0)}); }
  void update() {
    ++operation_;
    busy_ = true;
    send(messages::update_request{{operation_}, tensorhub::latest, 600'000});
  }
  void heartbeat() {
    tensorhub::messages::envelope envelope{self_.id.value, {}, {sequence_}, messages::heartbeat_request{}};
    send_frame(envelope);
  }

  /// Takes one answer and goes on with the update; false: there was none.
  bool step() {
    zmq::message_t frame;
    if (!socket_.recv(frame, zmq::recv_flags::dontwait)) return false;
    const auto decoded = decoder_.decode({static_cast<const std::byte*>(frame.data()), frame.size()});
    if (!decoded.ok()) throw std::runtime_error("bad frame from the server");
    ++received_;
    const messages::message& body = decoded.message.body;
    if (const auto* joined = get_if<messages::join_reply>(&body)) {
      if (!joined->result.ok()) throw std::runtime_error("not joined: " + joined->result.sentence);
      joined_ = !joined->wants_layout;
      if (!joined_) join(true);
    } else if (const auto* source = get_if<messages::update_reply>(&body)) {
      if (source->sources.empty()) throw std::runtime_error("no source: " + source->result.sentence);
      messages::finish_request finish;
      finish.operation = {operation_};
      finish.version = source->version;
      finish.held = bench::held_by(source->version.value, operation_);
      finish.lease = source->sources.front().lease;
      expects_finish_ = true;
      send(std::move(finish));
    } else if (holds_alternative<messages::status_reply>(body)) {
      if (std::exchange(expects_finish_, false))
        send(messages::unpublish_request{{1}, operation_, {}});
      else
        published_ = true;
    } else if (holds_alternative<messages::drained_reply>(body)) {
      ++updates_;
      busy_ = false;
      if (!paused_) update();
    }
    return true;
  }
  [[nodiscard]] bool published() const { return published_; }
  [[nodiscard]] bool busy() const { return busy_; }
  void pause(bool paused) { paused_ = paused; }

 private:
  void send(messages::message body) {
    // Everything before this request has been answered: a worker of this benchmark has one at a time.
    const tensorhub::request_sequence before{sequence_};
    messages::envelope envelope{self_.id.value, {++sequence_}, before, std::move(body)};
    send_frame(envelope);
  }
  void send_frame(const messages::envelope& envelope) {
    const auto frame = encoder_.encode(envelope);
    socket_.send(zmq::const_buffer{frame.data(), frame.size()}, zmq::send_flags::none);
  }

  zmq::socket_t socket_;
  std::uint64_t id_;
  tensorhub::proven_incarnation self_;
  const tensorhub::layout* shape_;
  tensorhub::encoder encoder_;
  tensorhub::decoder decoder_;
  std::uint64_t sequence_ = 0;
  std::uint64_t operation_ = 0;
  std::uint64_t updates_ = 0;
  std::uint64_t received_ = 0;  ///< frames
  bool joined_ = false;
  bool published_ = false;
  bool expects_finish_ = false;
  bool paused_ = false;
  bool busy_ = false;  ///< in the middle of an update
};

/// Answers every request with a canned answer of the right type and of the size that the catalog's would
/// have.
class bare_server {
 public:
  explicit bare_server(zmq::context_t& context) : socket_{context, zmq::socket_type::router} {
    socket_.bind("tcp://127.0.0.1:*");
    tensorhub::encoder encoder;
    const auto can = [&](messages::message body) {
      const auto frame = encoder.encode({99, {1}, {}, std::move(body)});
      return std::vector<std::byte>{frame.begin(), frame.end()};
    };
    messages::update_reply update;
    update.version = {1};
    messages::assignment source;
    source.source_replica = "replica-0";
    source.address.text = "tcp://127.0.0.1:10000";
    source.control.key.used_bytes = 24;
    update.sources.assign(tensorhub::source_limits{}.sources, source);
    status_ = can(messages::status_reply{});
    update_ = can(update);
    drained_ = can(messages::drained_reply{});
    join_ = can(messages::join_reply{});
    heartbeat_ = can(messages::heartbeat_reply{});
  }
  [[nodiscard]] std::string address() { return socket_.get(zmq::sockopt::last_endpoint); }

  void run() {
    zmq::message_t identity;
    zmq::message_t frame;
    for (;;) {
      static_cast<void>(socket_.recv(identity));
      static_cast<void>(socket_.recv(frame));
      std::uint16_t type = 0;
      std::memcpy(&type, static_cast<const std::byte*>(frame.data()) + 6, sizeof type);
      const auto is = [&]<typename Body>(const Body& body) {
        return type == messages::message{body}.index();
      };
      const std::vector<std::byte>& answer = is(messages::update_request{})      ? update_
                                             : is(messages::unpublish_request{}) ? drained_
                                             : is(messages::join_request{})      ? join_
                                             : is(messages::heartbeat_request{}) ? heartbeat_
                                                                                 : status_;
      socket_.send(identity, zmq::send_flags::sndmore);
      socket_.send(zmq::const_buffer{answer.data(), answer.size()}, zmq::send_flags::none);
    }
  }

 private:
  zmq::socket_t socket_;
  std::vector<std::byte> status_, update_, drained_, join_, heartbeat_;
};

/// All workers of one server, in one thread: they sleep in one epoll set over the sockets' descriptors.
class crowd {
 public:
  crowd(const std::string& address, std::size_t workers,
        const std::optional<tensorhub::client_security>& security)
      : shape_{bench::tensors_of_all()} {
    context_.set(zmq::ctxopt::max_sockets, 4096);
    for (std::size_t i = 0; i <= workers; ++i) {  // number 0 publishes
      clients_.push_back(std::make_unique<client>(context_, address, i + 1, shape_, security));
      epoll_event wanted{};
      wanted.events = EPOLLIN;
      wanted.data.u64 = i;
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, clients_.back()->socket().get(zmq::sockopt::fd), &wanted);
    }
    clients_.front()->join(true);
    work_until([&] { return clients_.front()->joined(); });
    clients_.front()->publish();
    work_until([&] { return clients_.front()->published(); });
    for (auto& each : clients_)
      if (each != clients_.front()) each->join(false);
    work_until(
        [&] { return std::ranges::all_of(clients_, [](const auto& each) { return each->joined(); }); });
  }

  /// Every worker updates again and again for so long: updates per second.
  bench::figures run(double seconds) {
    const std::uint64_t before = updates();
    const std::uint64_t received_before = received();
    const double started = bench::now_seconds();
    for (auto& each : clients_) {
      each->pause(false);
      if (each != clients_.front()) each->update();
    }
    double next_heartbeat = started;
    work_until([&] {
      const double now = bench::now_seconds();
      if (now > next_heartbeat) {
        next_heartbeat = now + 1;
        for (auto& each : clients_) each->heartbeat();
      }
      return now > started + seconds;
    });
    const auto made = static_cast<double>(updates() - before);
    const double rate = made / (bench::now_seconds() - started);
    const double frames = static_cast<double>(received() - received_before) / made;
    for (auto& each : clients_) each->pause(true);
    work_until([&] { return std::ranges::none_of(clients_, [](const auto& each) { return each->busy(); }); });
    return {{"updates/s", rate}, {"messages/update", frames}};
  }

 private:
  [[nodiscard]] std::uint64_t received() const {
    std::uint64_t sum = 0;
    for (const auto& each : clients_) sum += each->received();
    return sum;
  }
  [[nodiscard]] std::uint64_t updates() const {
    std::uint64_t sum = 0;
    for (const auto& each : clients_) sum += each->updates();
    return sum;
  }
  void work_until(const std::function<bool()>& done) {
    std::array<epoll_event, 256> events{};
    const double deadline = bench::now_seconds() + 60;
    while (!done()) {
      if (bench::now_seconds() > deadline) throw std::runtime_error("the server does not answer");
      const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 1);
      for (int i = 0; i < count; ++i) drain(*clients_[events[static_cast<std::size_t>(i)].data.u64]);
      // ZeroMQ's descriptor is edge-triggered: what was signalled while a socket was sending is found here.
      if (count == 0)
        for (auto& each : clients_) drain(*each);
    }
  }
  static void drain(client& each) {
    while ((each.socket().get(zmq::sockopt::events) & ZMQ_POLLIN) != 0 && each.step()) {
    }
  }

  tensorhub::layout shape_;
  zmq::context_t context_;
  tensorhub::detail::unique_fd epoll_{::epoll_create1(EPOLL_CLOEXEC)};
  std::vector<std::unique_ptr<client>> clients_;
};

enum class server_kind { bare, plain, secured, with_rights };

/// Of all secured rows.
struct key_ring {
  tensorhub::curve_key_pair server = tensorhub::make_curve_keys();
  tensorhub::curve_key_pair clients = tensorhub::make_curve_keys();
};

/// Of all workers. With rights: the patterns that fit come last.
tensorhub::client_rules rules_of(server_kind kind) {
  tensorhub::client_rules out{"bench"};
  if (kind != server_kind::with_rights) return out;
  out.models = {"other-*", "policy-*-7b", "mod*"};
  out.replicas = {"trainer-*", "rollout-*", "repl*"};
  out.may = tensorhub::right::read | tensorhub::right::serve | tensorhub::right::publish;
  return out;
}

std::unique_ptr<processes::child_process> start(server_kind kind, const key_ring& keys) {
  return std::make_unique<processes::child_process>([kind, keys](processes::channel& line) {
    const auto answer_questions = [&line] {
      for (;;) {
        static_cast<void>(line.hear());
        line.say(std::to_string(bench::cpu_seconds()));
      }
    };
    if (kind == server_kind::bare) {
      zmq::context_t context;
      bare_server server{context};
      line.say(server.address());
      std::jthread loop{[&server] { server.run(); }};
      answer_questions();
    } else {
      tensorhub::reference_server_options how;
      how.catalog.worker_timeout = std::chrono::seconds{60};
      if (kind >= server_kind::secured)
        how.security = tensorhub::server_security{keys.server, {{keys.clients.public_key, rules_of(kind)}}};
      tensorhub::reference_server<> server{how};
      line.say(server.address());
      answer_questions();
    }
  });
}

/// The word after `--connections` as a number; zero: there is none.
std::size_t wanted_connections(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; ++i)
    if (std::string_view{argv[i]} == "--connections") return std::strtoul(argv[i + 1], nullptr, 10);
  return 0;
}

void print_goals(bench::comparison& rivals, const std::vector<std::size_t>& sizes) {
  for (const std::size_t workers : sizes) {
    const std::string suffix = std::to_string(workers) + " workers";
    rivals.goal("updates/s, " + suffix + ", over the bare ROUTER's",
                rivals.ratio("reference server, " + suffix, {"bare ROUTER, " + suffix}, "updates/s", true),
                0.7);
    // In the rates the one client thread, which both have, hides a part of what the server costs.
    rivals.goal("cpu per update, " + suffix + ", of the bare ROUTER's over ours",
                rivals.ratio("reference server, " + suffix, {"bare ROUTER, " + suffix},
                             "server cpu us/update", false),
                0.2);
    rivals.goal("cpu per update, " + suffix + ", CURVE alone over with rights",
                rivals.ratio("the same with rights and patterns, " + suffix,
                             {"reference server with CURVE, " + suffix}, "server cpu us/update", false),
                0.95);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  if (const std::size_t connections = wanted_connections(argc, argv); connections > 0)
    return bench::measure_connections(given, connections);
  const double seconds = given.smoke ? 0.1 : 1.0;
  const std::vector<std::size_t> sizes =
      given.smoke ? std::vector<std::size_t>{10} : std::vector<std::size_t>{100, 1000};
  std::vector<std::unique_ptr<processes::child_process>> servers;
  struct row {
    server_kind kind;
    const char* name;
  };
  const std::array<row, 4> rows{row{server_kind::bare, "bare ROUTER, "},
                                row{server_kind::plain, "reference server, "},
                                row{server_kind::secured, "reference server with CURVE, "},
                                row{server_kind::with_rights, "the same with rights and patterns, "}};
  const key_ring keys;
  for (std::size_t i = 0; i < sizes.size() * rows.size(); ++i)
    servers.push_back(start(rows[i % rows.size()].kind, keys));
  bench::comparison rivals{
      given, "reference server against a bare ROUTER loop",
      "one update is three exchanges (update, finish, unpublish); every worker has one DEALER connection and "
      "starts its next update at once; the same client thread drives both; the bare loop answers with canned "
      "frames of the same sizes; turns of 1 s, 1 warming round, then 7; medians; CPU of the server process"};
  std::vector<std::unique_ptr<crowd>> crowds;
  for (std::size_t i = 0; i < servers.size(); ++i) {
    const std::size_t workers = sizes[i / rows.size()];
    const row& what = rows[i % rows.size()];
    std::optional<tensorhub::client_security> security;
    if (what.kind >= server_kind::secured)
      security = tensorhub::client_security{keys.server.public_key, keys.clients, true};
    crowds.push_back(std::make_unique<crowd>(servers[i]->line().hear(), workers, security));
    rivals.add(what.name + std::to_string(workers) + " workers", [&, i, seconds] {
      const double cpu = bench::cpu_of(*servers[i]);
      bench::figures seen = crowds[i]->run(seconds);
      seen["server cpu us/update"] =
          (bench::cpu_of(*servers[i]) - cpu) / (seen.at("updates/s") * seconds) * 1e6;
      return seen;
    });
  }
  rivals.run(given.smoke ? 1 : 7);
  rivals.print({"updates/s", "server cpu us/update", "messages/update"});
  print_goals(rivals, sizes);
  rivals.write_json(given.json_path);
}
