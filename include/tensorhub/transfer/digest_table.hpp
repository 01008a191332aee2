#pragma once
/// \file digest_table.hpp
/// The digests of all chunks of a shard, made by several threads.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "tensorhub/concepts/integrity.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/in_parallel.hpp"
#include "tensorhub/detail/repeatable_random.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transfer/chunk_digests.hpp"
#include "tensorhub/types/layout.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Makes the digests of these chunks anew, and leaves the others in `table`, which has one per chunk.
/// `places` has one entry per segment of the layout. The bytes must not change during the call.
///
/// The threads take CPU-readable chunks one by one, and chunks in device memory in batches. Throws what a
/// device throws (chunk_digests.hpp); the table is then of no use.
template <integrity Integrity>
void digest_again(std::span<digest128> table, std::span<const chunk_index> chunks, const layout& shape,
                  std::span<const segment_place> places, std::uint64_t seed, std::size_t lanes) {
  std::vector<placed_chunk> on_devices;
  std::vector<placed_chunk> on_host;
  for (const chunk_index chunk : chunks) {
    const placed_chunk placed = place_of(shape, places, chunk);
    (placed.device == nullptr ? on_host : on_devices).push_back(placed);
  }
  std::vector<digest128> made(on_devices.size());
  std::atomic<std::size_t> next{0};
  detail::in_parallel(std::min<std::size_t>(lanes, on_host.size() / 8 + 1), [&](std::size_t number) {
    if (number == 0 && !on_devices.empty()) chunk_digests<Integrity>{}.make(seed, on_devices, made);
    for (std::size_t i = next++; i < on_host.size(); i = next++)
      table[on_host[i].chunk] = chunk_digests<Integrity>::by_cpu(seed, on_host[i]);
  });
  for (std::size_t i = 0; i < made.size(); ++i) table[on_devices[i].chunk] = made[i];
}

/// Digests a few of the chunks that are not among `named` (which is sorted), at random, or all if they are
/// few: readers that hold the version before would not notice that the bytes of the others have changed.
/// Throws `contract_broken` for a chunk that does not have its digest in `table`.
template <integrity Integrity>
void check_left_out(std::span<const digest128> table, std::span<const chunk_index> named, const layout& shape,
                    std::span<const segment_place> places, std::uint64_t seed,
                    detail::repeatable_random& random) {
  constexpr std::size_t most = 8;
  std::vector<chunk_index> left_out;
  for (chunk_index i = 0; i < table.size(); ++i)
    if (!std::binary_search(named.begin(), named.end(), i)) left_out.push_back(i);
  std::vector<placed_chunk> drawn;
  for (std::size_t i = 0; i < std::min(most, left_out.size()); ++i) {
    std::swap(left_out[i], left_out[i + random() % (left_out.size() - i)]);
    drawn.push_back(place_of(shape, places, left_out[i]));
  }
  std::vector<digest128> made(drawn.size());
  chunk_digests<Integrity>{}.make(seed, drawn, made);
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (made[i] == table[drawn[i].chunk]) continue;
    error_context where;
    where.chunk = drawn[i].chunk;
    throw error(errc::contract_broken,
                shape.text_of(drawn[i].chunk) +
                    " was left out of changed(), but has other bytes than at the last publish: name every "
                    "tensor that has changed, or publish without changed()",
                std::move(where));
  }
}

/// Makes one digest per chunk, in the order of chunks; the table is empty if integrity is off. Otherwise as
/// `digest_again`.
template <integrity Integrity>
[[nodiscard]] std::vector<digest128> digest_table(const layout& shape, std::span<const segment_place> places,
                                                  std::uint64_t seed, std::size_t lanes) {
  if constexpr (!Integrity::enabled) return {};
  std::vector<digest128> table(shape.chunk_count());
  std::vector<chunk_index> all(table.size());
  std::iota(all.begin(), all.end(), chunk_index{0});
  digest_again<Integrity>(table, all, shape, places, seed, lanes);
  return table;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
