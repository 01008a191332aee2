#pragma once
/// \file client.hpp
/// A worker's side of the control connection: one DEALER socket and one thread around a pure core.
///
/// The shell moves messages and time between the socket and the core. `Core` is `session`, or in tests any
/// type
/// with the same `receive`, `advance`, `next_deadline` and `take_output`.
///
/// Thread safety: `with` may be called from any thread; the core runs under one mutex. `after_step` also runs
/// under that mutex, in the thread that stepped the core: it must be short, and must not call `with`.

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/exception_text.hpp"
#include "tensorhub/detail/split_list.hpp"
#include "tensorhub/policy/steady_clock.hpp"
#include "tensorhub/security.hpp"
#include "tensorhub/service/codec.hpp"
#include "tensorhub/service/handshake.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/service/zmq_socket.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

template <typename Core>
class client_shell {
 public:
  /// Connects in the background and never stops trying; the core decides when a missing server is an error.
  /// `after_step` runs after every step of the core and before its messages are sent. Throws
  /// `invalid_argument`
  /// for an invalid address. `security`: its fields must be valid.
  client_shell(std::string address, Core core, std::function<void(Core&)> after_step,
               std::optional<client_security> security = {})
      : addresses_{detail::split_list(address)},
        address_{addresses_.front()},
        core_{std::move(core)},
        after_step_{std::move(after_step)},
        security_{std::move(security)},
        context_{detail::shared_context()},
        socket_{detail::bounded_socket(*context_, zmq::socket_type::dealer)},
        handshakes_{*context_, socket_, detail::handshake_failures} {
    try {
      if (security_) {
        socket_.set(zmq::sockopt::curve_publickey, security_->keys.public_key);
        socket_.set(zmq::sockopt::curve_secretkey, security_->keys.secret_key);
      }
      socket_.set(zmq::sockopt::reconnect_ivl, 50);
      socket_.set(zmq::sockopt::reconnect_ivl_max, 1000);
      connect();
    } catch (const zmq::error_t& e) {
      throw error(errc::invalid_argument,
                  "invalid server address '" + address_ + "' (" + e.what() + "): expected tcp://host:port");
    }
    thread_ = std::jthread{[this](const std::stop_token& stop) { run(stop); }};
  }
  ~client_shell() {
    thread_.request_stop();
    signal_.raise();
  }
  client_shell(const client_shell&) = delete;
  client_shell& operator=(const client_shell&) = delete;

  /// Runs `call(core, now)` and returns what it returns.
  template <typename Call>
  auto with(Call&& call) {
    const std::lock_guard lock{mutex_};
    const time_point now = clock_.now();
    if constexpr (std::is_void_v<std::invoke_result_t<Call, Core&, time_point>>) {
      std::forward<Call>(call)(core_, now);
      settle();
    } else {
      auto value = std::forward<Call>(call)(core_, now);
      settle();
      return value;
    }
  }

  /// Uses the server with this index in the list of addresses from now on. Messages that the previous server
  /// has not received yet are dropped.
  /// Pre-condition: the mutex is held (by `with`, or in `after_step`).
  void use_server(std::size_t index) {
    wanted_ = index % addresses_.size();
    signal_.raise();
  }

  /// The reason why the last attempt to connect failed in the handshake, for sentences; empty: no handshake
  /// has
  /// failed since the last message of the server.
  [[nodiscard]] std::string trouble() const {
    const std::lock_guard lock{mutex_};
    return trouble_;
  }

 private:
  /// Nothing that is thrown in a step ends the process: it ends the session, and with it every call, with
  /// the reason.
  /// Pre-condition: mutex_ is held.
  void settle() noexcept {
    try {
      settle_step();
    } catch (...) {
      end_session();
    }
  }
  /// Pre-condition: mutex_ is held, and an exception is being handled.
  void end_session() noexcept {
    try {
      notify_goodbye({errc::system_failed, "this worker's control connection has failed: " +
                                               detail::exception_text() + "; construct a new worker"});
      settle_step();
    } catch (...) {  // no memory: the next step tries again
    }
  }
  void settle_step() {
    after_step_(core_);
    auto output = core_.take_output();
    const bool wake = !output.empty() || core_.next_deadline() < sleeps_until_;
    if (outbox_.empty())
      outbox_ = std::move(output);
    else
      for (auto& message : output) outbox_.push_back(std::move(message));
    if (wake && std::this_thread::get_id() != thread_.get_id()) signal_.raise();
  }

  void run(const std::stop_token& stop) {
    static constexpr std::chrono::milliseconds pause_after_failure{10};
    while (!stop.stop_requested()) {
      try {
        step();
      } catch (...) {
        {
          const std::lock_guard lock{mutex_};
          end_session();
        }
        std::this_thread::sleep_for(pause_after_failure);
      }
    }
  }

  /// One round of the thread: what has come, what is due, what is to be sent; then it waits.
  void step() {
    receive_all();
    poll_handshake_events();
    time_point until;
    {
      const std::lock_guard lock{mutex_};
      const time_point now = clock_.now();
      if (now >= core_.next_deadline()) core_.advance(now);
      settle();
      sending_.swap(outbox_);
      until = sleeps_until_ = core_.next_deadline();
    }
    move_to_wanted_server();
    send_all();
    detail::wait_for_input(socket_, signal_, clock_.now(), std::min(until, connects_again_),
                           &handshakes_.socket());
  }

