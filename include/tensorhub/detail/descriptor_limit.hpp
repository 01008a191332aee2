#pragma once
/// \file descriptor_limit.hpp
/// How many descriptors a source takes for its connections.
///
/// Thread safety: any thread. No errors.

#include <cstddef>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// `wanted`, but at most half of the descriptors that this process may have: the rest of the process needs
/// some, too.
[[nodiscard]] std::size_t at_most_half_of_descriptors(std::size_t wanted) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/descriptor_limit.ipp"
#endif
