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
/// etcd elects one of them (etcd/election.hpp); it alone listens at its address. A reference server's state
/// is soft: the next leader rebuilds it from what the workers announce when they have found it, and until
/// they have had time to (`catalog_options::recovery_grace`) `latest` does not go backwards and "not found"
/// is not said. Transfers do not wait for any of this. What is stored in etcd is who leads, and the count of
/// leaders.
///
/// | what happens                  | what follows                                                    |
/// |-------------------------------|-----------------------------------------------------------------|
/// | the leader's object ends      | it gives its lease back: the next one leads after a `poll`      |
/// | the leader dies or is cut off | after the rest of its `lease` (5 s at most) the next one leads  |
/// | the leader is suspended       | as above; when it goes on it finds its time over, and is silent |
/// | etcd is away                  | the leader serves until its lease is at risk, then nobody does; |
/// |                               | when etcd is back there is a leader again, with a higher term   |
/// | the leader's address is taken | it gives its lease back, and stands back for a lease's time     |
///
/// The leader's term is in its epoch. Workers that have heard of a term do not listen to a lower one: use the
/// election for all servers of a deployment, and one name for ever (a server without an election has term 0).
/// How often it was won is counted in 24 bits. If etcd loses its data while no candidate lives, the count
/// begins anew: raise `election_options::first_term`, or restart the workers.
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

#include "tensorhub/concepts/clock.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/etcd/election.hpp"
#include "tensorhub/etcd/http.hpp"
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"
#include "tensorhub/server.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Runs on while the process is stopped, and while the machine sleeps.
struct boot_clock {
  using concept_tag = clock_tag;
  [[nodiscard]] time_point now() const noexcept;
};
static_assert(clock<boot_clock>);

struct standby_server_options {
  /// Of the server that runs while this one leads. The address needs a port of its own. `term` and
  /// `may_serve` are the election's; `log` also gets what happens to the election, never from two threads at
  /// a time.
  reference_server_options server{};
  etcd_options etcd{};
  election_options election{};
};

/// A candidate of any policies, and a `catalog_server` while it leads. Users name the policies as template arguments
/// of `standby_server`.
class standby_candidate {
 public:
  using options = standby_server_options;
  /// Makes the server of a term.
  using server_maker = std::function<std::unique_ptr<catalog_server>(reference_server_options)>;

  /// Campaigns at once, whether etcd is there or not. Throws `invalid_argument` for options that cannot be.
  standby_candidate(options how, server_maker make_server);
  /// Stops serving and gives the leadership back, if etcd answers within `answer_time`.
  ~standby_candidate() = default;
  standby_candidate(const standby_candidate&) = delete;
  standby_candidate& operator=(const standby_candidate&) = delete;

  /// Where this one listens when it leads.
  [[nodiscard]] const std::string& address() const noexcept { return options_.server.address; }
  /// It serves at this moment. (It may have ended before you look at the answer.)
  [[nodiscard]] bool leads() const noexcept { return fence_->open(); }
  /// Of the last time that it led; zero: never.
  [[nodiscard]] std::uint64_t term() const noexcept { return term_.load(); }
  /// Of the server that runs now; while none does, zeros. (Prometheus: they begin anew with each term.)
  [[nodiscard]] reference_server_statistics statistics() const;

  /// As `reference_server::allow` and `revoke`: of the server that runs, and of those to come.
  void allow(const std::string& key, const std::string& name = {});
  bool revoke(const std::string& key);

 private:
  /// Until when the server may serve: looked at by its thread before each message, so that the server of a
  /// process that was suspended is silent before anybody has told it why.
  class fence {
   public:
    void set(time_point until) noexcept { until_.store(until.nanoseconds); }
    [[nodiscard]] bool open() const noexcept { return boot_clock{}.now().nanoseconds < until_.load(); }

   private:
    std::atomic<std::int64_t> until_ = INT64_MIN;
  };

  [[nodiscard]] static options checked(options how);

  void run(const std::stop_token& stop);

  void ask(const etcd_request& request);

  /// The server follows the state: it runs while this one leads, and not a moment longer.
  void settle();

  void start_server();
  void stop_server();

  void sleep_until(const std::stop_token& stop, time_point until);

  void say(const log_line& line) const;

  options options_;
  server_maker make_server_;
  boot_clock clock_;
  etcd_client etcd_;  ///< the thread's own, as the next
  election core_;
  std::shared_ptr<fence> fence_ = std::make_shared<fence>();
  std::atomic<std::uint64_t> term_ = 0;
  mutable std::mutex mutex_;                ///< of server_, and of the allow-list in options_
  std::unique_ptr<catalog_server> server_;  ///< changed by the thread only
  std::mutex sleep_mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;  ///< last: uses everything above
};

/// A candidate, and a `reference_server<Scheduler, Consistency>` while it leads.
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
