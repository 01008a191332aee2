#pragma once
/// \file same_host.ipp
/// Definitions of same_host.hpp.

#include <algorithm>

#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/transports/same_host.hpp"
#include "tensorhub/transports/same_host/link.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports {

TENSORHUB_DECL same_host::memory_region& same_host::memory_region::operator=(memory_region&& other) noexcept {
  if (this != &other) {
    release();
    table_ = std::exchange(other.table_, nullptr);
    id_ = other.id_;
    range_ = other.range_;
  }
  return *this;
}

TENSORHUB_DECL post_result same_host::queue::post_read(endpoint& to, const memory_region& into,
                                                       std::uint64_t offset, const remote_slice& from,
                                                       request_id id) noexcept {
  const memory_range target = into.range();
  if (!detail::lies_within(target.bytes, offset, from.bytes))
    return core_->post_finished(id, completion_status::local_error);
  const remote_region& region = *from.region;
  same_host_detail::region_key key;
  if (region.key.used_bytes != sizeof key || !detail::is_sound(from))
    return core_->post_finished(id, completion_status::access_denied);
  std::memcpy(&key, region.key.bytes.data(), sizeof key);
  device_access* const device = target.host_accessible() ? nullptr : target.device;
  return core_->post(*to.core_, id, target.data + offset, device, region.base + from.offset, from.bytes, key);
}

TENSORHUB_DECL same_host::same_host(options settings, incarnation self)
    : options_{std::move(settings)},
      machine_{same_host_detail::machine_identity::of_this_process()},
      kept_{std::make_shared<same_host_detail::kept_links>(options_.kept_connections)},
      source_{options_, self, [kept = kept_] { kept->sweep(); }} {
  address_.text = same_host_detail::host_address{machine_, source_.socket_name()}.text();
}

TENSORHUB_DECL std::vector<same_host::memory_region> same_host::register_memory(
    std::span<const memory_range> ranges, region_access access) {
  detail::check_registrable(name, ranges);
  std::vector<memory_region> regions;
  regions.reserve(ranges.size());
  for (const memory_range& range : ranges)
    regions.push_back({source_.regions(), source_.regions().insert(range, access), range});
  if (options_.note && access != region_access::local_write) {
    for (const memory_region& each : regions) {
      const auto facts = source_.regions().facts_of(each.id_);
      if (facts && facts->why && same_host_detail::needs_device(facts->range))
        options_.note("same_host: " + text_of(*facts));
    }
  }
  return regions;
}

TENSORHUB_DECL std::string same_host::how_read(const memory_region& region) const {
  const auto facts = source_.regions().facts_of(region.id_);
  return facts ? text_of(*facts) : "not registered";
}

TENSORHUB_DECL remote_region same_host::describe(const memory_region& region) const {
  const same_host_detail::region_key key = source_.regions().key_of(region.id_);
  remote_region out;
  out.bytes = region.range_.bytes;
  out.key.used_bytes = sizeof key;
  std::memcpy(out.key.bytes.data(), &key, sizeof key);
  return out;
}

TENSORHUB_DECL same_host::queue same_host::make_queue(std::size_t depth) {
  return queue{std::make_unique<same_host_detail::queue_core>(
      depth, pool(), detail::bounded(options_.peer_timeout), options_.streaming_from_bytes,
      [this] { return source_.regions().devices(); })};
}

TENSORHUB_DECL same_host::endpoint same_host::connect(queue& on, const transport_address& address,
                                                      incarnation peer, duration timeout, incarnation self) {
  if (!self) self = source_.self();
  auto connection = kept_->take(address.text, self, peer);
  if (!connection) {
    connection = std::make_unique<same_host_detail::link>(address, options_, machine_, self, peer, imports_,
                                                          same_host_detail::clock::now() + timeout);
  }
  auto core = std::make_unique<same_host_detail::endpoint_core>(*on.core_, std::move(connection), kept_);
  on.core_->attach(*core);
  return endpoint{std::move(core)};
}

TENSORHUB_DECL std::string same_host::text_of(const same_host_detail::region_facts& facts) {
  const memory_range& range = facts.range;
  const std::string size = std::to_string(range.bytes) + " bytes of ";
  if (!same_host_detail::needs_device(range)) {
    if (facts.why) return size + "host memory, copied for readers: " + *facts.why;
    return size + (facts.file ? "host memory in a file" : "host memory");
  }
  const std::string device = size + range.device->description();
  if (!facts.why) return device + ": mapped by readers";
  return device + ": through host memory, since readers cannot map it: " + *facts.why;
}

TENSORHUB_DECL std::shared_ptr<same_host_detail::copy_pool> same_host::pool() {
  const std::lock_guard lock{pool_mutex_};
  if (pool_) return pool_;
  std::size_t threads = options_.copy_threads;
  if (threads == 0) {
    cpu_set_t cores;
    const bool known = ::sched_getaffinity(0, sizeof cores, &cores) == 0;
    threads = known && CPU_COUNT(&cores) > 1 ? 2 : 1;
  }
  pool_ = std::make_shared<same_host_detail::copy_pool>(threads - 1);
  return pool_;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports
