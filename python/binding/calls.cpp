/// \file calls.cpp
/// Definitions of calls.hpp.

#include "calls.hpp"

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

}  // namespace

bool waiting_calls::wait_for_none(milliseconds longest) {
  counter& all = *present();
  std::unique_lock lock{all.mutex};
  return all.changed.wait_for(lock, longest, [&] { return all.calls == 0; });
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
        const nb::gil_scoped_release python_goes_on;
        return waiting_calls::wait_for_none(milliseconds{static_cast<std::int64_t>(longest_seconds * 1e3)});
      },
      "longest_seconds"_a);
  // In a forked child: the calls of other threads are not there.
  module.def("forget_calls", [] { present() = new counter; });
}

}  // namespace tensorhub_python