  void move_to_wanted_server() {
    {
      const std::lock_guard lock{mutex_};
      if (addresses_[wanted_] == address_) return;
    }
    try {
      socket_.disconnect(address_);
    } catch (const zmq::error_t&) {  // ZeroMQ has already given up this connection
    }
    {
      const std::lock_guard lock{mutex_};
      current_ = wanted_;
      address_ = addresses_[current_];
    }
    try {
      connect();
    } catch (const zmq::error_t&) {  // invalid address: the core tries the next one after a while
    }
  }

  /// Connects to `address_`, and expects the server key that `security_` names for it.
  void connect() {
    if (security_) socket_.set(zmq::sockopt::curve_serverkey, for_server(*security_, current_).server_key);
    socket_.connect(address_);
  }

  void receive_all() {
    // Bounded, so that a flood does not starve the timers.
    for (int taken = 0; taken < 256; ++taken) {
      zmq::message_t frame;
      try {
        if (!socket_.recv(frame, zmq::recv_flags::dontwait)) return;
      } catch (const zmq::error_t&) {
        return;
      }
      const decode_result decoded =
          decoder_.decode({static_cast<const std::byte*>(frame.data()), frame.size()});
      const std::lock_guard lock{mutex_};
      heard_ = heard_ || decoded.ok();
      trouble_.clear();
      if (decoded.ok())
        core_.receive(clock_.now(), decoded.message);
      else
        refuse(decoded);
      settle();
    }
  }

  /// If the only configured server rejects the handshake before it has ever answered, fail pending calls
  /// immediately. Otherwise connect again after a second, because the server may have restarted with old
  /// settings, or the next server of the list may accept; pending calls then fail at their deadline.
  void poll_handshake_events() {
    while (const auto event = handshakes_.next()) {
      const auto security = security_ ? std::optional{for_server(*security_, current_)} : std::nullopt;
      detail::handshake_trouble trouble = detail::explain_handshake(*event, address_, security);
      const std::lock_guard lock{mutex_};
      trouble_ = trouble.why.sentence;
      if (!trouble.certain) continue;
      if (heard_ || addresses_.size() > 1) {
        connects_again_ = clock_.now() + std::chrono::seconds{1};
      } else {
        notify_goodbye(std::move(trouble.why));
        settle();
      }
    }
    if (clock_.now() < connects_again_) return;
    connects_again_ = time_point::never();
    try {
      socket_.disconnect(address_);
    } catch (const zmq::error_t&) {  // ZeroMQ has already given up this connection
    }
    try {
      connect();
    } catch (const zmq::error_t&) {  // cannot happen: the same address has worked before
    }
  }

  /// The other side is not a TensorHub server of this protocol: passes a goodbye with that reason to the
  /// core.
  /// Pre-condition: mutex_ is held.
  void refuse(const decode_result& decoded) {
    if (decoded.fault != decode_fault::other_protocol && decoded.fault != decode_fault::wrong_magic) return;
    notify_goodbye(
        {errc::protocol_mismatch, decoded.fault == decode_fault::wrong_magic
                                      ? "the process that answers at " + address_ +
                                            " is not a TensorHub reference server: check the address"
                                      : "the reference server at " + address_ + " speaks control protocol " +
                                            std::to_string(decoded.protocol) + ", this process speaks " +
                                            std::to_string(control_protocol) +
                                            ": use the same TensorHub release for both"});
  }

  /// Pre-condition: mutex_ is held.
  void notify_goodbye(messages::status reason) {
    messages::goodbye_push goodbye;
    goodbye.reason = std::move(reason);
    messages::envelope envelope;
    envelope.body = std::move(goodbye);
    core_.receive(clock_.now(), envelope);
  }

  void send_all() {
    for (const messages::envelope& message : sending_) {
      try {
        const auto frame = encoder_.encode(message);
        // A full socket loses the message like a broken connection; the core repeats its requests.
        static_cast<void>(
            socket_.send(zmq::const_buffer{frame.data(), frame.size()}, zmq::send_flags::dontwait));
      } catch (const zmq::error_t&) {  // the connection is gone: the core repeats its requests
      } catch (const error& e) {       // the message exceeds a limit: its call must not wait
        const std::lock_guard lock{mutex_};
        notify_goodbye({e.code(), "a message to the reference server cannot be sent: " + e.sentence()});
        settle();
      }
    }
    sending_.clear();
  }

  std::vector<std::string> addresses_;  ///< of servers that may take over from each other
  std::size_t wanted_ = 0;
  std::size_t current_ = 0;  ///< index of `address_`
  std::string address_;
  steady_clock clock_;
  mutable std::mutex mutex_;
  Core core_;
  std::function<void(Core&)> after_step_;
  std::vector<messages::envelope> outbox_;         ///< guarded by mutex_
  time_point sleeps_until_ = time_point::never();  ///< guarded by mutex_
  std::string trouble_;                            ///< guarded by mutex_
  bool heard_ = false;                             ///< guarded by mutex_: a server has answered before
  std::vector<messages::envelope> sending_;        ///< used by the thread only, like all members below
  time_point connects_again_ = time_point::never();
  std::optional<client_security> security_;
  std::shared_ptr<zmq::context_t> context_;
  zmq::socket_t socket_;
  detail::handshake_monitor handshakes_;
  encoder encoder_;
  decoder decoder_;
  detail::wake_event signal_;
  std::jthread thread_;  ///< last member: uses all members above
};

}  // namespace tensorhub::inline TENSORHUB_MODE
