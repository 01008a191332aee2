#pragma once
/// \file subscriber.hpp
/// The rollout's worker: it receives versions, and serves what it has received to others. Its mode says where
/// a version arrives.
///
///     hub::subscriber rollout{{...}};                            // in place: into the weights that are used
///     rollout.add("wq", weights, {4096, 4096}, dtype::bf16);
///     rollout.update();
///
///     hub::subscriber rollout{{...}, subscriber_mode::staged};   // beside them, and then copied over them
///     rollout.add("wq", weights, {4096, 4096}, dtype::bf16);
///     if (rollout.newer()) rollout.stage();                      // minutes, perhaps: generation goes on
///     rollout.install();                                         // between two batches: a local copy
///
///     hub::subscriber rollout{{...}, subscriber_mode::double_buffered};
///     rollout.add("wq", {4096, 4096}, dtype::bf16);              // no pointer: the memory is ours
///     rollout.stage();                                           // into the side that is not live
///     rollout.install();                                         // flips: no copy, no reader is disturbed
///     const void* wq = rollout.tensor("wq");                     // where it is now; ask again after a flip
///
/// | mode            | memory                            | add      | update | stage, install | tensor |
/// |-----------------|-----------------------------------|----------|--------|----------------|--------|
/// | in_place        | the user's                        | pointers | yes    |                |        |
/// | staged          | the user's, and a stage like it   | pointers | yes    | yes            |        |
/// | double_buffered | two sides of the library's        | shapes   | yes    | yes            | yes    |
///
/// A call that the mode does not have throws `invalid_argument` and names the modes that have it. All others
/// are alike in every mode. `update` is `stage` and `install` where there are these two; `update_async` is of
/// mode in_place.
///
/// Staged: the stage lies in host memory of the library's own, as large as the shard, held by a second
/// worker, which the server lists as replica "<replica>@stage". It is a source for others from its first
/// chunk until the next `stage` begins. Until `install` begins, nothing that happens to the stage touches the
/// live weights, or what is served of them.
///
/// Double-buffered: each side is a worker of its own, listed as replicas "<replica>@a" and "<replica>@b".
/// What a side holds is served from the moment it begins to arrive until that side is the target of a
/// `stage` again: the version that was live before goes on being served, and can be gone back to
/// (`stage(exactly(old))` finds it there and reads nothing). All shards are constructed and flip the same
/// number of times: where one process is replaced, the others must construct theirs anew too, or `stage`
/// fails with `group_failed` (staged has no such condition).
///
/// In both, the shards of a replica stage one version together: all of them have it, or `stage` fails in all
/// of them, and what is live is untouched. `install` is local, but the first call of all joins the model;
/// when to install is for the shards to agree upon.
///
/// Thread safety and errors: as worker/worker.hpp says. `stage` may run beside anything but `install`, which
/// then fails with `busy`.

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
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/fwd.hpp"
#include "tensorhub/types/element.hpp"
#include "tensorhub/worker/add_elements.hpp"
#include "tensorhub/worker/policy_data_plane.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

enum class subscriber_mode : std::uint8_t { in_place, staged, double_buffered };

/// "in_place", "staged", "double_buffered".
[[nodiscard]] TENSORHUB_DECL std::string_view to_string(subscriber_mode mode) noexcept;
/// The mode of this name; throws `invalid_argument` if there is none.
[[nodiscard]] TENSORHUB_DECL subscriber_mode subscriber_mode_named(std::string_view name);

/// What a subscriber of any policies can do. What is not documented here is as at `worker`; a subscriber is a
/// source from a successful `update` or `stage` until the next one begins.
class any_subscriber {
 public:
  /// Of a running `update` or `stage`: progress, result, cancel.
  using update_handle = tensorhub::update_handle;

  any_subscriber(const any_subscriber&) = delete;
  any_subscriber& operator=(const any_subscriber&) = delete;

  [[nodiscard]] subscriber_mode mode() const noexcept { return mode_; }

  // ---- the tensors: all are added, in the same order in every worker of the shard, before the first other
  // call

