#pragma once
/// \file pull_lane.hpp
/// One lane of a pull: its channels to the sources, and the steps between two reads. How a transport connects
/// and reads is told by the class that derives from this one (transport_pull.hpp), which also drives it:
///
///     report, open_channels    what may take long, once per turn
///     take_tasks, posted       what to read next; the transport posts the reads
///     ended, *_arrived         what has become of them
///     take_check, checked      what may be here already
///
/// A lane knows its endpoints by the number of their look: the slot in its scratch memory that receives the
/// headers and maps of one channel.
///
/// Thread safety: a lane belongs to its thread; any thread may call `wake`.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transfer/kept_lane.hpp"
#include "tensorhub/transfer/placed_chunk.hpp"
#include "tensorhub/transfer/pull_driver.hpp"
#include "tensorhub/transfer/pull_report.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class pull_lane : public lane_thread {
 public:
  pull_lane(const pull_lane&) = delete;
  pull_lane& operator=(const pull_lane&) = delete;

  static constexpr std::size_t most_looks = limits::sources;
  /// Scratch memory: up to four whole control blocks, followed by the looks.
  [[nodiscard]] static std::size_t scratch_words(const pull_driver& driver);

 protected:
  /// What `connect` has found out.
  struct connected {
    bool is_kept = false;  ///< the endpoint is from an earlier update, and may have ended meanwhile
    std::uint64_t ordered_read_bytes = 0;
  };
  /// Something to read.
  struct read_task {
    pull_task what{};
    const remote_region* from = nullptr;
  };
  /// A read, as its completion names it.
  struct request {
    std::size_t channel = 0;
    pull_task what{};
  };
  /// Chunks in device memory that have arrived, or are being checked. One batch of them is being digested,
  /// while the next one arrives.
  struct batch {
    std::vector<placed_chunk> chunks{};
    std::vector<std::size_t> through{};  ///< which channel; `no_channel`: it is being checked
  };
  static constexpr std::size_t no_channel = SIZE_MAX;
  /// While it lives, others wake the lane.
  class listed {
   public:
    explicit listed(pull_lane& lane);
    ~listed();
    listed(const listed&) = delete;
    listed& operator=(const listed&) = delete;

   private:
    pull_lane* lane_;
  };

  /// Borrows both.
  pull_lane(pull_driver& driver, lane_id number, std::span<const std::byte> scratch);
  ~pull_lane();

  // ---- the transport; no lock is held, but where said

  /// Makes the endpoint of this look; with `may_be_kept` it may be one that an earlier update has kept.
  /// Throws what the transport throws.
  virtual connected connect(std::size_t look, const pull_target& target, const connection_ends& ends,
                            duration patience, bool may_be_kept) = 0;
  /// Ends the reads of an endpoint, which may take long.
  virtual void close(std::size_t look) noexcept = 0;
  /// Keeps an endpoint for the next update, or closes it, or an older one that was kept.
  virtual void keep(std::size_t look, connection_ends ends) = 0;
  [[nodiscard]] virtual bool usable(std::size_t look) const noexcept = 0;
  /// Of the network; zero: the transport does not tell. The lock is held.
  [[nodiscard]] virtual duration round_trip(std::size_t look) const noexcept = 0;
  /// How the source is reached: the name of the transport, or the choice of a composed one, and the reason
  /// for a detour of the bytes, which is known only after the first read. The lock is held.
  [[nodiscard]] virtual std::string path(std::size_t look) const = 0;

  // ---- one turn

  /// Reports the findings of the core to the session, and then closes endpoints that are not needed any more.
  /// Returns true if it has closed one, so that its reads end now.
  [[nodiscard]] bool report();
  [[nodiscard]] bool finished() const;
  /// Connects to sources that are new to this lane. Returns true if an attempt failed and will be repeated.
  [[nodiscard]] bool open_channels();

  [[nodiscard]] std::size_t channel_count() const noexcept { return channels_.size(); }
  [[nodiscard]] std::size_t look_of(std::size_t channel) const noexcept { return channels_[channel].look; }
  /// The channel has an endpoint, which has not ended as far as anybody knows.
  [[nodiscard]] bool may_read(std::size_t channel) const noexcept;
  /// What the core wants read next through this channel, some chunks at a time: lanes meet at the lock less
  /// often, and chunks that follow one another stay in one lane. Valid until the next call.
  [[nodiscard]] std::span<const read_task> take_tasks(std::size_t channel);
  /// The queue has taken the read of this task.
  void posted(std::size_t channel, const pull_task& task);
  /// The queue was full: gives back the tasks of the last `take_tasks` from this one on.
  void not_posted(std::size_t channel, std::size_t first);

  /// A read has ended. False: there is nothing more to do about it.
  [[nodiscard]] bool ended(const request& read, completion_status status);
  /// The result of a read of anything but a chunk.
  void look_arrived(const request& read, completion_status status);
  void chunk_arrived(const request& read, completion_status status, const digest128& digest);
  /// `made` has the digests of this batch, in its order.
  void batch_arrived(const batch& digested, std::span<const digest128> made);

  /// A chunk that may be here already, to be digested (pull::next_check).
  [[nodiscard]] std::optional<chunk_index> take_check();
  void checked(chunk_index chunk, const digest128& digest);

  /// The time until a step is due that no completion announces.
  [[nodiscard]] duration time_to_wait() const;

  /// At the end: keeps the endpoints that are at rest, and ends the reads of the others.
  void leave();

  // A request names its channel (upper 16 bits), its kind (2) and its chunk (the rest).
  static constexpr unsigned chunk_bits = 46;
  /// A channel keeps its number to the end of the pull. A lane that has given out all reads through the
  /// channels that it has, and leaves further sources to other lanes.
  static constexpr std::size_t most_channels = 1u << 16;
  [[nodiscard]] static request_id id_of(std::size_t channel, const pull_task& task) noexcept {
    return static_cast<request_id>(channel) << 48 | static_cast<request_id>(task.kind) << chunk_bits |
           task.chunk;
  }
  [[nodiscard]] static request request_of(request_id id) noexcept {
    return {static_cast<std::size_t>(id >> 48),
            {static_cast<pull_task::kind_type>((id >> chunk_bits) & 3u), id & ((1ull << chunk_bits) - 1)}};
  }
  struct scratch_range {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  /// Where a read of anything but a chunk puts its bytes.
  [[nodiscard]] scratch_range scratch_of(std::size_t channel, pull_task::kind_type kind) const noexcept;

 private:
  /// `stale`: its endpoint has ended, and another one has to be made (`is_made_again`).
  enum class channel_state : std::uint8_t { closed, open, stale };
  struct channel_record {
    source_slot slot = 0;
    channel_id id = 0;
    std::size_t look = 0;
    bool is_far = false;
    channel_state state = channel_state::closed;  ///< there is an endpoint while it is open
    /// Set: the endpoint is an earlier update's, and has not been seen to work in this one. When it was
    /// last asked.
    time_point reused{};
    bool is_replacement = false;  ///< for an endpoint that has ended; and no chunk has arrived since
    std::size_t outstanding = 0;  ///< reads that have not completed
    std::size_t block = 0;        ///< the place of its control block, while that is read
    [[nodiscard]] bool is_open() const noexcept { return state == channel_state::open; }
    /// The end of its endpoint is not yet the end of its source: nobody has read through a kept connection
    /// for long, and a path between datacenters fails now and then, while the source goes on. To drop the
    /// source would be to read again, for every lane, what has arrived and is not confirmed.
    [[nodiscard]] bool is_made_again() const noexcept {
      return reused != time_point{} || (is_far && !is_replacement);
    }
  };
  /// An endpoint that is not needed any more.
  struct closing_endpoint {
    std::size_t look = 0;
    std::optional<connection_ends> keeps_as{};
  };

  struct next_contact {
    std::optional<pull_contacts::attempt> attempt{};
    pull_target target{};
    bool reports_first = false;  ///< a source is free since the last report, and connecting may take long
  };
  [[nodiscard]] next_contact find_contact();
  /// Returns true if the source is to be tried again.
  [[nodiscard]] bool open_channel(const pull_contacts::attempt& attempt, const pull_target& target);
  /// An endpoint that is made again has ended, and no read of it will say so.
  [[nodiscard]] bool has_ended_unread(const channel_record& channel) const noexcept;
  /// Gives back a task whose endpoint has ended and is made again. False: it has not, as far as anybody
  /// knows.
  [[nodiscard]] bool give_back_stale(channel_record& channel, const pull_task& task,
                                     completion_status status);
  void close_stale(channel_record& channel);
  void connect_again(channel_record& channel);

  /// What `report` tells the session.
  struct findings {
    std::vector<source_failure> failed{};
    std::vector<lease_id> released{};
    std::string stall{};
    bool is_short = false;
    [[nodiscard]] bool empty() const noexcept {
      return failed.empty() && released.empty() && stall.empty() && !is_short;
    }
  };
  /// The lock is held.
  [[nodiscard]] findings take_findings();
  /// No lock is held: the session may take long.
  void tell(const findings& found) const;
  /// Marks a channel as closed. Its endpoint lives until `close_all`. The lock is held.
  [[nodiscard]] closing_endpoint close_channel(channel_record& channel);
  /// No lock is held: to close an endpoint may take seconds.
  void close_all(std::vector<closing_endpoint> endpoints);

  [[nodiscard]] connection_ends ends_of(const pull_target& target) const;

  // For the next two the lock is held.

  void note_checked(chunk_index chunk, const digest128& digest);
  void measure(const channel_record& channel);
  void trace(const channel_record& channel, chunk_index chunk, completion_status status, time_point at);
  [[nodiscard]] std::string_view name_of(source_slot slot) const;
  /// How many control blocks may be on their way at once: a source that is silent must not keep the lane
  /// from looking at others. Those of models with very many tensors are large.
  [[nodiscard]] static std::size_t blocks_of(const pull_driver& driver) noexcept;
  [[nodiscard]] static std::uint64_t block_offset(const pull_driver& driver, std::size_t block) noexcept;
  [[nodiscard]] static std::uint64_t look_offset(const pull_driver& driver, std::size_t look) noexcept;
  /// The core gets a task back, whose read was not posted or is void.
  void give_back(const channel_record& channel, const pull_task& task);

  static constexpr duration idle_wait = std::chrono::milliseconds{100};
  static constexpr std::size_t tasks_at_once = 8;
  /// The end of a connection is noticed at once; a source that says nothing for longer is lost.
  static constexpr duration soon = std::chrono::milliseconds{500};
  /// The longest attempt to replace an endpoint of a far source, which may be gone with its machine.
  static constexpr duration longest_far_attempt = std::chrono::seconds{2};

  pull_driver* driver_;
  lane_id number_;
  std::span<const std::byte> scratch_;
  std::vector<std::size_t> free_looks_;
  std::vector<channel_record> channels_;
  std::vector<std::size_t> free_blocks_;           ///< places for control blocks in the scratch memory
  std::vector<read_task> tasks_;                   ///< taken from the core, not posted yet
  bool has_connected_ = false;                     ///< has tried to, once: a stall begins after it
  std::map<chunk_index, time_point> posted_at_{};  ///< chunk reads in flight, if the caller traces
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transfer/impl/pull_lane.ipp"
#endif
