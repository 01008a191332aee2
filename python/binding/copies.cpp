/// \file copies.cpp
/// `tensorhub._core.SharedCopy`, `AttachedCopy` and `HeldCopy`.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <tensorhub/shared_copy.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "calls.hpp"
#include "doors.hpp"
#include "tensors.hpp"

namespace tensorhub_python {

namespace {

struct copy_worker final : tensorhub::any_shared_copy {
  copy_worker(tensorhub::worker_options options, const tensorhub::worker_policies& policies, std::string name)
      : any_shared_copy{std::move(options), policies, std::move(name)} {}
};

class shared_copy : public receiving_door<copy_worker> {
 public:
  shared_copy(const nb::dict& given, const std::string& name)
      : receiving_door{"SharedCopy", made<copy_worker>(options_of(given), policies_of(given), name)} {}

  void declare(const std::string& name, const std::vector<std::uint64_t>& shape, const std::string& type) {
    object_.use()->add(name, shape, dtype_of(type));
  }
  void check_tensors() const {}  // all are the library's
  nb::dict update(const std::string& kind, std::uint64_t version, given_seconds timeout, bool near_only) {
    return told(call([&](copy_worker& worker) {
      return worker.update(selector_of(kind, version), time_of(timeout), reach_of(near_only));
    }));
  }
  nb::list attached() {
    nb::list out;
    for (const auto& each : object_.use()->attached())
      out.append(nb::make_tuple(each.process, each.holds_live, each.holds_previous));
    return out;
  }
  nb::list statistics() {
    const auto worker = object_.use();
    nb::list out;
    out.append(told(worker->statistics()));
    out.append(told(worker->stage_statistics()));
    return out;
  }
};

using tensors_by_name = std::unordered_map<std::string, tensorhub::tensor_spec>;

/// What an attached copy has, and its views keep: the mapped memory, and a hold on a version in it.
struct held_part {
  tensorhub::held_copy held;
  std::shared_ptr<const tensors_by_name> tensors;
};

class held_copy {
 public:
  explicit held_copy(std::shared_ptr<held_part> part) : part_{"HeldCopy", std::move(part)} {}

  [[nodiscard]] std::uint64_t version() const { return part_.use()->held.version().value; }
  [[nodiscard]] nb::object tensor(const std::string& name) const {
    auto part = std::make_unique<std::shared_ptr<held_part>>(part_.use());
    const held_part& all = **part;
    const auto bytes = all.held.tensor(name);
    const tensorhub::tensor_spec& found = all.tensors->at(name);
    const nb::capsule owner{
        part.get(), [](void* kept) noexcept { delete static_cast<std::shared_ptr<held_part>*>(kept); }};
    static_cast<void>(part.release());
    return view_of(bytes.data(), found.shape, found.type, owner);
  }
  void close() { part_.drop(); }
  [[nodiscard]] bool is_closed() const { return part_.is_closed(); }

 private:
  owned<held_part> part_;
};

class attached_copy {
 public:
  attached_copy(const std::string& name, given_seconds timeout)
      : copy_{"AttachedCopy", made<tensorhub::attached_copy>(attached_to(name, time_of(timeout)))} {
    tensors_by_name by_name;
    for (const auto& each : copy_.use()->tensors()) by_name.emplace(each.name, each);
    tensors_ = std::make_shared<const tensors_by_name>(std::move(by_name));
  }

  [[nodiscard]] nb::list tensors() const { return all_told(copy_.use()->tensors()); }
  std::unique_ptr<held_copy> hold(const std::string& kind, std::uint64_t version, given_seconds timeout) {
    const auto copy = copy_.use();
    const auto selector = selector_of(kind, version);
    const auto until = std::chrono::steady_clock::now() + time_of(timeout);
    is_interrupted_ = false;
    std::optional<tensorhub::held_copy> held;
    std::exception_ptr failure;
    wait_with_signals(
        [&](milliseconds longest) {
          const auto left = std::chrono::ceil<milliseconds>(until - std::chrono::steady_clock::now());
          try {
            held.emplace(copy->hold(selector, std::max(milliseconds{0}, std::min(left, longest))));
          } catch (const error& e) {
            const bool has_time = e.code() == errc::timed_out && left > longest;
            if (has_time && !is_interrupted_) return false;
            failure = has_time ? std::make_exception_ptr(error(errc::cancelled,
                                                               "hold() was interrupted (by a signal, or by "
                                                               "close() in another thread): call it again"))
                               : std::current_exception();
          }
          return true;
        },
        [this] { is_interrupted_ = true; });
    if (failure) std::rethrow_exception(failure);
    return std::make_unique<held_copy>(made<held_part>(held_part{*std::move(held), tensors_}));
  }
  [[nodiscard]] std::uint64_t live_version() const { return copy_.use()->live_version().value; }
  void interrupt() { is_interrupted_ = true; }
  void close() {
    interrupt();
    copy_.drop();
  }
  [[nodiscard]] bool is_closed() const { return copy_.is_closed(); }

 private:
  static tensorhub::attached_copy attached_to(const std::string& name, milliseconds timeout) {
    std::stop_source stop;
    return waited([&] { stop.request_stop(); },
                  [&] {
                    return tensorhub::attached_copy{name, timeout, stop.get_token()};
                  });
  }

  std::atomic<bool> is_interrupted_ = false;
  owned<tensorhub::attached_copy> copy_;
  std::shared_ptr<const tensors_by_name> tensors_;
};

}  // namespace

void bind_copies(nb::module_& module) {
  nb::class_<shared_copy> shared{module, "SharedCopy"};
  shared.def(nb::init<const nb::dict&, const std::string&>(), "options"_a, "name"_a);
  shared.def("declare", &shared_copy::declare, "name"_a, "shape"_a, "dtype"_a);
  shared.def("update", &shared_copy::update, "kind"_a, "version"_a, "timeout"_a.none(), "near_only"_a);
  shared.def("newer", &shared_copy::newer);
  shared.def("wait", &shared_copy::wait, "kind"_a, "version"_a, "timeout"_a.none());
  shared.def("attached", &shared_copy::attached);
  shared.def("statistics", &shared_copy::statistics);
  shared.def_prop_ro("held_version", &shared_copy::held_version);
  bind_shared_calls(shared);

  nb::class_<held_copy> held{module, "HeldCopy"};
  held.def("tensor", &held_copy::tensor, "name"_a);
  held.def("interrupt", [](held_copy&) {});
  held.def("close", &held_copy::close);
  held.def_prop_ro("version", &held_copy::version);
  held.def_prop_ro("is_closed", &held_copy::is_closed);

  nb::class_<attached_copy> attached{module, "AttachedCopy"};
  attached.def(nb::init<const std::string&, given_seconds>(), "name"_a, "timeout"_a.none());
  attached.def("tensors", &attached_copy::tensors);
  attached.def("hold", &attached_copy::hold, "kind"_a, "version"_a, "timeout"_a.none());
  attached.def("interrupt", &attached_copy::interrupt);
  attached.def("close", &attached_copy::close);
  attached.def_prop_ro("live_version", &attached_copy::live_version);
  attached.def_prop_ro("is_closed", &attached_copy::is_closed);
}

}  // namespace tensorhub_python
