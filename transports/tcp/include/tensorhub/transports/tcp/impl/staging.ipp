#pragma once
/// \file staging.ipp
/// Definitions of staging.hpp.

#include <algorithm>
#include <utility>

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/transports/tcp/staging.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

TENSORHUB_DECL std::byte* staging_ring::reserve(std::uint64_t bytes) noexcept {
  if (count_ == most_pieces) return nullptr;
  const std::uint64_t oldest = count_ == 0 ? 0 : begin_of(pieces_[first_]);
  if (count_ == 0) head_ = 0;
  if (count_ == 0 || head_ > oldest) {
    if (bytes > ring_bytes - head_) {
      if (bytes > oldest) return nullptr;
      head_ = 0;
    }
  } else if (bytes > oldest - head_) {
    return nullptr;
  }
  return memory_.data() + head_;
}

TENSORHUB_DECL void staging_ring::drop_oldest() noexcept {
  first_ = (first_ + 1) % most_pieces;
  --count_;
}

TENSORHUB_DECL bool staging_ring::drop_copied() noexcept {
  while (count_ > 0) {
    const lane_state state = lane_->state(oldest().copy);
    if (state == lane_state::failed) return false;
    if (state == lane_state::pending) break;
    drop_oldest();
  }
  return true;
}

TENSORHUB_DECL bool staging_ring::settle() noexcept {
  lane_state state = newest_ == 0 ? lane_state::done : lane_state::pending;
  if (state == lane_state::pending) state = lane_->wait(newest_, is_stuck_ ? duration::zero() : patience_);
  is_stuck_ = state == lane_state::pending;
  first_ = 0;
  count_ = 0;
  return state == lane_state::done && !failed_;
}

TENSORHUB_DECL bool staging_ring::push(std::uint64_t bytes, lane_ticket copy) noexcept {
  if (copy == 0) {
    failed_ = true;
    return false;
  }
  pieces_[(first_ + count_) % most_pieces] = {memory_.data() + head_, bytes, copy};
  ++count_;
  newest_ = copy;
  head_ += (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
  return true;
}

TENSORHUB_DECL staging_pool::lent_ring staging_pool::lend(device_access& device) {
  std::unique_ptr<staging_ring> ring = take(device);
  if (!ring) ring = std::make_unique<staging_ring>(device);
  return lent_ring{ring.release(), give_back{shared_from_this()}};
}

TENSORHUB_DECL std::unique_ptr<staging_ring> staging_pool::take(device_access& device) noexcept {
  const std::lock_guard lock{mutex_};
  const auto found = detail::find_if(idle_, [&](const auto& each) { return each->device() == &device; });
  if (found == idle_.end()) return nullptr;
  std::unique_ptr<staging_ring> ring = std::move(*found);
  idle_.erase(found);
  return ring;
}

TENSORHUB_DECL void staging_pool::keep(std::unique_ptr<staging_ring> ring) noexcept {
  if (!ring->settle()) {
    if (ring->is_stuck()) static_cast<void>(ring.release());  // the device may still write to its memory
    return;
  }
  const std::lock_guard lock{mutex_};
  if (idle_.size() < most_idle) idle_.push_back(std::move(ring));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail
