#pragma once
/// \file pull.ipp
/// Which task comes next, what each report changes, and which chunk is taken from which source: definitions
/// of pull.hpp.

#include <cstring>
#include <utility>

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/transfer/pull.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL pull::pull(const layout& shape, pull_options options, chunk_index first_chunk)
    : layout_{&shape},
      options_{options},
      states_(shape.chunk_count(), chunk_state::missing),
      missing_{shape.chunk_count()},
      random_{first_chunk} {
  const std::uint64_t chunks = shape.chunk_count();
  start_ = chunks == 0 ? 0 : first_chunk % chunks;
  open_.is_open = options.open;
  if (open_.is_open && options.needs_root) {
    table_.resize(chunks);
    open_.lacking = chunks;
    open_.shown_by.resize(chunks);
  }
  // An open version may be filled slowly, and what is read of it then is not small.
  if (open_.is_open)
    options_.poll_longest = std::max<duration>(options_.poll_longest, std::chrono::microseconds{chunks});
}

TENSORHUB_DECL void pull::commit(digest128 root) {
  if (!options_.open || open_.root) return;
  open_.root = root;
  for (source_record& each : sources_) each.facts.root = root;
  stall_.last_progress = {};
  if (!options_.needs_root) settle();
}

TENSORHUB_DECL std::optional<digest128> pull::unsettled() const {
  return open_.is_open && open_.lacking == 0 ? open_.root : std::nullopt;
}

TENSORHUB_DECL void pull::settle() {
  open_.is_open = false;
}

TENSORHUB_DECL bool pull::doubt_digests() {
  bool forgets = false;
  bool awaits = false;  // a chunk that will prove its digest
  for (chunk_index i = 0; i < states_.size(); ++i) {
    awaits = awaits || states_[i] == chunk_state::in_flight;
    if (states_[i] != chunk_state::missing) continue;
    forget_digest(i);
    forgets = true;
  }
  return forgets ? ++open_.doubts <= max_open_mismatches : awaits;
}

TENSORHUB_DECL std::uint64_t pull::map_bytes() const noexcept {
  const control_offsets at = control_offsets::of(*layout_);
  return options_.open ? at.segments : at.map_end();
}

TENSORHUB_DECL source_slot pull::add_source(const pull_source& source) {
  sources_.emplace_back().facts = source;
  if (open_.root) sources_.back().facts.root = *open_.root;
  return static_cast<source_slot>(sources_.size() - 1);
}

TENSORHUB_DECL void pull::retire_source(source_slot slot) {
  if (sources_[slot].state == source_state::lost) return;
  sources_[slot].retiring = true;
  // A long pull sees many sources come and go; only those that it may take from share a lane's window.
  for (lane_record& lane : lanes_)
    std::erase_if(lane.channels, [&](channel_id id) { return channels_[id].slot == slot; });
  forget_digests_of(slot);
  stall_.of_orphans = 0;
}

TENSORHUB_DECL void pull::lose_source(source_slot slot, errc reason, std::string detail,
                                      std::optional<chunk_index> chunk) {
  source_record& lost = sources_[slot];
  if (lost.state == source_state::lost) return;
  lost.state = source_state::lost;
  for (channel_record& c : channels_) {
    if (c.slot != slot) continue;
    for (const chunk_index i : c.unconfirmed) give_back(i);
    for (const chunk_index i : c.confirming) give_back(i);
    c.unconfirmed.clear();
    c.confirming.clear();
    c.chased.clear();
    c.proven.clear();
  }
  forget_digests_of(slot);
  if (lost.retiring) return;
  stall_.of_orphans = 0;
  failures_.push_back({slot, lost.facts.lease, reason, std::move(detail), chunk, lost.facts.holder});
}

TENSORHUB_DECL void pull::reconnected(channel_id channel, std::uint64_t ordered_read_bytes) {
  channels_[channel].ordered_read_bytes = ordered_read_bytes;
}

TENSORHUB_DECL channel_id pull::open_channel(source_slot slot, lane_id lane,
                                             std::uint64_t ordered_read_bytes) {
  channels_.emplace_back();
  channels_.back().slot = slot;
  channels_.back().lane = lane;
  channels_.back().ordered_read_bytes = ordered_read_bytes;
  if (lane >= lanes_.size()) lanes_.resize(lane + 1);
  lanes_[lane].channels.push_back(static_cast<channel_id>(channels_.size() - 1));
  return static_cast<channel_id>(channels_.size() - 1);
}

