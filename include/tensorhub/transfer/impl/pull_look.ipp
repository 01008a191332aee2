#pragma once
/// \file pull_look.ipp
/// Looks at the control blocks of sources: when they are read, and what is believed of what they show.
/// Definitions of pull.hpp.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/transfer/pull.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL void pull::commit(digest128 root) {
  if (!options_.open || digests_.root()) return;
  digests_.set_root(root);
  for (source_record& each : sources_) each.facts.root = root;
  stalls_.begin_anew();
  if (!options_.needs_root) settle();
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
  return forgets ? digests_.may_doubt() : awaits;
}

TENSORHUB_DECL std::uint64_t pull::map_bytes() const noexcept {
  const control_offsets at = control_offsets::of(*layout_);
  return options_.open ? at.segments : at.map_end();
}

TENSORHUB_DECL bool pull::block_arrived(channel_id id, completion_status status,
                                        std::span<const std::byte> block, digest128 root, time_point now) {
  channel_record& c = channels_[id];
  const source_slot slot = c.slot;
  source_record& from = sources_[slot];
  if (from.state != source_state::reading) return false;
  if (status != completion_status::ok)
    return lost(slot, errc_of(status), "reading the control block: " + text(status));
  from.times.add(now - c.look_posted);
  if (block.size() < control_offsets::of(*layout_).total_bytes)
    return lost(slot, errc::protocol_mismatch, "short control block");
  const auto header = read_control_header(block);
  if (!header || header->layout_low != layout_->digest().low ||
      header->layout_high != layout_->digest().high || header->chunk_count != layout_->chunk_count() ||
      header->segment_count != layout_->segments().size()) {
    return lost(slot, errc::protocol_mismatch, "what was read is not a control block of this layout");
  }
  if (!matches(*header, from)) return lost(slot, code_of_change(*header, from), changed(*header, from.facts));
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
  if (digests_.empty() && from.facts.root) digests_.adopt(read_control_digests(block, *layout_));
  if (!check_early(slot)) return false;
  if (!digests_.empty() && !options_.open && !present_.is_searched()) find_present();
  from.state = source_state::believed;
  from.complete = header->state == static_cast<std::uint64_t>(control_state::shown) && !digests_.is_open();
  from.may_have = from.complete;
  if (!from.complete) from.map.assign(missing_.words(), 0);
  from.poll_interval = options_.poll_shortest;
  from.next_poll = now;
  stalls_.begin_anew(now);
  if (digests_.is_open()) apply_map(slot, block, now);
  confirm_looked_at(c, from);
  return true;
}

TENSORHUB_DECL bool pull::map_arrived(channel_id id, completion_status status,
                                      std::span<const std::byte> bytes, time_point now) {
  sources_[channels_[id].slot].map_pending = false;
  return look_arrived(id, status, bytes, true, now);
}

TENSORHUB_DECL std::optional<pull_task> pull::first_look(channel_record& c, source_record& from,
                                                         time_point now) {
  // Chunks that were read ahead wait for the block, which could not be posted before.
  const bool has_read_ahead = !c.reads.empty() || !c.unconfirmed.empty();
  if ((from.retiring && !has_read_ahead) || now < from.next_poll) return std::nullopt;
  from.state = source_state::reading;
  c.look_posted = now;
  if (!from.facts.receiving || from.seen) return pull_task{pull_task::kind_type::block, 0};
  c.look_pending = true;
  return pull_task{pull_task::kind_type::header, 0};
}

TENSORHUB_DECL std::optional<pull_task> pull::look_again(channel_record& c, source_record& from,
                                                         bool may_take, time_point now) {
  if (c.look_pending) return std::nullopt;
  const bool may_have_news = !from.complete && !from.map_pending && !from.retiring;
  const time_point next_poll = missing_.empty() ? asks_for_slow(c, from) : from.next_poll;
  const bool polls = may_have_news && !may_take && now >= next_poll;
  const bool chases = may_chase(c);
  if (!polls && !chases && !wants_header(c, may_take, now)) return std::nullopt;
  c.look_pending = true;
  c.look_posted = now;
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
  c.look_posted = now;
  look_behind(c, is_in_flight);
  return pull_task{pull_task::kind_type::block, 0};
}

