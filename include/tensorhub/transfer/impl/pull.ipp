#pragma once
/// \file pull.ipp
/// Which task comes next, and what each report changes: definitions of pull.hpp. Looking at sources is in
/// pull_look.ipp, the choice of chunks in pull_choice.ipp.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/transfer/pull.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL pull::pull(const layout& shape, pull_options options, chunk_index first_chunk)
    : layout_{&shape},
      options_{options},
      states_(shape.chunk_count(), chunk_state::missing),
      missing_{shape.chunk_count()},
      random_{first_chunk},
      present_{shape.chunk_count()},
      digests_{shape.chunk_count(), options.open, options.needs_root} {
  const std::uint64_t chunks = shape.chunk_count();
  start_ = chunks == 0 ? 0 : first_chunk % chunks;
  // An open version may be filled slowly, and what is read of it then is not small.
  if (options.open)
    options_.poll_longest = std::max<duration>(options_.poll_longest, std::chrono::microseconds{chunks});
}

TENSORHUB_DECL source_slot pull::add_source(const pull_source& source) {
  sources_.emplace_back().facts = source;
  if (digests_.root()) sources_.back().facts.root = *digests_.root();
  return static_cast<source_slot>(sources_.size() - 1);
}

TENSORHUB_DECL void pull::retire_source(source_slot slot) {
  if (sources_[slot].state == source_state::lost) return;
  sources_[slot].retiring = true;
  // A long pull sees many sources come and go; only those that it may take from share a lane's window.
  for (lane_record& lane : lanes_)
    std::erase_if(lane.channels, [&](channel_id id) { return channels_[id].slot == slot; });
  forget_digests_of(slot);
  stalls_.lost_source();
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
  stalls_.lost_source();
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
  channels_.back().window = {options_.far_window_chunks, window_chunk_bytes()};
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
    if (!slow) return time_point::never();
    if (slow->is_elsewhere) return slow->due;
    return from.map_pending ? time_point::never() : asks_for_slow(c, from);
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
  if (!digests_.empty() && digest != digests_.of(chunk)) {
    give_back(chunk);
    if (digests_.is_open()) forget_digest(chunk);
    // What was wrong may have been the digest, half of which was read before it was written.
    if (digests_.is_open() && digests_.may_mismatch()) return false;
    return lost(c.slot, errc::corrupt, without_its_digest(chunk), chunk);
  }
  const duration took = std::max(now - posted, duration{1});
  const bool opens_window = may_only_start(from);
  duration& usual = from.times.usual;
  usual = usual.count() == 0 ? took : (3 * usual + took) / 4;
  from.times.add(took);
  if (from.facts.far)
    c.window.arrived(layout_->slice(chunk).bytes, now, std::max(from.times.shortest, c.round_trip));
  usual_ = usual_.count() == 0 ? took : (15 * usual_ + took) / 16;
  stalls_.progressed(now);
  if (is_proven) {
    confirm(chunk, from);
    return opens_window;
  }
  if (from.state != source_state::believed && from.facts.root && digests_.empty()) from.early[chunk] = digest;
  states_[chunk] = chunk_state::unconfirmed;
  if (!is_chased && c.unconfirmed.empty()) c.oldest_unconfirmed = now;
  (is_chased ? c.confirming : c.unconfirmed).push_back(chunk);
  return opens_window;
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
  if (!stalls_.is_due(now, stall_patience()) || done()) return false;
  if (detail::any_of(channels_, [](const channel_record& c) { return !c.reads.empty(); })) return false;
  stalls_.report(now);
  return true;
}

TENSORHUB_DECL bool pull::take_shortage(time_point now) noexcept {
  if (has_complete_source()) {
    stalls_.end_shortage();
    return false;
  }
  if (missing_.empty() || digests_.is_open() || usual_.count() == 0) return false;
  time_point since = stalls_.shortage_reported();
  bool has_room = false;
  for (const lane_record& lane : lanes_) {
    if (lane.is_away && lane.in_flight > 0) return false;  // its reads may have ended
    since = std::max({since, lane.last_posted, lane.attends_since});
    has_room = has_room || use_of(lane).reads < options_.window_chunks;
  }
  if (!has_room) return false;
  return stalls_.take_shortage(now, since,
                               std::max(options_.shortage_shortest, options_.shortage_factor * usual_));
}

