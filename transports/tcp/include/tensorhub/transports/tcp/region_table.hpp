#pragma once
/// \file region_table.hpp
/// The registered regions of one transport object, and who may read them.
///
/// Every offset that a peer asks for is checked here against the region's length, every key against the
/// region's present secret.
///
/// Thread safety: all members may be called from any thread.

#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/tcp/protocol.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

class region_table {
 public:
  /// Number of the new region. Throws `system_failed` if the system has no randomness.
  [[nodiscard]] std::uint64_t insert(const memory_range& range, region_access access) {
    region_entry entry{range, access, {}};
    fill_secret(entry.secret);
    const std::lock_guard lock{mutex_};
    const std::uint64_t region = ++last_region_;
    entries_.emplace(region, entry);
    bytes_.fetch_add(range.bytes, std::memory_order_relaxed);
    return region;
  }

  void erase(std::uint64_t region) noexcept {
    const std::lock_guard lock{mutex_};
    const auto found = entries_.find(region);
    if (found == entries_.end()) return;
    bytes_.fetch_sub(found->second.range.bytes, std::memory_order_relaxed);
    entries_.erase(found);
  }

  /// The region gets a new secret. Without randomness it cannot be read by anybody any more.
  void renew(std::uint64_t region) noexcept {
    const std::lock_guard lock{mutex_};
    const auto found = entries_.find(region);
    if (found == entries_.end()) return;
    try {
      fill_secret(found->second.secret);
    } catch (const error&) {
      found->second.access = region_access::local_write;
    }
  }

  [[nodiscard]] region_key key_of(std::uint64_t region) const {
    const std::lock_guard lock{mutex_};
    const auto found = entries_.find(region);
    if (found == entries_.end()) throw error(errc::invalid_argument, "tcp: this region is not registered");
    return {region, {found->second.secret[0], found->second.secret[1]}};
  }

  /// The memory that a request may read, or nothing.
  [[nodiscard]] std::optional<memory_range> find(const read_request& request) const noexcept {
    const std::lock_guard lock{mutex_};
    const auto found = entries_.find(request.key.region);
    if (found == entries_.end() || found->second.access == region_access::local_write) return std::nullopt;
    const region_entry& entry = found->second;
    const std::uint64_t difference =
        (entry.secret[0] ^ request.key.secret[0]) | (entry.secret[1] ^ request.key.secret[1]);
    if (difference != 0) return std::nullopt;
    if (request.offset > entry.range.bytes || request.bytes > entry.range.bytes - request.offset)
      return std::nullopt;
    memory_range part = entry.range;
    part.data += request.offset;
    part.backing_offset += request.offset;
    part.bytes = request.bytes;
    return part;
  }

  /// The devices whose memory may be the target of reads.
  [[nodiscard]] std::vector<device_access*> target_devices() const {
    std::vector<device_access*> out;
    const std::lock_guard lock{mutex_};
    for (const auto& [region, each] : entries_) {
      if (each.range.host_accessible() || each.access == region_access::remote_read) continue;
      if (std::ranges::find(out, each.range.device) == out.end()) out.push_back(each.range.device);
    }
    return out;
  }

  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct region_entry {
    memory_range range{};
    region_access access = region_access::both;
    std::uint64_t secret[2] = {0, 0};
  };

  static void fill_secret(std::uint64_t (&secret)[2]) {
    for (;;) {
      const auto filled = ::getrandom(secret, sizeof secret, 0);
      if (filled == static_cast<ssize_t>(sizeof secret)) return;
      if (filled < 0 && errno != EINTR)
        throw error(errc::system_failed, std::string{"tcp: no random numbers: "} + std::strerror(errno));
    }
  }

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, region_entry> entries_;
  std::uint64_t last_region_ = 0;
  std::atomic<std::uint64_t> bytes_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail
