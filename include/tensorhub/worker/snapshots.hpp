#pragma once
/// \file snapshots.hpp
/// A trainer's copies of its weights, published in the place of the weights themselves.
///
/// There are two, made when first used, in memory of the library's own, each as large as the shard: while the
/// readers of one version still read, the next one is copied beside it. Each belongs to a worker of its own,
/// listed by the server as replicas "<replica>@snapshot-0" and "-1". Which one a version goes to follows from
/// its number alone, so that all shards of a replica choose alike, and one that is started anew as well.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transfer/parallel_copy.hpp"
#include "tensorhub/transfer/tensor_memory.hpp"
#include "tensorhub/types/listen_port.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Second argument of `publish`: publish a copy. Successive versions take turns in two memories; whoever
/// publishes every tenth number only says `snapshot.every(10)`, or each copy would wait for the readers of
/// the one before.
struct snapshot_mode {
  std::uint64_t stride = 1;
  [[nodiscard]] constexpr snapshot_mode every(std::uint64_t versions) const noexcept {
    return {versions == 0 ? 1 : versions};
  }
  /// The memory that a version goes to, the same in all shards.
  [[nodiscard]] constexpr std::size_t slot_of(version_number version) const noexcept {
    return static_cast<std::size_t>(version.value / stride % 2);
  }
};
inline constexpr snapshot_mode snapshot{};

template <transport Transport, consistency Consistency, integrity Integrity, memory_space Memory>
class snapshots {
  using worker_type = worker<Transport, Consistency, Integrity, Memory>;
  using clock_type = std::chrono::steady_clock;

 public:
  using transport_options = typename worker_type::transport_options;

  snapshots(worker_options options, transport_options through)
      : options_{std::move(options)}, through_{std::move(through)} {}

  /// Copies the tensors, which lie at `ranges`, and publishes the copy. If the memory holds an older version
  /// still, that one is taken back first: its readers have half the time, and at most the drain time-out.
  snapshot_report publish(version_number version, snapshot_mode how, std::span<const tensor_spec> tensors,
                          std::span<const memory_range> ranges, std::chrono::milliseconds timeout) {
    const auto started = clock_type::now();
    const operation_guard busy{*this};
    if (tensors.empty())
      throw failure(errc::invalid_argument, "no tensor was added: call add() first", version);
    const std::size_t index = how.slot_of(version);
    slot& into = open(index, tensors);
    snapshot_report report;
    report.version = version;
    report.drain_seconds = into.shown.unpublish(std::min(options_.drain_timeout, timeout / 2)).seconds;
    const auto drained = clock_type::now();
    std::vector<copy_run> runs;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      runs.push_back({into.memory.data(i), ranges[i].data, ranges[i].bytes});
    try {
      parallel_copy<Memory>(runs, options_.lanes);
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

  /// Takes both back; `done` is added to. All of it within `timeout`, as at `worker`.
  void unpublish(std::chrono::milliseconds timeout, unpublish_report& done) {
    const auto started = clock_type::now();
    const operation_guard busy{*this};
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

  void leave(std::chrono::milliseconds grace) {
    const operation_guard busy{*this};
    for (const auto& each : slots_) {
      if (each) each->shown.leave(grace);
    }
  }

  /// The newest version that is shown; zero: none.
  [[nodiscard]] version_number held_version() {
    const operation_guard busy{*this};
    version_number newest{};
    for (const auto& each : slots_) {
      if (each) newest = std::max(newest, each->shown.held_version());
    }
    return newest;
  }

  /// A snapshot was made: the set of tensors is fixed.
  [[nodiscard]] bool used() const noexcept { return used_; }

  /// An error that names this publisher.
  [[nodiscard]] error failure(errc code, const std::string& sentence, version_number version = {}) const {
    error_context about = context_of(options_);
    if (version) about.version = version.value;
    return error(code, sentence, std::move(about));
  }

 private:
  struct slot {
    tensor_memory<offload_space_of<Memory>> memory;
    worker_type shown;
    slot(std::span<const tensor_spec> tensors, worker_options options, transport_options through)
        : memory{tensors}, shown{std::move(options), std::move(through)} {
      for (std::size_t i = 0; i < tensors.size(); ++i)
        shown.add(tensors[i].name, memory.data(i), tensors[i].shape, tensors[i].type);
    }
  };

  /// One at a time, as at `worker`.
  class operation_guard {
   public:
    explicit operation_guard(snapshots& owner) : owner_{&owner} {
      if (owner.operating_.exchange(true))
        throw owner.failure(errc::busy, "another call about the snapshots of this publisher is running");
    }
    ~operation_guard() { owner_->operating_ = false; }
    operation_guard(const operation_guard&) = delete;
    operation_guard& operator=(const operation_guard&) = delete;

   private:
    snapshots* owner_;
  };

  slot& open(std::size_t index, std::span<const tensor_spec> tensors) {
    if (!slots_[index]) {
      slots_[index] = std::make_unique<slot>(tensors, beside(options_, "snapshot-" + std::to_string(index)),
                                             on_port_after(through_, static_cast<std::uint16_t>(1 + index)));
      used_ = true;
    }
    return *slots_[index];
  }

  [[nodiscard]] static double seconds(clock_type::duration time) noexcept {
    return std::chrono::duration<double>(time).count();
  }

  worker_options options_;
  transport_options through_;
  std::atomic<bool> operating_ = false;
  std::atomic<bool> used_ = false;
  std::array<std::unique_ptr<slot>, 2> slots_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
