#pragma once
/// \file double_buffered_subscriber.hpp
/// A rollout whose weights lie in one of two memories of the library's: one is live, the other receives.
///
///     hub::double_buffered_subscriber rollout{{...}};
///     rollout.add("wq", {4096, 4096}, dtype::bf16);     // no pointer: the memory is ours
///     rollout.stage();                                  // fills the side that is not live
///     rollout.install();                                // flips: no copy, no reader is disturbed
///     const void* wq = rollout.tensor("wq");            // where it is now; ask again after each install
///
/// Each side is a worker of its own, listed by the server as replicas "<replica>@a" and "<replica>@b". What a
/// side holds is served from the moment it begins to arrive until that side is the target of a `stage` again:
/// the version that was live before goes on being served after `install`, and can be gone back to
/// (`stage(exactly(old))` finds it there and reads nothing).
///
/// The shards of a replica stage one version together: all of them have it, or `stage` fails in all of them
/// and what is live is untouched. `install` is local and cannot fail halfway; when to flip is for the shards
/// to agree upon, as on everything between two batches. All shards are constructed and flip the same number
/// of times: where one process is replaced, the others must construct theirs anew too, or `stage` fails with
/// `group_failed` (`staged_subscriber` has no such condition).

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transfer/tensor_memory.hpp"
#include "tensorhub/types/listen_port.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// What is not documented here is as at `worker`. Thread safety: as there; `install` fails with `busy` while
/// a `stage` runs. Pointers that `tensor` gave are valid as long as this object lives; the bytes there change
/// when the first `stage` after the next `install` begins.
template <transport Transport, consistency Consistency = group_consistent, integrity Integrity = xxh3_128,
          memory_space Memory = host_memory>
class double_buffered_subscriber {
  using side = worker<Transport, Consistency, Integrity, Memory>;

 public:
  using transport_options = typename side::transport_options;
  /// Of a running `stage`: progress, result, cancel.
  using stage_handle = typename side::update_handle;

  /// Side b's connections come in on the port after side a's, if that is a fixed one.
  explicit double_buffered_subscriber(worker_options options, transport_options through = {})
      : options_{validated(std::move(options))},
        sides_{std::make_unique<side>(beside(options_, "a"), through),
               std::make_unique<side>(beside(options_, "b"), on_port_after(through, 1))} {}

  /// Tells of one tensor, before the first other call; in every worker of the shard alike.
  void add(std::string name, std::span<const std::uint64_t> shape, dtype type) {
    const std::lock_guard lock{mutex_};
    if (!memories_.empty())
      throw failure(errc::invalid_argument, "tensor '" + name + "' was added after the first other call");
    if (!positions_.emplace(name, tensors_.size()).second)
      throw failure(errc::invalid_argument, "tensor '" + name + "' was added twice");
    tensors_.push_back({std::move(name), type, {shape.begin(), shape.end()}});
  }
  void add(std::string name, std::initializer_list<std::uint64_t> shape, dtype type) {
    add(std::move(name), std::span{shape.begin(), shape.size()}, type);
  }

  /// Allocates both memories and joins the model. Implied by the first `stage`; call it to find errors early.
  void join() {
    prepare();
    for (const auto& each : sides_) each->join();
  }

  /// Receives a version into the side that is not live, and verifies it. The side's readers end or are moved
  /// first (for at most `worker_options::drain_timeout`). On failure what is live stays as it is.
  update_report stage(version_selector selector = latest,
                      std::chrono::milliseconds timeout = defaults::update_timeout,
                      update_reach reach = update_reach::anywhere) {
    // The update itself ends by `timeout`.
    return stage_async(selector, timeout, reach).wait(std::chrono::hours{24 * 365});
  }
  /// Like `stage`, in a thread of its own. This object must outlive the handle.
  [[nodiscard]] stage_handle stage_async(version_selector selector = latest,
                                         std::chrono::milliseconds timeout = defaults::update_timeout,
                                         update_reach reach = update_reach::anywhere) {
    prepare();
    const std::lock_guard lock{mutex_};  // no flip until the operation has begun
    return sides_[next_side()]->update_async(selector, timeout, reach);
  }

  /// What was staged is live when this returns. `not_found`: no `stage` has succeeded since the last
  /// `install`; `busy`: one is running.
  install_report install() {
    const std::lock_guard lock{mutex_};
    const steady_clock clock;
    const auto started = clock.now();
    const std::size_t next = next_side();
    install_report report;
    sides_[next]->at_rest([&](version_number held, std::uint64_t updates) {
      if (!held || updates == flipped_at_[next]) {
        throw failure(errc::not_found, "nothing is staged: install() follows a stage() that has succeeded");
      }
      flipped_at_[next] = updates;
      live_ = next;
      live_version_ = report.version = held;
    });
    report.seconds = to_seconds(clock.now() - started);
    return report;
  }

