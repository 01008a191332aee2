#pragma once
/// \file functions.hpp
/// The functions of the NVIDIA driver that the component uses, as a table of pointers.
///
/// The driver (libcuda.so.1) belongs to the machine, not to the toolkit, and a program must start without it.
/// Therefore no driver library is linked, and every function is looked up by its name in the library. Those
/// names carry the version of a function's interface (cuMemAlloc_v2), which <cuda.h> hides behind macros. The
/// types are written out here, so that the macros of a later toolkit cannot change the arguments of a name.
/// The CUDA Driver API reference (https://docs.nvidia.com/cuda/cuda-driver-api) describes the functions.
///
/// Thread safety: values. Any thread may call the driver's functions.

#include <cuda.h>

#include <cstddef>
#include <string>
#include <type_traits>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

static_assert(CUDA_VERSION >= 12000, "TensorHub::cuda needs the CUDA Toolkit 12 or newer");

/// The oldest driver that serves a program built with this toolkit, in the encoding of cuDriverGetVersion:
/// 1000 * major of the CUDA version + 10 * minor. A driver serves all programs of its own and of older major
/// versions.
inline constexpr int needed_cuda_version = CUDA_VERSION / 1000 * 1000;

/// Every pointer is set, except those marked as null in old drivers.
struct cuda_functions {
  CUresult (*init)(unsigned flags) = nullptr;
  CUresult (*driver_get_version)(int* version) = nullptr;
  CUresult (*get_error_name)(CUresult, const char** name) = nullptr;
  CUresult (*get_error_string)(CUresult, const char** text) = nullptr;

  CUresult (*device_get_count)(int* count) = nullptr;
  CUresult (*device_get)(CUdevice*, int ordinal) = nullptr;
  CUresult (*device_get_name)(char* name, int bytes, CUdevice) = nullptr;
  CUresult (*device_get_uuid)(CUuuid*, CUdevice) = nullptr;
  CUresult (*device_get_attribute)(int* value, CUdevice_attribute, CUdevice) = nullptr;

  CUresult (*primary_context_retain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*primary_context_get_state)(CUdevice, unsigned* flags, int* active) = nullptr;
  CUresult (*context_push)(CUcontext) = nullptr;
  CUresult (*context_pop)(CUcontext*) = nullptr;
  CUresult (*context_get_current)(CUcontext*) = nullptr;
  CUresult (*context_get_device)(CUdevice*) = nullptr;
  CUresult (*exchange_capture_mode)(CUstreamCaptureMode*) = nullptr;
  CUresult (*context_get_priorities)(int* least, int* greatest) = nullptr;

  CUresult (*memory_allocate)(CUdeviceptr*, std::size_t bytes) = nullptr;
  CUresult (*memory_free)(CUdeviceptr) = nullptr;
  CUresult (*memory_get_info)(std::size_t* free_bytes, std::size_t* all_bytes) = nullptr;
  CUresult (*memory_get_range)(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr) = nullptr;
  CUresult (*memory_copy_async)(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream) = nullptr;
  /// Null in drivers that do not have it.
  CUresult (*memory_copy_peer_async)(CUdeviceptr to, CUcontext of_to, CUdeviceptr from, CUcontext of_from,
                                     std::size_t bytes, CUstream) = nullptr;
  CUresult (*memory_fill_async)(CUdeviceptr, unsigned char, std::size_t bytes, CUstream) = nullptr;
  CUresult (*pointer_get_attributes)(unsigned count, CUpointer_attribute*, void** values,
                                     CUdeviceptr) = nullptr;
  CUresult (*host_allocate)(void**, std::size_t bytes, unsigned flags) = nullptr;
  CUresult (*host_free)(void*) = nullptr;
  CUresult (*host_register)(void*, std::size_t bytes, unsigned flags) = nullptr;
  CUresult (*host_unregister)(void*) = nullptr;

