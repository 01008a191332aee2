#pragma once
/// \file queue.ipp
/// Definitions of queue.hpp.

#include <algorithm>

#include "tensorhub/transports/same_host/queue.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

TENSORHUB_DECL queue_core::queue_core(std::size_t depth, std::shared_ptr<copy_pool> pool,
                                      duration peer_timeout, std::uint64_t streaming_from_bytes,
                                      std::function<std::vector<device_access*>()> devices)
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

TENSORHUB_DECL void queue_core::attach(endpoint_core& endpoint) {
  waits_.reserve(endpoints_.size() + 2);
  endpoints_.push_back(&endpoint);
}

TENSORHUB_DECL void queue_core::detach(endpoint_core& endpoint) noexcept {
  devices_.settle(endpoint);
  pool_->end_all(work_, reads_, endpoint, completion_status::cancelled, true);
  for (read_record& each : reads_) {
    if (each.endpoint == &endpoint) each.endpoint = nullptr;
  }
  std::erase(endpoints_, &endpoint);
}

TENSORHUB_DECL post_result queue_core::post(endpoint_core& endpoint, request_id id, std::byte* target,
                                            device_access* device, std::uint64_t offset, std::uint64_t bytes,
                                            const region_key& key) noexcept {
  if (free_.empty()) return post_result::queue_full;
  read_record& read = take_free(id);
  read.endpoint = &endpoint;
  read.connection = endpoint.link_.get();
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

TENSORHUB_DECL post_result queue_core::post_finished(request_id id, completion_status status) noexcept {
  if (free_.empty()) return post_result::queue_full;
  pool_->finish(work_, take_free(id), status);
  return post_result::posted;
}

TENSORHUB_DECL std::size_t queue_core::poll(std::span<completion> completions) noexcept {
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

TENSORHUB_DECL void queue_core::wait(duration timeout) noexcept {
  if (devices_.can_work() || !pool_->begin_sleep(work_)) return;
  waits_.clear();
  waits_.push_back({work_.event.descriptor(), POLLIN, 0});
  duration longest = std::clamp<duration>(timeout, duration::zero(), std::chrono::hours{1});
  const auto now = clock::now();
  for (const endpoint_core* each : endpoints_) {
    if (!waits_for_answers(*each)) continue;
    waits_.push_back({each->link_->socket(), POLLIN, 0});
    longest = std::min<duration>(longest, each->link_->last_answer() + peer_timeout_ - now);
  }
  longest = std::max(longest, duration::zero());
  if (devices_.is_flying()) {
    // The thread can wait for a lane or for descriptors, but not for both: it alternates.
    const auto until = now + longest;
    for (duration left = longest; left > duration::zero() && !look_at_descriptors(duration::zero());
         left = until - clock::now()) {
      if (devices_.wait_a_little(std::min<duration>(left, turn))) break;
    }
  } else {
    static_cast<void>(look_at_descriptors(longest));
  }
  pool_->end_sleep(work_);
  if ((waits_.front().revents & POLLIN) != 0) work_.event.lower();
}

TENSORHUB_DECL bool queue_core::waits_for_answers(const endpoint_core& endpoint) noexcept {
  return endpoint.usable_ && (endpoint.waiting_ > 0 || endpoint.link_->staging() > 0);
}

TENSORHUB_DECL bool queue_core::look_at_descriptors(duration longest) noexcept {
  return detail::wait_for_descriptors(waits_, longest) > 0;
}

TENSORHUB_DECL bool queue_core::breaks(completion_status status) noexcept {
  return status == completion_status::peer_lost || status == completion_status::cut_off;
}

TENSORHUB_DECL read_record& queue_core::take_free(request_id id) noexcept {
  read_record& read = *free_.back();
  free_.pop_back();
  read.id = id;
  return read;
}

TENSORHUB_DECL void queue_core::start(read_record& read) noexcept {
  const region_view& region = *read.region;
  const bool denied =
      region.state == region_state::denied || !detail::lies_within(region.bytes, read.offset, read.bytes);
  if (denied) {
    pool_->finish(work_, read, completion_status::access_denied);
  } else if (device_reads::has_a_part_in(read)) {
    devices_.start(read);
  } else {
    pool_->add(work_, read);
  }
}

TENSORHUB_DECL void queue_core::work() noexcept {
  for (endpoint_core* each : endpoints_) {
    if (waits_for_answers(*each)) look_for_answers(*each);
  }
  if (!devices_.empty()) devices_.work();
  for (int i = 0; i < pieces_of_a_poll && !pool_->has_finished(work_); ++i) {
    if (!pool_->copy_one(work_)) break;
  }
}

TENSORHUB_DECL void queue_core::look_for_answers(endpoint_core& endpoint) noexcept {
  link& connection = *endpoint.link_;
  const answer_outcome outcome = connection.take_answers();
  if (outcome == answer_outcome::lost) {
    return give_up(endpoint, connection.state() == completion_status::cut_off ? completion_status::cut_off
                                                                              : completion_status::peer_lost);
  }
  if (outcome == answer_outcome::none) {
    if (clock::now() - connection.last_answer() > peer_timeout_)
      give_up(endpoint, completion_status::peer_lost);
    return;
  }
  for (read_record& each : reads_) {
    if (!each.is_waiting || each.endpoint != &endpoint || each.region->state == region_state::asked) continue;
    each.is_waiting = false;
    --endpoint.waiting_;
    start(each);
  }
}

TENSORHUB_DECL void queue_core::give_up(endpoint_core& endpoint, completion_status why) noexcept {
  if (!endpoint.usable_) return;
  endpoint.usable_ = false;
  endpoint.waiting_ = 0;
  pool_->end_all(work_, reads_, endpoint, why, false);
  devices_.give_up(endpoint, why);
}

TENSORHUB_DECL endpoint_core::~endpoint_core() {
  owner_->detach(*this);
  if (usable_) kept_->put(std::move(link_));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
