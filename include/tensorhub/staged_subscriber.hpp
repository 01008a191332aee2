#pragma once
/// \file staged_subscriber.hpp
/// A rollout that receives the next version beside its live weights and then copies it over them.
///
///     hub::staged_subscriber rollout{{...}};
///     rollout.add("wq", weights, {4096, 4096}, dtype::bf16);
///     if (rollout.newer()) rollout.stage();              // minutes, perhaps: generation goes on
///     ...                                                // between two batches, in every shard:
///     rollout.install();                                 // a local copy
///
/// What is staged lives in memory of the library's own, as large as the shard, held by a second worker: the
/// server lists it as replica "<replica>@stage". It is a source for others from its first chunk until the
/// next `stage` begins.
///
/// The shards of a replica stage one version together: all of them have it, or `stage` fails in all of them.
/// Until `install` begins, nothing that happens to the stage touches the live weights, or what is served of
/// them. `install` is local: it waits for the readers of the live version, and for nobody else, neither the
/// other shards nor, once the live worker has joined, the server. When to install is for the shards to agree
/// upon; for the server the live replica holds the version when all its shards have installed. A shard whose
/// install fails before its first byte has changed goes on holding and serving the old version.

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/fwd.hpp"
#include "tensorhub/types/element.hpp"
#include "tensorhub/worker/add_elements.hpp"
#include "tensorhub/worker/policy_data_plane.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct staging_options {
  /// The stage stops serving what was installed at once; otherwise when the next `stage` begins.
  bool release_after_install = false;
};

/// What a staged subscriber of any policies can do. What is not documented here is as at `worker`, and means
/// the live weights. Thread safety: as there; `stage` may run beside anything but `install`, which then fails
/// with `busy`.
class any_staged_subscriber : private worker {
 public:
  /// Of a running `stage`: progress, result, cancel.
  using stage_handle = tensorhub::update_handle;
  using update_handle = tensorhub::update_handle;

  using worker::cost;
  using worker::describe_model;
  using worker::held_version;
  using worker::join;
  using worker::keep_alive;
  using worker::list;
  using worker::newer;
  using worker::pin;
  using worker::release;
  using worker::retain;
  using worker::self;
  using worker::shape;
  using worker::statistics;
  using worker::stuck;
  using worker::unpublish;
  using worker::update;
  using worker::update_async;
  using worker::wait;
  using worker::why;

  TENSORHUB_DECL void add(std::string name, void* data, std::span<const std::uint64_t> dimensions,
                          dtype type);
  TENSORHUB_DECL void add(std::string name, void* data, std::initializer_list<std::uint64_t> dimensions,
                          dtype type);
  /// Of a vector, an array or a span, whose element type says what they are; without dimensions in one.
  template <writable_elements Range>
  void add(std::string name, Range&& values, std::initializer_list<std::uint64_t> dimensions = {}) {
    detail::add_elements(*this, std::move(name), values, dimensions);
  }

  /// Receives a version beside the live weights, and verifies it. What was staged before is given up,
  /// whatever the outcome. (A version that is live already is received all the same: ask `newer` first.)
  TENSORHUB_DECL update_report stage(version_selector selector = latest,
                                     std::chrono::milliseconds timeout = defaults::update_timeout,
                                     update_reach reach = update_reach::anywhere);
  /// The same, repeated as `update` with `retry`.
  TENSORHUB_DECL update_report stage(version_selector selector, retry_t,
                                     std::chrono::milliseconds timeout = defaults::update_timeout,
                                     update_reach reach = update_reach::anywhere);
  /// Like `stage`, in a thread of its own. This object must outlive the handle.
  [[nodiscard]] TENSORHUB_DECL stage_handle stage_async(
      version_selector selector = latest, std::chrono::milliseconds timeout = defaults::update_timeout,
      update_reach reach = update_reach::anywhere);

  /// Copies what was staged over the live weights, which must not be in use, and serves that version from
  /// there. The live version's readers end or are moved first, for at most `worker_options::drain_timeout`;
  /// if the server is silent, they are cut off after `server_timeout`, unless a version is retained. All
  /// shards of the replica call it. `not_found`: no `stage` has succeeded since the last `install`; `busy`:
  /// one is running.
  TENSORHUB_DECL install_report install(std::chrono::milliseconds timeout = defaults::update_timeout);

  /// The version that lies on the stage, completely; zero: none.
  [[nodiscard]] TENSORHUB_DECL version_number staged_version();

  /// What the stage has done; `statistics` is of the live weights, whose updates are the installs.
  [[nodiscard]] TENSORHUB_DECL worker_statistics stage_statistics() const;