TENSORHUB_DECL bool pull::check_early(source_slot slot) {
  std::vector<std::optional<digest128>>& early = sources_[slot].early;
  for (chunk_index i = 0; i < early.size(); ++i) {
    const auto digest = std::exchange(early[i], std::nullopt);
    if (digest && *digest != digests_.of(i)) return lost(slot, errc::corrupt, without_its_digest(i), i);
  }
  return true;
}

TENSORHUB_DECL bool pull::wants_header(const channel_record& c, bool may_take, time_point now) const {
  if (c.unconfirmed.empty()) return false;
  if (c.unconfirmed.size() >= options_.confirm_every || confirmed_ == 0) return true;
  return now >= c.oldest_unconfirmed + options_.confirm_after || (c.reads.empty() && !may_take);
}

TENSORHUB_DECL bool pull::may_chase(const channel_record& c) const noexcept {
  const source_record& from = sources_[c.slot];
  const bool is_useful = missing_.empty() || (from.facts.far && from.complete);
  return is_useful && !c.reads.empty() && c.proven.empty() && looks_last(c, sizeof(control_header));
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
  from.times.add(now - c.look_posted);
  if (!header) return lost(c.slot, errc::contract_broken, "the source no longer shows a control block");
  if (!matches(*header, from))
    return lost(c.slot, code_of_change(*header, from), changed(*header, from.facts));
  if (from.state == source_state::reading) {
    from.seen = true;
    from.state = source_state::unknown;
    from.next_poll = now;
    return false;
  }
  confirm_looked_at(c, from);
  bool news = false;
  if (header->state == static_cast<std::uint64_t>(control_state::shown) && !digests_.is_open()) {
    news = !std::exchange(from.complete, true);
    from.may_have = from.may_have || news;
  } else if (with_map && bytes.size() >= map_bytes()) {
    news = apply_map(c.slot, bytes, now);
  }
  return news && on_offer(from) > room(c, now);
}

TENSORHUB_DECL bool pull::apply_map(source_slot slot, std::span<const std::byte> bytes, time_point now) {
  source_record& from = sources_[slot];
  bool news = false;
  scratch_.resize(from.map.size());
  read_control_map(bytes, scratch_);
  if (digests_.is_open() && options_.needs_root) learn_digests(slot, bytes);
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
      if (chunk >= states_.size()) break;
      digest128 shown;
      std::memcpy(static_cast<void*>(&shown), bytes.data() + first + chunk * sizeof shown, sizeof shown);
      if (!digests_.learn(chunk, shown, from)) scratch_[word] &= ~bit;
    }
  }
}

TENSORHUB_DECL void pull::forget_digests_of(source_slot from) {
  for (chunk_index i = 0; digests_.is_open() && i < states_.size(); ++i) {
    if (states_[i] == chunk_state::missing && digests_.was_shown_by(i, from)) forget_digest(i);
  }
}

TENSORHUB_DECL void pull::forget_digest(chunk_index chunk) {
  digests_.forget(chunk);
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

TENSORHUB_DECL std::string pull::without_its_digest(chunk_index chunk) const {
  return layout_->text_of(chunk) +
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

TENSORHUB_DECL errc pull::code_of_change(const control_header& header, const source_record& from) noexcept {
  const pull_source& facts = from.facts;
  const bool shows_other = header.epoch == facts.epoch && header.version != facts.version.value;
  const bool receives = facts.receiving && !from.complete;
  const bool has_ended = receives && header.holder == facts.holder.value && !shows_other;
  return has_ended ? errc::unavailable : errc::contract_broken;
}

TENSORHUB_DECL std::string pull::changed(const control_header& header, const pull_source& facts) {
  if (header.holder != facts.holder.value) return "another process has replaced the source";
  if (header.epoch == facts.epoch)
    return "the source shows version " + to_string(facts.version) +
           " no longer: its own update to it has failed, or it has withdrawn it";
  return "the source withdrew version " + to_string(facts.version) + " during the read (epoch " +
         std::to_string(facts.epoch) + " -> " + std::to_string(header.epoch) + ")";
}

}  // namespace tensorhub::inline TENSORHUB_MODE
