#pragma once
/// \file lane.hpp
/// A lane of a CUDA device: a stream with an event after every piece of work.
///
/// Copies use cuMemcpyAsync, which moves bytes between any two kinds of memory, except between two devices if
/// one end was not made by cuMemAlloc: without peer access only cuMemcpyPeerAsync can do that. Batches of
/// short runs and digests are kernels (kernels/kernels.cu): the lane writes their jobs to a pinned ring, the
/// stream copies the jobs to the device if they are many, and one block of threads reads each job. Digests
/// come back into the pinned ring; the lane delivers them when it has seen the event of their piece. No call
/// waits for the whole device.
///
/// Plain host memory works, but the driver then copies through pinned memory of its own, and the call may
/// wait for the lane's earlier work. Staging rings are therefore pinned.
///
/// The driver is asked about every address before it is used: a kernel or a copy with a freed address would
/// destroy the device's whole context, for the user too. A wrong address fails the lane instead, and
/// `trouble` names the address.
///
/// Thread safety: one thread at a time, as device_access.hpp says.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/cpu_access.hpp"
#include "tensorhub/memory/cuda/context.hpp"
#include "tensorhub/memory/cuda/functions.hpp"
#include "tensorhub/memory/cuda/jobs.hpp"
#include "tensorhub/memory/cuda/ring.hpp"
#include "tensorhub/types/device_access.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// The two halves of a lane's ring, with the same bytes on host and device. The device owns it and lends it
/// to lanes, because freeing it would wait for the device.
struct cuda_ring {
  std::byte* pinned = nullptr;
  CUdeviceptr on_device = 0;
};

struct cuda_kernels {
  CUfunction copy = nullptr;
  CUfunction digest = nullptr;
  CUfunction keyed_digest = nullptr;
};

/// `Device` is cuda_device<Driver> (device.hpp).
template <typename Device>
class cuda_lane final : public device_lane {
 public:
  static constexpr std::uint64_t ring_bytes = 1u << 20;
  static constexpr std::size_t jobs_per_launch = 4096;
  /// Few jobs are read by the kernel from the pinned half of the ring, which is sooner than a copy of them.
  static constexpr std::size_t jobs_read_from_host = 128;
  /// Longer runs of a batch are cut, so that no block of threads works much longer than the others.
  static constexpr std::uint64_t job_bytes = 256u << 10;
  /// Runs of at least this size use cuMemcpyAsync, which is as fast and needs no multiprocessor if a copy
  /// engine can do it. If one end lies in host memory, that is worth it for shorter runs too.
  static constexpr std::uint64_t long_run_bytes = 8u << 20;
  static constexpr std::uint64_t long_host_run_bytes = 64u << 10;

  /// The device has its context and kernels already. Throws `system_failed`.
  explicit cuda_lane(Device& device)
      : device_{&device}, cuda_{&device.functions()}, ring_{device.take_ring()} {
    const cuda_scope scope{*cuda_, device.context()};
    int least = 0;
    int greatest = 0;
    CUresult result = scope.result();
    if (result == CUDA_SUCCESS) result = cuda_->context_get_priorities(&least, &greatest);
    // Lanes have short pieces that a caller waits for: they run before the blocks of a long kernel that have
    // not begun.
    if (result == CUDA_SUCCESS) result = cuda_->stream_create(&stream_, CU_STREAM_NON_BLOCKING, greatest);
    if (result != CUDA_SUCCESS) {
      device.give_ring(ring_);
      cuda_check(*cuda_, result, "cuStreamCreateWithPriority", device.description() + " gives no stream");
    }
  }

  /// Waits for the queued work. If the device does not finish it within `patience`, stream and ring are
  /// abandoned: memory to which the device may still write is not used again.
  ~cuda_lane() override {
    const cuda_scope scope{*cuda_, device_->context()};
    for (piece& each : pieces_) each.out = nullptr;  // no caller waits for these digests any more
    if (!drain()) return;
    for (const piece& each : pieces_) free_events_.push_back(each.event);
    for (const CUevent event : free_events_) static_cast<void>(cuda_->event_destroy(event));
    static_cast<void>(cuda_->stream_destroy(stream_));
    device_->give_ring(ring_);
  }

  [[nodiscard]] lane_ticket copy(void* to, const void* from, std::uint64_t bytes) noexcept override {
    return queue([&] {
      if (bytes == 0) return true;
      const known_range* const target = knows(to, bytes);
      const known_range* const source = target != nullptr ? knows(from, bytes) : nullptr;
      return source != nullptr &&
             copy_run_now({static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes}, *target,
                          *source);
    });
  }

