#pragma once
/// \file pull_task.hpp
/// Values that a pull and its shell exchange: sources and options go in, tasks and failures come out.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/memory.hpp"
#include "tensorhub/types/units.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// The facts that a lease states about its source.
struct pull_source {
  lease_id lease{};
  incarnation holder{};
  version_number version{};
  std::uint64_t epoch = 0;
  digest128 root{};  ///< zero: no digests to check
  /// The source may still be receiving, or may not have begun: the pull follows its chunk map.
  bool receiving = false;
  chunk_index first = 0;  ///< the chunk at which to begin, if the source has all chunks
  bool far = false;       ///< the source is in another datacenter: its path has a window of its own
  /// Where the layout's segments lie, as the server was told; empty: only the control block says it.
  std::vector<remote_region> segments{};
};

/// The chunk at which the k-th reader begins: 0, 1/2, 1/4, 3/4, 1/8 ... of all chunks (the sequence of J. van
/// der Corput), so that any number of readers are spread evenly.
[[nodiscard]] constexpr chunk_index first_chunk_of(std::uint64_t ordinal, std::uint64_t chunks) noexcept {
  chunk_index first = 0;
  for (std::uint64_t step = chunks / 2; ordinal != 0 && step != 0; ordinal /= 2, step /= 2)
    first += ordinal % 2 * step;
  return first;
}

/// Number of a source within one pull, in the order of `add_source`.
using source_slot = std::uint32_t;
using channel_id = std::uint32_t;
/// A reading thread: its channels share one window.
using lane_id = std::uint32_t;

struct pull_task {
  enum class kind_type : std::uint8_t {
    block = 0,   ///< read the whole control block (control_offsets::total_bytes), report `block_arrived`
    chunk = 1,   ///< read `chunk` to its place, digest the bytes, report `chunk_arrived`
    header = 2,  ///< read the control block's header again, report `header_arrived`
    map = 3,     ///< read header and chunk map (`pull::map_bytes`), report `map_arrived`
  };
  kind_type kind = kind_type::chunk;
  chunk_index chunk = 0;
};

/// The reason why the pull dropped a source.
struct source_failure {
  source_slot slot = 0;
  lease_id lease{};
  errc reason = errc::source_lost;
  std::string detail{};
  std::optional<chunk_index> chunk{};
  incarnation holder{};  ///< the dropped source
};

struct pull_options {
  /// Integrity is on: a source for whose version the server names no root digest is not read.
  bool needs_root = false;
  /// The version is not whole yet, and no lease has its root: the pull ends only after `commit`.
  bool open = false;
  std::size_t window_chunks = 4;  ///< chunk reads outstanding per lane
  /// The same from one source, until its reads are known to take a fraction of `slow_shortest`: with more, a
  /// slow source would hold chunks that others could bring, and a healthy one would look slow.
  std::size_t cautious_window_chunks = SIZE_MAX;
  /// The most bytes outstanding over a wide-area path, in addition, as whole chunks: two bandwidth-delay
  /// products for all lanes. How many there are is measured (far_window.hpp). Of tensors that are smaller
  /// than a chunk (layout.hpp), so many more are read at a time.
  std::size_t far_window_chunks = 32;
  /// Arrived chunks per header read, when nothing else causes a header read. Readers of this reader wait for
  /// that confirmation; until then they read the chunks from a source further up.
  std::size_t confirm_every = 8;
  /// Longest time from a chunk's arrival to the header read that confirms it.
  duration confirm_after = std::chrono::microseconds{500};
  /// First interval between two map reads without news.
  duration poll_shortest = std::chrono::microseconds{50};
  duration poll_longest = std::chrono::milliseconds{2};  ///< the interval doubles up to this bound
  std::int64_t looks_per_read = 4;  ///< upper bound of map reads in the time that one chunk read takes
  /// Time without a new chunk until `take_stall` reports a stall.
  duration stall_timeout = std::chrono::milliseconds{500};
  /// The stall time-out after a source was lost and only receiving sources are left, or none. A chunk that no
  /// remaining source has will not arrive. This time-out applies to the first few stalls after the loss. The
  /// server may not know yet that a seed is dead; until it does, it lets the reader wait as long as some
  /// worker has the whole version.
  duration orphan_timeout = std::chrono::milliseconds{50};
  /// Time in which no chunk could be taken until `take_shortage` reports it: a multiple of the usual time of
  /// a read, and at least `shortage_shortest`; twice as long after each report.
  std::int64_t shortage_factor = 4;
  duration shortage_shortest = std::chrono::milliseconds{10};
  /// The pull drops a source whose read takes `slow_factor` times as long as the same read from another
  /// source would take, and at least `slow_shortest`, when the last reads of that source are all that is
  /// missing.
  std::int64_t slow_factor = 8;
  duration slow_shortest = std::chrono::milliseconds{50};
};

}  // namespace tensorhub::inline TENSORHUB_MODE
