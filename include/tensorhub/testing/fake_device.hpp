#pragma once
/// \file fake_device.hpp
/// A device that needs no hardware: its memory faults when the CPU touches it, it has copy functions of its
/// own, and its work completes some time later. A pointer that is followed on the wrong side is therefore
/// caught on any machine.
///
/// An allocation is a file in memory that is mapped twice: without any access at its public address, and
/// readable and writable at an address that only the lanes know. Each lane is a thread. Exports work between
/// processes of one user, through the file.
///
///     using hub = tensorhub::hub<tensorhub::transports::tcp, tensorhub::nearest_source,
///                                tensorhub::group_consistent, tensorhub::xxh3_128,
///                                tensorhub::testing::fake_device_memory>;
///
/// Thread safety: as device_access.hpp says; any thread may use `fill`, `bytes_of` and the settings.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tensorhub/concepts/memory_space.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/cpu_access.hpp"
#include "tensorhub/detail/file_limit.hpp"
#include "tensorhub/detail/peer_read.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/memory/host.hpp"
#include "tensorhub/types/blake3.hpp"
#include "tensorhub/types/device_access.hpp"
#include "tensorhub/types/xxh3.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// The only fake device of the process.
class fake_device final : public device_access {
 public:
  [[nodiscard]] static fake_device& instance() {
    static fake_device device;
    return device;
  }

  /// Settings and counters for tests.
  struct settings {
    std::atomic<std::int64_t> delay_ns{0};  ///< delay before each piece of work is done
    std::atomic<std::uint64_t> fail_after{
        UINT64_MAX};                         ///< this many pieces succeed, then lanes fail; UINT64_MAX: never
    std::atomic<bool> exports{true};         ///< `export_memory` returns an export
    std::atomic<bool> older_mapping{false};  ///< `import_memory` finds one at the address
  };
  struct counters {
    std::atomic<std::uint64_t> copies{0};  ///< calls, each of which may have many runs
    std::atomic<std::uint64_t> runs{0};
    std::atomic<std::uint64_t> copied_bytes{0};
    std::atomic<std::uint64_t> digests{0};
    std::atomic<std::uint64_t> imports{0};
  };
  settings set{};
  counters counted{};

  // ---- memory -------------------------------------------------------------------------------------------

