#pragma once
/// \file verbs.ipp
/// Definitions of verbs.hpp.

#include "tensorhub/transports/verbs.hpp"
#include "tensorhub/transports/verbs/address.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports {

TENSORHUB_DECL post_result verbs::queue::post_read(endpoint& to, const memory_region& into,
                                                   std::uint64_t offset, const remote_slice& from,
                                                   request_id id) noexcept {
  const verbs_detail::region& target = *into.core_;
  if (!detail::lies_within(target.range().bytes, offset, from.bytes) || !target.is_target())
    return core_->post_finished(id, completion_status::local_error);
  const remote_region& described = *from.region;
  verbs_detail::region_key key;
  if (!detail::is_sound(from) || !verbs_detail::decode_key(described.key, to.core_->key_maker(), key) ||
      key.head.rails < to.core_->rails())
    return core_->post_finished(id, completion_status::access_denied);
  // `base` may point inside the region, to describe a part of it.
  const std::uint64_t begin = described.base - key.head.base;
  if (described.base < key.head.base || begin > key.head.bytes ||
      !detail::lies_within(key.head.bytes - begin, from.offset, from.bytes))
    return core_->post_finished(id, completion_status::access_denied);
  if (from.bytes == 0 && to.usable()) return core_->post_finished(id, completion_status::ok);
  return core_->post(*to.core_, id, target, offset, key, begin + from.offset, from.bytes);
}

TENSORHUB_DECL std::vector<verbs::memory_region> verbs::register_memory(std::span<const memory_range> ranges,
                                                                        region_access access) {
  detail::check_registrable(name, ranges);
  detail::check_pages_stay(name, ranges);
  std::vector<memory_region> regions;
  regions.reserve(ranges.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    regions.push_back(memory_region{std::make_unique<verbs_detail::region>(
        source_, ranges[i], access, options_, detail::name_of_range(i, ranges.size()))});
  }
  return regions;
}

TENSORHUB_DECL verbs::endpoint verbs::connect(queue& on, const transport_address& address, incarnation peer,
                                              duration timeout, incarnation self) {
  if (!self) self = source_.self();
  const auto until = std::chrono::steady_clock::now() + timeout;
  const auto theirs = verbs_detail::parse_address(address.text);
  const auto& ours = source_.rails();
  const std::size_t rails = std::min(ours.size(), theirs.size());
  std::uint64_t largest = UINT32_MAX;
  for (std::size_t i = 0; i < rails; ++i) largest = std::min(largest, ours[i].limits.work_request_bytes);
  auto core = std::make_unique<verbs_detail::endpoint_core>(*on.core_, peer, rails, largest);
  const std::size_t lanes = options_.queue_pairs == 0 ? 1 : options_.queue_pairs;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    for (std::size_t i = 0; i < rails; ++i) {
      verbs_detail::hello greeting;
      greeting.rail = static_cast<std::uint16_t>(i);
      greeting.lane = static_cast<std::uint16_t>(lane);
      greeting.reader = self.value;
      greeting.source = peer.value;
      if (address.capability.size() == greeting.capability.size())
        std::memcpy(greeting.capability.data(), address.capability.data(), greeting.capability.size());
      core->add(std::make_unique<verbs_detail::connection>(ours[i], i, theirs[i], greeting, options_,
                                                           source_.events(), until));
    }
  }
  on.core_->attach(*core);
  return endpoint{std::move(core)};
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports
