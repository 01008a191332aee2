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

/// A sample of the chunks that are not among `named` (which is sorted): one at random of each segment, so
/// that a tensor all of which has changed is found, but no more than a 64th of them, and eight at least.
[[nodiscard]] inline std::vector<chunk_index> sample_of_left_out(const layout& shape,
                                                                 std::span<const chunk_index> named,
                                                                 detail::repeatable_random& random) {
  std::vector<chunk_index> drawn;
  std::vector<chunk_index> others;
  const auto draw_from = [&random](std::vector<chunk_index>& from) {
    std::swap(from[random() % from.size()], from.back());
    const chunk_index chunk = from.back();
    from.pop_back();
    return chunk;
  };
  std::vector<chunk_index> here;
  for (chunk_index i = 0; i < shape.chunk_count(); ++i) {
    if (!std::binary_search(named.begin(), named.end(), i)) here.push_back(i);
    const bool is_last = i + 1 == shape.chunk_count() || shape.slice(i + 1).segment != shape.slice(i).segment;
    if (!is_last || here.empty()) continue;
    drawn.push_back(draw_from(here));
    others.insert(others.end(), here.begin(), here.end());
    here.clear();
  }
  const std::size_t most = std::max<std::size_t>(8, (drawn.size() + others.size()) / 64);
  while (drawn.size() > most) static_cast<void>(draw_from(drawn));
  while (drawn.size() < most && !others.empty()) drawn.push_back(draw_from(others));
  return drawn;
}

/// Digests such a sample: readers that have the last version's bytes would not notice that others have
/// changed. Throws `contract_broken` for a chunk that does not have its digest in `table`.
template <integrity Integrity>
void check_left_out(std::span<const digest128> table, std::span<const chunk_index> named, const layout& shape,
                    std::span<const segment_place> places, std::uint64_t seed, std::size_t lanes,
                    detail::repeatable_random& random) {
  const std::vector<chunk_index> drawn = sample_of_left_out(shape, named, random);
  std::vector<digest128> now(table.begin(), table.end());
  digest_again<Integrity>(now, drawn, shape, places, seed, lanes);
  for (const chunk_index chunk : drawn) {
    if (now[chunk] == table[chunk]) continue;
    error_context where;
    where.chunk = chunk;
    throw error(errc::contract_broken,
                shape.text_of(chunk) +
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
