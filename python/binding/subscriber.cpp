/// \file subscriber.cpp
/// `tensorhub._core.Subscriber`, its running updates, and `Seeder`.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <poll.h>

#include <map>
#include <memory>
#include <optional>
#include <tensorhub/seeder.hpp>
#include <tensorhub/subscriber.hpp>
#include <tensorhub/worker/repeated.hpp>
#include <utility>
#include <vector>

#include "calls.hpp"
#include "doors.hpp"
#include "streams.hpp"
#include "tensors.hpp"

namespace tensorhub_python {

namespace {

using tensorhub::subscriber_mode;

struct subscriber_worker final : tensorhub::any_subscriber {
  subscriber_worker(tensorhub::worker_options options, subscriber_mode mode,
                    const tensorhub::worker_policies& policies)
      : any_subscriber{std::move(options), mode, policies} {}
  using any_subscriber::kept_report;
};

chosen_policies policies_for(const nb::dict& given, subscriber_mode mode) {
  if (mode == subscriber_mode::double_buffered) return {policies_of(given), nullptr};  // the library's memory
  return chosen_policies_of(given);
}

/// In mode in_place into the tensors, else beside what is live.
tensorhub::update_handle start(subscriber_worker& worker, tensorhub::version_selector which,
                               milliseconds timeout, bool near_only) {
  const auto reach = reach_of(near_only);
  if (worker.mode() == subscriber_mode::in_place) return worker.update_async(which, timeout, reach);
  return worker.stage_async(which, timeout, reach);
}

using viewed_subscriber = viewed<subscriber_worker>;

nb::object view_in(viewed_subscriber where, const void* data, const std::vector<std::uint64_t>& shape,
                   tensorhub::dtype type) {
  return view_of(data, shape, type, owner_of(std::move(where)));
}

struct running_update {
  viewed_subscriber owner;  // outlives the handle
  tensorhub::update_handle handle;
  /// The subscriber's, if they are what the update writes.
  const std::vector<kept_tensor>* written = nullptr;
};

/// `tensorhub._core.Arriving`: the tensors of an update, which it does not keep.
class arriving {
 public:
  arriving(const std::shared_ptr<running_update>& running, const std::vector<std::string>& names)
      : running_{running}, tensors_{running->handle.tensors(names)} {}

  /// A name and its tensor; None at the version's end.
  [[nodiscard]] nb::object next(given_seconds timeout) {
    const auto running = running_.lock();
    if (!running) throw error(errc::invalid_argument, "the update of these tensors was closed");
    const auto until = std::chrono::steady_clock::now() + time_of(timeout);
    std::optional<tensorhub::arrived_tensor> tensor;
    std::exception_ptr failure;
    wait_with_signals(
        [&](milliseconds longest) {
          const auto left = std::chrono::ceil<milliseconds>(until - std::chrono::steady_clock::now());
          const bool had_ended = running->handle.done();  // if it ends now, the next turn finds the tensor
          try {
            tensor = tensors_.next(std::max(milliseconds{0}, std::min(left, longest)));
          } catch (const error& e) {
            if (e.code() == errc::timed_out && left > longest && !had_ended) return false;
            failure = std::current_exception();
          }
          return true;
        },
        [&] { running->handle.cancel(); });
    if (failure) std::rethrow_exception(failure);
    if (!tensor) return nb::none();
    const std::vector<std::uint64_t> shape{tensor->shape.begin(), tensor->shape.end()};
    return nb::make_tuple(std::string{tensor->name},
                          running->written != nullptr
                              ? (*running->written)[tensor->position].given()
                              : view_in(running->owner, tensor->data, shape, tensor->type));
  }

 private:
  std::weak_ptr<running_update> running_;
  tensorhub::arriving_tensors tensors_;
};

/// `tensorhub._core.Update`.
class update {
 public:
  explicit update(std::shared_ptr<running_update> running) : running_{"Update", std::move(running)} {}

