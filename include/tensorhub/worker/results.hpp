#pragma once
/// \file results.hpp
/// Where a worker's callers wait for what its session has for them: the results of calls, and the order to
/// read.
///
///     control thread (or any that steps the session) -- deliver, order --> | -- wait, next --> a caller
///
/// A caller waits with no lock of the session, so results may be delivered while that is held. `wake`
/// comes when it is free, since the caller that wakes needs it. Each result is taken once, by whoever has its
/// ticket; what nobody takes stays until the worker ends.
///
/// Thread safety: every member may be called from any thread.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/session/actions.hpp"
#include "tensorhub/worker/pull_order.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class worker_results {
 public:
  using deadline = std::chrono::steady_clock::time_point;

  /// What an update has to do next: carry out the order, or end with the result. Neither: nothing came in
  /// time.
  struct step {
    std::optional<pull_order> order{};
    std::optional<session_result> result{};
  };

  TENSORHUB_DECL void deliver(std::vector<session_result> results);

  /// For the update that runs: there is one at a time. A newer order takes the place of one that was not
  /// taken.
  TENSORHUB_DECL void order(pull_order next);

  /// Wakes the callers if there is something new.
  TENSORHUB_DECL void wake() noexcept;

  /// Empty: `give_up` came first. The session ends every call at its own deadline, so that only happens when
  /// the thread that steps it is stuck.
  [[nodiscard]] TENSORHUB_DECL std::optional<session_result> wait(session_ticket ticket, deadline give_up);

  /// As `wait`, also for an order, which comes first: the result of what it is about comes after it.
  [[nodiscard]] TENSORHUB_DECL step next(session_ticket ticket, deadline give_up);

 private:
  /// Pre-condition: mutex_ is held and the result is there.
  [[nodiscard]] TENSORHUB_DECL session_result take(session_ticket ticket);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> is_new_ = false;  ///< nobody has been woken since
  std::map<session_ticket, session_result> results_;
  std::optional<pull_order> order_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/worker/impl/results.ipp"
#endif
