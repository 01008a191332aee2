#pragma once
/// \file machine_id.hpp
/// The identity of the machine on which this process runs.

#include <string>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// The kernel's random identity of this boot: equal in all processes and containers of one running machine,
/// and different on every other machine. "unknown" if the kernel does not provide it.
[[nodiscard]] std::string machine_id();

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/machine_id.ipp"
#endif
