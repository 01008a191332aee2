#pragma once
/// \file fake_cuda_machine.hpp
/// Two devices on the CPU, whose memory faults when the CPU touches it. What they are used through, the
/// functions of the NVIDIA driver, is in fake_cuda_driver.hpp.
///
/// An allocation is a file in memory, mapped without any access at the address that is given out, and
/// readable and writable at a window that only streams know. Addresses of a device follow one another as the
/// driver hands them out: allocations of 1 MiB and more in whole units of 2 MiB, smaller ones together in
/// such a unit. Neighbours therefore touch, but no call takes a range that reaches over two of them. A stream
/// is a thread; what it is given is done later. Settings make calls and work fail; counters and the inventory
/// tell what was done and what is left.

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
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
#include <span>
#include <string>
#include <string_view>
#include <tensorhub/detail/cpu_access.hpp>
#include <tensorhub/detail/unique_fd.hpp>
#include <tensorhub/memory/cuda/context.hpp>
#include <tensorhub/memory/cuda/functions.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace fake_cuda {

/// `reserved`: addresses of which `driver::map` maps parts (cuMemAddressReserve, cuMemMap).
enum class origin { device, pool, pinned, registered, managed, imported, reserved };

struct block_record {
  std::uint64_t bytes = 0;
  std::byte* window = nullptr;  ///< where streams reach it; the address itself if the CPU may follow it
  origin from = origin::device;
  int device = 0;
  int importer = -1;  ///< of `imported`: the device that it is mapped for
  tensorhub::detail::unique_fd file{};
  std::map<std::uintptr_t, std::uint64_t> mappings{};  ///< of `reserved`: address, bytes
  std::map<std::uintptr_t, std::uint64_t> numbers{};   ///< by the address of the mapping, or of the block

  [[nodiscard]] bool is_on_host() const noexcept {
    return from == origin::pinned || from == origin::registered || from == origin::managed;
  }
  /// The device in whose context it is used.
  [[nodiscard]] int context() const noexcept { return importer >= 0 ? importer : device; }
  /// Address and size of the mapping that holds an address; {0, 0}: none does.
  [[nodiscard]] std::pair<std::uintptr_t, std::uint64_t> mapping_of(std::uintptr_t at) const {
    auto found = mappings.upper_bound(at);
    if (found == mappings.begin()) return {};
    --found;
    if (at - found->first >= found->second) return {};
    return {found->first, found->second};
  }
  /// False if a run touches addresses without memory.
  [[nodiscard]] bool is_mapped(std::uintptr_t first, std::uint64_t run_bytes) const {
    for (std::uintptr_t at = first; from == origin::reserved && at < first + run_bytes;) {
      const auto [begin, size] = mapping_of(at);
      if (size == 0) return false;
      at = begin + size;
    }
    return true;
  }
};

struct export_words {
  ::pid_t process = 0;
  int file = -1;
  ::ino_t inode = 0;
  std::uint64_t bytes = 0;
  int device = 0;
};

struct event_record {
  std::uint64_t recorded = 0;
  std::uint64_t reached = 0;
  CUresult result = CUDA_SUCCESS;
};

class stream_thread;

/// What the driver says of writes by RDMA.
struct gpu_direct_settings {
  std::atomic<int> ordering{CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES};
  std::atomic<int> flush_options{0};
  std::atomic<bool> flush_fails{false};
};

