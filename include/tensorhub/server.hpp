#pragma once
/// \file server.hpp
/// The reference server: a catalog behind one ROUTER socket, on one thread. It can be embedded: construct
/// it in any process.
///
///     tensorhub::reference_server<> server{{.address = "tcp://127.0.0.1:5570"}};
///     std::puts(server.address().c_str());      // with the port that was bound
///
/// The server stores no weights, only some hundred bytes per worker and version. By default it listens on
/// the loopback interface. Without `security` (security.hpp) the server trusts every client that reaches
/// it, and logs a warning if clients of other machines can reach it.
///
/// With `security`, clients with unknown keys are refused before they can send a message, and each key has
/// its rights (service/catalog/authority.hpp). A worker proves when it joins that its incarnation is one of
/// its key's (types/incarnation_proof.hpp): a message of that incarnation under another key is a forgery and
/// is dropped. After `revoke`, the server refuses new connections with that key and drops messages on its
/// existing connections. Their workers are told once and, being silent, are declared dead after
/// `worker_timeout`; then their sources cut them off.
///
/// Thread safety: all public members may be called from any thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"
#include "tensorhub/security.hpp"
#include "tensorhub/service/any_policies.hpp"
#include "tensorhub/service/catalog/options.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/service/statistics.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct reference_server_options {
  std::string address = "tcp://127.0.0.1:0";  ///< port 0: any free port
  catalog_options catalog{};
  std::optional<server_security> security{};  ///< CURVE and an allow-list; empty: every client is admitted
  log_level level = log_level::info;
  /// Called from the server's thread, which does nothing else meanwhile: `queued` (service/log_queue.hpp)
  /// gives a log that takes time a thread of its own.
  std::function<void(const log_line&)> log{};
  /// The term of an election (types/ids.hpp): workers ignore servers of a lower term than the highest they
  /// know.
  /// Zero: there is no election. At most `server_term_max`.
  std::uint64_t term = 0;
  /// Called before a message is processed and before one is sent. While it returns false, messages in both
  /// directions are dropped, as by a bad network. Empty: always true. Called from the server's thread; must
  /// not throw.
  std::function<bool()> may_serve{};
};

/// Statistics of the catalog (service/statistics.hpp) and of the socket. They do not contain bytes of
/// weights, which do not pass through the server; workers count those (`worker::statistics`).
struct reference_server_statistics : catalog_statistics {
  std::uint64_t messages = 0;              ///< received and understood
  std::uint64_t bad_frames = 0;            ///< dropped: garbage, other protocol, wrong number of parts
  std::uint64_t crowded_messages = 0;      ///< dropped: too many workers on one connection
  std::uint64_t flooding_connections = 0;  ///< closed: too many messages, or too large
  /// Not sent: the connection does not take those before, or asks too much.
  std::uint64_t unread_answers = 0;
  /// Looks, one a second, that have found no descriptor left for another connection.
  std::uint64_t descriptor_shortages = 0;
  // With security only:
  std::uint64_t refused_connections = 0;  ///< with keys that are not on the allow-list
  std::uint64_t failed_handshakes = 0;    ///< no CURVE, another server's key, garbage
  /// How often connections from a network were blocked for a while, after too many of those.
  std::uint64_t blocked_networks = 0;
  std::uint64_t forged_messages = 0;   ///< dropped: the incarnation belongs to another key
  std::uint64_t revoked_messages = 0;  ///< dropped: the key was revoked
};

/// A reference server with any policies. Users name the policies as template arguments of `reference_server`.
class catalog_server {
 public:
  using options = reference_server_options;

  /// Listens at once. Throws `transport_failed` if the address cannot be bound, `invalid_argument` or
  /// `limit_exceeded` for invalid options, `system_failed` if this process can start no thread, or open too
  /// few descriptors.
  catalog_server(options how, any_scheduler scheduler, any_consistency consistency);
  ~catalog_server();
  catalog_server(const catalog_server&) = delete;
  catalog_server& operator=(const catalog_server&) = delete;

  /// The address that workers connect to.
  [[nodiscard]] const std::string& address() const noexcept;
  [[nodiscard]] server_epoch epoch() const noexcept;
  [[nodiscard]] reference_server_statistics statistics() const noexcept;
  /// What there is of each model that has a worker; up to a second old.
  [[nodiscard]] std::vector<model_versions> versions() const;
  /// The time since its thread has last looked for messages, which it does every second at least: longer, if
  /// it hangs, perhaps in `log`.
  [[nodiscard]] duration hangs_for() const noexcept;

  /// Admits clients with this public key from now on, or changes what they may do. Throws `invalid_argument`
  /// if the key is invalid, or if the server was made without security.
  void allow(const std::string& key, client_rules rules = {});
  /// Stops admitting clients with this public key, and drops messages on their existing connections. False:
  /// the key was not allowed.
  bool revoke(const std::string& key);

 private:
  class loop;
  std::unique_ptr<loop> loop_;
};

/// The server for workers with the same consistency policy. Only the server uses the scheduler.
template <scheduler Scheduler = nearest_source, consistency Consistency = group_consistent>
class reference_server : public catalog_server {
 public:
  explicit reference_server(options how = {}, Scheduler scheduler = Scheduler{typename Scheduler::options{}},
                            Consistency consistency = Consistency{typename Consistency::options{}})
      : catalog_server{std::move(how), std::move(scheduler), std::move(consistency)} {}
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/server.ipp"
#endif
