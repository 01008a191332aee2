#pragma once
/// \file region_table.ipp
/// Definitions of region_table.hpp.

#include <string>

#include "tensorhub/detail/random_id.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/tcp/region_table.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

TENSORHUB_DECL std::uint64_t region_table::insert(const memory_range& range, region_access access) {
  region_entry entry{range, access, {}};
  detail::fill_random(entry.secret);
  const std::lock_guard lock{mutex_};
  const std::uint64_t region = ++last_region_;
  entries_.emplace(region, entry);
  bytes_.fetch_add(range.bytes, std::memory_order_relaxed);
  return region;
}

TENSORHUB_DECL void region_table::erase(std::uint64_t region) noexcept {
  const std::lock_guard lock{mutex_};
  const auto found = entries_.find(region);
  if (found == entries_.end()) return;
  bytes_.fetch_sub(found->second.range.bytes, std::memory_order_relaxed);
  entries_.erase(found);
}

TENSORHUB_DECL void region_table::renew(std::uint64_t region) noexcept {
  const std::lock_guard lock{mutex_};
  const auto found = entries_.find(region);
  if (found == entries_.end()) return;
  try {
    detail::fill_random(found->second.secret);
  } catch (const error&) {
    found->second.access = region_access::local_write;
  }
}

TENSORHUB_DECL region_key region_table::key_of(std::uint64_t region) const {
  const std::lock_guard lock{mutex_};
  const auto found = entries_.find(region);
  if (found == entries_.end()) throw error(errc::invalid_argument, "tcp: this region is not registered");
  return {region, {found->second.secret[0], found->second.secret[1]}};
}

TENSORHUB_DECL std::optional<memory_range> region_table::find(const read_request& request) const noexcept {
  const std::lock_guard lock{mutex_};
  const auto found = entries_.find(request.key.region);
  if (found == entries_.end() || found->second.access == region_access::local_write) return std::nullopt;
  const region_entry& entry = found->second;
  const std::uint64_t difference =
      (entry.secret[0] ^ request.key.secret[0]) | (entry.secret[1] ^ request.key.secret[1]);
  if (difference != 0) return std::nullopt;
  if (!detail::lies_within(entry.range.bytes, request.offset, request.bytes)) return std::nullopt;
  memory_range part = entry.range;
  part.data += request.offset;
  part.backing_offset += request.offset;
  part.bytes = request.bytes;
  return part;
}

TENSORHUB_DECL std::vector<device_access*> region_table::target_devices() const {
  std::vector<device_access*> out;
  const std::lock_guard lock{mutex_};
  for (const auto& [region, each] : entries_) {
    if (each.range.host_accessible() || each.access == region_access::remote_read) continue;
    if (!detail::contains(out, each.range.device)) out.push_back(each.range.device);
  }
  return out;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail
