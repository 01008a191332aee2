#pragma once
/// \file device_reads.hpp
/// The reads of one queue that are not copied from a file or a process by the pool: device memory at one end
/// or at both, and staged host memory.
///
/// | source's memory        | target | way                                                                  |
/// |------------------------|--------|----------------------------------------------------------------------|
/// | device, mappable       | any    | one copy by a lane, out of the mapping (own process: its own address)|
/// | staged, of either kind | any    | pieces: the source or its device to the staging file, from there to  |
/// |                        |        | the target (by a lane; the polling thread where it is host memory)   |
/// | host, in a mapped file | device | one copy by a lane, out of the mapping                               |
/// | host, otherwise        | device | pieces: process_vm_readv or pread to pinned memory, then by a lane   |
///
/// The queue has one lane per device. Copies out of mappings are gathered, and go to the lane in one call
/// when the queue is polled. A failed lane stops: the first unfinished piece is the one that failed, and the
/// reads behind it start again on a new lane. If pieces were sent together, all of them start again, one by
/// one.
///
/// The result of a read is decided when its last piece has landed (link::verdict): at that time every byte
/// was read from the source before the check of its grants.
///
/// Thread safety: like the queue, one thread at a time.

#include <array>
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

/// One device's lane of a queue, and the pieces in it.
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
    bounce_piece* bounce = nullptr;  ///< returned when the piece has landed, as is the slot
    stage_slot* slot = nullptr;
    bool together = false;  ///< sent in one call with its neighbours, which have the same ticket
  };

  device_access* device = nullptr;
  std::unique_ptr<device_lane> lane{};
  std::deque<piece> flying{};  ///< in the lane's order
  struct gathered_run {
    read_record* read = nullptr;
    copy_run run{};
  };
  std::vector<gathered_run> gathered{};  ///< not sent yet
  bool sends_one_by_one = false;         ///< pieces that were sent together have failed
  std::array<bounce_piece, 4> bounces{};
};

class device_reads {
 public:
  using way_type = device_part::way_type;

  /// `devices` names the devices that may copy to host memory.
  device_reads(copy_pool& pool, work_queue& queue, std::size_t depth,
               std::function<std::vector<device_access*>()> devices);
  device_reads(const device_reads&) = delete;
  device_reads& operator=(const device_reads&) = delete;

  [[nodiscard]] static bool has_a_part_in(const read_record& read) noexcept {
    return read.device != nullptr || read.region->memory != region_memory::host;
  }

  /// Starts a read whose region is known and granted.
  void start(read_record& read) noexcept;

  [[nodiscard]] bool empty() const noexcept { return active_.empty(); }

  /// Finishes the pieces that have landed, and starts the next ones.
  void work() noexcept;

  /// True: there is work that does not wait for a device or a source.
  [[nodiscard]] bool can_work() const noexcept;

  /// True: a lane has work, so that `wait_a_little` is useful.
  [[nodiscard]] bool is_flying() const noexcept;
  /// Waits until a piece has landed or failed, at most for the given time. True: one has.
  [[nodiscard]] bool wait_a_little(duration longest) noexcept;

  /// Called when the endpoint is lost and its reads have their status. Reads without a piece in a lane end
  /// now, the others when their pieces have landed.
  void give_up(const endpoint_core& endpoint, completion_status why) noexcept;
  /// Called when the endpoint is destroyed: when the function returns, no byte of the endpoint's targets
  /// changes any more, unless a device hangs for `device_lane::patience`; and its reads have ended.
  void settle(const endpoint_core& endpoint) noexcept;

 private:
  static constexpr int pieces_at_once = 4;  ///< copied by the polling thread itself

  /// A lane's first piece, if a lane has one.
  [[nodiscard]] static lane_state state_of(device_lane_record& lane) noexcept;
  [[nodiscard]] static bool has_pieces_of(const device_lane_record& lane,
                                          const endpoint_core& endpoint) noexcept;
  [[nodiscard]] static bool is_flying(const read_record& read, const stage_slot& slot) noexcept;
  [[nodiscard]] static bool is_over(const read_record& read) noexcept;

  /// The queue's lane for that device. May throw.
  [[nodiscard]] device_lane_record& lane_of(device_access& device);

  void begin(read_record& read) noexcept;
  void choose_way(read_record& read);
  [[nodiscard]] static std::string why_staged(const read_record& read);
  /// The devices that may read for this target, the best first.
  [[nodiscard]] std::vector<device_access*> candidates(const read_record& read) const;

  /// `first` is the region's first byte. May throw bad_alloc.
  void copy_at_once(read_record& read, const std::byte* first);
  void copy_from_file(read_record& read, const remote_file& file);
  void gather(read_record& read, const copy_run& run);

  void advance(read_record& read) noexcept;

  void bounce(read_record& read) noexcept;

  void stage(read_record& read) noexcept;

  /// The read's copy is not sent any more.
  static void drop_gathered(read_record& read) noexcept;
  /// Sends what was gathered.
  void send(device_lane_record& on) noexcept;

  /// Starts a piece of the read on the lane.
  void fly(read_record& read, std::uint64_t at, const std::byte* from, std::uint64_t bytes,
           device_lane_record::bounce_piece* bounce, stage_slot* slot) noexcept;

  static void take_down(const device_lane_record::piece& piece) noexcept;

  void land(device_lane_record& on) noexcept;

  /// Called when the lane has failed at its first piece.
  void start_again(device_lane_record& on) noexcept;

  void fail(read_record& read, completion_status why) noexcept {
    if (read.part.failure == completion_status::ok) read.part.failure = why;
  }

  /// Pre-condition: no lane has a piece of the read.
  void end(read_record& read) noexcept;
  /// `alive`: a connection whose source was seen alive after the lanes were last asked what has landed.
  void end(read_record& read, const link*& alive) noexcept;

  copy_pool* pool_;
  work_queue* queue_;
  std::function<std::vector<device_access*>()> devices_;
  std::vector<std::unique_ptr<device_lane_record>> lanes_;
  std::vector<read_record*> active_;
  std::vector<copy_run> runs_;  ///< of `send`
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/same_host/impl/device_reads.ipp"
#endif
