#pragma once
/// \file options.hpp
/// The options of the catalog, and so of a reference server. A plain value.

#include <chrono>
#include <cstddef>
#include <string>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog/bounds.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct catalog_options {
  std::chrono::milliseconds heartbeat_interval = defaults::heartbeat_interval;
  /// Silence after which a worker is dead.
  std::chrono::milliseconds worker_timeout = defaults::worker_timeout;
  /// Without a chunk received: then a reader's sources may be given to others, who have none.
  std::chrono::milliseconds progress_timeout = defaults::progress_timeout;
  /// From the decision until all shards have called.
  std::chrono::milliseconds group_timeout = defaults::group_timeout;
  /// After its start a server does not say that something is not there, and lets nobody's memory go: workers
  /// of an earlier one may still be on their way. Ends early for a model whose workers are all back.
  std::chrono::milliseconds recovery_grace = defaults::recovery_grace;
  std::size_t retained_versions = 16;  ///< version records (digests) kept beyond those that somebody holds
  std::string transport{};             ///< policy names that workers must have; empty: any
  std::string integrity{};
  catalog_bounds most{};       ///< of what it remembers
  bool log_decisions = false;  ///< a log line (debug) for every source that is chosen, as `why` tells it
};

}  // namespace tensorhub::inline TENSORHUB_MODE
