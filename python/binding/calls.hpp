#pragma once
/// \file calls.hpp
/// What all calls from Python share: objects of this process, waits that let Python go on, and reports as
/// dictionaries.
///
/// No thread but the caller's runs Python. Every call that may wait releases the interpreter; in the main
/// thread it looks for signals ten times in a second, and a signal whose handler raises (Ctrl-C) ends the
/// call.

#include <nanobind/nanobind.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <tensorhub/options.hpp>
#include <tensorhub/server.hpp>
#include <tensorhub/server_client.hpp>
#include <tensorhub/worker/policy_data_plane.hpp>
#include <tensorhub/worker/worker.hpp>
#include <thread>
#include <type_traits>
#include <utility>

#include "transport_module.hpp"

namespace tensorhub_python {

namespace nb = nanobind;
using nb::literals::operator""_a;
using std::chrono::milliseconds;
using tensorhub::errc;
using tensorhub::error;

/// Calls that wait, of all threads, until they have the interpreter again. An interpreter that ends must not
/// find any: it would end their threads by force, and the process with them.
class waiting_calls {
 public:
  /// Made with the interpreter, and destroyed with it.
  class entry {
   public:
    entry() { change(1); }
    ~entry() { change(-1); }
    entry(const entry&) = delete;
    entry& operator=(const entry&) = delete;
  };
  /// The end of an object: counted, and without the interpreter unless that ends.
  class object_end {
   public:
    object_end() {
      change(1);
      if (!ends_elsewhere()) others_go_on_.emplace();
    }
    ~object_end() {
      others_go_on_.reset();
      change(-1);
    }
    object_end(const object_end&) = delete;
    object_end& operator=(const object_end&) = delete;

   private:
    std::optional<nb::gil_scoped_release> others_go_on_;
  };
  /// True: there are none, while the caller has the interpreter.
  static bool wait_for_none(milliseconds longest);
  /// The interpreter ends in this thread.
  static void let_interpreter_end();

 private:
  static void change(int by);
  static bool ends_elsewhere();
};

/// A C++ object, as of `made`, that a Python object owns. In a process that was forked since, every call is
/// refused.
template <typename Object>
class owned {
 public:
  /// `kind`: for errors, such as "Publisher".
  owned(std::string kind, std::shared_ptr<Object> object)
      : kind_{std::move(kind)}, object_{std::move(object)} {}
  owned(const owned&) = delete;
  owned& operator=(const owned&) = delete;

  /// Alive as long as the result, also if it is closed meanwhile.
  [[nodiscard]] std::shared_ptr<Object> use() const {
    if (::getpid() != process_)
      throw error(errc::invalid_argument, "this " + kind_ +
                                              " was made before fork(), and its threads do not run in this "
                                              "process: make another one here, or start processes by spawn");
    if (!object_) throw error(errc::invalid_argument, "this " + kind_ + " was closed: make another one");
    return object_;
  }
  [[nodiscard]] bool is_closed() const noexcept { return !object_; }
  [[nodiscard]] bool is_usable() const noexcept { return object_ && ::getpid() == process_; }
  /// A call of another thread, or what it has given, uses the object still.
  [[nodiscard]] bool is_shared() const noexcept { return object_.use_count() > 1; }
  /// Ends the object, which may take a while: readers that still read are cut off.
  void drop() { object_.reset(); }

