#pragma once
/// \file gated_device.hpp
/// The fake device with a gate: its copies are made, and said to be done only while the gate is open. So a
/// test can look at what goes on while a copy is under way, without a clock.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tensorhub/error.hpp>
#include <tensorhub/testing/fake_device.hpp>
#include <tensorhub/types/device_access.hpp>
#include <thread>
#include <utility>

namespace gated_devices {

using namespace tensorhub;

class gated_device final : public device_access {
 public:
  std::atomic<std::uint64_t> queued{0};        ///< copies
  std::atomic<std::uint64_t> waits{0};         ///< how often somebody has begun to wait for a copy
  std::atomic<std::uint64_t> lanes{0};         ///< opened so far
  std::atomic<std::uint64_t> pinned_bytes{0};  ///< at present
  std::atomic<bool> has_pinned{true};          ///< false: there is no more of it
  std::atomic<bool> hangs{false};              ///< every wait takes its whole time, which is over at once

  void close() {
    const std::lock_guard lock{mutex_};
    open_ = false;
  }
  void open() {
    const std::lock_guard lock{mutex_};
    open_ = true;
    changed_.notify_all();
  }
  /// Returns when more than `before` waits have begun, or when `is_over` says that none will.
  template <typename IsOver>
  [[nodiscard]] bool wait_for_a_wait(std::uint64_t before, IsOver&& is_over) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{60};
    while (waits <= before && !is_over() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    return waits > before;
  }

  /// The range is of the fake device; it will be reached through this one.
  [[nodiscard]] memory_range over(memory_range range) {
    range.device = this;
    return range;
  }

  [[nodiscard]] std::string description() const override { return "gated " + below().description(); }
  [[nodiscard]] std::unique_ptr<device_lane> open_lane() override {
    ++lanes;
    return std::make_unique<lane>(*this);
  }
  [[nodiscard]] std::byte* allocate_pinned(std::uint64_t bytes) override {
    if (!has_pinned) throw error(errc::system_failed, "no pinned memory is left");
    pinned_bytes += bytes;
    return below().allocate_pinned(bytes);
  }
  void free_pinned(std::byte* memory, std::uint64_t bytes) noexcept override {
    pinned_bytes -= bytes;
    below().free_pinned(memory, bytes);
  }
  [[nodiscard]] std::optional<device_export> export_memory(const memory_range& range,
                                                           std::string& why_not) override {
    return below().export_memory(range, why_not);
  }
  [[nodiscard]] std::unique_ptr<device_import> import_memory(const device_export& from) override {
    return below().import_memory(from);
  }
  [[nodiscard]] int export_dmabuf(const memory_range& range, std::uint64_t& offset,
                                  std::string& why_not) override {
    return below().export_dmabuf(range, offset, why_not);
  }

 private:
  class lane final : public device_lane {
   public:
    explicit lane(gated_device& owner) : owner_{&owner}, below_{gated_device::below().open_lane()} {}

    [[nodiscard]] lane_ticket copy(void* to, const void* from, std::uint64_t bytes) noexcept override {
      ++owner_->queued;
      return below_->copy(to, from, bytes);
    }
    [[nodiscard]] lane_ticket copy_all(std::span<const copy_run> runs) noexcept override {
      ++owner_->queued;
      return below_->copy_all(runs);
    }
    [[nodiscard]] lane_ticket digest(std::span<const digest_job> jobs, digest128* out) noexcept override {
      return below_->digest(jobs, out);
    }
    [[nodiscard]] lane_ticket keyed_digest(std::span<const keyed_digest_job> jobs,
                                           digest128* out) noexcept override {
      return below_->keyed_digest(jobs, out);
    }
    [[nodiscard]] lane_state state(lane_ticket ticket) noexcept override {
      return !owner_->hangs && owner_->wait_until_open({}) ? below_->state(ticket) : lane_state::pending;
    }
    [[nodiscard]] lane_state wait(lane_ticket ticket, duration timeout) noexcept override {
      ++owner_->waits;
      if (owner_->hangs) return lane_state::pending;
      return owner_->wait_until_open(timeout) ? below_->wait(ticket, timeout) : lane_state::pending;
    }
    [[nodiscard]] std::string trouble() const override { return below_->trouble(); }

   private:
    gated_device* owner_;
    std::unique_ptr<device_lane> below_;
  };

  [[nodiscard]] static testing::fake_device& below() { return testing::fake_device::instance(); }
  [[nodiscard]] bool wait_until_open(duration timeout) noexcept {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, timeout, [this] { return open_; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
};

}  // namespace gated_devices
