#pragma once
/// \file staging.ipp
/// Definitions of staging.hpp.

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "tensorhub/detail/file_limit.hpp"
#include "tensorhub/detail/file_seals.hpp"
#include "tensorhub/detail/peer_read.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/transports/same_host/staging.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

TENSORHUB_DECL stage_file::stage_file()
    : file_{::memfd_create("tensorhub-stage", MFD_CLOEXEC | MFD_ALLOW_SEALING)} {
  if (file_ && detail::set_file_bytes(file_.get(), bytes))
    view_ = file_mapping_view{file_.get(), bytes, PROT_READ | PROT_WRITE};
  if (!view_ || ::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    throw error(errc::system_failed,
                "same_host: no shared memory to stage pieces in: " + detail::file_trouble(errno));
  static_cast<void>(
      ::fcntl(file_.get(), F_ADD_SEALS, detail::seal_future_write));  // older kernels do not know this seal
}

TENSORHUB_DECL void stage_desk::add(stage_job job) {
  const std::lock_guard lock{mutex_};
  if (stopping_) return;
  jobs_.push_back(std::move(job));
  if (!thread_.joinable()) thread_ = std::jthread{[this] { run(); }};
  changed_.notify_one();
}

TENSORHUB_DECL void stage_desk::settle() noexcept {
  std::unique_lock lock{mutex_};
  settled_.wait_for(lock, limits_.whole(), [this] {
    return detail::none_of(begun_,
                           [](const piece& each) { return !each.is_over && each.job.into->is_closed(); });
  });
}

TENSORHUB_DECL void stage_desk::stop() noexcept {
  {
    const std::lock_guard lock{mutex_};
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

TENSORHUB_DECL void stage_desk::run() noexcept {
  std::unique_lock lock{mutex_};
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty() || !begun_.empty(); });
    if (stopping_) jobs_.clear();
    if (stopping_ && begun_.empty()) return;
    if (jobs_.empty() || begun_.size() == pieces_at_once) {
      finish(lock);
      continue;
    }
    piece& next = begun_.emplace_back();
    next.job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    begin(next);
    lock.lock();
  }
}

TENSORHUB_DECL void stage_desk::begin(piece& begun) noexcept {
  begun.until = clock::now() + limits_.copy;
  answer_status refusal = answer_status::denied;
  try {
    const auto facts = begun.job.into->is_closed() ? std::nullopt : regions_->lend(begun.job.request.key);
    begun.is_lent = facts.has_value();
    if (facts) return begin(begun, facts->range);
  } catch (...) {  // no memory, or no lane
    refusal = answer_status::failed;
  }
  end(begun, refusal);
}

TENSORHUB_DECL void stage_desk::begin(piece& begun, const memory_range& range) {
  const region_request& wanted = begun.job.request;
  if (!detail::lies_within(range.bytes, wanted.offset, wanted.bytes))
    return end(begun, answer_status::denied);
  if (needs_device(range)) return begin_on_device(begun, range);
  const detail::peer_read reading;
  std::memcpy(begun.job.into->slot(wanted.slot), range.data + wanted.offset, wanted.bytes);
  end(begun, answer_status::granted);
}

TENSORHUB_DECL void stage_desk::begin_on_device(piece& begun, const memory_range& range) {
  const region_request& wanted = begun.job.request;
  const stage_file& into = *begun.job.into;
  if (wanted.bytes >= worth_pinning_bytes) into.pin(*range.device);
  auto& lane = lanes_[range.device];
  if (!lane) lane = range.device->open_lane();
  // The loan has an end, and the driver may have been slow.
  if (clock::now() > begun.until) return end(begun, answer_status::failed);
  begun.ticket = lane->copy(into.slot(wanted.slot), range.data + wanted.offset, wanted.bytes);
  begun.lane = lane;
  if (begun.ticket == 0) lanes_.erase(range.device);  // it takes no more; what it has goes on
}

TENSORHUB_DECL bool stage_desk::look_at(piece& begun) noexcept {
  if (begun.lane == nullptr) return true;
  if (begun.ticket == 0) {
    // Nobody knows whether the device has begun it: it is over when the lane is.
    const bool is_alone = detail::none_of(
        begun_, [&](const piece& each) { return &each != &begun && each.lane == begun.lane; });
    if (is_alone) end_lane(begun.lane);
    return is_alone;
  }
  const lane_state state = begun.lane->state(begun.ticket);
  if (state == lane_state::pending && clock::now() < begun.until) return false;
  state == lane_state::done ? end(begun, answer_status::granted) : end_lane(begun.lane);
  return true;
}

TENSORHUB_DECL void stage_desk::end_lane(std::shared_ptr<device_lane> lane) noexcept {
  std::erase_if(lanes_, [&](const auto& each) { return each.second == lane; });
  std::array<bool, pieces_at_once> is_of_lane{};
  for (std::size_t i = 0; i < begun_.size(); ++i) {
    is_of_lane[i] = begun_[i].lane == lane;
    if (is_of_lane[i]) begun_[i].lane.reset();
  }
  lane.reset();  // returns when it is idle
  for (std::size_t i = 0; i < begun_.size(); ++i) {
    if (is_of_lane[i]) end(begun_[i], answer_status::failed);
  }
}

TENSORHUB_DECL void stage_desk::finish(std::unique_lock<std::mutex>& lock) noexcept {
  lock.unlock();
  const auto over = detail::find_if(begun_, [this](piece& each) { return look_at(each); });
  if (over == begun_.end()) {
    const auto pending = detail::find_if(begun_, [](const piece& each) { return each.ticket != 0; });
    static_cast<void>(pending->lane->wait(pending->ticket, std::chrono::milliseconds{1}));
    return lock.lock();
  }
  answer_(over->job, over->status);
  {
    const stage_job gone = std::move(over->job);  // its file may end with it: not under the mutex
    lock.lock();
    begun_.erase(over);
    lock.unlock();
  }
  lock.lock();
}

TENSORHUB_DECL void stage_desk::end(piece& begun, answer_status status) noexcept {
  begun.status = status;
  begun.lane.reset();
  if (std::exchange(begun.is_lent, false)) regions_->give_back(begun.job.request.key.region);
  {
    const std::lock_guard lock{mutex_};
    begun.is_over = true;
  }
  settled_.notify_all();
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
