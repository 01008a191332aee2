#pragma once
/// \file same_host.hpp
/// Transport `same_host`: one-sided reads between processes of one machine, without work at the source.
///
/// The reader copies the bytes itself: from a mapping of the source's file (memory of
/// tensorhub::host_memory), from the file if it cannot be mapped safely, or from the source's memory by
/// process_vm_readv. The source tells the location of each region once; a word in shared memory says whether
/// a read is permitted (same_host/protocol.hpp). The reader's device copies device memory from a mapping of
/// the source's allocation. Memory that cannot be mapped passes through a file that the source's device
/// copies into; `how_read` (source), `options::note` (source) and `endpoint::why` (reader) report this. The
/// table of concept `transport` lists the promises.
///
/// Security: both sides ask the kernel for the peer's identity, and accept only processes of their own user
/// (options::allowed_uids). A source with `require_capability` (a worker calls it) also accepts only readers
/// with a capability. Connections are kept for the next read from the same source, so that one may outlive
/// the lease that it was made for. An honest reader reads only regions whose keys it has (128 random bits),
/// and stops when it is told to; by default a malicious one goes on. Sources with `options::for_tenants()`
/// let it keep nothing. Readers receive files open for reading only.
///
/// Thread safety: the transport object may be used from any thread; see concepts/transport.hpp for queues.

#include <sched.h>

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
#include "tensorhub/concepts/shared_transport.hpp"
#include "tensorhub/concepts/telling_transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/same_host/copy_pool.hpp"
#include "tensorhub/transports/same_host/kept_links.hpp"
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
    memory_region& operator=(memory_region&& other) noexcept;
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
    /// Why memory of the peer is staged, or cannot be read; empty if there was none of that kind so far.
    [[nodiscard]] const std::string& why() const noexcept { return core_->why(); }
    /// When the endpoint ends, the transport keeps its connection (`kept_connections`), and the peer's files
    /// with it, as long as the peer lives.
    [[nodiscard]] static constexpr bool kept_by_transport() noexcept { return true; }

   private:
    friend class same_host;
    explicit endpoint(std::unique_ptr<same_host_detail::endpoint_core> core) : core_{std::move(core)} {}
    std::unique_ptr<same_host_detail::endpoint_core> core_;
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
    friend class same_host;
    explicit queue(std::unique_ptr<same_host_detail::queue_core> core) : core_{std::move(core)} {}
    std::unique_ptr<same_host_detail::queue_core> core_;
  };

  explicit same_host(options settings = {}, incarnation self = {});

  [[nodiscard]] transport_address address() const { return address_; }

  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const memory_range> ranges,
                                                           region_access access);

  /// For logs: how readers access the region's bytes, and why no faster way is used.
  [[nodiscard]] std::string how_read(const memory_region& region) const;

  [[nodiscard]] std::uint64_t registered_bytes() const noexcept { return source_.regions().bytes(); }

  [[nodiscard]] remote_region describe(const memory_region& region) const;

  void revoke(memory_region& region) noexcept { source_.regions().renew(region.id_); }

  void cut_off(incarnation peer) noexcept { source_.cut_off(peer); }

  void admit(incarnation self) { source_.admit(self); }
  void rename(incarnation self, incarnation next) noexcept { source_.rename(self, next); }
  void dismiss(incarnation self) noexcept { source_.dismiss(self); }

  void require_capability(std::span<const std::byte> key) { source_.require_capability(key); }
  void expire_capabilities(incarnation self, std::uint64_t epoch) noexcept {
    source_.expire_capabilities(self, epoch);
  }
  [[nodiscard]] std::uint64_t refused_connections() const noexcept { return source_.refused_connections(); }
  [[nodiscard]] transport_shortage shortage_told() const { return source_.shortage_told(); }

  [[nodiscard]] queue make_queue(std::size_t depth);

  [[nodiscard]] endpoint connect(queue& on, const transport_address& address, incarnation peer,
                                 duration timeout, incarnation self = {});

 private:
  [[nodiscard]] static std::string text_of(const same_host_detail::region_facts& facts);

  /// The first queue starts the helper threads: a process that only serves needs none.
  [[nodiscard]] std::shared_ptr<same_host_detail::copy_pool> pool();

  options options_;
  same_host_detail::machine_identity machine_;
  std::shared_ptr<same_host_detail::import_table> imports_ =
      std::make_shared<same_host_detail::import_table>();
  std::shared_ptr<same_host_detail::kept_links> kept_;
  std::mutex pool_mutex_;
  std::shared_ptr<same_host_detail::copy_pool> pool_;
  same_host_detail::source source_;
  transport_address address_;
};
static_assert(guarded_transport<same_host> && shared_transport<same_host> &&
              shortage_telling_transport<same_host>);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/impl/same_host.ipp"
#else
#include "tensorhub/transports/same_host/compiled.hpp"
#endif
