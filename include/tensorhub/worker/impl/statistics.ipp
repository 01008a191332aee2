#pragma once
/// \file statistics.ipp
/// What worker/statistics.hpp declares.

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/worker/statistics.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL worker_statistics& worker_statistics::operator+=(const worker_statistics& other) {
  using counts = outcome_counts worker_statistics::*;
  using number = std::uint64_t worker_statistics::*;
  using times = seconds_histogram worker_statistics::*;
  using self = worker_statistics;
  for (const counts each : {&self::publishes, &self::unpublishes, &self::updates, &self::sources_failed})
    this->*each += other.*each;
  for (const number each : {&self::updates_kept, &self::drains_forced, &self::readers_moved,
                            &self::readers_cut_off, &self::stalls, &self::chunks, &self::unchanged_bytes})
    this->*each += other.*each;
  for (const times each :
       {&self::publish, &self::digest, &self::unpublish, &self::update, &self::wait, &self::pull})
    this->*each += other.*each;
  for (const path_bytes& part : other.received) {
    const auto same = detail::find_if(received, [&](const path_bytes& each) {
      return each.path == part.path && each.crossing == part.crossing;
    });
    if (same == received.end())
      received.push_back(part);
    else
      same->bytes += part.bytes;
  }
  return *this;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
