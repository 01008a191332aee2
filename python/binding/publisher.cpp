/// \file publisher.cpp
/// `tensorhub._core.Publisher`.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tensorhub/arena_publisher.hpp>
#include <tensorhub/publisher.hpp>
#include <utility>
#include <variant>
#include <vector>

#include "calls.hpp"
#include "doors.hpp"
#include "streams.hpp"
#include "tensors.hpp"

namespace tensorhub_python {

namespace {

struct publisher_worker final : tensorhub::any_publisher {
  publisher_worker(tensorhub::worker_options options, const tensorhub::worker_policies& policies)
      : any_publisher{std::move(options), policies} {}
};

class publisher : kept_tensors, public door<publisher_worker> {
 public:
  explicit publisher(const nb::dict& given) : publisher{given, chosen_policies_of(given)} {}

  void add(const std::string& name, nb::object tensor) {
    keep(*object_.use(), {name, std::move(tensor), {.may_be_on_device = order_.has_devices()}});
  }
  void add_all(const named_tensors& given) {
    keep_all(*object_.use(), given, {.may_be_on_device = order_.has_devices()});
  }
  using kept_tensors::check_tensors;
  using kept_tensors::keeps_tensors;
  using kept_tensors::let_go;
  using kept_tensors::tensors;
  nb::dict publish(std::uint64_t version, given_seconds timeout, nb::handle stream,
                   std::optional<std::vector<std::string>> changed) {
    const auto owner = object_.use();  // before the driver is asked: it may belong to a parent process
    check_tensors();
    const auto marks = order_.before(tensors, stream);
    return told(call([&](auto& worker) {
      const milliseconds left = await(marks, time_of(timeout), worker);
      if (changed) return worker.publish(version, tensorhub::changed(*std::move(changed)), left);
      return worker.publish(version, left);
    }));
  }
  nb::dict publish_snapshot(std::uint64_t version, std::uint64_t stride, given_seconds timeout,
                            nb::handle stream) {
    const auto owner = object_.use();  // before the driver is asked: it may belong to a parent process
    check_tensors();
    const auto marks = order_.before(tensors, stream);
    return told(call([&](auto& worker) {
      const milliseconds left = await(marks, time_of(timeout), worker);
      return worker.publish(version, tensorhub::snapshot.every(stride), left);
    }));
  }
  /// Lets the tensors go with the worker.
  void close() {
    if (is_closed()) return;
    interrupt();
    const bool is_last = !object_.is_shared();
    object_.drop();
    if (is_last) let_go();
  }

 private:
  publisher(const nb::dict& given, const chosen_policies& chosen)
      : door{"Publisher", made<publisher_worker>(options_of(given), chosen.policies)}, order_{chosen.mark} {}

  stream_order order_;
};

struct arena_worker final : tensorhub::any_arena_publisher {
  arena_worker(tensorhub::worker_options options, const tensorhub::worker_policies& policies)
      : any_arena_publisher{std::move(options), policies} {}
};

/// `tensorhub._core.Arena`.
class arena : public door<arena_worker> {
 public:
  explicit arena(const nb::dict& given)
      : door{"ArenaPublisher", made<arena_worker>(options_of(given), policies_of(given))} {}
  arena(const arena&) = delete;
  arena& operator=(const arena&) = delete;
  ~arena() { serve_no_views(object_, views_); }

