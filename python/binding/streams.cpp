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

void* current_stream_of_torch(nb::handle device) {
  const nb::object torch = nb::module_::import_("torch");
  return handle_of(torch.attr("cuda").attr("current_stream")(device).attr("cuda_stream"));
}

/// That an array of CUDA names itself; null: the default one.
void* named_stream(const kept_tensor& tensor) {
  if (!nb::hasattr(tensor.given(), "__cuda_array_interface__")) return nullptr;
  const nb::object shown = tensor.given().attr("__cuda_array_interface__");
  const nb::object stream = shown.attr("get")("stream");
  return stream.is_none() ? nullptr : handle_of(stream);
}

bool says_all_done(nb::handle stream) {
  std::string text;
  return nb::try_cast(stream, text) && text == "all_done";
}

/// The null stream, and both by name: another one on each device.
bool follows_from_device(const void* stream) {
  return reinterpret_cast<std::uintptr_t>(stream) <= 2;
}

/// The device that a stream of torch or CuPy names; negative: it names none.
int device_named_by(nb::handle stream) {
  int ordinal = -1;
  if (nb::hasattr(stream, "device") && nb::hasattr(stream.attr("device"), "index"))
    static_cast<void>(nb::try_cast(stream.attr("device").attr("index"), ordinal));
  else if (nb::hasattr(stream, "device_id"))
    static_cast<void>(nb::try_cast(stream.attr("device_id"), ordinal));
  return ordinal;
}

/// A default stream on the devices of all tensors, on the one that it names, and for tensors of the host on
/// that of the calling thread.
std::vector<device_stream> given_on_devices_of(std::span<const kept_tensor> tensors, nb::handle stream) {
  void* const handle = given_stream(stream);
  if (!follows_from_device(handle)) return {{handle, nullptr}};
  std::vector<device_stream> out;
  bool has_host_memory = false;
  for (const kept_tensor& each : tensors) {
    if (each.place().data == nullptr) continue;
    has_host_memory = has_host_memory || !each.place().on_device;
    if (each.place().on_device) out.push_back({handle, each.place().data});
  }
  if (const int named = device_named_by(stream); named >= 0)
    out.push_back({handle, nullptr, named});
  else if (has_host_memory || out.empty())
    out.push_back({handle, nullptr});
  return out;
}

}  // namespace

std::unique_ptr<stream_marks> stream_order::before(std::span<const kept_tensor> tensors,
                                                   nb::handle stream) const {
  const auto streams = streams_before(tensors, stream);
  if (streams.empty()) return nullptr;
  const waiting_calls::entry counted;
  const nb::gil_scoped_release python_goes_on;  // the driver may wait
  return mark_(streams);
}

std::vector<device_stream> stream_order::streams_before(std::span<const kept_tensor> tensors,
                                                        nb::handle stream) const {
  if (says_all_done(stream)) return {};
  if (!has_devices()) {
    if (!stream.is_none())
      throw error(errc::invalid_argument, "a stream was given to a worker of host memory: leave it out");
    return {};
  }
  if (!stream.is_none()) return given_on_devices_of(tensors, stream);
  std::vector<device_stream> out;
  std::vector<nb::object> seen;  // devices of torch; None: its current one
  for (const kept_tensor& each : tensors) {
    if (each.place().data == nullptr || !(each.place().on_device || each.is_pinned())) continue;
    if (!each.is_of_torch()) {
      out.push_back({named_stream(each), each.place().data});
      continue;
    }
    const nb::object device = each.is_pinned() ? nb::none() : nb::object{each.given().attr("device")};
    if (std::ranges::any_of(seen, [&](const nb::object& known) { return known.equal(device); })) continue;
    seen.push_back(device);
    out.push_back({current_stream_of_torch(device), each.is_pinned() ? nullptr : each.place().data});
  }
  return out;
}

}  // namespace tensorhub_python
