#pragma once
/// \file fake_cuda_driver.hpp
/// The NVIDIA driver's functions over fake_cuda_machine.hpp, for a machine without a device.
///
/// cuLaunchKernel runs the kernels' own source (kernels/*.cuh), block after block. IPC handles work between
/// processes, by the file of an allocation. It is stricter than the driver where that finds faults: a call
/// that needs a current context fails without one (and is counted), kernels reach memory of their own device
/// and pinned memory only, and no device has access to a peer's memory. While `capturing_globally` is set, a
/// call that the driver's reference calls potentially unsafe fails (and is counted) in every thread that has
/// not left the global mode.

#include <cuda.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <blake3.cuh>
#include <chrono>
#include <copy.cuh>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <tensorhub/detail/peer_read.hpp>
#include <tensorhub/memory/cuda/context.hpp>
#include <tensorhub/memory/cuda/functions.hpp>
#include <tensorhub/memory/cuda/jobs.hpp>
#include <thread>
#include <utility>
#include <vector>
#include <xxh3.cuh>

#include "fake_cuda_machine.hpp"

namespace fake_cuda {

/// A context is a device's number plus one, a function the number of its kernel.
struct entry_points {
  static driver& all() { return driver::instance(); }
  static std::vector<CUcontext>& contexts() {
    static thread_local std::vector<CUcontext> stack;
    return stack;
  }
  template <typename Handle>
  static Handle handle(std::uintptr_t number) {
    return reinterpret_cast<Handle>(number);
  }
  /// The current context's device; -1, and counted as a fault, without one.
  static int current() {
    if (contexts().empty()) {
      all().counted.context_faults.fetch_add(1);
      return -1;
    }
    return device_of(contexts().back());
  }
  static int device_of(CUcontext context) {
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1;
  }
  static CUstreamCaptureMode& capture_mode() {
    static thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    return mode;
  }
  /// True, and counted, if a potentially unsafe call of this thread ends the capture of another thread.
  static bool breaks_a_capture() {
    if (!all().set.capturing_globally || capture_mode() == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    all().counted.broken_captures.fetch_add(1);
    return true;
  }
  static bool is_legacy(CUstream stream) { return stream == nullptr || stream == CU_STREAM_LEGACY; }
  static stream_thread* stream_of(CUstream stream) {
    if (is_legacy(stream) || stream == CU_STREAM_PER_THREAD) {
      const int device = current();
      if (device < 0) return nullptr;
      const std::lock_guard lock{all().mutex_};
      auto& found = all().default_streams_[{device, is_legacy(stream) ? 0 : ::gettid()}];
      if (found == nullptr) found = std::make_unique<stream_thread>(device);
      return found.get();
    }
    const std::lock_guard lock{all().mutex_};
    const auto found = all().streams_.find(stream);
    return found == all().streams_.end() ? nullptr : found->second.get();
  }

  static CUresult init(unsigned) { return all().set.init; }
  static CUresult driver_get_version(int* version) {
    *version = all().set.version;
    return CUDA_SUCCESS;
  }
  static CUresult get_error_name(CUresult result, const char** name) {
    static const std::map<CUresult, const char*> names{
        {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
        {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
        {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
        {CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY"}};
    const auto found = names.find(result);
    *name = found == names.end() ? nullptr : found->second;
    return found == names.end() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  }
  static CUresult get_error_string(CUresult, const char** text) {
    *text = "as the fake driver was told";
    return CUDA_SUCCESS;
  }

  static CUresult device_get_count(int* count) {
    *count = all().set.devices;
    return CUDA_SUCCESS;
  }
  static CUresult device_get(CUdevice* device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
  }
  static CUresult device_get_name(char* name, int bytes, CUdevice) {
    std::strncpy(name, "fake GPU", static_cast<std::size_t>(bytes));
    return CUDA_SUCCESS;
  }
  static CUresult device_get_uuid(CUuuid* uuid, CUdevice device) {
    std::memset(uuid->bytes, 0xc0 + all().set.first_device + device, sizeof uuid->bytes);
    return CUDA_SUCCESS;
  }
  static CUresult device_get_attribute(int* value, CUdevice_attribute which, CUdevice device) {
    const std::map<CUdevice_attribute, int> values{
        {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
        {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0x1b + device},
        {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
        {CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, all().set.dmabufs ? 1 : 0},
        {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, all().set.gpu_direct.flush_options},
        {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, all().set.gpu_direct.ordering}};
    const auto found = values.find(which);
    if (found == values.end()) return CUDA_ERROR_INVALID_VALUE;
    *value = found->second;
    return CUDA_SUCCESS;
  }

  static CUresult exchange_capture_mode(CUstreamCaptureMode* mode) {
    std::swap(*mode, capture_mode());
    return CUDA_SUCCESS;
  }

  static CUresult primary_context_retain(CUcontext* context, CUdevice device) {
    if (breaks_a_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    *context = handle<CUcontext>(static_cast<std::uintptr_t>(device) + 1);
    return CUDA_SUCCESS;
  }
  static CUresult primary_context_get_state(CUdevice device, unsigned* flags, int* active) {
    *flags = 0;
    *active = (all().set.devices_in_use.load() >> device & 1u) != 0 ? 1 : 0;
    return CUDA_SUCCESS;
  }
  static CUresult context_push(CUcontext context) {
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    contexts().push_back(context);
    return CUDA_SUCCESS;
  }
  static CUresult context_pop(CUcontext* context) {
    if (contexts().empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = contexts().back();
    contexts().pop_back();
    return CUDA_SUCCESS;
  }
  static CUresult context_get_current(CUcontext* context) {
    *context = contexts().empty() ? nullptr : contexts().back();
    return CUDA_SUCCESS;
  }
  static CUresult context_get_device(CUdevice* device) {
    *device = current();
    return *device < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
  }
  static CUresult context_get_priorities(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return current() < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
  }

  static CUresult memory_allocate(CUdeviceptr* data, std::size_t bytes) {
    if (breaks_a_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const int device = current();
    if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (bytes > all().set.free_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    *data = tensorhub::detail::cuda_address(all().allocate(origin::device, device, bytes));
    return *data == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  }
  static CUresult memory_free(CUdeviceptr data) {
    if (breaks_a_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (current() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    return all().free(handle<void*>(data)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  static CUresult memory_get_info(std::size_t* free_bytes, std::size_t* all_bytes) {
    *free_bytes = all().set.free_bytes;
    *all_bytes = 1ull << 40;
    return CUDA_SUCCESS;
  }
  static CUresult memory_get_range(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr data) {
    if (current() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    const std::lock_guard lock{all().mutex_};
    const auto found = all().find(data, 1);
    if (found == all().blocks_.end()) return CUDA_ERROR_INVALID_VALUE;
    *base = found->first;
    *bytes = found->second.bytes;
    return CUDA_SUCCESS;
  }
  static CUresult memory_copy_async(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    stream_thread* const queue = stream_of(stream);
    if (current() < 0 || queue == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (all().set.refuse_copies || !all().may_copy(to, from, queue->device()) ||
        !all().may_copy(from, to, queue->device()))
      return CUDA_ERROR_INVALID_VALUE;
    copy_later(*queue, to, from, bytes);
    return CUDA_SUCCESS;
  }
  static CUresult memory_copy_peer_async(CUdeviceptr to, CUcontext of_to, CUdeviceptr from, CUcontext of_from,
                                         std::size_t bytes, CUstream stream) {
    stream_thread* const queue = stream_of(stream);
    if (current() < 0 || queue == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (all().set.refuse_copies || !all().is_mapped_for(to, device_of(of_to)) ||
        !all().is_mapped_for(from, device_of(of_from)))
      return CUDA_ERROR_INVALID_VALUE;
    all().counted.peer_copies.fetch_add(1);
    copy_later(*queue, to, from, bytes);
    return CUDA_SUCCESS;
  }
  static void copy_later(stream_thread& queue, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    queue.queue([to, from, bytes] {
      std::byte* const target = all().reach(to, bytes);
      const std::byte* const source = all().reach(from, bytes);
      if (target == nullptr || source == nullptr) return CUDA_ERROR_ILLEGAL_ADDRESS;
      if (!all().knows(to) || !all().knows(from)) all().counted.pageable_copies.fetch_add(1);
      const tensorhub::detail::peer_read reading;
      std::memcpy(target, source, bytes);
      all().counted.copies.fetch_add(1);
      return CUDA_SUCCESS;
    });
  }
  static CUresult memory_fill_async(CUdeviceptr data, unsigned char with, std::size_t bytes,
                                    CUstream stream) {
    stream_thread* const queue = stream_of(stream);
    if (current() < 0 || queue == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    queue->queue([data, with, bytes] {
      std::byte* const target = all().reach(data, bytes);
      if (target == nullptr) return CUDA_ERROR_ILLEGAL_ADDRESS;
      std::memset(target, with, bytes);
      return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
  }
  /// One attribute of an address in a block; the default if there is none.
  static void write_attribute(CUpointer_attribute which, void* value, std::uintptr_t data,
                              std::uintptr_t begin, const block_record& block) {
    const bool is_known = begin != 0;
    const bool host = block.from == origin::pinned || block.from == origin::registered;
    const auto mapping =
        block.from == origin::reserved ? block.mapping_of(data) : std::pair{begin, block.bytes};
    switch (which) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<unsigned*>(value) =
            is_known ? static_cast<unsigned>(host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE) : 0u;
        break;
      case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *static_cast<bool*>(value) = block.from == origin::managed;
        break;
      case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *static_cast<bool*>(value) = is_known && block.from == origin::device;
        break;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *static_cast<int*>(value) = block.device;
        break;
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *static_cast<void**>(value) = handle<void*>(begin);
        break;
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *static_cast<std::size_t*>(value) = block.bytes;
        break;
      case CU_POINTER_ATTRIBUTE_BUFFER_ID: {
        const auto number = block.numbers.find(mapping.first);
        *static_cast<unsigned long long*>(value) = number == block.numbers.end() ? 0 : number->second;
        break;
      }
      case CU_POINTER_ATTRIBUTE_MAPPED:
        *static_cast<bool*>(value) = mapping.second != 0;
        break;
      case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *static_cast<void**>(value) = handle<void*>(mapping.first);
        break;
      case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *static_cast<std::size_t*>(value) = mapping.second;
        break;
      default:
        *static_cast<CUdeviceptr*>(value) = is_known ? data : 0;  // CU_POINTER_ATTRIBUTE_DEVICE_POINTER
    }
  }
  static CUresult pointer_get_attributes(unsigned count, CUpointer_attribute* which, void** values,
                                         CUdeviceptr data) {
    static const std::set<CUpointer_attribute> known{CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                     CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                                     CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                                     CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                                     CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                                     CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                                     CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                                     CU_POINTER_ATTRIBUTE_MAPPED,
                                                     CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
                                                     CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
                                                     CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    for (unsigned i = 0; i < count; ++i) {
      if (!known.contains(which[i]) || which[i] > all().set.last_attribute) return CUDA_ERROR_INVALID_VALUE;
    }
    static const block_record none;
    const std::lock_guard lock{all().mutex_};
    const auto found = all().find(data, 1);
    const bool is_known = found != all().blocks_.end();
    for (unsigned i = 0; i < count; ++i) {
      write_attribute(which[i], values[i], static_cast<std::uintptr_t>(data), is_known ? found->first : 0,
                      is_known ? found->second : none);
    }
    return CUDA_SUCCESS;
  }
  static CUresult host_allocate(void** data, std::size_t bytes, unsigned) {
    if (breaks_a_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const int device = current();
    if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
    *data = all().allocate(origin::pinned, device, bytes);
    return *data == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  }
  static CUresult host_free(void* data) {
    if (breaks_a_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (current() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    return all().free(data) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  static CUresult host_register(void* data, std::size_t bytes, unsigned) {
    if (breaks_a_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const int device = current();
    if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (all().set.registering != CUDA_SUCCESS) return all().set.registering;
    block_record block;
    block.bytes = bytes;
    block.window = static_cast<std::byte*>(data);
    block.from = origin::registered;
    block.device = device;
    const std::lock_guard lock{all().mutex_};
    all().blocks_.emplace(driver::address(data), std::move(block));
    return CUDA_SUCCESS;
  }
  static CUresult host_unregister(void* data) {
    if (breaks_a_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (current() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    return all().free(data) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }

  static CUresult stream_create(CUstream* stream, unsigned flags, int) {
    const int device = current();
    if (device < 0 || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_CONTEXT;
    auto made = std::make_unique<stream_thread>(device);
    *stream = handle<CUstream>(driver::address(made.get()));
    const std::lock_guard lock{all().mutex_};
    all().streams_.emplace(*stream, std::move(made));
    return CUDA_SUCCESS;
  }
  static CUresult stream_destroy(CUstream stream) {
    std::unique_ptr<stream_thread>
        ended;  // does its work to the end, without the lock that it needs for that
    {
      const std::lock_guard lock{all().mutex_};
      const auto found = all().streams_.find(stream);
      if (found == all().streams_.end()) return CUDA_ERROR_INVALID_HANDLE;
      ended = std::move(found->second);
      all().streams_.erase(found);
    }
    return CUDA_SUCCESS;
  }
  static CUresult stream_get_context(CUstream stream, CUcontext* context) {
    const stream_thread* const found = stream_of(stream);
    if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *context = handle<CUcontext>(static_cast<std::uintptr_t>(found->device()) + 1);
    return CUDA_SUCCESS;
  }
  static CUresult stream_is_capturing(CUstream stream, CUstreamCaptureStatus* status) {
    // A stream that is captured holds back the legacy stream.
    if (is_legacy(stream) && all().set.capturing_globally) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = all().set.capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  }
  static CUresult event_create(CUevent* event, unsigned flags) {
    if (current() < 0 || flags != CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_CONTEXT;
    if (all().set.refuse_events) return CUDA_ERROR_OUT_OF_MEMORY;
    auto made = std::make_shared<event_record>();
    *event = handle<CUevent>(driver::address(made.get()));
    const std::lock_guard lock{all().mutex_};
    all().events_.emplace(*event, std::move(made));
    return CUDA_SUCCESS;
  }
  static CUresult event_record_into(CUevent event, CUstream stream) {
    if (current() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (is_legacy(stream) && all().set.capturing_globally) {
      all().counted.broken_captures.fetch_add(1);
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    stream_thread* const queue = stream_of(stream);
    const std::lock_guard lock{all().mutex_};
    const auto found = all().events_.find(event);
    if (queue == nullptr || found == all().events_.end()) return CUDA_ERROR_INVALID_HANDLE;
    queue->record(found->second, ++found->second->recorded);
    return CUDA_SUCCESS;
  }
  static CUresult event_query(CUevent event) {
    if (breaks_a_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const std::lock_guard lock{all().mutex_};
    const auto found = all().events_.find(event);
    if (found == all().events_.end()) return CUDA_ERROR_INVALID_HANDLE;
    const event_record& record = *found->second;
    return record.reached < record.recorded ? CUDA_ERROR_NOT_READY : record.result;
  }
  static CUresult event_destroy(CUevent event) {
    const std::lock_guard lock{all().mutex_};
    return all().events_.erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }

  static CUresult ipc_get_handle(CUipcMemHandle* out, CUdeviceptr data) {
    if (breaks_a_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (current() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    const std::lock_guard lock{all().mutex_};
    const auto found = all().blocks_.find(static_cast<std::uintptr_t>(data));
    if (found == all().blocks_.end() || found->second.from != origin::device) return CUDA_ERROR_INVALID_VALUE;
    const int file = found->second.file.get();
    struct stat about {};
    ::fstat(file, &about);
    const export_words words{::getpid(), file, about.st_ino, found->second.bytes,
                             all().set.first_device + found->second.device};
    static_assert(sizeof words <= sizeof out->reserved);
    std::memset(out->reserved, 0, sizeof out->reserved);
    std::memcpy(out->reserved, &words, sizeof words);
    return CUDA_SUCCESS;
  }
  static void take_ipc_time() {
    all().counted.ipc_calls.fetch_add(1);
    while (all().set.ipc_held) std::this_thread::sleep_for(std::chrono::microseconds{100});
  }
  static CUresult ipc_open_handle(CUdeviceptr* data, CUipcMemHandle from, unsigned flags) {
    take_ipc_time();
    if (breaks_a_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (current() < 0 || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_CONTEXT;
    export_words words{};
    std::memcpy(&words, from.reserved, sizeof words);
    if (words.process == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    block_record block;
    const std::string path = "/proc/" + std::to_string(words.process) + "/fd/" + std::to_string(words.file);
    block.file.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    struct stat about {};
    if (!block.file || ::fstat(block.file.get(), &about) != 0 || about.st_ino != words.inode)
      return CUDA_ERROR_INVALID_VALUE;
    if (all().set.older_mapping) return CUDA_ERROR_ALREADY_MAPPED;
    block.bytes = words.bytes;
    block.from = origin::imported;
    // The memory of a hidden device can be mapped; its ordinal is none of this process's.
    block.importer = current();
    block.device = words.device - all().set.first_device;
    if (block.device < 0 || block.device >= all().set.devices) block.device = -2;
    *data = tensorhub::detail::cuda_address(all().insert(std::move(block)));
    all().counted.imports.fetch_add(1);
    return CUDA_SUCCESS;
  }
  static CUresult ipc_close_handle(CUdeviceptr data) {
    take_ipc_time();
    return memory_free(data);
  }
  static CUresult memory_get_handle(void* descriptor, CUdeviceptr data, std::size_t bytes,
                                    CUmemRangeHandleType, unsigned long long) {
    if (current() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    const std::lock_guard lock{all().mutex_};
    const auto found = all().find(data, 1);
    if (found == all().blocks_.end() || data % 4096 != 0 || bytes % 4096 != 0 ||
        data - found->first + bytes > driver::in_pages(found->second.bytes))
      return CUDA_ERROR_INVALID_VALUE;
    const block_record& block = found->second;  // memory of the three kinds that an H200 gave dmabufs of
    if (block.from != origin::device && block.from != origin::pool && block.from != origin::reserved)
      return CUDA_ERROR_INVALID_VALUE;
    if (!block.is_mapped(static_cast<std::uintptr_t>(data), bytes)) return CUDA_ERROR_INVALID_VALUE;
    *static_cast<int*>(descriptor) = ::fcntl(found->second.file.get(), F_DUPFD_CLOEXEC, 0);
    return CUDA_SUCCESS;
  }

  static CUresult flush_remote_writes(CUflushGPUDirectRDMAWritesTarget,
                                      CUflushGPUDirectRDMAWritesScope scope) {
    if (current() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (all().set.gpu_direct.flush_fails) return CUDA_ERROR_UNKNOWN;
    if (scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES) all().counted.flushes.fetch_add(1);
    return CUDA_SUCCESS;
  }

  static CUresult module_load(CUmodule* module, const void* image) {
    if (breaks_a_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    std::uint32_t magic = 0;
    std::memcpy(&magic, image, sizeof magic);
    *module = handle<CUmodule>(1);
    return magic == 0xba55ed50u ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;  // of every fatbin
  }
  static CUresult module_get_function(CUfunction* function, CUmodule, const char* name) {
    const std::string_view wanted{name};
    *function = handle<CUfunction>(wanted == tensorhub::cuda_jobs::copy_kernel           ? 1
                                   : wanted == tensorhub::cuda_jobs::digest_kernel       ? 2
                                   : wanted == tensorhub::cuda_jobs::keyed_digest_kernel ? 3
                                                                                         : 0);
    return *function == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
  }
  static CUresult module_unload(CUmodule) { return CUDA_SUCCESS; }
  static CUresult function_get_attribute(int* value, CUfunction_attribute, CUfunction) {
    *value = 0;
    return CUDA_SUCCESS;
  }
  static CUresult launch_kernel(CUfunction function, unsigned grid, unsigned, unsigned, unsigned threads,
                                unsigned, unsigned, unsigned, CUstream stream, void** parameters, void**) {
    namespace jobs = tensorhub::cuda_jobs;
    stream_thread* const queue = stream_of(stream);
    if (current() < 0 || queue == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    const auto first = *static_cast<const CUdeviceptr*>(parameters[0]);
    const auto second = *static_cast<const CUdeviceptr*>(parameters[1]);
    const int device = queue->device();
    all().counted.launches.fetch_add(1);
    all().counted.blocks.fetch_add(grid);
    const bool copies = function == handle<CUfunction>(1);
    const bool keyed = function == handle<CUfunction>(3);
    const std::size_t job_bytes = copies  ? sizeof(jobs::copy_job)
                                  : keyed ? sizeof(jobs::keyed_digest_job)
                                          : sizeof(jobs::digest_job);
    queue->queue([=] {
      const tensorhub::cuda_kernels::cpu_team team{threads};
      const tensorhub::detail::peer_read reading;
      const auto place = [&](std::uint64_t& data, std::uint64_t bytes) {
        std::byte* const found = bytes == 0 ? nullptr : all().reach_by_kernel(data, bytes, device);
        data = tensorhub::detail::cuda_address(found);
        return bytes == 0 || found != nullptr;
      };
      std::uint64_t list = first;
      std::uint64_t results = second;
      if (!place(list, grid * job_bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
      if (!copies && !place(results, grid * sizeof(jobs::digest_result))) return CUDA_ERROR_ILLEGAL_ADDRESS;
      for (unsigned block = 0; block < grid; ++block) {
        if (copies) {
          jobs::copy_job job = handle<const jobs::copy_job*>(list)[block];
          if (!place(job.to, job.bytes) || !place(job.from, job.bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
          tensorhub::cuda_kernels::copy_block(team, job);
        } else if (keyed) {
          jobs::keyed_digest_job job = handle<const jobs::keyed_digest_job*>(list)[block];
          if (!place(job.data, job.bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
          static thread_local tensorhub::cuda_kernels::blake3::shared_memory shared;
          tensorhub::cuda_kernels::blake3::digest_block(
              team, job, handle<jobs::digest_result*>(results) + block, shared);
        } else {
          jobs::digest_job job = handle<const jobs::digest_job*>(list)[block];
          if (!place(job.data, job.bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
          static thread_local tensorhub::cuda_kernels::digest_shared shared;
          tensorhub::cuda_kernels::digest_block(team, job, handle<jobs::digest_result*>(results) + block,
                                                shared);
        }
      }
      return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
  }
};

// The names in the driver's library, and the functions above.
#define FAKE_CUDA_FUNCTIONS(X)                                \
  X(cuInit, init)                                             \
  X(cuDriverGetVersion, driver_get_version)                   \
  X(cuGetErrorName, get_error_name)                           \
  X(cuGetErrorString, get_error_string)                       \
  X(cuDeviceGetCount, device_get_count)                       \
  X(cuDeviceGet, device_get)                                  \
  X(cuDeviceGetName, device_get_name)                         \
  X(cuDeviceGetUuid_v2, device_get_uuid)                      \
  X(cuDeviceGetAttribute, device_get_attribute)               \
  X(cuThreadExchangeStreamCaptureMode, exchange_capture_mode) \
  X(cuDevicePrimaryCtxRetain, primary_context_retain)         \
  X(cuDevicePrimaryCtxGetState, primary_context_get_state)    \
  X(cuCtxPushCurrent_v2, context_push)                        \
  X(cuCtxPopCurrent_v2, context_pop)                          \
  X(cuCtxGetCurrent, context_get_current)                     \
  X(cuCtxGetDevice, context_get_device)                       \
  X(cuCtxGetStreamPriorityRange, context_get_priorities)      \
  X(cuMemAlloc_v2, memory_allocate)                           \
  X(cuMemFree_v2, memory_free)                                \
  X(cuMemGetInfo_v2, memory_get_info)                         \
  X(cuMemGetAddressRange_v2, memory_get_range)                \
  X(cuMemcpyAsync, memory_copy_async)                         \
  X(cuMemcpyPeerAsync, memory_copy_peer_async)                \
  X(cuMemsetD8Async, memory_fill_async)                       \
  X(cuPointerGetAttributes, pointer_get_attributes)           \
  X(cuMemHostAlloc, host_allocate)                            \
  X(cuMemFreeHost, host_free)                                 \
  X(cuMemHostRegister_v2, host_register)                      \
  X(cuMemHostUnregister, host_unregister)                     \
  X(cuStreamCreateWithPriority, stream_create)                \
  X(cuStreamDestroy_v2, stream_destroy)                       \
  X(cuStreamGetCtx, stream_get_context)                       \
  X(cuStreamIsCapturing, stream_is_capturing)                 \
  X(cuEventCreate, event_create)                              \
  X(cuEventRecord, event_record_into)                         \
  X(cuEventQuery, event_query)                                \
  X(cuEventDestroy_v2, event_destroy)                         \
  X(cuIpcGetMemHandle, ipc_get_handle)                        \
  X(cuIpcOpenMemHandle_v2, ipc_open_handle)                   \
  X(cuIpcCloseMemHandle, ipc_close_handle)                    \
  X(cuMemGetHandleForAddressRange, memory_get_handle)         \
  X(cuFlushGPUDirectRDMAWrites, flush_remote_writes)          \
  X(cuModuleLoadData, module_load)                            \
  X(cuModuleGetFunction, module_get_function)                 \
  X(cuModuleUnload, module_unload)                            \
  X(cuFuncGetAttribute, function_get_attribute)               \
  X(cuLaunchKernel, launch_kernel)

inline void* driver::lookup(std::string_view name) const {
#define FAKE_CUDA_ENTRY(symbol, function) {#symbol, reinterpret_cast<void*>(entry_points::function)},
  static const std::map<std::string_view, void*> functions{FAKE_CUDA_FUNCTIONS(FAKE_CUDA_ENTRY)};
#undef FAKE_CUDA_ENTRY
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

}  // namespace fake_cuda

/// A `Driver` (memory/cuda/driver.hpp).
struct fake_cuda_driver {
  [[nodiscard]] static const tensorhub::cuda_functions& functions() {
    static const tensorhub::cuda_functions table = tensorhub::load_cuda_functions(
        [](const char* name) { return fake_cuda::driver::instance().lookup(name); });
    return table;
  }
};