  [[nodiscard]] lane_ticket copy_all(std::span<const copy_run> runs) noexcept override {
    return queue([&] {
      std::vector<cuda_jobs::copy_job> jobs;
      for (std::size_t next = 0; next < runs.size();) {
        const known_range* to = nullptr;
        const known_range* from = nullptr;
        const copy_run run = joined(runs, next, to, from);
        if (failed_) return false;
        if (run.bytes == 0) continue;
        const bool all_on_device = to->on_device && from->on_device;
        if (!to->kernels || !from->kernels ||
            run.bytes >= (all_on_device ? long_run_bytes : long_host_run_bytes)) {
          if (!copy_run_now(run, *to, *from)) return false;
          continue;
        }
        for (std::uint64_t at = 0; at < run.bytes; at += job_bytes) {
          jobs.push_back(
              {cuda_address(run.to) + at, cuda_address(run.from) + at, std::min(job_bytes, run.bytes - at)});
        }
      }
      for (std::size_t at = 0; at < jobs.size(); at += jobs_per_launch) {
        const std::size_t count = std::min(jobs_per_launch, jobs.size() - at);
        if (!launch(device_->kernels().copy, std::span{jobs}.subspan(at, count), nullptr,
                    at + count == jobs.size()))
          return false;
      }
      return true;
    });
  }

  [[nodiscard]] lane_ticket digest(std::span<const digest_job> jobs, digest128* out) noexcept override {
    return queue_digests(device_->kernels().digest, jobs, out, [](const digest_job& job) {
      return cuda_jobs::digest_job{cuda_address(job.data), job.bytes, job.seed};
    });
  }
  [[nodiscard]] lane_ticket keyed_digest(std::span<const keyed_digest_job> jobs,
                                         digest128* out) noexcept override {
    return queue_digests(device_->kernels().keyed_digest, jobs, out, [](const keyed_digest_job& job) {
      cuda_jobs::keyed_digest_job made{cuda_address(job.data), job.bytes, {}};
      static_assert(sizeof made.key == sizeof job.key);
      std::memcpy(made.key, job.key.data(), sizeof made.key);
      return made;
    });
  }

  [[nodiscard]] lane_state state(lane_ticket ticket) noexcept override {
    if (ticket > done_ && !lost_) {
      const cuda_scope scope{*cuda_, device_->context()};
      advance();
    }
    return state_of(ticket);
  }

  [[nodiscard]] lane_state wait(lane_ticket ticket, duration timeout) noexcept override {
    if (state_of(ticket) != lane_state::pending) return state_of(ticket);
    const cuda_scope scope{*cuda_, device_->context()};
    wait_until([&] { return state_of(ticket) != lane_state::pending; }, timeout);
    return state_of(ticket);
  }

  [[nodiscard]] std::string trouble() const override { return trouble_; }

  /// Zeroes device memory, for allocations.
  [[nodiscard]] lane_ticket clear(CUdeviceptr data, std::uint64_t bytes) noexcept {
    return queue([&] {
      const CUresult result = cuda_->memory_fill_async(data, 0, bytes, stream_);
      return result == CUDA_SUCCESS || give_up(cuda_words(*cuda_, "cuMemsetD8Async", result));
    });
  }

  /// For other users' events around the lane's work (timing, cuStreamWaitEvent). The caller must not destroy
  /// it.
  [[nodiscard]] CUstream stream() const noexcept { return stream_; }

 private:
  /// The work up to one event: one launch, or all copies of a call.
  struct piece {
    CUevent event = nullptr;
    lane_ticket completes = 0;     ///< done when the event is done
    std::uint64_t ring_until = 0;  ///< 0: no bytes of the ring
    const std::byte* results = nullptr;
    digest128* out = nullptr;
    std::size_t result_count = 0;
    lane_ticket call = 0;  ///< the ticket of the whole call
  };

  /// The allocation of an address, kept while one call examines its runs.
  struct known_range {
    std::uint64_t bytes = 0;
    bool on_device = false;
    bool kernels = false;  ///< this device's kernels can reach the address
    bool pooled = false;   ///< memory of a device that cuMemAlloc did not make
    int device = -1;       ///< the ordinal of the device that it lies on
  };

  static std::string hexadecimal(const void* address) {
    std::array<char, 24> text{};
    std::snprintf(text.data(), text.size(), "%p", address);
    return text.data();
  }

