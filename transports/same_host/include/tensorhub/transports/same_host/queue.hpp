#pragma once
/// \file queue.hpp
/// The reading side of the same-host transport: queues, and the endpoints on them.
///
/// A read waits until its region is known, is then cut into pieces, and is copied by whoever polls and by
/// the helpers (copy_pool.hpp). A polling thread copies a few pieces at most before it returns. Reads from or
/// to device memory are the devices' (device_reads.hpp).
///
/// Thread safety: a queue and its endpoints belong to one thread at a time; only `wake` is for any thread.

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/same_host/copy_pool.hpp"
#include "tensorhub/transports/same_host/device_reads.hpp"
#include "tensorhub/transports/same_host/kept_links.hpp"
#include "tensorhub/transports/same_host/link.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

class queue_core;

/// A connection in use by one queue.
class endpoint_core {
 public:
  endpoint_core(queue_core& owner, std::unique_ptr<link> connection, std::shared_ptr<kept_links> kept)
      : owner_{&owner}, link_{std::move(connection)}, kept_{std::move(kept)} {}
  ~endpoint_core();
  endpoint_core(const endpoint_core&) = delete;
  endpoint_core& operator=(const endpoint_core&) = delete;

  [[nodiscard]] incarnation peer() const noexcept { return link_->peer(); }
  [[nodiscard]] bool usable() const noexcept { return usable_; }
  [[nodiscard]] const std::string& why() const noexcept { return link_->why(); }

 private:
  friend class queue_core;
  queue_core* owner_;
  std::unique_ptr<link> link_;
  std::shared_ptr<kept_links> kept_;
  std::size_t waiting_ = 0;  ///< reads whose region is not known yet
  bool usable_ = true;
};

class queue_core {
 public:
  queue_core(std::size_t depth, std::shared_ptr<copy_pool> pool, duration peer_timeout,
             std::uint64_t streaming_from_bytes, std::function<std::vector<device_access*>()> devices)
      : pool_{std::move(pool)},
        peer_timeout_{peer_timeout},
        streaming_from_bytes_{streaming_from_bytes},
        reads_(std::max<std::size_t>(1, depth)),
        work_{reads_.size()},
        devices_{*pool_, work_, reads_.size(), std::move(devices)} {
    free_.reserve(reads_.size());
    for (read_record& each : reads_) free_.push_back(&each);
    pool_->attach(work_);
  }
  ~queue_core() { pool_->detach(work_); }
  queue_core(const queue_core&) = delete;
  queue_core& operator=(const queue_core&) = delete;

  [[nodiscard]] std::size_t outstanding() const noexcept { return reads_.size() - free_.size(); }

  /// `wait` must not allocate.
  void attach(endpoint_core& endpoint) {
    waits_.reserve(endpoints_.size() + 2);
    endpoints_.push_back(&endpoint);
  }
  void detach(endpoint_core& endpoint) noexcept {
    devices_.settle(endpoint);
    pool_->end_all(work_, reads_, endpoint, completion_status::cancelled, true);
    for (read_record& each : reads_) {
      if (each.endpoint == &endpoint) each.endpoint = nullptr;
    }
    std::erase(endpoints_, &endpoint);
  }

  /// `device` is the target's; null: it is host memory.
  [[nodiscard]] post_result post(endpoint_core& endpoint, request_id id, std::byte* target,
                                 device_access* device, std::uint64_t offset, std::uint64_t bytes,
                                 const region_key& key) noexcept {
    if (free_.empty()) return post_result::queue_full;
    read_record& read = take_free(id);
    read.endpoint = &endpoint;
    read.through = endpoint.link_.get();
    read.target = target;
    read.device = device;
    read.offset = offset;
    read.bytes = bytes;
    read.streaming = bytes >= streaming_from_bytes_;
    if (!endpoint.usable_) {
      pool_->finish(work_, read, completion_status::peer_lost);
      return post_result::posted;
    }
    try {
      read.region = endpoint.link_->region(key);
    } catch (...) {
      pool_->finish(work_, read, completion_status::local_error);
      return post_result::posted;
    }
    read.state = read_state::waiting;
    if (read.region->state == region_state::asked) {
      read.is_waiting = true;
      ++endpoint.waiting_;
      endpoint.link_->ask();
    } else {
      start(read);
    }
    return post_result::posted;
  }

  /// A read that ends before it began.
  [[nodiscard]] post_result post_finished(request_id id, completion_status status) noexcept {
    if (free_.empty()) return post_result::queue_full;
    pool_->finish(work_, take_free(id), status);
    return post_result::posted;
  }

  [[nodiscard]] std::size_t poll(std::span<completion> completions) noexcept {
    if (completions.empty()) return 0;
    if (!devices_.empty() || !pool_->has_finished(work_)) work();
    std::size_t count = 0;
    while (count < completions.size()) {
      read_record* const read = pool_->take_finished(work_);
      if (read == nullptr) break;
      if (read->endpoint != nullptr && breaks(read->status)) give_up(*read->endpoint, read->status);
      completions[count++] = {read->id, read->status};
      *read = {};
      free_.push_back(read);  // reserved
    }
    return count;
  }

