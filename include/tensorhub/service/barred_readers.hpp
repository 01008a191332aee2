#pragma once
/// \file barred_readers.hpp
/// The last few readers that a worker has cut off for good. The worker announces them to a new server.

#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Adds a reader unless it is in the list; removes the oldest when there are `limits::barred_readers`.
inline void bar(std::vector<incarnation>& readers, incarnation reader) {
  if (detail::contains(readers, reader)) return;
  if (readers.size() == limits::barred_readers) readers.erase(readers.begin());
  readers.push_back(reader);
}

}  // namespace tensorhub::inline TENSORHUB_MODE
