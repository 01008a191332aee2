#pragma once
/// \file staging.ipp
/// Definitions of staging.hpp.

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "tensorhub/detail/file_seals.hpp"
#include "tensorhub/detail/peer_read.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/transports/same_host/staging.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

TENSORHUB_DECL stage_file::stage_file()
    : file_{::memfd_create("tensorhub-stage", MFD_CLOEXEC | MFD_ALLOW_SEALING)} {
  if (file_ && ::ftruncate(file_.get(), static_cast<off_t>(bytes)) == 0)
    view_ = file_mapping_view{file_.get(), bytes, PROT_READ | PROT_WRITE};
  if (!view_ || ::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    throw error(errc::system_failed,
                std::string{"same_host: no shared memory to stage pieces in: "} + std::strerror(errno));
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
    return detail::none_of(begun_, [](const piece& each) { return each.job.into->is_closed(); });
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
  try {
    if (begun.job.into->is_closed()) {
      begun.status = answer_status::denied;
    } else if (const auto facts = regions_->lend(begun.job.request.key)) {
      begun.is_lent = true;
      begin(begun, facts->range);
    } else {
      begun.status = answer_status::denied;
    }
  } catch (...) {  // no memory, or no lane
    begun.status = answer_status::failed;
  }
}

TENSORHUB_DECL void stage_desk::begin(piece& begun, const memory_range& range) {
  const region_request& wanted = begun.job.request;
  const stage_file& into = *begun.job.into;
  if (wanted.offset > range.bytes || wanted.bytes > range.bytes - wanted.offset) {
    begun.status = answer_status::denied;
  } else if (!needs_device(range)) {
    const detail::peer_read reading;
    std::memcpy(into.slot(wanted.slot), range.data + wanted.offset, wanted.bytes);
    begun.status = answer_status::granted;
  } else {
    into.pin(*range.device);
    auto& lane = lanes_[range.device];
    if (!lane) lane = range.device->open_lane();
    begun.device = range.device;
    begun.ticket = lane->copy(into.slot(wanted.slot), range.data + wanted.offset, wanted.bytes);
  }
}

TENSORHUB_DECL void stage_desk::finish(std::unique_lock<std::mutex>& lock) noexcept {
  piece& first = begun_.front();
  lock.unlock();
  if (first.device != nullptr) {
    const duration left = std::max<duration>(first.until - clock::now(), duration::zero());
    const auto& lane = lanes_[first.device];
    if (first.ticket != 0 && lane->wait(first.ticket, left) == lane_state::done)
      first.status = answer_status::granted;
    else
      fail_lane_of(first);
  }
  if (first.is_lent) regions_->give_back(first.job.request.key.region);
  lock.lock();
  const piece done = std::move(first);
  begun_.erase(begun_.begin());
  lock.unlock();
  settled_.notify_all();
  answer_(done.job, done.status);
  lock.lock();
}

/// Its pieces have failed, with the status that they have.
TENSORHUB_DECL void stage_desk::fail_lane_of(const piece& failed) noexcept {
  device_access* const device = failed.device;
  lanes_.erase(device);  // returns when the lane is idle
  for (piece& each : begun_) {
    if (each.device == device) each.device = nullptr;
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
