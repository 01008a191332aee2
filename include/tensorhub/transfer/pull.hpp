#pragma once
/// \file pull.hpp
/// One shard's transfer, as a pure state machine: which bytes to read next from whom, and what of it may be
/// believed.
///
/// The shell opens *channels* (one per reading thread and source), asks each for tasks, performs them as
/// one-sided reads and reports what arrived. Any channel takes any chunk that is missing, so channels and
/// sources share the work by their speed.
///
///     missing --take--> in flight --arrived, digest right--> unconfirmed --header read again, unchanged-->
///     confirmed
///        ^                  |                                    |
///        +---- read failed, source lost, digest wrong, header changed
///
/// A source is believed in four steps: its control block names the incarnation, epoch, version and layout of
/// the lease; the root over its digest table is the one that the server knows; every chunk has its digest;
/// and the header, read *after* the chunk had arrived, is still the same (control_block.hpp). One header read
/// confirms all chunks that had arrived before it was posted.
///
/// Thread safety: none; the shell serialises (calls are short: no byte of a chunk is touched here).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/error.hpp"

#include "tensorhub/transfer/control_block.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/layout.hpp"

namespace tensorhub {

/// What a lease says of its source.
struct pull_source {
  lease_id lease{};
  incarnation holder{};
  version_number version{};
  std::uint64_t epoch = 0;
  digest128 root{};  ///< zero: no digests to check
};

/// Number of a source within one pull, in the order of `add_source`.
using source_slot = std::uint32_t;
using channel_id = std::uint32_t;

struct pull_task {
  enum class kind_type : std::uint8_t {
    block = 0,   ///< read the whole control block (control_offsets::total_bytes), report `block_arrived`
    chunk = 1,   ///< read `chunk` to its place, digest it, report `chunk_arrived`
    header = 2,  ///< read the control block's header again, report `header_arrived`
  };
  kind_type kind = kind_type::chunk;
  chunk_index chunk = 0;
};

/// Why a source was given up.
struct source_failure {
  source_slot slot = 0;
  lease_id lease{};
  errc reason = errc::source_lost;
  std::string detail{};
  std::optional<chunk_index> chunk{};
};

struct pull_options {
  std::size_t window_chunks = 4;   ///< chunk reads outstanding per channel
  std::size_t confirm_every = 64;  ///< arrived chunks per header read, when there is no other reason for one
};

class pull {
 public:
  /// `shape` is borrowed. `first_chunk` is where this reader starts: readers that start at different places
  /// soon have something to give each other.
  pull(const layout& shape, pull_options options, chunk_index first_chunk)
      : layout_{&shape}, options_{options}, states_(shape.chunk_count(), chunk_state::missing) {
    cursor_ = shape.chunk_count() == 0 ? 0 : first_chunk % shape.chunk_count();
    unseen_ = shape.chunk_count();
  }

  // ---- sources and channels -----------------------------------------------------------------------------

  source_slot add_source(const pull_source& source) {
    sources_.push_back({source, source_state::unknown, {}});
    return static_cast<source_slot>(sources_.size() - 1);
  }

  /// No new chunk is taken from it; what is in flight ends normally.
  void retire_source(source_slot slot) {
    if (sources_[slot].state != source_state::lost) sources_[slot].retiring = true;
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
    if (!lost.retiring) failures_.push_back({slot, lost.facts.lease, reason, std::move(detail), chunk});
  }

  channel_id open_channel(source_slot slot) {
    channels_.push_back({slot, 0, false, {}, {}});
    return static_cast<channel_id>(channels_.size() - 1);
  }

  // ---- tasks --------------------------------------------------------------------------------------------

