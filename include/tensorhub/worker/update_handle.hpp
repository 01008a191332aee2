#pragma once
/// \file update_handle.hpp
/// An update that runs in a thread of its own: watch it, wait for it, cancel it.

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/options.hpp"
#include "tensorhub/service/session/actions.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

template <typename Worker, typename Transport, typename Integrity>
class worker_updates;

/// Made by `update_async` (worker.hpp) and its like; `Worker` must outlive it. Destroying it cancels and
/// waits. Thread safety: every member but the destructor and the moves may be called from any thread.
template <typename Worker>
class update_handle {
 public:
  update_handle(update_handle&&) noexcept = default;
  update_handle& operator=(update_handle&&) noexcept = default;
  ~update_handle() {
    if (state_ && thread_.joinable()) cancel();
  }
  [[nodiscard]] update_progress progress() const { return state_->owner->progress_of(*state_); }
  /// The update ends soon with `errc::cancelled`, unless it has just succeeded.
  void cancel() { state_->owner->cancel(*state_); }
  [[nodiscard]] bool done() const {
    const std::lock_guard lock{state_->mutex};
    return state_->ended;
  }
  /// The result, or the update's error; `timed_out` if it is still running after `timeout`.
  update_report wait(std::chrono::milliseconds timeout = defaults::update_timeout) {
    std::unique_lock lock{state_->mutex};
    if (!state_->changed.wait_for(lock, timeout, [this] { return state_->ended; })) {
      throw state_->owner->failure(errc::timed_out, "the update is still running");
    }
    if (state_->failure) std::rethrow_exception(state_->failure);
    return state_->report;
  }

 private:
  template <typename, typename, typename>
  friend class worker_updates;
  struct shared {
    Worker* owner = nullptr;
    mutable std::mutex mutex;
    std::condition_variable changed;
    bool ended = false;
    std::exception_ptr failure;
    update_report report;
    session_ticket ticket = 0;
    bool cancelled = false;
  };
  explicit update_handle(std::shared_ptr<shared> state) : state_{std::move(state)} {}
  std::shared_ptr<shared> state_;
  std::jthread thread_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
