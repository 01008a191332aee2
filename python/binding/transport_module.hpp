#pragma once
/// \file transport_module.hpp
/// What an optional module gives to `tensorhub._core`: the policies of one more transport (`_verbs`,
/// `_libfabric`), of memory on CUDA devices (`_cuda`), or of both (`_verbs_cuda`, `_libfabric_cuda`). All are
/// built from the same sources, as one wheel.
///
/// Such a module is of its own, because it needs libraries that a machine may not have. It is imported when
/// its transport or memory is asked for; if it cannot be, the error says why.
///
/// Its build defines TENSORHUB_PYTHON_MODULE, the module's name, and TENSORHUB_PYTHON_CUDA for CUDA devices.

#include <Python.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tensorhub/policy/integrity/blake3_128.hpp>
#include <tensorhub/version.hpp>
#include <tensorhub/worker/policy_data_plane.hpp>
#include <utility>
#include <vector>

#if defined(TENSORHUB_PYTHON_CUDA)
#include <tensorhub/memory/cuda.hpp>
#endif

namespace tensorhub_python {

/// Options of Python that are a transport's.
struct transport_options {
  std::string transport{};
  std::string listen_host{};  ///< empty: the transport's own choice
  std::uint16_t listen_port = 0;
  std::string advertised_host{};
  std::string provider{};      ///< libfabric's
  std::string rdma_device{};   ///< of verbs
  bool for_tenants = false;    ///< of same_host
  bool trusts_sources = true;  ///< else digests that a source cannot forge
};

/// A stream, and memory of its device where that does not follow from the handle: the null stream is another
/// one on each. Memory that was freed is of no device, and its stream is not waited for. Without memory: what
/// the handle means in the calling thread.
struct device_stream {
  void* handle = nullptr;  ///< CUstream
  const void* memory = nullptr;
  int device = -1;  ///< the ordinal, where the stream names it
};

/// What some streams held when it was made, in the thread that made it.
class stream_marks {
 public:
  virtual ~stream_marks() = default;
  /// Waits until that is done, from any thread, and tells what is left of `timeout`. Throws as
  /// `tensorhub::await_mark`.
  [[nodiscard]] virtual std::chrono::milliseconds await(std::chrono::milliseconds timeout,
                                                        const std::function<bool()>& gives_up) const = 0;
};
/// Waits for nothing. Throws `system_failed`, `invalid_argument` as `tensorhub::cuda_mark`.
using streams_marker = std::unique_ptr<stream_marks> (*)(std::span<const device_stream>);

/// What the capsule points to.
struct module_functions {
  /// Throws `transport_failed` and its like, as the transport does; `system_failed` without a CUDA device.
  tensorhub::worker_policies (*policies)(const transport_options&);
  streams_marker mark;  ///< null: of host memory
};

inline constexpr const char* capsule_name = "tensorhub.module_functions";
inline constexpr long library_version =
    TENSORHUB_VERSION_MAJOR * 1'000'000L + TENSORHUB_VERSION_MINOR * 1'000L + TENSORHUB_VERSION_PATCH;

#if defined(TENSORHUB_PYTHON_CUDA)
using module_memory = tensorhub::cuda_memory;

/// Throws `system_failed`, which says why: there is no driver, it is too old, or it has no device.
inline void check_memory() {
  static_cast<void>(tensorhub::cuda_driver::functions());
}

class cuda_marks final : public stream_marks {
 public:
  explicit cuda_marks(std::span<const device_stream> streams) {
    const tensorhub::cuda_functions& cuda = tensorhub::cuda_driver::functions();
    std::set<std::pair<int, void*>> seen;
    for (const device_stream& each : streams) {
      if (each.memory == nullptr && each.device < 0) {
        marks_.emplace_back(static_cast<CUstream>(each.handle));
        continue;
      }
      const int ordinal = each.device >= 0 ? each.device : device_of(cuda, each.memory);
      if (ordinal < 0 || !seen.emplace(ordinal, each.handle).second) continue;
      auto& device = tensorhub::cuda_device<tensorhub::cuda_driver>::at(ordinal);
      const tensorhub::detail::cuda_scope scope{cuda, device.context()};
      marks_.emplace_back(static_cast<CUstream>(each.handle));
    }
  }
  [[nodiscard]] std::chrono::milliseconds await(std::chrono::milliseconds timeout,
                                                const std::function<bool()>& gives_up) const override {
    for (const auto& each : marks_) timeout = tensorhub::await_mark(each, timeout, gives_up);
    return timeout;
  }

