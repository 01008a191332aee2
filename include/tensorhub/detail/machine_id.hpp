#pragma once
/// \file machine_id.hpp
/// Which machine this process runs on.

#include <string>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// The kernel's random identity of this boot: the same in every process and container of one running machine,
/// and in no other. "unknown" where the kernel does not tell.
[[nodiscard]] std::string machine_id();

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/machine_id.ipp"
#endif
