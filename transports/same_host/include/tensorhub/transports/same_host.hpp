#pragma once
/// \file same_host.hpp
/// Transport `same_host`: one-sided reads between processes of one machine, without the source's help.
///
/// The reader takes the bytes itself: out of a mapping of the source's file (memory of
/// tensorhub::host_memory), out of the file where it cannot be mapped safely, or out of the source's memory
/// by process_vm_readv. The source says once per region where it is; whether a read is permitted is a word in
/// shared memory (same_host/protocol.hpp). Device memory is copied by the reader's device, out of a mapping
/// of the source's; what cannot be mapped goes through a file that the source's device copies into, and
/// `how_read` (source), `options::note` (source) and `endpoint::why` (reader) say so. What it promises is
/// concept `transport`'s table.
///
/// Security: both sides ask the kernel who the other is, and talk to processes of their own user only
/// (options::allowed_uids); and the source lets in only readers with a capability, if it was told to ask for
/// one (`require_capability`; a worker does). Links are kept for the next read of the same source, so one
/// may outlive the lease that it was made for. An honest reader reads what it has the key of (128 random
/// bits), and nothing else; a process of the same user that does not want to be honest can read the other's
/// memory anyway, with or without this library. Files are given to readers open for reading only.
///
/// Thread safety: the transport object may be used from any thread; see concepts/transport.hpp for queues.

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/concepts/guarded_transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/same_host/copy_pool.hpp"
#include "tensorhub/transports/same_host/kept_links.hpp"
#include "tensorhub/transports/same_host/link.hpp"
#include "tensorhub/transports/same_host/machine.hpp"
#include "tensorhub/transports/same_host/options.hpp"
#include "tensorhub/transports/same_host/queue.hpp"
#include "tensorhub/transports/same_host/source.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports {

class same_host {
 public:
  using concept_tag = transport_tag;
  using options = same_host_options;
  static constexpr std::string_view name = "same_host";
  static constexpr transport_capabilities capabilities{.max_read_bytes = UINT64_MAX,
                                                       .max_region_bytes = UINT64_MAX,
                                                       .survives_access_errors = true,
                                                       .crosses_hosts = false,
                                                       .reads_device_memory = true,
                                                       .uses_backing_file = true,
                                                       .sends_by_reference = false};

  class memory_region {
   public:
    memory_region(memory_region&& other) noexcept
        : table_{std::exchange(other.table_, nullptr)}, id_{other.id_}, range_{other.range_} {}
    memory_region& operator=(memory_region&& other) noexcept {
      if (this != &other) {
        release();
        table_ = std::exchange(other.table_, nullptr);
        id_ = other.id_;
        range_ = other.range_;
      }
      return *this;
    }
    ~memory_region() { release(); }
    [[nodiscard]] memory_range range() const noexcept { return range_; }

   private:
    friend class same_host;
    memory_region(same_host_detail::region_table& table, std::uint64_t id, const memory_range& range)
        : table_{&table}, id_{id}, range_{range} {}
    void release() noexcept {
      if (table_ != nullptr) table_->erase(id_);
    }
    same_host_detail::region_table* table_;
    std::uint64_t id_;
    memory_range range_;
  };

  class endpoint {
   public:
    [[nodiscard]] incarnation peer() const noexcept { return core_->peer(); }
    [[nodiscard]] bool usable() const noexcept { return core_->usable(); }
    /// Why device memory of the peer goes through host memory; empty: none did, so far.
    [[nodiscard]] const std::string& why() const noexcept { return core_->why(); }

   private:
    friend class same_host;
    explicit endpoint(std::unique_ptr<same_host_detail::endpoint_core> core) : core_{std::move(core)} {}
    std::unique_ptr<same_host_detail::endpoint_core> core_;
  };

  class queue {
   public:
    [[nodiscard]] post_result post_read(endpoint& through, const memory_region& into, std::uint64_t offset,
                                        const remote_slice& from, request_id id) noexcept {
      const memory_range target = into.range();
      if (offset > target.bytes || from.bytes > target.bytes - offset)
        return core_->post_finished(id, completion_status::local_error);
      const remote_region& region = *from.region;
      same_host_detail::region_key key;
      if (region.key.used_bytes != sizeof key || from.offset > region.bytes ||
          from.bytes > region.bytes - from.offset || region.base > UINT64_MAX - from.offset)
        return core_->post_finished(id, completion_status::access_denied);
      std::memcpy(&key, region.key.bytes.data(), sizeof key);
      device_access* const device = target.host_accessible() ? nullptr : target.device;
      return core_->post(*through.core_, id, target.data + offset, device, region.base + from.offset,
                         from.bytes, key);
    }
    [[nodiscard]] std::size_t poll(std::span<completion> completions) noexcept {
      return core_->poll(completions);
    }
    void wait(duration timeout) noexcept { core_->wait(timeout); }
    void wake() noexcept { core_->wake(); }
    [[nodiscard]] std::size_t outstanding() const noexcept { return core_->outstanding(); }

