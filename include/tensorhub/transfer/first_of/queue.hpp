#pragma once
/// \file queue.hpp
/// The queue of `first_of`: one queue per member that has an endpoint on it.
///
/// The queue of a member is made when the first endpoint needs it. While only one member has reads
/// outstanding, `wait` waits in that member's queue; with several members it takes turns, in slices of a
/// millisecond, and may therefore return although there is nothing to poll.
///
/// Thread safety: one thread at a time; any thread may call `wake`.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transfer/first_of/address.hpp"

namespace tensorhub::inline TENSORHUB_MODE::first_of_detail {

template <typename Owner, transport... Members>
class queue {
  static constexpr std::size_t count = sizeof...(Members);
  using indices = std::make_index_sequence<count>;
  template <std::size_t I>
  using member = std::tuple_element_t<I, std::tuple<Members...>>;

 public:
  queue(queue&&) noexcept = default;
  queue& operator=(queue&&) noexcept = default;

  [[nodiscard]] post_result post_read(typename Owner::endpoint& composed,
                                      const typename Owner::memory_region& into, std::uint64_t offset,
                                      const remote_slice& from, request_id id) noexcept {
    return post_on<0>(composed, into, offset, from, id);
  }

  [[nodiscard]] std::size_t poll(std::span<completion> completions) noexcept {
    std::size_t taken = 0;
    while (taken < completions.size() && !finished_.empty()) {
      completions[taken++] = finished_.back();
      finished_.pop_back();
    }
    each_started([&](auto& part) { taken += part.poll(completions.subspan(taken)); });
    return taken;
  }

  void wait(duration timeout) noexcept {
    if (!finished_.empty() || take_wake()) return;
    std::size_t busy = 0, started = 0;
    each_started([&](auto& part) {
      ++started;
      busy += part.outstanding() > 0 ? 1 : 0;
    });
    if (started == 0) return shared_->sleep(timeout);
    const auto slice = busy > 1 ? std::min<duration>(timeout, std::chrono::milliseconds{1}) : timeout;
    std::size_t at = 0, wanted = turn_++;
    const std::size_t candidates = busy > 0 ? busy : started;
    each_started([&](auto& part) {
      if (busy > 0 && part.outstanding() == 0) return;
      if (at++ == wanted % candidates) part.wait(slice);
    });
    static_cast<void>(take_wake());
  }

  void wake() noexcept {
    shared_->wake_sleeper();
    // If another thread makes a member's queue after this, the next `wait` finds `woken` set.
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((shared_->started[I].load() ? std::get<I>(shared_->parts)->wake() : void()), ...);
    }
    (indices{});
  }

  [[nodiscard]] std::size_t outstanding() const noexcept {
    std::size_t all = finished_.size();
    each_started([&](const auto& part) { all += part.outstanding(); });
    return all;
  }

 private:
  friend Owner;

  [[nodiscard]] bool take_wake() noexcept { return shared_->woken.load() && shared_->woken.exchange(false); }

  /// What `wake` may touch from another thread, at a place that does not move.
  struct shared_state {
    std::tuple<std::optional<typename Members::queue>...> parts;
    std::array<std::atomic<bool>, count> started{};  ///< the part may be used; written by the owning thread
    std::atomic<bool> woken{false};
    std::mutex mutex;
    std::condition_variable changed;

    void wake_sleeper() noexcept {
      {
        const std::lock_guard lock{mutex};
        woken.store(true);
      }
      changed.notify_one();
    }
    /// Sleeps until a wake or the time-out; used while no member has a queue.
    void sleep(duration timeout) noexcept {
      std::unique_lock lock{mutex};
      changed.wait_for(lock, timeout, [this] { return woken.load(); });
      woken.store(false);
    }
  };

  explicit queue(std::size_t depth) : depth_{depth}, shared_{std::make_unique<shared_state>()} {
    finished_.reserve(depth);
  }

  /// The member's own queue, made on first use.
  template <std::size_t I>
  [[nodiscard]] typename member<I>::queue& start(member<I>& owner) {
    auto& part = std::get<I>(shared_->parts);
    if (!part) {
      part.emplace(owner.make_queue(depth_));
      shared_->started[I].store(true);
    }
    return *part;
  }

  template <typename Do>
  void each_started(Do&& act) const noexcept {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((std::get<I>(shared_->parts) ? act(*std::get<I>(shared_->parts)) : void()), ...);
    }
    (indices{});
  }

  template <std::size_t I>
  [[nodiscard]] post_result post_on(typename Owner::endpoint& composed,
                                    const typename Owner::memory_region& into, std::uint64_t offset,
                                    const remote_slice& from, request_id id) noexcept {
    if constexpr (I < count) {
      auto* const endpoint = std::get_if<I + 1>(&composed.part_);
      if (endpoint == nullptr) return post_on<I + 1>(composed, into, offset, from, id);
      const auto& local = std::get<I>(into.parts_);
      if constexpr (count > 1) {
        if (outstanding() >= depth_) return post_result::queue_full;
      }
      if (!local) return finish(id, completion_status::local_error);
      // One region is usually read many times in a row, so its key is parsed once.
      if (!same_description(composed.last_whole_, *from.region)) {
        if (!find_key(*from.region, I, composed.last_part_))
          return finish(id, completion_status::access_denied);
        composed.last_whole_ = *from.region;
      }
      return std::get<I>(shared_->parts)
          ->post_read(*endpoint, *local, offset, {&composed.last_part_, from.offset, from.bytes}, id);
    } else {
      return finish(id, completion_status::peer_lost);  // every endpoint has a member
    }
  }

  [[nodiscard]] post_result finish(request_id id, completion_status status) noexcept {
    if (outstanding() >= depth_) return post_result::queue_full;
    finished_.push_back({id, status});  // never exceeds the reserved capacity
    return post_result::posted;
  }

  std::size_t depth_ = 0;
  std::unique_ptr<shared_state> shared_;
  std::vector<completion> finished_;  ///< reads that ended before they reached a member
  std::size_t turn_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::first_of_detail