TENSORHUB_DECL void pull::leave_reads(lane_id lane) {
  if (lane < lanes_.size()) lanes_[lane].is_away = true;
}

TENSORHUB_DECL std::optional<pull_task> pull::next(channel_id id, time_point now) {
  channel_record& c = channels_[id];
  source_record& from = sources_[c.slot];
  c.awaits_room = false;
  if (std::exchange(lanes_[c.lane].is_away, false)) lanes_[c.lane].attends_since = now;
  switch (from.state) {
    case source_state::lost:
    case source_state::reading:
      return std::nullopt;
    case source_state::unknown:
      return may_read_ahead(from) ? read_ahead(id, now) : first_look(c, from, now);
    case source_state::ahead:
      return id == from.ahead_through ? read_ahead(id, now) : std::nullopt;
    case source_state::believed:
      break;
  }
  const bool has_room = room(c, now) > 0;
  if (!has_room) c.defers_until = starting_until(c.slot, now);
  const bool may_take =
      from.may_have && !missing_.empty() && (!has_room || find_chunk(c, from, now).has_value());
  if (const auto look = look_again(c, from, may_take, now)) return look;
  if (!may_take) {
    drop_slow_source(c, from, now);
    return std::nullopt;
  }
  if (!has_room) return std::nullopt;
  const chunk_index chunk = *c.found;
  take(c, chunk, now);
  return pull_task{pull_task::kind_type::chunk, chunk};
}

TENSORHUB_DECL time_point pull::due(channel_id id) const noexcept {
  const source_record& from = sources_[channels_[id].slot];
  const channel_record& c = channels_[id];
  if (from.state == source_state::lost || from.retiring || c.awaits_room) return time_point::never();
  if (from.state == source_state::unknown) return from.next_poll;
  if (from.state == source_state::ahead || from.state == source_state::reading) return time_point::never();
  if (!c.unconfirmed.empty() && !c.look_pending) return c.oldest_unconfirmed + options_.confirm_after;
  if (missing_.empty()) {
    const auto slow = find_slow_source(c, from);
    return slow ? slow->due : time_point::never();
  }
  if (from.complete) return c.defers_until;
  return from.map_pending || from.may_have ? time_point::never() : from.next_poll;
}

TENSORHUB_DECL void pull::not_posted(channel_id id, const pull_task& task) {
  channel_record& c = channels_[id];
  source_record& from = sources_[c.slot];
  c.awaits_room = true;
  switch (task.kind) {
    case pull_task::kind_type::chunk:
      end_read(c, task.chunk);
      std::erase(c.chased, task.chunk);
      std::erase(c.proven, task.chunk);
      return give_back(task.chunk);
    case pull_task::kind_type::map:
      from.map_pending = false;
      [[fallthrough]];
    case pull_task::kind_type::block:
    case pull_task::kind_type::header:
      if (from.state == source_state::reading) from.state = source_state::unknown;
      c.look_pending = false;
      c.unconfirmed.insert(c.unconfirmed.end(), c.confirming.begin(), c.confirming.end());
      c.confirming.clear();
      c.chased.clear();
      return;
  }
}

TENSORHUB_DECL bool pull::block_arrived(channel_id id, completion_status status,
                                        std::span<const std::byte> block, digest128 root, time_point now) {
  channel_record& c = channels_[id];
  const source_slot slot = c.slot;
  source_record& from = sources_[slot];
  if (from.state != source_state::reading) return false;
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
  // What an open version has shown is compared with its root by `settle`; its chunks with the table.
  if (options_.needs_root && !from.facts.root && !options_.open)
    return lost(slot, errc::corrupt, "the server names no root digest of this version");
  if (from.facts.root && root != from.facts.root && !options_.open) {
    // The source began while the version was open, and does not know all digests yet.
    if (from.facts.receiving && detail::contains(read_control_digests(block, *layout_), digest128{})) {
      from.state = source_state::unknown;
      wait_longer(from, now);
      return false;
    }
    return lost(slot, errc::corrupt, "the source's digest table is not the published one");
  }
  auto segments = read_control_segments(block, *layout_);
  if (!segments) return lost(slot, errc::protocol_mismatch, "the source's regions do not fit the layout");
  if (from.segments.empty())
    from.segments = std::move(*segments);
  else if (from.segments != *segments)
    return lost(slot, errc::contract_broken, "its regions are not those that the server was told");
  if (table_.empty() && from.facts.root) table_ = read_control_digests(block, *layout_);
  if (!check_early(slot)) return false;
  from.state = source_state::believed;
  from.complete = header->state == static_cast<std::uint64_t>(control_state::shown) && !open_.is_open;
  from.may_have = from.complete;
  if (!from.complete) from.map.assign(missing_.words(), 0);
  from.poll_interval = options_.poll_shortest;
  from.next_poll = now;
  stall_.last_progress = now;
  if (open_.is_open) apply_map(slot, block, now);
  confirm_looked_at(c, from);
  return true;
}

