#pragma once
/// \file descriptor_limit.hpp
/// How many descriptors a source takes for its connections, and whether this process can open some more.
///
/// Thread safety: any thread. `require_descriptors` throws `system_failed`; there are no other errors.

#include <cstddef>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// `wanted`, but at most half of the descriptors that this process may have: the rest of the process needs
/// some, too.
[[nodiscard]] std::size_t at_most_half_of_descriptors(std::size_t wanted) noexcept;

/// For what ends the process (ZeroMQ does) when it finds no descriptor. Opens so many and closes them again:
/// throws `system_failed` if this process cannot have them now. `owner` begins the sentence.
void require_descriptors(std::string_view owner, std::size_t needed);

/// False: this process, or the system, has no descriptor left. Opens one and closes it again.
[[nodiscard]] bool has_free_descriptor() noexcept;

/// An errno of a call that makes a descriptor: this machine, and not the other side, is short of them, or of
/// memory for them.
[[nodiscard]] bool is_out_of_descriptors(int error) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/descriptor_limit.ipp"
#endif
