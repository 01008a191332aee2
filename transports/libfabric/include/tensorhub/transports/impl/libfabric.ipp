#pragma once
/// \file libfabric.ipp
/// Definitions of libfabric.hpp.

#include "tensorhub/detail/random_id.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/libfabric.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports {

TENSORHUB_DECL libfabric::memory_region& libfabric::memory_region::operator=(memory_region&& other) noexcept {
  if (this != &other) {
    release();
    owner_ = other.owner_;
    core_ = std::move(other.core_);
  }
  return *this;
}

TENSORHUB_DECL void libfabric::memory_region::release() noexcept {
  if (core_) owner_->forget(*core_);
  core_.reset();
}

TENSORHUB_DECL post_result libfabric::queue::post_read(endpoint& to, const memory_region& into,
                                                       std::uint64_t offset, const remote_slice& from,
                                                       request_id id) noexcept {
  const libfabric_detail::region_core& target = *into.core_;
  if (!detail::lies_within(target.range.bytes, offset, from.bytes) ||
      target.access == region_access::remote_read)
    return core_->post_finished(id, completion_status::local_error);
  const remote_region& region = *from.region;
  const auto key = libfabric_detail::region_key::unpacked(region.key);
  // `base` counts from the region's first byte: a description may cover a part of the region.
  if (!key || key->nonce != to.core_->nonce() || !detail::is_sound(from) ||
      !detail::lies_within(key->bytes, region.base + from.offset, from.bytes))
    return core_->post_finished(id, completion_status::access_denied);
  libfabric_detail::posted_read read;
  read.id = id;
  read.into = &target;
  read.into_offset = offset;
  read.key = *key;
  read.from_offset = region.base + from.offset;
  read.bytes = from.bytes;
  return core_->post(*to.core_, read);
}

TENSORHUB_DECL libfabric::libfabric(options settings, incarnation self)
    : options_{std::move(settings)},
      nonce_{detail::random_number()},
      provider_{options_},
      registrar_{provider_, options_, nonce_},
      source_{provider_, options_, self, nonce_} {}

TENSORHUB_DECL std::string libfabric::description() const {
  return provider_.description() + (provider_.takes_device_memory() ? ", device memory" : "");
}

TENSORHUB_DECL std::vector<libfabric::memory_region> libfabric::register_memory(
    std::span<const memory_range> ranges, region_access access) {
  detail::check_registrable(name, ranges);
  detail::check_pages_stay(name, ranges);
  std::vector<memory_region> regions;
  regions.reserve(ranges.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    auto core = std::make_unique<libfabric_detail::region_core>();
    core->range = ranges[i];
    core->access = access;
    try {
      if (access != region_access::remote_read) core->local = registrar_.for_own_reads(ranges[i]);
      if (access != region_access::local_write) core->remote = registrar_.for_peers(ranges[i]);
    } catch (const error& thrown) {
      throw error(thrown.code(), thrown.sentence() + " (" + detail::name_of_range(i, ranges.size()) + ")");
    }
    regions.push_back({*this, std::move(core)});
    registered_bytes_.fetch_add(ranges[i].bytes, std::memory_order_relaxed);
  }
  return regions;
}

TENSORHUB_DECL remote_region libfabric::describe(const memory_region& region) const {
  const std::lock_guard lock{keys_mutex_};
  const libfabric_detail::region_core& core = *region.core_;
  if (core.access == region_access::local_write)
    throw error(errc::invalid_argument,
                "libfabric: a region for this process's own reads (local_write) has no description");
  if (core.remote.parts.empty())
    throw error(errc::transport_failed,
                "libfabric: " + provider_.description() +
                    ": the region was revoked and could not be registered again; register it anew");
  return {0, core.range.bytes, core.remote.key.packed()};
}

TENSORHUB_DECL void libfabric::revoke(memory_region& region) noexcept {
  libfabric_detail::region_core& core = *region.core_;
  if (core.access == region_access::local_write) return;
  libfabric_detail::registration fresh;
  try {
    fresh = registrar_.for_peers(core.range);
  } catch (...) {  // the region stays unreadable, and `describe` throws
  }
  source_.exclusively(
      [&] {
        const std::lock_guard lock{keys_mutex_};
        core.remote = std::move(fresh);
      },
      true);
}

TENSORHUB_DECL libfabric::queue libfabric::make_queue(std::size_t depth) {
  return queue{std::make_unique<libfabric_detail::queue_core>(provider_, options_, depth)};
}

TENSORHUB_DECL libfabric::endpoint libfabric::connect(queue& on, const transport_address& address,
                                                      incarnation peer, duration timeout, incarnation self) {
  const auto until = libfabric_detail::clock::now() + timeout;
  const auto to = libfabric_detail::peer_address::parsed(address.text);
  if (!to)
    libfabric_detail::fail("'" + address.text.substr(0, 200) + "' is not an address of this transport");
  if (to->provider != provider_.name() || to->connected != provider_.connected())
    libfabric_detail::fail(to->readable() + " is served through " +
                           (to->connected ? "connected" : "addressed") + " endpoints; this process uses " +
                           (provider_.connected() ? "connected" : "addressed") + " ones of " +
                           provider_.description() + ": both sides must use the same");
  return endpoint{on.core_->connect(*to, address.capability, self ? self : source_.self(), peer, until)};
}

TENSORHUB_DECL void libfabric::forget(libfabric_detail::region_core& core) noexcept {
  registered_bytes_.fetch_sub(core.range.bytes, std::memory_order_relaxed);
  core.local = {};
  if (core.remote.parts.empty()) return;
  source_.exclusively([&core] { core.remote = {}; }, true);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports
