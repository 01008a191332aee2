#pragma once
/// \file cuda.hpp
/// Memory spaces `cuda_memory` (weights on GPUs) and `cuda_pinned_memory` (offloads and staging in pinned
/// host memory). Component TensorHub::cuda.
///
///     using hub = tensorhub::hub<tensorhub::transports::tcp, tensorhub::nearest_source,
///                                tensorhub::group_consistent, tensorhub::xxh3_128, tensorhub::cuda_memory>;
///
/// The driver is asked what a pointer is (memory/cuda/context.hpp):
///
/// | pointer                             | kind         | device                       | CPU may follow it |
/// |-------------------------------------|--------------|------------------------------|-------------------|
/// | cudaMalloc, pools, cuMemMap         | cuda_device  | the one it lies on           | no                |
/// | cudaMallocHost, cudaHostRegister    | cuda_pinned  | the one it was made through  | yes               |
/// | cudaMallocManaged                   | cuda_managed | likewise                     | yes               |
/// | anything else that the CPU can read | host         | none; as host_memory says it | yes               |
/// | freed, unmapped, another process's  | error `invalid_argument`                                       |
///
/// A shard may mix all of these kinds, and several devices. Without an NVIDIA driver all memory is host
/// memory, and a function that needs a device throws `system_failed` with the reason.
///
/// Thread safety: any thread may call any function; marks belong to one thread at a time.

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/concepts/memory_space.hpp"
#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/cpu_access.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/memory/cuda/context.hpp"
#include "tensorhub/memory/cuda/device.hpp"
#include "tensorhub/memory/cuda/driver.hpp"
#include "tensorhub/memory/cuda/mark.hpp"
#include "tensorhub/memory/host.hpp"
#include "tensorhub/types/device_access.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace detail {

/// See the table above. Throws `invalid_argument`.
template <typename Driver>
[[nodiscard]] memory_range describe_cuda(void* data, std::uint64_t bytes) {
  if (data == nullptr) throw error(errc::invalid_argument, "null is no memory");
  cuda_pointer found;
  std::string no_driver;
  try {
    const cuda_functions& cuda = Driver::functions();
    cuda_check(cuda, ask_cuda_pointer(cuda, data, bytes, found), "cuPointerGetAttributes",
               "the driver does not say what an address is");
  } catch (const error& e) {
    no_driver = e.sentence();
  }
  const auto first = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(data));
  if (!found.known()) {
    if (!cpu_can_read(data, bytes)) {
      throw error(
          errc::invalid_argument,
          "neither memory of a device of this process nor of the host: was it freed, or is it another "
          "process's pointer?" +
              (no_driver.empty() ? no_driver : " (" + no_driver + ")"));
    }
    return host_memory{}.describe(data, bytes);
  }
  if (!found.holds(first, bytes)) {
    throw error(errc::invalid_argument,
                std::to_string(bytes) + " bytes reach beyond the allocation: it has " +
                    std::to_string(found.bytes - (first - found.begin)) + " from this address on");
  }
  memory_range range{static_cast<std::byte*>(data), bytes};
  // Registered memory may also be in a file (cuda_pinned_memory).
  if (!found.is_device_memory() && !found.managed) range = host_memory{}.describe(data, bytes);
  range.kind = found.managed              ? memory_kind::cuda_managed
               : found.is_device_memory() ? memory_kind::cuda_device
                                          : memory_kind::cuda_pinned;
  range.device = &cuda_device<Driver>::at(found.device);
  return range;
}

[[nodiscard]] inline std::uint64_t checked_size(std::uint64_t bytes) {
  if (bytes == 0 || bytes > limits::shard_bytes)
    throw error(errc::invalid_argument, "cannot allocate " + std::to_string(bytes) + " bytes");
  return bytes;
}

}  // namespace detail

template <typename Driver>
class basic_cuda_pinned_memory;

/// Model of `streaming_memory_space` (concepts/memory_space.hpp), with `allocation_around`.
/// `Driver`: see memory/cuda/driver.hpp.
template <typename Driver>
class basic_cuda_memory {
 public:
  using concept_tag = memory_space_tag;
  using device_type = cuda_device<Driver>;
  using stream_type = CUstream;  ///< the same pointer as the CUDA runtime's cudaStream_t
  using mark_type = cuda_mark<Driver>;
  using offload_space = basic_cuda_pinned_memory<Driver>;
  static constexpr bool host_accessible = false;
  static constexpr int current_device = -1;

  struct options {
    int device = current_device;  ///< the device of `allocate`: an ordinal, or the calling thread's device
  };

  basic_cuda_memory() = default;
  explicit basic_cuda_memory(options chosen) : options_{chosen} {}
  basic_cuda_memory(const basic_cuda_memory& other) : options_{other.options_} {}
  basic_cuda_memory& operator=(const basic_cuda_memory& other) {
    options_ = other.options_;
    return *this;
  }

