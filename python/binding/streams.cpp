/// \file streams.cpp
/// Definitions of streams.hpp.

#include "streams.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>

namespace tensorhub_python {

namespace {

void* handle_of(nb::handle number) {
  return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(number));
}

/// Of torch, of CuPy, of whatever speaks `__cuda_stream__`, or the number itself.
void* given_stream(nb::handle stream) {
  try {
    if (nb::hasattr(stream, "__cuda_stream__"))
      return handle_of(stream.attr("__cuda_stream__")()[nb::int_{1}]);
    if (nb::hasattr(stream, "cuda_stream")) return handle_of(stream.attr("cuda_stream"));
    if (nb::hasattr(stream, "ptr")) return handle_of(stream.attr("ptr"));
    return handle_of(stream);
  } catch (const nb::cast_error&) {
    throw error(errc::invalid_argument,
                "stream " + nb::cast<std::string>(nb::repr(stream)) +
                    " is not understood: give a stream of torch or CuPy, a cudaStream_t as a number, "
                    "\"all_done\", or None");
  }
}

void* current_stream(const kept_tensor& tensor) {
  if (!tensor.is_of_torch()) return nullptr;
  const nb::object torch = nb::module_::import_("torch");
  return handle_of(
      torch.attr("cuda").attr("current_stream")(tensor.given().attr("device")).attr("cuda_stream"));
}

bool says_all_done(nb::handle stream) {
  std::string text;
  return nb::try_cast(stream, text) && text == "all_done";
}

}  // namespace

std::vector<device_stream> stream_order::before(std::span<const kept_tensor> tensors,
                                                nb::handle stream) const {
  std::vector<device_stream> out;
  if (says_all_done(stream)) return out;
  if (!has_devices()) {
    if (!stream.is_none())
      throw error(errc::invalid_argument, "a stream was given to a worker of host memory: leave it out");
    return out;
  }
  std::vector<nb::object> seen;  // devices of torch
  for (const kept_tensor& each : tensors) {
    if (!each.place().on_device || each.place().data == nullptr) continue;
    if (!stream.is_none()) return {{given_stream(stream), each.place().data}};
    if (each.is_of_torch()) {
      const nb::object device = each.given().attr("device");
      if (std::ranges::any_of(seen, [&](const nb::object& known) { return known.equal(device); })) continue;
      seen.push_back(device);
    }
    out.push_back({current_stream(each), each.place().data});
  }
  return out;
}

}  // namespace tensorhub_python