  /// The next task for a channel, or empty: nothing to post now (ask again after any report on any channel).
  [[nodiscard]] std::optional<pull_task> next(channel_id id) {
    channel_record& c = channels_[id];
    source_record& from = sources_[c.slot];
    switch (from.state) {
      case source_state::lost:
      case source_state::asked:
        return std::nullopt;
      case source_state::unknown:
        if (from.retiring) return std::nullopt;
        from.state = source_state::asked;
        return pull_task{pull_task::kind_type::block, 0};
      case source_state::believed:
        break;
    }
    if (!c.header_asked && !c.unconfirmed.empty() &&
        (c.unconfirmed.size() >= options_.confirm_every || (c.in_flight == 0 && !may_take(from)))) {
      c.header_asked = true;
      c.confirming = std::exchange(c.unconfirmed, {});
      return pull_task{pull_task::kind_type::header, 0};
    }
    if (c.in_flight >= options_.window_chunks || !may_take(from)) return std::nullopt;
    const chunk_index chunk = take();
    ++c.in_flight;
    touched_ = true;
    return pull_task{pull_task::kind_type::chunk, chunk};
  }

  /// A task that `next` gave could not be posted (the queue was full): it is given back.
  void not_posted(channel_id id, const pull_task& task) {
    channel_record& c = channels_[id];
    switch (task.kind) {
      case pull_task::kind_type::block:
        if (sources_[c.slot].state == source_state::asked) sources_[c.slot].state = source_state::unknown;
        return;
      case pull_task::kind_type::chunk:
        --c.in_flight;
        return give_back(task.chunk);
      case pull_task::kind_type::header:
        c.header_asked = false;
        c.unconfirmed.insert(c.unconfirmed.end(), c.confirming.begin(), c.confirming.end());
        c.confirming.clear();
        return;
    }
  }

  // ---- reports ------------------------------------------------------------------------------------------

  /// `block`: the source's whole control block. `root`: digest over its digest table, made by the integrity
  /// policy (zero if the policy makes none). True: the source is believed, `segments(slot)` is set.
  bool block_arrived(channel_id id, completion_status status, std::span<const std::byte> block,
                     digest128 root) {
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
    if (!matches(*header, from.facts)) return lost(slot, errc::contract_broken, changed(*header, from.facts));
    if (from.facts.root && root != from.facts.root) {
      return lost(slot, errc::corrupt, "the source's digest table is not the published one");
    }
    auto segments = read_control_segments(block, *layout_);
    if (!segments) return lost(slot, errc::protocol_mismatch, "the source's regions do not fit the layout");
    if (table_.empty() && from.facts.root) table_ = read_control_digests(block, *layout_);
    from.segments = std::move(*segments);
    from.state = source_state::believed;
    return true;
  }

  /// `digest`: of the bytes that arrived (ignored if the lease has no root).
  void chunk_arrived(channel_id id, chunk_index chunk, completion_status status, digest128 digest) {
    channel_record& c = channels_[id];
    --c.in_flight;
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
    states_[chunk] = chunk_state::unconfirmed;
    c.unconfirmed.push_back(chunk);
  }

  void header_arrived(channel_id id, completion_status status, std::span<const std::byte> bytes) {
    channel_record& c = channels_[id];
    c.header_asked = false;
    source_record& from = sources_[c.slot];
    if (from.state == source_state::lost) return;
    const auto header = status == completion_status::ok ? read_control_header(bytes) : std::nullopt;
    if (!header || !matches(*header, from.facts)) {
      if (status != completion_status::ok) {
        lose_source(c.slot, errc_of(status), "reading the control block again: " + text(status));
      } else {
        lose_source(c.slot, errc::contract_broken,
                    header ? changed(*header, from.facts) : std::string{"the control block is gone"});
      }
      return;
    }
    for (const chunk_index chunk : c.confirming) {
      states_[chunk] = chunk_state::confirmed;
      ++confirmed_;
      confirmed_bytes_ += layout_->slice(chunk).bytes;
    }
    c.confirming.clear();
  }

  // ---- state --------------------------------------------------------------------------------------------

