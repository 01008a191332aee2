#pragma once
/// \file barred_readers.hpp
/// Readers that a worker has cut off for good: the last few, which it tells a new server of.

#include <algorithm>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Adds a reader, once; the oldest is forgotten when there are `limits::barred_readers`.
inline void bar(std::vector<incarnation>& readers, incarnation reader) {
  if (std::ranges::find(readers, reader) != readers.end()) return;
  if (readers.size() == limits::barred_readers) readers.erase(readers.begin());
  readers.push_back(reader);
}

}  // namespace tensorhub::inline TENSORHUB_MODE