  bool give_up(std::string why) {
    if (!failed_) trouble_ = device_->description() + ": " + std::move(why);
    failed_ = true;
    return false;
  }

  [[nodiscard]] lane_state state_of(lane_ticket ticket) const noexcept {
    if (ticket != 0 && ticket <= done_) return lane_state::done;
    const bool will_not_come = ticket == 0 || lost_ || (failed_ && ticket > queued_);
    return will_not_come ? lane_state::failed : lane_state::pending;
  }

  /// Runs `work` (which returns false after `give_up`), records an event after it and numbers it.
  template <typename Work>
  [[nodiscard]] lane_ticket queue(Work&& work) noexcept {
    try {
      if (failed_) return 0;
      const cuda_scope scope{*cuda_, device_->context()};
      ranges_.clear();
      if (scope.result() != CUDA_SUCCESS) {
        give_up(cuda_words(*cuda_, "cuCtxPushCurrent", scope.result()));
      } else if (work()) {
        // The last launch of a batch already has an event.
        if (pieces_.empty() || pieces_.back().completes != queued_ + 1) put_event({.completes = queued_ + 1});
        if (!failed_) return ++queued_;
      }
    } catch (const std::exception& e) {  // no memory for the bookkeeping
      failed_ = true;
      trouble_.assign(e.what());
    }
    for (piece& each : pieces_) {  // the caller does not wait for its digests
      if (each.call == queued_ + 1) each.out = nullptr;
    }
    return 0;
  }

  void put_event(piece behind) {
    // So that `advance` can return them without allocating.
    free_events_.reserve(free_events_.size() + pieces_.size() + 1);
    behind.call = queued_ + 1;
    pieces_.push_back(behind);
    CUresult result = CUDA_SUCCESS;
    if (free_events_.empty()) {
      result = cuda_->event_create(&pieces_.back().event, CU_EVENT_DISABLE_TIMING);
    } else {
      pieces_.back().event = free_events_.back();
      free_events_.pop_back();
    }
    if (result == CUDA_SUCCESS) result = cuda_->event_record(pieces_.back().event, stream_);
    if (result != CUDA_SUCCESS) {
      if (pieces_.back().event != nullptr) free_events_.push_back(pieces_.back().event);
      pieces_.pop_back();
      give_up(cuda_words(*cuda_, "cuEventRecord", result));
    }
  }

  bool copy_run_now(const copy_run& run, const known_range& to, const known_range& from) {
    const bool are_apart = to.on_device && from.on_device && to.device != from.device;
    const int there = are_apart ? context_of(run.to, to) : 0;
    const int here = are_apart ? context_of(run.from, from) : 0;
    const bool is_peer_copy = cuda_->memory_copy_peer_async != nullptr && (to.pooled || from.pooled) &&
                              there >= 0 && here >= 0 && there != here;
    const auto bytes = static_cast<std::size_t>(run.bytes);
    const CUresult result =
        is_peer_copy ? cuda_->memory_copy_peer_async(cuda_address(run.to), Device::at(there).context(),
                                                     cuda_address(run.from), Device::at(here).context(),
                                                     bytes, stream_)
                     : cuda_->memory_copy_async(cuda_address(run.to), cuda_address(run.from), bytes, stream_);
    if (result == CUDA_SUCCESS) return true;
    return give_up(cuda_words(*cuda_, is_peer_copy ? "cuMemcpyPeerAsync" : "cuMemcpyAsync", result) +
                   ", copying " + std::to_string(run.bytes) + " bytes from " + hexadecimal(run.from) +
                   " to " + hexadecimal(run.to));
  }

  /// The ordinal of the device in whose context memory of a device is used: imported memory is mapped for the
  /// importing device. Negative: of none.
  [[nodiscard]] static int context_of(const void* data, const known_range& range) {
    const int importer = Device::importer_of(data);
    return importer >= 0 ? importer : range.device;
  }

