#pragma once
/// \file log.hpp
/// Where the library's log lines go.

#include <tensorhub/service/log.hpp>

namespace tensorhub_python {

/// Keeps the line for Python; drops it if Python has not taken the last 1,024. May be called from any thread.
void put_line(const tensorhub::log_line& line);

}  // namespace tensorhub_python
