#pragma once
/// \file bounds.hpp
/// Upper bounds on the server's memory, whatever clients send.
///
/// A worker whose join would exceed one of these bounds is refused with `limit_exceeded` and a sentence that
/// names the option. The server's state does not change, and nothing is stored about the refused worker.
/// Together with the bounds on one message (config.hpp) they bound the server's memory; the defaults suit a
/// machine with some GiB to spare.

#include <cstddef>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct catalog_bounds {
  std::size_t workers = limits::workers;            ///< that are joined at the same time
  std::size_t models = limits::models;              ///< that have workers
  std::size_t replicas = limits::replicas;          ///< of one model
  std::size_t layout_bytes = limits::layout_bytes;  ///< of all layouts: names, shapes, places
  /// Records that exist once per shard: each model has one for itself, one per replica and one per version.
  std::size_t shard_records = limits::shard_records;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
