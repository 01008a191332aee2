#pragma once
/// \file server_client.hpp
/// For processes that look after a system and are no workers: questions to the reference server and orders to
/// it, without tensors and without a transport.
///
///     tensorhub::server_client client{{.server = "tcp://10.0.0.1:5570"}};
///     for (const auto& model : client.list()) ...
///     client.pin("policy", 1000);
///     client.drain("policy", "rollout-17");      // before its machine is taken out
///
/// It shares its process's control connection (process.hpp).
///
/// Thread safety: all members may be called from any thread. Errors: `timed_out` and `disconnected` at a
/// call's deadline (an order may have been carried out then), `not_found` for a model or replica that has not
/// joined.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/process.hpp"
#include "tensorhub/security.hpp"
#include "tensorhub/types/server_reports.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct server_client_options {
  /// As `worker_options::server`: one address, or several with commas between, and bars.
  std::string server{};
  std::optional<client_security> security{};
  tensorhub::process process{};  ///< whose control connection it shares
  std::chrono::milliseconds request_retry = defaults::request_retry;
  std::chrono::milliseconds server_timeout = defaults::server_timeout;  ///< silence: the next one is tried
};

/// What a drained replica still does.
struct drain_report {
  std::uint32_t workers = 0;  ///< of the replica
  std::uint32_t readers = 0;  ///< that still read from it: zero, unless the time was up
};

class server_client {
 public:
  /// Connects in the background. Throws `invalid_argument` for options that cannot be right.
  TENSORHUB_DECL explicit server_client(server_client_options options);
  TENSORHUB_DECL ~server_client();
  server_client(const server_client&) = delete;
  server_client& operator=(const server_client&) = delete;

  /// The calls that run in other threads end soon, with `cancelled`.
  TENSORHUB_DECL void interrupt();

  // ---- questions

  /// The models, by name, or the one of this name. A server that has just begun answers for one only when
  /// its workers are back (`recovery_grace` at most); in the list of all a model may lack some of them.
  [[nodiscard]] TENSORHUB_DECL std::vector<model_entry> list(
      std::string model = {}, std::chrono::milliseconds timeout = defaults::join_timeout);
  [[nodiscard]] TENSORHUB_DECL model_description describe_model(
      std::string model, std::uint32_t shard, std::chrono::milliseconds timeout = defaults::join_timeout);
  /// How the sources of this worker were chosen, a line each, the latest last.
  [[nodiscard]] TENSORHUB_DECL std::string why(std::string model, std::string replica,
                                               std::uint32_t shard = 0,
                                               std::chrono::milliseconds timeout = defaults::join_timeout);
  /// What waits, in the model of this name or in all.
  [[nodiscard]] TENSORHUB_DECL stuck_report
  stuck(std::string model = {}, std::chrono::milliseconds older_than = std::chrono::seconds{1},
        std::chrono::milliseconds timeout = defaults::join_timeout);

  /// Waits until all replicas of these names hold `version` or a newer one, as `worker::wait_held`. (It
  /// takes no number: the server does not tell trainers from rollouts, and both would count.)
  TENSORHUB_DECL std::vector<std::string> wait_held(
      std::string model, version_number version, std::vector<std::string> replicas,
      std::chrono::milliseconds timeout = defaults::update_timeout);

  // ---- orders about a model: as the calls of these names at `worker`

  TENSORHUB_DECL void retain(std::string model, std::uint32_t versions,
                             std::chrono::milliseconds timeout = defaults::join_timeout);
  TENSORHUB_DECL void pin(std::string model, version_number version,
                          std::chrono::milliseconds timeout = defaults::join_timeout);
  TENSORHUB_DECL void release(std::string model, version_number version,
                              std::chrono::milliseconds timeout = defaults::join_timeout);
  /// Only while no trainer publishes: one that does not know of it yet is refused until it has heard.
  TENSORHUB_DECL void roll_back_to(std::string model, version_number version,
                                   std::chrono::milliseconds timeout = defaults::join_timeout);

  // ---- orders about a replica and its parts, such as "rollout-0@stage" (types/replica_name.hpp)

  /// The server declares the replica's workers dead: their calls fail with `replaced`, their readers go
  /// elsewhere, their places are free. Returns how many there were. A process that is started anew may join
  /// again.
  TENSORHUB_DECL std::uint32_t evict(std::string model, std::string replica,
                                     std::chrono::milliseconds timeout = defaults::join_timeout);
  /// The replica is read from no more: its readers are moved to others, and it is relied upon for nothing
  /// that is retained. It may update and publish, and is a source again after `resume`, when it has joined a
  /// new server, or when all its workers have left and others have joined in their places. Returns when
  /// nobody reads from it any more, or at the deadline, with those that are left.
  TENSORHUB_DECL drain_report drain(std::string model, std::string replica,
                                    std::chrono::milliseconds timeout = defaults::drain_timeout);
  TENSORHUB_DECL void resume(std::string model, std::string replica,
                             std::chrono::milliseconds timeout = defaults::join_timeout);

 private:
  struct state;
  [[nodiscard]] TENSORHUB_DECL state& of(const std::string& model) const;

  std::vector<std::unique_ptr<state>> groups_;  ///< one for each group of servers
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/server_client.ipp"
#endif
