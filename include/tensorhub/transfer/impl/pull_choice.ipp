#pragma once
/// \file pull_choice.ipp
/// Which chunk is taken from which source, and how many at a time: definitions of pull.hpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/transfer/pull.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL pull::window_use pull::use_of(const lane_record& lane) const noexcept {
  window_use out;
  const auto shares = [this](channel_id id) {
    const source_record& from = sources_[channels_[id].slot];
    return from.state == source_state::believed && !from.retiring && !from.facts.far;
  };
  for (const channel_id id : lane.channels) {
    const duration usual = sources_[channels_[id].slot].times.usual;
    if (usual.count() != 0 && shares(id)) out.quickest = std::min(out.quickest, usual);
  }
  std::size_t slow_reads = 0;
  for (const channel_id id : lane.channels) {
    if (!shares(id)) continue;
    if (out.is_slow(sources_[channels_[id].slot]))
      slow_reads += channels_[id].reads.size();
    else
      ++out.sources;
  }
  out.reads = lane.in_flight - std::min(slow_reads, most_slow_reads);
  return out;
}

TENSORHUB_DECL std::size_t pull::room(const channel_record& c, time_point now) const noexcept {
  const auto left = [](std::size_t most, std::size_t used) { return most - std::min(most, used); };
  const source_record& from = sources_[c.slot];
  if (from.facts.far) {
    const std::uint64_t chunk_bytes = window_chunk_bytes();
    const bool is_ahead = from.state == source_state::ahead;
    const std::uint64_t most_bytes = is_ahead ? options_.far_window_chunks * chunk_bytes : c.window.bytes();
    return std::min(left((most_bytes + chunk_bytes - 1) / chunk_bytes, c.reading_bytes / chunk_bytes),
                    left(most_far_reads(), c.reads.size()));
  }
  if (starting_until(c.slot, now) != time_point::never()) return 0;
  const lane_record& lane = lanes_[c.lane];
  const window_use use = use_of(lane);
  if (use.is_slow(from))
    return std::min(left(1, c.reads.size()), left(options_.window_chunks + most_slow_reads, lane.in_flight));
  std::size_t out = left(options_.window_chunks, use.reads);
  if (from.times.usual.count() == 0 || from.times.usual > options_.slow_shortest / 4)
    out = std::min(out, left(options_.cautious_window_chunks, c.reads.size()));
  if (use.sources <= 1) return out;
  // Several sources share the window, so that one that becomes slow cannot fill it.
  const std::size_t share = (options_.window_chunks + use.sources - 1) / use.sources;
  return std::min(out, left(share, c.reads.size()));
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
  return from.times.usual.count() == 0 && from.complete &&
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
  if (!missing_.empty() || !idle.reads.empty() || able.times.usual.count() == 0 || able.retiring) return {};
  const duration patience = std::max(options_.slow_shortest, options_.slow_factor * able.times.usual);
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

}  // namespace tensorhub::inline TENSORHUB_MODE