  /// Host memory in which this process keeps retained versions for others, of both workers.
  [[nodiscard]] TENSORHUB_DECL std::uint64_t offloaded_bytes() const;

  /// Gives up what is staged, as `unpublish` does with what is live.
  TENSORHUB_DECL unpublish_report release_stage(std::chrono::milliseconds timeout = defaults::drain_timeout);

  /// As at `worker`, of the stage's calls too.
  TENSORHUB_DECL void interrupt();

  /// Both leave the model, within `grace`.
  TENSORHUB_DECL unpublish_report leave(std::chrono::milliseconds grace = defaults::drain_timeout);

 protected:
  TENSORHUB_DECL any_staged_subscriber(worker_options options, const worker_policies& policies,
                                       staging_options how);
  ~any_staged_subscriber() = default;
  using worker::await_stream;
  /// `install`, after what `stream` holds now is done (worker/worker.hpp, `await_stream`).
  TENSORHUB_DECL install_report install_after(const void* stream, std::chrono::milliseconds timeout);

 private:
  /// Once: memory for the stage, as large as the shard.
  TENSORHUB_DECL void prepare_stage();

  staging_options how_;
  std::mutex mutex_;
  /// A device is not asked for room for a second shard: what is staged waits in host memory. Outlives the
  /// worker that lends it.
  std::unique_ptr<owned_tensors> staged_;
  std::uint64_t installed_ = 0;  ///< successful stages at the last install
  worker stage_;
};

/// A staged subscriber of these policies.
template <transport Transport, consistency Consistency = group_consistent, integrity Integrity = xxh3_128,
          memory_space Memory = host_memory>
class staged_subscriber : public any_staged_subscriber {
 public:
  using transport_options = typename Transport::options;

  explicit staged_subscriber(worker_options options, transport_options through = {}, staging_options how = {})
      : any_staged_subscriber{std::move(options),
                              policies_of<Transport, Consistency, Integrity, Memory>(std::move(through)),
                              how} {}

  using any_staged_subscriber::install;
  using any_staged_subscriber::update;
  using any_staged_subscriber::update_async;
  /// Tensors on a device need their stream, or `all_done` (worker/stream_order.hpp).
  update_report update(version_selector = latest, std::chrono::milliseconds = {},  //
                       update_reach = update_reach::anywhere)                      //
      requires streaming_memory_space<Memory>
  = delete;
  update_report update(version_selector, retry_t, std::chrono::milliseconds = {},  //
                       update_reach = update_reach::anywhere)                      //
      requires streaming_memory_space<Memory>
  = delete;
  update_handle update_async(version_selector = latest, std::chrono::milliseconds = {},  //
                             update_reach = update_reach::anywhere)                      //
      requires streaming_memory_space<Memory>
  = delete;
  update_report update(version_selector selector, all_done_t,
                       std::chrono::milliseconds timeout = defaults::update_timeout,
                       update_reach reach = update_reach::anywhere) {
    return any_staged_subscriber::update(selector, timeout, reach);
  }
  update_report update(version_selector selector, retry_t, all_done_t,
                       std::chrono::milliseconds timeout = defaults::update_timeout,
                       update_reach reach = update_reach::anywhere) {
    return any_staged_subscriber::update(selector, retry, timeout, reach);
  }
  [[nodiscard]] update_handle update_async(version_selector selector, all_done_t,
                                           std::chrono::milliseconds timeout = defaults::update_timeout,
                                           update_reach reach = update_reach::anywhere) {
    return any_staged_subscriber::update_async(selector, timeout, reach);
  }
  install_report install(std::chrono::milliseconds = {})  //
      requires streaming_memory_space<Memory>
  = delete;
  install_report install(all_done_t, std::chrono::milliseconds timeout = defaults::update_timeout) {
    return any_staged_subscriber::install(timeout);
  }
  /// After what the stream holds now is done (worker/stream_order.hpp), as the following.
  update_report update(version_selector selector, const stream_of<Memory>& stream,
                       std::chrono::milliseconds timeout = defaults::update_timeout,
                       update_reach reach = update_reach::anywhere) {
    return any_staged_subscriber::update(selector, await_stream(&stream, timeout), reach);
  }
  update_report update(version_selector selector, retry_t, const stream_of<Memory>& stream,
                       std::chrono::milliseconds timeout = defaults::update_timeout,
                       update_reach reach = update_reach::anywhere) {
    return any_staged_subscriber::update(selector, retry, await_stream(&stream, timeout), reach);
  }
  install_report install(const stream_of<Memory>& stream,
                         std::chrono::milliseconds timeout = defaults::update_timeout) {
    return install_after(&stream, timeout);
  }
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/staged_subscriber.ipp"
#endif
