// How much longer the updates of a small fleet take while somebody floods the reference server.

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <tensorhub/server.hpp>
#include <tensorhub/service/codec.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "harness.hpp"
#include "support/child_process.hpp"

namespace {

using hub = tensorhub::hub<tensorhub::transports::tcp>;
namespace messages = tensorhub::messages;

const std::vector<std::string> floods = {"list requests", "answers that are never read", "heartbeats",
                                         "handshakes of strangers", "connections of strangers"};

struct scene {
  tensorhub::curve_key_pair server_keys = tensorhub::make_curve_keys();
  tensorhub::curve_key_pair keys = tensorhub::make_curve_keys();
  std::string server{};

  [[nodiscard]] tensorhub::worker_options who(const std::string& replica) const {
    tensorhub::worker_options options;
    options.server = server;
    options.model = "policy";
    options.replica = replica;
    options.security = tensorhub::client_security{server_keys.public_key, keys, true};
    return options;
  }
};

class flooder {
 public:
  flooder(const scene& where, std::string kind) : where_{where}, kind_{std::move(kind)} {}
  /// A step of about a millisecond at most, if the server takes what it is given.
  void step() {
    if (kind_ == "connections of strangers") return connect_and_say_nothing();
    if (kind_ == "handshakes of strangers") return shake_hands();
    if (!member_) member_ = client(where_.keys);
    const bool beats = kind_ == "heartbeats";
    const auto frame = beats ? encoder_.encode({7, {}, {}, messages::heartbeat_request{}})
                             : encoder_.encode({7, {++sequence_}, {sequence_ - 1}, messages::list_request{}});
    static_cast<void>(member_->send(zmq::const_buffer{frame.data(), frame.size()}, zmq::send_flags::none));
    zmq::message_t answer;
    while (kind_ != "answers that are never read" && member_->recv(answer, zmq::recv_flags::dontwait)) {
    }
  }

 private:
  [[nodiscard]] std::unique_ptr<zmq::socket_t> client(const tensorhub::curve_key_pair& keys) {
    auto socket = std::make_unique<zmq::socket_t>(context_, zmq::socket_type::dealer);
    socket->set(zmq::sockopt::linger, 0);
    socket->set(zmq::sockopt::rcvhwm, 1);
    socket->set(zmq::sockopt::sndhwm, 100);
    socket->set(zmq::sockopt::sndtimeo, 10);
    socket->set(zmq::sockopt::curve_serverkey, where_.server_keys.public_key);
    socket->set(zmq::sockopt::curve_publickey, keys.public_key);
    socket->set(zmq::sockopt::curve_secretkey, keys.secret_key);
    socket->connect(where_.server);
    return socket;
  }
  /// A key that is not on the list: the whole handshake is computed, and refused.
  void shake_hands() {
    if (strangers_.size() >= 50) strangers_.erase(strangers_.begin());
    strangers_.push_back(client(stranger_));
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  void connect_and_say_nothing() {
    if (sockets_.size() >= 500) sockets_.erase(sockets_.begin());
    sockets_.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port =
        htons(static_cast<std::uint16_t>(std::stoi(where_.server.substr(where_.server.rfind(':') + 1))));
    static_cast<void>(::connect(sockets_.back().get(), reinterpret_cast<const sockaddr*>(&to), sizeof to));
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }

  const scene& where_;
  const std::string kind_;
  const tensorhub::curve_key_pair stranger_ = tensorhub::make_curve_keys();
  zmq::context_t context_;
  std::unique_ptr<zmq::socket_t> member_;
  std::vector<std::unique_ptr<zmq::socket_t>> strangers_;
  std::vector<tensorhub::detail::unique_socket> sockets_;
  tensorhub::encoder encoder_;
  std::uint64_t sequence_ = 0;
};

void serve(const scene& where, processes::channel& line) {
  tensorhub::reference_server_options how;
  how.security = tensorhub::server_security{where.server_keys, {{where.keys.public_key, {}}}};
  const hub::reference_server server{how};
  line.say(server.address());
  static_cast<void>(line.hear());
}

/// Floods as it is told, until it is told otherwise.
void flood(scene where, processes::channel& line) {
  static_cast<void>(::setpriority(PRIO_PROCESS, 0, 19));
  where.server = line.hear();
  for (std::string kind = line.hear(); kind != "end"; kind = line.hear()) {
    if (kind == "quiet") continue;
    flooder one{where, kind};
    while (!line.try_hear()) one.step();  // "quiet" ends it
  }
}

struct rollout {
  std::vector<float> weights = std::vector<float>(1u << 18);
  hub::subscriber worker;
  explicit rollout(const tensorhub::worker_options& options) : worker{options} {
    worker.add("w", weights.data(), {weights.size()}, tensorhub::dtype::f32);
    worker.join();
  }
};

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  scene here;
  const processes::child_process server_process{[&](processes::channel& line) { serve(here, line); }};
  const processes::child_process flood_process{[&](processes::channel& line) { flood(here, line); }};
  here.server = server_process.line().hear();
  flood_process.line().say(here.server);

  bench::comparison result{
      given, "updates beside floods",
      "a trainer and 4 rollouts in one process, the server with keys in another, one "
      "flooder at nice 19 in a third (requests as fast as the server takes them, strangers "
      "at most 1000 a second); 1 MiB; from publish() until all have updated"};
  std::vector<float> weights(1u << 18);
  hub::publisher trainer{here.who("trainer")};
  trainer.add("w", weights.data(), {weights.size()}, tensorhub::dtype::f32);
  trainer.join();
  std::vector<std::unique_ptr<rollout>> fleet;
  for (int i = 0; i < 4; ++i)
    fleet.push_back(std::make_unique<rollout>(here.who("rollout-" + std::to_string(i))));
  std::uint64_t version = 0;
  const auto turn = [&] {
    std::vector<double> seconds;
    for (int i = 0; i < (given.smoke ? 1 : 10); ++i) {
      const double started = bench::now_seconds();
      trainer.publish(++version);
      {
        std::vector<std::jthread> updates;
        for (const auto& each : fleet)
          updates.emplace_back([&worker = each->worker, version] {
            static_cast<void>(worker.update(tensorhub::at_least(version), std::chrono::seconds{60}));
          });
      }
      seconds.push_back(bench::now_seconds() - started);
      trainer.unpublish();
    }
    return bench::figures{{"ms", bench::median(seconds) * 1e3},
                          {"worst ms", bench::percentile(seconds, 1) * 1e3}};
  };
  result.add("quiet", turn);
  for (const std::string& kind : floods)
    result.add(kind, [&, kind] {
      flood_process.line().say(kind);
      std::this_thread::sleep_for(std::chrono::milliseconds{given.smoke ? 20 : 300});
      const bench::figures seen = turn();
      flood_process.line().say("quiet");
      std::this_thread::sleep_for(std::chrono::milliseconds{given.smoke ? 20 : 300});
      return seen;
    });
  result.run(given.smoke ? 1 : 5);
  result.print({"ms", "worst ms"});
  // A fleet whose updates take at most 1.5 times as long.
  for (const std::string& kind : floods)
    result.goal("quiet / " + kind, result.ratio(kind, {"quiet"}, "ms", false), 1 / 1.5);
  result.write_json(given.json_path);
  flood_process.line().say("end");
}