  /// In place and staged: `data` stays the user's, and is written.
  TENSORHUB_DECL void add(std::string name, void* data, std::span<const std::uint64_t> dimensions,
                          dtype type);
  TENSORHUB_DECL void add(std::string name, void* data, std::initializer_list<std::uint64_t> dimensions,
                          dtype type);
  /// Of a vector, an array or a span, whose element type says what they are; without dimensions in one.
  template <writable_elements Range>
  void add(std::string name, Range&& values, std::initializer_list<std::uint64_t> dimensions = {}) {
    detail::add_elements(*this, std::move(name), values, dimensions);
  }
  /// Double-buffered: the memory is the library's.
  TENSORHUB_DECL void add(std::string name, std::span<const std::uint64_t> dimensions, dtype type);
  TENSORHUB_DECL void add(std::string name, std::initializer_list<std::uint64_t> dimensions, dtype type);

  TENSORHUB_DECL void keep_alive(std::shared_ptr<const void> owner);

  /// Double-buffered: also allocates both sides.
  TENSORHUB_DECL void join();

  // ---- receive

  /// In place: into the live weights. Staged, double-buffered: `stage` and then `install`, if the version is
  /// not live already; what is live stays as it is when that fails. (What is live may differ between shards,
  /// and all make the same calls: of several shards each stages the version also where it is live.)
  TENSORHUB_DECL update_report update(version_selector selector = latest,
                                      std::chrono::milliseconds timeout = defaults::update_timeout,
                                      update_reach reach = update_reach::anywhere);
  TENSORHUB_DECL update_report update(version_selector selector, retry_t,
                                      std::chrono::milliseconds timeout = defaults::update_timeout,
                                      update_reach reach = update_reach::anywhere);
  [[nodiscard]] TENSORHUB_DECL update_handle update_async(
      version_selector selector = latest, std::chrono::milliseconds timeout = defaults::update_timeout,
      update_reach reach = update_reach::anywhere);

  /// Beside the live weights, and verifies it. What was staged before is given up, whatever the outcome; its
  /// readers end or are moved first (for at most `worker_options::drain_timeout`). A version that is open may
  /// be read ahead (`worker::update_async`). Staged: a version that is live already is received all the same,
  /// ask `newer` first.
  TENSORHUB_DECL update_report stage(version_selector selector = latest,
                                     std::chrono::milliseconds timeout = defaults::update_timeout,
                                     update_reach reach = update_reach::anywhere);
  /// The same, repeated as `update` with `retry`.
  TENSORHUB_DECL update_report stage(version_selector selector, retry_t,
                                     std::chrono::milliseconds timeout = defaults::update_timeout,
                                     update_reach reach = update_reach::anywhere);
  /// Like `stage`, in a thread of its own. This object must outlive the handle.
  [[nodiscard]] TENSORHUB_DECL update_handle stage_async(
      version_selector selector = latest, std::chrono::milliseconds timeout = defaults::update_timeout,
      update_reach reach = update_reach::anywhere);

  /// What was staged is live when this returns, and served (staged: as soon as the server has heard).
  /// `not_found`: no `stage` has succeeded since the last `install`, or what was staged was rolled back;
  /// `unavailable`: the same, of which only the live side has heard yet; `busy`: a `stage` is running.
  ///
  /// Staged: it is copied over the live weights, which must not be in use. The live version's readers end or
  /// are moved first, for at most `worker_options::drain_timeout`; once the live worker has joined, a silent
  /// server costs at most `server_timeout`, after which they are cut off (unless a version is retained). For
  /// the server the live replica holds the version when all its shards have installed. A shard whose install
  /// fails before its first byte has changed goes on holding and serving the old version.
  ///
  /// Double-buffered: the sides are exchanged, at once.
  TENSORHUB_DECL install_report install(std::chrono::milliseconds timeout = defaults::update_timeout);

  /// Double-buffered: where a tensor's live bytes are (null: it has none), valid as long as this object
  /// lives; the bytes there change when the first `stage` after the next `install` begins. Throws `not_found`
  /// before the first `install`, `invalid_argument` for a name that was not added.
  [[nodiscard]] TENSORHUB_DECL void* tensor(const std::string& name) const;

  // ---- what there is

  /// The version that is live, completely; zero: none.
  [[nodiscard]] TENSORHUB_DECL version_number held_version() const;
  /// The version that lies beside it, completely: what was staged, or (double-buffered) what was live
  /// before; zero: none.
  [[nodiscard]] TENSORHUB_DECL version_number staged_version() const;
  [[nodiscard]] TENSORHUB_DECL std::optional<version_number> newer();
  TENSORHUB_DECL version_number wait(version_selector selector,
                                     std::chrono::milliseconds timeout = defaults::update_timeout);

  // ---- the end