  /// Null after `give_up`. The pointer is valid until the next call.
  [[nodiscard]] const known_range* knows(const void* data, std::uint64_t bytes) {
    const std::uint64_t first = cuda_address(data);
    const auto after = ranges_.upper_bound(first);
    if (after != ranges_.begin()) {
      const auto& [begin, range] = *std::prev(after);
      if (first - begin <= range.bytes && bytes <= range.bytes - (first - begin)) return &range;
    }
    cuda_pointer about;
    const CUresult result = ask_cuda_pointer(*cuda_, data, bytes, about);
    if (result != CUDA_SUCCESS) {
      give_up(cuda_words(*cuda_, "cuPointerGetAttributes", result));
      return nullptr;
    }
    if (!about.known()) {
      if (!cpu_can_read(data, bytes)) {
        give_up("neither memory of a device nor of the host at " + hexadecimal(data) + ": was it freed?");
        return nullptr;
      }
      return &(ranges_[first] = {.bytes = bytes});
    }
    if (!about.holds(first, bytes)) {
      give_up(std::to_string(bytes) + " bytes at " + hexadecimal(data) + " reach beyond their allocation");
      return nullptr;
    }
    const bool on_device = about.is_device_memory();
    const bool kernels = on_device ? about.device == device_->ordinal() : kernels_can_reach(*cuda_, data);
    known_range found{bytes, on_device, kernels, on_device && !about.legacy_ipc,
                      on_device ? about.device : -1};
    if (about.bytes == 0) return &(ranges_[first] = found);
    found.bytes = about.bytes;
    return &(ranges_[about.begin] = found);
  }

  /// The run at `next` and those behind it that continue it, in the same two allocations; `next` then is the
  /// one after them. Not to be used after `give_up`.
  [[nodiscard]] copy_run joined(std::span<const copy_run> runs, std::size_t& next, const known_range*& to,
                                const known_range*& from) {
    copy_run run = runs[next++];
    if (run.bytes == 0) return run;
    to = knows(run.to, run.bytes);
    from = to != nullptr ? knows(run.from, run.bytes) : nullptr;
    for (; from != nullptr && next < runs.size(); ++next) {
      const copy_run& behind = runs[next];
      if (behind.to != run.to + run.bytes || behind.from != run.from + run.bytes) break;
      if (behind.bytes > 0 &&
          (knows(behind.to, behind.bytes) != to || knows(behind.from, behind.bytes) != from))
        break;
      run.bytes += behind.bytes;
    }
    return run;
  }

  /// `describe` makes the kernel's job of a digest's.
  template <typename Job, typename Describe>
  lane_ticket queue_digests(CUfunction kernel, std::span<const Job> jobs, digest128* out,
                            Describe&& describe) noexcept {
    return queue([&] {
      std::vector<decltype(describe(jobs.front()))> described;
      described.reserve(jobs.size());
      for (const Job& job : jobs) {
        if (job.bytes != 0) {
          const known_range* const data = knows(job.data, job.bytes);
          if (data == nullptr) return false;
          if (!data->kernels) {
            return give_up("a digest was asked for of memory that " + device_->description() +
                           " cannot reach, at " + hexadecimal(job.data));
          }
        }
        described.push_back(describe(job));
      }
      for (std::size_t at = 0; at < described.size(); at += jobs_per_launch) {
        const std::size_t count = std::min(jobs_per_launch, described.size() - at);
        if (!launch(kernel, std::span{described}.subspan(at, count), out + at,
                    at + count == described.size()))
          return false;
      }
      return true;
    });
  }

  template <typename Job>
  bool launch(CUfunction kernel, std::span<Job> jobs, digest128* out, bool last) {
    const std::uint64_t jobs_bytes = (jobs.size_bytes() + 15) / 16 * 16;
    const std::uint64_t result_bytes = out != nullptr ? jobs.size() * sizeof(cuda_jobs::digest_result) : 0;
    const auto room = take_room(jobs_bytes + result_bytes);
    if (!room) return false;
    std::memcpy(ring_.pinned + room->offset, jobs.data(), jobs.size_bytes());
    CUdeviceptr jobs_there = ring_.on_device + room->offset;
    CUdeviceptr results_there = cuda_address(ring_.pinned + room->offset + jobs_bytes);
    CUresult result = CUDA_SUCCESS;
    if (jobs.size() <= jobs_read_from_host) {
      jobs_there = cuda_address(ring_.pinned + room->offset);
    } else {
      result = cuda_->memory_copy_async(jobs_there, cuda_address(ring_.pinned + room->offset),
                                        jobs.size_bytes(), stream_);
    }
    std::array<void*, 2> parameters{&jobs_there, &results_there};
    if (result == CUDA_SUCCESS) {
      result = cuda_->launch_kernel(kernel, static_cast<unsigned>(jobs.size()), 1, 1,
                                    cuda_jobs::threads_per_job, 1, 1, 0, stream_, parameters.data(), nullptr);
    }
    if (result != CUDA_SUCCESS) return give_up(cuda_words(*cuda_, "cuLaunchKernel", result));
    put_event({.completes = last ? queued_ + 1 : queued_,
               .ring_until = room->until,
               .results = out != nullptr ? ring_.pinned + room->offset + jobs_bytes : nullptr,
               .out = out,
               .result_count = out != nullptr ? jobs.size() : 0});
    return !failed_;
  }