  [[nodiscard]] bool done() const { return running_.use()->handle.done(); }
  [[nodiscard]] int descriptor() const { return running_.use()->handle.descriptor(); }
  [[nodiscard]] nb::dict progress() const { return told(running_.use()->handle.progress()); }
  void cancel() const {
    const auto running = running_.use();
    const nb::gil_scoped_release python_goes_on;
    running->handle.cancel();
  }
  void interrupt() const {
    if (running_.is_usable()) cancel();
  }
  /// False: it still runs after `timeout`.
  [[nodiscard]] bool wait(given_seconds timeout) const {
    const auto running = running_.use();
    const auto until = std::chrono::steady_clock::now() + time_of(timeout);
    pollfd ended{running->handle.descriptor(), POLLIN, 0};
    wait_with_signals(
        [&](milliseconds longest) {
          const auto now = std::chrono::steady_clock::now();
          const auto left = std::chrono::ceil<milliseconds>(until - now);
          ::poll(&ended, 1, static_cast<int>(std::max(milliseconds{0}, std::min(left, longest)).count()));
          return running->handle.done() || until <= now;
        },
        [&] { running->handle.cancel(); });
    return running->handle.done();
  }
  [[nodiscard]] std::unique_ptr<arriving> tensors(const std::vector<std::string>& names) const {
    return std::make_unique<arriving>(running_.use(), names);
  }
  /// Of an update that runs still: its error `timed_out`.
  [[nodiscard]] nb::dict result() const { return told(running_.use()->handle.wait(milliseconds{0})); }
  /// Others may wait for it still, or hold its tensors. A signal whose handler raises ends the call, which
  /// can be repeated.
  void close() {
    if (running_.is_usable()) end(running_.use()->handle);
    running_.drop();
  }
  [[nodiscard]] bool is_closed() const { return running_.is_closed(); }

 private:
  static void end(tensorhub::update_handle& handle) {
    {
      const nb::gil_scoped_release python_goes_on;
      handle.cancel();
    }
    pollfd ended{handle.descriptor(), POLLIN, 0};
    bool is_interrupted = false;
    wait_with_signals(
        [&](milliseconds longest) {
          if (!is_interrupted) ::poll(&ended, 1, static_cast<int>(longest.count()));
          return is_interrupted || handle.done();
        },
        [&] { is_interrupted = true; });
  }
  owned<running_update> running_;
};

class subscriber : kept_tensors, public receiving_door<subscriber_worker> {
 public:
  subscriber(const nb::dict& given, const std::string& mode)
      : subscriber{given, tensorhub::subscriber_mode_named(mode)} {}
  ~subscriber() { serve_no_views(object_, views_); }
  subscriber(const subscriber&) = delete;
  subscriber& operator=(const subscriber&) = delete;

  void add(const std::string& name, nb::object tensor) {
    keep(*of_the_callers_tensors(), {name, std::move(tensor), use()});
  }
  void add_all(const named_tensors& given) { keep_all(*of_the_callers_tensors(), given, use()); }
  void allocate(const std::string& name, const std::vector<std::uint64_t>& shape, const std::string& type) {
    const tensorhub::dtype element = dtype_of(type);
    const auto whole = object_.use();
    if (whole->mode() != subscriber_mode::double_buffered)
      throw error(errc::invalid_argument, "allocate is for subscribers in mode double_buffered");
    whole->add(name, shape, element);
    allocated_[name] = {nullptr, element, shape};
  }
  using kept_tensors::check_tensors;
  using kept_tensors::keeps_tensors;
  using kept_tensors::let_go;
  using kept_tensors::tensors;