  /// Zero-filled device memory, aligned to 4 KiB, which CUDA IPC can export. When it is freed, the driver
  /// waits for the device's running work, so it should not be freed in the middle of a step.
  class allocation {
   public:
    allocation(device_type& device, std::uint64_t bytes)
        : device_{&device}, base_{device.allocate(detail::checked_size(bytes) + page_bytes)}, bytes_{bytes} {}
    allocation(allocation&& other) noexcept
        : device_{other.device_}, base_{std::exchange(other.base_, 0)}, bytes_{other.bytes_} {}
    allocation& operator=(allocation&& other) noexcept {
      std::swap(device_, other.device_);
      std::swap(base_, other.base_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~allocation() {
      if (base_ != 0) device_->free(base_);
    }
    [[nodiscard]] memory_range range() const noexcept {
      memory_range out{data(), bytes_, memory_kind::cuda_device};
      out.device = device_;
      return out;
    }
    [[nodiscard]] std::byte* data() const noexcept {
      const auto aligned = (base_ + page_bytes - 1) / page_bytes * page_bytes;
      return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(aligned));
    }

   private:
    static constexpr std::uint64_t page_bytes = 4096;  // the driver promises 256
    device_type* device_;
    CUdeviceptr base_;
    std::uint64_t bytes_;
  };

  /// Throws `invalid_argument` if the size is zero or too large or the device does not exist, else
  /// `system_failed`.
  [[nodiscard]] allocation allocate(std::uint64_t bytes) { return allocation{device(), bytes}; }

  /// The same on the device of `neighbour`, unless the options name one or `neighbour` is host memory.
  [[nodiscard]] allocation allocate_beside(const memory_range& neighbour, std::uint64_t bytes) {
    const bool is_free = options_.device == current_device && neighbour.kind == memory_kind::cuda_device;
    return allocation{is_free ? *static_cast<device_type*>(neighbour.device) : device(), bytes};
  }

  /// The device that `allocate` uses.
  [[nodiscard]] device_type& device() const {
    return options_.device == current_device ? device_type::current() : device_type::at(options_.device);
  }

  /// Of the device on which the tensors of a worker that this thread makes will lie, as far as that is known
  /// before they are added; empty: it is not.
  [[nodiscard]] std::string pci_address() const {
    const device_type* const probably =
        options_.device == current_device ? device_type::in_use() : &device_type::at(options_.device);
    return probably != nullptr ? probably->pci_address() : std::string{};
  }

  /// See the table at the head of the file.
  [[nodiscard]] memory_range describe(void* data, std::uint64_t bytes) {
    return detail::describe_cuda<Driver>(data, bytes);
  }

  /// The allocation that contains the whole range; for host memory, the one that host_memory knows. For
  /// memory that CUDA IPC cannot export (pools, virtual memory management) it is the range itself: what the
  /// driver reports there is a reservation of addresses, which may have holes (PyTorch's expandable
  /// segments).
  [[nodiscard]] memory_range allocation_around(const memory_range& range) {
    memory_range out = range;
    if (range.kind == memory_kind::host) return host_memory{}.allocation_around(range);
    if (range.kind == memory_kind::cuda_pinned) {
      out = host_memory{}.allocation_around(range);
      out.kind = range.kind;
      out.device = range.device;
      if (out.backing_fd >= 0) return out;
    }
    detail::cuda_pointer found;
    if (detail::ask_cuda_pointer(Driver::functions(), range.data, range.bytes, found) == CUDA_SUCCESS &&
        found.known() && found.bytes != 0 && found.holds(detail::cuda_address(range.data), range.bytes) &&
        (found.legacy_ipc || !found.is_device_memory())) {
      out.data = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(found.begin));
      out.bytes = found.bytes;
    }
    return out;
  }

  /// Changes when other memory of a device is put behind the same addresses. 0: host memory.
  [[nodiscard]] std::uint64_t identity(const memory_range& range) const {
    if (range.host_accessible()) return 0;
    return detail::ask_cuda_identity(Driver::functions(), detail::cuda_address(range.data), range.bytes);
  }

  /// Copies between any two kinds of memory. Complete on return; if the copy failed, `trouble` has the
  /// reason.
  void copy(void* to, const void* from, std::uint64_t bytes) noexcept {
    const copy_run run{static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes};
    static_cast<void>(copy_all(std::span{&run, 1}));
  }

  /// Copies all runs, those within device memory in batches: a device has `device_lane::patience` for each.
  /// Returns false if at least one failed.
  [[nodiscard]] bool copy_all(std::span<const copy_run> runs) noexcept {
    try {
      while (!runs.empty()) {
        std::size_t count = 0;
        for (std::uint64_t bytes = 0; count < runs.size() && bytes < batch_bytes; ++count)
          bytes += runs[count].bytes;
        if (!copy_batch(runs.first(count))) return false;
        runs = runs.subspan(count);
      }
      return true;
    } catch (const std::exception& e) {
      note(e.what());
      return false;
    }
  }

  /// The reason for the first failed copy; empty if none has failed.
  [[nodiscard]] std::string trouble() const {
    const std::lock_guard lock{mutex_};
    return trouble_;
  }