   private:
    friend class same_host;
    explicit queue(std::unique_ptr<same_host_detail::queue_core> core) : core_{std::move(core)} {}
    std::unique_ptr<same_host_detail::queue_core> core_;
  };

  explicit same_host(options how = {}, incarnation self = {})
      : options_{std::move(how)},
        self_{self},
        machine_{same_host_detail::machine_identity::of_this_process()},
        kept_{std::make_shared<same_host_detail::kept_links>(options_.kept_connections)},
        source_{options_, self, [kept = kept_] { kept->sweep(); }} {
    address_.text = same_host_detail::host_address{machine_, source_.socket_name()}.text();
  }

  [[nodiscard]] transport_address address() const { return address_; }

  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const memory_range> ranges,
                                                           region_access access) {
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      if (const std::string why = why_not(ranges[i]); !why.empty())
        throw error(errc::invalid_argument, "same_host: range " + std::to_string(i) + " of " +
                                                std::to_string(ranges.size()) +
                                                " cannot be registered: " + why);
    }
    std::vector<memory_region> regions;
    regions.reserve(ranges.size());
    for (const memory_range& range : ranges)
      regions.push_back({source_.regions(), source_.regions().insert(range, access), range});
    if (options_.note && access != region_access::local_write) {
      for (const memory_region& each : regions) {
        const auto facts = source_.regions().facts_of(each.id_);
        if (facts && facts->why) options_.note("same_host: " + text_of(*facts));
      }
    }
    return regions;
  }

  /// For people: how readers get at the region's bytes, and why not better.
  [[nodiscard]] std::string how_read(const memory_region& region) const {
    const auto facts = source_.regions().facts_of(region.id_);
    return facts ? text_of(*facts) : "not registered";
  }

  [[nodiscard]] std::uint64_t registered_bytes() const noexcept { return source_.regions().bytes(); }

  [[nodiscard]] remote_region describe(const memory_region& region) const {
    const same_host_detail::region_key key = source_.regions().key_of(region.id_);
    remote_region out;
    out.bytes = region.range_.bytes;
    out.key.used_bytes = sizeof key;
    std::memcpy(out.key.bytes.data(), &key, sizeof key);
    return out;
  }

  void revoke(memory_region& region) noexcept { source_.regions().renew(region.id_); }

  void cut_off(incarnation peer) noexcept { source_.cut_off(peer); }

  void require_capability(std::span<const std::byte> key) { source_.require_capability(key); }
  [[nodiscard]] std::uint64_t refused_connections() const noexcept { return source_.refused_connections(); }

  [[nodiscard]] queue make_queue(std::size_t depth) {
    return queue{std::make_unique<same_host_detail::queue_core>(
        depth, pool(), options_.peer_timeout, options_.streaming_from_bytes,
        [this] { return source_.regions().devices(); })};
  }

  [[nodiscard]] endpoint connect(queue& on, const transport_address& address, incarnation peer,
                                 duration timeout) {
    auto connection = kept_->take(address.text, peer);
    if (!connection) {
      connection = std::make_unique<same_host_detail::link>(
          address, options_, machine_, self_, peer, imports_, same_host_detail::clock::now() + timeout);
    }
    auto core = std::make_unique<same_host_detail::endpoint_core>(*on.core_, std::move(connection), kept_);
    on.core_->attach(*core);
    return endpoint{std::move(core)};
  }

 private:
  /// Empty: the range can be registered.
  [[nodiscard]] static std::string why_not(const memory_range& range) {
    if (range.data == nullptr || range.bytes == 0) return "it is null or empty";
    if (!range.host_accessible() && range.device == nullptr)
      return "it is device memory, and memory_range::device does not say of which device: let its memory "
             "space "
             "describe it";
    return {};
  }
  [[nodiscard]] static std::string text_of(const same_host_detail::region_facts& facts) {
    const memory_range& range = facts.range;
    const std::string size = std::to_string(range.bytes) + " bytes of ";
    if (!same_host_detail::needs_device(range))
      return size + (facts.file ? "host memory in a file" : "host memory");
    const std::string device = size + range.device->description();
    if (!facts.why) return device + ": mapped by readers";
    return device + ": through host memory, since readers cannot map it: " + *facts.why;
  }

  /// Helpers are started with the first queue: a process that only serves needs none.
  [[nodiscard]] std::shared_ptr<same_host_detail::copy_pool> pool() {
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

  options options_;
  incarnation self_;
  same_host_detail::machine_identity machine_;
  std::shared_ptr<same_host_detail::import_table> imports_ =
      std::make_shared<same_host_detail::import_table>();
  std::shared_ptr<same_host_detail::kept_links> kept_;
  std::mutex pool_mutex_;
  std::shared_ptr<same_host_detail::copy_pool> pool_;
  same_host_detail::source source_;
  transport_address address_;
};
static_assert(guarded_transport<same_host>);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports
