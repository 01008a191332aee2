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
#include "tensorhub/fwd.hpp"
#include "tensorhub/worker/policy_data_plane.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// What a double-buffered subscriber of any policies can do. What is not documented here is as at `worker`.
/// Thread safety: as there; `install` fails with `busy` while a `stage` runs. Pointers that `tensor` gave are
/// valid as long as this object lives; the bytes there change when the first `stage` after the next `install`
/// begins.
class any_double_buffered_subscriber {
 public:
  /// Of a running `stage`: progress, result, cancel.
  using stage_handle = tensorhub::update_handle;

  any_double_buffered_subscriber(const any_double_buffered_subscriber&) = delete;
  any_double_buffered_subscriber& operator=(const any_double_buffered_subscriber&) = delete;

  /// Tells of one tensor, before the first other call; in every worker of the shard alike.
  TENSORHUB_DECL void add(std::string name, std::span<const std::uint64_t> shape, dtype type);
  TENSORHUB_DECL void add(std::string name, std::initializer_list<std::uint64_t> shape, dtype type);

  /// Allocates both memories and joins the model. Implied by the first `stage`; call it to find errors early.
  TENSORHUB_DECL void join();

  /// Receives a version into the side that is not live, and verifies it. The side's readers end or are moved
  /// first (for at most `worker_options::drain_timeout`). On failure what is live stays as it is.
  TENSORHUB_DECL update_report stage(version_selector selector = latest,
                                     std::chrono::milliseconds timeout = defaults::update_timeout,
                                     update_reach reach = update_reach::anywhere);
  /// The same, repeated as `worker::update` with `retry`.
  TENSORHUB_DECL update_report stage(version_selector selector, retry_t,
                                     std::chrono::milliseconds timeout = defaults::update_timeout,
                                     update_reach reach = update_reach::anywhere);
  /// Like `stage`, in a thread of its own. This object must outlive the handle.
  [[nodiscard]] TENSORHUB_DECL stage_handle stage_async(
      version_selector selector = latest, std::chrono::milliseconds timeout = defaults::update_timeout,
      update_reach reach = update_reach::anywhere);

  /// What was staged is live when this returns. `not_found`: no `stage` has succeeded since the last
  /// `install`; `busy`: one is running.
  TENSORHUB_DECL install_report install();

  /// Where a tensor's live bytes are (null: it has none). Throws `not_found` before the first `install`,
  /// `invalid_argument` for a name that was not added.
  [[nodiscard]] TENSORHUB_DECL void* tensor(const std::string& name) const;

  /// The version that is live; zero: none yet.
  [[nodiscard]] TENSORHUB_DECL version_number live_version() const;
  /// The version that lies on the other side, completely: what was staged, or what was live before.
  [[nodiscard]] TENSORHUB_DECL version_number staged_version();

  /// The newest version that the server has told of, if it is newer than what is live. Never waits.
  [[nodiscard]] TENSORHUB_DECL std::optional<version_number> newer();
  TENSORHUB_DECL version_number wait(version_selector selector,
                                     std::chrono::milliseconds timeout = defaults::update_timeout);

  // ---- questions to the server, and what it is to retain; as at `worker`

  [[nodiscard]] TENSORHUB_DECL std::vector<model_entry> list(
      std::string model = {}, std::chrono::milliseconds timeout = defaults::join_timeout);
  [[nodiscard]] TENSORHUB_DECL model_description
  describe_model(std::uint32_t shard, std::chrono::milliseconds timeout = defaults::join_timeout);
  /// Of the side that is not live: how its sources were chosen.
  [[nodiscard]] TENSORHUB_DECL std::string why(std::chrono::milliseconds timeout = defaults::join_timeout);
  [[nodiscard]] TENSORHUB_DECL stuck_report
  stuck(std::chrono::milliseconds older_than = std::chrono::seconds{1},
        std::chrono::milliseconds timeout = defaults::join_timeout);
  TENSORHUB_DECL void retain(std::uint32_t versions,
                             std::chrono::milliseconds timeout = defaults::join_timeout);
  TENSORHUB_DECL void pin(version_number version, std::chrono::milliseconds timeout = defaults::join_timeout);
  TENSORHUB_DECL void release(version_number version,
                              std::chrono::milliseconds timeout = defaults::join_timeout);
  /// Host memory in which this process keeps retained versions for others, of both sides.
  [[nodiscard]] TENSORHUB_DECL std::uint64_t offloaded_bytes() const;

  /// Of both sides together.
  [[nodiscard]] TENSORHUB_DECL registration_cost cost() const noexcept;
  /// As at `worker`: known after `join`.
  [[nodiscard]] TENSORHUB_DECL const layout& shape() const noexcept;

  /// Of side a and side b: each is a worker of its own.
  [[nodiscard]] TENSORHUB_DECL std::array<worker_statistics, 2> statistics() const;

  /// Serves nothing any more, until the next `stage`. What is live stays live.
  TENSORHUB_DECL unpublish_report unpublish(std::chrono::milliseconds timeout = defaults::drain_timeout);
  /// As at `worker`, of both sides.
  TENSORHUB_DECL void interrupt();
  /// Both sides leave the model, within `grace`.
  TENSORHUB_DECL unpublish_report leave(std::chrono::milliseconds grace = defaults::drain_timeout);

 protected:
  TENSORHUB_DECL any_double_buffered_subscriber(worker_options options, const worker_policies& policies);
  ~any_double_buffered_subscriber() = default;

  // ---- for what shows both memories to others; not before `join`
  [[nodiscard]] const worker_options& options() const noexcept { return options_; }
  [[nodiscard]] std::span<const tensor_spec> tensors() const noexcept { return tensors_; }
  [[nodiscard]] const owned_tensors& memory_of(std::size_t side) const noexcept { return *memories_[side]; }
  /// The side that is not live: 0 or 1.
  [[nodiscard]] TENSORHUB_DECL std::size_t side_to_stage() const;
  [[nodiscard]] TENSORHUB_DECL worker& live_side();
  [[nodiscard]] TENSORHUB_DECL error failure(errc code, const std::string& sentence) const;

 private:
  /// Once: memory for both sides.
  TENSORHUB_DECL void prepare();
  /// Pre-condition: mutex_ is held.
  [[nodiscard]] std::size_t next_side() const noexcept { return live_ ? 1 - *live_ : 0; }
  [[nodiscard]] TENSORHUB_DECL worker& idle_side();

  worker_options options_;
  mutable std::mutex mutex_;
  std::vector<tensor_spec> tensors_;
  std::map<std::string, std::size_t> positions_;
  /// None, or one per side; outlive the workers.
  std::vector<std::unique_ptr<owned_tensors>> memories_;
  std::optional<std::size_t> live_;
  version_number live_version_{};
  std::array<std::uint64_t, 2> flipped_at_{};  ///< successful stages of a side when it became live
  std::array<std::unique_ptr<worker>, 2> sides_;
};

/// A double-buffered subscriber of these policies.
template <transport Transport, consistency Consistency = group_consistent, integrity Integrity = xxh3_128,
          memory_space Memory = host_memory>
class double_buffered_subscriber : public any_double_buffered_subscriber {
 public:
  using transport_options = typename Transport::options;

  explicit double_buffered_subscriber(worker_options options, transport_options through = {})
      : any_double_buffered_subscriber{
            std::move(options), policies_of<Transport, Consistency, Integrity, Memory>(std::move(through))} {}
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/double_buffered_subscriber.ipp"
#endif