TENSORHUB_DECL bool pull::chunk_arrived(channel_id id, chunk_index chunk, completion_status status,
                                        digest128 digest, time_point now) {
  channel_record& c = channels_[id];
  const time_point posted = end_read(c, chunk);
  const bool is_chased = std::erase(c.chased, chunk) > 0;
  const bool is_proven = std::erase(c.proven, chunk) > 0;
  source_record& from = sources_[c.slot];
  if (from.state == source_state::lost) {
    give_back(chunk);
    forget_digests_of(c.slot);
    return false;
  }
  if (status != completion_status::ok) {
    give_back(chunk);
    return lost(c.slot, errc_of(status), "reading chunk " + std::to_string(chunk) + ": " + text(status),
                chunk);
  }
  if (!table_.empty() && digest != table_[chunk]) {
    give_back(chunk);
    if (open_.is_open) forget_digest(chunk);
    // What was wrong may have been the digest, half of which was read before it was written.
    if (open_.is_open && ++open_.mismatches <= max_open_mismatches) return false;
    return lost(c.slot, errc::corrupt, without_its_digest(chunk), chunk);
  }
  const duration took = std::max(now - posted, duration{1});
  const bool opens_window = may_only_start(from);
  from.usual = from.usual.count() == 0 ? took : (3 * from.usual + took) / 4;
  usual_ = usual_.count() == 0 ? took : (15 * usual_ + took) / 16;
  stall_.last_progress = now;
  stall_.is_reported = false;
  if (is_proven) {
    confirm(chunk, from);
    return opens_window;
  }
  if (from.state != source_state::believed && from.facts.root && table_.empty()) from.early[chunk] = digest;
  states_[chunk] = chunk_state::unconfirmed;
  if (!is_chased && c.unconfirmed.empty()) c.oldest_unconfirmed = now;
  (is_chased ? c.confirming : c.unconfirmed).push_back(chunk);
  return opens_window;
}

TENSORHUB_DECL bool pull::map_arrived(channel_id id, completion_status status,
                                      std::span<const std::byte> bytes, time_point now) {
  sources_[channels_[id].slot].map_pending = false;
  return look_arrived(id, status, bytes, true, now);
}

TENSORHUB_DECL std::span<const chunk_index> pull::take_confirmed() {
  taken_ = std::exchange(fresh_, std::move(taken_));
  fresh_.clear();
  return taken_;
}

TENSORHUB_DECL std::optional<source_failure> pull::take_failure() {
  if (failures_.empty()) return std::nullopt;
  source_failure first = std::move(failures_.front());
  failures_.pop_front();
  return first;
}

TENSORHUB_DECL bool pull::take_stall(time_point now) noexcept {
  if (stall_.last_progress == time_point{}) stall_.last_progress = now;  // first call
  if (done() || stall_.is_reported || now - stall_.last_progress < stall_patience()) return false;
  if (detail::any_of(channels_, [](const channel_record& c) { return !c.reads.empty(); })) return false;
  stall_.is_reported = true;
  stall_.last_progress = now;
  return true;
}

TENSORHUB_DECL void pull::forgive_stall(time_point now) noexcept {
  stall_.is_reported = false;
  stall_.last_progress = now;
  if (stall_.of_orphans) ++*stall_.of_orphans;
}