  nb::dict receive(const std::string& kind, std::uint64_t version, given_seconds timeout, bool near_only,
                   bool retry, nb::handle stream) {
    const auto whole = object_.use();
    check_tensors();
    const auto marks = before_writing(*whole, stream);
    return told(call([&](subscriber_worker& worker) {
      const auto once = [&](milliseconds left) {
        return start(worker, selector_of(kind, version), left, near_only)
            .wait(std::chrono::hours{24 * 365});  // it ends by its own time-out
      };
      const milliseconds left = await(marks, time_of(timeout), worker);
      return retry ? tensorhub::detail::repeated(who_, left, worker, once) : once(left);
    }));
  }
  /// Waits for the streams, and allocates a stage, before it returns.
  std::unique_ptr<update> receive_async(const std::string& kind, std::uint64_t version, given_seconds timeout,
                                        bool near_only, nb::handle stream) {
    const auto whole = object_.use();
    check_tensors();
    const auto marks = before_writing(*whole, stream);
    tensorhub::update_handle begun = call([&](subscriber_worker& worker) {
      const milliseconds left = await(marks, time_of(timeout), worker);
      return start(worker, selector_of(kind, version), left, near_only);
    });
    return std::make_unique<update>(made<running_update>(running_update{
        {whole, views_}, std::move(begun), whole->mode() == subscriber_mode::in_place ? &tensors : nullptr}));
  }
  nb::dict install(given_seconds timeout, bool retry, nb::handle stream) {
    const auto whole = object_.use();
    check_tensors();
    const auto marks = order_.before(tensors, stream);
    return told(call([&](subscriber_worker& worker) {
      const auto once = [&](milliseconds left) { return worker.install(left); };
      const milliseconds left = await(marks, time_of(timeout), worker);
      return retry ? tensorhub::detail::repeated(who_, left, worker, once) : once(left);
    }));
  }
  /// None: what is live is not what an update would take.
  nb::object kept_report(const std::string& kind, std::uint64_t version, given_seconds timeout) {
    const auto found = call([&](subscriber_worker& worker) {
      return worker.kept_report(selector_of(kind, version), time_of(timeout));
    });
    return found ? nb::object{told(*found)} : nb::none();
  }
  std::uint64_t staged_version() {
    return asked(object_, [](subscriber_worker& worker) { return worker.staged_version().value; });
  }
  /// The live bytes of an allocated tensor.
  nb::object tensor(const std::string& name) {
    const auto find = [&name](subscriber_worker& worker) { return worker.tensor(name); };
    const void* const data = asked(object_, find);
    const tensor_place& place = allocated_.at(name);
    return view_in({object_.use(), views_}, data, place.shape, place.type);
  }
  nb::list statistics() {
    const auto whole = object_.use();
    nb::list out;
    out.append(told(whole->statistics()));
    if (whole->mode() != subscriber_mode::in_place) out.append(told(whole->stage_statistics()));
    return out;
  }
  /// Calls that run in other threads end soon, and the worker with the last of them; if there are views of
  /// its memory, it serves nothing from now on, and ends with the last view. With the worker the tensors are
  /// let go.
  void close() {
    if (is_closed()) return;
    if (object_.is_usable()) interrupt();
    serve_no_views(object_, views_);
    const bool is_last = !object_.is_shared();
    object_.drop();
    if (is_last) let_go();
  }

 private:
  subscriber(const nb::dict& given, subscriber_mode mode)
      : subscriber{given, mode, policies_for(given, mode)} {}
  subscriber(const nb::dict& given, subscriber_mode mode, const chosen_policies& chosen)
      : receiving_door{"Subscriber", made<subscriber_worker>(options_of(given), mode, chosen.policies)},
        who_{options_of(given)},
        order_{chosen.mark} {}