  /// Zero-filled; a multiple of the page size. Throws `system_failed`.
  [[nodiscard]] std::byte* allocate(std::uint64_t bytes) {
    block_record block;
    block.bytes = in_pages(bytes);
    block.file.reset(::memfd_create("fake-device", MFD_CLOEXEC));
    if (!block.file || !detail::set_file_bytes(block.file.get(), block.bytes)) fail("no file in memory");
    return insert(std::move(block));
  }
  void free(std::byte* data) noexcept {
    const std::lock_guard lock{mutex_};
    const auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(data));
    if (found == blocks_.end()) return;
    ::munmap(found->second.window, found->second.bytes);
    ::munmap(data, found->second.bytes);
    blocks_.erase(found);
  }

  /// The allocation that contains the whole run, as (first byte, bytes); empty if there is none.
  [[nodiscard]] std::optional<std::pair<std::byte*, std::uint64_t>> allocation_of(const void* data,
                                                                                  std::uint64_t bytes) const {
    const std::lock_guard lock{mutex_};
    const auto found = find(data, bytes);
    if (found == blocks_.end()) return std::nullopt;
    return std::pair{reinterpret_cast<std::byte*>(found->first), found->second.bytes};
  }

  /// For tests: a copy of the bytes at `data`, which must be device memory.
  [[nodiscard]] std::vector<std::byte> bytes_of(const void* data, std::uint64_t bytes) const {
    const std::byte* const from = window_of(data, bytes);
    if (from == nullptr) throw error(errc::invalid_argument, "fake device: no memory of it");
    return {from, from + bytes};
  }
  /// For tests: writes the bytes at `data`.
  void fill(void* data, std::span<const std::byte> with) {
    std::byte* const to = window_of(data, with.size());
    if (to == nullptr) throw error(errc::invalid_argument, "fake device: no memory of it");
    std::memcpy(to, with.data(), with.size());
  }

  // ---- device_access ------------------------------------------------------------------------------------

  [[nodiscard]] std::string description() const override { return "fake device"; }
  [[nodiscard]] std::unique_ptr<device_lane> open_lane() override { return std::make_unique<lane>(*this); }

  [[nodiscard]] std::byte* allocate_pinned(std::uint64_t bytes) override {
    void* const data =
        ::mmap(nullptr, in_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) fail("no host memory");
    return static_cast<std::byte*>(data);
  }
  void free_pinned(std::byte* memory, std::uint64_t bytes) noexcept override {
    ::munmap(memory, in_pages(bytes));
  }

  [[nodiscard]] std::optional<device_export> export_memory(const memory_range& range,
                                                           std::string& why_not) override {
    const std::lock_guard lock{mutex_};
    const auto found = find(range.data, range.bytes);
    if (found == blocks_.end() || !set.exports) {
      why_not = found == blocks_.end() ? "the fake device does not know this memory"
                                       : "the fake device was told to export nothing";
      return std::nullopt;
    }
    device_export out;
    const export_words words{::getpid(), found->second.file.get(), inode_of(found->second.file.get())};
    static_assert(sizeof words <= sizeof out.handle);
    std::memcpy(out.handle.data(), &words, sizeof words);
    out.device_id.fill(std::byte{0xfa});
    out.allocation_bytes = found->second.bytes;
    out.offset = reinterpret_cast<std::uintptr_t>(range.data) - found->first;
    return out;
  }

  [[nodiscard]] std::unique_ptr<device_import> import_memory(const device_export& from) override {
    export_words words{};
    std::memcpy(&words, from.handle.data(), sizeof words);
    block_record block;
    const std::string path = "/proc/" + std::to_string(words.process) + "/fd/" + std::to_string(words.file);
    block.file.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    struct stat file_status {};
    if (!block.file || ::fstat(block.file.get(), &file_status) != 0 || file_status.st_ino != words.inode ||
        static_cast<std::uint64_t>(file_status.st_size) != from.allocation_bytes)
      fail("the exported memory is gone");
    if (set.older_mapping) return nullptr;
    block.bytes = from.allocation_bytes;
    counted.imports.fetch_add(1);
    return std::make_unique<imported>(*this, insert(std::move(block)));
  }

  [[nodiscard]] int export_dmabuf(const memory_range&, std::uint64_t&, std::string& why_not) override {
    why_not = "the fake device has no dmabufs";
    return -1;
  }

 private:
  struct block_record {
    std::uint64_t bytes = 0;
    std::byte* window = nullptr;  ///< the address at which lanes reach the memory
    detail::unique_fd file;
  };
  struct export_words {
    ::pid_t process = 0;
    int file = -1;
    ::ino_t inode = 0;
  };

  class imported final : public device_import {
   public:
    imported(fake_device& owner, std::byte* data) noexcept : owner_{&owner}, data_{data} {}
    ~imported() override { owner_->free(data_); }
    [[nodiscard]] std::byte* data() const noexcept override { return data_; }

   private:
    fake_device* owner_;
    std::byte* data_;
  };

  class lane final : public device_lane {
   public:
    explicit lane(fake_device& owner)
        : owner_{&owner}, thread_{[this](const std::stop_token& stop) { work(stop); }} {}
    ~lane() override {
      {
        const std::lock_guard lock{mutex_};  // `work` is not between its check and its wait
        thread_.request_stop();
        changed_.notify_all();
      }
      thread_.join();
    }

    [[nodiscard]] lane_ticket copy(void* to, const void* from, std::uint64_t bytes) noexcept override {
      const copy_run run{static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes};
      return copy_all(std::span{&run, 1});
    }
    [[nodiscard]] lane_ticket copy_all(std::span<const copy_run> runs) noexcept override {
      return queue([this, todo = std::vector(runs.begin(), runs.end())] {
        owner_->counted.copies.fetch_add(1);
        for (const copy_run& run : todo) {
          std::byte* const to = owner_->reachable(run.to, run.bytes);
          const std::byte* const from = owner_->reachable(run.from, run.bytes);
          if (to == nullptr || from == nullptr) return false;
          const detail::peer_read reading;
          std::memcpy(to, from, run.bytes);
          owner_->counted.runs.fetch_add(1);
          owner_->counted.copied_bytes.fetch_add(run.bytes);
        }
        return true;
      });
    }
    [[nodiscard]] lane_ticket digest(std::span<const digest_job> jobs, digest128* out) noexcept override {
      return queue_digests(jobs, out, [](const digest_job& job, std::span<const std::byte> bytes) {
        return detail::xxh3_128(bytes, job.seed);
      });
    }
    [[nodiscard]] lane_ticket keyed_digest(std::span<const keyed_digest_job> jobs,
                                           digest128* out) noexcept override {
      return queue_digests(jobs, out, [](const keyed_digest_job& job, std::span<const std::byte> bytes) {
        return detail::blake3_keyed_hash(std::bit_cast<detail::blake3_value>(job.key), bytes).first_half();
      });
    }

    [[nodiscard]] lane_state state(lane_ticket ticket) noexcept override {
      const std::lock_guard lock{mutex_};
      return state_of(ticket);
    }
    [[nodiscard]] lane_state wait(lane_ticket ticket, duration timeout) noexcept override {
      std::unique_lock lock{mutex_};
      changed_.wait_for(lock, timeout, [&] { return state_of(ticket) != lane_state::pending; });
      return state_of(ticket);
    }
    [[nodiscard]] std::string trouble() const override {
      const std::lock_guard lock{mutex_};
      return failed_ ? "fake device: an address that is not its own, or a failure that was asked for" : "";
    }

   private:
    template <typename Job, typename Make>
    [[nodiscard]] lane_ticket queue_digests(std::span<const Job> jobs, digest128* out, Make make) noexcept {
      return queue([this, out, make, todo = std::vector(jobs.begin(), jobs.end())] {
        for (std::size_t i = 0; i < todo.size(); ++i) {
          const std::byte* const data = owner_->reachable(todo[i].data, todo[i].bytes);
          if (data == nullptr) return false;
          const detail::peer_read reading;
          out[i] = make(todo[i], {data, todo[i].bytes});
          owner_->counted.digests.fetch_add(1);
        }
        return true;
      });
    }
    [[nodiscard]] lane_state state_of(lane_ticket ticket) const noexcept {
      if (ticket != 0 && ticket <= done_) return lane_state::done;
      return failed_ || ticket == 0 ? lane_state::failed : lane_state::pending;
    }
    [[nodiscard]] lane_ticket queue(std::function<bool()> piece) noexcept {
      const std::lock_guard lock{mutex_};
      if (failed_) return 0;
      pieces_.push_back(std::move(piece));
      changed_.notify_all();
      return ++queued_;
    }
    void work(const std::stop_token& stop) {
      std::unique_lock lock{mutex_};
      for (;;) {
        changed_.wait(lock, [&] { return stop.stop_requested() || !pieces_.empty(); });
        if (pieces_.empty()) return;
        const auto piece = std::move(pieces_.front());
        pieces_.pop_front();
        lock.unlock();
        if (const auto delay = owner_->set.delay_ns.load(); delay > 0)
          std::this_thread::sleep_for(std::chrono::nanoseconds{delay});
        const bool good = owner_->may_succeed() && piece();
        lock.lock();
        if (good) {
          ++done_;
        } else {
          failed_ = true;
          pieces_.clear();
        }
        changed_.notify_all();
      }
    }

    fake_device* owner_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<bool()>> pieces_;
    lane_ticket queued_ = 0;
    lane_ticket done_ = 0;
    bool failed_ = false;
    std::jthread thread_;
  };

  [[noreturn]] static void fail(const std::string& what) {
    throw error(errc::system_failed, "fake device: " + what + ": " + std::strerror(errno));
  }
  [[nodiscard]] static std::uint64_t in_pages(std::uint64_t bytes) noexcept {
    return (bytes + 4095) / 4096 * 4096;
  }
  [[nodiscard]] static ::ino_t inode_of(int file) noexcept {
    struct stat file_status {};
    return ::fstat(file, &file_status) == 0 ? file_status.st_ino : 0;
  }

  [[nodiscard]] std::byte* insert(block_record block) {
    void* const window =
        ::mmap(nullptr, block.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, block.file.get(), 0);
    if (window == MAP_FAILED) fail("no room for a window");
    block.window = static_cast<std::byte*>(window);
    void* const data = ::mmap(nullptr, block.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      ::munmap(window, block.bytes);
      fail("no room for addresses");
    }
    const std::lock_guard lock{mutex_};
    blocks_.emplace(reinterpret_cast<std::uintptr_t>(data), std::move(block));
    return static_cast<std::byte*>(data);
  }

  using block_map = std::map<std::uintptr_t, block_record>;
  [[nodiscard]] block_map::const_iterator find(const void* data, std::uint64_t bytes) const {
    const auto first = reinterpret_cast<std::uintptr_t>(data);
    auto at = blocks_.upper_bound(first);
    if (at == blocks_.begin()) return blocks_.end();
    --at;
    const std::uint64_t inside = first - at->first;
    return inside <= at->second.bytes && bytes <= at->second.bytes - inside ? at : blocks_.end();
  }
  [[nodiscard]] std::byte* window_of(const void* data, std::uint64_t bytes) const {
    const std::lock_guard lock{mutex_};
    const auto found = find(data, bytes);
    if (found == blocks_.end()) return nullptr;
    return found->second.window + (reinterpret_cast<std::uintptr_t>(data) - found->first);
  }
  /// The lanes' address of device memory; for host memory the address itself; null for other addresses.
  template <typename Byte>
  [[nodiscard]] Byte* reachable(Byte* data, std::uint64_t bytes) const {
    if (std::byte* const window = window_of(data, bytes)) return window;
    return detail::cpu_can_read(data, bytes) ? data : nullptr;
  }

  [[nodiscard]] bool may_succeed() noexcept {
    std::uint64_t left = set.fail_after.load();
    if (left == UINT64_MAX) return true;
    while (left > 0 && !set.fail_after.compare_exchange_weak(left, left - 1)) {
    }
    return left > 0;
  }

  mutable std::mutex mutex_;
  block_map blocks_;
};

