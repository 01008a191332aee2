/// \file calls.cpp
/// Definitions of calls.hpp.

#include "calls.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace tensorhub_python {

namespace {

struct counter {
  std::mutex mutex;
  std::condition_variable changed;
  int calls = 0;
};
counter*& present() {
  static auto* never_destroyed = new counter;
  return never_destroyed;
}

/// Zero: the interpreter does not end.
std::atomic<long> ending_thread{0};

long this_thread() {
  return ::syscall(SYS_gettid);
}

}  // namespace

bool waiting_calls::wait_for_none(milliseconds longest) {
  counter& all = *present();
  {
    const nb::gil_scoped_release python_goes_on;
    std::unique_lock lock{all.mutex};
    all.changed.wait_for(lock, longest, [&] { return all.calls == 0; });
  }
  const std::lock_guard lock{all.mutex};  // a call may have begun before the interpreter was here again
  return all.calls == 0;
}

void waiting_calls::let_interpreter_end() {
  ending_thread = this_thread();
}

bool waiting_calls::ends_elsewhere() {
  const long ending = ending_thread;
  return ending != 0 && ending != this_thread();
}

void waiting_calls::change(int by) {
  counter& all = *present();
  const std::lock_guard lock{all.mutex};
  all.calls += by;
  all.changed.notify_all();
}

void bind_calls(nb::module_& module) {
  module.def(
      "wait_for_no_calls",
      [](double longest_seconds) {
        return waiting_calls::wait_for_none(milliseconds{static_cast<std::int64_t>(longest_seconds * 1e3)});
      },
      "longest_seconds"_a);
  module.def("let_interpreter_end", &waiting_calls::let_interpreter_end);
  // In a forked child: the calls of other threads are not there.
  module.def("forget_calls", [] {
    present() = new counter;
    ending_thread = 0;
  });
}

}  // namespace tensorhub_python
