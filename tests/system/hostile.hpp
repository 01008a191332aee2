#pragma once
// Processes that mean harm, as far as a server and workers can tell: they speak the protocols by hand.

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "hub.hpp"
#include "tensorhub/service/codec.hpp"

namespace system_tests {

namespace wire = tensorhub::transports::tcp_detail;

/// Somebody at the server's door who sends what it likes.
class liar {
 public:
  /// `most_unread`: answers that its side takes from the network before it reads them; `most_unsent`: frames
  /// that wait at its side, 0 for any number.
  explicit liar(const std::string& server, std::uint64_t self = 0xbad, int most_unread = 1000,
                int most_unsent = 0)
      : socket_{context_, zmq::socket_type::dealer}, self_{self} {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvhwm, most_unread);
    socket_.set(zmq::sockopt::sndhwm, most_unsent);
    socket_.set(zmq::sockopt::rcvtimeo, 30'000);
    socket_.connect(server);
  }

  [[nodiscard]] std::uint64_t self() const { return self_; }

  void send_as(std::uint64_t who, std::uint64_t sequence, tensorhub::messages::message body,
               std::uint64_t acknowledged = 0) {
    send_frame(encoder_.encode({who, {sequence}, {acknowledged}, std::move(body)}));
  }
  std::uint64_t send(tensorhub::messages::message body) {
    ++sequence_;
    send_as(self_, sequence_, std::move(body), sequence_ - 1);
    return sequence_;
  }
  /// Once by itself, once behind another part and before a third.
  void send_in_parts(std::span<const std::byte> frame) {
    send_frame(frame);
    socket_.send(zmq::str_buffer("more"), zmq::send_flags::sndmore);
    socket_.send(zmq::const_buffer{frame.data(), frame.size()}, zmq::send_flags::sndmore);
    socket_.send(zmq::str_buffer("the end"), zmq::send_flags::none);
  }
  void send_frame(std::span<const std::byte> frame) {
    socket_.send(zmq::const_buffer{frame.data(), frame.size()}, zmq::send_flags::none);
  }

  /// The next message of this kind; others are thrown away.
  template <typename Body>
  Body hear() {
    for (;;) {
      zmq::message_t frame;
      REQUIRE_MESSAGE(socket_.recv(frame).has_value(), "the server does not answer");
      auto decoded = decoder_.decode({static_cast<const std::byte*>(frame.data()), frame.size()});
      REQUIRE(decoded.ok());
      if (auto* const body = get_if<Body>(&decoded.message.body)) return std::move(*body);
    }
  }
  template <typename Answer>
  Answer ask(tensorhub::messages::message body) {
    send(std::move(body));
    return hear<Answer>();
  }

  /// A join that the server has no reason to refuse, as it looks. The model is there already.
  tensorhub::messages::join_request join_of(std::string replica) {
    namespace m = tensorhub::messages;
    m::describe_request describe;
    describe.model = "policy";
    const auto shape = ask<m::describe_reply>(describe);
    REQUIRE(shape.result.ok());
    const tensorhub::layout made{shape.tensors, shape.chunk_bytes};
    m::join_request join;
    join.model = "policy";
    join.replica = std::move(replica);
    join.form.transport = "tcp";
    join.form.consistency = "group_consistent";
    join.form.integrity = "xxh3_128";
    join.address.text = "tcp://127.0.0.1:1";
    join.form.layout_digest = made.digest();
    join.form.chunk_bytes = made.chunk_bytes();
    join.form.chunk_count = made.chunk_count();
    return join;
  }
  void join(std::string replica) {
    const auto reply = ask<tensorhub::messages::join_reply>(join_of(std::move(replica)));
    REQUIRE_MESSAGE(reply.result.ok(), reply.result.sentence);
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
  tensorhub::encoder encoder_;
  tensorhub::decoder decoder_;
  std::uint64_t self_;
  std::uint64_t sequence_ = 0;
};

/// Somebody at a worker's data port who sends what it likes.
class data_stranger {
 public:
  explicit data_stranger(const std::string& address)
      : socket_{wire::connect_to(address, {}, std::chrono::steady_clock::now() + 30s)} {}

  [[nodiscard]] static wire::hello greeting(std::uint64_t reader, std::uint64_t source,
                                            const std::string& capability) {
    wire::hello out{.reader = reader, .source = source};
    std::memcpy(out.capability.data(), capability.data(), std::min(capability.size(), sizeof out.capability));
    return out;
  }
  /// How much of it the socket takes at once.
  std::size_t send(const void* bytes, std::size_t count) {
    const auto sent = ::send(socket_.get(), bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent < 0 ? 0 : static_cast<std::size_t>(sent);
  }
  std::size_t send(const wire::hello& greeting) { return send(&greeting, sizeof greeting); }
  void say_no_more() { ::shutdown(socket_.get(), SHUT_WR); }
  /// So many bytes; fewer: the other side has ended the connection, or says nothing for 30 s.
  [[nodiscard]] std::vector<std::byte> hear(std::size_t bytes) {
    const auto until = std::chrono::steady_clock::now() + 30s;
    std::vector<std::byte> out(bytes);
    std::size_t have = 0;
    while (have < bytes && wire::wait_ready(socket_.get(), POLLIN, until)) {
      const auto taken = ::recv(socket_.get(), out.data() + have, bytes - have, 0);
      if (taken <= 0) {
        ended_ = true;
        break;
      }
      have += static_cast<std::size_t>(taken);
    }
    out.resize(have);
    return out;
  }
  [[nodiscard]] bool ended() const { return ended_; }  ///< `hear` has come to the end of the connection
  template <typename Message>
  Message hear_one() {
    const auto bytes = hear(sizeof(Message));
    REQUIRE_MESSAGE(bytes.size() == sizeof(Message), "the data port says too little");
    Message out;
    std::memcpy(&out, bytes.data(), sizeof out);
    return out;
  }

 private:
  tensorhub::detail::unique_socket socket_;
  bool ended_ = false;
};

/// What goes on beside it, and must not notice: a trainer and a rollout, round after round.
class bystanders {
 public:
  explicit bystanders(const std::string& server)
      : server_{server}, trainer_{who(server, "trainer-0")}, rollout_{who(server, "rollout-0")} {
    round();
  }
  [[nodiscard]] tensorhub::worker& source() { return trainer_.worker; }
  /// Publishes, updates, compares every byte, takes back.
  void round() {
    ++version_;
    trainer_.publish(version_);
    CHECK(rollout_.worker.update(at_least(version_), 60s).version == version_);
    CHECK(rollout_.memory.holds(version_));
    trainer_.worker.unpublish(60s);
  }
  /// The same with a version that stays published, for somebody else to read meanwhile.
  void publish() {
    ++version_;
    trainer_.publish(version_);
  }
  void unpublish(std::chrono::milliseconds timeout = 60s) { trainer_.worker.unpublish(timeout); }
  /// Somebody new finds its place too. What it has done, until it leaves.
  tensorhub::worker_statistics newcomer(const std::string& replica,
                                        std::chrono::milliseconds unpublish_timeout = 60s) {
    rollout fresh{who(server_, replica)};
    CHECK(fresh.worker.update(at_least(version_), 60s).version == version_);
    CHECK(fresh.memory.holds(version_));
    fresh.worker.unpublish(unpublish_timeout);
    auto out = fresh.worker.statistics();
    fresh.worker.leave();
    return out;
  }
  [[nodiscard]] std::uint64_t version() const { return version_; }

 private:
  std::string server_;
  member<worker_of_both_doors> trainer_;
  rollout rollout_;
  std::uint64_t version_ = 0;
};

}  // namespace system_tests