  /// Hides what is live (double-buffered: of both sides) from others. It stays live.
  TENSORHUB_DECL unpublish_report unpublish(std::chrono::milliseconds timeout = defaults::drain_timeout);
  /// Gives up what lies beside it, as `unpublish` does.
  TENSORHUB_DECL unpublish_report release_stage(std::chrono::milliseconds timeout = defaults::drain_timeout);
  TENSORHUB_DECL unpublish_report leave(std::chrono::milliseconds grace = defaults::drain_timeout);
  TENSORHUB_DECL void interrupt();
  [[nodiscard]] std::uint64_t interrupts() const noexcept { return workers_[0]->interrupts(); }

  // ---- questions to the server, and what it is to retain

  [[nodiscard]] TENSORHUB_DECL std::vector<model_entry> list(
      std::string model = {}, std::chrono::milliseconds timeout = defaults::join_timeout);
  [[nodiscard]] TENSORHUB_DECL model_description
  describe_model(std::uint32_t shard, std::chrono::milliseconds timeout = defaults::join_timeout);
  /// Double-buffered: of the side that is not live.
  [[nodiscard]] TENSORHUB_DECL std::string why(std::chrono::milliseconds timeout = defaults::join_timeout);
  [[nodiscard]] TENSORHUB_DECL stuck_report
  stuck(std::chrono::milliseconds older_than = std::chrono::seconds{1},
        std::chrono::milliseconds timeout = defaults::join_timeout);
  TENSORHUB_DECL void retain(std::uint32_t versions,
                             std::chrono::milliseconds timeout = defaults::join_timeout);
  TENSORHUB_DECL void pin(version_number version, std::chrono::milliseconds timeout = defaults::join_timeout);
  TENSORHUB_DECL void release(version_number version,
                              std::chrono::milliseconds timeout = defaults::join_timeout);

  // ---- what it is, and what it has done

  [[nodiscard]] TENSORHUB_DECL incarnation self() const noexcept;
  [[nodiscard]] TENSORHUB_DECL const layout& shard_layout() const noexcept;
  /// Of both workers together, where there are two, as `offloaded_bytes`.
  [[nodiscard]] TENSORHUB_DECL registration_cost cost() const noexcept;
  [[nodiscard]] TENSORHUB_DECL std::uint64_t offloaded_bytes() const;
  /// Of the live weights' worker, whose updates are the installs where it is staged; double-buffered: of side
  /// a.
  [[nodiscard]] TENSORHUB_DECL worker_statistics statistics() const;
  /// Of the stage's worker; double-buffered: of side b.
  [[nodiscard]] TENSORHUB_DECL worker_statistics stage_statistics() const;

 protected:
  TENSORHUB_DECL any_subscriber(worker_options options, subscriber_mode mode,
                                const worker_policies& policies);
  ~any_subscriber() = default;
  /// As at `worker`, for the live weights.
  [[nodiscard]] TENSORHUB_DECL std::chrono::milliseconds await_stream(const void* stream,
                                                                      std::chrono::milliseconds timeout);
  /// `install`, after what `stream` holds now is done; null: at once.
  TENSORHUB_DECL install_report install_after(const void* stream, std::chrono::milliseconds timeout);
  struct update_call {
    version_selector selector{};
    const void* stream = nullptr;  ///< the weights are written when what it holds is done; null: at once
    bool repeats = false;          ///< with `retry`
    update_reach reach = update_reach::anywhere;
  };
  TENSORHUB_DECL update_report carry_out(const update_call& call, std::chrono::milliseconds timeout);
  /// If what is live is what an update would take, as the server has told until now. Empty where it does not
  /// answer, and always for one of several shards.
  [[nodiscard]] TENSORHUB_DECL std::optional<update_report> kept_report(version_selector selector,
                                                                        std::chrono::milliseconds timeout);

  // ---- for what shows both sides to others; not before `join`
  [[nodiscard]] const worker_options& options() const noexcept { return options_; }
  [[nodiscard]] std::span<const tensor_spec> tensors() const noexcept { return tensors_; }
  [[nodiscard]] const owned_tensors& memory_of(std::size_t side) const noexcept { return *memories_[side]; }
  /// The worker that `stage` writes: 0 or 1.
  [[nodiscard]] TENSORHUB_DECL std::size_t side_to_stage() const;
  [[nodiscard]] TENSORHUB_DECL worker& live_side() const;
  /// What is live is still the version of its number: it was not rolled back, nor taken back.
  [[nodiscard]] TENSORHUB_DECL bool holds_what_is_live() const;
  [[nodiscard]] TENSORHUB_DECL error failure(errc code, const std::string& sentence) const;
  /// `join` for a call that has a deadline of its own.
  TENSORHUB_DECL void join_by(std::chrono::steady_clock::time_point until);