 private:
  /// Negative: of none.
  [[nodiscard]] static int device_of(const tensorhub::cuda_functions& cuda, const void* memory) {
    tensorhub::detail::cuda_pointer found;
    tensorhub::detail::cuda_check(cuda, tensorhub::detail::ask_cuda_pointer(cuda, memory, 1, found),
                                  "cuPointerGetAttributes", "the driver does not say what an address is");
    return found.known() ? found.device : -1;
  }

  std::vector<tensorhub::cuda_memory::mark_type> marks_;
};
inline constexpr streams_marker module_mark =
    [](std::span<const device_stream> streams) -> std::unique_ptr<stream_marks> {
  return std::make_unique<cuda_marks>(streams);
};
#else
using module_memory = tensorhub::host_memory;
inline void check_memory() noexcept {}
inline constexpr streams_marker module_mark = nullptr;
#endif

template <typename Transport>
[[nodiscard]] tensorhub::worker_policies policies_over(const transport_options& given,
                                                       typename Transport::options through) {
  using tensorhub::group_consistent;
  check_memory();
  if (!given.trusts_sources)
    return tensorhub::policies_of<Transport, group_consistent, tensorhub::blake3_128, module_memory>(
        std::move(through));
  return tensorhub::policies_of<Transport, group_consistent, tensorhub::xxh3_128, module_memory>(
      std::move(through));
}

/// A module with the attributes `functions` and `version`; null with Python's error set.
[[nodiscard]] inline PyObject* make_transport_module(PyModuleDef& definition,
                                                     const module_functions& functions) {
  PyObject* const module = PyModule_Create(&definition);
  if (module == nullptr) return nullptr;
  void* const given = const_cast<module_functions*>(&functions);
  PyObject* const capsule = PyCapsule_New(given, capsule_name, nullptr);
  if (capsule != nullptr && PyModule_AddObjectRef(module, "functions", capsule) == 0 &&
      PyModule_AddIntConstant(module, "version", library_version) == 0) {
    Py_DECREF(capsule);
    return module;
  }
  Py_XDECREF(capsule);
  Py_DECREF(module);
  return nullptr;
}

}  // namespace tensorhub_python

// Defines the module's entry point.
#if defined(TENSORHUB_PYTHON_MODULE)
#define TENSORHUB_PYTHON_TEXT_OF(name) #name
#define TENSORHUB_PYTHON_TEXT(name) TENSORHUB_PYTHON_TEXT_OF(name)
#define TENSORHUB_PYTHON_ENTRY_OF(name) PyInit_##name
#define TENSORHUB_PYTHON_ENTRY(name) TENSORHUB_PYTHON_ENTRY_OF(name)
#define TENSORHUB_PYTHON_DEFINE_MODULE(make_policies)                                                        \
  PyMODINIT_FUNC TENSORHUB_PYTHON_ENTRY(TENSORHUB_PYTHON_MODULE)() {                                         \
    static const tensorhub_python::module_functions functions{make_policies, tensorhub_python::module_mark}; \
    static PyModuleDef definition{PyModuleDef_HEAD_INIT,                                                     \
                                  TENSORHUB_PYTHON_TEXT(TENSORHUB_PYTHON_MODULE),                            \
                                  "Workers of more policies, for tensorhub._core.",                          \
                                  -1,                                                                        \
                                  nullptr,                                                                   \
                                  nullptr,                                                                   \
                                  nullptr,                                                                   \
                                  nullptr,                                                                   \
                                  nullptr};                                                                  \
    return tensorhub_python::make_transport_module(definition, functions);                                   \
  }
#endif