TENSORHUB_DECL bool pull::take_shortage(time_point now) noexcept {
  if (has_complete_source()) {
    stall_.shortage_patience = 1;
    return false;
  }
  if (missing_.empty() || open_.is_open || usual_.count() == 0) return false;
  time_point since = stall_.shortage_reported;
  bool has_room = false;
  for (const lane_record& lane : lanes_) {
    if (lane.is_away && lane.in_flight > 0) return false;  // its reads may have ended
    since = std::max({since, lane.last_posted, lane.attends_since});
    has_room = has_room || lane.in_flight < options_.window_chunks;
  }
  if (!has_room) return false;
  const duration once = std::max(options_.shortage_shortest, options_.shortage_factor * usual_);
  if (now - since < stall_.shortage_patience * once) return false;
  stall_.shortage_reported = now;
  stall_.shortage_patience = std::min(2 * stall_.shortage_patience, most_shortage_patience);
  return true;
}

TENSORHUB_DECL bool pull::is_idle(source_slot slot) const noexcept {
  const source_record& from = sources_[slot];
  if (from.state == source_state::reading) return false;
  if (from.state != source_state::lost && !from.retiring) return false;
  return detail::all_of(channels_, [slot](const channel_record& c) {
    return c.slot != slot || (c.reads.empty() && !c.look_pending && c.unconfirmed.empty());
  });
}

TENSORHUB_DECL std::optional<pull_task> pull::first_look(channel_record& c, source_record& from,
                                                         time_point now) {
  // Chunks that were read ahead wait for the block, which could not be posted before.
  const bool has_read_ahead = !c.reads.empty() || !c.unconfirmed.empty();
  if ((from.retiring && !has_read_ahead) || now < from.next_poll) return std::nullopt;
  from.state = source_state::reading;
  if (!from.facts.receiving || from.seen) return pull_task{pull_task::kind_type::block, 0};
  c.look_pending = true;
  return pull_task{pull_task::kind_type::header, 0};
}

TENSORHUB_DECL std::optional<pull_task> pull::look_again(channel_record& c, source_record& from,
                                                         bool may_take, time_point now) {
  if (c.look_pending) return std::nullopt;
  const bool may_have_news = !from.complete && !from.map_pending && !from.retiring;
  const bool polls = may_have_news && !may_take && !missing_.empty() && now >= from.next_poll;
  const bool chases = may_chase(c);
  if (!polls && !chases && !wants_header(c, may_take, now)) return std::nullopt;
  c.look_pending = true;
  look_behind(c, chases);
  if (chases || !may_have_news) return pull_task{pull_task::kind_type::header, 0};
  from.map_pending = true;
  return pull_task{pull_task::kind_type::map, 0};
}

TENSORHUB_DECL bool pull::may_read_ahead(const source_record& from) const {
  const pull_source& facts = from.facts;
  const std::size_t most = facts.far ? options_.far_window_chunks : 1;
  if (options_.open || facts.receiving || from.retiring || (options_.needs_root && !facts.root)) return false;
  if (states_.empty() || states_.size() > most || missing_.count() < states_.size()) return false;
  return std::equal(
      facts.segments.begin(), facts.segments.end(), layout_->segments().begin(), layout_->segments().end(),
      [](const remote_region& told, const layout_segment& segment) { return told.bytes >= segment.bytes; });
}

TENSORHUB_DECL std::optional<pull_task> pull::read_ahead(channel_id id, time_point now) {
  channel_record& c = channels_[id];
  source_record& from = sources_[c.slot];
  if (from.state == source_state::unknown) {
    from.state = source_state::ahead;
    from.complete = true;
    from.segments = from.facts.segments;
    from.ahead_through = id;
    from.early.assign(states_.size(), std::nullopt);
  }
  if (room(c, now) > 0 && find_chunk(c, from, now)) {
    take(c, *c.found, now);
    return pull_task{pull_task::kind_type::chunk, *c.found};
  }
  const bool is_in_flight = !c.reads.empty();
  if (is_in_flight ? !looks_last(c, control_offsets::of(*layout_).total_bytes) : c.unconfirmed.empty())
    return std::nullopt;
  from.state = source_state::reading;
  look_behind(c, is_in_flight);
  return pull_task{pull_task::kind_type::block, 0};
}

TENSORHUB_DECL bool pull::check_early(source_slot slot) {
  std::vector<std::optional<digest128>>& early = sources_[slot].early;
  for (chunk_index i = 0; i < early.size(); ++i) {
    const auto digest = std::exchange(early[i], std::nullopt);
    if (digest && *digest != table_[i]) return lost(slot, errc::corrupt, without_its_digest(i), i);
  }
  return true;
}

