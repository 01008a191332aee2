#pragma once
/// \file update_handle.hpp
/// An update that runs in a thread of its own: watch it, wait for it, cancel it.
///
/// Thread safety: every member but the destructor and the moves may be called from any thread.
///
/// Errors: `wait` throws the update's error; the others throw nothing, but `descriptor` and `tensors`.

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/options.hpp"
#include "tensorhub/worker/arriving_tensors.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct update_state;

/// Made by `update_async` (worker.hpp) and its like, whose worker must outlive the update. The destruction
/// of the handle cancels the update and waits until it has ended. After that the handle needs its worker for
/// `progress` and `tensors` only. Pre-condition of all but assignment and destruction: it was not moved from.
class update_handle {
 public:
  update_handle(update_handle&&) noexcept = default;
  /// Ends the update that this was the handle of, as the destructor does.
  TENSORHUB_DECL update_handle& operator=(update_handle&& other) noexcept;
  TENSORHUB_DECL ~update_handle();
  [[nodiscard]] TENSORHUB_DECL update_progress progress() const;
  /// The update ends soon with `errc::cancelled`, unless it has just succeeded.
  TENSORHUB_DECL void cancel();
  [[nodiscard]] TENSORHUB_DECL bool done() const;
  /// For event loops: it is readable once the update has ended, and stays this handle's. The first call makes
  /// it, and throws `system_failed` if the process has no free descriptor.
  [[nodiscard]] TENSORHUB_DECL int descriptor() const;
  /// The result, or the update's error; `timed_out` if it is still running after `timeout`.
  TENSORHUB_DECL update_report wait(std::chrono::milliseconds timeout = defaults::update_timeout);
  /// The tensors as they arrive (arriving_tensors.hpp), in the order of these names; empty: all, in the order
  /// of `add`. Throws `invalid_argument` for a name that was not added.
  [[nodiscard]] TENSORHUB_DECL arriving_tensors tensors(std::span<const std::string> names = {}) const;

 private:
  friend class worker_updates;
  /// Cancels the update, and waits until it has ended.
  TENSORHUB_DECL void end() noexcept;
  explicit update_handle(std::shared_ptr<update_state> state) : state_{std::move(state)} {}
  std::shared_ptr<update_state> state_;
  std::jthread thread_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/worker/worker.hpp"  // whose implementation has the members above
#endif
