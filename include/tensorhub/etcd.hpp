#pragma once
/// \file etcd.hpp
/// A reference server with warm standbys: an optional component, `TensorHub::etcd`.
///
///     // On two (or more) machines, each with an address of its own:
///     tensorhub::standby_server<> server{{.server = {.address = "tcp://10.0.0.1:5570"},
///                                         .etcd = {.endpoints = "http://10.0.0.7:2379"},
///                                         .election = {.name = "policy-servers"}}};
///     // The workers know all of them:
///     hub::subscriber rollout{{.server = "tcp://10.0.0.1:5570,tcp://10.0.0.2:5570", ...}};
///
/// etcd elects one of them (etcd/election.hpp); only the leader listens at its address. The state of a
/// reference server is soft: the next leader rebuilds it from the announcements of the workers. Until they
/// have had time to join (`catalog_options::recovery_grace`), `latest` does not go backwards and the server
/// never answers `not_found`. Transfers do not wait for any of this. etcd stores only the current leader
/// and the count of leaders.
///
/// | event                         | consequence                                                     |
/// |-------------------------------|-----------------------------------------------------------------|
/// | the leader's object ends      | it returns its lease: the next candidate leads after a `poll`   |
/// | the leader dies or is cut off | the next one leads after the rest of the `lease` (5 s at most)  |
/// | the leader is suspended       | as above; when it resumes, its time is over and it sends nothing|
/// | the leader's server hangs     | as above, two leases later: the candidate gives way             |
/// | etcd is unreachable           | the leader serves until its lease is at risk, then no server    |
/// |                               | does; when etcd is back, a leader with a higher term serves     |
/// | the leader's address is taken | it returns its lease, and does not campaign for a lease's time  |
///
/// The leader's term is part of its epoch. Workers ignore servers of a lower term than the highest they
/// know, so use the election for all servers of a deployment, and never change its name (a server without
/// an election has term 0). Terms are counted in 24 bits. If etcd loses its data while no candidate is
/// alive, the count starts again: raise `election_options::first_term`, or restart the workers.
///
/// Built on libcurl and nlohmann-json. Thread safety: every member, from any thread.

#include <time.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensorhub/concepts/clock.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/etcd/election.hpp"
#include "tensorhub/etcd/http.hpp"
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"
#include "tensorhub/server.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// A clock that continues while the process is stopped, and while the machine sleeps.
struct boot_clock {
  using concept_tag = clock_tag;
  [[nodiscard]] time_point now() const noexcept;
};
static_assert(clock<boot_clock>);

struct standby_server_options {
  /// Options of the server that runs while this candidate leads. The address must name a port. The election
  /// sets `term` and `may_serve`. `log` also gets the lines of the election, never from two threads at the
  /// same time.
  reference_server_options server{};
  etcd_options etcd{};
  election_options election{};
};

/// A candidate with any policies, which runs a `catalog_server` while it leads. Users name the policies as
/// template arguments of `standby_server`.
class standby_candidate {
 public:
  using options = standby_server_options;
  /// Makes the server for one term.
  using server_maker = std::function<std::unique_ptr<catalog_server>(reference_server_options)>;

  /// Starts to campaign at once, whether etcd can be reached or not. Throws `invalid_argument` for invalid
  /// options.
  standby_candidate(options how, server_maker make_server);
  /// Stops serving, and returns the leadership if etcd answers within `answer_time`.
  ~standby_candidate() = default;
  standby_candidate(const standby_candidate&) = delete;
  standby_candidate& operator=(const standby_candidate&) = delete;

  /// The address at which this candidate listens while it leads.
  [[nodiscard]] const std::string& address() const noexcept { return options_.server.address; }
  /// Whether this candidate serves at this moment. (That may have changed when the caller reads the result.)
  [[nodiscard]] bool leads() const noexcept { return fence_->open(); }
  /// The last term in which this candidate led; zero: it has never led.
  [[nodiscard]] std::uint64_t term() const noexcept { return term_.load(); }
  /// Whether etcd has answered the latest request: if not, this candidate cannot begin to lead, and one that
  /// leads stops when its lease is at risk.
  [[nodiscard]] bool etcd_answers() const noexcept { return etcd_answers_.load(); }
  /// Statistics of the running server; zeros while none runs. (For Prometheus: counters restart with each
  /// term.)
  [[nodiscard]] reference_server_statistics statistics() const;
  /// Like `catalog_server::versions`; empty while no server runs.
  [[nodiscard]] std::vector<model_versions> versions() const;

  /// Like `reference_server::allow` and `revoke`, for the running server and all later ones.
  void allow(const std::string& key, const client_rules& rules = {});
  bool revoke(const std::string& key);

 private:
  /// The time until which the server may serve. The server's thread checks it before each message, so that
  /// the server of a process that was suspended sends nothing, even before the election's thread has run.
  class fence {
   public:
    void set(time_point until) noexcept { until_.store(until.nanoseconds); }
    [[nodiscard]] bool open() const noexcept { return boot_clock{}.now().nanoseconds < until_.load(); }

   private:
    std::atomic<std::int64_t> until_ = INT64_MIN;
  };

  [[nodiscard]] static options checked(options how);

  void run(const std::stop_token& stop);
  void warn_of_plain_endpoints() const noexcept;
  void say_failure() const noexcept;
  void give_back_lease() noexcept;

  void ask(const etcd_request& request);

  /// Starts or stops the server, so that it runs exactly while this candidate leads. Returns only when a
  /// server that hangs has ended; its lease ends meanwhile.
  void settle();

  void start_server();
  void stop_server();

  void sleep_until(const std::stop_token& stop, time_point until);

  void say(const log_line& line) const;

  options options_;
  server_maker make_server_;
  boot_clock clock_;
  etcd_client etcd_;  ///< used by the thread only, like the next member
  election core_;
  std::shared_ptr<fence> fence_ = std::make_shared<fence>();
  std::atomic<std::uint64_t> term_ = 0;
  std::atomic<bool> etcd_answers_ = false;
  mutable std::mutex mutex_;                ///< guards server_, and the allow-list in options_
  std::unique_ptr<catalog_server> server_;  ///< changed by the thread only
  std::mutex sleep_mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;  ///< last member: uses all members above
};

/// A candidate, which runs a `reference_server<Scheduler, Consistency>` while it leads.
template <scheduler Scheduler = nearest_source, consistency Consistency = group_consistent>
class standby_server : public standby_candidate {
 public:
  explicit standby_server(options how, typename Scheduler::options scheduler_options = {},
                          typename Consistency::options consistency_options = {})
      : standby_candidate{
            std::move(how), [=](reference_server_options server) -> std::unique_ptr<catalog_server> {
              return std::make_unique<reference_server<Scheduler, Consistency>>(
                  std::move(server), Scheduler{scheduler_options}, Consistency{consistency_options});
            }} {}
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/etcd.ipp"
#endif