TENSORHUB_DECL bool pull::wants_header(const channel_record& c, bool may_take, time_point now) const {
  if (c.unconfirmed.empty()) return false;
  if (c.unconfirmed.size() >= options_.confirm_every || confirmed_ == 0) return true;
  return now >= c.oldest_unconfirmed + options_.confirm_after || (c.reads.empty() && !may_take);
}

TENSORHUB_DECL bool pull::may_chase(const channel_record& c) const noexcept {
  return missing_.empty() && !c.reads.empty() && c.proven.empty() && looks_last(c, sizeof(control_header));
}

TENSORHUB_DECL bool pull::looks_last(const channel_record& c, std::uint64_t bytes) const noexcept {
  return bytes <= c.ordered_read_bytes && detail::all_of(c.reads, [&](const read_record& read) {
           return layout_->slice(read.chunk).bytes <= c.ordered_read_bytes;
         });
}

TENSORHUB_DECL void pull::look_behind(channel_record& c, bool looks_last) {
  c.confirming = std::exchange(c.unconfirmed, {});
  if (!looks_last) return;
  for (const read_record& read : c.reads) c.chased.push_back(read.chunk);
}

TENSORHUB_DECL void pull::confirm_looked_at(channel_record& c, source_record& from) {
  for (const chunk_index chunk : c.confirming) confirm(chunk, from);
  c.confirming.clear();
  c.proven.insert(c.proven.end(), c.chased.begin(), c.chased.end());
  c.chased.clear();
}

TENSORHUB_DECL bool pull::look_arrived(channel_id id, completion_status status,
                                       std::span<const std::byte> bytes, bool with_map, time_point now) {
  channel_record& c = channels_[id];
  c.look_pending = false;
  source_record& from = sources_[c.slot];
  if (from.state == source_state::lost) return false;
  const auto header = status == completion_status::ok ? read_control_header(bytes) : std::nullopt;
  if (from.state == source_state::reading && header && is_early(*header, from.facts)) {
    from.state = source_state::unknown;
    wait_longer(from, now);
    return false;
  }
  if (status != completion_status::ok)
    return lost(c.slot, errc_of(status), "reading the control block again: " + text(status));
  if (!header) return lost(c.slot, errc::contract_broken, "the source no longer shows a control block");
  if (!matches(*header, from)) return lost(c.slot, errc::contract_broken, changed(*header, from.facts));
  if (from.state == source_state::reading) {
    from.seen = true;
    from.state = source_state::unknown;
    from.next_poll = now;
    return false;
  }
  confirm_looked_at(c, from);
  bool news = false;
  if (header->state == static_cast<std::uint64_t>(control_state::shown) && !open_.is_open) {
    news = !std::exchange(from.complete, true);
    from.may_have = from.may_have || news;
  } else if (with_map && bytes.size() >= map_bytes()) {
    news = apply_map(c.slot, bytes, now);
  }
  return news && on_offer(from) > room(c, now);
}

TENSORHUB_DECL void pull::confirm(chunk_index chunk, source_record& from) {
  const std::uint64_t bytes = layout_->slice(chunk).bytes;
  states_[chunk] = chunk_state::confirmed;
  ++confirmed_;
  confirmed_bytes_ += bytes;
  ++from.chunks;
  from.bytes += bytes;
  fresh_.push_back(chunk);
}

TENSORHUB_DECL bool pull::apply_map(source_slot slot, std::span<const std::byte> bytes, time_point now) {
  source_record& from = sources_[slot];
  bool news = false;
  scratch_.resize(from.map.size());
  read_control_map(bytes, scratch_);
  if (open_.is_open && options_.needs_root) learn_digests(slot, bytes);
  for (std::size_t i = 0; i < scratch_.size(); ++i) {
    news = news || (scratch_[i] & ~from.map[i] & missing_.word(i)) != 0;
    from.map[i] |= scratch_[i];
  }
  if (!news) {
    wait_longer(from, now);
    return false;
  }
  from.may_have = true;
  from.poll_interval = shortest_interval();
  from.next_poll = now + from.poll_interval;
  return true;
}

