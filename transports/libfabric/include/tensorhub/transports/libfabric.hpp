#pragma once
/// \file libfabric.hpp
/// Transport `libfabric`: one-sided reads through any libfabric provider that has them (FI_RMA): `tcp`,
/// `verbs`, `efa`, `shm`, `tcp;ofi_rxm` and others, chosen by an option.
///
/// A source has one thread that drives the provider; a reader's provider is driven by the thread that polls.
/// What it promises is concept `transport`'s table; how the two sides greet each other, and what is in a key,
/// is in libfabric/protocol.hpp; what differs between providers is in the README beside this folder.
///
/// Security: a source that was told to ask for a capability (`require_capability`; a worker does) accepts
/// only readers that show one. Its provider checks each read's key (64 random bits, where the provider lets
/// us choose it) and its bounds. Nothing is encrypted. The default interface is loopback.
///
/// fork(2): libfabric starts threads and keeps state per process. Make the first transport object after the
/// fork, not before it.
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
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
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
    memory_region& operator=(memory_region&& other) noexcept {
      if (this != &other) {
        release();
        owner_ = other.owner_;
        core_ = std::move(other.core_);
      }
      return *this;
    }
    ~memory_region() { release(); }
    [[nodiscard]] memory_range range() const noexcept { return core_ ? core_->range : memory_range{}; }

   private:
    friend class libfabric;
    memory_region(libfabric& owner, std::unique_ptr<libfabric_detail::region_core> core)
        : owner_{&owner}, core_{std::move(core)} {}
    void release() noexcept {
      if (core_) owner_->forget(*core_);
      core_.reset();
    }
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
    [[nodiscard]] post_result post_read(endpoint& through, const memory_region& into, std::uint64_t offset,
                                        const remote_slice& from, request_id id) noexcept {
      const libfabric_detail::region_core& target = *into.core_;
      if (offset > target.range.bytes || from.bytes > target.range.bytes - offset ||
          target.access == region_access::remote_read)
        return core_->post_finished(id, completion_status::local_error);
      const remote_region& region = *from.region;
      const auto key = libfabric_detail::region_key::unpacked(region.key);
      // `base` counts from the region's first byte: a description may be of a part of it.
      if (!key || key->nonce != through.core_->nonce() || from.offset > region.bytes ||
          from.bytes > region.bytes - from.offset || region.base > UINT64_MAX - from.offset ||
          region.base + from.offset > key->bytes || from.bytes > key->bytes - (region.base + from.offset))
        return core_->post_finished(id, completion_status::access_denied);
      libfabric_detail::posted_read read;
      read.id = id;
      read.into = &target;
      read.into_offset = offset;
      read.key = *key;
      read.from_offset = region.base + from.offset;
      read.bytes = from.bytes;
      return core_->post(*through.core_, read);
    }
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

  explicit libfabric(options how = {}, incarnation self = {})
      : options_{std::move(how)},
        self_{self},
        nonce_{libfabric_detail::random_word()},
        provider_{options_},
        registrar_{provider_, options_, nonce_},
        source_{provider_, options_, self, nonce_} {}

  [[nodiscard]] transport_address address() const { return {source_.address().text()}; }

  /// Which provider, fabric and domain were chosen, for people: "provider tcp, fabric ..., domain lo", with
  /// "device memory" where it takes that.
  [[nodiscard]] std::string description() const {
    return provider_.description() + (provider_.takes_device_memory() ? ", device memory" : "");
  }

  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const memory_range> ranges,
                                                           region_access access) {
    const auto which = [&ranges](std::size_t i) {
      return "range " + std::to_string(i) + " of " + std::to_string(ranges.size());
    };
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      if (ranges[i].data == nullptr || ranges[i].bytes == 0)
        throw error(errc::invalid_argument,
                    "libfabric: " + which(i) + " cannot be registered: it is null or empty");
      if (!ranges[i].host_accessible() && ranges[i].device == nullptr)
        throw error(
            errc::invalid_argument,
            "libfabric: " + which(i) +
                " cannot be registered: it is device memory, and memory_range::device does not say of "
                "which device: let its memory space describe it");
    }
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
        throw error(thrown.code(), thrown.sentence() + " (" + which(i) + ")");
      }
      regions.push_back({*this, std::move(core)});
      registered_bytes_.fetch_add(ranges[i].bytes, std::memory_order_relaxed);
    }
    return regions;
  }

  [[nodiscard]] std::uint64_t registered_bytes() const noexcept {
    return registered_bytes_.load(std::memory_order_relaxed);
  }

  /// Throws `invalid_argument` for a region that is not for peers.
  [[nodiscard]] remote_region describe(const memory_region& region) const {
    const std::lock_guard lock{keys_mutex_};
    const libfabric_detail::region_core& core = *region.core_;
    if (core.access == region_access::local_write)
      throw error(errc::invalid_argument,
                  "libfabric: a region for own reads (local_write) has no description");
    if (core.remote.parts.empty())
      throw error(errc::transport_failed,
                  "libfabric: " + provider_.description() +
                      ": the region was revoked and could not be registered again; register it anew");
    return {0, core.range.bytes, core.remote.key.packed()};
  }

  void revoke(memory_region& region) noexcept {
    libfabric_detail::region_core& core = *region.core_;
    if (core.access == region_access::local_write) return;
    libfabric_detail::registration fresh;
    try {
      fresh = registrar_.for_peers(core.range);
    } catch (...) {  // it stays unreadable, and describe says so
    }
    source_.exclusively(
        [&] {
          const std::lock_guard lock{keys_mutex_};
          core.remote = std::move(fresh);
        },
        true);
  }

  void cut_off(incarnation peer) noexcept { source_.cut_off(peer); }

  void require_capability(std::span<const std::byte> key) { source_.require_capability(key); }
  [[nodiscard]] std::uint64_t refused_connections() const noexcept { return source_.refused_connections(); }

  [[nodiscard]] queue make_queue(std::size_t depth) {
    return queue{std::make_unique<libfabric_detail::queue_core>(provider_, options_, depth)};
  }

  [[nodiscard]] endpoint connect(queue& on, const transport_address& address, incarnation peer,
                                 duration timeout) {
    const auto until = libfabric_detail::clock::now() + timeout;
    const auto to = libfabric_detail::peer_address::parsed(address.text);
    if (!to) libfabric_detail::fail("'" + address.text.substr(0, 200) + "' is no address of this transport");
    if (to->provider != provider_.name() || to->connected != provider_.connected())
      libfabric_detail::fail(to->readable() + " is served through " +
                             (to->connected ? "connected" : "addressed") + " endpoints; this process uses " +
                             (provider_.connected() ? "connected" : "addressed") + " ones of " +
                             provider_.description() + ": both sides must use the same");
    return endpoint{on.core_->connect(*to, address.capability, self_, peer, until)};
  }

 private:
  void forget(libfabric_detail::region_core& core) noexcept {
    registered_bytes_.fetch_sub(core.range.bytes, std::memory_order_relaxed);
    core.local = {};
    if (core.remote.parts.empty()) return;
    source_.exclusively([&core] { core.remote = {}; }, true);
  }

  options options_;
  incarnation self_;
  std::uint64_t nonce_;
  libfabric_detail::provider provider_;
  libfabric_detail::registrar registrar_;
  std::atomic<std::uint64_t> registered_bytes_ = 0;
  mutable std::mutex keys_mutex_;
  libfabric_detail::source source_;
};
static_assert(guarded_transport<libfabric>);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports
