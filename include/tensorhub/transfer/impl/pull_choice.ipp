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
  const auto each_near = [&](auto&& see) {
    for (const channel_id id : lane.channels) {
      const source_record& from = sources_[channels_[id].slot];
      if (from.state == source_state::believed && !from.retiring && !from.facts.far)
        see(from, channels_[id].reads.size());
    }
  };
  each_near([&](const source_record& from, std::size_t) {
    if (from.may_have && from.times.usual.count() != 0)
      out.quickest = std::min(out.quickest, from.times.usual);
  });
  std::size_t sources = 0;
  each_near([&](const source_record& from, std::size_t) { sources += out.is_slow(from) ? 0 : 1; });
  sources = std::max<std::size_t>(1, sources);
  out.share = std::max<std::size_t>(1, options_.window_chunks / sources);
  out.most = (options_.window_chunks + sources - 1) / sources;
  out.of_shares = out.reads = lane.in_flight;
  each_near([&](const source_record& from, std::size_t reads) {
    if (out.is_slow(from)) out.reads -= reads;
    out.of_shares -= out.is_slow(from) ? reads : reads - std::min(reads, out.share);
  });
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
  const std::size_t reads = c.reads.size();
  std::size_t out = left(options_.window_chunks + most_reads_beside, lane.in_flight);
  if (use.is_slow(from)) return std::min(out, left(1, reads));
  const std::size_t of_share = std::min(left(options_.window_chunks, use.of_shares), left(use.share, reads));
  const std::size_t beyond = std::min(left(options_.window_chunks, use.reads), left(use.most, reads));
  out = std::min(out, std::max(of_share, beyond));
  if (from.times.usual.count() == 0 || from.times.usual > options_.slow_shortest / 4)
    out = std::min(out, left(options_.cautious_window_chunks, reads));
  return out;
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
  if (!slow || !slow->is_elsewhere || now < slow->due) return;
  lose_source(slow->slot, errc::timed_out,
              "reading chunk " + std::to_string(slow->oldest.chunk) +
                  ", or asking whether it is still right, took " +
                  std::to_string((now - slow->oldest.posted).count() / 1'000'000) +
                  " ms, and another source is much faster",
              slow->oldest.chunk);
}

TENSORHUB_DECL std::optional<pull::slow_source> pull::find_slow_source(const channel_record& idle,
                                                                       const source_record& able) const {
  if (!missing_.empty() || able.times.usual.count() == 0 || able.retiring) return {};
  if (!idle.reads.empty() || idle.look_pending) return {};  // its source may be the silent one
  const duration patience = std::max(options_.slow_shortest, options_.slow_factor * able.times.usual);
  std::optional<slow_source> out;
  for (const channel_record& slow : channels_) {
    if (slow.slot == idle.slot || sources_[slow.slot].state == source_state::lost ||
        lanes_[slow.lane].is_away)
      continue;
    const auto oldest = oldest_read(slow);
    if (!oldest) continue;
    const time_point due = std::max(oldest->posted, lanes_[slow.lane].attends_since) + patience;
    const bool is_elsewhere = able.complete || has_reads_of(able, slow.slot);
    if (!out || std::pair{!is_elsewhere, due} < std::pair{!out->is_elsewhere, out->due})
      out = slow_source{slow.slot, *oldest, due, is_elsewhere};
  }
  return out;
}

TENSORHUB_DECL std::optional<pull::read_record> pull::oldest_read(const channel_record& c) noexcept {
  if (!c.reads.empty()) return c.reads.front();
  if (!c.look_pending) return std::nullopt;
  if (!c.confirming.empty()) return read_record{c.confirming.front(), c.look_posted};
  if (!c.unconfirmed.empty()) return read_record{c.unconfirmed.front(), c.look_posted};
  return std::nullopt;
}

TENSORHUB_DECL time_point pull::asks_for_slow(const channel_record& c, const source_record& from) const {
  const auto slow = find_slow_source(c, from);
  if (!slow || slow->is_elsewhere) return time_point::never();
  return std::max(slow->due, from.next_poll);
}

TENSORHUB_DECL bool pull::has_reads_of(const source_record& able, source_slot slot) const noexcept {
  const auto has = [&able](chunk_index chunk) { return (able.map[chunk / 64] >> (chunk % 64) & 1) != 0; };
  return detail::all_of(channels_, [&](const channel_record& c) {
    return c.slot != slot ||
           (detail::all_of(c.reads, [&](const read_record& read) { return has(read.chunk); }) &&
            detail::all_of(c.confirming, has) && detail::all_of(c.unconfirmed, has));
  });
}

}  // namespace tensorhub::inline TENSORHUB_MODE
