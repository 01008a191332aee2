#pragma once
/// \file pull_task.hpp
/// What a pull and its shell say to each other: sources and options in, tasks and failures out. Values.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/units.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// What a lease says of its source.
struct pull_source {
  lease_id lease{};
  incarnation holder{};
  version_number version{};
  std::uint64_t epoch = 0;
  digest128 root{};        ///< zero: no digests to check
  bool receiving = false;  ///< may still be receiving, or not even have begun: its map is to be followed
  chunk_index first = 0;   ///< of a source that has everything: where to begin there
  bool far = false;        ///< in another datacenter: its path has a window of its own
};

/// Where the k-th reader begins: at 0, 1/2, 1/4, 3/4, 1/8 ... of the chunks (J. van der Corput's sequence),
/// so that any number of readers are spread evenly.
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
    chunk = 1,   ///< read `chunk` to its place, digest it, report `chunk_arrived`
    header = 2,  ///< read the control block's header again, report `header_arrived`
    map = 3,     ///< read header and chunk map (control_offsets::map_end() bytes), report `map_arrived`
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
  incarnation holder{};  ///< who it was
};

struct pull_options {
  std::size_t window_chunks = 4;  ///< chunk reads outstanding per lane
  /// The same over a wide-area path, besides: all lanes' 1-2 bandwidth-delay products.
  std::size_t far_window_chunks = 32;
  std::size_t least_share = 1;  ///< of the window, for each of several sources
  /// Arrived chunks per header read, when there is no other reason for one. Readers of this reader wait for
  /// it, and read from further up what they do not know to be here.
  std::size_t confirm_every = 8;
  duration confirm_after = std::chrono::microseconds{500};  ///< at the latest, since a chunk has arrived
  duration poll_shortest = std::chrono::microseconds{50};   ///< between two looks at a map without news
  duration poll_longest = std::chrono::milliseconds{2};     ///< the interval doubles up to here
  std::int64_t looks_per_read = 4;  ///< at most so many looks in the time that one chunk read takes
  duration stall_timeout = std::chrono::milliseconds{500};  ///< without a chunk, until `take_stall`
  /// The same once a source is gone and only receiving ones are left, or none: what nobody of them has will
  /// not come. For the first few stalls after that: the server, which may not know yet that a seed is dead,
  /// lets the reader wait as long as somebody has everything.
  duration orphan_timeout = std::chrono::milliseconds{50};
  /// A source whose read takes this many times as long as another one's would, and `slow_shortest`, is given
  /// up when its last reads are all that is left to wait for.
  std::int64_t slow_factor = 8;
  duration slow_shortest = std::chrono::milliseconds{50};
};

}  // namespace tensorhub::inline TENSORHUB_MODE
