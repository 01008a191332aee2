#pragma once
/// \file publisher.hpp
/// The trainer's side of a worker: its bytes become versions, in place or as a copy.
///
///     trainer.publish(step);                         // in place: the tensors must not change ...
///     trainer.unpublish();                           // ... until this has returned
///
///     trainer.publish(step, tensorhub::changed({"lora.a", "lora.b"}));  // in place: the rest is as it was
///
///     trainer.publish(step, tensorhub::snapshot);    // a copy: the tensors may change when this returns
///
/// Thread safety and errors: as worker/worker.hpp says.

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/fwd.hpp"
#include "tensorhub/types/element.hpp"
#include "tensorhub/worker/add_elements.hpp"
#include "tensorhub/worker/policy_data_plane.hpp"
#include "tensorhub/worker/snapshots.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// What a publisher of any policies can do. What is not documented here is as at `worker`. A publisher is a
/// source from `publish` until `unpublish`.
class any_publisher : private worker {
 public:
  using worker::cost;
  using worker::describe_model;
  using worker::interrupts;
  using worker::join;
  using worker::keep_alive;
  using worker::list;
  using worker::pin;
  using worker::publish;
  using worker::release;
  using worker::retain;
  using worker::roll_back_to;
  using worker::self;
  using worker::shard_layout;
  using worker::stuck;
  using worker::wait;
  using worker::wait_held;
  using worker::why;

  TENSORHUB_DECL void add(std::string name, const void* data, std::span<const std::uint64_t> dimensions,
                          dtype type);
  TENSORHUB_DECL void add(std::string name, const void* data, std::initializer_list<std::uint64_t> dimensions,
                          dtype type);
  /// Adds a vector, an array or a span, whose element type is the tensor's; without dimensions it has one.
  template <elements Range>
  void add(std::string name, Range&& values, std::initializer_list<std::uint64_t> dimensions = {}) {
    detail::add_elements(*this, std::move(name), values, dimensions);
  }

  /// Publishes a copy of the tensors, made by `lanes` threads: they may change as soon as this returns. The
  /// copy lies in host memory, also where the tensors do not (`offload_space_of`). No `unpublish` is needed
  /// between two of them: a snapshot is served until the second next one takes its memory (whose last readers
  /// it then waits for), or until `unpublish`. That is so for successive numbers; whoever publishes every
  /// tenth says `snapshot.every(10)`, or each snapshot takes back the one before. Costs the memory of two
  /// shards. `still_published`: a version is published in place.
  TENSORHUB_DECL snapshot_report publish(version_number version, snapshot_mode how,
                                         std::chrono::milliseconds timeout = defaults::join_timeout);

  /// As `worker::unpublish`, for all that is published, snapshots included.
  TENSORHUB_DECL unpublish_report unpublish(std::chrono::milliseconds timeout = defaults::drain_timeout);

  /// The newest version that is published; zero: none.
  [[nodiscard]] TENSORHUB_DECL version_number held_version();

  /// Its own and its snapshots' together, as `offloaded_bytes`; `digested_chunks` and `registration` are
  /// those of the weights in place.
  [[nodiscard]] TENSORHUB_DECL worker_statistics statistics() const;
  [[nodiscard]] TENSORHUB_DECL std::uint64_t offloaded_bytes() const;

  /// As `worker::interrupt`, for the snapshots' calls as well.
  TENSORHUB_DECL void interrupt();

  /// As `worker::leave`, for the snapshots as well.
  TENSORHUB_DECL unpublish_report leave(std::chrono::milliseconds grace = defaults::drain_timeout);

 protected:
  TENSORHUB_DECL any_publisher(worker_options options, const worker_policies& policies);
  ~any_publisher() = default;
  using worker::await_stream;

 private:
  snapshots snapshots_;
};

/// A publisher of these policies.
template <transport Transport, consistency Consistency = group_consistent, integrity Integrity = xxh3_128,
          memory_space Memory = host_memory>
class publisher : public any_publisher {
 public:
  using transport_options = typename Transport::options;

  explicit publisher(worker_options options, transport_options through = {})
      : any_publisher{std::move(options),
                      policies_of<Transport, Consistency, Integrity, Memory>(std::move(through))} {}

  using any_publisher::publish;
  /// Tensors on a device need their stream, or `all_done` (worker/stream_order.hpp).
  publish_report publish(version_number, std::chrono::milliseconds = {})  //
      requires streaming_memory_space<Memory>
  = delete;
  publish_report publish(version_number, const changed_tensors&, std::chrono::milliseconds = {})  //
      requires streaming_memory_space<Memory>
  = delete;
  snapshot_report publish(version_number, snapshot_mode, std::chrono::milliseconds = {})  //
      requires streaming_memory_space<Memory>
  = delete;
  publish_report publish(version_number version, all_done_t,
                         std::chrono::milliseconds timeout = defaults::join_timeout) {
    return any_publisher::publish(version, timeout);
  }
  publish_report publish(version_number version, const changed_tensors& changed, all_done_t,
                         std::chrono::milliseconds timeout = defaults::join_timeout) {
    return any_publisher::publish(version, changed, timeout);
  }
  snapshot_report publish(version_number version, snapshot_mode how, all_done_t,
                          std::chrono::milliseconds timeout = defaults::join_timeout) {
    return any_publisher::publish(version, how, timeout);
  }
  /// Of what the stream's present work leaves there (worker/stream_order.hpp), as the following.
  publish_report publish(version_number version, const stream_of<Memory>& stream,
                         std::chrono::milliseconds timeout = defaults::join_timeout) {
    return any_publisher::publish(version, await_stream(&stream, timeout));
  }
  publish_report publish(version_number version, const changed_tensors& changed,
                         const stream_of<Memory>& stream,
                         std::chrono::milliseconds timeout = defaults::join_timeout) {
    return any_publisher::publish(version, changed, await_stream(&stream, timeout));
  }
  snapshot_report publish(version_number version, snapshot_mode how, const stream_of<Memory>& stream,
                          std::chrono::milliseconds timeout = defaults::join_timeout) {
    return any_publisher::publish(version, how, await_stream(&stream, timeout));
  }
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/publisher.ipp"
#endif
