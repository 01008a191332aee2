#pragma once
/// \file joining.hpp
/// The parts of a session's requests that do not depend on its state: its identity and its time-outs.

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/service/session/actions.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::session_detail {

/// A join request without tensors, and without the versions that are held or being read.
[[nodiscard]] messages::join_request join_request_of(const session_options& options, const layout& shape);

/// The form of a deadline on the wire; zero if it has passed.
[[nodiscard]] std::uint32_t milliseconds_until(time_point now, time_point deadline) noexcept;

/// The last part of a call's time, for the server's words: that no version came in time (of an update in the
/// first half of it), and its answer to a report of failure.
[[nodiscard]] constexpr std::chrono::milliseconds last_part(std::chrono::milliseconds timeout) noexcept {
  return std::min(std::max(timeout, std::chrono::milliseconds{0}) / 10, std::chrono::milliseconds{250});
}

}  // namespace tensorhub::inline TENSORHUB_MODE::session_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/session/impl/joining.ipp"
#endif
