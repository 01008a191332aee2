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
#include <utility>
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
  pull(const layout& shape, pull_options options, chunk_index first_chunk)
      : layout_{&shape},
        options_{options},
        states_(shape.chunk_count(), chunk_state::missing),
        missing_((shape.chunk_count() + 63) / 64, ~0ull) {
    const std::uint64_t chunks = shape.chunk_count();
    start_ = chunks == 0 ? 0 : first_chunk % chunks;
    random_ = (first_chunk + 1) * 0x9e3779b97f4a7c15ull | 1;
    if (chunks % 64 != 0) missing_.back() = (1ull << (chunks % 64)) - 1;
    missing_count_ = chunks;
  }

  // ---- sources and channels -----------------------------------------------------------------------------

  source_slot add_source(const pull_source& source) {
    sources_.emplace_back().facts = source;
    return static_cast<source_slot>(sources_.size() - 1);
  }

  /// No new chunk is taken from it; what is in flight ends normally.
  void retire_source(source_slot slot) {
    if (sources_[slot].state == source_state::lost) return;
    sources_[slot].retiring = true;
    orphan_stalls_ = 0;
  }

  /// The shell has found out that a source cannot be used (no connection, say).
  void lose_source(source_slot slot, errc reason, std::string detail,
                   std::optional<chunk_index> chunk = std::nullopt) {
    source_record& lost = sources_[slot];
    if (lost.state == source_state::lost) return;
    lost.state = source_state::lost;
    for (channel_record& c : channels_) {
      if (c.slot != slot) continue;
      for (const chunk_index i : c.unconfirmed) give_back(i);
      for (const chunk_index i : c.confirming) give_back(i);
      c.unconfirmed.clear();
      c.confirming.clear();
    }
    if (lost.retiring) return;
    orphan_stalls_ = 0;
    failures_.push_back({slot, lost.facts.lease, reason, std::move(detail), chunk, lost.facts.holder});
  }

  channel_id open_channel(source_slot slot, lane_id lane = 0) {
    channels_.emplace_back();
    channels_.back().slot = slot;
    channels_.back().lane = lane;
    if (lane >= lanes_.size()) lanes_.resize(lane + 1);
    lanes_[lane].channels.push_back(static_cast<channel_id>(channels_.size() - 1));
    return static_cast<channel_id>(channels_.size() - 1);
  }

  // ---- tasks --------------------------------------------------------------------------------------------

  /// The next task for a channel, or empty: nothing to post now (ask again after any report on any channel,
  /// and at `due`).
  [[nodiscard]] std::optional<pull_task> next(channel_id id, time_point now = {}) {
    channel_record& c = channels_[id];
    source_record& from = sources_[c.slot];
    switch (from.state) {
      case source_state::lost:
      case source_state::asked:
        return std::nullopt;
      case source_state::unknown:
        return first_look(c, from, now);
      case source_state::believed:
        break;
    }
    const bool room = has_room(c);
    if (!room) c.leaves_to_others = false;
    const bool may_take =
        from.may_have && missing_count_ > 0 && (!room || find_chunk(c, from, now).has_value());
    const bool wants_look = !c.look_asked && wants_header(c, may_take, now);
    const bool wants_map = !from.complete && !from.map_asked && !c.look_asked && !from.retiring &&
                           !may_take && missing_count_ > 0 && now >= from.next_poll;
    if (wants_look || wants_map) {
      c.look_asked = true;
      c.confirming = std::exchange(c.unconfirmed, {});
      if (from.complete || from.map_asked || from.retiring) return pull_task{pull_task::kind_type::header, 0};
      from.map_asked = true;
      return pull_task{pull_task::kind_type::map, 0};
    }
    if (!may_take) {
      give_up_a_slow_one(c, from, now);
      return std::nullopt;
    }
    if (!room) return std::nullopt;
    const chunk_index chunk = *c.found;
    take(c, chunk, now);
    return pull_task{pull_task::kind_type::chunk, chunk};
  }

  /// When `next` of this channel may have a task although nothing was reported meanwhile.
  [[nodiscard]] time_point due(channel_id id) const noexcept {
    const source_record& from = sources_[channels_[id].slot];
    if (from.state == source_state::lost || from.retiring) return time_point::never();
    if (from.state == source_state::unknown) return from.next_poll;
    if (from.state == source_state::asked) return time_point::never();
    const channel_record& c = channels_[id];
    if (!c.unconfirmed.empty() && !c.look_asked) return c.oldest_unconfirmed + options_.confirm_after;
    if (missing_count_ == 0) {
      const auto slow = slow_one(c, from);
      return slow ? slow->due : time_point::never();
    }
    if (from.complete) return c.leaves_to_others ? busy_until(c) : time_point::never();
    return from.map_asked || from.may_have ? time_point::never() : from.next_poll;
  }

  /// A task that `next` gave could not be posted (the queue was full): it is given back.
  void not_posted(channel_id id, const pull_task& task) {
    channel_record& c = channels_[id];
    source_record& from = sources_[c.slot];
    switch (task.kind) {
      case pull_task::kind_type::block:
        if (from.state == source_state::asked) from.state = source_state::unknown;
        return;
      case pull_task::kind_type::chunk:
        end_read(c, task.chunk);
        return give_back(task.chunk);
      case pull_task::kind_type::map:
        from.map_asked = false;
        [[fallthrough]];
      case pull_task::kind_type::header:
        if (from.state == source_state::asked) from.state = source_state::unknown;
        c.look_asked = false;
        c.unconfirmed.insert(c.unconfirmed.end(), c.confirming.begin(), c.confirming.end());
        c.confirming.clear();
        return;
    }
  }

  // ---- reports ------------------------------------------------------------------------------------------

  /// `block`: the source's whole control block. `root`: digest over its digest table, made by the integrity
  /// policy (zero if the policy makes none). True: the source is believed, `segments(slot)` is set.
  bool block_arrived(channel_id id, completion_status status, std::span<const std::byte> block,
                     digest128 root, time_point now = {}) {
    const source_slot slot = channels_[id].slot;
    source_record& from = sources_[slot];
    if (from.state != source_state::asked) return false;
    if (status != completion_status::ok)
      return lost(slot, errc_of(status), "reading the control block: " + text(status));
    if (block.size() < control_offsets::of(*layout_).total_bytes)
      return lost(slot, errc::protocol_mismatch, "short control block");
    const auto header = read_control_header(block);
    if (!header || header->layout_low != layout_->digest().low ||
        header->layout_high != layout_->digest().high || header->chunk_count != layout_->chunk_count() ||
        header->segment_count != layout_->segments().size()) {
      return lost(slot, errc::protocol_mismatch, "what was read is not a control block of this layout");
    }
    if (!matches(*header, from)) return lost(slot, errc::contract_broken, changed(*header, from.facts));
    if (from.facts.root && root != from.facts.root) {
      return lost(slot, errc::corrupt, "the source's digest table is not the published one");
    }
    auto segments = read_control_segments(block, *layout_);
    if (!segments) return lost(slot, errc::protocol_mismatch, "the source's regions do not fit the layout");
    if (table_.empty() && from.facts.root) table_ = read_control_digests(block, *layout_);
    from.segments = std::move(*segments);
    from.state = source_state::believed;
    from.complete = header->state == static_cast<std::uint64_t>(control_state::shown);
    from.may_have = from.complete;
    if (!from.complete) from.map.assign(missing_.size(), 0);
    from.poll_interval = options_.poll_shortest;
    from.next_poll = now;
    last_progress_ = now;
    return true;
  }

  /// `digest`: of the bytes that arrived (ignored if the lease has no root).
  void chunk_arrived(channel_id id, chunk_index chunk, completion_status status, digest128 digest,
                     time_point now = {}) {
    channel_record& c = channels_[id];
    const time_point posted = end_read(c, chunk);
    source_record& from = sources_[c.slot];
    if (from.state == source_state::lost) return give_back(chunk);
    if (status != completion_status::ok) {
      give_back(chunk);
      lose_source(c.slot, errc_of(status), "reading chunk " + std::to_string(chunk) + ": " + text(status),
                  chunk);
      return;
    }
    if (from.facts.root && digest != table_[chunk]) {
      give_back(chunk);
      lose_source(c.slot, errc::corrupt,
                  "chunk " + std::to_string(chunk) + " does not have its published digest", chunk);
      return;
    }
    const duration took = now - posted;
    from.usual = from.usual.count() == 0 ? took : (3 * from.usual + took) / 4;
    usual_ = usual_.count() == 0 ? took : (15 * usual_ + took) / 16;
    last_progress_ = now;
    stall_told_ = false;
    states_[chunk] = chunk_state::unconfirmed;
    if (c.unconfirmed.empty()) c.oldest_unconfirmed = now;
    c.unconfirmed.push_back(chunk);
  }

  /// Of a task `header`.
  void header_arrived(channel_id id, completion_status status, std::span<const std::byte> bytes,
                      time_point now = {}) {
    look_arrived(id, status, bytes, false, now);
  }
  /// Of a task `map`: `bytes` are the control block up to control_offsets::map_end().
  void map_arrived(channel_id id, completion_status status, std::span<const std::byte> bytes,
                   time_point now = {}) {
    sources_[channels_[id].slot].map_asked = false;
    look_arrived(id, status, bytes, true, now);
  }

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
  [[nodiscard]] std::span<const chunk_index> take_confirmed() {
    taken_ = std::exchange(fresh_, std::move(taken_));
    fresh_.clear();
    return taken_;
  }

  /// A source that was given up, each once, the first one first: the shell asks the session for another one.
  [[nodiscard]] std::optional<source_failure> take_failure() {
    if (failures_.empty()) return std::nullopt;
    source_failure first = std::move(failures_.front());
    failures_.pop_front();
    return first;
  }

  /// `take_failure` has one.
  [[nodiscard]] bool has_failure() const noexcept { return !failures_.empty(); }

  /// True, once per stall: sources are there, but none has had anything new for `stall_timeout` (or
  /// `orphan_timeout`).
  [[nodiscard]] bool take_stall(time_point now) noexcept {
    if (last_progress_ == time_point{}) last_progress_ = now;  // the first question
    if (done() || stall_told_ || now - last_progress_ < stall_patience()) return false;
    if (std::ranges::any_of(channels_, [](const channel_record& c) { return !c.reads.empty(); }))
      return false;
    stall_told_ = true;
    last_progress_ = now;
    return true;
  }
  /// Another report is due if the stall goes on after this.
  void forgive_stall(time_point now) noexcept {
    stall_told_ = false;
    last_progress_ = now;
    if (orphan_stalls_) ++*orphan_stalls_;
  }

  /// Nothing of this source is outstanding or waits for a header, and nothing will be taken any more.
  [[nodiscard]] bool is_idle(source_slot slot) const noexcept {
    const source_record& from = sources_[slot];
    if (from.state == source_state::asked) return false;
    if (from.state != source_state::lost && !from.retiring) return false;
    return std::ranges::all_of(channels_, [slot](const channel_record& c) {
      return c.slot != slot || (c.reads.empty() && !c.look_asked && c.unconfirmed.empty());
    });
  }
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
  [[nodiscard]] std::optional<pull_task> first_look(channel_record& c, source_record& from, time_point now) {
    if (from.retiring || now < from.next_poll) return std::nullopt;
    from.state = source_state::asked;
    if (!from.facts.receiving || from.seen) return pull_task{pull_task::kind_type::block, 0};
    c.look_asked = true;
    return pull_task{pull_task::kind_type::header, 0};
  }

  [[nodiscard]] bool wants_header(const channel_record& c, bool may_take, time_point now) const {
    if (c.unconfirmed.empty()) return false;
    if (c.unconfirmed.size() >= options_.confirm_every || confirmed_ == 0) return true;
    return now >= c.oldest_unconfirmed + options_.confirm_after || (c.reads.empty() && !may_take);
  }

  void look_arrived(channel_id id, completion_status status, std::span<const std::byte> bytes, bool with_map,
                    time_point now) {
    channel_record& c = channels_[id];
    c.look_asked = false;
    source_record& from = sources_[c.slot];
    if (from.state == source_state::lost) return;
    const auto header = status == completion_status::ok ? read_control_header(bytes) : std::nullopt;
    if (from.state == source_state::asked && header && is_early(*header, from.facts)) {
      from.state = source_state::unknown;
      return wait_longer(from, now);
    }
    if (!header || !matches(*header, from)) {
      if (status != completion_status::ok) {
        lose_source(c.slot, errc_of(status), "reading the control block again: " + text(status));
      } else {
        lose_source(c.slot, errc::contract_broken,
                    header ? changed(*header, from.facts) : std::string{"the control block is gone"});
      }
      return;
    }
    if (from.state == source_state::asked) {
      from.seen = true;
      from.state = source_state::unknown;
      from.next_poll = now;
      return;
    }
    for (const chunk_index chunk : c.confirming) confirm(chunk, from);
    c.confirming.clear();
    if (header->state == static_cast<std::uint64_t>(control_state::shown)) {
      from.may_have = from.may_have || !from.complete;
      from.complete = true;
    } else if (with_map && bytes.size() >= control_offsets::of(*layout_).map_end()) {
      take_in_map(from, bytes, now);
    }
  }

  void confirm(chunk_index chunk, source_record& from) {
    const std::uint64_t bytes = layout_->slice(chunk).bytes;
    states_[chunk] = chunk_state::confirmed;
    ++confirmed_;
    confirmed_bytes_ += bytes;
    ++from.chunks;
    from.bytes += bytes;
    fresh_.push_back(chunk);
  }

  void take_in_map(source_record& from, std::span<const std::byte> bytes, time_point now) {
    bool news = false;
    scratch_.resize(from.map.size());
    read_control_map(bytes, scratch_);
    for (std::size_t i = 0; i < scratch_.size(); ++i) {
      news = news || (scratch_[i] & ~from.map[i] & missing_[i]) != 0;
      from.map[i] |= scratch_[i];
    }
    if (!news) return wait_longer(from, now);
    from.may_have = true;
    from.poll_interval = shortest_interval();
    from.next_poll = now + from.poll_interval;
  }
  void wait_longer(source_record& from, time_point now) {
    from.next_poll = now + std::max(from.poll_interval, shortest_interval());
    from.poll_interval = std::clamp(2 * from.poll_interval, shortest_interval(), options_.poll_longest);
  }
  /// Looking more often than some times per chunk read finds little.
  [[nodiscard]] duration shortest_interval() const noexcept {
    return std::clamp(usual_ / options_.looks_per_read, options_.poll_shortest, options_.poll_longest);
  }

  // ---- chunks

  [[nodiscard]] bool has_room(const channel_record& c) const noexcept {
    const lane_record& lane = lanes_[c.lane];
    if (sources_[c.slot].facts.far) return c.reads.size() < options_.far_window_chunks;
    if (lane.in_flight >= options_.window_chunks) return false;
    std::size_t useful = 0;
    for (const channel_id other : lane.channels) {
      const source_record& from = sources_[channels_[other].slot];
      useful += from.state == source_state::believed && !from.retiring && !from.facts.far ? 1 : 0;
    }
    // Several sources share the window, so that a slow one does not fill it.
    return useful <= 1 ||
           c.reads.size() < std::max<std::size_t>(options_.least_share, options_.window_chunks / useful);
  }

  /// The chunk to read from this source next; empty: it has nothing that is missing here.
  [[nodiscard]] std::optional<chunk_index> find_chunk(channel_record& c, source_record& from,
                                                      time_point now) {
    c.found.reset();
    c.leaves_to_others = false;
    if (from.retiring || missing_count_ == 0) return std::nullopt;
    if (from.complete) {
      c.found = find_in_complete(c, from, now);
    } else {
      const chunk_index start = start_;
      if (!somebody_is_complete())
        c.found = scan(start, [&](std::size_t word) {
          return missing_[word] & from.map[word] & ~elsewhere(word, from);
        });
      if (!c.found) c.found = scan(start, [&](std::size_t word) { return missing_[word] & from.map[word]; });
      from.may_have = c.found.has_value();
    }
    return c.found;
  }

  /// One run after the other of what nobody else has; the first run begins at this reader's place, and where
  /// one ends at what others have read, the next begins anywhere. What others have as well is left to them,
  /// unless nothing else is to be done: the source has more urgent readers.
  [[nodiscard]] std::optional<chunk_index> find_in_complete(channel_record& c, source_record& from,
                                                            time_point now) {
    if (!std::exchange(from.begun, true)) from.cursor = from.facts.first % states_.size();
    const auto rare = [&](std::size_t word) { return missing_[word] & ~elsewhere(word, from); };
    if ((rare(from.cursor / 64) >> (from.cursor % 64) & 1) != 0) return from.cursor;
    if (const auto other = scan(somewhere(), rare)) return other;
    const bool is_busy = lanes_[c.lane].in_flight > 0 && now < busy_until(c);
    c.leaves_to_others = is_busy && !somebody_is_complete(&from);
    if (c.leaves_to_others) return std::nullopt;
    return scan(from.cursor, [&](std::size_t word) { return missing_[word]; });
  }

  /// So long a lane that reads from others leaves to them what they have as well.
  [[nodiscard]] time_point busy_until(const channel_record& c) const noexcept {
    return lanes_[c.lane].last_posted + options_.slow_shortest;
  }

  /// Repeatable (xorshift64*, S. Vigna, 2016).
  [[nodiscard]] chunk_index somewhere() noexcept {
    random_ ^= random_ >> 12;
    random_ ^= random_ << 25;
    random_ ^= random_ >> 27;
    return (random_ * 0x2545f4914f6cdd1dull >> 16) % states_.size();
  }

  [[nodiscard]] bool somebody_is_complete(const source_record* without = nullptr) const noexcept {
    return std::ranges::any_of(sources_, [without](const source_record& s) {
      return &s != without && s.state == source_state::believed && s.complete && !s.retiring;
    });
  }

  /// What the sources other than this one have of 64 chunks, as far as is known.
  [[nodiscard]] std::uint64_t elsewhere(std::size_t word, const source_record& without) const noexcept {
    std::uint64_t bits = 0;
    for (const source_record& s : sources_) {
      if (&s == &without || s.state != source_state::believed || s.retiring) continue;
      if (s.complete) return ~0ull;
      bits |= s.map[word];
    }
    return bits;
  }

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

  void take(channel_record& c, chunk_index chunk, time_point now) {
    missing_[chunk / 64] &= ~(1ull << (chunk % 64));
    --missing_count_;
    states_[chunk] = chunk_state::in_flight;
    c.reads.push_back({chunk, now});
    sources_[c.slot].cursor = chunk + 1 == states_.size() ? 0 : chunk + 1;
    if (!sources_[c.slot].facts.far) ++lanes_[c.lane].in_flight;
    lanes_[c.lane].last_posted = now;
    touched_ = true;
  }
  time_point end_read(channel_record& c, chunk_index chunk) {
    const auto read = std::ranges::find(c.reads, chunk, &read_record::chunk);
    if (read == c.reads.end()) return {};
    const time_point posted = read->posted;
    c.reads.erase(read);
    if (!sources_[c.slot].facts.far) --lanes_[c.lane].in_flight;
    return posted;
  }
  void give_back(chunk_index chunk) {
    states_[chunk] = chunk_state::missing;
    missing_[chunk / 64] |= 1ull << (chunk % 64);
    ++missing_count_;
    for (source_record& s : sources_) s.may_have = s.state == source_state::believed;
  }

  /// Everything is taken, this channel has nothing to do, and another source takes much longer for its last
  /// reads than this one would. Who has everything is only given up for another one that has: what is missing
  /// in the end may be there alone.
  void give_up_a_slow_one(const channel_record& idle, const source_record& able, time_point now) {
    const auto slow = slow_one(idle, able);
    if (!slow || now < slow->due) return;
    lose_source(slow->slot, errc::timed_out,
                "reading chunk " + std::to_string(slow->oldest.chunk) + " took " +
                    std::to_string((now - slow->oldest.posted).count() / 1'000'000) +
                    " ms, and another source is much faster",
                slow->oldest.chunk);
  }
  struct slow_source {
    source_slot slot = 0;
    read_record oldest{};
    time_point due{};  ///< when it has had its time
  };
  /// Of those that `able` could stand in for, the one whose time is over first.
  [[nodiscard]] std::optional<slow_source> slow_one(const channel_record& idle,
                                                    const source_record& able) const {
    if (missing_count_ != 0 || !idle.reads.empty() || able.usual.count() == 0 || able.retiring) return {};
    const duration patience = std::max(options_.slow_shortest, options_.slow_factor * able.usual);
    std::optional<slow_source> out;
    for (const channel_record& slow : channels_) {
      if (slow.slot == idle.slot || slow.reads.empty() || sources_[slow.slot].state == source_state::lost)
        continue;
      if (sources_[slow.slot].complete && !able.complete) continue;
      const read_record& oldest = slow.reads.front();
      if (!able.complete && (able.map[oldest.chunk / 64] >> (oldest.chunk % 64) & 1) == 0) continue;
      if (!out || oldest.posted + patience < out->due)
        out = slow_source{slow.slot, oldest, oldest.posted + patience};
    }
    return out;
  }

  /// Shorter when a source is gone, and none of those that are left is known to have everything. The server
  /// may have to hear the same of other readers first; but a slow chain is no stall for ever.
  static constexpr std::uint32_t orphan_stalls_at_most = 6;
  [[nodiscard]] duration stall_patience() const noexcept {
    const bool is_certain = std::ranges::any_of(sources_, [](const source_record& s) {
      return s.state != source_state::lost && !s.retiring && (s.complete || !s.facts.receiving);
    });
    if (is_certain || !orphan_stalls_ || *orphan_stalls_ >= orphan_stalls_at_most)
      return options_.stall_timeout;
    return std::min(options_.stall_timeout, std::max(options_.orphan_timeout, options_.slow_factor * usual_));
  }

  // ---- belief

  bool lost(source_slot slot, errc reason, std::string detail) {
    lose_source(slot, reason, std::move(detail));
    return false;
  }
  [[nodiscard]] static bool matches(const control_header& header, const source_record& from) noexcept {
    // Also of a source that has been seen complete: bytes read earlier, by another lane, may arrive later.
    const bool state =
        header.state == static_cast<std::uint64_t>(control_state::shown) ||
        (header.state == static_cast<std::uint64_t>(control_state::receiving) && from.facts.receiving);
    return state && header.holder == from.facts.holder.value && header.epoch == from.facts.epoch &&
           header.version == from.facts.version.value;
  }
  /// A source that will receive, but has not begun.
  [[nodiscard]] static bool is_early(const control_header& header, const pull_source& facts) noexcept {
    return facts.receiving && header.holder == facts.holder.value &&
           (header.epoch < facts.epoch || (header.epoch == facts.epoch &&
                                           header.state == static_cast<std::uint64_t>(control_state::empty)));
  }
  [[nodiscard]] static std::string changed(const control_header& header, const pull_source& facts) {
    if (header.holder != facts.holder.value) return "the source is another process now";
    return "the source let go of version " + to_string(facts.version) + " while it was being read (epoch " +
           std::to_string(facts.epoch) + " became " + std::to_string(header.epoch) + ")";
  }
  [[nodiscard]] static errc errc_of(completion_status status) noexcept {
    return status == completion_status::local_error ? errc::transport_failed : errc::source_lost;
  }
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
