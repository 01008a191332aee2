#pragma once
/// \file region_table.hpp
/// The registered regions of one transport object, and their keys.
///
/// `find` checks every offset that a peer requests against the region's length, and every key against the
/// region's current secret.
///
/// Thread safety: all members may be called from any thread.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/tcp/protocol.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

class region_table {
 public:
  /// Returns the number of the new region. Throws `system_failed` if the system has no random numbers.
  [[nodiscard]] std::uint64_t insert(const memory_range& range, region_access access);

  void erase(std::uint64_t region) noexcept;

  /// Gives the region a new secret. If the system has no random numbers, no peer can read the region any
  /// more.
  void renew(std::uint64_t region) noexcept;

  [[nodiscard]] region_key key_of(std::uint64_t region) const;

  /// The memory that a request may read, or nothing.
  [[nodiscard]] std::optional<memory_range> find(const read_request& request) const noexcept;

  /// The devices whose memory may be the target of reads.
  [[nodiscard]] std::vector<device_access*> target_devices() const;

  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct region_entry {
    memory_range range{};
    region_access access = region_access::both;
    std::uint64_t secret[2] = {0, 0};
  };

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, region_entry> entries_;
  std::uint64_t last_region_ = 0;
  std::atomic<std::uint64_t> bytes_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/tcp/impl/region_table.ipp"
#endif