 private:
  [[nodiscard]] bool flips() const noexcept { return mode_ == subscriber_mode::double_buffered; }
  TENSORHUB_DECL void require(bool has_call, const char* call, const char* modes) const;
  /// Once: the memory of the library's own.
  TENSORHUB_DECL void prepare();
  TENSORHUB_DECL void prepare_stage();
  TENSORHUB_DECL void prepare_sides();
  /// Pre-condition: mutex_ is held.
  [[nodiscard]] std::size_t next_side() const noexcept { return !flips() ? 1 : live_ ? 1 - *live_ : 0; }
  [[nodiscard]] TENSORHUB_DECL worker& idle_side() const;
  TENSORHUB_DECL install_report flip();
  TENSORHUB_DECL install_report copy_over(const void* stream, std::chrono::milliseconds timeout);

  worker_options options_;
  subscriber_mode mode_;
  mutable std::mutex mutex_;
  std::vector<tensor_spec> tensors_;              ///< double-buffered
  std::map<std::string, std::size_t> positions_;  ///< of `tensors_`
  /// None, the stage, or both sides; outlive the workers.
  std::vector<std::unique_ptr<owned_tensors>> memories_;
  std::optional<std::size_t> live_;           ///< double-buffered: the side
  version_number live_version_{};             ///< of that side
  std::array<std::uint64_t, 2> installed_{};  ///< successful stages of a worker at its last install
  std::array<std::unique_ptr<worker>, 2>
      workers_;  ///< live weights and stage (in place: none), or side a and b
};

/// A subscriber of these policies.
template <transport Transport, consistency Consistency = group_consistent, integrity Integrity = xxh3_128,
          memory_space Memory = host_memory>
class subscriber : public any_subscriber {
 public:
  using transport_options = typename Transport::options;

  explicit subscriber(worker_options options, transport_options through = {})
      : subscriber{std::move(options), subscriber_mode::in_place, std::move(through)} {}
  subscriber(worker_options options, subscriber_mode mode, transport_options through = {})
      : any_subscriber{std::move(options), mode,
                       policies_of<Transport, Consistency, Integrity, Memory>(std::move(through))} {}

  using any_subscriber::install;
  using any_subscriber::update;
  using any_subscriber::update_async;
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
    return any_subscriber::update(selector, timeout, reach);
  }
  update_report update(version_selector selector, retry_t, all_done_t,
                       std::chrono::milliseconds timeout = defaults::update_timeout,
                       update_reach reach = update_reach::anywhere) {
    return any_subscriber::update(selector, retry, timeout, reach);
  }
  [[nodiscard]] update_handle update_async(version_selector selector, all_done_t,
                                           std::chrono::milliseconds timeout = defaults::update_timeout,
                                           update_reach reach = update_reach::anywhere) {
    return any_subscriber::update_async(selector, timeout, reach);
  }
  install_report install(std::chrono::milliseconds = {})  //
      requires streaming_memory_space<Memory>
  = delete;
  install_report install(all_done_t, std::chrono::milliseconds timeout = defaults::update_timeout) {
    return any_subscriber::install(timeout);
  }
  /// After what the stream holds now is done (worker/stream_order.hpp), as the following.
  update_report update(version_selector selector, const stream_of<Memory>& stream,
                       std::chrono::milliseconds timeout = defaults::update_timeout,
                       update_reach reach = update_reach::anywhere) {
    return carry_out({.selector = selector, .stream = &stream, .reach = reach}, timeout);
  }
  update_report update(version_selector selector, retry_t, const stream_of<Memory>& stream,
                       std::chrono::milliseconds timeout = defaults::update_timeout,
                       update_reach reach = update_reach::anywhere) {
    return carry_out({.selector = selector, .stream = &stream, .repeats = true, .reach = reach}, timeout);
  }
  install_report install(const stream_of<Memory>& stream,
                         std::chrono::milliseconds timeout = defaults::update_timeout) {
    return install_after(&stream, timeout);
  }
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/subscriber.ipp"
#endif