/// Model of `memory_space` over the fake device. Host memory is described as host memory, so a shard may mix
/// both.
struct fake_device_memory {
  using concept_tag = memory_space_tag;
  static constexpr bool host_accessible = false;

  class allocation {
   public:
    explicit allocation(std::uint64_t bytes) : bytes_{bytes} {
      if (bytes == 0 || bytes > limits::shard_bytes)
        throw error(errc::invalid_argument, "cannot allocate " + std::to_string(bytes) + " bytes");
      data_ = fake_device::instance().allocate(bytes);
    }
    allocation(allocation&& other) noexcept
        : data_{std::exchange(other.data_, nullptr)}, bytes_{other.bytes_} {}
    allocation& operator=(allocation&& other) noexcept {
      std::swap(data_, other.data_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~allocation() {
      if (data_ != nullptr) fake_device::instance().free(data_);
    }
    [[nodiscard]] memory_range range() const noexcept {
      memory_range out{data_, bytes_, memory_kind::cuda_device};
      out.device = &fake_device::instance();
      return out;
    }
    [[nodiscard]] std::byte* data() const noexcept { return data_; }

   private:
    std::byte* data_ = nullptr;
    std::uint64_t bytes_ = 0;
  };

  [[nodiscard]] allocation allocate(std::uint64_t bytes) { return allocation{bytes}; }

  [[nodiscard]] memory_range describe(void* data, std::uint64_t bytes) {
    if (fake_device::instance().allocation_of(data, bytes)) {
      memory_range out{static_cast<std::byte*>(data), bytes, memory_kind::cuda_device};
      out.device = &fake_device::instance();
      return out;
    }
    if (data != nullptr && !detail::cpu_can_read(data, bytes))
      throw error(errc::invalid_argument, "neither memory of the device nor of the host: was it freed?");
    return host_memory{}.describe(data, bytes);
  }
  [[nodiscard]] memory_range allocation_around(const memory_range& range) {
    if (range.host_accessible()) return host_memory{}.allocation_around(range);
    memory_range out = range;
    if (const auto found = fake_device::instance().allocation_of(range.data, range.bytes))
      std::tie(out.data, out.bytes) = *found;
    return out;
  }

  void copy(void* to, const void* from, std::uint64_t bytes) noexcept {
    const copy_run run{static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes};
    static_cast<void>(copy_all(std::span{&run, 1}));
  }
  [[nodiscard]] bool copy_all(std::span<const copy_run> runs) noexcept {
    const auto lane = fake_device::instance().open_lane();
    return lane->wait(lane->copy_all(runs), std::chrono::minutes{1}) == lane_state::done;
  }

  /// Work of the user; it is done when the test says so.
  struct stream_type {
    const std::atomic<bool>* done = nullptr;
    bool operator==(const stream_type&) const = default;
  };
  struct mark_type {
    const std::atomic<bool>* done = nullptr;
    [[nodiscard]] lane_state state() const noexcept {
      return done == nullptr || *done ? lane_state::done : lane_state::pending;
    }
  };
  [[nodiscard]] mark_type mark(const stream_type& stream) const noexcept { return {stream.done}; }
};
static_assert(streaming_memory_space<fake_device_memory>);

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
