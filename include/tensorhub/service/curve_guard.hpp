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
  [[nodiscard]] std::optional<log_line> pass(log_line line, clock::time_point now);

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
              std::function<void()> wake);
  ~curve_guard();
  curve_guard(const curve_guard&) = delete;
  curve_guard& operator=(const curve_guard&) = delete;

  void allow(const std::string& key, std::string name);
  /// False: it was not on the list.
  bool revoke(const std::string& key);

  /// Of the key that a message's connection was let in with: whether it still counts.
  [[nodiscard]] bool still_allowed(std::string_view key) const;

  /// Queues a line for `take_log`, within the limit.
  void note(log_level level, std::string text);
  [[nodiscard]] std::vector<log_line> take_log();

  /// Connections of unknown or revoked keys.
  [[nodiscard]] std::uint64_t refused() const noexcept { return refused_.load(std::memory_order_relaxed); }
  /// Connections that ended before they had shown a key.
  [[nodiscard]] std::uint64_t failed() const noexcept { return failed_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t most_lines = 256;

  void run(const std::stop_token& stop);

  /// A ZAP request: version, request number, domain, address, routing name, mechanism, the key's 32 bytes.
  bool answer_one();

  [[nodiscard]] bool admits(const std::string& key) const;

  void turn_away(const std::string& key, const std::string& address);

  /// A connection's failure is followed by its end, which names its descriptor.
  bool hear_one();

  void say_failed(const handshake_event& event, const std::string& address);

  /// Empty if the connection is gone already.
  [[nodiscard]] static std::string peer_of(int descriptor);

  zmq::socket_t questions_;
  handshake_monitor failures_;
  std::function<void()> wake_;
  wake_event signal_;
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

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/curve_guard.ipp"
#endif
