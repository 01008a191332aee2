#pragma once
/// \file snapshots.ipp
/// What worker/snapshots.hpp declares.

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/worker/snapshots.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct snapshots::slot {
  std::unique_ptr<owned_tensors> memory;  ///< outlives the worker that lends it
  worker shown;
  slot(const data_plane& from, worker_options options, worker_policies policies, port_choice ports)
      : memory{from.allocate(from.tensors(), tensor_place::offload_space)},
        shown{std::move(options), std::move(policies), ports} {
    const auto tensors = from.tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i)
      shown.add(tensors[i].name, memory->data(i), tensors[i].shape, tensors[i].type);
  }
};

/// One at a time, as at `worker`.
class snapshots::one_call {
 public:
  explicit one_call(snapshots& owner) : owner_{&owner} {
    if (owner.operating_.exchange(true))
      throw owner.failure(errc::busy, "another call about the snapshots of this publisher is running");
  }
  ~one_call() { owner_->operating_ = false; }
  one_call(const one_call&) = delete;
  one_call& operator=(const one_call&) = delete;

 private:
  snapshots* owner_;
};

TENSORHUB_DECL snapshots::snapshots(worker_options options, worker_policies policies)
    : options_{std::move(options)}, policies_{std::move(policies)} {}
TENSORHUB_DECL snapshots::~snapshots() = default;

TENSORHUB_DECL snapshot_report snapshots::publish(version_number version, snapshot_mode how,
                                                  const data_plane& from, std::chrono::milliseconds timeout) {
  using clock_type = std::chrono::steady_clock;
  const auto seconds = [](clock_type::duration time) { return std::chrono::duration<double>(time).count(); };
  const auto started = clock_type::now();
  const one_call busy{*this};
  if (from.tensors().empty())
    throw failure(errc::invalid_argument, "no tensor was added: call add() first", version);
  slot& into = open(how.slot_of(version), from);
  snapshot_report report;
  report.version = version;
  report.drain_seconds = into.shown.unpublish(std::min(options_.drain_timeout, timeout / 2)).seconds;
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
  const auto left = timeout - std::chrono::duration_cast<std::chrono::milliseconds>(copied - started);
  const publish_report shown = into.shown.publish(version, std::max(left, std::chrono::milliseconds{0}));
  report.bytes = shown.bytes;
  report.digest_seconds = shown.digest_seconds;
  report.seconds = seconds(clock_type::now() - started);
  return report;
}

TENSORHUB_DECL void snapshots::unpublish(std::chrono::milliseconds timeout, unpublish_report& done) {
  using clock_type = std::chrono::steady_clock;
  const auto started = clock_type::now();
  const one_call busy{*this};
  for (const auto& each : slots_) {
    if (!each) continue;
    const auto left =
        timeout - std::chrono::duration_cast<std::chrono::milliseconds>(clock_type::now() - started);
    const unpublish_report one = each->shown.unpublish(std::max(left, std::chrono::milliseconds{0}));
    done.finished += one.finished;
    done.moved += one.moved;
    done.cut_off += one.cut_off;
    done.forced = done.forced || one.forced;
    done.seconds += one.seconds;
  }
}

TENSORHUB_DECL void snapshots::leave(std::chrono::milliseconds grace) {
  const one_call busy{*this};
  for (const auto& each : slots_) {
    if (each) each->shown.leave(grace);
  }
}

TENSORHUB_DECL version_number snapshots::held_version() {
  const one_call busy{*this};
  version_number newest{};
  for (const auto& each : slots_) {
    if (each) newest = std::max(newest, each->shown.held_version());
  }
  return newest;
}

TENSORHUB_DECL error snapshots::failure(errc code, const std::string& sentence,
                                        version_number version) const {
  error_context about = context_of(options_);
  if (version) about.version = version.value;
  return error(code, sentence, std::move(about));
}

TENSORHUB_DECL snapshots::slot& snapshots::open(std::size_t index, const data_plane& from) {
  if (!slots_[index]) {
    slots_[index] =
        std::make_unique<slot>(from, beside(options_, "snapshot-" + std::to_string(index)), policies_,
                               port_choice{.after = static_cast<std::uint16_t>(1 + index)});
    used_ = true;
  }
  return *slots_[index];
}

}  // namespace tensorhub::inline TENSORHUB_MODE
