#pragma once
/// \file publisher.ipp
/// What publisher.hpp declares.

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/publisher.hpp"
#include "tensorhub/worker/recorder.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

// Validated once: all workers of a publisher share the queue of its log.
TENSORHUB_DECL any_publisher::any_publisher(worker_options options, const worker_policies& policies)
    : worker{options = validated(std::move(options)), policies}, snapshots_{std::move(options), policies} {}

TENSORHUB_DECL void any_publisher::add(std::string name, const void* data,
                                       std::span<const std::uint64_t> dimensions, dtype type) {
  if (snapshots_.used())
    throw snapshots_.failure(errc::invalid_argument,
                             "tensor '" + name + "' was added after the first publish");
  worker::add(std::move(name), data, dimensions, type);
}
TENSORHUB_DECL void any_publisher::add(std::string name, const void* data,
                                       std::initializer_list<std::uint64_t> dimensions, dtype type) {
  add(std::move(name), data, std::span{dimensions.begin(), dimensions.size()}, type);
}

TENSORHUB_DECL snapshot_report any_publisher::publish(version_number version, snapshot_mode how,
                                                      std::chrono::milliseconds timeout) {
  snapshot_report report;
  static_cast<void>(recorder().publish([&] {
    data().forget_digests();  // what is named next has changed since this publish
    if (const auto held = worker::held_version()) {
      throw snapshots_.failure(
          errc::still_published,
          "version " + to_string(held) + " is still published in place: call unpublish() before a snapshot",
          version);
    }
    report = snapshots_.publish(version, how, data(), timeout);
    return publish_report{version, report.bytes, report.digest_seconds, report.seconds};
  }));
  return report;
}

TENSORHUB_DECL unpublish_report any_publisher::unpublish(std::chrono::milliseconds timeout) {
  return snapshots_.unpublish(*this, timeout);
}

TENSORHUB_DECL version_number any_publisher::held_version() {
  return std::max(worker::held_version(), snapshots_.held_version());
}

TENSORHUB_DECL worker_statistics any_publisher::statistics() const {
  worker_statistics all = worker::statistics();
  for (const worker* const each : snapshots_.workers()) {
    worker_statistics seen = each->statistics();
    seen.publishes = seen.unpublishes = {};  // parts of calls, which this worker has counted
    seen.publish = seen.digest = seen.unpublish = {};
    all += seen;
  }
  return all;
}

TENSORHUB_DECL std::uint64_t any_publisher::offloaded_bytes() const {
  std::uint64_t all = worker::offloaded_bytes();
  for (const worker* const each : snapshots_.workers()) all += each->offloaded_bytes();
  return all;
}

TENSORHUB_DECL void any_publisher::interrupt() {
  worker::interrupt();
  for (worker* const each : snapshots_.workers()) each->interrupt();
}

TENSORHUB_DECL unpublish_report any_publisher::leave(std::chrono::milliseconds grace) {
  std::vector<worker*> all = snapshots_.close();
  all.push_back(this);
  return leave_together(all, grace);
}

}  // namespace tensorhub::inline TENSORHUB_MODE
