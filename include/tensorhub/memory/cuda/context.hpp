#pragma once
/// \file context.hpp
/// Makes a device's context current for a few calls, and asks the driver about an address.
///
/// Most functions of the driver act on the calling thread's current context. The user's context must be
/// current again after every call of this library, so contexts are pushed and popped, never set.
///
/// Thread safety: a scope belongs to the thread that made it.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/memory/cuda/functions.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// While any thread of the process captures a stream into a graph in the global mode (the default of the
/// runtime and of PyTorch), the driver refuses allocations, queries of events, IPC and similar calls of every
/// thread that has not left that mode itself, and such a call invalidates the capture. The calls of this
/// library concern streams of its own, which are never captured.
class outside_captures {
 public:
  explicit outside_captures(const cuda_functions& cuda) noexcept : cuda_{&cuda} {
    is_left_ = cuda.exchange_capture_mode(&mode_) == CUDA_SUCCESS;
  }
  ~outside_captures() {
    if (is_left_) static_cast<void>(cuda_->exchange_capture_mode(&mode_));
  }
  outside_captures(const outside_captures&) = delete;
  outside_captures& operator=(const outside_captures&) = delete;

 private:
  const cuda_functions* cuda_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  ///< the other one of the thread's two modes
  bool is_left_ = false;
};

/// `result()` says whether the context could be made current; if it could not, the thread's context is
/// unchanged. The scope is outside of captures.
class cuda_scope {
 public:
  cuda_scope(const cuda_functions& cuda, CUcontext context) noexcept
      : cuda_{&cuda}, mode_{cuda}, result_{cuda.context_push(context)} {}
  ~cuda_scope() {
    CUcontext popped = nullptr;
    if (result_ == CUDA_SUCCESS) static_cast<void>(cuda_->context_pop(&popped));
  }
  cuda_scope(const cuda_scope&) = delete;
  cuda_scope& operator=(const cuda_scope&) = delete;
  [[nodiscard]] CUresult result() const noexcept { return result_; }

 private:
  const cuda_functions* cuda_;
  outside_captures mode_;
  CUresult result_;
};

[[nodiscard]] inline CUdeviceptr cuda_address(const void* data) noexcept {
  return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(data));
}

/// The allocation that contains an address, as the driver reports it.
struct cuda_pointer {
  unsigned type = 0;  ///< CUmemorytype; 0: the driver does not know the address
  bool managed = false;
  bool legacy_ipc = false;  ///< memory of cuMemAlloc, which CUDA IPC can export
  int device = 0;           ///< ordinal
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;  ///< 0: the driver does not report it

  [[nodiscard]] bool known() const noexcept { return type != 0; }
  [[nodiscard]] bool is_device_memory() const noexcept { return type == CU_MEMORYTYPE_DEVICE && !managed; }
  [[nodiscard]] bool holds(std::uint64_t first, std::uint64_t run_bytes) const noexcept {
    return bytes == 0 || (first >= begin && first - begin <= bytes && run_bytes <= bytes - (first - begin));
  }
};

/// What lies behind an address that a program may have reserved without memory (cuMemAddressReserve).
struct cuda_mapping {
  bool mapped = true;
  int device = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;  ///< 0: the driver does not report it (before CUDA 11.7)

  [[nodiscard]] bool holds(std::uint64_t at) const noexcept { return at >= begin && at - begin < bytes; }
  [[nodiscard]] std::uint64_t end() const noexcept { return begin + bytes; }
};

