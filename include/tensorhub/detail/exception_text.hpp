#pragma once
/// \file exception_text.hpp
/// What an exception says, whatever its type.
///
/// Thread safety: a pure function of the exception that the calling thread handles.

#include <exception>
#include <string>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// Pre-condition: an exception is being handled.
[[nodiscard]] inline std::string exception_text() {
  try {
    throw;
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "something that is no std::exception was thrown";
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
