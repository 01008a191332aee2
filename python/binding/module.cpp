/// \file module.cpp
/// The module `tensorhub._core`: the compiled library for the classes in tensorhub/*.py, which are its
/// interface.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <tensorhub/config.hpp>
#include <tensorhub/version.hpp>

#include "calls.hpp"

NB_MODULE(_core, module) {
  using namespace tensorhub_python;
  namespace defaults = tensorhub::defaults;
  const auto seconds = [](milliseconds time) { return static_cast<double>(time.count()) * 1e-3; };
  module.attr("version") = std::to_string(TENSORHUB_VERSION_MAJOR) + "." +
                           std::to_string(TENSORHUB_VERSION_MINOR) + "." +
                           std::to_string(TENSORHUB_VERSION_PATCH);
  module.attr("join_timeout") = seconds(defaults::join_timeout);
  module.attr("update_timeout") = seconds(defaults::update_timeout);
  module.attr("drain_timeout") = seconds(defaults::drain_timeout);
  // What a program keeps to its end, in a global variable of a thread that still runs, say, is no leak: it is
  // closed at exit by lifetime.py. nanobind would blame the binding, in twenty lines.
  nb::set_leak_warnings(false);
  bind_calls(module);
  bind_copies(module);
  bind_errors(module);
  bind_log(module);
  bind_publisher(module);
  bind_client(module);
  bind_server(module);
  bind_subscriber(module);
}
