#pragma once
/// \file device.hpp
/// A CUDA device as an implementation of types/device_access.hpp.
///
/// There is one object per device and process. It is made on first use and never destroyed: ranges and lanes
/// point to it, and the driver may be unloaded before static objects are destroyed. It works in the device's
/// primary context, which the CUDA runtime and the frameworks use too, and keeps that context.
///
/// A process that has used CUDA must not continue in a child of fork(); the driver does not support that.
///
/// Thread safety: any thread; each lane is for one thread at a time.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/memory/cuda/context.hpp"
#include "tensorhub/memory/cuda/functions.hpp"
#include "tensorhub/memory/cuda/jobs.hpp"
#include "tensorhub/memory/cuda/kernel_image.hpp"  // made by the build, from kernels/kernels.cu
#include "tensorhub/memory/cuda/lane.hpp"
#include "tensorhub/types/device_access.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// `Driver`: see memory/cuda/driver.hpp.
template <typename Driver>
class cuda_device final : public device_access {
 public:
  using lane_type = detail::cuda_lane<cuda_device>;

  /// The number of devices that this process may use. Throws what `Driver::functions` throws.
  [[nodiscard]] static int count() { return static_cast<int>(all().size()); }

  /// The device with this CUDA ordinal in this process. Throws `invalid_argument`, or like `count`.
  [[nodiscard]] static cuda_device& at(int ordinal) {
    const auto& devices = all();
    if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= devices.size()) {
      throw error(errc::invalid_argument, "there is no device cuda:" + std::to_string(ordinal) +
                                              "; this process may use " + std::to_string(devices.size()));
    }
    return *devices[static_cast<std::size_t>(ordinal)];
  }

  /// The calling thread's device, as cudaGetDevice reports it. A thread that has none, such as those of this
  /// library, gets the first one that the process uses, else device 0.
  [[nodiscard]] static cuda_device& current() {
    cuda_device* const known = in_use();
    return known != nullptr ? *known : at(0);
  }
  /// The same; null: there are several, and the process uses none yet.
  [[nodiscard]] static cuda_device* in_use() {
    const cuda_functions& cuda = Driver::functions();
    CUdevice device = 0;
    CUcontext context = nullptr;
    if (cuda.context_get_current(&context) == CUDA_SUCCESS && context != nullptr &&
        cuda.context_get_device(&device) == CUDA_SUCCESS) {
      for (const auto& each : all()) {
        if (each->device_ == device) return each.get();
      }
    }
    for (const auto& each : all()) {
      unsigned flags = 0;
      int is_active = 0;
      if (cuda.primary_context_get_state(each->device_, &flags, &is_active) == CUDA_SUCCESS && is_active != 0)
        return each.get();
    }
    return count() == 1 ? &at(0) : nullptr;
  }

  [[nodiscard]] int ordinal() const noexcept override { return ordinal_; }
  [[nodiscard]] const cuda_functions& functions() const noexcept { return *cuda_; }
  /// "0000:1b:00.0".
  [[nodiscard]] std::string pci_address() const {
    std::array<char, 40> text{};
    std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.0",
                  static_cast<unsigned>(attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)),
                  static_cast<unsigned>(attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)),
                  static_cast<unsigned>(attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)));
    return text.data();
  }

  /// The primary context. Throws `system_failed` on the first call if the driver does not provide it.
  [[nodiscard]] CUcontext context() {
    if (const CUcontext known = context_.load()) return known;
    const std::lock_guard lock{mutex_};
    if (context_ == nullptr) {
      const detail::outside_captures mode{*cuda_};
      CUcontext made = nullptr;
      detail::cuda_check(*cuda_, cuda_->primary_context_retain(&made, device_), "cuDevicePrimaryCtxRetain",
                         description_ + " cannot be used");
      context_ = made;
    }
    return context_;
  }

  // ---- device_access ------------------------------------------------------------------------------------

  [[nodiscard]] std::string description() const override { return description_; }

  [[nodiscard]] std::unique_ptr<device_lane> open_lane() override { return open_cuda_lane(); }
  [[nodiscard]] std::unique_ptr<lane_type> open_cuda_lane() {
    load_kernels();
    return std::make_unique<lane_type>(*this);
  }

  /// All devices can use it. Allocation is slow (the pages are locked in memory one by one), so keep the
  /// memory.
  [[nodiscard]] std::byte* allocate_pinned(std::uint64_t bytes) override {
    const detail::cuda_scope scope{*cuda_, context()};
    void* memory = nullptr;
    CUresult result = scope.result();
    if (result == CUDA_SUCCESS)
      result = cuda_->host_allocate(&memory, static_cast<std::size_t>(bytes), CU_MEMHOSTALLOC_PORTABLE);
    detail::cuda_check(*cuda_, result, "cuMemHostAlloc",
                       "no pinned host memory for " + std::to_string(bytes) + " bytes");
    return static_cast<std::byte*>(memory);
  }
  void free_pinned(std::byte* memory, std::uint64_t) noexcept override {
    const detail::cuda_scope scope{*cuda_, context_};
    static_cast<void>(cuda_->host_free(memory));
  }

  /// For all devices of the process, as `allocate_pinned`.
  [[nodiscard]] bool pin(std::byte* pages, std::uint64_t bytes, bool read_only) noexcept override {
    unsigned flags = CU_MEMHOSTREGISTER_PORTABLE;
    if (read_only) {
      if (attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) == 0) return false;
      flags |= CU_MEMHOSTREGISTER_READ_ONLY;
    }
    try {
      const detail::cuda_scope scope{*cuda_, context()};
      return scope.result() == CUDA_SUCCESS &&
             cuda_->host_register(pages, static_cast<std::size_t>(bytes), flags) == CUDA_SUCCESS;
    } catch (...) {  // no context
      return false;
    }
  }
  void unpin(std::byte* pages) noexcept override {
    const detail::cuda_scope scope{*cuda_, context_};
    static_cast<void>(cuda_->host_unregister(pages));
  }

  [[nodiscard]] std::optional<device_export> export_memory(const memory_range& range,
                                                           std::string& why_not) override {
    const detail::cuda_scope scope{*cuda_, context()};
    detail::cuda_pointer about;
    CUresult result = scope.result();
    if (result == CUDA_SUCCESS) result = detail::ask_cuda_pointer(*cuda_, range.data, range.bytes, about);
    if (result == CUDA_SUCCESS && !about.is_device_memory()) {
      why_not = "this is no memory of " + description_ + (about.known() ? "" : ": was it freed?");
      return std::nullopt;
    }
    if (result == CUDA_SUCCESS && !about.legacy_ipc) {
      why_not =
          "CUDA IPC exports memory of cudaMalloc only, and this is of a memory pool (cudaMallocAsync) or of "
          "virtual memory management (PyTorch: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False)";
      return std::nullopt;
    }
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    CUipcMemHandle handle{};
    if (result == CUDA_SUCCESS)
      result = cuda_->memory_get_range(&base, &bytes, detail::cuda_address(range.data));
    const std::uint64_t offset = detail::cuda_address(range.data) - base;
    if (result == CUDA_SUCCESS && (offset > bytes || range.bytes > bytes - offset)) {
      why_not = "the range reaches beyond its allocation";
      return std::nullopt;
    }
    if (result == CUDA_SUCCESS) result = cuda_->ipc_get_handle(&handle, base);
    if (result != CUDA_SUCCESS) {
      why_not = detail::cuda_words(*cuda_, "cuIpcGetMemHandle", result);
      return std::nullopt;
    }
    device_export out;
    static_assert(sizeof handle == sizeof out.handle);
    std::memcpy(out.handle.data(), &handle, sizeof handle);
    out.device_id = id_;
    out.allocation_bytes = bytes;
    out.offset = offset;
    return out;
  }

  /// Each allocation is mapped once per process and reader's device, however often it is imported. The
  /// memory may lie on a device that CUDA_VISIBLE_DEVICES hides from this process.
  [[nodiscard]] std::unique_ptr<device_import> import_memory(const device_export& from) override {
    const detail::cuda_scope scope{*cuda_, context()};
    detail::cuda_check(*cuda_, scope.result(), "cuCtxPushCurrent", description_ + " cannot be used");
    const std::lock_guard one_at_a_time{import_mutex_};
    const auto found = mappings_.find(from.handle);
    if (found != mappings_.end()) {
      check_size(found->second.bytes, from);
      auto again = std::make_unique<imported>(*this, found->first, found->second.data);
      ++found->second.users;
      return again;
    }
    CUipcMemHandle handle{};
    std::memcpy(&handle, from.handle.data(), sizeof handle);
    CUdeviceptr data = 0;
    const CUresult result = cuda_->ipc_open_handle(&data, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result == CUDA_ERROR_ALREADY_MAPPED) return nullptr;
    detail::cuda_check(
        *cuda_, result, "cuIpcOpenMemHandle",
        description_ +
            " cannot map the exported memory (its process has ended or freed it, or there is no path "
            "between the two devices" +
            (is_visible(from.device_id) ? ")" : "; its device is hidden from this process)"));
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    auto* const first = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(data));
    try {
      // The mapping has whole pages of the device; if the driver does not report its size, the exported size
      // is used.
      if (cuda_->memory_get_range(&base, &bytes, data) != CUDA_SUCCESS) bytes = from.allocation_bytes;
      check_size(bytes, from);
      const std::lock_guard lock{mutex_};
      mappings_.emplace(from.handle, mapping{first, bytes, 1});
      return std::make_unique<imported>(*this, from.handle, first);
    } catch (...) {
      const std::lock_guard lock{mutex_};
      mappings_.erase(from.handle);
      static_cast<void>(cuda_->ipc_close_handle(data));
      throw;
    }
  }

  /// The ordinal of the device through which memory of another process was mapped here; -1: this is none.
  [[nodiscard]] static int importer_of(const void* data) {
    const std::uint64_t at = detail::cuda_address(data);
    for (const auto& each : all()) {
      const std::lock_guard lock{each->mutex_};
      for (const auto& [handle, found] : each->mappings_) {
        const std::uint64_t begin = detail::cuda_address(found.data);
        if (at >= begin && at - begin < found.bytes) return each->ordinal_;
      }
    }
    return -1;
  }

  void in_context(const std::function<void()>& work) override {
    const detail::cuda_scope scope{*cuda_, context()};
    work();
  }

  [[nodiscard]] int export_dmabuf(const memory_range& range, std::uint64_t& offset,
                                  std::string& why_not) override {
    if (cuda_->memory_get_handle == nullptr || attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) == 0) {
      why_not = description_ +
                " gives no dmabufs (they need the open kernel modules of the driver, and Linux "
                "5.12 or newer)";
      return -1;
    }
    const detail::cuda_scope scope{*cuda_, context()};
    // The driver needs whole pages of the host; allocations begin and end at pages of the device, which are
    // larger.
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const std::uint64_t first = detail::cuda_address(range.data);
    const std::uint64_t begin = first / page * page;
    const std::uint64_t end = (first + range.bytes + page - 1) / page * page;
    int descriptor = -1;
    CUresult result = scope.result();
    if (result == CUDA_SUCCESS)
      result = cuda_->memory_get_handle(&descriptor, static_cast<CUdeviceptr>(begin),
                                        static_cast<std::size_t>(end - begin),
                                        CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (result != CUDA_SUCCESS) {
      why_not = detail::cuda_words(*cuda_, "cuMemGetHandleForAddressRange", result);
      return -1;
    }
    offset = first - begin;
    return descriptor;
  }

  [[nodiscard]] bool flush_arrived() noexcept override {
    const bool is_visible_to_all = attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >=
                                   CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES;
    const bool can_flush = cuda_->flush_remote_writes != nullptr &&
                           (attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) &
                            CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) != 0;
    if (is_visible_to_all || !can_flush) return true;
    try {
      const detail::cuda_scope scope{*cuda_, context()};
      return scope.result() == CUDA_SUCCESS &&
             cuda_->flush_remote_writes(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                        CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES) == CUDA_SUCCESS;
    } catch (...) {  // no context
      return false;
    }
  }

  // ---- for memory/cuda.hpp and the lanes ----------------------------------------------------------------

  /// Zero-filled device memory; the call does not wait for the user's work. Throws `system_failed`.
  [[nodiscard]] CUdeviceptr allocate(std::uint64_t bytes) {
    CUdeviceptr data = 0;
    {
      const detail::cuda_scope scope{*cuda_, context()};
      CUresult result = scope.result();
      if (result == CUDA_SUCCESS) result = cuda_->memory_allocate(&data, static_cast<std::size_t>(bytes));
      if (result != CUDA_SUCCESS) {
        std::size_t free_bytes = 0;
        std::size_t all_bytes = 0;
        static_cast<void>(cuda_->memory_get_info(&free_bytes, &all_bytes));
        detail::cuda_check(*cuda_, result, "cuMemAlloc",
                           description_ + " has no room for " + std::to_string(bytes) + " bytes (" +
                               std::to_string(free_bytes) + " of " + std::to_string(all_bytes) +
                               " are free)");
      }
    }
    try {
      std::string trouble;
      if (with_lane([&](lane_type& lane) { return lane.clear(data, bytes); }, trouble)) return data;
      throw error(errc::system_failed, "new device memory cannot be cleared: " + trouble);
    } catch (...) {
      free(data);
      throw;
    }
  }
  /// The driver waits for all work of the device that may use any memory.
  void free(CUdeviceptr data) noexcept {
    const detail::cuda_scope scope{*cuda_, context_};
    static_cast<void>(cuda_->memory_free(data));
  }

  /// Queues one piece on the lane that the device keeps for short tasks, and waits until it is done. Returns
  /// false and sets `trouble` if the piece failed or took longer than the lane's patience.
  template <typename Work>
  [[nodiscard]] bool with_lane(Work&& work, std::string& trouble) {
    const std::lock_guard lock{errand_mutex_};
    if (errands_ == nullptr) errands_ = open_cuda_lane();
    if (errands_->wait(work(*errands_), lane_type::patience) == lane_state::done) return true;
    trouble = errands_->trouble();
    if (trouble.empty()) trouble = description_ + " has not gone on";
    errands_.reset();
    return false;
  }

  [[nodiscard]] detail::cuda_kernels kernels() const noexcept { return kernels_; }

  [[nodiscard]] detail::cuda_ring take_ring() {
    {
      const std::lock_guard lock{mutex_};
      if (!rings_.empty()) {
        const detail::cuda_ring ring = rings_.back();
        rings_.pop_back();
        return ring;
      }
    }
    detail::cuda_ring ring;
    ring.pinned = allocate_pinned(lane_type::ring_bytes);
    const detail::cuda_scope scope{*cuda_, context()};
    const CUresult result = cuda_->memory_allocate(&ring.on_device, lane_type::ring_bytes);
    if (result != CUDA_SUCCESS) {
      free_pinned(ring.pinned, lane_type::ring_bytes);
      detail::cuda_check(*cuda_, result, "cuMemAlloc", description_ + " has no room for a lane's ring");
    }
    const std::lock_guard lock{mutex_};
    rings_.reserve(++ring_count_);
    return ring;
  }
  void give_ring(detail::cuda_ring ring) noexcept {
    const std::lock_guard lock{mutex_};
    rings_.push_back(ring);  // there is room: take_ring
  }

 private:
  class imported final : public device_import {
   public:
    imported(cuda_device& owner, const std::array<std::byte, 64>& handle, std::byte* data) noexcept
        : owner_{&owner}, handle_{handle}, data_{data} {}
    ~imported() override { owner_->forget(handle_); }
    [[nodiscard]] std::byte* data() const noexcept override { return data_; }

   private:
    cuda_device* owner_;
    std::array<std::byte, 64> handle_;
    std::byte* data_;
  };
  struct mapping {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t users = 0;
  };

  cuda_device(const cuda_functions& cuda, int ordinal) : cuda_{&cuda}, ordinal_{ordinal} {
    const std::string name = "cuda:" + std::to_string(ordinal);
    detail::cuda_check(cuda, cuda.device_get(&device_, ordinal), "cuDeviceGet", name + " cannot be used");
    std::array<char, 256> text{};
    static_cast<void>(cuda.device_get_name(text.data(), static_cast<int>(text.size()) - 1, device_));
    description_ = name + " (" + text.data() + ")";
    CUuuid uuid{};
    detail::cuda_check(cuda, cuda.device_get_uuid(&uuid, device_), "cuDeviceGetUuid", name + " has no name");
    static_assert(sizeof uuid.bytes == sizeof id_);
    std::memcpy(id_.data(), uuid.bytes, sizeof uuid.bytes);
  }

  /// 0: no, or a driver that does not know the attribute.
  [[nodiscard]] int attribute(CUdevice_attribute which) const noexcept {
    int value = 0;
    return cuda_->device_get_attribute(&value, which, device_) == CUDA_SUCCESS ? value : 0;
  }

  [[nodiscard]] static const std::vector<std::unique_ptr<cuda_device>>& all() {
    static const auto* const devices = [] {
      const cuda_functions& cuda = Driver::functions();
      int count = 0;
      detail::cuda_check(cuda, cuda.device_get_count(&count), "cuDeviceGetCount", "no devices");
      auto found = std::make_unique<std::vector<std::unique_ptr<cuda_device>>>();
      for (int i = 0; i < count; ++i) found->emplace_back(new cuda_device{cuda, i});
      return found.release();
    }();
    return *devices;
  }

  [[nodiscard]] static bool is_visible(const std::array<std::byte, 16>& id) {
    return detail::any_of(all(), [&](const auto& each) { return each->id_ == id; });
  }

  static void check_size(std::uint64_t bytes, const device_export& from) {
    if (bytes >= from.allocation_bytes) return;
    throw error(errc::system_failed, "the exported memory is not what it was: " + std::to_string(bytes) +
                                         " bytes, not " + std::to_string(from.allocation_bytes));
  }

  void load_kernels() {
    const detail::cuda_scope scope{*cuda_, context()};
    const std::lock_guard lock{mutex_};
    if (module_ != nullptr) return;
    CUmodule loaded = nullptr;
    detail::cuda_check(*cuda_, cuda_->module_load(&loaded, cuda_jobs::kernel_image), "cuModuleLoadData",
                       "the kernels do not load on " + description_ + "; they were built by CUDA Toolkit " +
                           cuda_jobs::kernel_toolkit + " for " + cuda_jobs::kernel_architectures +
                           " (TENSORHUB_CUDA_ARCHITECTURES)");
    detail::cuda_kernels found;
    CUresult result = cuda_->module_get_function(&found.copy, loaded, cuda_jobs::copy_kernel);
    if (result == CUDA_SUCCESS)
      result = cuda_->module_get_function(&found.digest, loaded, cuda_jobs::digest_kernel);
    if (result == CUDA_SUCCESS)
      result = cuda_->module_get_function(&found.keyed_digest, loaded, cuda_jobs::keyed_digest_kernel);
    // The code of a kernel is loaded on its first use, and loading waits for the device: load it now.
    for (const CUfunction kernel : {found.copy, found.digest, found.keyed_digest}) {
      int bytes = 0;
      if (result == CUDA_SUCCESS)
        result = cuda_->function_get_attribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, kernel);
    }
    if (result != CUDA_SUCCESS) {
      static_cast<void>(cuda_->module_unload(loaded));
      detail::cuda_check(*cuda_, result, "cuModuleGetFunction", "the kernels do not load on " + description_);
    }
    kernels_ = found;
    module_ = loaded;
  }

  void forget(const std::array<std::byte, 64>& handle) noexcept {
    const detail::cuda_scope scope{*cuda_, context_};
    const std::lock_guard one_at_a_time{import_mutex_};
    const auto found = mappings_.find(handle);
    if (found == mappings_.end() || --found->second.users > 0) return;
    const std::byte* const data = found->second.data;
    {
      const std::lock_guard lock{mutex_};
      mappings_.erase(found);
    }
    static_cast<void>(cuda_->ipc_close_handle(detail::cuda_address(data)));
  }

  const cuda_functions* cuda_;
  int ordinal_;
  CUdevice device_ = 0;
  std::string description_;
  std::array<std::byte, 16> id_{};

  /// Held while a handle is opened or closed, which may take long; taken before `mutex_`, which lanes take.
  std::mutex import_mutex_;
  std::mutex mutex_;  // guards the members below; of `mappings_` the changes, which also hold `import_mutex_`
  std::atomic<CUcontext> context_ = nullptr;  ///< stays what it was made
  CUmodule module_ = nullptr;
  detail::cuda_kernels kernels_;
  std::vector<detail::cuda_ring> rings_;
  std::size_t ring_count_ = 0;
  std::map<std::array<std::byte, 64>, mapping> mappings_;

  std::mutex errand_mutex_;
  std::unique_ptr<lane_type> errands_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
