#pragma once
/// \file curve_guard.hpp
/// Admission to a secured reference server: one thread that ZeroMQ asks about every new connection (ZAP,
/// ZeroMQ RFC 27) and that receives an event for every failed handshake.
///
///  - A client whose key is on the allow-list is admitted; each of its messages then carries the key as the
///    property "User-Id".
///  - A client with another key is refused, counted, and logged with its key and address.
///  - Clients without CURVE, or with the wrong server key, fail the handshake; they are counted and logged
///    too.
///
/// A network whose clients fail too often is blocked for a while (arrival_budget.hpp, listen_filter.hpp), so
/// that handshakes of strangers cannot take the server's time. A connection that sends more bytes than a
/// worker needs is closed.
///
/// The rate of log lines is bounded: under a flood of unknown clients some lines a second are written, and
/// they state how many lines were suppressed.
///
/// ZeroMQ allows one such handler per context, at a fixed name. Each secured server therefore has its own
/// context, and several servers in one process have separate lists.
///
/// Thread safety: all members may be called from any thread.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>
#include <zmq.hpp>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/policy/steady_clock.hpp"
#include "tensorhub/security.hpp"
#include "tensorhub/service/arrival_budget.hpp"
#include "tensorhub/service/handshake.hpp"
#include "tensorhub/service/listen_filter.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/service/log_limiter.hpp"
#include "tensorhub/service/zmq_socket.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

class curve_guard {
 public:
  /// Makes `router` a CURVE server and guards it. `router` must not be bound yet. The guard's thread calls
  /// `wake` when there is a line to log. The guard must be destroyed before `router`, by the thread that may
  /// use `router` at that time.
  curve_guard(zmq::context_t& context, zmq::socket_t& router, const server_security& security,
              std::function<void()> wake);
  ~curve_guard();
  curve_guard(const curve_guard&) = delete;
  curve_guard& operator=(const curve_guard&) = delete;

  void allow(const std::string& key, client_rules rules);
  /// False: the key was not on the list.
  bool revoke(const std::string& key);

  /// What the key with which a message's connection was admitted may do now; null: it is not on the list any
  /// more.
  [[nodiscard]] std::shared_ptr<const client_rules> rules_of(std::string_view key) const;
  /// The list has changed since the last call, and with it the answers of `rules_of`.
  [[nodiscard]] bool take_change() noexcept {
    return has_changed_.exchange(false, std::memory_order_acquire);
  }
  /// `take_change` returns true once more.
  void give_change_back() noexcept { has_changed_.store(true, std::memory_order_release); }

  /// Charges the network of this address for a connection that the server closed because it sent too much.
  void offended(std::string_view peer_address);

  /// What a line is about. Each has a rate limit of its own: a client that fails again and again hides no
  /// other trouble.
  enum class matter : std::uint8_t { key, handshake, rights, bytes, network };
  /// Queues a warning for `take_log`, within the rate limit.
  void note(matter about, std::string text);
  [[nodiscard]] std::vector<log_line> take_log();

  /// Number of connections with unknown or revoked keys.
  [[nodiscard]] std::uint64_t refused() const noexcept {
    return counted_.refused.load(std::memory_order_relaxed);
  }
  /// Number of connections that ended before the client presented a key.
  [[nodiscard]] std::uint64_t failed() const noexcept {
    return counted_.failed.load(std::memory_order_relaxed);
  }
  /// Number of connections that were closed because they sent too much.
  [[nodiscard]] std::uint64_t closed() const noexcept {
    return counted_.closed.load(std::memory_order_relaxed);
  }
  /// How often a network was blocked.
  [[nodiscard]] std::uint64_t blocked() const noexcept {
    return counted_.blocked.load(std::memory_order_relaxed);
  }

 private:
  static constexpr std::size_t most_lines = 256;
  static constexpr std::chrono::milliseconds pause_after_failure{10};

  struct peer {
    std::string text{};  ///< its address and port
    std::optional<ip_network> network{};
    std::uint64_t received = 0;  ///< bytes, as the kernel counts them
    flow_account bytes{most_bytes};
  };
  /// What a connection may send at once: the messages that a router keeps, and one more.
  static constexpr std::size_t most_bytes = (most_unheard + 1) * most_heard_bytes;
  static constexpr std::chrono::milliseconds weigh_interval{100};

  void run(const std::stop_token& stop);

  /// Answers a ZAP request: version, request number, domain, address, routing name, mechanism, the key's 32
  /// bytes.
  bool answer_one();

  [[nodiscard]] bool admits(const std::string& key) const;

  void turn_away(const std::string& key, const std::string& address);

  /// Handles one event. The failure of a connection is followed by its end, which names its descriptor.
  bool hear_one();

  void say_failed(const handshake_event& event, const peer& from);

  /// Closes connections that send too much, by what the kernel has received: ZeroMQ keeps the parts of a
  /// message that does not end, however many, and shows them to nobody.
  void weigh(time_point now);
  [[nodiscard]] static std::optional<std::uint64_t> bytes_received_by(int descriptor) noexcept;

  /// Tells the kernel which networks are blocked, if that has changed.
  void filter_arrivals();

  /// Of a connection; empty if it is already gone.
  [[nodiscard]] static peer peer_of(int descriptor);

  zmq::socket_t questions_;
  handshake_monitor failures_;
  std::function<void()> wake_;
  wake_event signal_;
  struct {
    std::atomic<std::uint64_t> refused = 0;
    std::atomic<std::uint64_t> failed = 0;
    std::atomic<std::uint64_t> blocked = 0;
    std::atomic<std::uint64_t> closed = 0;
  } counted_;
  std::atomic<bool> has_changed_ = false;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const client_rules>>
      allowed_;  ///< guarded by mutex_, like the next three
  std::map<matter, log_limiter> limiters_;
  std::vector<log_line> lines_;
  std::vector<ip_network> offenders_;  ///< that the thread has not charged yet
  // Used by the thread only:
  std::unordered_map<std::uint32_t, peer> peers_;  ///< by descriptor
  std::optional<handshake_event> failure_;
  std::optional<int> listening_;
  steady_clock clock_;
  arrival_budget arrivals_;
  time_point weigh_at_{};
  std::jthread thread_;  ///< last member: uses all members above
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/curve_guard.ipp"
#endif
