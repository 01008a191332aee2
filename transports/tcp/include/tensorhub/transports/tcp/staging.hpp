#pragma once
/// \file staging.hpp
/// How the bytes of device memory get into and out of sockets: through pinned host memory, in pieces, so that
/// one piece is copied while another is on the network.
///
/// A `staging_ring` is pinned memory with a lane of its device. Pieces go through it in order: room is
/// reserved behind the newest one, filled (by the socket or by the device), copied or sent, and free again
/// when the oldest piece is done with. A reader's stream has one ring per device that it reads into; a
/// source's connection has one while it has answers from device memory.
///
/// Pinned memory: `ring_bytes` for each ring, so 4 MiB per stream of a reader, and 4 MiB per reader that a
/// source is answering at the moment (the scheduler bounds their number). Rings that are given back are kept,
/// `staging_pool::most_idle` of them: pinning and unpinning stops the device for others.
///
/// A device must live as long as the transports that have seen its memory.
///
/// Thread safety: a ring belongs to one thread at a time; the pool is for all.

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
  /// Of one copy: long enough for the speed of the bus, short enough to be a small part of a chunk.
  static constexpr std::uint64_t piece_bytes = 512u << 10;
  static constexpr std::uint64_t ring_bytes = 8 * piece_bytes;
  static constexpr std::size_t most_pieces = 64;  ///< short ones share the memory of a long one

  struct piece {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    lane_ticket copy = 0;
  };

  /// How long the end of a copy is waited for when nothing can go on without it. A device that takes longer
  /// for 4 MiB is dead.
  static constexpr std::chrono::seconds usual_patience{60};

  /// Throws `system_failed`.
  explicit staging_ring(device_access& device, duration patience = usual_patience)
      : device_{&device}, patience_{patience}, memory_{device, ring_bytes}, lane_{device.open_lane()} {}

  [[nodiscard]] device_access* device() const noexcept { return device_; }

  /// Room behind the newest piece for the next one, of 1 to `piece_bytes` bytes; null: none at present. It is
  /// the caller's until `load` or `store`, or the next `reserve`.
  [[nodiscard]] std::byte* reserve(std::uint64_t bytes) noexcept;
  /// Device to ring, or ring to device: the reserved room becomes the newest piece. False: the lane failed.
  [[nodiscard]] bool load(const std::byte* from, std::uint64_t bytes) noexcept {
    return push(bytes, lane_->copy(memory_.data() + head_, from, bytes));
  }
  [[nodiscard]] bool store(std::byte* to, std::uint64_t bytes) noexcept {
    return push(bytes, lane_->copy(to, memory_.data() + head_, bytes));
  }

  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] const piece& oldest() const noexcept { return pieces_[first_]; }
  void drop_oldest() noexcept;
  /// Drops what has been copied. False: the lane failed.
  [[nodiscard]] bool drop_copied() noexcept;

  /// Of the newest piece; zero before there was one.
  [[nodiscard]] lane_ticket newest() const noexcept { return newest_; }
  [[nodiscard]] lane_state state(lane_ticket copy) noexcept { return lane_->state(copy); }
  [[nodiscard]] lane_state wait(lane_ticket copy, duration timeout) noexcept {
    return lane_->wait(copy, timeout);
  }

  /// Returns when no copy runs any more: what they read and write may go. Whether the ring is as good as new.
  bool settle() noexcept;
  /// The device did not come to an end within the patience of `settle`, and may still use the memory.
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
  std::unique_ptr<device_lane> lane_;  ///< goes first: its copies use the memory
};

/// The rings of one transport object that nobody uses at present.
class staging_pool : public std::enable_shared_from_this<staging_pool> {
 public:
  static constexpr std::size_t most_idle = 16;

  /// Waits for the ring's copies, and keeps it if it is good.
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
