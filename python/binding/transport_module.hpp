#pragma once
/// \file transport_module.hpp
/// What the module of an optional transport (`tensorhub._verbs`, `tensorhub._libfabric`) gives to
/// `tensorhub._core`: one function, in a capsule. Both are built from the same sources, as one wheel.
///
/// Such a module is of its own, because it is linked to libraries that a machine may not have. It is imported
/// when its transport is asked for; if it cannot be, the error says why.

#include <Python.h>

#include <cstdint>
#include <string>
#include <tensorhub/version.hpp>
#include <tensorhub/worker/policy_data_plane.hpp>

namespace tensorhub_python {

/// Options of Python that are a transport's.
struct transport_options {
  std::string listen_host{};  ///< empty: the transport's own choice
  std::uint16_t listen_port = 0;
  std::string advertised_host{};
  std::string provider{};     ///< libfabric's
  std::string rdma_device{};  ///< of verbs
};

/// Throws `transport_failed` and its like, as the transport does.
using policies_maker = tensorhub::worker_policies (*)(const transport_options&);

inline constexpr const char* maker_name = "tensorhub.policies_maker";
inline constexpr long library_version =
    TENSORHUB_VERSION_MAJOR * 1'000'000L + TENSORHUB_VERSION_MINOR * 1'000L + TENSORHUB_VERSION_PATCH;

template <typename Transport>
[[nodiscard]] tensorhub::worker_policies policies_over(typename Transport::options through) {
  return tensorhub::policies_of<Transport, tensorhub::group_consistent, tensorhub::xxh3_128,
                                tensorhub::host_memory>(std::move(through));
}

[[nodiscard]] inline PyModuleDef transport_module(const char* name) {
  return {.m_base = PyModuleDef_HEAD_INIT,
          .m_name = name,
          .m_doc = "Workers over one more transport, for tensorhub._core.",
          .m_size = -1,
          .m_methods = nullptr,
          .m_slots = nullptr,
          .m_traverse = nullptr,
          .m_clear = nullptr,
          .m_free = nullptr};
}

/// A module with the attributes `maker` and `version`; null with Python's error set.
[[nodiscard]] inline PyObject* make_transport_module(PyModuleDef& definition, policies_maker make) {
  PyObject* const module = PyModule_Create(&definition);
  if (module == nullptr) return nullptr;
  PyObject* const maker = PyCapsule_New(reinterpret_cast<void*>(make), maker_name, nullptr);
  if (maker != nullptr && PyModule_AddObjectRef(module, "maker", maker) == 0 &&
      PyModule_AddIntConstant(module, "version", library_version) == 0) {
    Py_DECREF(maker);
    return module;
  }
  Py_XDECREF(maker);
  Py_DECREF(module);
  return nullptr;
}

}  // namespace tensorhub_python