  [[nodiscard]] std::optional<ring_space::run> take_room(std::uint64_t bytes) {
    std::optional<ring_space::run> room = space_.take(bytes);
    if (!room) {
      wait_until([&] { return failed_ || (room = space_.take(bytes)).has_value(); }, patience);
      if (!room && !failed_)
        give_up("the device has not gone on for " + std::to_string(patience.count()) + " seconds");
    }
    return room;
  }

  /// Records which pieces are done. The context is current.
  void advance() noexcept {
    while (!pieces_.empty() && !lost_) {
      piece& first = pieces_.front();
      const CUresult result = cuda_->event_query(first.event);
      if (result == CUDA_ERROR_NOT_READY) return;
      if (result != CUDA_SUCCESS) {
        lost_ = true;
        try {
          give_up(cuda_words(*cuda_, "cuEventQuery", result) +
                  "; if it is an error of a kernel, the device's "
                  "context is lost and the process has to start anew");
        } catch (const std::exception&) {
          failed_ = true;
        }
        return;
      }
      static_assert(sizeof(digest128) == sizeof(cuda_jobs::digest_result));
      if (first.out != nullptr) std::memcpy(first.out, first.results, first.result_count * sizeof(digest128));
      space_.give_back(first.ring_until);
      done_ = first.completes;
      free_events_.push_back(first.event);  // `put_event` has reserved the space
      pieces_.pop_front();
    }
  }

  /// A batch of digests takes about 60 us; the shortest sleep takes about as long.
  static constexpr std::chrono::microseconds spin{100};
  /// Returns false at the time-out. Polls often at first, then sleeps between polls.
  template <typename Condition>
  bool wait_until(Condition&& condition, duration timeout) noexcept {
    using clock = std::chrono::steady_clock;
    const auto start = clock::now();
    for (;;) {
      advance();
      if (condition()) return true;
      const auto waited = clock::now() - start;
      if (waited >= timeout) return false;
      if (waited < spin) {
        std::this_thread::yield();
      } else {
        const duration nap =
            std::clamp<duration>(waited / 16, std::chrono::microseconds{10}, std::chrono::microseconds{200});
        std::this_thread::sleep_for(std::min<duration>(nap, timeout - waited));
      }
    }
  }

  /// Returns when no work of the lane runs any more; false: that is not known. Each piece ends with an event,
  /// but after a failure there may be work without one. A driver without memory for an event says nothing of
  /// that work; by any other failure the context is lost, and all work has ended.
  [[nodiscard]] bool drain() noexcept {
    if (!wait_until([&] { return pieces_.empty() || failed_; }, patience)) return false;
    if (!failed_) return true;
    CUevent made = nullptr;
    CUevent last = pieces_.empty() ? nullptr : pieces_.back().event;
    if (!free_events_.empty()) last = free_events_.back();
    CUresult result = CUDA_SUCCESS;
    if (last == nullptr) result = cuda_->event_create(&made, CU_EVENT_DISABLE_TIMING);
    if (last == nullptr) last = made;
    if (result == CUDA_SUCCESS) result = cuda_->event_record(last, stream_);
    const bool ended =
        result == CUDA_SUCCESS
            ? wait_until([&] { return cuda_->event_query(last) != CUDA_ERROR_NOT_READY; }, patience)
            : result != CUDA_ERROR_OUT_OF_MEMORY;
    if (made != nullptr) static_cast<void>(cuda_->event_destroy(made));
    return ended;
  }

  Device* device_;
  const cuda_functions* cuda_;
  cuda_ring ring_;
  ring_space space_{ring_bytes};
  CUstream stream_ = nullptr;
  std::deque<piece> pieces_;
  std::vector<CUevent> free_events_;
  std::map<std::uint64_t, known_range> ranges_;
  lane_ticket queued_ = 0;
  lane_ticket done_ = 0;
  bool failed_ = false;  ///< takes no further work; what is queued goes on
  bool lost_ = false;    ///< nothing is known of what is queued
  std::string trouble_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