TENSORHUB_DECL void pull::learn_digests(source_slot from, std::span<const std::byte> bytes) {
  const std::uint64_t first = control_offsets::of(*layout_).digests;
  for (std::size_t word = 0; word < scratch_.size(); ++word) {
    for (std::uint64_t left = scratch_[word]; left != 0; left &= left - 1) {
      const std::uint64_t bit = left & (~left + 1);
      const std::size_t chunk = word * 64 + static_cast<std::size_t>(std::countr_zero(left));
      if (chunk >= table_.size()) break;
      digest128 shown;
      std::memcpy(static_cast<void*>(&shown), bytes.data() + first + chunk * sizeof shown, sizeof shown);
      if (shown && !table_[chunk]) {
        table_[chunk] = shown;
        open_.shown_by[chunk] = from;
        --open_.lacking;
      }
      if (!shown || shown != table_[chunk]) scratch_[word] &= ~bit;
    }
  }
}

TENSORHUB_DECL void pull::forget_digests_of(source_slot from) {
  for (chunk_index i = 0; open_.is_open && i < open_.shown_by.size(); ++i) {
    if (table_[i] && open_.shown_by[i] == from && states_[i] == chunk_state::missing) forget_digest(i);
  }
}

TENSORHUB_DECL void pull::forget_digest(chunk_index chunk) {
  if (table_[chunk]) ++open_.lacking;
  table_[chunk] = {};
  for (source_record& each : sources_) {
    if (!each.map.empty()) each.map[chunk / 64] &= ~(1ull << (chunk % 64));
  }
}

TENSORHUB_DECL void pull::wait_longer(source_record& from, time_point now) {
  from.next_poll = now + std::max(from.poll_interval, shortest_interval());
  from.poll_interval = std::clamp(2 * from.poll_interval, shortest_interval(), options_.poll_longest);
}

TENSORHUB_DECL duration pull::shortest_interval() const noexcept {
  return std::clamp(usual_ / options_.looks_per_read, options_.poll_shortest, options_.poll_longest);
}

TENSORHUB_DECL std::size_t pull::room(const channel_record& c, time_point now) const noexcept {
  const auto left = [](std::size_t most, std::size_t used) { return most - std::min(most, used); };
  if (sources_[c.slot].facts.far) return left(options_.far_window_chunks, c.reads.size());
  if (starting_until(c.slot, now) != time_point::never()) return 0;
  const lane_record& lane = lanes_[c.lane];
  std::size_t of_lane = left(options_.window_chunks, lane.in_flight);
  const duration usual = sources_[c.slot].usual;
  if (usual.count() == 0 || usual > options_.slow_shortest / 4)
    of_lane = std::min(of_lane, left(options_.cautious_window_chunks, c.reads.size()));
  if (of_lane == 0) return 0;
  std::size_t useful = 0;
  for (const channel_id other : lane.channels) {
    const source_record& from = sources_[channels_[other].slot];
    useful += from.state == source_state::believed && !from.retiring && !from.facts.far ? 1 : 0;
  }
  // Several sources share the window, so that a slow source cannot fill it.
  if (useful <= 1) return of_lane;
  const std::size_t share = std::max<std::size_t>(1, options_.window_chunks / useful);
  return std::min(of_lane, left(share, c.reads.size()));
}

TENSORHUB_DECL std::uint64_t pull::on_offer(const source_record& from) const noexcept {
  if (from.complete) return missing_.count();
  return missing_.count_to(missing_.count(), [&](std::size_t word) { return from.map[word]; });
}

TENSORHUB_DECL std::optional<chunk_index> pull::find_chunk(channel_record& c, source_record& from,
                                                           time_point now) {
  c.found.reset();
  c.defers_until = time_point::never();
  if (from.retiring || missing_.empty()) return std::nullopt;
  std::erase_if(preferred_, [this](chunk_index i) { return states_[i] == chunk_state::confirmed; });
  const auto is_there = [&](chunk_index i) {
    return states_[i] == chunk_state::missing && (from.complete || (from.map[i / 64] >> (i % 64) & 1) != 0);
  };
  if (const auto wanted = detail::find_if(preferred_, is_there); wanted != preferred_.end())
    return c.found = *wanted;
  if (from.complete) {
    c.found = find_in_complete(c, from, now);
  } else {
    if (!has_complete_source())
      c.found = missing_.first_from(
          start_, [&](std::size_t word) { return from.map[word] & ~elsewhere(word, from); });
    if (!c.found) c.found = missing_.first_from(start_, [&](std::size_t word) { return from.map[word]; });
    from.may_have = c.found.has_value();
  }
  return c.found;
}