/// What tests set and read.
struct settings {
  std::atomic<int> version{tensorhub::needed_cuda_version};
  std::atomic<int> devices{2};
  std::atomic<CUresult> init{CUDA_SUCCESS};
  std::atomic<std::int64_t> delay_ns{0};      ///< before each piece of a stream's work
  std::atomic<std::uint64_t> held_stream{0};  ///< the number of one that does nothing until this is 0 again
  std::atomic<bool> held{false};              ///< streams do nothing until this is false again
  std::atomic<std::uint64_t> fail_after{UINT64_MAX};  ///< so many pieces succeed, then streams fail
  std::atomic<bool> refuse_copies{false};             ///< cuMemcpyAsync says no at once
  std::atomic<bool> refuse_events{false};             ///< the driver has no memory for one more
  std::atomic<CUresult> registering{CUDA_SUCCESS};    ///< what cuMemHostRegister says
  std::atomic<bool> ipc_held{false};       ///< handles are opened and closed when this is false again
  std::atomic<bool> older_mapping{false};  ///< cuIpcOpenMemHandle finds one at the address
  std::atomic<bool> dmabufs{false};
  gpu_direct_settings gpu_direct{};
  std::atomic<unsigned> devices_in_use{0};  ///< by bits: their primary contexts are active
  std::atomic<bool> capturing{false};       ///< every stream that is asked about
  /// Another thread captures a graph in the mode that most programs use (CU_STREAM_CAPTURE_MODE_GLOBAL).
  std::atomic<bool> capturing_globally{false};
  /// Of the devices of the machine, `devices` from this one on are visible to this process.
  std::atomic<int> first_device{0};
  std::atomic<std::uint64_t> free_bytes{1ull << 40};
  /// A query with a greater one (CUpointer_attribute) is refused, as by an older driver.
  std::atomic<int> last_attribute{CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR};
};
struct counters {
  std::atomic<std::uint64_t> launches{0};
  std::atomic<std::uint64_t> copies{0};
  std::atomic<std::uint64_t> peer_copies{0};      ///< of `copies`: those by cuMemcpyPeerAsync
  std::atomic<std::uint64_t> pageable_copies{0};  ///< with an end in host memory that nobody has pinned
  std::atomic<std::uint64_t> blocks{0};           ///< of threads, of kernels
  std::atomic<std::uint64_t> imports{0};
  std::atomic<std::uint64_t> flushes{0};          ///< of what was written to device memory, for all devices
  std::atomic<std::uint64_t> ipc_calls{0};        ///< that open or close a handle
  std::atomic<std::uint64_t> streams{0};          ///< made so far: the number of the latest
  std::atomic<std::uint64_t> context_faults{0};   ///< calls without the context that they need
  std::atomic<std::uint64_t> broken_captures{0};  ///< calls that end the capture of another thread
  /// Work with addresses that are reserved and not mapped, which loses a device's context.
  std::atomic<std::uint64_t> unmapped_touches{0};
};
/// How many things are there now.
struct inventory {
  std::size_t blocks = 0;
  std::size_t streams = 0;
  std::size_t events = 0;
  bool operator==(const inventory&) const = default;
};

class driver {
 public:
  [[nodiscard]] static driver& instance() {
    static auto* const only = new driver;  // streams of static objects may outlive everything else
    return *only;
  }

  settings set{};
  counters counted{};

  [[nodiscard]] inventory now() const {
    const std::lock_guard lock{mutex_};
    return {blocks_.size(), streams_.size(), events_.size()};
  }

  /// Memory as only others make it. Freed by `free`.
  [[nodiscard]] std::byte* allocate(origin from, int device, std::uint64_t bytes) {
    block_record block;
    block.bytes = bytes;
    block.from = from;
    block.device = device;
    block.file.reset(::memfd_create("fake-cuda", MFD_CLOEXEC));
    if (::ftruncate(block.file.get(), static_cast<off_t>(in_pages(bytes))) != 0) return nullptr;
    return insert(std::move(block));
  }
  bool free(const void* data) {
    const std::lock_guard lock{mutex_};
    const auto found = blocks_.find(address(data));
    if (found == blocks_.end()) return false;
    const block_record& block = found->second;
    // The addresses of device memory stay without access and are given to nobody else, as the driver's are.
    if (block.from != origin::registered) ::munmap(block.window, in_pages(block.bytes));
    blocks_.erase(found);
    return true;
  }

  /// Puts memory behind a part of reserved addresses, and takes it away.
  void map(std::byte* data, std::uint64_t bytes) {
    const std::lock_guard lock{mutex_};
    block_record& block = blocks_.at(find(address(data), bytes)->first);
    block.mappings.emplace(address(data), bytes);
    block.numbers[address(data)] = ++last_number_;
  }
  void unmap(std::byte* data) {
    const std::lock_guard lock{mutex_};
    blocks_.at(find(address(data), 1)->first).mappings.erase(address(data));
  }

  [[nodiscard]] std::vector<std::byte> bytes_of(const void* data, std::uint64_t bytes) {
    const std::byte* const window = reach(address(data), bytes);
    return {window, window + bytes};
  }
  void fill(void* data, std::span<const std::byte> with) {
    std::memcpy(reach(address(data), with.size()), with.data(), with.size());
  }