/// A driver that refuses an attribute refuses the whole query: the newer ones are asked for by themselves.
[[nodiscard]] inline cuda_mapping ask_cuda_mapping(const cuda_functions& cuda, std::uint64_t at) noexcept {
  cuda_mapping out;
  unsigned mapped = 0;
  std::array attributes{CU_POINTER_ATTRIBUTE_MAPPED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  std::array<void*, attributes.size()> values{&mapped, &out.device};
  const auto address = static_cast<CUdeviceptr>(at);
  if (cuda.pointer_get_attributes(2, attributes.data(), values.data(), address) != CUDA_SUCCESS) return {};
  out.mapped = mapped != 0;
  void* begin = nullptr;
  std::size_t bytes = 0;
  attributes = {CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, CU_POINTER_ATTRIBUTE_MAPPING_SIZE};
  values = {&begin, &bytes};
  if (out.mapped &&
      cuda.pointer_get_attributes(2, attributes.data(), values.data(), address) == CUDA_SUCCESS) {
    out.begin = reinterpret_cast<std::uintptr_t>(begin);
    out.bytes = bytes;
  }
  return out;
}

/// `whole` may be a reservation of addresses, of which parts are mapped (PyTorch's expandable segments; after
/// cuMemUnmap a reservation stays). What is left of it: the mapping at `first` and those of the same device
/// that touch it, as far as the run needs them; nothing if `first` is not mapped.
inline void keep_what_is_mapped(const cuda_functions& cuda, std::uint64_t first, std::uint64_t run_bytes,
                                cuda_pointer& whole) noexcept {
  cuda_mapping part = ask_cuda_mapping(cuda, first);
  if (!part.mapped) whole = {};
  if (!part.mapped || !part.holds(first) || whole.bytes == 0) return;
  const std::uint64_t end = whole.begin + whole.bytes;
  const std::uint64_t begin = std::max(whole.begin, part.begin);
  std::uint64_t until = part.end();
  while (until < end && until - first < run_bytes) {
    part = ask_cuda_mapping(cuda, until);
    if (!part.mapped || !part.holds(until) || part.device != whole.device) break;
    until = part.end();
  }
  whole.begin = begin;
  whole.bytes = std::min(until, end) - begin;
}

/// A number of what is behind the addresses of a run: another one after a part of it was mapped anew
/// (cuMemUnmap, cuMemMap) or freed and allocated again. Of several mappings drivers before CUDA 11.7 tell the
/// first one only.
[[nodiscard]] inline std::uint64_t ask_cuda_identity(const cuda_functions& cuda, std::uint64_t first,
                                                     std::uint64_t run_bytes) noexcept {
  std::uint64_t identity = 0;
  for (std::uint64_t at = first; at < first + run_bytes;) {
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_BUFFER_ID;
    unsigned long long number = 0;
    void* value = &number;
    if (cuda.pointer_get_attributes(1, &attribute, &value, static_cast<CUdeviceptr>(at)) != CUDA_SUCCESS)
      number = 0;
    identity = (identity ^ number) * 0x9e3779b97f4a7c15u;  // odd: the order of the mappings counts
    const cuda_mapping part = ask_cuda_mapping(cuda, at);
    if (!part.holds(at)) break;
    at = part.end();
  }
  return identity;
}

/// Plain host memory, freed addresses and reserved ones without memory are not `known`; that is not an error.
/// The range that is reported holds the whole run, if there is memory behind all of it.
[[nodiscard]] inline CUresult ask_cuda_pointer(const cuda_functions& cuda, const void* data,
                                               std::uint64_t run_bytes, cuda_pointer& out) noexcept {
  // Booleans are written as one byte or as four: the driver's reference does not specify the size.
  unsigned managed = 0;
  unsigned legacy_ipc = 0;
  void* begin = nullptr;
  std::size_t bytes = 0;
  out = {};
  std::array attributes{CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                        CU_POINTER_ATTRIBUTE_IS_MANAGED,
                        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                        CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  std::array<void*, attributes.size()> values{&out.type, &managed, &legacy_ipc, &out.device, &begin, &bytes};
  const CUresult result = cuda.pointer_get_attributes(static_cast<unsigned>(attributes.size()),
                                                      attributes.data(), values.data(), cuda_address(data));
  // "Not of any context": the driver does not know the address.
  if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_INVALID_VALUE) {
    out = {};
    return CUDA_SUCCESS;
  }
  out.managed = managed != 0;
  out.legacy_ipc = legacy_ipc != 0;
  out.begin = reinterpret_cast<std::uintptr_t>(begin);
  out.bytes = bytes;
  // All memory of cuMemAlloc has memory behind it.
  if (result == CUDA_SUCCESS && out.is_device_memory() && !out.legacy_ipc)
    keep_what_is_mapped(cuda, cuda_address(data), run_bytes, out);
  return result;
}

/// True if kernels of the current context can use the same address. (That always holds for the driver's own
/// pinned memory; for registered memory it does not hold on some machines.)
[[nodiscard]] inline bool kernels_can_reach(const cuda_functions& cuda, const void* data) noexcept {
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
  CUdeviceptr on_device = 0;
  void* value = &on_device;
  return cuda.pointer_get_attributes(1, &attribute, &value, cuda_address(data)) == CUDA_SUCCESS &&
         on_device == cuda_address(data);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
