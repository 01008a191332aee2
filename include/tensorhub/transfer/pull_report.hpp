#pragma once
/// \file pull_report.hpp
/// Input and output of a transfer as plain values: sources go in, progress and events come out.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transfer/pull_task.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/memory.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// A source as the driver needs it: the facts of the lease, and the addresses to reach it.
struct pull_target {
  pull_source facts{};
  transport_address address{};
  remote_region control{};
  std::string name{};  ///< for reports
};

/// The share of a transfer that one source delivered.
struct source_progress {
  std::string name{};        ///< "replica/shard"
  std::string path{};        ///< how the source is reached; empty: it was not reached
  std::uint64_t chunks = 0;  ///< confirmed
  std::uint64_t bytes = 0;   ///< confirmed
  bool lost = false;
  bool far = false;  ///< in another datacenter
};

struct pull_progress {
  std::uint64_t bytes = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t unchanged_bytes = 0;  ///< of `bytes`, what was here already, and was read from nobody
  std::uint64_t chunks = 0;
  std::uint64_t total_chunks = 0;
  std::vector<source_progress> sources{};  ///< all so far, in the order in which they came
};

/// One chunk read, for traces.
struct chunk_event {
  chunk_index chunk = 0;
  std::string_view source{};  ///< "replica/shard"; valid during the call
  std::size_t lane = 0;
  time_point posted{};
  time_point arrived{};                              ///< after the digest was made
  completion_status status = completion_status::ok;  ///< of the read
};

}  // namespace tensorhub::inline TENSORHUB_MODE