TENSORHUB_DECL bool pull::is_idle(source_slot slot) const noexcept {
  const source_record& from = sources_[slot];
  if (from.state == source_state::reading) return false;
  if (from.state != source_state::lost && !from.retiring) return false;
  return detail::all_of(channels_, [slot](const channel_record& c) {
    return c.slot != slot || (c.reads.empty() && !c.look_pending && c.unconfirmed.empty());
  });
}

TENSORHUB_DECL void pull::confirm(chunk_index chunk, source_record& from) {
  ++from.chunks;
  from.bytes += layout_->slice(chunk).bytes;
  note_confirmed(chunk);
}

TENSORHUB_DECL void pull::note_confirmed(chunk_index chunk) {
  states_[chunk] = chunk_state::confirmed;
  ++confirmed_;
  confirmed_bytes_ += layout_->slice(chunk).bytes;
  if (!digests_.empty()) present_.note(chunk, digests_.of(chunk));
  fresh_.push_back(chunk);
}

TENSORHUB_DECL void pull::find_present() {
  std::vector<chunk_index> chunks;
  for (chunk_index i = 0; i < states_.size(); ++i) {
    const digest128 here = present_.table()[i];
    if (!here || here != digests_.of(i) || states_[i] != chunk_state::missing) continue;
    missing_.take(i);
    states_[i] = chunk_state::unchecked;
    chunks.push_back(i);
  }
  present_.check(std::move(chunks));
}

TENSORHUB_DECL std::optional<chunk_index> pull::next_check() {
  const auto is_unchecked = [this](chunk_index i) { return states_[i] == chunk_state::unchecked; };
  const auto wanted = detail::find_if(preferred_, is_unchecked);
  const auto chunk = wanted != preferred_.end() ? std::optional{*wanted} : present_.next_check(is_unchecked);
  if (chunk) states_[*chunk] = chunk_state::checking;
  return chunk;
}

TENSORHUB_DECL bool pull::checked(chunk_index chunk, digest128 digest, time_point now) {
  stalls_.progressed(now);
  if (digest == digests_.of(chunk)) {
    present_.count_right(layout_->slice(chunk).bytes);
    note_confirmed(chunk);
    return false;
  }
  present_.note(chunk, {});
  present_.count_wrong();
  give_back(chunk);
  for (const chunk_index i : present_.is_lost() ? present_.unchecked() : std::span<const chunk_index>{})
    if (states_[i] == chunk_state::unchecked) give_back(i);
  return true;
}

TENSORHUB_DECL void pull::take(channel_record& c, chunk_index chunk, time_point now) {
  missing_.take(chunk);
  states_[chunk] = chunk_state::in_flight;
  source_record& from = sources_[c.slot];
  if (from.times.usual.count() == 0 && reads_of(c.slot) == 0) from.first_posted = now;
  c.reads.push_back({chunk, now});
  c.reading_bytes += layout_->slice(chunk).bytes;
  from.cursor = chunk + 1 == states_.size() ? 0 : chunk + 1;
  if (!from.facts.far) ++lanes_[c.lane].in_flight;
  lanes_[c.lane].last_posted = now;
  present_.overwrite(chunk);
}

TENSORHUB_DECL time_point pull::end_read(channel_record& c, chunk_index chunk) {
  const auto read = detail::find(c.reads, chunk, &read_record::chunk);
  if (read == c.reads.end()) return {};
  const time_point posted = read->posted;
  c.reads.erase(read);
  c.reading_bytes -= layout_->slice(chunk).bytes;
  if (!sources_[c.slot].facts.far) --lanes_[c.lane].in_flight;
  return posted;
}

TENSORHUB_DECL void pull::give_back(chunk_index chunk) {
  states_[chunk] = chunk_state::missing;
  missing_.give_back(chunk);
  for (source_record& s : sources_) s.may_have = s.state == source_state::believed;
}

TENSORHUB_DECL duration pull::stall_patience() const noexcept {
  const bool is_certain = detail::any_of(sources_, [](const source_record& s) {
    return s.state != source_state::lost && !s.retiring && (s.complete || !s.facts.receiving);
  });
  return stalls_.patience(options_, is_certain, usual_);
}

TENSORHUB_DECL bool pull::lost(source_slot slot, errc reason, std::string detail,
                               std::optional<chunk_index> chunk) {
  lose_source(slot, reason, std::move(detail), chunk);
  return false;
}

TENSORHUB_DECL errc pull::errc_of(completion_status status) noexcept {
  return status == completion_status::local_error ? errc::transport_failed : errc::source_lost;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