  /// Where the CPU finds the bytes at a device address; null if nobody has them.
  [[nodiscard]] std::byte* reach(std::uint64_t first, std::uint64_t bytes) {
    {
      const std::lock_guard lock{mutex_};
      if (const auto found = find(first, bytes); found != blocks_.end())
        return window_of(found, first, bytes);
    }
    auto* const data = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(first));
    return tensorhub::detail::cpu_can_read(data, bytes) ? data : nullptr;
  }
  /// False: plain host memory, or nobody's.
  [[nodiscard]] bool knows(std::uint64_t data) const {
    const std::lock_guard lock{mutex_};
    return find(data, 1) != blocks_.end();
  }
  /// cuMemcpyAsync with this end: what cuMemAlloc has not made is copied by its own device's streams only,
  /// and not to or from another device.
  [[nodiscard]] bool may_copy(std::uint64_t end, std::uint64_t other_end, int device) const {
    const std::lock_guard lock{mutex_};
    const auto found = find(end, 1);
    if (found == blocks_.end()) return true;
    if (found->second.from != origin::pool && found->second.from != origin::reserved) return true;
    const auto other = find(other_end, 1);
    return found->second.device == device &&
           (other == blocks_.end() || other->second.is_on_host() || other->second.context() == device);
  }
  /// Device memory that is used in the context of a device.
  [[nodiscard]] bool is_mapped_for(std::uint64_t data, int device) const {
    const std::lock_guard lock{mutex_};
    const auto found = find(data, 1);
    return found != blocks_.end() && !found->second.is_on_host() && found->second.context() == device;
  }
  /// As `reach`, for a kernel of a device.
  [[nodiscard]] std::byte* reach_by_kernel(std::uint64_t first, std::uint64_t bytes, int device) {
    const std::lock_guard lock{mutex_};
    const auto found = find(first, bytes);
    if (found == blocks_.end()) return nullptr;
    const bool everywhere = found->second.window == reinterpret_cast<std::byte*>(found->first);
    return everywhere || found->second.device == device ? window_of(found, first, bytes) : nullptr;
  }

  /// The function that the driver's library would have under a name; null: none.
  [[nodiscard]] void* lookup(std::string_view name) const;

 private:
  friend struct entry_points;
  friend class stream_thread;
  using block_map = std::map<std::uintptr_t, block_record>;

  [[nodiscard]] static std::uintptr_t address(const void* data) noexcept {
    return reinterpret_cast<std::uintptr_t>(data);
  }
  [[nodiscard]] static std::uint64_t in_pages(std::uint64_t bytes) noexcept {
    return (bytes + 4095) / 4096 * 4096;
  }
  [[nodiscard]] block_map::const_iterator find(std::uint64_t first, std::uint64_t bytes) const {
    auto at = blocks_.upper_bound(static_cast<std::uintptr_t>(first));
    if (at == blocks_.begin()) return blocks_.end();
    --at;
    const std::uint64_t inside = first - at->first;
    return inside < at->second.bytes && bytes <= at->second.bytes - inside ? at : blocks_.end();
  }
  /// Null, and counted, if there is no memory behind a part of the run.
  [[nodiscard]] std::byte* window_of(block_map::const_iterator block, std::uint64_t first,
                                     std::uint64_t bytes) {
    if (block->second.is_mapped(static_cast<std::uintptr_t>(first), bytes))
      return block->second.window + (first - block->first);
    counted.unmapped_touches.fetch_add(1);
    return nullptr;
  }
  /// The next address of a device (the mutex is held). No address is given out twice.
  [[nodiscard]] std::uintptr_t next_address(int device, std::uint64_t bytes) {
    constexpr std::uint64_t unit = 2u << 20;
    constexpr std::uint64_t all = 1ull << 38;
    const auto up = [](std::uintptr_t at, std::uint64_t to) { return (at + to - 1) / to * to; };
    arena& from = arenas_[device];
    if (from.next == 0) {
      void* const made = ::mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (made == MAP_FAILED) return 0;
      from.next = up(address(made), unit);
      from.end = address(made) + all;
    }
    const bool small = bytes < unit / 2;
    if (!small || from.small_next == 0 || bytes > from.small_end - from.small_next) {
      const std::uint64_t taken = small ? unit : up(bytes, unit);
      if (taken > from.end - from.next) return 0;
      const std::uintptr_t at = std::exchange(from.next, from.next + taken);
      if (!small) return at;
      from.small_next = at;
      from.small_end = at + unit;
    }
    const std::uintptr_t at = from.small_next;
    from.small_next = std::min(from.small_end, up(at + std::max<std::uint64_t>(bytes, 1), 512));
    return at;
  }
  [[nodiscard]] std::byte* insert(block_record block) {
    void* const window =
        ::mmap(nullptr, in_pages(block.bytes), PROT_READ | PROT_WRITE, MAP_SHARED, block.file.get(), 0);
    if (window == MAP_FAILED) return nullptr;
    block.window = static_cast<std::byte*>(window);
    const std::lock_guard lock{mutex_};
    const bool of_host = block.from == origin::pinned || block.from == origin::managed;
    const std::uintptr_t data = of_host ? address(window) : next_address(block.device, block.bytes);
    if (data == 0) {
      ::munmap(window, in_pages(block.bytes));
      return nullptr;
    }
    block.numbers[data] = ++last_number_;
    blocks_.emplace(data, std::move(block));
    return reinterpret_cast<std::byte*>(data);
  }
  [[nodiscard]] bool may_succeed() noexcept {
    std::uint64_t left = set.fail_after.load();
    if (left == UINT64_MAX) return true;
    while (left > 0 && !set.fail_after.compare_exchange_weak(left, left - 1)) {
    }
    return left > 0;
  }

  struct arena {
    std::uintptr_t next = 0;
    std::uintptr_t end = 0;
    std::uintptr_t small_next = 0;
    std::uintptr_t small_end = 0;
  };

  mutable std::mutex mutex_;
  block_map blocks_;
  std::uint64_t last_number_ = 0;  ///< of what was mapped or allocated
  std::map<int, arena> arenas_;    ///< by device
  std::map<CUstream, std::unique_ptr<stream_thread>> streams_;
  /// By device and thread (0: the legacy stream, which all threads share); made on first use.
  std::map<std::pair<int, pid_t>, std::unique_ptr<stream_thread>> default_streams_;
  std::map<CUevent, std::shared_ptr<event_record>> events_;
};

