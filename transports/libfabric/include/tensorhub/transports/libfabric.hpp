#pragma once
/// \file libfabric.hpp
/// Transport `libfabric`: one-sided reads through any libfabric provider that supports them (FI_RMA): `tcp`,
/// `verbs`, `efa`, `shm`, `tcp;ofi_rxm` and others. An option selects the provider.
///
/// A source has one thread that drives the provider; at a reader, the thread that polls drives it. The table
/// of concept `transport` lists the promises; libfabric/protocol.hpp describes the handshake and the keys;
/// the README beside this folder describes the differences between providers.
///
/// Security: a source with `require_capability` (a worker calls it) accepts only readers that show a
/// capability. Its provider checks each read's key (64 random bits, if the provider permits a chosen key) and
/// its bounds. Nothing is encrypted. The default interface is loopback, or that towards a reference server
/// on another machine.
///
/// fork(2): libfabric starts threads and keeps state per process. Construct the first transport object after
/// the fork, not before it.
///
/// Thread safety: the transport object may be used from any thread; see concepts/transport.hpp for queues.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/concepts/guarded_transport.hpp"
#include "tensorhub/concepts/shared_transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/libfabric/options.hpp"
#include "tensorhub/transports/libfabric/provider.hpp"
#include "tensorhub/transports/libfabric/queue.hpp"
#include "tensorhub/transports/libfabric/region.hpp"
#include "tensorhub/transports/libfabric/source.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports {

class libfabric {
 public:
  using concept_tag = transport_tag;
  using options = libfabric_options;
  static constexpr std::string_view name = "libfabric";
  static constexpr transport_capabilities capabilities{.max_read_bytes = UINT64_MAX,
                                                       .max_region_bytes = UINT64_MAX,
                                                       .survives_access_errors = false,
                                                       .crosses_hosts = true,
                                                       .crosses_datacenters = true,
                                                       .reads_device_memory = true,
                                                       .uses_backing_file = false,
                                                       .sends_by_reference = false};

  class memory_region {
   public:
    memory_region(memory_region&& other) noexcept = default;
    memory_region& operator=(memory_region&& other) noexcept;
    ~memory_region() { release(); }
    [[nodiscard]] memory_range range() const noexcept { return core_ ? core_->range : memory_range{}; }

   private:
    friend class libfabric;
    memory_region(libfabric& owner, std::unique_ptr<libfabric_detail::region_core> core)
        : owner_{&owner}, core_{std::move(core)} {}
    void release() noexcept;
    libfabric* owner_;
    std::unique_ptr<libfabric_detail::region_core> core_;
  };

  class endpoint {
   public:
    [[nodiscard]] incarnation peer() const noexcept { return core_->peer(); }
    [[nodiscard]] bool usable() const noexcept { return core_->usable(); }

   private:
    friend class libfabric;
    explicit endpoint(std::unique_ptr<libfabric_detail::endpoint_core> core) : core_{std::move(core)} {}
    std::unique_ptr<libfabric_detail::endpoint_core> core_;
  };

  class queue {
   public:
    [[nodiscard]] post_result post_read(endpoint& to, const memory_region& into, std::uint64_t offset,
                                        const remote_slice& from, request_id id) noexcept;
    [[nodiscard]] std::size_t poll(std::span<completion> completions) noexcept {
      return core_->poll(completions);
    }
    void wait(duration timeout) noexcept { core_->wait(timeout); }
    void wake() noexcept { core_->wake(); }
    [[nodiscard]] std::size_t outstanding() const noexcept { return core_->outstanding(); }

   private:
    friend class libfabric;
    explicit queue(std::unique_ptr<libfabric_detail::queue_core> core) : core_{std::move(core)} {}
    std::unique_ptr<libfabric_detail::queue_core> core_;
  };

  explicit libfabric(options settings = {}, incarnation self = {});

  [[nodiscard]] transport_address address() const { return {source_.address().text()}; }

  /// The selected provider, fabric and domain, for logs: "provider tcp, fabric ..., domain lo", with "device
  /// memory" if the provider accepts it.
  [[nodiscard]] std::string description() const;

  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const memory_range> ranges,
                                                           region_access access);

  [[nodiscard]] std::uint64_t registered_bytes() const noexcept {
    return registered_bytes_.load(std::memory_order_relaxed);
  }

  /// Throws `invalid_argument` for a region that peers may not read.
  [[nodiscard]] remote_region describe(const memory_region& region) const;

  void revoke(memory_region& region) noexcept;

  void cut_off(incarnation peer) noexcept { source_.cut_off(peer); }

  void admit(incarnation self) { source_.admit(self); }
  void rename(incarnation self, incarnation next) noexcept { source_.rename(self, next); }
  void dismiss(incarnation self) noexcept { source_.dismiss(self); }

  void require_capability(std::span<const std::byte> key) { source_.require_capability(key); }
  void expire_capabilities(incarnation self, std::uint64_t epoch) noexcept {
    source_.expire_capabilities(self, epoch);
  }
  [[nodiscard]] std::uint64_t refused_connections() const noexcept { return source_.refused_connections(); }

  [[nodiscard]] queue make_queue(std::size_t depth);

  [[nodiscard]] endpoint connect(queue& on, const transport_address& address, incarnation peer,
                                 duration timeout, incarnation self = {});

 private:
  void forget(libfabric_detail::region_core& core) noexcept;

  options options_;
  std::uint64_t nonce_;
  libfabric_detail::provider provider_;
  libfabric_detail::registrar registrar_;
  std::atomic<std::uint64_t> registered_bytes_ = 0;
  mutable std::mutex keys_mutex_;
  libfabric_detail::source source_;
};
static_assert(guarded_transport<libfabric> && shared_transport<libfabric>);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/impl/libfabric.ipp"
#endif
