#pragma once
/// \file control_block.ipp
/// How the holder writes each word of a control block, and how a reader parses a block that came from a peer:
/// definitions of control_block.hpp.

#include <algorithm>
#include <string>
#include <utility>

#include "tensorhub/error.hpp"
#include "tensorhub/transfer/control_block.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL control_offsets control_offsets::of(const layout& shape) noexcept {
  control_offsets at;
  at.bitmap = sizeof(control_header);
  at.digests = at.bitmap + (shape.chunk_count() + 63) / 64 * 8;
  at.segments = at.digests + shape.chunk_count() * sizeof(digest128);
  at.total_bytes = at.segments + shape.segments().size() * sizeof(control_segment);
  return at;
}

TENSORHUB_DECL void control_block::set_holder(incarnation holder) noexcept {
  store(word_of(&control_header::holder), holder.value);
}

TENSORHUB_DECL void control_block::raise_epoch(std::uint64_t epoch) noexcept {
  store(word_of(&control_header::state), static_cast<std::uint64_t>(control_state::empty));
  store(word_of(&control_header::epoch), epoch);
  order_writes();  // those to the weights come later
}

TENSORHUB_DECL void control_block::show_receiving(version_number version, std::uint64_t epoch) noexcept {
  for (std::uint64_t i = 0; i < map_words(); ++i) store(offsets_.bitmap / 8 + i, 0);
  order_writes();  // a bit of the last epoch would be believed in this one
  store(word_of(&control_header::version), version.value);
  store(word_of(&control_header::epoch), epoch);
  store(word_of(&control_header::state), static_cast<std::uint64_t>(control_state::receiving));
}

TENSORHUB_DECL void control_block::add_chunk(chunk_index chunk) noexcept {
  order_writes();
  std::atomic_ref{words_[offsets_.bitmap / 8 + chunk / 64]}.fetch_or(1ull << (chunk % 64),
                                                                     std::memory_order_release);
}

TENSORHUB_DECL void control_block::show(version_number version, std::uint64_t epoch) noexcept {
  order_writes();
  for (std::uint64_t i = 0; i < map_words(); ++i) {
    const std::uint64_t left = chunk_count_ - i * 64;
    store(offsets_.bitmap / 8 + i, left >= 64 ? ~0ull : (1ull << left) - 1);
  }
  store(word_of(&control_header::version), version.value);
  store(word_of(&control_header::epoch), epoch);
  store(word_of(&control_header::state), static_cast<std::uint64_t>(control_state::shown));
}

TENSORHUB_DECL void control_block::set_digests(std::span<const digest128> table) noexcept {
  for (std::uint64_t i = 0; i < chunk_count_; ++i) set_digest(i, i < table.size() ? table[i] : digest128{});
}

TENSORHUB_DECL void control_block::set_digest(chunk_index chunk, digest128 digest) noexcept {
  store(offsets_.digests / 8 + 2 * chunk, digest.low);
  store(offsets_.digests / 8 + 2 * chunk + 1, digest.high);
}

TENSORHUB_DECL void control_block::set_segment(std::size_t segment, const remote_region& region) noexcept {
  control_segment record{region.base, region.bytes, region.key.used_bytes, region.key.bytes};
  std::array<std::uint64_t, sizeof record / 8> raw{};
  std::memcpy(raw.data(), &record, sizeof record);
  const std::size_t first = (offsets_.segments + segment * sizeof record) / 8;
  for (std::size_t i = 0; i < raw.size(); ++i) store(first + i, raw[i]);
}

TENSORHUB_DECL control_block::control_block(incarnation holder, const layout& shape,
                                            std::vector<std::uint64_t> own, std::span<std::uint64_t> borrowed)
    : offsets_{control_offsets::of(shape)},
      chunk_count_{shape.chunk_count()},
      segment_count_{shape.segments().size()},
      own_{std::move(own)},
      words_{own_.empty() ? borrowed : std::span{own_}} {
  if (words_.size() < words_for(shape))
    throw error(errc::invalid_argument, "a control block of this shard needs " +
                                            std::to_string(words_for(shape)) + " words of memory, not " +
                                            std::to_string(words_.size()));
  words_ = words_.first(words_for(shape));
  std::fill(words_.begin(), words_.end(), std::uint64_t{0});
  control_header header;
  header.holder = holder.value;
  header.layout_low = shape.digest().low;
  header.layout_high = shape.digest().high;
  header.chunk_count = chunk_count_;
  header.segment_count = segment_count_;
  std::memcpy(words_.data(), &header, sizeof header);
}

TENSORHUB_DECL std::size_t control_block::word_of(std::uint64_t control_header::*member) noexcept {
  control_header probe;
  return static_cast<std::size_t>(&(probe.*member) - &probe.magic);
}

TENSORHUB_DECL void control_block::order_writes() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
#if defined(__aarch64__)
  // The fence is `dmb ish`, for the CPUs. A NIC need not be in their inner shareable domain.
  asm volatile("dmb osh" ::: "memory");
#endif
}

TENSORHUB_DECL std::optional<control_header> read_control_header(std::span<const std::byte> bytes) noexcept {
  control_header header;
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != control_header::magic_number) return std::nullopt;
  return header;
}

TENSORHUB_DECL void read_control_map(std::span<const std::byte> bytes,
                                     std::span<std::uint64_t> words) noexcept {
  std::memcpy(words.data(), bytes.data() + sizeof(control_header), words.size() * 8);
}

TENSORHUB_DECL std::vector<digest128> read_control_digests(std::span<const std::byte> bytes,
                                                           const layout& shape) {
  std::vector<digest128> table(shape.chunk_count());
  std::memcpy(static_cast<void*>(table.data()), bytes.data() + control_offsets::of(shape).digests,
              table.size() * sizeof(digest128));
  return table;
}

TENSORHUB_DECL std::optional<std::vector<remote_region>> read_control_segments(
    std::span<const std::byte> bytes, const layout& shape) {
  std::vector<remote_region> regions;
  regions.reserve(shape.segments().size());
  const std::byte* at = bytes.data() + control_offsets::of(shape).segments;
  for (const layout_segment& segment : shape.segments()) {
    control_segment record;
    std::memcpy(&record, at, sizeof record);
    at += sizeof record;
    if (record.key_bytes > limits::remote_key_bytes || record.bytes < segment.bytes) return std::nullopt;
    remote_region region;
    region.base = record.base;
    region.bytes = record.bytes;
    region.key.bytes = record.key;
    region.key.used_bytes = static_cast<std::uint8_t>(record.key_bytes);
    regions.push_back(region);
  }
  return regions;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