TENSORHUB_DECL std::optional<chunk_index> pull::find_in_complete(channel_record& c, source_record& from,
                                                                 time_point now) {
  if (!std::exchange(from.begun, true)) from.cursor = from.facts.first % states_.size();
  const auto rare = [&](std::size_t word) { return ~elsewhere(word, from); };
  if (states_[from.cursor] == chunk_state::missing && (rare(from.cursor / 64) >> (from.cursor % 64) & 1) != 0)
    return from.cursor;
  const bool is_reading = lanes_[c.lane].in_flight > 0;
  const bool may_wait = is_reading && now < busy_until(c) && !has_complete_source(&from);
  const std::uint64_t left_to_others = most_left_to_others(c.slot);
  const bool has_few = !from.waited_in_vain && missing_.count_to(left_to_others, rare) <= left_to_others;
  if (!may_wait || !has_few)
    if (const auto other = missing_.draw(random_, rare)) {
      from.waited_in_vain = from.waited_in_vain || (has_few && is_reading);
      return other;
    }
  if (may_wait) {
    c.defers_until = busy_until(c);
    return std::nullopt;
  }
  return missing_.first_from(from.cursor, [](std::size_t) { return ~0ull; });
}

TENSORHUB_DECL bool pull::may_only_start(const source_record& from) const noexcept {
  return from.usual.count() == 0 && from.complete &&
         detail::any_of(sources_, [&from](const source_record& s) {
           return &s != &from && s.facts.receiving && !s.complete && s.state != source_state::lost &&
                  !s.retiring;
         });
}

TENSORHUB_DECL time_point pull::starting_until(source_slot slot, time_point now) const noexcept {
  if (!may_only_start(sources_[slot]) || reads_of(slot) == 0) return time_point::never();
  const time_point until = sources_[slot].first_posted + 2 * options_.slow_shortest;
  return now < until ? until : time_point::never();
}

TENSORHUB_DECL std::size_t pull::reads_of(source_slot slot) const noexcept {
  std::size_t reads = 0;
  for (const channel_record& c : channels_) reads += c.slot == slot ? c.reads.size() : 0;
  return reads;
}

TENSORHUB_DECL std::uint64_t pull::most_left_to_others(source_slot slot) const noexcept {
  if (sources_[slot].facts.far) return 0;  // the others of this datacenter do not read it
  std::uint64_t readers = 0;
  for (const source_record& s : sources_)
    readers += s.state == source_state::believed && !s.complete && !s.retiring ? 1 : 0;
  return readers * std::min(reads_of(slot) + 1, most_left_to_each);
}

TENSORHUB_DECL bool pull::has_complete_source(const source_record* without) const noexcept {
  return detail::any_of(sources_, [without](const source_record& s) {
    return &s != without && s.state == source_state::believed && s.complete && !s.retiring;
  });
}

TENSORHUB_DECL std::uint64_t pull::elsewhere(std::size_t word, const source_record& without) const noexcept {
  std::uint64_t bits = 0;
  for (const source_record& s : sources_) {
    if (&s == &without || s.state != source_state::believed || s.retiring) continue;
    if (s.complete) return ~0ull;
    bits |= s.map[word];
  }
  return bits;
}

TENSORHUB_DECL void pull::take(channel_record& c, chunk_index chunk, time_point now) {
  missing_.take(chunk);
  states_[chunk] = chunk_state::in_flight;
  source_record& from = sources_[c.slot];
  if (from.usual.count() == 0 && reads_of(c.slot) == 0) from.first_posted = now;
  c.reads.push_back({chunk, now});
  from.cursor = chunk + 1 == states_.size() ? 0 : chunk + 1;
  if (!from.facts.far) ++lanes_[c.lane].in_flight;
  lanes_[c.lane].last_posted = now;
  touched_ = true;
}

TENSORHUB_DECL time_point pull::end_read(channel_record& c, chunk_index chunk) {
  const auto read = detail::find(c.reads, chunk, &read_record::chunk);
  if (read == c.reads.end()) return {};
  const time_point posted = read->posted;
  c.reads.erase(read);
  if (!sources_[c.slot].facts.far) --lanes_[c.lane].in_flight;
  return posted;
}

