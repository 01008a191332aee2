#pragma once
/// \file results.ipp
/// What worker/results.hpp declares.

#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "tensorhub/worker/results.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL void worker_results::deliver(std::vector<session_result> results) {
  if (results.empty()) return;
  const std::lock_guard lock{mutex_};
  for (session_result& each : results) results_.emplace(each.ticket, std::move(each));
  is_new_ = true;
}

TENSORHUB_DECL void worker_results::order(pull_order next) {
  const std::lock_guard lock{mutex_};
  order_.emplace(std::move(next));
  is_new_ = true;
}

TENSORHUB_DECL void worker_results::wake() noexcept {
  if (is_new_.exchange(false)) changed_.notify_all();
}

TENSORHUB_DECL std::optional<session_result> worker_results::wait(session_ticket ticket, deadline give_up) {
  std::unique_lock lock{mutex_};
  if (!changed_.wait_until(lock, give_up, [&] { return results_.contains(ticket); })) return std::nullopt;
  return take(ticket);
}

TENSORHUB_DECL worker_results::step worker_results::next(session_ticket ticket, deadline give_up) {
  std::unique_lock lock{mutex_};
  step out;
  if (!changed_.wait_until(lock, give_up, [&] { return order_ || results_.contains(ticket); })) return out;
  out.order = std::exchange(order_, std::nullopt);
  if (!out.order) out.result = take(ticket);
  return out;
}

TENSORHUB_DECL session_result worker_results::take(session_ticket ticket) {
  auto node = results_.extract(ticket);
  return std::move(node.mapped());
}

}  // namespace tensorhub::inline TENSORHUB_MODE
