#pragma once
/// \file device_reads.hpp
/// The reads of one queue that a device has a part in: device memory at either end, or at both.
///
/// | source's memory        | target | way                                                                  |
/// |------------------------|--------|----------------------------------------------------------------------|
/// | device, mappable       | any    | one copy by a lane, out of the mapping (own process: its own address)|
/// | device, not mappable   | any    | pieces: the source's device to the staging file, from there to the   |
/// |                        |        | target (by a lane; the polling thread where it is host memory)       |
/// | host, in a mapped file | device | one copy by a lane, out of the mapping                               |
/// | host, otherwise        | device | pieces: process_vm_readv or pread to pinned memory, then by a lane   |
///
/// The queue has one lane per device. A lane that fails does nothing any more: the first piece that it did
/// not finish is the one that failed, the reads behind it begin again on a fresh lane.
///
/// Whether a read ended well is decided when its last piece has landed (link::verdict): every byte was then
/// taken from the source before the look at its grants.
///
/// Thread safety: as the queue, one thread at a time.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/same_host/copy_pool.hpp"
#include "tensorhub/transports/same_host/link.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/device_access.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

/// One device's lane of a queue, and what it is doing.
struct device_lane_record {
  static constexpr std::uint64_t bounce_bytes = 2u << 20;

  struct bounce_piece {
    pinned_memory memory{};
    bool in_use = false;
  };
  struct piece {
    read_record* read = nullptr;
    lane_ticket ticket = 0;
    std::uint64_t bytes = 0;
    bounce_piece* bounce = nullptr;  ///< given back when the piece has landed, as the slot
    stage_slot* slot = nullptr;
  };

  device_access* device = nullptr;
  std::unique_ptr<device_lane> lane{};
  std::deque<piece> flying{};  ///< in the lane's order
  std::array<bounce_piece, 4> bounces{};
};

class device_reads {
 public:
  using way_type = device_part::way_type;

  /// `devices` names those that may copy to host memory.
  device_reads(copy_pool& pool, work_queue& queue, std::size_t depth,
               std::function<std::vector<device_access*>()> devices);
  device_reads(const device_reads&) = delete;
  device_reads& operator=(const device_reads&) = delete;

  [[nodiscard]] static bool has_a_part_in(const read_record& read) noexcept {
    return read.device != nullptr || read.region->memory != region_memory::host;
  }

  /// The read's region is known and granted.
  void start(read_record& read) noexcept;

  [[nodiscard]] bool empty() const noexcept { return active_.empty(); }

  /// Takes what has landed and hands out what can be.
  void work() noexcept;

  /// Something can be done without waiting for a device or for a source.
  [[nodiscard]] bool can_work() const noexcept;

  /// A lane has work: `wait_a_little` is of use.
  [[nodiscard]] bool is_flying() const noexcept;
  /// Until a piece has landed or failed, at most so long. True: one has.
  [[nodiscard]] bool wait_a_little(duration longest) noexcept;

  /// The endpoint is lost; its reads have their status. Those that no lane has end now, the others when
  /// their pieces have landed.
  void give_up(const endpoint_core& endpoint, completion_status why) noexcept;
  /// The endpoint goes: when this returns, no byte of its targets changes any more and its reads have ended.
  void settle(const endpoint_core& endpoint) noexcept;

 private:
  static constexpr int pieces_at_once = 4;  ///< that the polling thread copies itself
  static constexpr std::chrono::seconds longest_look{1};

  /// The first piece of a lane that has one.
  [[nodiscard]] static lane_state state_of(device_lane_record& lane) noexcept;
  [[nodiscard]] static bool has_pieces_of(const device_lane_record& lane,
                                          const endpoint_core& endpoint) noexcept;
  [[nodiscard]] static bool is_flying(const read_record& read, const stage_slot& slot) noexcept;
  [[nodiscard]] static bool is_over(const read_record& read) noexcept;

  /// The queue's lane of that device. May throw.
  [[nodiscard]] device_lane_record& lane_of(device_access& device);

  void begin(read_record& read) noexcept;
  void choose_way(read_record& read);
  [[nodiscard]] static std::string why_staged(const read_record& read);
  /// The devices that may read for this target, the best first.
  [[nodiscard]] std::vector<device_access*> candidates(const read_record& read) const;

  /// `first` is the region's first byte.
  void copy_at_once(read_record& read, const std::byte* first) noexcept;

  void advance(read_record& read) noexcept;

  void bounce(read_record& read) noexcept;

  void stage(read_record& read) noexcept;

  /// Gives the lane a piece of the read.
  void fly(read_record& read, std::uint64_t at, const std::byte* from, std::uint64_t bytes,
           device_lane_record::bounce_piece* bounce, stage_slot* slot) noexcept;

  static void take_down(const device_lane_record::piece& piece) noexcept;

  void land(device_lane_record& on) noexcept;

  /// The lane has failed with its first piece.
  void start_again(device_lane_record& on) noexcept;

  void fail(read_record& read, completion_status why) noexcept {
    if (read.part.failure == completion_status::ok) read.part.failure = why;
  }

  /// No lane has anything of the read.
  void end(read_record& read) noexcept;

  copy_pool* pool_;
  work_queue* queue_;
  std::function<std::vector<device_access*>()> devices_;
  std::vector<std::unique_ptr<device_lane_record>> lanes_;
  std::vector<read_record*> active_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/same_host/impl/device_reads.ipp"
#endif