  void declare(const std::string& name, const std::vector<std::uint64_t>& shape, const std::string& type) {
    object_.use()->add(name, shape, dtype_of(type));
    declared_[name] = {nullptr, dtype_of(type), shape};
  }
  void check_tensors() const {}
  void begin(std::uint64_t version, given_seconds timeout) {
    call([&](auto& worker) { worker.begin(version, time_of(timeout)); });
  }
  void put(const std::string& name, nb::object tensor) {
    const kept_tensor seen{name, std::move(tensor), {}};
    const tensor_place& place = seen.place();
    const auto known = declared_.find(name);
    if (known != declared_.end() &&
        (known->second.type != place.type || known->second.shape != place.shape)) {
      throw error(errc::invalid_argument,
                  "tensor '" + name + "' is " + tensorhub::describe({{}, place.type, place.shape}) +
                      ", and was declared as " +
                      tensorhub::describe({{}, known->second.type, known->second.shape}));
    }
    const std::uint64_t bytes = tensorhub::tensor_spec{{}, place.type, place.shape}.bytes().value_or(0);
    const std::span content{static_cast<const std::byte*>(place.data), static_cast<std::size_t>(bytes)};
    put_by([&](auto& worker) { worker.put(name, content); });
  }
  /// Of bytes that are there already.
  void put_written(const std::string& name) {
    put_by([&](auto& worker) { worker.put(name); });
  }
  nb::object tensor(const std::string& name) {
    const auto find = [&name](auto& worker) { return worker.tensor(name); };
    void* const data = asked(object_, find);
    const tensor_place& place = declared_.at(name);
    return writable_view_of(data, place.shape, place.type,
                            owner_of(viewed<arena_worker>{object_.use(), views_}));
  }
  nb::dict commit(std::uint64_t version, given_seconds timeout) {
    may_wait_ = true;
    return told(call([&](auto& worker) { return worker.commit(version, time_of(timeout)); }));
  }
  /// Views of its memory keep the worker, which leaves its model all the same.
  void close() {
    if (is_closed()) return;
    if (object_.is_usable()) interrupt();
    serve_no_views(object_, views_);
    object_.drop();
  }

 private:
  /// There are thousands, and but the first none needs a thread that can be interrupted.
  template <typename Put>
  void put_by(Put&& put) {
    if (!may_wait_) return asked(object_, put);
    call(put);
    may_wait_ = false;
  }

  std::map<std::string, tensor_place> declared_;
  std::shared_ptr<int> views_ = std::make_shared<int>();  // counts them
  std::atomic<bool> may_wait_ = true;  ///< the next `put` joins, or takes back what was committed
};

using names = std::vector<std::string>;

template <typename Door>
void bind_wait_held(nb::class_<Door>& bound) {
  bound.def(
      "wait_held",
      [](Door& self, std::uint64_t version, const std::variant<std::uint32_t, names>& replicas,
         given_seconds timeout) {
        return self.call([&](auto& worker) {
          return std::visit(
              [&](const auto& whom) { return worker.wait_held(version, whom, time_of(timeout)); }, replicas);
        });
      },
      "version"_a, "replicas"_a, "timeout"_a.none());
}

}  // namespace

void bind_publisher(nb::module_& module) {
  nb::class_<publisher> bound{module, "Publisher", nb::type_slots(collected<publisher>::slots)};
  bound.def(nb::init<const nb::dict&>(), "options"_a);
  bound.def("add", &publisher::add, "name"_a, "tensor"_a.none());
  bound.def("add_all", &publisher::add_all, "tensors"_a);
  bound.def("publish", &publisher::publish, "version"_a, "timeout"_a.none(), "stream"_a.none(),
            "changed"_a.none());
  bound.def("publish_snapshot", &publisher::publish_snapshot, "version"_a, "stride"_a, "timeout"_a.none(),
            "stream"_a.none());
  bound.def("roll_back_to", &publisher::roll_back_to, "version"_a, "timeout"_a.none());
  bound.def("statistics", &publisher::statistics);
  bound.def_prop_ro("held_version", &publisher::held_version);
  bound.def_prop_ro("keeps_tensors", [](const publisher& self) { return self.keeps_tensors(); });
  bind_wait_held(bound);
  bind_shared_calls(bound);

  nb::class_<arena> filled{module, "Arena"};
  filled.def(nb::init<const nb::dict&>(), "options"_a);
  filled.def("declare", &arena::declare, "name"_a, "shape"_a, "dtype"_a);
  filled.def("begin", &arena::begin, "version"_a, "timeout"_a.none());
  filled.def("put", &arena::put, "name"_a, "tensor"_a.none());
  filled.def("put_written", &arena::put_written, "name"_a);
  filled.def("tensor", &arena::tensor, "name"_a);
  filled.def("commit", &arena::commit, "version"_a, "timeout"_a.none());
  filled.def("roll_back_to", &arena::roll_back_to, "version"_a, "timeout"_a.none());
  filled.def("statistics", &arena::statistics);
  filled.def_prop_ro("held_version", &arena::held_version);
  bind_wait_held(filled);
  bind_shared_calls(filled);
}

}  // namespace tensorhub_python
