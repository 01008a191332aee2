#pragma once
/// \file flooder.hpp
/// A process that floods a reference server with keys, or a worker's data port, as it is told: for tests and
/// benchmarks of what goes on beside it.

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tensorhub/security.hpp>
#include <tensorhub/service/codec.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "support/child_process.hpp"

namespace floods {

namespace messages = tensorhub::messages;

inline const std::vector<std::string> kinds = {
    "list requests",
    "messages of 16 MiB",
    "answers that are never read",
    "large answers that are never read",
    "heartbeats",
    "handshakes of strangers",
    "connections of strangers",
    "data connections of strangers",
    "data greetings without a capability",
};

/// One whose description is 2 MB long, for "large answers that are never read".
inline const std::string large_model = "wide";
template <typename Hub>
struct worker_of_large_model {
  std::vector<float> numbers = std::vector<float>(20'000);
  typename Hub::publisher worker;
  explicit worker_of_large_model(tensorhub::worker_options options)
      : worker{of_large_model(std::move(options))} {
    for (std::size_t i = 0; i < numbers.size(); ++i)
      worker.add("tensor-" + std::string(100, 'x') + std::to_string(i), &numbers[i], {1},
                 tensorhub::dtype::f32);
    worker.join();
  }
  [[nodiscard]] static tensorhub::worker_options of_large_model(tensorhub::worker_options options) {
    options.model = large_model;
    return options;
  }
};

struct target {
  std::string server{};
  std::string server_key{};
  tensorhub::curve_key_pair member{};  ///< whose connections the server takes
  std::string data_address{};          ///< of a worker with transport tcp
};

/// Every kind comes from an address of its own: a server that blocks one of them hears the others.
class flooder {
 public:
  flooder(const target& where, std::string kind)
      : where_{where},
        kind_{std::move(kind)},
        self_{static_cast<std::uint32_t>(std::ranges::find(kinds, kind_) - kinds.begin()) + 0x7f000002} {}
  /// A step of about a millisecond at most, if its victim takes what it is given.
  void step() {
    if (kind_ == "connections of strangers")  // which the server may not answer
      return connect_and_say_nothing(port_of(where_.server), SOCK_NONBLOCK);
    if (kind_ == "data connections of strangers")
      return connect_and_say_nothing(port_of(where_.data_address));
    if (kind_ == "data greetings without a capability") return greet();
    if (kind_ == "handshakes of strangers") return shake_hands();
    if (!member_) member_ = client(where_.member);
    if (kind_ == "messages of 16 MiB")
      return static_cast<void>(member_->send(zmq::const_buffer{large_.data(), large_.size()}));
    const auto frame = question();
    static_cast<void>(member_->send(zmq::const_buffer{frame.data(), frame.size()}, zmq::send_flags::none));
    zmq::message_t answer;
    while (!kind_.ends_with("never read") && member_->recv(answer, zmq::recv_flags::dontwait)) {
    }
  }

 private:
  [[nodiscard]] std::span<const std::byte> question() {
    if (kind_ == "heartbeats") return encoder_.encode({7, {}, {}, messages::heartbeat_request{}});
    ++sequence_;
    if (!kind_.starts_with("large"))
      return encoder_.encode({7, {sequence_}, {sequence_ - 1}, messages::list_request{}});
    messages::describe_request describe;
    describe.model = large_model;
    return encoder_.encode({7, {sequence_}, {sequence_ - 1}, describe});
  }
  [[nodiscard]] static std::uint16_t port_of(const std::string& address) {
    return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  }
  [[nodiscard]] std::unique_ptr<zmq::socket_t> client(const tensorhub::curve_key_pair& keys) {
    auto socket = std::make_unique<zmq::socket_t>(context_, zmq::socket_type::dealer);
    socket->set(zmq::sockopt::linger, 0);
    socket->set(zmq::sockopt::rcvhwm, 1);
    socket->set(zmq::sockopt::sndhwm, kind_ == "messages of 16 MiB" ? 1 : 100);
    socket->set(zmq::sockopt::sndtimeo, 10);
    socket->set(zmq::sockopt::curve_serverkey, where_.server_key);
    socket->set(zmq::sockopt::curve_publickey, keys.public_key);
    socket->set(zmq::sockopt::curve_secretkey, keys.secret_key);
    socket->connect("tcp://127.0.0." + std::to_string(self_ & 0xff) + ":0;" +
                    where_.server.substr(std::string_view{"tcp://"}.size()));
    return socket;
  }
  /// A key that is not on the list: the whole handshake is computed, and refused.
  void shake_hands() {
    if (strangers_.size() >= 50) strangers_.erase(strangers_.begin());
    strangers_.push_back(client(stranger_));
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  void connect_and_say_nothing(std::uint16_t port, int how = 0) {
    if (sockets_.size() >= 500) sockets_.erase(sockets_.begin());
    sockets_.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | how, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(self_);
    static_cast<void>(::bind(sockets_.back().get(), reinterpret_cast<const sockaddr*>(&to), sizeof to));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(port);
    static_cast<void>(::connect(sockets_.back().get(), reinterpret_cast<const sockaddr*>(&to), sizeof to));
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  void greet() {
    connect_and_say_nothing(port_of(where_.data_address));
    const tensorhub::transports::tcp_detail::hello greeting{.reader = ++sequence_, .source = 1};
    static_cast<void>(::send(sockets_.back().get(), &greeting, sizeof greeting, MSG_NOSIGNAL));
  }

  const target where_;
  const std::string kind_;
  const std::uint32_t self_;  ///< its address, as a number
  const std::vector<std::byte> large_ = std::vector<std::byte>((16u << 20) - 4096);
  const tensorhub::curve_key_pair stranger_ = tensorhub::make_curve_keys();
  zmq::context_t context_;
  std::unique_ptr<zmq::socket_t> member_;
  std::vector<std::unique_ptr<zmq::socket_t>> strangers_;
  std::vector<tensorhub::detail::unique_socket> sockets_;
  tensorhub::encoder encoder_;
  std::uint64_t sequence_ = 0;
};

/// The body of the process, at the lowest priority. It hears the server's address and a worker's, then one of
/// `kinds`, "quiet", another one, and so on, until "end".
inline void flood(target where, const processes::channel& line) {
  static_cast<void>(::setpriority(PRIO_PROCESS, 0, 19));
  where.server = line.hear();
  where.data_address = line.hear();
  for (std::string kind = line.hear(); kind != "end"; kind = line.hear()) {
    if (kind == "quiet") continue;
    flooder one{where, kind};
    while (!line.try_hear()) one.step();  // "quiet" ends it
  }
}

}  // namespace floods