 private:
  std::string kind_;
  pid_t process_ = ::getpid();
  std::shared_ptr<Object> object_;
};

/// Only there are signals handled.
[[nodiscard]] inline bool is_main_thread() noexcept {
  return ::syscall(SYS_gettid) == ::getpid();
}

inline constexpr milliseconds signal_interval{100};

/// Waits until `is_over(interval)`, which waits for as long as it is told, returns true. If a signal's
/// handler raises meanwhile, `interrupt()` is called from then on, and the exception goes on when the wait is
/// over, in place of the call's own end.
template <typename Over, typename Interrupt>
void wait_with_signals(Over&& is_over, Interrupt&& interrupt) {
  const waiting_calls::entry counted;
  std::optional<nb::python_error> raised;
  for (bool over = false; !over;) {
    {
      const nb::gil_scoped_release python_goes_on;
      over = is_over(signal_interval);
      if (!over && raised) interrupt();
    }
    if (!raised && PyErr_CheckSignals() != 0) {
      raised.emplace();
      if (over) break;
      const nb::gil_scoped_release python_goes_on;
      interrupt();
    }
  }
  if (raised) throw *std::move(raised);
}

/// The result of `call`, which does not touch Python, as `wait_with_signals`.
template <typename Interrupt, typename Call>
auto waited(Interrupt&& interrupt, Call&& call) {
  using result = std::invoke_result_t<Call&>;
  if (!is_main_thread()) {
    const waiting_calls::entry counted;
    const nb::gil_scoped_release python_goes_on;
    return call();
  }
  std::packaged_task<result()> task{std::forward<Call>(call)};
  std::future<result> outcome = task.get_future();
  const std::jthread running{std::move(task)};
  wait_with_signals(
      [&](milliseconds longest) { return outcome.wait_for(longest) == std::future_status::ready; },
      [&] {
        try {
          interrupt();
        } catch (const std::exception&) {  // the call ends at its own deadline
        }
      });
  return outcome.get();
}

/// An object that Python uses. Its constructor does not touch Python. That may wait (for a host's address),
/// and so may its end: Python goes on meanwhile. In a process that was forked since, its threads do not run,
/// and it is never destroyed.
template <typename Object, typename... Arguments>
[[nodiscard]] std::shared_ptr<Object> made(Arguments&&... arguments) {
  const waiting_calls::entry counted;
  const nb::gil_scoped_release python_goes_on;
  return {new Object{std::forward<Arguments>(arguments)...}, [process = ::getpid()](Object* object) {
            if (::getpid() != process) return;
            const nb::gil_scoped_acquire held;  // or not yet: both ways lead here
            const waiting_calls::object_end ending;
            delete object;
          }};
}

/// By the fields' names in C++, of which Python's are the same. Unknown fields are refused.
[[nodiscard]] tensorhub::worker_options options_of(const nb::dict& given);
/// Of the transport and the memory that `given` names.
struct chosen_policies {
  tensorhub::worker_policies policies;
  streams_marker mark = nullptr;  ///< null: the memory is the host's
};
[[nodiscard]] chosen_policies chosen_policies_of(const nb::dict& given);
/// Of a worker whose tensors are the library's, in host memory; throws `invalid_argument` for other memory.
[[nodiscard]] tensorhub::worker_policies policies_of(const nb::dict& given);
[[nodiscard]] tensorhub::reference_server_options server_options_of(const nb::dict& given);
[[nodiscard]] tensorhub::server_client_options client_options_of(const nb::dict& given);
/// "latest", "exactly" or "at_least".
[[nodiscard]] tensorhub::version_selector selector_of(const std::string& kind, std::uint64_t version);

[[nodiscard]] nb::dict told(const tensorhub::publish_report& done);
[[nodiscard]] nb::dict told(const tensorhub::snapshot_report& done);
[[nodiscard]] nb::dict told(const tensorhub::unpublish_report& done);
[[nodiscard]] nb::dict told(const tensorhub::update_report& done);
[[nodiscard]] nb::dict told(const tensorhub::install_report& done);
[[nodiscard]] nb::dict told(const tensorhub::update_progress& at);
[[nodiscard]] nb::dict told(const tensorhub::worker_statistics& counted);
[[nodiscard]] nb::dict told(const tensorhub::reference_server_statistics& counted);
[[nodiscard]] nb::dict told(const tensorhub::model_entry& model);
[[nodiscard]] nb::dict told(const tensorhub::stuck_entry& entry);
/// (name, type, shape)
[[nodiscard]] nb::tuple told(const tensorhub::tensor_spec& tensor);
template <typename Range>
[[nodiscard]] nb::list all_told(const Range& range) {
  nb::list out;
  for (const auto& each : range) out.append(told(each));
  return out;
}

void bind_calls(nb::module_& module);
void bind_copies(nb::module_& module);
void bind_errors(nb::module_& module);
void bind_log(nb::module_& module);
void bind_publisher(nb::module_& module);
void bind_client(nb::module_& module);
void bind_server(nb::module_& module);
void bind_subscriber(nb::module_& module);

}  // namespace tensorhub_python
