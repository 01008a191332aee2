#pragma once
/// \file verbs.hpp
/// Transport `verbs`: one-sided reads by RDMA (InfiniBand, RoCE, iWARP), with libibverbs and librdmacm.
///
/// The source's device answers reads alone: no thread and no copy on its side. A process listens on one
/// address per *rail* (NIC port); an endpoint connects every rail of this process with the same rail of the
/// source, by one or more queue pairs each, and spreads its reads over them. What it promises is concept
/// `transport`'s table; what travels is in verbs/protocol.hpp.
///
/// The first error of an endpoint breaks it (so do the devices): the read at fault ends in what it deserves,
/// the others in `peer_lost`. A description that does not fit its own region or is damaged is told before the
/// device sees it, and breaks nothing.
///
/// Device memory is read and written by the NIC itself (GPUDirect), see verbs/region.hpp.
///
/// Security: a peer can read what it has a key of: 32 bits that the device chose, for exactly the registered
/// bytes, on connections that this process accepted: those with a capability, if it was told to ask for one
/// (`require_capability`; a worker does). Nothing is encrypted: a network that you trust.
///
/// Thread safety: the transport object may be used from any thread; see concepts/transport.hpp for queues.
/// Regions, queues and endpoints must be gone before the transport.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/concepts/guarded_transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/verbs/address.hpp"
#include "tensorhub/transports/verbs/connection.hpp"
#include "tensorhub/transports/verbs/options.hpp"
#include "tensorhub/transports/verbs/queue.hpp"
#include "tensorhub/transports/verbs/region.hpp"
#include "tensorhub/transports/verbs/source.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports {

class verbs {
 public:
  using concept_tag = transport_tag;
  using options = verbs_options;
  static constexpr std::string_view name = "verbs";
  static constexpr transport_capabilities capabilities{.max_read_bytes = UINT64_MAX,
                                                       .max_region_bytes = UINT64_MAX,
                                                       .survives_access_errors = false,
                                                       .crosses_hosts = true,
                                                       .crosses_datacenters = false,
                                                       .reads_device_memory = true,
                                                       .uses_backing_file = false,
                                                       .sends_by_reference = false};

  class memory_region {
   public:
    [[nodiscard]] memory_range range() const noexcept { return core_->range(); }

   private:
    friend class verbs;
    explicit memory_region(std::unique_ptr<verbs_detail::region> core) : core_{std::move(core)} {}
    std::unique_ptr<verbs_detail::region> core_;
  };

  class endpoint {
   public:
    [[nodiscard]] incarnation peer() const noexcept { return core_->peer(); }
    [[nodiscard]] bool usable() const noexcept { return core_->usable(); }

   private:
    friend class verbs;
    explicit endpoint(std::unique_ptr<verbs_detail::endpoint_core> core) : core_{std::move(core)} {}
    std::unique_ptr<verbs_detail::endpoint_core> core_;
  };

  class queue {
   public:
    /// The target region must outlive the read.
    [[nodiscard]] post_result post_read(endpoint& through, const memory_region& into, std::uint64_t offset,
                                        const remote_slice& from, request_id id) noexcept {
      const verbs_detail::region& target = *into.core_;
      const std::uint64_t room = target.range().bytes;
      if (offset > room || from.bytes > room - offset || !target.is_target())
        return core_->post_finished(id, completion_status::local_error);
      const remote_region& described = *from.region;
      verbs_detail::region_key key;
      if (from.offset > described.bytes || from.bytes > described.bytes - from.offset ||
          !verbs_detail::decode_key(described.key, through.peer(), key) ||
          key.head.rails < through.core_->rails())
        return core_->post_finished(id, completion_status::access_denied);
      // `base` may have been moved within the region, to describe a part of it.
      const std::uint64_t begin = described.base - key.head.base;
      if (described.base < key.head.base || begin > key.head.bytes || from.offset > key.head.bytes - begin ||
          from.bytes > key.head.bytes - begin - from.offset)
        return core_->post_finished(id, completion_status::access_denied);
      if (from.bytes == 0 && through.usable()) return core_->post_finished(id, completion_status::ok);
      return core_->post(*through.core_, id, target, offset, key, begin + from.offset, from.bytes);
    }
    [[nodiscard]] std::size_t poll(std::span<completion> completions) noexcept {
      return core_->poll(completions);
    }
    void wait(duration timeout) noexcept { core_->wait(timeout); }
    void wake() noexcept { core_->wake(); }
    [[nodiscard]] std::size_t outstanding() const noexcept { return core_->outstanding(); }

   private:
    friend class verbs;
    explicit queue(std::unique_ptr<verbs_detail::queue_core> core) : core_{std::move(core)} {}
    std::unique_ptr<verbs_detail::queue_core> core_;
  };

  /// Throws `transport_failed`; at once, if the machine has no RDMA device.
  explicit verbs(options how = {}, incarnation self = {})
      : options_{std::move(how)}, source_{options_, self} {}

  [[nodiscard]] transport_address address() const { return {source_.address()}; }

  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const memory_range> ranges,
                                                           region_access access) {
    const auto name_of = [&](std::size_t i) {
      return "range " + std::to_string(i) + " of " + std::to_string(ranges.size());
    };
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      if (ranges[i].data == nullptr || ranges[i].bytes == 0)
        throw error(errc::invalid_argument,
                    "verbs: " + name_of(i) + " cannot be registered: it is null or empty");
      if (!ranges[i].host_accessible() && ranges[i].device == nullptr)
        throw error(
            errc::invalid_argument,
            "verbs: " + name_of(i) +
                " cannot be registered: it is device memory, and memory_range::device does not say of "
                "which device: let its memory space describe it");
    }
    std::vector<memory_region> regions;
    regions.reserve(ranges.size());
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      regions.push_back(memory_region{std::make_unique<verbs_detail::region>(
          source_, ranges[i], access, options_.relaxed_ordering, name_of(i))});
    }
    return regions;
  }

  /// For people: what the NIC reads, and by which way (device memory: dmabuf, or peer memory).
  [[nodiscard]] std::string how_read(const memory_region& region) const { return region.core_->how_read(); }

  [[nodiscard]] std::uint64_t registered_bytes() const noexcept { return source_.registered_bytes(); }

  /// Throws if the region is not for peers, or was revoked and could not be registered again.
  [[nodiscard]] remote_region describe(const memory_region& region) const { return region.core_->describe(); }

  void revoke(memory_region& region) noexcept { region.core_->revoke(); }

  void cut_off(incarnation peer) noexcept { source_.cut_off(peer); }

  void require_capability(std::span<const std::byte> key) { source_.require_capability(key); }
  [[nodiscard]] std::uint64_t refused_connections() const noexcept { return source_.refused_connections(); }

  [[nodiscard]] queue make_queue(std::size_t depth) {
    return queue{std::make_unique<verbs_detail::queue_core>(depth, options_)};
  }

  [[nodiscard]] endpoint connect(queue& on, const transport_address& address, incarnation peer,
                                 duration timeout) {
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
        greeting.reader = source_.self().value;
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

 private:
  options options_;
  verbs_detail::source source_;
};
static_assert(guarded_transport<verbs>);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports
