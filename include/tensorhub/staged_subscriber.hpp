#pragma once
/// \file staged_subscriber.hpp
/// A rollout that receives the next version beside its live weights and then copies it over them.
///
///     hub::staged_subscriber rollout{{...}};
///     rollout.add("wq", weights, {4096, 4096}, dtype::bf16);
///     if (auto v = rollout.newer()) rollout.stage(*v);   // minutes, perhaps: generation goes on
///     ...                                                // between two batches, in every shard:
///     rollout.install();                                 // a local copy
///
/// What is staged lives in memory of the library's own, as large as the shard, held by a second worker: the
/// server lists it as replica "<replica>@stage". It is a source for others from its first chunk until the
/// next `stage` begins.
///
/// The shards of a replica stage one version together: all of them have it, or `stage` fails in all of them.
/// Until `install` begins, nothing that happens to the stage touches the live weights, or what is served of
/// them. `install` is an operation of the group as well: the live replica holds the version when all its
/// shards have installed. A shard whose install fails before its first byte has changed goes on holding and
/// serving the old version.

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transfer/tensor_memory.hpp"
#include "tensorhub/types/listen_port.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct staging_options {
  /// The stage stops serving what was installed at once; otherwise when the next `stage` begins.
  bool release_after_install = false;
};

/// What is not documented here is as at `worker`, and means the live weights. Thread safety: as there;
/// `stage` may run beside anything but `install`, which then fails with `busy`.
template <transport Transport, consistency Consistency = group_consistent, integrity Integrity = xxh3_128,
          memory_space Memory = host_memory>
class staged_subscriber : private worker<Transport, Consistency, Integrity, Memory> {
  using base = worker<Transport, Consistency, Integrity, Memory>;
  /// A device is not asked for room for a second shard: what is staged waits in host memory.
  using stage_memory = tensor_memory<offload_space_of<Memory>>;

 public:
  using typename base::transport_options;
  /// Of a running `stage`: progress, result, cancel.
  using stage_handle = typename base::update_handle;
  using typename base::update_handle;

  /// The stage's own connections come in on the port after the live worker's, if that is a fixed one.
  explicit staged_subscriber(worker_options options, transport_options through = {}, staging_options how = {})
      : base{options, through},
        how_{how},
        stage_{beside(std::move(options), "stage"), on_port_after(std::move(through), 1)} {}

  using base::cost;
  using base::describe_model;
  using base::held_version;
  using base::join;
  using base::list;
  using base::newer;
  using base::self;
  using base::shape;
  using base::statistics;
  using base::unpublish;
  using base::update;
  using base::update_async;
  using base::wait;

  void add(std::string name, void* data, std::span<const std::uint64_t> dimensions, dtype type) {
    const std::lock_guard lock{mutex_};
    if (staged_)
      throw error(errc::invalid_argument, "tensor '" + name + "' was added after the first stage()");
    base::add(std::move(name), data, dimensions, type);
  }
  void add(std::string name, void* data, std::initializer_list<std::uint64_t> dimensions, dtype type) {
    add(std::move(name), data, std::span{dimensions.begin(), dimensions.size()}, type);
  }

  /// Receives a version beside the live weights, and verifies it. What was staged before is given up,
  /// whatever the outcome. (A version that is live already is received all the same: ask `newer` first.)
  update_report stage(version_selector selector = latest,
                      std::chrono::milliseconds timeout = defaults::update_timeout,
                      update_reach reach = update_reach::anywhere) {
    prepare_stage();
    return stage_.update(selector, timeout, reach);
  }
  /// Like `stage`, in a thread of its own. This object must outlive the handle.
  [[nodiscard]] stage_handle stage_async(version_selector selector = latest,
                                         std::chrono::milliseconds timeout = defaults::update_timeout,
                                         update_reach reach = update_reach::anywhere) {
    prepare_stage();
    return stage_.update_async(selector, timeout, reach);
  }

  /// Copies what was staged over the live weights, which must not be in use, and serves that version from
  /// there. The live version's readers end or are moved first (for at most `worker_options::drain_timeout`).
  /// All shards of the replica call it. `not_found`: no `stage` has succeeded since the last `install`;
  /// `busy`: one is running.
  install_report install(std::chrono::milliseconds timeout = defaults::update_timeout) {
    return run_install([&] { return base::update_from(stage_, timeout); });
  }
  /// After what the stream holds now is done (worker/stream_order.hpp).
  install_report install(const stream_of<Memory>& stream,
                         std::chrono::milliseconds timeout = defaults::update_timeout) {
    return run_install([&] { return base::update_from(stage_, stream, timeout); });
  }

  /// The version that lies on the stage, completely; zero: none.
  [[nodiscard]] version_number staged_version() { return stage_.held_version(); }

  /// What the stage has done; `statistics` is of the live weights, whose updates are the installs.
  [[nodiscard]] worker_statistics stage_statistics() const { return stage_.statistics(); }

  /// Gives up what is staged, as `unpublish` does with what is live.
  unpublish_report release_stage(std::chrono::milliseconds timeout = defaults::drain_timeout) {
    return stage_.unpublish(timeout);
  }

  /// Both leave the model; each drains for at most `grace`.
  void leave(std::chrono::milliseconds grace = defaults::drain_timeout) {
    stage_.leave(grace);
    base::leave(grace);
  }

 private:
  template <typename Copy>
  install_report run_install(Copy&& copy) {
    const std::uint64_t stages =
        stage_.at_rest([](version_number, std::uint64_t updates) { return updates; });
    {
      const std::lock_guard lock{mutex_};
      if (stages == installed_)
        throw error(errc::not_found, "nothing is staged: install() follows a stage() that has succeeded");
    }
    const update_report done = copy();
    {
      const std::lock_guard lock{mutex_};
      installed_ = stages;
    }
    if (how_.release_after_install) stage_.unpublish();
    return {done.version, done.kept, done.bytes, done.wait_seconds, done.pull_seconds, done.seconds};
  }

  /// Once: memory for the stage, as large as the shard.
  void prepare_stage() {
    const std::lock_guard lock{mutex_};
    if (staged_) return;
    const auto tensors = base::memory().tensors();
    stage_memory memory{tensors};
    for (std::size_t i = 0; i < tensors.size(); ++i)
      stage_.add(tensors[i].name, memory.data(i), tensors[i].shape, tensors[i].type);
    staged_.emplace(std::move(memory));
  }

  staging_options how_;
  std::mutex mutex_;
  std::optional<stage_memory> staged_;  ///< outlives the worker that lends it
  std::uint64_t installed_ = 0;         ///< successful stages at the last install
  base stage_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
