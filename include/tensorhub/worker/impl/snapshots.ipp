#pragma once
/// \file snapshots.ipp
/// What worker/snapshots.hpp declares.

#include <algorithm>
#include <chrono>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/worker/snapshots.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct snapshots::slot {
  std::unique_ptr<owned_tensors> memory;  ///< outlives the worker that lends it
  worker shown;
  slot(const data_plane& from, worker_options options, worker_policies policies)
      : memory{from.allocate(from.tensors(), tensor_place::offload_space)},
        shown{std::move(options), std::move(policies), worker_role{.added = true}} {
    const auto tensors = from.tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i)
      shown.add(tensors[i].name, memory->data(i), tensors[i].shape, tensors[i].type);
  }
};

TENSORHUB_DECL snapshots::snapshots(worker_options options, worker_policies policies)
    : options_{std::move(options)}, policies_{std::move(policies)} {}
TENSORHUB_DECL snapshots::~snapshots() = default;

TENSORHUB_DECL held_turn snapshots::take_turn() {
  held_turn turn{operating_};
  if (!turn) throw failure(errc::busy, "another call about the snapshots of this publisher is running");
  return turn;
}

TENSORHUB_DECL snapshot_report snapshots::publish(version_number version, snapshot_mode how,
                                                  const data_plane& from, std::chrono::milliseconds timeout) {
  using clock_type = std::chrono::steady_clock;
  const auto seconds = [](clock_type::duration time) { return std::chrono::duration<double>(time).count(); };
  const auto started = clock_type::now();
  const held_turn busy = take_turn();
  if (from.tensors().empty())
    throw failure(errc::invalid_argument, "no tensor was added: add all tensors first", version);
  slot& into = open(how.slot_of(version), from);
  check_number(version, timeout);
  snapshot_report report;
  report.version = version;
  const unpublish_report before = into.shown.unpublish(std::min(options_.drain_timeout, timeout / 2));
  report.lost = before.lost;
  report.drain_seconds = before.seconds;
  const auto drained = clock_type::now();
  const auto ranges = from.ranges();
  std::vector<copy_run> runs;
  for (std::size_t i = 0; i < ranges.size(); ++i)
    runs.push_back({into.memory->data(i), ranges[i].data, ranges[i].bytes});
  try {
    from.copy(runs);
  } catch (const error& e) {
    throw failure(e.code(), e.sentence(), version);
  }
  const auto copied = clock_type::now();
  report.copy_seconds = seconds(copied - drained);
  const publish_report shown =
      into.shown.publish(version, detail::time_left(started + detail::bounded(timeout)));
  report.bytes = shown.bytes;
  report.digest_seconds = shown.digest_seconds;
  report.seconds = seconds(clock_type::now() - started);
  return report;
}

TENSORHUB_DECL void snapshots::check_number(version_number version, std::chrono::milliseconds timeout) {
  if (!version) throw failure(errc::invalid_argument, "version 0 cannot be published: count from 1");
  if (version > held_version()) return;
  // It may have been rolled back: whoever has an answer of the server has heard of that.
  const auto until = detail::end_of(timeout);
  for (worker* const each : workers())
    static_cast<void>(each->list(options_.model, detail::time_left(until)));
  if (const auto held = held_version(); version <= held) {
    throw failure(
        errc::version_conflict,
        "version " + to_string(version) + " goes backwards: version " + to_string(held) + " is published",
        version);
  }
}

TENSORHUB_DECL unpublish_report snapshots::unpublish(worker& original, std::chrono::milliseconds timeout) {
  const held_turn busy = take_turn();
  std::vector<worker*> all = workers();
  all.insert(all.begin(), &original);
  return unpublish_together(all, timeout);
}

TENSORHUB_DECL std::vector<worker*> snapshots::close() {
  {
    const std::lock_guard lock{opening_};
    closed_ = true;
  }
  return workers();
}

TENSORHUB_DECL std::vector<worker*> snapshots::workers() const {
  const std::lock_guard lock{opening_};
  std::vector<worker*> all;
  for (const auto& each : slots_) {
    if (each) all.push_back(&each->shown);
  }
  return all;
}

TENSORHUB_DECL version_number snapshots::held_version() {
  version_number newest{};
  for (worker* const each : workers()) newest = std::max(newest, each->held_version());
  return newest;
}

TENSORHUB_DECL error snapshots::failure(errc code, const std::string& sentence,
                                        version_number version) const {
  return error(code, sentence, context_of(options_, version));
}

TENSORHUB_DECL snapshots::slot& snapshots::open(std::size_t index, const data_plane& from) {
  if (!slots_[index]) {
    auto made =
        std::make_unique<slot>(from, beside(options_, "snapshot-" + std::to_string(index)), policies_);
    const std::lock_guard lock{opening_};
    if (closed_)
      throw failure(errc::invalid_argument, "this publisher has left its model: construct a new one");
    slots_[index] = std::move(made);
    used_ = true;
  }
  return *slots_[index];
}

}  // namespace tensorhub::inline TENSORHUB_MODE