  /// Where a tensor's live bytes are (null: it has none). Throws `not_found` before the first `install`,
  /// `invalid_argument` for a name that was not added.
  [[nodiscard]] void* tensor(const std::string& name) const {
    const std::lock_guard lock{mutex_};
    const auto found = positions_.find(name);
    if (found == positions_.end())
      throw failure(errc::invalid_argument, "no tensor '" + name + "' was added");
    if (!live_) throw failure(errc::not_found, "no version is live yet: call stage() and install()");
    return memories_[*live_].data(found->second);
  }

  /// The version that is live; zero: none yet.
  [[nodiscard]] version_number live_version() const {
    const std::lock_guard lock{mutex_};
    return live_version_;
  }
  /// The version that lies on the other side, completely: what was staged, or what was live before.
  [[nodiscard]] version_number staged_version() { return idle_side().held_version(); }

  /// The newest version that the server has told of, if it is newer than what is live. Never waits.
  [[nodiscard]] std::optional<version_number> newer() {
    prepare();
    const auto known = live_side().newer();
    return known && *known > live_version() ? known : std::nullopt;
  }
  version_number wait(version_selector selector,
                      std::chrono::milliseconds timeout = defaults::update_timeout) {
    prepare();
    return live_side().wait(selector, timeout);
  }
  [[nodiscard]] std::vector<messages::model_entry> list(
      std::string model = {}, std::chrono::milliseconds timeout = defaults::join_timeout) {
    return sides_[0]->list(std::move(model), timeout);
  }
  [[nodiscard]] messages::describe_reply describe_model(
      std::uint32_t shard, std::chrono::milliseconds timeout = defaults::join_timeout) {
    return sides_[0]->describe_model(shard, timeout);
  }

  /// Of side a and side b: each is a worker of its own.
  [[nodiscard]] std::array<worker_statistics, 2> statistics() const {
    return {sides_[0]->statistics(), sides_[1]->statistics()};
  }

  /// Serves nothing any more, until the next `stage`. What is live stays live.
  void unpublish(std::chrono::milliseconds timeout = defaults::drain_timeout) {
    for (const auto& each : sides_) each->unpublish(timeout);
  }
  /// Both sides leave the model; each drains for at most `grace`.
  void leave(std::chrono::milliseconds grace = defaults::drain_timeout) {
    for (const auto& each : sides_) each->leave(grace);
  }

 private:
  /// Once: memory for both sides.
  void prepare() {
    const std::lock_guard lock{mutex_};
    if (!memories_.empty()) return;
    std::vector<tensor_memory<Memory>> memories;
    for (std::size_t i = 0; i < sides_.size(); ++i) memories.emplace_back(tensors_);
    for (std::size_t i = 0; i < sides_.size(); ++i) {
      for (std::size_t t = 0; t < tensors_.size(); ++t)
        sides_[i]->add(tensors_[t].name, memories[i].data(t), tensors_[t].shape, tensors_[t].type);
    }
    memories_ = std::move(memories);
  }

  /// Pre-condition: mutex_ is held.
  [[nodiscard]] std::size_t next_side() const noexcept { return live_ ? 1 - *live_ : 0; }
  [[nodiscard]] side& idle_side() {
    const std::lock_guard lock{mutex_};
    return *sides_[next_side()];
  }
  [[nodiscard]] side& live_side() {
    const std::lock_guard lock{mutex_};
    return *sides_[live_.value_or(0)];
  }

  [[nodiscard]] error failure(errc code, const std::string& sentence) const {
    error_context context;
    context.model = options_.model;
    context.replica = options_.replica;
    context.shard = options_.shard.index;
    return error(code, sentence, std::move(context));
  }

  worker_options options_;
  mutable std::mutex mutex_;
  std::vector<tensor_spec> tensors_;
  std::map<std::string, std::size_t> positions_;
  std::vector<tensor_memory<Memory>> memories_;  ///< none, or one per side; outlive the workers
  std::optional<std::size_t> live_;
  version_number live_version_{};
  std::array<std::uint64_t, 2> flipped_at_{};  ///< successful stages of a side when it became live
  std::array<std::unique_ptr<side>, 2> sides_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
