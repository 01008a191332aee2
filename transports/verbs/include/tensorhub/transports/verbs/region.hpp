#pragma once
/// \file region.hpp
/// One registered region: its memory registrations on all rails, in pieces if it exceeds the device's limit.
///
/// A region that this process writes and peers read is registered twice, once for each purpose. The two
/// registrations have separate keys, so that `revoke` does not disturb this process's own reads into the
/// region, and the peers' keys never permit a write.
///
/// Device memory is registered by its dmabuf if its device provides one and the NIC's driver accepts it;
/// otherwise by its address, which works if a driver translates such addresses for the NIC (nvidia_peermem).
/// `how_read` tells which; if neither works, the error contains both reasons. The transport does not flush:
/// bytes that have arrived are visible to device work that is started after the read's completion.
///
/// Thread safety: `describe` and `revoke` from any thread; the local keys never change.

#include <infiniband/verbs.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/verbs/device.hpp"
#include "tensorhub/transports/verbs/source.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

/// Why a registration failed and what to do about it.
[[nodiscard]] std::string registration_advice(int number, std::uint64_t registered_bytes);

/// How the NIC accesses the memory.
enum class memory_way : std::uint8_t { host, dmabuf, peer_memory };

/// True: a kernel module translates addresses of GPU memory for RDMA devices.
[[nodiscard]] bool has_peer_memory() noexcept;

class region {
 public:
  /// Registers on all rails, or throws a sentence that begins with `which` ("range 3 of 9").
  region(source& owner, const memory_range& range, region_access access, bool relaxed_ordering,
         const std::string& which);
  ~region();
  region(const region&) = delete;
  region& operator=(const region&) = delete;

  [[nodiscard]] const memory_range& range() const noexcept { return range_; }
  /// True: this process's own reads may write to the region.
  [[nodiscard]] bool is_target() const noexcept { return !local_keys_.empty(); }
  [[nodiscard]] std::uint64_t piece_bytes() const noexcept { return piece_bytes_; }
  [[nodiscard]] std::uint32_t local_key(std::size_t rail, std::uint64_t piece) const noexcept {
    return local_keys_[rail * pieces_ + piece];
  }

  /// For logs: the memory that the NIC reads, and the way.
  [[nodiscard]] std::string how_read() const;

  [[nodiscard]] remote_region describe() const;

  /// Deregisters the memory, then registers it again under other keys. If the second step fails, peers cannot
  /// read the region any more.
  void revoke() noexcept;

 private:
  static constexpr unsigned relaxed = IBV_ACCESS_RELAXED_ORDERING;
  static constexpr int most_attempts = 8;

  struct registrations {
    std::vector<ibv_mr*> list;  ///< all pieces on rail 0, then all pieces on rail 1, and so on

    registrations() = default;
    registrations(registrations&& other) noexcept : list{std::move(other.list)} { other.list.clear(); }
    registrations& operator=(registrations&&) = delete;
    ~registrations() { static_cast<void>(close()); }
    /// True: the device does not access the memory any more.
    [[nodiscard]] bool close() noexcept;
  };

  /// 0, or the error's number: then nothing is registered.
  [[nodiscard]] int register_all(registrations& into, bool to_write) const;

  [[nodiscard]] ibv_mr* register_piece(const rail& on, std::uint64_t at, std::uint64_t bytes,
                                       unsigned access) const noexcept;

  /// 0, or the error's number: then nothing is registered.
  [[nodiscard]] int register_both();

  void register_device_memory(const std::string& which);

  [[nodiscard]] std::string devices() const;

  [[nodiscard]] error failure(const std::string& which, int number) const;

  source& owner_;
  const memory_range range_;
  const region_access access_;
  const unsigned optional_flags_;
  memory_way way_ = memory_way::host;
  detail::unique_fd dmabuf_;  ///< set for device memory that is registered by it; kept for `revoke`
  std::uint64_t dmabuf_offset_ = 0;
  std::string no_dmabuf_;
  std::uint64_t pieces_ = 1;
  std::uint64_t piece_bytes_ = 0;
  registrations local_;
  std::vector<std::uint32_t> local_keys_;
  mutable std::mutex mutex_;
  registrations remote_;    ///< guarded by mutex_; empty: a revoke could not register it again
  int revoke_trouble_ = 0;  ///< guarded by mutex_
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/verbs/impl/region.ipp"
#endif