/// One stream. A piece that fails makes all later ones fail the same way.
class stream_thread {
 public:
  explicit stream_thread(int device)
      : device_{device},
        number_{driver::instance().counted.streams.fetch_add(1) + 1},
        thread_{[this](const std::stop_token& stop) { work(stop); }} {}
  ~stream_thread() {
    {
      const std::lock_guard lock{mutex_};  // `work` is not between its look and its wait
      thread_.request_stop();
      changed_.notify_all();
    }
    thread_.join();
  }
  void queue(std::function<CUresult()> work_piece) {
    const std::lock_guard lock{mutex_};
    pieces_.push_back({std::move(work_piece), nullptr, 0});
    changed_.notify_all();
  }
  void record(std::shared_ptr<event_record> event, std::uint64_t number) {
    const std::lock_guard lock{mutex_};
    pieces_.push_back({{}, std::move(event), number});
    changed_.notify_all();
  }
  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

 private:
  struct piece {
    std::function<CUresult()> work;
    std::shared_ptr<event_record> event;
    std::uint64_t number = 0;
  };
  void work(const std::stop_token& stop) {
    driver& all = driver::instance();
    CUresult result = CUDA_SUCCESS;
    std::unique_lock lock{mutex_};
    for (;;) {
      changed_.wait(lock, [&] { return stop.stop_requested() || !pieces_.empty(); });
      if (pieces_.empty()) return;
      const piece next = std::move(pieces_.front());
      pieces_.pop_front();
      lock.unlock();
      while (all.set.held || all.set.held_stream == number_)
        std::this_thread::sleep_for(std::chrono::microseconds{100});
      if (next.event != nullptr) {
        const std::lock_guard events{all.mutex_};
        next.event->reached = std::max(next.event->reached, next.number);
        next.event->result = result;
      } else {
        if (const auto delay = all.set.delay_ns.load(); delay > 0)
          std::this_thread::sleep_for(std::chrono::nanoseconds{delay});
        if (result == CUDA_SUCCESS) result = all.may_succeed() ? next.work() : CUDA_ERROR_LAUNCH_FAILED;
      }
      lock.lock();
    }
  }

  int device_;
  std::uint64_t number_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<piece> pieces_;
  std::jthread thread_;
};

}  // namespace fake_cuda
