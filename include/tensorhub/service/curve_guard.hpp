#pragma once
/// \file curve_guard.hpp
/// The door of a secured reference server: one thread that is asked about every new connection (ZAP, ZeroMQ
/// RFC 27) and is told of every handshake that fails.
///
///  - A client whose key is on the allow-list is let in; each of its messages then carries the key as the
///    property "User-Id".
///  - Any other is turned away: counted, and logged with key and address.
///  - Who does not speak CURVE at all, or takes the server for another one, fails in the handshake: ditto.
///
/// Log lines are bounded: a flood of strangers costs some lines a second, which say how many are missing.
///
/// ZeroMQ knows one such handler per context, at a fixed name. Each secured server therefore has a context of
/// its own; several servers in one process have several lists.
///
/// Thread safety: all members may be called from any thread.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/security.hpp"
#include "tensorhub/service/handshake.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/service/zmq_socket.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// At most `burst` lines at once and `per_second` lasting ones; what is left out is said in the next line.
class log_limiter {
 public:
  using clock = std::chrono::steady_clock;

  /// The line as it may be logged now; empty: it may not.
  [[nodiscard]] std::optional<log_line> pass(log_line line, clock::time_point now) {
    if (last_ != clock::time_point{})
      credit_ = std::min(burst, credit_ + per_second * std::chrono::duration<double>(now - last_).count());
    last_ = now;
    if (credit_ < 1) {
      ++left_out_;
      return std::nullopt;
    }
    credit_ -= 1;
    if (left_out_ > 0) line.text += " (and " + std::to_string(left_out_) + " more lines were left out)";
    left_out_ = 0;
    return line;
  }

 private:
  static constexpr double burst = 20;
  static constexpr double per_second = 2;
  double credit_ = burst;
  clock::time_point last_{};
  std::uint64_t left_out_ = 0;
};

class curve_guard {
 public:
  /// Makes `router` a CURVE server and guards it; to be called before it is bound. `wake` is called from the
  /// guard's thread when there is something to log. Must be destroyed before `router`, and by whoever may use
  /// it then.
  curve_guard(zmq::context_t& context, zmq::socket_t& router, const server_security& security,
              std::function<void()> wake)
      : questions_{context, zmq::socket_type::rep},
        failures_{context, router, handshake_failures | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED},
        wake_{std::move(wake)} {
    for (const auto& [key, name] : security.allowed_clients) allowed_.emplace(key, name);
    questions_.set(zmq::sockopt::linger, 0);
    questions_.bind("inproc://zeromq.zap.01");
    router.set(zmq::sockopt::curve_server, true);
    router.set(zmq::sockopt::curve_secretkey, security.keys.secret_key);
    router.set(zmq::sockopt::zap_domain, std::string{"tensorhub"});
    thread_ = std::jthread{[this](const std::stop_token& stop) { run(stop); }};
  }
  ~curve_guard() {
    thread_.request_stop();
    signal_.raise();
  }
  curve_guard(const curve_guard&) = delete;
  curve_guard& operator=(const curve_guard&) = delete;

  void allow(const std::string& key, std::string name) {
    const std::lock_guard lock{mutex_};
    allowed_.insert_or_assign(key, std::move(name));
  }
  /// False: it was not on the list.
  bool revoke(const std::string& key) {
    const std::lock_guard lock{mutex_};
    if (allowed_.erase(key) == 0) return false;
    revocations_.fetch_add(1, std::memory_order_release);
    return true;
  }

  /// Of the key that a message's connection was let in with: whether it still counts.
  [[nodiscard]] bool still_allowed(std::string_view key) const {
    if (revocations_.load(std::memory_order_acquire) == 0) return true;
    const std::lock_guard lock{mutex_};
    return allowed_.contains(std::string{key});
  }

  /// Queues a line for `take_log`, within the limit.
  void note(log_level level, std::string text) {
    const std::lock_guard lock{mutex_};
    if (lines_.size() >= most_lines) return;
    log_line line{level, std::move(text), {}};
    line.about.code = errc::refused;
    if (auto passed = limiter_.pass(std::move(line), log_limiter::clock::now()))
      lines_.push_back(*std::move(passed));
  }
  [[nodiscard]] std::vector<log_line> take_log() {
    const std::lock_guard lock{mutex_};
    return std::exchange(lines_, {});
  }

