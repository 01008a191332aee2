#pragma once
/// \file region.hpp
/// One registered region: its memory registrations on all rails, in pieces if it exceeds the device's limit.
///
/// Peers' keys and the local key are separate, so that `revoke` does not disturb this process's own reads
/// into the region, and the peers' keys never permit a write. Where the rails have memory windows, the memory
/// is registered once, and peers read through windows over it. Otherwise, and where a window cannot be made,
/// peers have a registration of their own: a region that this process writes and peers read is registered
/// twice.
///
/// Device memory is registered by its dmabuf if its device provides one and the NIC's driver accepts it;
/// otherwise by its address, which works if a driver translates such addresses for the NIC (nvidia_peermem).
/// `how_read` tells which; if neither works, the error contains both reasons. Bytes that have arrived are
/// visible to device work that is started after the read's completion, and by a flush
/// (device_access::flush_arrived) to other devices that read the memory.
///
/// Thread safety: `describe` and `revoke` from any thread; the local keys never change.

#include <infiniband/verbs.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
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
  region(source& owner, const memory_range& range, region_access access, const verbs_options& options,
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

  /// For logs: the memory that the NIC reads, the way, and what peers' keys are.
  [[nodiscard]] std::string how_read() const;

  [[nodiscard]] remote_region describe() const;

  /// Destroys the peers' windows or registrations, then makes others with other keys. If the second step
  /// fails, peers cannot read the region any more.
  void revoke() noexcept;

 private:
  static constexpr unsigned relaxed = IBV_ACCESS_RELAXED_ORDERING;
  static constexpr int most_attempts = 8;

  /// Each list: all pieces on rail 0, then all pieces on rail 1, and so on.
  struct device_objects {
    std::vector<ibv_mr*> registrations;
    std::vector<ibv_mw*> windows;  ///< over the registrations of another one

    device_objects() = default;
    device_objects(device_objects&& other) noexcept
        : registrations{std::exchange(other.registrations, {})}, windows{std::exchange(other.windows, {})} {}
    device_objects& operator=(device_objects&&) = delete;
    ~device_objects() { static_cast<void>(close()); }
    /// True: the device does not access the memory through these any more.
    [[nodiscard]] bool close() noexcept;
    [[nodiscard]] std::vector<std::uint32_t> remote_keys() const;
  };

  /// 0, or the error's number: then nothing is registered.
  [[nodiscard]] int register_all(device_objects& into, unsigned access) const;

  /// 0, or a number for `window_trouble`: then there are none.
  [[nodiscard]] int make_windows(device_objects& into) const;

  [[nodiscard]] ibv_mr* register_piece(const rail& on, std::uint64_t at, std::uint64_t bytes,
                                       unsigned access) const noexcept;

  /// Makes the peers' windows or registrations. 0, or a number for `revoke_trouble_`: then there are none.
  [[nodiscard]] int open_to_peers();

  /// One registration with windows over it. False, with the reason in `no_windows_`: nothing is registered.
  [[nodiscard]] bool register_with_windows();

  /// 0, or the error's number: then nothing is registered.
  [[nodiscard]] int register_for_all();

  /// The words for the result of `register_for_all`.
  [[nodiscard]] std::string cause(int number) const;

  void register_device_memory(const std::string& which);

  [[nodiscard]] std::string devices() const;

  source& owner_;
  const memory_range range_;
  const region_access access_;
  const unsigned optional_flags_;
  const bool needs_windows_;
  memory_way way_ = memory_way::host;
  detail::unique_fd dmabuf_;  ///< set for device memory that is registered by it; kept for `revoke`
  std::uint64_t dmabuf_offset_ = 0;
  std::string no_dmabuf_;
  std::uint64_t pieces_ = 1;
  std::uint64_t piece_bytes_ = 0;
  std::string no_windows_;  ///< why peers' keys are registrations; empty: they are windows over `local_`
  device_objects local_;
  std::vector<std::uint32_t> local_keys_;
  mutable std::mutex mutex_;
  device_objects remote_;   ///< guarded by mutex_; empty: a revoke could not make new ones
  int revoke_trouble_ = 0;  ///< guarded by mutex_; of a window or of a registration
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/verbs/impl/region.ipp"
#endif
