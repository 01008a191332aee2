#pragma once
/// \file joining.ipp
/// Definitions of joining.hpp.

#include <algorithm>

#include "tensorhub/service/session/joining.hpp"

namespace tensorhub::inline TENSORHUB_MODE::session_detail {

TENSORHUB_DECL messages::join_request join_request_of(const session_options& options, const layout& shape) {
  messages::join_request join;
  join.model = options.model;
  join.replica = options.replica;
  join.shard = options.shard;
  join.location = options.location;
  join.spot = options.spot;
  join.temporary = options.temporary;
  join.form.transport = options.transport;
  join.form.consistency = options.consistency;
  join.form.integrity = options.integrity;
  join.address = options.address;
  join.capability_key = options.capability_key;
  join.proof = options.proof;
  join.form.layout_digest = shape.digest();
  join.form.chunk_bytes = shape.chunk_bytes();
  join.form.chunk_count = shape.chunk_count();
  return join;
}

TENSORHUB_DECL std::uint32_t milliseconds_until(time_point now, time_point deadline) noexcept {
  const std::int64_t left = deadline > now ? (deadline.nanoseconds - now.nanoseconds) / 1'000'000 : 0;
  return static_cast<std::uint32_t>(std::min<std::int64_t>(left, UINT32_MAX));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::session_detail
