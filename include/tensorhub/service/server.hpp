#pragma once
/// \file server.hpp
/// The reference server: a catalog behind one ROUTER socket, on one thread. Embeddable: construct it in any
/// process.
///
///     tensorhub::reference_server<> server{{.address = "tcp://127.0.0.1:5570"}};
///     std::puts(server.address().c_str());      // with the port that was bound
///
/// It stores no weights: some hundred bytes per worker and version. It listens on the loopback interface
/// unless told otherwise, and believes whoever reaches it.
///
/// Thread safety: `address` and `statistics` may be called from any thread.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "tensorhub/detail/random_id.hpp"
#include "tensorhub/policy/steady_clock.hpp"
#include "tensorhub/service/catalog.hpp"
#include "tensorhub/service/codec.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/service/zmq_socket.hpp"

namespace tensorhub {

struct reference_server_options {
  std::string address = "tcp://127.0.0.1:0";  ///< port 0: any free one
  catalog_options catalog{};
  log_level level = log_level::info;
  std::function<void(const log_line&)> log{};  ///< called from the server's thread
};

/// Since the start.
struct reference_server_statistics {
  std::uint64_t messages = 0;    ///< received and understood
  std::uint64_t bad_frames = 0;  ///< dropped: garbage, other protocol, wrong number of parts
  std::uint64_t workers = 0;     ///< joined now
};

template <scheduler Scheduler = nearest_source, consistency Consistency = group_consistent>
class reference_server {
 public:
  using options = reference_server_options;

  /// Listens at once. Throws `transport_failed` if the address cannot be bound.
  explicit reference_server(options how = {}, Scheduler choosing = Scheduler{typename Scheduler::options{}},
                            Consistency deciding = Consistency{typename Consistency::options{}})
      : options_{std::move(how)},
        epoch_{detail::random_id<server_epoch>()},
        catalog_{options_.catalog, epoch_, std::move(choosing), std::move(deciding)},
        context_{detail::shared_context()},
        socket_{detail::bounded_socket(*context_, zmq::socket_type::router)} {
    try {
      socket_.bind(options_.address);
      address_ = socket_.get(zmq::sockopt::last_endpoint);
    } catch (const zmq::error_t& e) {
      throw error(errc::transport_failed,
                  "the reference server cannot listen at '" + options_.address + "': " + e.what());
    }
    thread_ = std::jthread{[this](const std::stop_token& stop) { run(stop); }};
  }
  ~reference_server() {
    thread_.request_stop();
    signal_.raise();
  }
  reference_server(const reference_server&) = delete;
  reference_server& operator=(const reference_server&) = delete;

  /// What workers connect to.
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  [[nodiscard]] server_epoch epoch() const noexcept { return epoch_; }
  [[nodiscard]] reference_server_statistics statistics() const noexcept {
    return {messages_.load(), bad_frames_.load(), workers_.load()};
  }

 private:
  /// ROUTER's name of one connection. Five bytes unless the peer chose its own.
  using route = std::string;

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const time_point now = clock_.now();
      if (now >= catalog_.next_deadline()) catalog_.advance(now);
      flush();
      workers_.store(catalog_.worker_count(), std::memory_order_relaxed);
      if (!receive_some()) {
        detail::wait_for_input(socket_, signal_, clock_.now(), catalog_.next_deadline());
      }
    }
  }

  /// True: there may be more.
  bool receive_some() {
    constexpr int batch = 64;  // bounded, so that a flood does not starve the timers
    for (int taken = 0; taken < batch; ++taken) {
      try {
        if (!socket_.recv(identity_, zmq::recv_flags::dontwait)) return taken > 0;
        if (!identity_.more()) {
          count_bad();
          continue;
        }
        static_cast<void>(socket_.recv(frame_, zmq::recv_flags::none));
        if (frame_.more()) {
          skip_parts();
          count_bad();
          continue;
        }
      } catch (const zmq::error_t&) {
        return false;
      }
      accept();
      flush();
    }
    return true;
  }

  void skip_parts() {
    do {
      static_cast<void>(socket_.recv(frame_, zmq::recv_flags::none));
    } while (frame_.more());
  }

  void accept() {
    const decode_result decoded =
        decoder_.decode({static_cast<const std::byte*>(frame_.data()), frame_.size()});
    const std::string_view from = identity_.to_string_view();
    if (!decoded.ok()) {
      count_bad();
      if (decoded.fault == decode_fault::other_protocol) explain_protocol(from, decoded.protocol);
      return;
    }
    if (decoded.message.sender == 0) return count_bad();
    messages_.fetch_add(1, std::memory_order_relaxed);
    remember(incarnation{decoded.message.sender}, from);
    catalog_.receive(clock_.now(), decoded.message);
  }

  /// A worker that connects anew has a new route. Strangers' routes are dropped now and then, so that they
  /// cannot fill the memory.
  void remember(incarnation sender, std::string_view from) {
    route& known = routes_[sender];
    if (known != from) known.assign(from);
    if (routes_.size() > 2 * catalog_.worker_count() + 1024) {
      std::erase_if(routes_,
                    [&](const auto& entry) { return entry.first != sender && !catalog_.knows(entry.first); });
    }
  }

  void explain_protocol(std::string_view to, std::uint16_t theirs) {
    messages::goodbye_push goodbye;
    goodbye.epoch = epoch_;
    goodbye.reason = {errc::protocol_mismatch, "this reference server speaks control protocol " +
                                                   std::to_string(control_protocol) + ", the worker speaks " +
                                                   std::to_string(theirs)};
    messages::envelope envelope;
    envelope.sender = epoch_.value;
    envelope.body = std::move(goodbye);
    send(to, envelope);
  }

  void flush() {
    for (const outgoing& message : catalog_.take_output()) {
      const auto to = routes_.find(message.to);
      if (to != routes_.end()) send(to->second, message.message);
    }
    for (const log_line& line : catalog_.take_log()) say(line);
  }

  void send(std::string_view to, const messages::envelope& message) {
    try {
      const auto frame = encoder_.encode(message);
      // To a peer that is gone or does not read, ROUTER drops the message; the worker asks again.
      if (socket_.send(zmq::const_buffer{to.data(), to.size()},
                       zmq::send_flags::sndmore | zmq::send_flags::dontwait)) {
        static_cast<void>(
            socket_.send(zmq::const_buffer{frame.data(), frame.size()}, zmq::send_flags::dontwait));
      }
    } catch (const zmq::error_t&) {  // as above
    } catch (const error& e) {
      say({log_level::error, std::string{"a message could not be encoded: "} + e.what()});
    }
  }

  void count_bad() noexcept { bad_frames_.fetch_add(1, std::memory_order_relaxed); }

  void say(const log_line& line) const {
    if (options_.log && line.level <= options_.level) options_.log(line);
  }

  options options_;
  server_epoch epoch_;
  steady_clock clock_;
  catalog<Scheduler, Consistency> catalog_;
  std::shared_ptr<zmq::context_t> context_;
  zmq::socket_t socket_;
  std::string address_;
  zmq::message_t identity_;
  zmq::message_t frame_;
  encoder encoder_;
  decoder decoder_;
  std::unordered_map<incarnation, route> routes_;
  std::atomic<std::uint64_t> messages_ = 0;
  std::atomic<std::uint64_t> bad_frames_ = 0;
  std::atomic<std::uint64_t> workers_ = 0;
  detail::wake_signal signal_;
  std::jthread thread_;  ///< last: uses everything above
};

}  // namespace tensorhub
