#pragma once
/// \file verbs.hpp
/// Transport `verbs`: one-sided reads by RDMA (InfiniBand, RoCE, iWARP), with libibverbs and librdmacm.
///
/// The source's device answers reads without the CPU: no thread and no copy at the source. A process listens
/// on one address per *rail* (NIC port); an endpoint connects every rail of this process with the same rail
/// of the source, by one or more queue pairs each, and spreads its reads over them. The table of concept
/// `transport` lists the promises; the protocol is in verbs/protocol.hpp.
///
/// The first error of an endpoint breaks it, as RDMA devices require: the read at fault ends with its own
/// status, the others with `peer_lost`. A description that is damaged or does not fit its region is detected
/// before the device receives it, and breaks nothing.
///
/// Device memory is read and written by the NIC itself (GPUDirect), see verbs/region.hpp.
///
/// Security: a peer can read a region whose key it has: 32 bits that the device chose, for exactly the
/// registered bytes, on connections that this process accepted. With `require_capability` (a worker calls it)
/// the process accepts only connections with a capability. Nothing is encrypted: use a network that you
/// trust.
///
/// Thread safety: the transport object may be used from any thread; see concepts/transport.hpp for queues.
/// Destroy regions, queues and endpoints before the transport.

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
#include "tensorhub/concepts/shared_transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
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
    [[nodiscard]] post_result post_read(endpoint& to, const memory_region& into, std::uint64_t offset,
                                        const remote_slice& from, request_id id) noexcept;
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

  /// Throws `transport_failed`, at once if the machine has no RDMA device.
  explicit verbs(options settings = {}, incarnation self = {})
      : options_{std::move(settings)}, source_{options_, self} {}

  [[nodiscard]] transport_address address() const { return {source_.address()}; }

  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const memory_range> ranges,
                                                           region_access access);

  /// For logs: the memory that the NIC reads, the way (for device memory: dmabuf or peer memory), and what
  /// peers' keys are (memory windows or registrations).
  [[nodiscard]] std::string how_read(const memory_region& region) const { return region.core_->how_read(); }

  [[nodiscard]] std::uint64_t registered_bytes() const noexcept { return source_.registered_bytes(); }

  /// Throws if peers may not read the region, or if it was revoked and no other keys could be had.
  [[nodiscard]] remote_region describe(const memory_region& region) const { return region.core_->describe(); }

  void revoke(memory_region& region) noexcept { region.core_->revoke(); }

  void cut_off(incarnation peer) noexcept { source_.cut_off(peer); }

  void admit(incarnation self) { source_.admit(self); }
  void rename(incarnation self, incarnation next) noexcept { source_.rename(self, next); }
  void dismiss(incarnation self) noexcept { source_.dismiss(self); }

  void require_capability(std::span<const std::byte> key) { source_.require_capability(key); }
  void expire_capabilities(incarnation self, std::uint64_t epoch) noexcept {
    source_.expire_capabilities(self, epoch);
  }
  [[nodiscard]] std::uint64_t refused_connections() const noexcept { return source_.refused_connections(); }

  [[nodiscard]] queue make_queue(std::size_t depth) {
    return queue{std::make_unique<verbs_detail::queue_core>(depth, options_)};
  }

  [[nodiscard]] endpoint connect(queue& on, const transport_address& address, incarnation peer,
                                 duration timeout, incarnation self = {});

 private:
  options options_;
  verbs_detail::source source_;
};
static_assert(guarded_transport<verbs> && shared_transport<verbs>);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/impl/verbs.ipp"
#endif
