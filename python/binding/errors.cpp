/// \file errors.cpp
/// `tensorhub::error` as Python's `tensorhub.Error` and its subclasses, which are written in Python
/// (errors.py).

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <exception>
#include <tensorhub/error.hpp>

#include "calls.hpp"

namespace tensorhub_python {

namespace {

void raise(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const error& e) {
    const waiting_calls::entry counted;  // the thread is in a frame that Python cannot end by force
    const tensorhub::error_context& about = e.context();
    try {
      const nb::object made =
          nb::module_::import_("tensorhub.errors")
              .attr("error_of")(static_cast<int>(e.code()), e.sentence(), about.model, about.replica,
                                about.shard, about.version, about.peer, about.chunk);
      PyErr_SetObject(made.type().ptr(), made.ptr());
    } catch (nb::python_error& raised) {  // in what Python ran here, by the handler of a signal: Ctrl-C
      raised.restore();
    }
  }
}

}  // namespace

void bind_errors(nb::module_& module) {
  nb::register_exception_translator(raise);
  module.def(
      "is_retryable", [](int code) { return tensorhub::retryable(static_cast<errc>(code)); }, "code"_a);
  module.def(
      "error_name", [](int code) { return std::string{to_string(static_cast<errc>(code))}; }, "code"_a);
}

}  // namespace tensorhub_python