  /// Orders the library's work after the user's: `mark(stream).state()` is `done` when all work is done that
  /// the stream held at the call. No function waits for it. memory/cuda/mark.hpp says what it throws.
  [[nodiscard]] mark_type mark(stream_type stream) { return mark_type{stream}; }

 private:
  static constexpr std::uint64_t batch_bytes = 4ull << 30;

  /// Each run is for the device that it touches: another one may not reach that one's memory.
  [[nodiscard]] bool copy_batch(std::span<const copy_run> runs) {
    std::map<device_type*, std::vector<copy_run>> by_device;
    for (const copy_run& run : runs) {
      if (run.bytes != 0) by_device[device_of(run)].push_back(run);
    }
    for (const auto& [with, its] : by_device) {
      if (with == nullptr) {
        for (const copy_run& run : its) std::memcpy(run.to, run.from, run.bytes);
        continue;
      }
      std::string why;
      if (with->with_lane([&of = its](auto& lane) { return lane.copy_all(of); }, why)) continue;
      note(why);
      return false;
    }
    return true;
  }

  /// The device of the first end that lies on one; null if none does or there is no driver.
  [[nodiscard]] static device_type* device_of(const copy_run& run) {
    for (void* const end :
         {static_cast<void*>(run.to), const_cast<void*>(static_cast<const void*>(run.from))}) {
      const memory_range found = detail::describe_cuda<Driver>(end, run.bytes);
      if (!found.host_accessible()) return static_cast<device_type*>(found.device);
    }
    return nullptr;
  }
  void note(const std::string& why) noexcept {
    const std::lock_guard lock{mutex_};
    if (trouble_.empty()) trouble_ = why;
  }

  options options_{};
  mutable std::mutex mutex_;
  std::string trouble_;
};

/// Pinned host memory in a memfd: a device copies from and to it at full speed, the CPU can follow its
/// pointers, and transports serve it like host memory (sendfile, mappings of same-host readers).
template <typename Driver>
class basic_cuda_pinned_memory {
 public:
  using concept_tag = memory_space_tag;
  using device_type = cuda_device<Driver>;
  static constexpr bool host_accessible = true;

  class allocation {
   public:
    allocation(device_type& device, std::uint64_t bytes) : device_{&device}, pages_{bytes} {
      const cuda_functions& cuda = device.functions();
      const detail::cuda_scope scope{cuda, device.context()};
      CUresult result = scope.result();
      if (result == CUDA_SUCCESS)
        result =
            cuda.host_register(pages_.data(), static_cast<std::size_t>(bytes), CU_MEMHOSTREGISTER_PORTABLE);
      is_pinned_ = result == CUDA_SUCCESS;
      if (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED) return;
      detail::cuda_check(cuda, result, "cuMemHostRegister",
                         std::to_string(bytes) + " bytes of host memory cannot be pinned");
    }
    allocation(allocation&& other) noexcept
        : device_{other.device_},
          pages_{std::move(other.pages_)},
          is_pinned_{std::exchange(other.is_pinned_, false)} {}
    allocation& operator=(allocation&& other) noexcept {
      std::swap(device_, other.device_);
      std::swap(pages_, other.pages_);
      std::swap(is_pinned_, other.is_pinned_);
      return *this;
    }
    ~allocation() {
      if (!is_pinned_) return;
      const detail::cuda_scope scope{device_->functions(), device_->context()};
      static_cast<void>(device_->functions().host_unregister(pages_.data()));
    }
    [[nodiscard]] memory_range range() const noexcept {
      memory_range out = pages_.range();
      if (!is_pinned_) return out;
      out.kind = memory_kind::cuda_pinned;
      out.device = device_;
      return out;
    }
    [[nodiscard]] std::byte* data() const noexcept { return pages_.data(); }

   private:
    device_type* device_;
    host_memory::allocation pages_;
    bool is_pinned_ = false;
  };

  /// Pinned for all devices; where the driver pins no pages (in the confidential mode of an H100) it is plain
  /// host memory, which devices copy more slowly. Throws `invalid_argument` for a bad size, else
  /// `system_failed`.
  [[nodiscard]] allocation allocate(std::uint64_t bytes) { return allocation{device_type::current(), bytes}; }
  /// Throws `invalid_argument` for device memory.
  [[nodiscard]] memory_range describe(void* data, std::uint64_t bytes) {
    const memory_range range = detail::describe_cuda<Driver>(data, bytes);
    if (!range.host_accessible())
      throw error(errc::invalid_argument, "memory of a device is no host memory: use cuda_memory");
    return range;
  }
  [[nodiscard]] memory_range allocation_around(const memory_range& range) {
    return basic_cuda_memory<Driver>{}.allocation_around(range);
  }
  void copy(void* to, const void* from, std::uint64_t bytes) noexcept { std::memcpy(to, from, bytes); }
};

using cuda_memory = basic_cuda_memory<cuda_driver>;
using cuda_pinned_memory = basic_cuda_pinned_memory<cuda_driver>;
static_assert(streaming_memory_space<cuda_memory> && memory_space<cuda_pinned_memory>);

}  // namespace tensorhub::inline TENSORHUB_MODE
