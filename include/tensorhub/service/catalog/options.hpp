#pragma once
/// \file options.hpp
/// The options of the catalog, and so of a reference server. A plain value; `milliseconds::max()` means for
/// ever.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/service/catalog/bounds.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct catalog_options {
  /// From 1 ms to 60 s, and at most a third of `worker_timeout`.
  std::chrono::milliseconds heartbeat_interval = defaults::heartbeat_interval;
  /// Time without a message after which a worker is declared dead.
  std::chrono::milliseconds worker_timeout = defaults::worker_timeout;
  /// Time without a received chunk after which a reader's source may be given to a waiting reader.
  std::chrono::milliseconds progress_timeout = defaults::progress_timeout;
  /// Time from the decision of an operation until all shards must have called it.
  std::chrono::milliseconds group_timeout = defaults::group_timeout;
  /// A holder that lets go of the version waits so long for a shard that has not called, if no other holder
  /// has room for that shard: the holder's own sources wait for the holder. A new worker waits as long for
  /// another shard's call, if the last call of its group has failed before it could take part.
  std::chrono::milliseconds late_shard_timeout = defaults::late_shard_timeout;
  /// Time after its start during which a server never answers `not_found` and releases no memory, because
  /// workers of an earlier server may not have joined yet. Ends early for a model whose workers are all back.
  std::chrono::milliseconds recovery_grace = defaults::recovery_grace;
  std::size_t retained_versions = 16;  ///< version records (digests) kept of versions that no worker holds
  std::string transport{};             ///< name of the transport that workers must have; empty: any
  std::string integrity{};
  catalog_bounds most{};       ///< on what the catalog stores
  bool log_decisions = false;  ///< writes a log line (debug) for every chosen source, worded as in `why`
};

/// With times that clocks can add.
[[nodiscard]] inline catalog_options validated(catalog_options options) noexcept {
  for (auto* each : {&options.worker_timeout, &options.progress_timeout, &options.group_timeout,
                     &options.late_shard_timeout, &options.recovery_grace})
    *each = detail::bounded(*each);
  const auto longest = std::min(limits::heartbeat_interval, options.worker_timeout / 3);
  options.heartbeat_interval =
      std::clamp(options.heartbeat_interval, std::chrono::milliseconds{1},
                 std::max<std::chrono::milliseconds>(longest, std::chrono::milliseconds{1}));
  return options;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
