/// \file publisher.cpp
/// `tensorhub._core.Publisher`.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <tensorhub/publisher.hpp>
#include <utility>
#include <vector>

#include "calls.hpp"
#include "doors.hpp"
#include "tensors.hpp"

namespace tensorhub_python {

namespace {

struct publisher_worker final : tensorhub::any_publisher {
  publisher_worker(tensorhub::worker_options options, const tensorhub::worker_policies& policies)
      : any_publisher{std::move(options), policies} {}
};

class publisher {
 public:
  explicit publisher(const nb::dict& given)
      : worker_{"Publisher", std::make_shared<publisher_worker>(options_of(given), policies_of(given))} {}

  void add(const std::string& name, nb::object tensor) {
    kept_tensor seen{name, std::move(tensor), false};
    const tensor_place& place = seen.place();
    worker_.use()->add(name, place.data, place.shape, place.type);
    tensors_.push_back(std::move(seen));
  }
  void check_tensors() const {
    for (const kept_tensor& each : tensors_) each.check_unmoved();
  }
  template <typename Call>
  auto call(Call&& body) {
    const auto worker = worker_.use();
    return waited([&] { worker->interrupt(); }, [&] { return body(*worker); });
  }
  nb::dict publish(std::uint64_t version, double timeout) {
    check_tensors();
    return told(call([&](auto& worker) { return worker.publish(version, time_of(timeout)); }));
  }
  nb::dict publish_snapshot(std::uint64_t version, std::uint64_t stride, double timeout) {
    check_tensors();
    return told(call([&](auto& worker) {
      return worker.publish(version, tensorhub::snapshot.every(stride), time_of(timeout));
    }));
  }
  [[nodiscard]] std::uint64_t held_version() { return worker_.use()->held_version().value; }
  [[nodiscard]] std::uint64_t offloaded_bytes() { return worker_.use()->offloaded_bytes(); }
  [[nodiscard]] nb::dict statistics() { return told(worker_.use()->statistics()); }
  /// Calls that run in other threads end soon, and the worker with the last of them.
  void close() {
    interrupt();
    worker_.drop();
  }
  void interrupt() {
    if (!worker_.is_closed()) worker_.use()->interrupt();
  }
  [[nodiscard]] bool is_closed() const { return worker_.is_closed(); }

 private:
  std::vector<kept_tensor> tensors_;  // outlive the worker
  owned<publisher_worker> worker_;
};

}  // namespace

void bind_publisher(nb::module_& module) {
  nb::class_<publisher> bound{module, "Publisher"};
  bound.def(nb::init<const nb::dict&>());
  bound.def("add", &publisher::add, nb::arg(), nb::arg().none());
  bound.def("publish", &publisher::publish);
  bound.def("publish_snapshot", &publisher::publish_snapshot);
  bound.def("statistics", &publisher::statistics);
  bound.def_prop_ro("held_version", &publisher::held_version);
  bound.def_prop_ro("offloaded_bytes", &publisher::offloaded_bytes);
  bind_shared_calls(bound);
}

}  // namespace tensorhub_python
