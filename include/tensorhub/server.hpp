#pragma once
/// \file server.hpp
/// The reference server: a catalog behind one ROUTER socket, on one thread. Embeddable: construct it in any
/// process.
///
///     tensorhub::reference_server<> server{{.address = "tcp://127.0.0.1:5570"}};
///     std::puts(server.address().c_str());      // with the port that was bound
///
/// The server stores no weights: some hundred bytes per worker and version. It listens on the loopback interface
/// unless told otherwise. Without `security` (security.hpp) the server believes every client that reaches it, and logs
/// a warning when clients of other machines can.
///
/// With `security`, clients with unknown keys are refused before they can send a message. An incarnation belongs to the
/// key of its first message: a message of the same incarnation under another key is a forgery and is dropped. A revoked
/// key lets no client in, and messages on its existing connections are dropped from then on: their workers are told
/// once and, being silent, are declared dead after `worker_timeout`; then their sources cut them off. (This
/// knowledge dies with the server: after a fail-over an incarnation belongs to the key that is heard first.)
///
/// Thread safety: all public members may be called from any thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

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
  std::string address = "tcp://127.0.0.1:0";  ///< port 0: any free one
  catalog_options catalog{};
  std::optional<server_security> security{};  ///< CURVE and an allow-list; empty: everybody is let in
  log_level level = log_level::info;
  std::function<void(const log_line&)> log{};  ///< called from the server's thread
  /// What an election has counted (types/ids.hpp): workers do not listen to a lower term than they know.
  /// Zero: there is no election. At most `server_term_max`.
  std::uint64_t term = 0;
  /// Asked before a message is looked at and before one is sent; while it says no, both are dropped, as by a
  /// bad network. Empty: always. Called from the server's thread; must not throw.
  std::function<bool()> may_serve{};
};

/// Of the catalog (service/statistics.hpp), and of the socket. Bytes of weights are not among them: the
/// server sees none; workers count them (`worker::statistics`).
struct reference_server_statistics : catalog_statistics {
  std::uint64_t messages = 0;          ///< received and understood
  std::uint64_t bad_frames = 0;        ///< dropped: garbage, other protocol, wrong number of parts
  std::uint64_t crowded_messages = 0;  ///< dropped: a connection speaks for more workers than one may
  // With security only:
  std::uint64_t refused_connections = 0;  ///< of keys that are not on the allow-list
  std::uint64_t failed_handshakes = 0;    ///< no CURVE, another server's key, garbage
  std::uint64_t forged_messages = 0;      ///< dropped: of an incarnation that is another key's
  std::uint64_t revoked_messages = 0;     ///< dropped: of a key that was on the list once
};

/// A reference server of any policies. Users name the policies as template arguments of `reference_server`.
class catalog_server {
 public:
  using options = reference_server_options;

  /// Listens at once. Throws `transport_failed` if the address cannot be bound, `invalid_argument` or `limit_exceeded`
  /// for options that cannot be.
  catalog_server(options how, any_scheduler scheduler, any_consistency consistency);
  ~catalog_server();
  catalog_server(const catalog_server&) = delete;
  catalog_server& operator=(const catalog_server&) = delete;

  /// What workers connect to.
  [[nodiscard]] const std::string& address() const noexcept;
  [[nodiscard]] server_epoch epoch() const noexcept;
  [[nodiscard]] reference_server_statistics statistics() const noexcept;

  /// Lets clients with this public key in from now on. Throws `invalid_argument` if it is none, or if the server was
  /// made without security.
  void allow(const std::string& key, std::string name = {});
  /// Lets clients with this public key in no more, and drops what its connections still send. False: the key was not
  /// allowed.
  bool revoke(const std::string& key);

 private:
  class loop;
  std::unique_ptr<loop> loop_;
};

/// The server of the workers that use the same consistency policy. The scheduler is the server's alone.
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
