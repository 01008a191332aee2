#pragma once
/// \file pull.hpp
/// One shard's transfer, as a pure state machine: which bytes to read next from whom, and what of it may be
/// believed.
///
/// The shell opens *channels* (one per reading thread, a *lane*, and source), asks each for tasks, performs
/// them as one-sided reads and reports what arrived. Any channel takes any chunk that is missing and that its
/// source has, so channels and sources share the work by their speed.
///
///     missing --take--> in flight --arrived, digest right--> unconfirmed --header read again, unchanged-->
///     confirmed
///        ^                  |                                    |
///        +---- read failed, source lost, digest wrong, header changed
///
/// A source is believed in four steps: its control block names the incarnation, epoch, version and layout of
/// the lease; the root over its digest table is the one that the server knows; every chunk has its digest;
/// and the header, read *after* the chunk had arrived, is still the same (control_block.hpp). One header read
/// confirms all chunks that had arrived on that channel before it was posted.
///
/// A source may be receiving itself. Then the reader follows its chunk map: header and map are read together,
/// again after each batch of chunks (which this read confirms as well), and otherwise at an interval that
/// doubles while nothing new is there. Which chunk is taken first: one that no other source of this reader
/// has, because the readers of this reader will want it; then any (rarest first, as in B. Cohen, "Incentives
/// build robustness in BitTorrent", 2003, on what this reader can see). Readers begin at places of their own,
/// so that those of one source soon have something to trade. From a source that has everything, what others
/// have as well is only taken when there is nothing else to do: so it is read about once by all its readers
/// together.
///
/// No chunk is read twice at the same time: a read that is outstanding may still write. A source that is much
/// slower than another one that could do its last reads is therefore given up as a whole; its reads end, and
/// their chunks are read elsewhere.
///
/// Thread safety: none; the shell serialises (calls are short: no byte of a chunk is touched here).

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transfer/control_block.hpp"
#include "tensorhub/transfer/pull_task.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class pull {
 public:
  /// `shape` is borrowed. `first_chunk` is where this reader starts: readers that start at different places
  /// soon have something to give each other.
  pull(const layout& shape, pull_options options, chunk_index first_chunk);

  // ---- sources and channels -----------------------------------------------------------------------------

  source_slot add_source(const pull_source& source);

  /// No new chunk is taken from it; what is in flight ends normally.
  void retire_source(source_slot slot);

  /// The shell has found out that a source cannot be used (no connection, say).
  void lose_source(source_slot slot, errc reason, std::string detail,
                   std::optional<chunk_index> chunk = std::nullopt);

  channel_id open_channel(source_slot slot, lane_id lane = 0);

  // ---- tasks --------------------------------------------------------------------------------------------

  /// The next task for a channel, or empty: nothing to post now (ask again after any report on any channel,
  /// and at `due`).
  [[nodiscard]] std::optional<pull_task> next(channel_id id, time_point now = {});

  /// When `next` of this channel may have a task although nothing was reported meanwhile.
  [[nodiscard]] time_point due(channel_id id) const noexcept;

  /// A task that `next` gave could not be posted (the queue was full): it is given back.
  void not_posted(channel_id id, const pull_task& task);

  // ---- reports ------------------------------------------------------------------------------------------

  /// `block`: the source's whole control block. `root`: digest over its digest table, made by the integrity
  /// policy (zero if the policy makes none). True: the source is believed, `segments(slot)` is set.
  bool block_arrived(channel_id id, completion_status status, std::span<const std::byte> block,
                     digest128 root, time_point now = {});

  /// `digest`: of the bytes that arrived (ignored if the lease has no root).
  void chunk_arrived(channel_id id, chunk_index chunk, completion_status status, digest128 digest,
                     time_point now = {});

  /// Of a task `header`.
  void header_arrived(channel_id id, completion_status status, std::span<const std::byte> bytes,
                      time_point now = {}) {
    look_arrived(id, status, bytes, false, now);
  }
  /// Of a task `map`: `bytes` are the control block up to control_offsets::map_end().
  void map_arrived(channel_id id, completion_status status, std::span<const std::byte> bytes,
                   time_point now = {});

  // ---- state --------------------------------------------------------------------------------------------

  [[nodiscard]] bool done() const noexcept { return confirmed_ == states_.size(); }
  [[nodiscard]] std::uint64_t confirmed_chunks() const noexcept { return confirmed_; }
  [[nodiscard]] std::uint64_t confirmed_bytes() const noexcept { return confirmed_bytes_; }
  /// Of the confirmed chunks, those that were read from this source.
  [[nodiscard]] std::uint64_t chunks_from(source_slot slot) const noexcept { return sources_[slot].chunks; }
  [[nodiscard]] std::uint64_t bytes_from(source_slot slot) const noexcept { return sources_[slot].bytes; }
  /// No chunk read was ever handed out: the target memory is as it was.
  [[nodiscard]] bool intact() const noexcept { return !touched_; }
  [[nodiscard]] const layout& shape() const noexcept { return *layout_; }
  [[nodiscard]] const pull_source& facts(source_slot slot) const noexcept { return sources_[slot].facts; }
  [[nodiscard]] std::size_t source_count() const noexcept { return sources_.size(); }
  [[nodiscard]] bool is_confirmed(chunk_index chunk) const noexcept {
    return states_[chunk] == chunk_state::confirmed;
  }
  /// Chunk reads of a channel that have not ended.
  [[nodiscard]] std::size_t in_flight(channel_id id) const noexcept { return channels_[id].reads.size(); }

  /// Set from `block_arrived` on; stable until the pull's end.
  [[nodiscard]] std::span<const remote_region> segments(source_slot slot) const noexcept {
    return sources_[slot].segments;
  }
  [[nodiscard]] std::span<const digest128> table() const noexcept { return table_; }

  /// Chunks that were confirmed since the last call: they may be shown to readers.
  [[nodiscard]] std::span<const chunk_index> take_confirmed();

  /// A source that was given up, each once, the first one first: the shell asks the session for another one.
  [[nodiscard]] std::optional<source_failure> take_failure();

  /// `take_failure` has one.
  [[nodiscard]] bool has_failure() const noexcept { return !failures_.empty(); }

  /// True, once per stall: sources are there, but none has had anything new for `stall_timeout` (or
  /// `orphan_timeout`).
  [[nodiscard]] bool take_stall(time_point now) noexcept;
  /// Another report is due if the stall goes on after this.
  void forgive_stall(time_point now) noexcept;

  /// Nothing of this source is outstanding or waits for a header, and nothing will be taken any more.
  [[nodiscard]] bool is_idle(source_slot slot) const noexcept;
  [[nodiscard]] bool is_lost(source_slot slot) const noexcept {
    return sources_[slot].state == source_state::lost;
  }

 private:
  enum class chunk_state : std::uint8_t { missing, in_flight, unconfirmed, confirmed };
  /// `unknown`: nothing of it was seen. `asked`: its header or block is being read.
  enum class source_state : std::uint8_t { unknown, asked, believed, lost };

  struct source_record {
    pull_source facts{};
    source_state state = source_state::unknown;
    bool seen = false;      ///< receiving sources: its header was that of the lease
    bool complete = false;  ///< has every chunk; its map does not matter
    bool may_have = false;  ///< it may have a chunk that is missing here
    bool begun = false;
    chunk_index cursor = 0;  ///< after the last chunk that was taken
    bool map_asked = false;
    bool retiring = false;
    std::vector<std::uint64_t> map{};
    time_point next_poll{};
    duration poll_interval{};
    duration usual{};  ///< of one chunk read, averaged
    std::uint64_t chunks = 0;
    std::uint64_t bytes = 0;
    std::vector<remote_region> segments{};
  };
  struct read_record {
    chunk_index chunk = 0;
    time_point posted{};
  };
  struct channel_record {
    source_slot slot = 0;
    lane_id lane = 0;
    std::vector<read_record> reads{};        ///< in flight, oldest first
    bool look_asked = false;                 ///< a header or map read is outstanding
    std::vector<chunk_index> unconfirmed{};  ///< arrived since the last header read was posted
    time_point oldest_unconfirmed{};
    std::vector<chunk_index> confirming{};  ///< arrived before the header read that is outstanding
    std::optional<chunk_index> found{};     ///< scratch of find_chunk
    bool leaves_to_others = false;          ///< it had something, which others of this lane have as well
  };
  struct lane_record {
    std::vector<channel_id> channels{};
    std::size_t in_flight = 0;  ///< not counting those from afar
    time_point last_posted{};
  };

  // ---- looking at a source

  /// A receiving source may not have begun yet: its header is read until it is the one of the lease.
  [[nodiscard]] std::optional<pull_task> first_look(channel_record& c, source_record& from, time_point now);

  [[nodiscard]] bool wants_header(const channel_record& c, bool may_take, time_point now) const;

  void look_arrived(channel_id id, completion_status status, std::span<const std::byte> bytes, bool with_map,
                    time_point now);

  void confirm(chunk_index chunk, source_record& from);

  void take_in_map(source_record& from, std::span<const std::byte> bytes, time_point now);
  void wait_longer(source_record& from, time_point now);
  /// Looking more often than some times per chunk read finds little.
  [[nodiscard]] duration shortest_interval() const noexcept;

  // ---- chunks

  [[nodiscard]] bool has_room(const channel_record& c) const noexcept;

  /// The chunk to read from this source next; empty: it has nothing that is missing here.
  [[nodiscard]] std::optional<chunk_index> find_chunk(channel_record& c, source_record& from, time_point now);

  /// One run after the other of what nobody else has; the first run begins at this reader's place, and where
  /// one ends at what others have read, the next begins anywhere. What others have as well is left to them,
  /// unless nothing else is to be done: the source has more urgent readers.
  [[nodiscard]] std::optional<chunk_index> find_in_complete(channel_record& c, source_record& from,
                                                            time_point now);

  /// So long a lane that reads from others leaves to them what they have as well.
  [[nodiscard]] time_point busy_until(const channel_record& c) const noexcept {
    return lanes_[c.lane].last_posted + options_.slow_shortest;
  }

  /// Repeatable (xorshift64*, S. Vigna, 2016).
  [[nodiscard]] chunk_index somewhere() noexcept;

  [[nodiscard]] bool somebody_is_complete(const source_record* without = nullptr) const noexcept;

  /// What the sources other than this one have of 64 chunks, as far as is known.
  [[nodiscard]] std::uint64_t elsewhere(std::size_t word, const source_record& without) const noexcept;

  /// The first chunk, from `start` on and around, whose bit is set.
  template <typename Bits>
  [[nodiscard]] std::optional<chunk_index> scan(chunk_index start, Bits&& bits) const {
    const std::size_t words = missing_.size();
    const std::size_t first = start / 64;
    const std::uint64_t behind = ~0ull << (start % 64);
    for (std::size_t i = 0; i <= words; ++i) {
      const std::size_t word = first + i < words ? first + i : first + i - words;
      if (missing_[word] == 0) continue;
      std::uint64_t here = bits(word);
      if (i == 0) here &= behind;
      if (i == words) here &= ~behind;
      if (here != 0) return word * 64 + static_cast<chunk_index>(std::countr_zero(here));
    }
    return std::nullopt;
  }

  void take(channel_record& c, chunk_index chunk, time_point now);
  time_point end_read(channel_record& c, chunk_index chunk);
  void give_back(chunk_index chunk);

  /// Everything is taken, this channel has nothing to do, and another source takes much longer for its last
  /// reads than this one would. Who has everything is only given up for another one that has: what is missing
  /// in the end may be there alone.
  void give_up_a_slow_one(const channel_record& idle, const source_record& able, time_point now);
  struct slow_source {
    source_slot slot = 0;
    read_record oldest{};
    time_point due{};  ///< when it has had its time
  };
  /// Of those that `able` could stand in for, the one whose time is over first.
  [[nodiscard]] std::optional<slow_source> slow_one(const channel_record& idle,
                                                    const source_record& able) const;

  /// Shorter when a source is gone, and none of those that are left is known to have everything. The server
  /// may have to hear the same of other readers first; but a slow chain is no stall for ever.
  static constexpr std::uint32_t orphan_stalls_at_most = 6;
  [[nodiscard]] duration stall_patience() const noexcept;

  // ---- belief

  bool lost(source_slot slot, errc reason, std::string detail);
  [[nodiscard]] static bool matches(const control_header& header, const source_record& from) noexcept;
  /// A source that will receive, but has not begun.
  [[nodiscard]] static bool is_early(const control_header& header, const pull_source& facts) noexcept;
  [[nodiscard]] static std::string changed(const control_header& header, const pull_source& facts);
  [[nodiscard]] static errc errc_of(completion_status status) noexcept;
  [[nodiscard]] static std::string text(completion_status status) { return std::string{to_string(status)}; }

  const layout* layout_;
  pull_options options_;
  std::vector<chunk_state> states_;
  std::vector<std::uint64_t> missing_;  ///< bit set: `missing`
  std::uint64_t missing_count_ = 0;
  std::uint64_t random_ = 1;
  chunk_index start_ = 0;
  std::uint64_t confirmed_ = 0;
  std::uint64_t confirmed_bytes_ = 0;
  bool touched_ = false;
  bool stall_told_ = false;
  time_point last_progress_{};
  std::optional<std::uint32_t> orphan_stalls_;  ///< told since a source has gone; empty: none has
  duration usual_{};                            ///< of one chunk read, averaged over all sources
  std::deque<source_record> sources_;           ///< a deque: segments are borrowed
  std::vector<channel_record> channels_;
  std::vector<lane_record> lanes_;
  std::vector<digest128> table_;
  std::vector<chunk_index> fresh_;  ///< confirmed, not taken
  std::vector<chunk_index> taken_;
  std::vector<std::uint64_t> scratch_;
  std::deque<source_failure> failures_;  ///< not taken yet
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transfer/impl/pull.ipp"
#endif