  /// Connections of unknown or revoked keys.
  [[nodiscard]] std::uint64_t refused() const noexcept { return refused_.load(std::memory_order_relaxed); }
  /// Connections that ended before they had shown a key.
  [[nodiscard]] std::uint64_t failed() const noexcept { return failed_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t most_lines = 256;

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const bool asked = answer_one();
      const bool told = hear_one();
      if (asked || told) continue;
      zmq::pollitem_t items[] = {{questions_.handle(), 0, ZMQ_POLLIN, 0},
                                 {failures_.socket().handle(), 0, ZMQ_POLLIN, 0},
                                 {nullptr, signal_.descriptor(), ZMQ_POLLIN, 0}};
      try {
        zmq::poll(items, 3, std::chrono::milliseconds{1000});
      } catch (const zmq::error_t&) {  // interrupted by a signal
      }
    }
  }

  /// A ZAP request: version, request number, domain, address, routing name, mechanism, the key's 32 bytes.
  bool answer_one() {
    try {
      std::array<zmq::message_t, 7> parts;
      if (!questions_.recv(parts[0], zmq::recv_flags::dontwait)) return false;
      std::size_t count = 1;
      while (parts[count - 1].more() && count < parts.size())
        static_cast<void>(questions_.recv(parts[count++], zmq::recv_flags::none));
      bool more = parts[count - 1].more();
      for (zmq::message_t rest; more; more = rest.more())
        static_cast<void>(questions_.recv(rest, zmq::recv_flags::none));
      const bool understood = count == parts.size() && !parts.back().more() &&
                              parts[5].to_string_view() == "CURVE" && parts[6].size() == 32;
      std::array<char, curve_key_characters + 1> key{};
      if (understood) ::zmq_z85_encode(key.data(), parts[6].data<std::uint8_t>(), 32);
      const bool welcome = understood && admits(key.data());
      if (!welcome) turn_away(understood ? key.data() : "(none)", parts[3].to_string());
      const auto put = [&](std::string_view text, bool continued) {
        questions_.send(zmq::const_buffer{text.data(), text.size()},
                        continued ? zmq::send_flags::sndmore : zmq::send_flags::none);
      };
      put("1.0", true);
      put(count > 1 ? parts[1].to_string_view() : std::string_view{}, true);
      put(welcome ? "200" : "400", true);
      put(welcome ? "" : "this key is not on the allow-list", true);
      put(welcome ? std::string_view{key.data()} : std::string_view{}, true);
      put("", false);
      return true;
    } catch (const zmq::error_t&) {
      return false;
    }
  }

  [[nodiscard]] bool admits(const std::string& key) const {
    const std::lock_guard lock{mutex_};
    return allowed_.contains(key);
  }

  void turn_away(const std::string& key, const std::string& address) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    note(log_level::warning,
         "refused a client with the key " + key + " at " + address + ": it is not on the allow-list");
    wake_();
  }

  /// A connection's failure is followed by its end, which names its descriptor.
  bool hear_one() {
    const auto event = failures_.next();
    if (!event) return false;
    if (event->kind == ZMQ_EVENT_ACCEPTED) {
      addresses_[event->value] = peer_of(static_cast<int>(event->value));
    } else if (event->kind == ZMQ_EVENT_DISCONNECTED) {
      if (failure_) say_failed(*std::exchange(failure_, std::nullopt), addresses_[event->value]);
      addresses_.erase(event->value);
    } else if (event->kind != ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {  // those were turned away by us
      failure_ = *event;
    }
    return true;
  }

  void say_failed(const handshake_event& event, const std::string& address) {
    failed_.fetch_add(1, std::memory_order_relaxed);
    const char* why = "it closed the connection before it had shown a key";
    if (event.value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
      why = "it takes this server for one with another public key";
    else if (event.value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
      why = "it does not use CURVE";
    else if (event.kind == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)
      why = "it does not keep to the protocol";
    note(log_level::warning, "a handshake with a client at " +
                                 (address.empty() ? "an unknown address" : address) + " failed: " + why);
    wake_();
  }

  /// Empty if the connection is gone already.
  [[nodiscard]] static std::string peer_of(int descriptor) {
    sockaddr_storage address{};
    socklen_t bytes = sizeof address;
    if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return {};
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (address.ss_family == AF_INET) {
      const auto& four = reinterpret_cast<const sockaddr_in&>(address);
      if (::inet_ntop(AF_INET, &four.sin_addr, text.data(), text.size()) == nullptr) return {};
      return std::string{text.data()} + ":" + std::to_string(ntohs(four.sin_port));
    }
    if (address.ss_family != AF_INET6) return {};
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    if (::inet_ntop(AF_INET6, &six.sin6_addr, text.data(), text.size()) == nullptr) return {};
    return "[" + std::string{text.data()} + "]:" + std::to_string(ntohs(six.sin6_port));
  }

  zmq::socket_t questions_;
  handshake_monitor failures_;
  std::function<void()> wake_;
  wake_signal signal_;
  std::atomic<std::uint64_t> refused_ = 0;
  std::atomic<std::uint64_t> failed_ = 0;
  std::atomic<std::uint64_t> revocations_ = 0;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::string> allowed_;  ///< guarded by mutex_, as the next two
  log_limiter limiter_;
  std::vector<log_line> lines_;
  std::unordered_map<std::uint32_t, std::string> addresses_;  ///< by descriptor; the thread's own
  std::optional<handshake_event> failure_;                    ///< the thread's own
  std::jthread thread_;                                       ///< last: uses everything above
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