  void wait(duration timeout) noexcept {
    if (devices_.can_work() || !pool_->begin_sleep(work_)) return;
    waits_.clear();
    waits_.push_back({work_.event.get(), POLLIN, 0});
    duration longest = std::clamp<duration>(timeout, duration::zero(), std::chrono::hours{1});
    const auto now = clock::now();
    for (const endpoint_core* each : endpoints_) {
      if (!waits_for_answers(*each)) continue;
      waits_.push_back({each->link_->socket(), POLLIN, 0});
      longest = std::min<duration>(longest, each->link_->last_answer() + peer_timeout_ - now);
    }
    longest = std::max(longest, duration::zero());
    if (devices_.is_flying()) {
      // A lane can be waited for, or descriptors, but not both: by turns.
      const auto until = now + longest;
      for (duration left = longest; left > duration::zero() && !look_at_descriptors(duration::zero());
           left = until - clock::now()) {
        if (devices_.wait_a_little(std::min<duration>(left, turn))) break;
      }
    } else {
      static_cast<void>(look_at_descriptors(longest));
    }
    pool_->end_sleep(work_);
    if ((waits_.front().revents & POLLIN) != 0) {
      std::uint64_t signals = 0;
      [[maybe_unused]] const auto taken = ::read(work_.event.get(), &signals, sizeof signals);
    }
  }

  void wake() noexcept { work_.wake(); }

 private:
  static constexpr int pieces_of_a_poll = 4;  ///< a millisecond or so
  static constexpr std::chrono::microseconds turn{200};

  [[nodiscard]] static bool waits_for_answers(const endpoint_core& endpoint) noexcept {
    return endpoint.usable_ && (endpoint.waiting_ > 0 || endpoint.link_->staging() > 0);
  }
  /// True: one of `waits_` has something.
  [[nodiscard]] bool look_at_descriptors(duration longest) noexcept {
    const timespec limit{static_cast<time_t>(longest.count() / 1'000'000'000),
                         static_cast<long>(longest.count() % 1'000'000'000)};
    return ::ppoll(waits_.data(), waits_.size(), &limit, nullptr) > 0;
  }

  [[nodiscard]] static bool breaks(completion_status status) noexcept {
    return status == completion_status::peer_lost || status == completion_status::cut_off;
  }

  [[nodiscard]] read_record& take_free(request_id id) noexcept {
    read_record& read = *free_.back();
    free_.pop_back();
    read.id = id;
    return read;
  }

  /// The read's region is known now.
  void start(read_record& read) noexcept {
    const region_view& region = *read.region;
    const bool denied = region.state == region_state::denied || read.offset > region.bytes ||
                        read.bytes > region.bytes - read.offset;
    if (denied) {
      pool_->finish(work_, read, completion_status::access_denied);
    } else if (device_reads::has_a_part_in(read)) {
      devices_.start(read);
    } else {
      pool_->add(work_, read);
    }
  }

  void work() noexcept {
    for (endpoint_core* each : endpoints_) {
      if (waits_for_answers(*each)) look_for_answers(*each);
    }
    if (!devices_.empty()) devices_.work();
    for (int i = 0; i < pieces_of_a_poll && !pool_->has_finished(work_); ++i) {
      if (!pool_->copy_one(work_)) break;
    }
  }

  void look_for_answers(endpoint_core& endpoint) noexcept {
    link& through = *endpoint.link_;
    const answer_outcome outcome = through.take_answers();
    if (outcome == answer_outcome::lost) {
      return give_up(endpoint, through.state() == completion_status::cut_off ? completion_status::cut_off
                                                                             : completion_status::peer_lost);
    }
    if (outcome == answer_outcome::none) {
      if (clock::now() - through.last_answer() > peer_timeout_)
        give_up(endpoint, completion_status::peer_lost);
      return;
    }
    for (read_record& each : reads_) {
      if (!each.is_waiting || each.endpoint != &endpoint || each.region->state == region_state::asked)
        continue;
      each.is_waiting = false;
      --endpoint.waiting_;
      start(each);
    }
  }

  void give_up(endpoint_core& endpoint, completion_status why) noexcept {
    if (!endpoint.usable_) return;
    endpoint.usable_ = false;
    endpoint.waiting_ = 0;
    pool_->end_all(work_, reads_, endpoint, why, false);
    devices_.give_up(endpoint, why);
  }

  std::shared_ptr<copy_pool> pool_;
  duration peer_timeout_;
  std::uint64_t streaming_from_bytes_;
  std::vector<read_record> reads_;
  std::vector<read_record*> free_;
  work_queue work_;
  device_reads devices_;
  std::vector<endpoint_core*> endpoints_;
  std::vector<pollfd> waits_;
};

inline endpoint_core::~endpoint_core() {
  owner_->detach(*this);
  if (usable_) kept_->put(std::move(link_));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
