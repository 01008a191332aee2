#pragma once
/// \file cut_off_orders.ipp
/// What worker/cut_off_orders.hpp declares.

#include <mutex>
#include <thread>
#include <utility>

#include "tensorhub/detail/thread_name.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/worker/cut_off_orders.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL cut_off_orders::cut_off_orders(std::function<void(incarnation)> carry_out)
    : carry_out_{std::move(carry_out)} {}

TENSORHUB_DECL cut_off_orders::~cut_off_orders() {
  close();
}

TENSORHUB_DECL bool cut_off_orders::give(incarnation reader) noexcept {
  const std::lock_guard lock{mutex_};
  if (detail::contains(orders_, reader)) return true;
  if (closed_) return false;
  try {
    orders_.push_back(reader);
  } catch (...) {
    return false;
  }
  try {
    if (!is_running_) thread_ = std::jthread{[this] { run(); }};  // the one before has ended
  } catch (...) {
    orders_.pop_back();
    return false;
  }
  is_running_ = true;
  if (reader == everybody) revokes_ = true;
  return true;
}

TENSORHUB_DECL void cut_off_orders::ended(incarnation reader) noexcept {
  const std::lock_guard lock{mutex_};
  std::erase(orders_, reader);
  if (reader != everybody) return;
  revokes_ = false;
  revokes_.notify_all();
}

TENSORHUB_DECL void cut_off_orders::close() noexcept {
  std::jthread last;
  const std::lock_guard lock{mutex_};
  closed_ = true;
  last.swap(thread_);
}  // `last` is joined after the mutex is free

TENSORHUB_DECL void cut_off_orders::run() {
  detail::name_thread("tensorhub-cut");
  for (;;) {
    std::unique_lock lock{mutex_};
    if (orders_.empty()) {
      is_running_ = false;
      return;
    }
    // The worker's caller waits for its memory until the keys are revoked.
    const incarnation next = detail::contains(orders_, everybody) ? everybody : orders_.front();
    lock.unlock();
    carry_out_(next);
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE
