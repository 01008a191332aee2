#pragma once
/// \file joining.hpp
/// What a session's requests say besides its state: who it is, and how long it waits.

#include <cstdint>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/service/session/actions.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::session_detail {

/// Without tensors, and without what is held or being read.
[[nodiscard]] messages::join_request join_request_of(const session_options& options, const layout& shape);

/// Of a deadline on the wire; zero if it has passed.
[[nodiscard]] std::uint32_t milliseconds_until(time_point now, time_point deadline) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::session_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/session/impl/joining.ipp"
#endif
