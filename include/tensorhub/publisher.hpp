#pragma once
/// \file publisher.hpp
/// The trainer's door of a worker: its bytes become versions, in place or as a copy.
///
///     trainer.publish(step);                         // in place: the tensors must not change ...
///     trainer.unpublish();                           // ... until this has returned
///
///     trainer.publish(step, tensorhub::snapshot);    // a copy: the tensors may change when this returns

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/worker/snapshots.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// What is not documented here is as at `worker`. A publisher is a source from `publish` until `unpublish`.
template <transport Transport, consistency Consistency = group_consistent, integrity Integrity = xxh3_128,
          memory_space Memory = host_memory>
class publisher : private worker<Transport, Consistency, Integrity, Memory> {
  using base = worker<Transport, Consistency, Integrity, Memory>;

 public:
  using typename base::transport_options;

  /// Snapshots' connections come in on the two ports after the publisher's, if that is a fixed one.
  explicit publisher(worker_options options, transport_options through = {})
      : base{options, through}, snapshots_{std::move(options), std::move(through)} {}

  using base::cost;
  using base::describe_model;
  using base::join;
  using base::list;
  using base::offloaded_bytes;
  using base::pin;
  using base::publish;
  using base::release;
  using base::retain;
  using base::self;
  using base::shape;
  using base::statistics;
  using base::stuck;
  using base::wait;
  using base::why;

  void add(std::string name, const void* data, std::span<const std::uint64_t> dimensions, dtype type) {
    if (snapshots_.used())
      throw snapshots_.failure(errc::invalid_argument,
                               "tensor '" + name + "' was added after the first publish");
    base::add(std::move(name), data, dimensions, type);
  }
  void add(std::string name, const void* data, std::initializer_list<std::uint64_t> dimensions, dtype type) {
    add(std::move(name), data, std::span{dimensions.begin(), dimensions.size()}, type);
  }

  /// Publishes a copy of the tensors, made by `lanes` threads: they may change as soon as this returns. The
  /// copy lies in host memory, also where the tensors do not (`offload_space_of`). No
  /// `unpublish` is needed between two of them: a snapshot is served until the second next one takes its
  /// memory (whose last readers it then waits for), or until `unpublish`. Costs the memory of two shards.
  /// `busy`: a version is published in place.
  snapshot_report publish(version_number version, snapshot_mode how,
                          std::chrono::milliseconds timeout = defaults::join_timeout) {
    if (const auto held = base::held_version()) {
      throw snapshots_.failure(
          errc::busy,
          "version " + to_string(held) + " is still published in place: call unpublish() before a snapshot",
          version);
    }
    return snapshots_.publish(version, how, base::memory().tensors(), base::memory().ranges(), timeout);
  }
  /// Of what the stream's present work leaves there (worker/stream_order.hpp).
  snapshot_report publish(version_number version, snapshot_mode how, const stream_of<Memory>& stream,
                          std::chrono::milliseconds timeout = defaults::join_timeout) {
    return publish(version, how, base::await(stream, timeout));
  }

  /// As at `worker`, of all that is published, snapshots too.
  unpublish_report unpublish(std::chrono::milliseconds timeout = defaults::drain_timeout) {
    unpublish_report report = base::unpublish(timeout);
    const auto used =
        std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>{report.seconds});
    snapshots_.unpublish(std::max(timeout - used, std::chrono::milliseconds{0}), report);
    return report;
  }

  /// The newest version that is published; zero: none.
  [[nodiscard]] version_number held_version() {
    return std::max(base::held_version(), snapshots_.held_version());
  }

  void leave(std::chrono::milliseconds grace = defaults::drain_timeout) {
    snapshots_.leave(grace);
    base::leave(grace);
  }

 private:
  snapshots<Transport, Consistency, Integrity, Memory> snapshots_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
