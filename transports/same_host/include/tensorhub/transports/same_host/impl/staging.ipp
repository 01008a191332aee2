#pragma once
/// \file staging.ipp
/// Definitions of staging.hpp.

#include <cerrno>
#include <cstring>
#include <string>

#include "tensorhub/detail/file_seals.hpp"
#include "tensorhub/detail/peer_read.hpp"
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
  settled_.wait_for(lock, limits_.whole(),
                    [this] { return copying_into_ == nullptr || !copying_into_->is_closed(); });
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
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    const stage_job job = std::move(jobs_.front());
    jobs_.pop_front();
    copying_into_ = job.into.get();
    lock.unlock();
    const answer_status status = job.into->is_closed() ? answer_status::denied : copy(job);
    lock.lock();
    copying_into_ = nullptr;
    lock.unlock();
    settled_.notify_all();
    answer_(job, status);
    lock.lock();
  }
}

TENSORHUB_DECL answer_status stage_desk::copy(const stage_job& job) noexcept {
  try {
    const auto facts = regions_->lend(job.request.key);
    if (!facts) return answer_status::denied;
    const answer_status status = copy(job, facts->range);
    regions_->give_back(job.request.key.region);
    return status;
  } catch (...) {  // no memory
    return answer_status::failed;
  }
}

TENSORHUB_DECL answer_status stage_desk::copy(const stage_job& job, const memory_range& range) noexcept {
  const region_request& wanted = job.request;
  if (wanted.offset > range.bytes || wanted.bytes > range.bytes - wanted.offset) return answer_status::denied;
  if (!needs_device(range)) {
    const detail::peer_read reading;
    std::memcpy(job.into->slot(wanted.slot), range.data + wanted.offset, wanted.bytes);
    return answer_status::granted;
  }
  try {
    auto& lane = lanes_[range.device];
    if (!lane) lane = range.device->open_lane();
    const lane_ticket ticket =
        lane->copy(job.into->slot(wanted.slot), range.data + wanted.offset, wanted.bytes);
    if (ticket != 0 && lane->wait(ticket, limits_.copy) == lane_state::done) return answer_status::granted;
    lane.reset();  // returns when the lane is idle
  } catch (...) {  // no lane
  }
  return answer_status::failed;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
