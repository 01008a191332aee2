#pragma once
/// \file control_connection.ipp
/// The loop of a control connection: moves messages and time between its socket and its ends.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/random_id.hpp"
#include "tensorhub/detail/server_groups.hpp"
#include "tensorhub/detail/split_list.hpp"
#include "tensorhub/detail/started_thread.hpp"
#include "tensorhub/detail/thread_name.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/policy/steady_clock.hpp"
#include "tensorhub/service/codec.hpp"
#include "tensorhub/service/control_connection.hpp"
#include "tensorhub/service/handshake.hpp"
#include "tensorhub/service/zmq_socket.hpp"
#include "tensorhub/types/digest.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class control_connection::loop {
 public:
  loop(std::string servers, std::optional<client_security> security)
      : servers_{std::move(servers)},
        addresses_{detail::split_list(servers_)},
        told_{.trouble = std::vector<messages::status>(addresses_.size(), no_trouble())},
        address_{addresses_.front()},
        security_{std::move(security)},
        context_{detail::shared_context("the control connection to " + servers_)},
        socket_{detail::bounded_socket(*context_, zmq::socket_type::dealer)},
        handshakes_{*context_, socket_, detail::handshake_failures | attempts | ZMQ_EVENT_CONNECT_RETRIED} {
    for (const std::string& each : addresses_) {
      if (!detail::is_server_address(each, 1)) refuse(each, "");
    }
    try {
      if (security_) {
        socket_.set(zmq::sockopt::curve_publickey, security_->keys.public_key);
        socket_.set(zmq::sockopt::curve_secretkey, security_->keys.secret_key);
        socket_.set(zmq::sockopt::routing_id, secret_name());
      }
      socket_.set(zmq::sockopt::reconnect_ivl, 50);
      socket_.set(zmq::sockopt::reconnect_ivl_max, 1000);
      connect();
    } catch (const zmq::error_t& e) {
      refuse(address_, std::string{" ("} + e.what() + ")");
    }
    thread_ =
        detail::started_thread("the control connection", [this](const std::stop_token& stop) { run(stop); });
  }
  ~loop() {
    thread_.request_stop();
    signal_.raise();
  }
  loop(const loop&) = delete;
  loop& operator=(const loop&) = delete;

  [[nodiscard]] bool fits(const std::string& servers, const std::optional<client_security>& security) const {
    const std::lock_guard lock{ends_mutex_};
    return servers == servers_ && security == security_ && ends_.size() < limits::workers_of_connection / 2;
  }

  void add(control_end& end) {
    const std::lock_guard lock{ends_mutex_};
    ends_.push_back(&end);
    if (current_ != 0) end.move_to_server(clock_.now(), current_);
    // ZeroMQ does not connect again by itself to a server that has refused the keys.
    if (is_refused_) connects_again_ = {};
    signal_.raise();
  }

  void remove(control_end& end) noexcept {
    const std::lock_guard lock{ends_mutex_};
    static_cast<void>(end.step(clock_.now(), last_words_));
    std::erase(ends_, &end);
    signal_.raise();
  }

  void wake() noexcept { signal_.raise(); }

  void use_server(std::size_t index) {
    {
      const std::lock_guard lock{mutex_};
      told_.wanted = index % addresses_.size();
      told_.is_silent = addresses_.size() == 1;
    }
    signal_.raise();
  }

  [[nodiscard]] messages::status trouble() const {
    const std::lock_guard lock{mutex_};
    messages::status all = no_trouble();
    for (const messages::status& each : told_.trouble) {
      if (!each.sentence.empty()) all.sentence += (all.sentence.empty() ? "" : "; ") + each.sentence;
      if (is_refusal(each)) all.code = each.code;
    }
    return all;
  }

 private:
  void run(const std::stop_token& stop) {
    static constexpr std::chrono::milliseconds pause_after_failure{10};
    detail::name_thread("tensorhub-ctrl");
    while (!stop.stop_requested()) {
      try {
        step();
      } catch (...) {  // no memory
        std::this_thread::sleep_for(pause_after_failure);
      }
    }
  }

  /// By which a server knows this connection again after it broke, and which nobody else can guess.
  [[nodiscard]] static std::string secret_name() {
    std::array<std::uint64_t, 2> random{};
    detail::fill_random(random);
    return "w" + to_hex(digest128{random[0], random[1]});  // ZeroMQ's own names begin with a zero byte
  }

  /// One round of the thread: what has come, what is due, what is to be sent; then it waits.
  void step() {
    receive_all();
    poll_handshake_events();
    step_ends();
    if (move_to_wanted_server()) step_ends();
    leave_silent_connection();
    send_all();
    detail::wait_for_input(socket_, signal_, clock_.now(), std::min(due_, connects_again()),
                           &handshakes_.socket());
  }

  void step_ends() {
    const std::lock_guard lock{ends_mutex_};
    due_ = time_point::never();
    std::move(last_words_.begin(), last_words_.end(), std::back_inserter(sending_));
    last_words_.clear();
    for (control_end* const each : ends_) due_ = std::min(due_, each->step(clock_.now(), sending_));
  }

  /// True: it has moved.
  [[nodiscard]] bool move_to_wanted_server() {
    std::size_t next = 0;
    {
      const std::lock_guard lock{mutex_};
      next = told_.wanted;
    }
    if (next == current_) return false;
    disconnect();
    while (handshakes_.next()) {
    }  // they are of the server that is left
    seen_.has_address = true;
    const std::lock_guard lock{ends_mutex_};
    is_refused_ = false;
    connects_again_ = time_point::never();
    seen_.has_begun = false;
    current_ = next;
    address_ = addresses_[current_];
    try {
      connect();
    } catch (const zmq::error_t&) {  // invalid address: the sessions try the next one after a while
    }
    for (control_end* const each : ends_) each->move_to_server(clock_.now(), current_);
    return true;
  }

  [[noreturn]] static void refuse(const std::string& address, const std::string& why) {
    throw error(errc::invalid_argument, "invalid server address '" + address + "'" + why +
                                            ": expected tcp://host:port, with a port from 1 to 65535");
  }

  /// To `address_`, with the server key that `security_` names for it.
  void connect() {
    if (security_) socket_.set(zmq::sockopt::curve_serverkey, for_server(*security_, current_).server_key);
    detail::set_family(socket_, address_);
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
      seen_.has_answered = seen_.has_answered || decoded.ok();
      {
        const std::scoped_lock lock{mutex_, ends_mutex_};
        told_.trouble.assign(addresses_.size(), no_trouble());
        is_refused_ = false;
        if (decoded.ok()) connects_again_ = time_point::never();  // it is connected
      }
      if (decoded.ok()) {
        note_heard(decoded.message);
        deliver(decoded.message);
      } else {
        refuse(decoded);
      }
    }
  }

  void note_heard(const messages::envelope& message) {
    const time_point now = clock_.now();
    if (now - silence_.heard >= first_patience) {
      silence_.was_left = silence_.heard <= silence_.left_at;
      silence_.ended_at = now;
    } else if (now - std::max(silence_.left_at, silence_.ended_at) >= 2 * first_patience) {
      silence_.patience = first_patience;
    }
    silence_.heard = now;
    // It has to join again, and the kernel may wait long before it sends what the silence has held up.
    const auto* goodbye = get_if<messages::goodbye_push>(&message.body);
    if (goodbye != nullptr && goodbye->reason.code == errc::disconnected && !silence_.was_left)
      silence_.has_cost_worker = now - silence_.ended_at < first_patience;
  }

  /// To its recipient, or to every end if the message names none.
  void deliver(const messages::envelope& message) {
    const std::lock_guard lock{ends_mutex_};
    for (control_end* const each : ends_) {
      if (each->receive(clock_.now(), message) && message.recipient != 0) return;
    }
  }

  /// If all servers of the list have rejected the handshake, and none has ever answered, fail pending calls
  /// immediately. Otherwise connect again after a second, because the server may have restarted with old
  /// settings, or another one of the list may accept; pending calls then fail at their deadline.
  void poll_handshake_events() {
    while (const auto event = handshakes_.next()) {
      if ((event->kind & (attempts | ZMQ_EVENT_CONNECT_RETRIED)) != 0) {
        note_attempt((event->kind & attempts) != 0);
        seen_.has_begun = seen_.has_begun || (event->kind & begins) != 0;
        continue;
      }
      if (!seen_.has_begun) continue;  // of the server that was left
      const auto security = security_ ? std::optional{for_server(*security_, current_)} : std::nullopt;
      detail::handshake_trouble trouble = detail::explain_handshake(*event, address_, security);
      {
        const std::lock_guard lock{mutex_};
        const bool is_verdict = trouble.certain && !seen_.has_answered;
        messages::status& known = told_.trouble[current_];
        if (is_verdict || !is_refusal(known))  // that no reason is given takes no verdict back
          known = {is_verdict ? trouble.why.code : errc::disconnected, trouble.why.sentence};
      }
      if (!trouble.certain) continue;
      disconnect();  // else ZeroMQ would try again several times a second
      const std::lock_guard lock{ends_mutex_};
      if (!give_up_if_refused(std::move(trouble.why)))
        connects_again_ = clock_.now() + std::chrono::seconds{1};
    }
    if (clock_.now() >= connects_again()) connect_again();
  }
  /// True: all servers have refused, and none has ever answered. Pre-condition: ends_mutex_ is held.
  bool give_up_if_refused(messages::status why) {
    {
      const std::lock_guard lock{mutex_};
      if (!detail::all_of(told_.trouble, &is_refusal)) return false;
      told_.trouble.assign(addresses_.size(), no_trouble());  // calls that come later try them again
    }
    is_refused_ = true;
    say_goodbye(std::move(why));
    return true;
  }
  void disconnect() {
    try {
      socket_.disconnect(address_);
    } catch (const zmq::error_t&) {  // ZeroMQ has already given up this connection
    }
  }
  void connect_again() {
    {
      const std::lock_guard lock{ends_mutex_};
      connects_again_ = time_point::never();
    }
    disconnect();
    try {
      connect();
    } catch (const zmq::error_t&) {  // cannot happen: the same address has worked before
    }
  }
  /// The only server has been silent, or was until now. If a link was cut, the kernel tries a connection
  /// less and less often, and would notice late that it is back. A server that is slow or stopped is not
  /// asked more and more.
  void leave_silent_connection() {
    const bool has_cost_worker = std::exchange(silence_.has_cost_worker, false) && addresses_.size() == 1;
    {
      const std::lock_guard lock{mutex_};
      if (!std::exchange(told_.is_silent, false) && !has_cost_worker) return;
    }
    const time_point now = clock_.now();
    if (now - silence_.left_at > 2 * most_patience) silence_.patience = first_patience;
    const time_point begun = has_cost_worker ? silence_.left_at : std::max(silence_.left_at, silence_.heard);
    if (now - begun < silence_.patience) return;
    silence_.left_at = now;
    silence_.patience = std::min(2 * silence_.patience, most_patience);
    connect_again();
  }
  /// `is_attempt`: ZeroMQ has had an address to connect to. Else it will try again after a pause.
  void note_attempt(bool is_attempt) {
    const bool has_address = std::exchange(seen_.has_address, is_attempt) || is_attempt;
    if (!address_.starts_with("tcp://")) return;
    const std::string unknown =
        "the host in " + address_ +
        " has no address here (for a name, `getent ahostsv4 NAME` must print one; of IPv6 give the number, "
        "as in tcp://[fd00::1]:5570), or this process has no descriptor left to connect with";
    const std::lock_guard lock{mutex_};
    messages::status& trouble = told_.trouble[current_];
    // Nobody listens there any more. (Before a connection has begun, it is the server that was left.)
    const bool is_refused_no_more = !is_attempt && seen_.has_begun && is_refusal(trouble);
    if (!has_address)
      trouble = {errc::disconnected, unknown};
    else if (trouble.sentence == unknown || is_refused_no_more)
      trouble = no_trouble();
  }
  [[nodiscard]] time_point connects_again() const {
    const std::lock_guard lock{ends_mutex_};
    return connects_again_;
  }

  /// The other side is not a TensorHub server of this protocol.
  void refuse(const decode_result& decoded) {
    if (decoded.fault != decode_fault::other_protocol && decoded.fault != decode_fault::wrong_magic) return;
    const std::lock_guard lock{ends_mutex_};
    say_goodbye({errc::protocol_mismatch,
                 decoded.fault == decode_fault::wrong_magic
                     ? "the process that answers at " + address_ +
                           " is not a TensorHub reference server: check the address"
                     : "the reference server at " + address_ + " speaks control protocol " +
                           std::to_string(decoded.protocol) + ", this process speaks " +
                           std::to_string(control_protocol) + ": use the same TensorHub release for both"});
  }

  /// Ends all sessions with this reason. Pre-condition: ends_mutex_ is held.
  void say_goodbye(messages::status reason) {
    const messages::envelope envelope = messages::goodbye_of_shell(std::move(reason));
    for (control_end* const each : ends_) static_cast<void>(each->receive(clock_.now(), envelope));
  }

  void send_all() {
    for (const messages::envelope& message : sending_) {
      try {
        const auto frame = encoder_.encode(message);
        if (frame.size() > detail::most_heard_bytes)  // the server would close the connection
          throw error(errc::limit_exceeded,
                      std::to_string(frame.size()) + " bytes are more than the " +
                          std::to_string(detail::most_heard_bytes) +
                          " that a server takes: use more shards (`senders` of Python's "
                          "adapters), fewer tensors, or shorter names");
        // A full socket loses the message like a broken connection; the session repeats its requests.
        static_cast<void>(detail::uninterrupted([&] {
          return socket_.send(zmq::const_buffer{frame.data(), frame.size()}, zmq::send_flags::dontwait);
        }));
      } catch (const zmq::error_t&) {  // the connection is gone: the session repeats its requests
      } catch (const error& e) {       // the message exceeds a limit: its call must not wait
        deliver(messages::goodbye_of_shell(
            {e.code(), "a message to the reference server cannot be sent: " + e.sentence()}, message.sender));
        signal_.raise();  // its end has more to say
      }
    }
    sending_.clear();
  }

  [[nodiscard]] static messages::status no_trouble() { return {errc::disconnected, {}}; }
  [[nodiscard]] static bool is_refusal(const messages::status& trouble) noexcept {
    return trouble.code != errc::disconnected;
  }
  static constexpr duration first_patience = std::chrono::seconds{2};
  static constexpr duration most_patience = std::chrono::seconds{30};
  /// Of these ZeroMQ says nothing where the name of a host cannot be resolved.
  static constexpr int begins = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CONNECT_DELAYED;
  static constexpr int attempts = begins | ZMQ_EVENT_CLOSED;

  const std::string servers_;
  const std::vector<std::string> addresses_;  ///< of servers that may take over from each other
  steady_clock clock_;
  mutable std::mutex mutex_;
  struct {
    std::size_t wanted = 0;  ///< index of a server
    bool is_silent = false;  ///< an end has waited in vain for the only server
    /// By address: what was wrong there, and nobody has answered since. Another code than `disconnected`: the
    /// server there refuses this process, and none has ever answered.
    std::vector<messages::status> trouble{};
  } told_;  ///< guarded by mutex_
  /// Held while ends are called, so that none is called after `remove`.
  mutable std::mutex ends_mutex_;
  std::vector<control_end*> ends_;              ///< guarded by ends_mutex_, as the next four
  std::vector<messages::envelope> last_words_;  ///< of ends that were removed
  time_point connects_again_ = time_point::never();
  bool is_refused_ = false;  ///< by all servers
  std::size_t current_ = 0;  ///< index of `address_`; changed by the thread only
  std::string address_;      ///< used by the thread only, like all members below
  struct {
    bool has_answered = false;  ///< some server, once
    bool has_address = false;   ///< ZeroMQ has had one since its last pause
    bool has_begun = false;     ///< to connect to `address_`
  } seen_;
  /// A connection was left at `left_at`; the next one is after `patience`. That grows although the server is
  /// heard again: what takes long to send, such as a layout, must arrive at last. It begins anew when the
  /// server has been heard for a while without a silence of `first_patience`.
  struct {
    time_point heard{};
    time_point left_at{};
    time_point ended_at{};         ///< the last silence of `first_patience`
    bool was_left = true;          ///< the connection over which that silence was
    bool has_cost_worker = false;  ///< the server has said after it that a worker was declared dead
    duration patience = first_patience;
  } silence_;
  time_point due_ = time_point::never();  ///< when an end wants to be stepped
  std::vector<messages::envelope> sending_;
  const std::optional<client_security> security_;
  std::shared_ptr<zmq::context_t> context_;
  zmq::socket_t socket_;
  detail::handshake_monitor handshakes_;
  encoder encoder_;
  decoder decoder_;
  detail::wake_event signal_;
  std::jthread thread_;  ///< last member: uses all members above
};

TENSORHUB_DECL control_connection::control_connection(std::string servers,
                                                      std::optional<client_security> security)
    : loop_{detail::with_sockets("the control connection to " + servers, detail::descriptors_of_connection,
                                 [&] { return std::make_unique<loop>(servers, std::move(security)); })} {}
TENSORHUB_DECL control_connection::~control_connection() = default;
TENSORHUB_DECL bool control_connection::fits(const std::string& servers,
                                             const std::optional<client_security>& security) const {
  return loop_->fits(servers, security);
}
TENSORHUB_DECL void control_connection::add(control_end& end) {
  loop_->add(end);
}
TENSORHUB_DECL void control_connection::remove(control_end& end) noexcept {
  loop_->remove(end);
}
TENSORHUB_DECL void control_connection::wake() noexcept {
  loop_->wake();
}
TENSORHUB_DECL void control_connection::use_server(std::size_t index) {
  loop_->use_server(index);
}
TENSORHUB_DECL messages::status control_connection::trouble() const {
  return loop_->trouble();
}

}  // namespace tensorhub::inline TENSORHUB_MODE
