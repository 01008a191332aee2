#pragma once
/// \file doors.hpp
/// What the classes of workers and clients share.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "calls.hpp"

namespace tensorhub_python {

/// A time-out of Python's, bound with `none()`. Of what is no number it has none, and `time_of` says so:
/// nanobind would name the types of all the function's arguments instead.
struct given_seconds {
  std::optional<double> number;
};

}  // namespace tensorhub_python

template <>
struct nanobind::detail::type_caster<tensorhub_python::given_seconds> {
  NB_TYPE_CASTER(tensorhub_python::given_seconds, const_name("float"))
  bool from_python(handle given, std::uint8_t /*flags*/, cleanup_list* /*cleanup*/) noexcept {
    const double seconds = PyFloat_AsDouble(given.ptr());
    if (PyErr_Occurred() != nullptr)
      PyErr_Clear();
    else
      value.number = seconds;
    return true;
  }
};

namespace tensorhub_python {

[[nodiscard]] inline milliseconds time_of(given_seconds given) {
  constexpr double longest = 365 * 24 * 3600.0;
  if (!given.number)
    throw nb::type_error("a time-out has to be a number of seconds; float('inf') waits for a year");
  const double seconds = *given.number;
  if (std::isnan(seconds))
    throw error(errc::invalid_argument, "a time-out has to be a number of seconds, and NaN is none");
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

/// A worker or client that Python owns, and whose calls may be interrupted. What an object does not have is
/// not bound.
template <typename Object>
class door {
 public:
  /// Runs `body(object)` as `waited`.
  template <typename Call>
  auto call(Call&& body) {
    const auto whole = object_.use();
    return waited([&] { whole->interrupt(); }, [&] { return body(*whole); });
  }
  void interrupt() {
    if (!is_closed()) object_.use()->interrupt();
  }
  /// Calls that run in other threads end soon, and the object with the last of them.
  void close() {
    interrupt();
    object_.drop();
  }
  [[nodiscard]] bool is_closed() const { return object_.is_closed(); }
  [[nodiscard]] std::shared_ptr<Object> in_use() const { return object_.use(); }

  [[nodiscard]] std::uint64_t offloaded_bytes() const { return object_.use()->offloaded_bytes(); }
  [[nodiscard]] std::uint64_t held_version() const { return object_.use()->held_version().value; }
  [[nodiscard]] nb::dict statistics() const { return told(object_.use()->statistics()); }
  void roll_back_to(std::uint64_t version, given_seconds timeout) {
    call([&](auto& worker) { worker.roll_back_to(version, time_of(timeout)); });
  }

 protected:
  door(std::string kind, std::shared_ptr<Object> object) : object_{std::move(kind), std::move(object)} {}
  ~door() = default;

  owned<Object> object_;
};

/// What a view of a worker's memory keeps.
template <typename Worker>
struct viewed {
  std::shared_ptr<Worker> worker;
  std::shared_ptr<int> count;  // of views, by its users
};
/// At the end of a worker: views keep it, but not the tensors that it would go on serving.
template <typename Worker>
void serve_no_views(const owned<Worker>& object, const std::shared_ptr<int>& count) {
  if (!object.is_usable() || count.use_count() == 1) return;
  const auto whole = object.use();
  const nb::gil_scoped_release python_goes_on;
  try {
    whole->leave(milliseconds{0});
  } catch (const error&) {  // the server finds out by itself
  }
}

/// The same, of a worker that receives versions when it is told to.
template <typename Worker>
class receiving_door : public door<Worker> {
 public:
  [[nodiscard]] std::uint64_t newer() const {
    return this->object_.use()->newer().value_or(tensorhub::version_number{}).value;
  }
  std::uint64_t wait(const std::string& kind, std::uint64_t version, given_seconds timeout) {
    return this->call(
        [&](auto& worker) { return worker.wait(selector_of(kind, version), time_of(timeout)).value; });
  }
  /// Unlike the base's, Python goes on meanwhile: the worker's memory may just be allocated.
  [[nodiscard]] std::uint64_t held_version() {
    return asked(this->object_, [](auto& worker) { return worker.held_version().value; });
  }

 protected:
  using door<Worker>::door;
  ~receiving_door() = default;
};

[[nodiscard]] inline tensorhub::update_reach reach_of(bool near_only) {
  return near_only ? tensorhub::update_reach::prefer_local : tensorhub::update_reach::anywhere;
}

/// Questions, what the server is to retain, and the end of the object.
template <typename Door>
void bind_questions(nb::class_<Door>& bound) {
  bound.def(
      "models",
      [](Door& self, const std::string& model, given_seconds timeout) {
        return all_told(self.call([&](auto& worker) { return worker.list(model, time_of(timeout)); }));
      },
      "model"_a, "timeout"_a.none());
  bound.def(
      "describe_model",
      [](Door& self, std::uint32_t shard, given_seconds timeout) {
        return all_told(
            self.call([&](auto& worker) { return worker.describe_model(shard, time_of(timeout)); }).tensors);
      },
      "shard"_a, "timeout"_a.none());
  bound.def(
      "why",
      [](Door& self, given_seconds timeout) {
        return self.call([&](auto& worker) { return worker.why(time_of(timeout)); });
      },
      "timeout"_a.none());
  bound.def(
      "stuck",
      [](Door& self, given_seconds older_than, given_seconds timeout) {
        return all_told(
            self.call([&](auto& worker) { return worker.stuck(time_of(older_than), time_of(timeout)); })
                .entries);
      },
      "older_than"_a.none(), "timeout"_a.none());
  bound.def(
      "retain",
      [](Door& self, std::uint32_t versions, given_seconds timeout) {
        self.call([&](auto& worker) { worker.retain(versions, time_of(timeout)); });
      },
      "versions"_a, "timeout"_a.none());
  bound.def(
      "pin",
      [](Door& self, std::uint64_t version, given_seconds timeout) {
        self.call([&](auto& worker) { worker.pin(version, time_of(timeout)); });
      },
      "version"_a, "timeout"_a.none());
  bound.def(
      "release",
      [](Door& self, std::uint64_t version, given_seconds timeout) {
        self.call([&](auto& worker) { worker.release(version, time_of(timeout)); });
      },
      "version"_a, "timeout"_a.none());
  bound.def_prop_ro("offloaded_bytes", &Door::offloaded_bytes);
  bound.def("interrupt", &Door::interrupt);
  bound.def("close", &Door::close);
  bound.def_prop_ro("is_closed", &Door::is_closed);
}

/// The same, and the calls of a worker that joins and leaves by itself.
template <typename Door>
void bind_shared_calls(nb::class_<Door>& bound) {
  bind_questions(bound);
  bound.def("join", [](Door& self) {
    const auto used = self.in_use();
    self.check_tensors();
    self.call([](auto& worker) { worker.join(); });
  });
  bound.def(
      "unpublish",
      [](Door& self, given_seconds timeout) {
        return told(self.call([&](auto& worker) { return worker.unpublish(time_of(timeout)); }));
      },
      "timeout"_a.none());
  bound.def(
      "leave",
      [](Door& self, given_seconds grace) {
        return told(self.call([&](auto& worker) { return worker.leave(time_of(grace)); }));
      },
      "grace"_a.none());
}

}  // namespace tensorhub_python
