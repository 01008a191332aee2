#pragma once
/// \file bounds.hpp
/// How much a reference server remembers at most, whoever asks it to.
///
/// A worker that would take it beyond one of these is refused with `limit_exceeded` and a sentence that names
/// the option; what the server knew before stays as it was, and nothing is kept of who was refused. Together
/// with the bounds on one message (config.hpp) they bound the server's memory: the defaults suit a machine
/// with some GiB to spare.

#include <cstddef>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct catalog_bounds {
  std::size_t workers = limits::workers;            ///< joined at one time
  std::size_t models = limits::models;              ///< that have workers
  std::size_t replicas = limits::replicas;          ///< of one model
  std::size_t layout_bytes = limits::layout_bytes;  ///< of all layouts: names, shapes, places
  /// Records that exist once per shard: of every model, for itself, each replica and each version.
  std::size_t shard_records = limits::shard_records;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
