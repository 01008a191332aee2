#pragma once
/// \file staging.hpp
/// Moves the bytes of device memory into and out of sockets through pinned host memory, in pieces, so that
/// one piece is copied while another is on the network.
///
/// A `staging_ring` is pinned memory with a lane of its device. Pieces pass through the ring in order: space
/// is reserved behind the newest piece, filled (by the socket or by the device), copied or sent, and freed
/// when it is the oldest piece and finished. A reader's stream has one ring per device that it reads into; a
/// source's connection has one while it has answers from device memory.
///
/// Pinned memory: `ring_bytes` for each ring, so 4 MiB per stream of a reader, and 4 MiB per reader that a
/// source is currently answering (the scheduler bounds their number). The pool keeps up to
/// `staging_pool::most_idle` returned rings, because pinning and unpinning memory stalls the device.
///
/// A device must outlive the transports that have registered its memory.
///
/// Thread safety: a ring belongs to one thread at a time; any thread may use the pool.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/device_access.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

class staging_ring {
 public:
  /// The size of one copy: large enough for the full speed of the bus, small enough to be a small part of a
  /// chunk.
  static constexpr std::uint64_t piece_bytes = 512u << 10;
  static constexpr std::uint64_t ring_bytes = 8 * piece_bytes;
  static constexpr std::size_t most_pieces = 64;  ///< short pieces share the memory of a long one

  struct piece {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    lane_ticket copy = 0;
  };

  /// `patience` limits the wait of `settle`. Throws `system_failed`.
  explicit staging_ring(device_access& device, duration patience = device_lane::patience)
      : device_{&device}, patience_{patience}, memory_{device, ring_bytes}, lane_{device.open_lane()} {}

  [[nodiscard]] device_access* device() const noexcept { return device_; }

  /// Space behind the newest piece for the next one, of 1 to `piece_bytes` bytes; null if there is none at
  /// present. The space is the caller's until `load` or `store`, or the next `reserve`.
  [[nodiscard]] std::byte* reserve(std::uint64_t bytes) noexcept;
  /// Starts a copy from the device to the ring, or from the ring to the device: the reserved space becomes
  /// the newest piece. False: the lane failed.
  [[nodiscard]] bool load(const std::byte* from, std::uint64_t bytes) noexcept {
    return push(bytes, lane_->copy(memory_.data() + head_, from, bytes));
  }
  [[nodiscard]] bool store(std::byte* to, std::uint64_t bytes) noexcept {
    return push(bytes, lane_->copy(to, memory_.data() + head_, bytes));
  }

  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] const piece& oldest() const noexcept { return pieces_[first_]; }
  void drop_oldest() noexcept;
  /// Drops the pieces that have been copied. False: the lane failed.
  [[nodiscard]] bool drop_copied() noexcept;

  /// The number of the newest piece; zero before the first one.
  [[nodiscard]] lane_ticket newest() const noexcept { return newest_; }
  [[nodiscard]] lane_state state(lane_ticket copy) noexcept { return lane_->state(copy); }
  [[nodiscard]] lane_state wait(lane_ticket copy, duration timeout) noexcept {
    return lane_->wait(copy, timeout);
  }

  /// Returns when no copy is in progress: the memory that the copies used may be freed. True: the ring can be
  /// used again.
  bool settle() noexcept;
  /// True: the device did not finish within the time limit of `settle`, and may still use the memory.
  [[nodiscard]] bool is_stuck() const noexcept { return is_stuck_; }

 private:
  static constexpr std::uint64_t alignment_bytes = 256;
  static_assert(piece_bytes % alignment_bytes == 0);

  [[nodiscard]] std::uint64_t begin_of(const piece& one) const noexcept {
    return static_cast<std::uint64_t>(one.data - memory_.data());
  }
  [[nodiscard]] bool push(std::uint64_t bytes, lane_ticket copy) noexcept;

  device_access* device_;
  duration patience_;
  pinned_memory memory_;
  std::array<piece, most_pieces> pieces_{};  ///< ring: count_ entries from first_
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::uint64_t head_ = 0;  ///< where the next piece begins
  lane_ticket newest_ = 0;
  bool failed_ = false;
  bool is_stuck_ = false;
  std::unique_ptr<device_lane> lane_;  ///< destroyed first: its copies use the memory
};

/// The currently unused rings of one transport object.
class staging_pool : public std::enable_shared_from_this<staging_pool> {
 public:
  static constexpr std::size_t most_idle = 16;

  /// Waits for the ring's copies, and keeps the ring if it can be used again.
  struct give_back {
    std::shared_ptr<staging_pool> pool;
    void operator()(staging_ring* ring) const noexcept { pool->keep(std::unique_ptr<staging_ring>{ring}); }
  };
  using lent_ring = std::unique_ptr<staging_ring, give_back>;

  staging_pool() { idle_.reserve(most_idle); }

  /// Throws `system_failed`: no pinned memory, or no lane.
  [[nodiscard]] lent_ring lend(device_access& device);

 private:
  [[nodiscard]] std::unique_ptr<staging_ring> take(device_access& device) noexcept;
  void keep(std::unique_ptr<staging_ring> ring) noexcept;

  std::mutex mutex_;
  std::vector<std::unique_ptr<staging_ring>> idle_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/tcp/impl/staging.ipp"
#endif
