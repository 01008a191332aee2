#pragma once
/// \file cut_off_orders.hpp
/// A worker's orders to cut off readers, which a thread of its own carries out.
///
/// A transport may need more than a minute for one: until a device's copies for that reader have ended, or
/// until large memory is registered again. The control thread would send no heartbeats of any worker of the
/// process meanwhile.
///
/// Thread safety: all members may be called from any thread.

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class cut_off_orders {
 public:
  /// An order for every reader: their keys are revoked.
  static constexpr incarnation everybody{};

  /// `carry_out` runs in the thread, for one order at a time, and calls `ended` when it has told the session.
  TENSORHUB_DECL explicit cut_off_orders(std::function<void(incarnation)> carry_out);
  TENSORHUB_DECL ~cut_off_orders();
  cut_off_orders(const cut_off_orders&) = delete;
  cut_off_orders& operator=(const cut_off_orders&) = delete;

  /// An order that is given again before it has ended changes nothing. False: the caller must carry it out,
  /// because `close` was called, or because the system has no thread or no memory for it.
  [[nodiscard]] TENSORHUB_DECL bool give(incarnation reader) noexcept;
  TENSORHUB_DECL void ended(incarnation reader) noexcept;

  /// An order for everybody was given, and has not ended.
  [[nodiscard]] bool revokes() const noexcept { return revokes_; }
  /// No deadline: the memory cannot be given back earlier.
  void await_revocation() const noexcept { revokes_.wait(true); }

  /// Takes no further order, and returns when those that were given have ended.
  TENSORHUB_DECL void close() noexcept;

 private:
  TENSORHUB_DECL void run();

  const std::function<void(incarnation)> carry_out_;
  std::atomic<bool> revokes_ = false;
  std::mutex mutex_;
  std::vector<incarnation> orders_;  ///< not ended; guarded by mutex_, as all below
  bool is_running_ = false;          ///< the thread will look at `orders_` again
  bool closed_ = false;
  std::jthread thread_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/worker/impl/cut_off_orders.ipp"
#endif
