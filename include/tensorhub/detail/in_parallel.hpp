#pragma once
/// \file in_parallel.hpp
/// One piece of work in several threads, of which the caller's is one.

#include <cstddef>
#include <functional>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// Calls `work(0)` in this thread, whatever the count, and `work(1)` to `work(count - 1)` in threads of their
/// own; fewer of these if the system starts no more, so that those that run must be able to do the rest.
/// Returns when all have returned. Throws `std::bad_alloc` before the first call, or what `work(0)` throws;
/// the other calls must not throw.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/in_parallel.ipp"
#endif
