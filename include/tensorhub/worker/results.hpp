#pragma once
/// \file results.hpp
/// Where a worker's callers wait for what its session has for them: the results of calls, and the order to
/// read.
///
///     control thread (or any that steps the session) -- deliver, order --> | -- wait, next --> a caller
///
/// A caller waits with no lock of the session, so results may be delivered while the session's is held. Each
/// result is taken once, by whoever has its ticket; what nobody takes stays until the worker ends.
///
/// Thread safety: every member may be called from any thread.

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
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

  void deliver(std::vector<session_result> results) {
    if (results.empty()) return;
    const std::lock_guard lock{mutex_};
    for (session_result& each : results) results_.emplace(each.ticket, std::move(each));
    changed_.notify_all();
  }

  /// For the update that runs: there is one at a time. A newer order takes the place of one that was not
  /// taken.
  void order(pull_order next) {
    const std::lock_guard lock{mutex_};
    order_.emplace(std::move(next));
    changed_.notify_all();
  }

  /// Empty: `give_up` came first. The session ends every call at its own deadline, so that only happens when
  /// the thread that steps it is stuck.
  [[nodiscard]] std::optional<session_result> wait(session_ticket ticket, deadline give_up) {
    std::unique_lock lock{mutex_};
    if (!changed_.wait_until(lock, give_up, [&] { return results_.contains(ticket); })) return std::nullopt;
    return take(ticket);
  }

  /// As `wait`, also for an order, which comes first: the result of what it is about comes after it.
  [[nodiscard]] step next(session_ticket ticket, deadline give_up) {
    std::unique_lock lock{mutex_};
    step out;
    if (!changed_.wait_until(lock, give_up, [&] { return order_ || results_.contains(ticket); })) return out;
    out.order = std::exchange(order_, std::nullopt);
    if (!out.order) out.result = take(ticket);
    return out;
  }

 private:
  /// Pre-condition: mutex_ is held and the result is there.
  [[nodiscard]] session_result take(session_ticket ticket) {
    auto node = results_.extract(ticket);
    return std::move(node.mapped());
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<session_ticket, session_result> results_;
  std::optional<pull_order> order_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
