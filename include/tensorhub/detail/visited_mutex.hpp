#pragma once
/// \file visited_mutex.hpp
/// The mutex of a thread that works in many short steps, and locks it for each. A mutex alone is unfair: a
/// busy thread would have it again before a thread that waits for it wakes up. Other threads therefore visit:
/// they announce themselves first, and the busy thread begins no step meanwhile.
///
/// Thread safety: `lock` and `unlock` are the thread's, through std::lock_guard; any other thread may visit.
/// Errors: those of std::mutex.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

class visited_mutex {
 public:
  void lock() {
    for (auto visitors = visitors_.load(); visitors != 0; visitors = visitors_.load())
      visitors_.wait(visitors);
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }

  /// Calls `work()` between two steps of the thread. Pre-condition: the calling thread does not hold it.
  template <typename Work>
  void visit(Work&& work) {
    const visitor announced{visitors_};
    const std::lock_guard lock{mutex_};
    std::forward<Work>(work)();
  }

 private:
  class visitor {
   public:
    explicit visitor(std::atomic<std::uint32_t>& all) noexcept : all_{&all} { all_->fetch_add(1); }
    ~visitor() {
      all_->fetch_sub(1);
      all_->notify_all();
    }
    visitor(const visitor&) = delete;
    visitor& operator=(const visitor&) = delete;

   private:
    std::atomic<std::uint32_t>* all_;
  };

  std::mutex mutex_;
  std::atomic<std::uint32_t> visitors_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