  [[nodiscard]] bool done() const noexcept { return confirmed_ == states_.size(); }
  [[nodiscard]] std::uint64_t confirmed_chunks() const noexcept { return confirmed_; }
  [[nodiscard]] std::uint64_t confirmed_bytes() const noexcept { return confirmed_bytes_; }
  /// No chunk read was ever handed out: the target memory is as it was.
  [[nodiscard]] bool intact() const noexcept { return !touched_; }
  [[nodiscard]] const layout& shape() const noexcept { return *layout_; }
  [[nodiscard]] const pull_source& facts(source_slot slot) const noexcept { return sources_[slot].facts; }
  [[nodiscard]] bool is_confirmed(chunk_index chunk) const noexcept {
    return states_[chunk] == chunk_state::confirmed;
  }

  /// Set from `block_arrived` on; stable until the pull's end.
  [[nodiscard]] std::span<const remote_region> segments(source_slot slot) const noexcept {
    return sources_[slot].segments;
  }
  [[nodiscard]] std::span<const digest128> table() const noexcept { return table_; }

  /// A source that was given up, each once, the first one first: the shell asks the session for another one.
  [[nodiscard]] std::optional<source_failure> take_failure() {
    if (failures_.empty()) return std::nullopt;
    source_failure first = std::move(failures_.front());
    failures_.pop_front();
    return first;
  }

  /// Nothing of this source is outstanding or waits for a header, and nothing will be taken any more.
  [[nodiscard]] bool is_idle(source_slot slot) const noexcept {
    const source_record& from = sources_[slot];
    if (from.state == source_state::asked) return false;
    if (from.state != source_state::lost && !from.retiring) return false;
    return std::ranges::all_of(channels_, [slot](const channel_record& c) {
      return c.slot != slot || (c.in_flight == 0 && !c.header_asked && c.unconfirmed.empty());
    });
  }
  [[nodiscard]] bool is_lost(source_slot slot) const noexcept {
    return sources_[slot].state == source_state::lost;
  }

 private:
  enum class chunk_state : std::uint8_t { missing, in_flight, unconfirmed, confirmed };
  enum class source_state : std::uint8_t { unknown, asked, believed, lost };

  struct source_record {
    pull_source facts{};
    source_state state = source_state::unknown;
    std::vector<remote_region> segments{};
    bool retiring = false;
  };
  struct channel_record {
    source_slot slot = 0;
    std::size_t in_flight = 0;
    bool header_asked = false;
    std::vector<chunk_index> unconfirmed{};  ///< arrived since the last header read was posted
    std::vector<chunk_index> confirming{};   ///< arrived before the header read that is outstanding
  };

  [[nodiscard]] bool may_take(const source_record& from) const noexcept {
    return !from.retiring && (unseen_ > 0 || !returned_.empty());
  }

  /// Pre-condition: may_take.
  [[nodiscard]] chunk_index take() noexcept {
    chunk_index chunk = cursor_;
    if (!returned_.empty()) {
      chunk = returned_.back();
      returned_.pop_back();
    } else {
      cursor_ = cursor_ + 1 == states_.size() ? 0 : cursor_ + 1;
      --unseen_;
    }
    states_[chunk] = chunk_state::in_flight;
    return chunk;
  }
  void give_back(chunk_index chunk) {
    states_[chunk] = chunk_state::missing;
    returned_.push_back(chunk);
  }

  bool lost(source_slot slot, errc reason, std::string detail) {
    lose_source(slot, reason, std::move(detail));
    return false;
  }
  [[nodiscard]] static bool matches(const control_header& header, const pull_source& facts) noexcept {
    return header.holder == facts.holder.value && header.epoch == facts.epoch &&
           header.version == facts.version.value &&
           header.state == static_cast<std::uint64_t>(control_state::shown);
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
  std::vector<chunk_index> returned_;  ///< missing again
  chunk_index cursor_ = 0;             ///< next chunk that was never taken
  std::uint64_t unseen_ = 0;           ///< chunks that were never taken
  std::uint64_t confirmed_ = 0;
  std::uint64_t confirmed_bytes_ = 0;
  bool touched_ = false;
  std::vector<source_record> sources_;
  std::vector<channel_record> channels_;
  std::vector<digest128> table_;
  std::deque<source_failure> failures_;  ///< not taken yet
};

}  // namespace tensorhub