TENSORHUB_DECL void pull::give_back(chunk_index chunk) {
  states_[chunk] = chunk_state::missing;
  missing_.give_back(chunk);
  for (source_record& s : sources_) s.may_have = s.state == source_state::believed;
}

TENSORHUB_DECL void pull::drop_slow_source(const channel_record& idle, const source_record& able,
                                           time_point now) {
  const auto slow = find_slow_source(idle, able);
  if (!slow || now < slow->due) return;
  lose_source(slow->slot, errc::timed_out,
              "reading chunk " + std::to_string(slow->oldest.chunk) + " took " +
                  std::to_string((now - slow->oldest.posted).count() / 1'000'000) +
                  " ms, and another source is much faster",
              slow->oldest.chunk);
}

TENSORHUB_DECL std::optional<pull::slow_source> pull::find_slow_source(const channel_record& idle,
                                                                       const source_record& able) const {
  if (!missing_.empty() || !idle.reads.empty() || able.usual.count() == 0 || able.retiring) return {};
  const duration patience = std::max(options_.slow_shortest, options_.slow_factor * able.usual);
  std::optional<slow_source> out;
  for (const channel_record& slow : channels_) {
    if (slow.slot == idle.slot || slow.reads.empty() || sources_[slow.slot].state == source_state::lost)
      continue;
    if (sources_[slow.slot].complete && !able.complete) continue;
    const lane_record& reader = lanes_[slow.lane];
    if (reader.is_away) continue;
    const read_record& oldest = slow.reads.front();
    if (!able.complete && (able.map[oldest.chunk / 64] >> (oldest.chunk % 64) & 1) == 0) continue;
    const time_point due = std::max(oldest.posted, reader.attends_since) + patience;
    if (!out || due < out->due) out = slow_source{slow.slot, oldest, due};
  }
  return out;
}

TENSORHUB_DECL duration pull::stall_patience() const noexcept {
  const bool is_certain = detail::any_of(sources_, [](const source_record& s) {
    return s.state != source_state::lost && !s.retiring && (s.complete || !s.facts.receiving);
  });
  if (is_certain || !stall_.of_orphans || *stall_.of_orphans >= max_orphan_stalls)
    return options_.stall_timeout;
  return std::min(options_.stall_timeout, std::max(options_.orphan_timeout, options_.slow_factor * usual_));
}

TENSORHUB_DECL bool pull::lost(source_slot slot, errc reason, std::string detail,
                               std::optional<chunk_index> chunk) {
  lose_source(slot, reason, std::move(detail), chunk);
  return false;
}

TENSORHUB_DECL std::string pull::without_its_digest(chunk_index chunk) const {
  const auto tensor = layout_->segments()[layout_->slice(chunk).segment].tensor;
  return "chunk " + std::to_string(chunk) +
         (tensor ? " of tensor '" + layout_->tensors()[*tensor].name + "'" : " of the small tensors") +
         " does not have its published digest: was it changed before unpublish() had returned?";
}

TENSORHUB_DECL bool pull::matches(const control_header& header, const source_record& from) noexcept {
  // A source that has been seen complete may still be `receiving` here: bytes that another lane read earlier
  // may arrive later.
  const bool state =
      header.state == static_cast<std::uint64_t>(control_state::shown) ||
      (header.state == static_cast<std::uint64_t>(control_state::receiving) && from.facts.receiving);
  return state && header.holder == from.facts.holder.value && header.epoch == from.facts.epoch &&
         header.version == from.facts.version.value;
}

TENSORHUB_DECL bool pull::is_early(const control_header& header, const pull_source& facts) noexcept {
  return facts.receiving && header.holder == facts.holder.value &&
         (header.epoch < facts.epoch ||
          (header.epoch == facts.epoch && header.state == static_cast<std::uint64_t>(control_state::empty)));
}

TENSORHUB_DECL std::string pull::changed(const control_header& header, const pull_source& facts) {
  if (header.holder != facts.holder.value) return "another process has replaced the source";
  return "the source withdrew version " + to_string(facts.version) + " during the read (epoch " +
         std::to_string(facts.epoch) + " -> " + std::to_string(header.epoch) + ")";
}

TENSORHUB_DECL errc pull::errc_of(completion_status status) noexcept {
  return status == completion_status::local_error ? errc::transport_failed : errc::source_lost;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