  CUresult (*stream_create)(CUstream*, unsigned flags, int priority) = nullptr;
  CUresult (*stream_destroy)(CUstream) = nullptr;
  CUresult (*stream_get_context)(CUstream, CUcontext*) = nullptr;
  CUresult (*stream_is_capturing)(CUstream, CUstreamCaptureStatus*) = nullptr;
  CUresult (*event_create)(CUevent*, unsigned flags) = nullptr;
  CUresult (*event_record)(CUevent, CUstream) = nullptr;
  CUresult (*event_query)(CUevent) = nullptr;
  CUresult (*event_destroy)(CUevent) = nullptr;

  CUresult (*ipc_get_handle)(CUipcMemHandle*, CUdeviceptr) = nullptr;
  CUresult (*ipc_open_handle)(CUdeviceptr*, CUipcMemHandle, unsigned flags) = nullptr;
  CUresult (*ipc_close_handle)(CUdeviceptr) = nullptr;
  /// Null before CUDA 11.7, which has no dmabufs.
  CUresult (*memory_get_handle)(void* handle, CUdeviceptr, std::size_t bytes, CUmemRangeHandleType,
                                unsigned long long flags) = nullptr;

  /// Null in drivers that do not have it.
  CUresult (*flush_remote_writes)(CUflushGPUDirectRDMAWritesTarget,
                                  CUflushGPUDirectRDMAWritesScope) = nullptr;

  CUresult (*module_load)(CUmodule*, const void* image) = nullptr;
  CUresult (*module_get_function)(CUfunction*, CUmodule, const char* name) = nullptr;
  CUresult (*module_unload)(CUmodule) = nullptr;
  CUresult (*function_get_attribute)(int* value, CUfunction_attribute, CUfunction) = nullptr;
  CUresult (*launch_kernel)(CUfunction, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream,
                            void** parameters, void** extra) = nullptr;
};

