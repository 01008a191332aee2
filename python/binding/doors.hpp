#pragma once
/// \file doors.hpp
/// The calls that publishers, subscribers and seeders share. A `Door` has `call(f)`, which runs `f(worker)`
/// as `waited`.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <string>

#include "calls.hpp"

namespace tensorhub_python {

/// A time-out of Python's, in seconds.
[[nodiscard]] inline milliseconds time_of(double seconds) {
  constexpr double longest = 365 * 24 * 3600.0;
  if (std::isnan(seconds)) throw error(errc::invalid_argument, "the time-out is no number of seconds");
  return milliseconds{static_cast<std::int64_t>(std::ceil(std::min(std::max(seconds, 0.0), longest) * 1e3))};
}

/// The answer of a worker to what waits for its allocation of memory, and for nothing else: Python goes on
/// meanwhile.
template <typename Owner, typename Question>
auto asked(Owner& owner, Question&& question) {
  const auto whole = owner.use();
  const waiting_calls::entry counted;
  const nb::gil_scoped_release python_goes_on;
  return question(*whole);
}

/// Questions, what the server is to retain, and the end of the object.
template <typename Door>
void bind_questions(nb::class_<Door>& door) {
  door.def("models", [](Door& self, const std::string& model, double timeout) {
    nb::list out;
    for (const auto& each : self.call([&](auto& worker) { return worker.list(model, time_of(timeout)); }))
      out.append(told(each));
    return out;
  });
  door.def("describe_model", [](Door& self, std::uint32_t shard, double timeout) {
    const auto reply =
        self.call([&](auto& worker) { return worker.describe_model(shard, time_of(timeout)); });
    nb::list out;
    for (const tensorhub::tensor_spec& each : reply.tensors) {
      nb::list shape;
      for (const std::uint64_t extent : each.shape) shape.append(extent);
      out.append(nb::make_tuple(each.name, std::string{to_string(each.type)}, nb::tuple(shape)));
    }
    return out;
  });
  door.def("why", [](Door& self, double timeout) {
    return self.call([&](auto& worker) { return worker.why(time_of(timeout)); });
  });
  door.def("stuck", [](Door& self, double older_than, double timeout) {
    const auto reply =
        self.call([&](auto& worker) { return worker.stuck(time_of(older_than), time_of(timeout)); });
    nb::list out;
    for (const auto& each : reply.entries) out.append(told(each));
    return out;
  });
  door.def("retain", [](Door& self, std::uint32_t versions, double timeout) {
    self.call([&](auto& worker) { worker.retain(versions, time_of(timeout)); });
  });
  door.def("pin", [](Door& self, std::uint64_t version, double timeout) {
    self.call([&](auto& worker) { worker.pin(version, time_of(timeout)); });
  });
  door.def("release", [](Door& self, std::uint64_t version, double timeout) {
    self.call([&](auto& worker) { worker.release(version, time_of(timeout)); });
  });
  door.def_prop_ro("offloaded_bytes", &Door::offloaded_bytes);
  door.def("interrupt", &Door::interrupt);
  door.def("close", &Door::close);
  door.def_prop_ro("is_closed", &Door::is_closed);
}

/// The same, and the calls of a worker that joins and leaves by itself.
template <typename Door>
void bind_shared_calls(nb::class_<Door>& door) {
  bind_questions(door);
  door.def("join", [](Door& self) {
    self.check_tensors();
    self.call([](auto& worker) { worker.join(); });
  });
  door.def("unpublish", [](Door& self, double timeout) {
    return told(self.call([&](auto& worker) { return worker.unpublish(time_of(timeout)); }));
  });
  door.def("leave", [](Door& self, double grace) {
    return told(self.call([&](auto& worker) { return worker.leave(time_of(grace)); }));
  });
}

}  // namespace tensorhub_python