  [[nodiscard]] tensor_use use() const { return {.written = true, .may_be_on_device = order_.has_devices()}; }
  [[nodiscard]] std::shared_ptr<subscriber_worker> of_the_callers_tensors() const {
    auto whole = object_.use();
    if (whole->mode() == subscriber_mode::double_buffered)
      throw error(errc::invalid_argument,
                  "add is for subscribers in mode in_place or staged: in mode double_buffered the memory is "
                  "the library's, see allocate");
    return whole;
  }
  /// A stage touches no tensor of the caller.
  [[nodiscard]] std::unique_ptr<stream_marks> before_writing(const subscriber_worker& whole,
                                                             nb::handle stream) const {
    if (whole.mode() != subscriber_mode::in_place) return nullptr;
    return order_.before(tensors, stream);
  }
  tensorhub::worker_options who_;
  stream_order order_;
  std::map<std::string, tensor_place> allocated_;
  std::shared_ptr<int> views_ = std::make_shared<int>();  // counts them
};

struct seeder_worker final : tensorhub::any_seeder {
  seeder_worker(tensorhub::worker_options options, tensorhub::worker_policies policies)
      : any_seeder{std::move(options), std::move(policies)} {}
};

class seeder : public door<seeder_worker> {
 public:
  explicit seeder(const nb::dict& given)
      : door{"Seeder", made<seeder_worker>(options_of(given), policies_of(given))} {}

  std::uint64_t wait(std::uint64_t version, given_seconds timeout) {
    return call([&](seeder_worker& worker) { return worker.wait(version, time_of(timeout)).value; });
  }
  std::string last_failure() { return object_.use()->last_failure(); }
};

}  // namespace

void bind_subscriber(nb::module_& module) {
  nb::class_<arriving> tensors{module, "Arriving"};
  tensors.def("next", &arriving::next, "timeout"_a.none());

  nb::class_<update> running{module, "Update"};
  running.def("done", &update::done);
  running.def("descriptor", &update::descriptor);
  running.def("progress", &update::progress);
  running.def("cancel", &update::cancel);
  running.def("interrupt", &update::interrupt);
  running.def("wait", &update::wait, "timeout"_a.none());
  running.def("result", &update::result);
  running.def("tensors", &update::tensors, "names"_a, nb::keep_alive<0, 1>());
  running.def("close", &update::close);
  running.def_prop_ro("is_closed", &update::is_closed);

  nb::class_<subscriber> bound{module, "Subscriber", nb::type_slots(collected<subscriber>::slots)};
  bound.def(nb::init<const nb::dict&, const std::string&>(), "options"_a, "mode"_a);
  bound.def("add", &subscriber::add, "name"_a, "tensor"_a.none());
  bound.def("add_all", &subscriber::add_all, "tensors"_a);
  bound.def("allocate", &subscriber::allocate, "name"_a, "shape"_a, "dtype"_a);
  bound.def("receive", &subscriber::receive, "kind"_a, "version"_a, "timeout"_a.none(), "near_only"_a,
            "retry"_a, "stream"_a.none());
  bound.def("receive_async", &subscriber::receive_async, "kind"_a, "version"_a, "timeout"_a.none(),
            "near_only"_a, "stream"_a.none(), nb::keep_alive<0, 1>());
  bound.def("kept_report", &subscriber::kept_report, "kind"_a, "version"_a, "timeout"_a.none());
  bound.def("install", &subscriber::install, "timeout"_a.none(), "retry"_a, "stream"_a.none());
  bound.def("newer", &subscriber::newer);
  bound.def("wait", &subscriber::wait, "kind"_a, "version"_a, "timeout"_a.none());
  bound.def("tensor", &subscriber::tensor, "name"_a);
  bound.def("statistics", &subscriber::statistics);
  bound.def_prop_ro("held_version", &subscriber::held_version);
  bound.def_prop_ro("staged_version", &subscriber::staged_version);
  bound.def_prop_ro("keeps_tensors", [](const subscriber& self) { return self.keeps_tensors(); });
  bind_shared_calls(bound);

  nb::class_<seeder> seeding{module, "Seeder"};
  seeding.def(nb::init<const nb::dict&>(), "options"_a);
  seeding.def("wait", &seeder::wait, "version"_a, "timeout"_a.none());
  seeding.def("statistics", &seeder::statistics);
  seeding.def_prop_ro("held_version", &seeder::held_version);
  seeding.def_prop_ro("last_failure", &seeder::last_failure);
  bind_questions(seeding);
}

}  // namespace tensorhub_python