namespace detail {

/// The text of a version: "12.4" for 12040.
[[nodiscard]] inline std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

[[nodiscard]] inline std::string needed_cuda_text() {
  const char* const release = needed_cuda_version >= 13000 ? "580" : "525";
  return "CUDA " + cuda_version_text(needed_cuda_version) + " or newer is needed (driver " + release +
         " or newer), as this program was built by the CUDA Toolkit " + cuda_version_text(CUDA_VERSION);
}

/// The text of an error: "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
[[nodiscard]] inline std::string cuda_words(const cuda_functions& cuda, const char* call, CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuda.get_error_name(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown error";
  if (cuda.get_error_string(result, &text) != CUDA_SUCCESS || text == nullptr) text = "";
  std::string words = std::string{call} + ": " + name;
  if (*text != '\0') words.append(" (").append(text).append(")");
  return words;
}

/// Throws `system_failed` with a description of the action, unless the call succeeded.
inline void cuda_check(const cuda_functions& cuda, CUresult result, const char* call,
                       const std::string& what) {
  if (result != CUDA_SUCCESS) throw error(errc::system_failed, what + ": " + cuda_words(cuda, call, result));
}

}  // namespace detail

/// Fills the table with `lookup(const char* name) -> void*` (null: no such function), then asks the driver
/// for its version and initialises it. Throws `system_failed` if the driver is too old, has no device, or
/// cuInit fails.
template <typename Lookup>
[[nodiscard]] cuda_functions load_cuda_functions(Lookup&& lookup) {
  cuda_functions cuda;
  const auto take_if_there = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(lookup(name));
    return function != nullptr;
  };
  const auto take = [&](auto& function, const char* name) {
    if (!take_if_there(function, name)) {
      throw error(errc::system_failed, std::string{"the NVIDIA driver is too old: it has no function "} +
                                           name + "; " + detail::needed_cuda_text());
    }
  };
  // The version functions come first, so that the error about an old driver can name its version.
  take(cuda.driver_get_version, "cuDriverGetVersion");
  take(cuda.get_error_name, "cuGetErrorName");
  take(cuda.get_error_string, "cuGetErrorString");
  int version = 0;
  detail::cuda_check(cuda, cuda.driver_get_version(&version), "cuDriverGetVersion",
                     "the NVIDIA driver does not tell its version");
  if (version < needed_cuda_version) {
    throw error(errc::system_failed, "the NVIDIA driver is too old: it serves programs up to CUDA " +
                                         detail::cuda_version_text(version) + "; " +
                                         detail::needed_cuda_text() +
                                         ". Install a newer driver, or build with an older toolkit");
  }
  take(cuda.init, "cuInit");
  take(cuda.device_get_count, "cuDeviceGetCount");
  take(cuda.device_get, "cuDeviceGet");
  take(cuda.device_get_name, "cuDeviceGetName");
  take(cuda.device_get_uuid, "cuDeviceGetUuid_v2");
  take(cuda.device_get_attribute, "cuDeviceGetAttribute");
  take(cuda.primary_context_retain, "cuDevicePrimaryCtxRetain");
  take(cuda.primary_context_get_state, "cuDevicePrimaryCtxGetState");
  take(cuda.context_push, "cuCtxPushCurrent_v2");
  take(cuda.context_pop, "cuCtxPopCurrent_v2");
  take(cuda.context_get_current, "cuCtxGetCurrent");
  take(cuda.context_get_device, "cuCtxGetDevice");
  take(cuda.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
  take(cuda.context_get_priorities, "cuCtxGetStreamPriorityRange");
  take(cuda.memory_allocate, "cuMemAlloc_v2");
  take(cuda.memory_free, "cuMemFree_v2");
  take(cuda.memory_get_info, "cuMemGetInfo_v2");
  take(cuda.memory_get_range, "cuMemGetAddressRange_v2");
  take(cuda.memory_copy_async, "cuMemcpyAsync");
  static_cast<void>(take_if_there(cuda.memory_copy_peer_async, "cuMemcpyPeerAsync"));
  take(cuda.memory_fill_async, "cuMemsetD8Async");
  take(cuda.pointer_get_attributes, "cuPointerGetAttributes");
  take(cuda.host_allocate, "cuMemHostAlloc");
  take(cuda.host_free, "cuMemFreeHost");
  take(cuda.host_register, "cuMemHostRegister_v2");
  take(cuda.host_unregister, "cuMemHostUnregister");
  take(cuda.stream_create, "cuStreamCreateWithPriority");
  take(cuda.stream_destroy, "cuStreamDestroy_v2");
  take(cuda.stream_get_context, "cuStreamGetCtx");
  take(cuda.stream_is_capturing, "cuStreamIsCapturing");
  take(cuda.event_create, "cuEventCreate");
  take(cuda.event_record, "cuEventRecord");
  take(cuda.event_query, "cuEventQuery");
  take(cuda.event_destroy, "cuEventDestroy_v2");
  take(cuda.ipc_get_handle, "cuIpcGetMemHandle");
  take(cuda.ipc_open_handle, "cuIpcOpenMemHandle_v2");
  take(cuda.ipc_close_handle, "cuIpcCloseMemHandle");
  static_cast<void>(take_if_there(cuda.memory_get_handle, "cuMemGetHandleForAddressRange"));
  static_cast<void>(take_if_there(cuda.flush_remote_writes, "cuFlushGPUDirectRDMAWrites"));
  take(cuda.module_load, "cuModuleLoadData");
  take(cuda.module_get_function, "cuModuleGetFunction");
  take(cuda.module_unload, "cuModuleUnload");
  take(cuda.function_get_attribute, "cuFuncGetAttribute");
  take(cuda.launch_kernel, "cuLaunchKernel");

  const CUresult started = cuda.init(0);
  int devices = 0;
  if (started == CUDA_ERROR_NO_DEVICE ||
      (started == CUDA_SUCCESS && cuda.device_get_count(&devices) == CUDA_SUCCESS && devices == 0)) {
    throw error(errc::system_failed,
                "there is an NVIDIA driver (CUDA " + detail::cuda_version_text(version) +
                    "), but no device that this process may use: look at nvidia-smi, at "
                    "CUDA_VISIBLE_DEVICES and, in a container, at the devices it was given");
  }
  detail::cuda_check(cuda, started, "cuInit", "the NVIDIA driver does not start");
  return cuda;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
