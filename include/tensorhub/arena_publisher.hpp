#pragma once
/// \file arena_publisher.hpp
/// A trainer that has no tensors to publish in place: a framework hands them over one by one (a gathered
/// FSDP or Megatron model), into memory of the library's.
///
///     hub::arena_publisher trainer{{...}};
///     trainer.add("wq", {4096, 4096}, dtype::bf16);     // the layout; the memory is ours
///     trainer.begin(step);                              // from now on workers that wait for it read along
///     trainer.put("wq", bytes);                         // in any order, from several threads
///     trainer.commit(step);                             // every tensor was put: the version is whole
///
/// While a version is filled, it is *open*: each chunk can be read as soon as it is full, but the version
/// counts only when it is committed. Until then nobody's call ends with it, and nobody is told of it. Only
/// updates that would otherwise wait, and whose failure costs nothing, read an open version: those of staged
/// and double-buffered subscribers (`worker::update_async`, `ahead`). If it is never committed (`unpublish`,
/// the end of the process), they fail with `unavailable`.
///
/// Thread safety: `put` and `tensor` from any thread, each tensor from one; everything else as at `worker`,
/// and not beside `put`.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/fwd.hpp"
#include "tensorhub/worker/policy_data_plane.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// What an arena publisher of any policies can do. What is not documented here is as at `worker`.
class any_arena_publisher : private worker {
 public:
  using worker::cost;
  using worker::describe_model;
  using worker::held_version;
  using worker::interrupt;
  using worker::leave;
  using worker::list;
  using worker::offloaded_bytes;
  using worker::self;
  using worker::shard_layout;
  using worker::statistics;
  using worker::stuck;
  using worker::wait;
  using worker::wait_held;
  using worker::why;

  /// Tells of one tensor, before the first other call; in every worker of the shard alike.
  TENSORHUB_DECL void add(std::string name, std::span<const std::uint64_t> dimensions, dtype type);
  TENSORHUB_DECL void add(std::string name, std::initializer_list<std::uint64_t> dimensions, dtype type);

  /// Allocates the memory and joins the model. Implied by the first of the following calls.
  TENSORHUB_DECL void join();

  TENSORHUB_DECL void retain(std::uint32_t versions,
                             std::chrono::milliseconds timeout = defaults::join_timeout);
  TENSORHUB_DECL void pin(version_number version, std::chrono::milliseconds timeout = defaults::join_timeout);
  TENSORHUB_DECL void release(version_number version,
                              std::chrono::milliseconds timeout = defaults::join_timeout);
  TENSORHUB_DECL void roll_back_to(version_number version,
                                   std::chrono::milliseconds timeout = defaults::join_timeout);

  /// Opens `version`: what is put from now on can be read at once. What was published before is taken back
  /// first, as by `unpublish(timeout)`; the server's answer to the rest may take `join_timeout` more. Without
  /// this call nothing is shown until `commit`.
  TENSORHUB_DECL void begin(version_number version,
                            std::chrono::milliseconds timeout = defaults::drain_timeout);

  /// Copies one tensor to its place. Throws `invalid_argument` for a name that was not added, for another
  /// number of bytes than the tensor has, and for a tensor of an open version that was put already. The first
  /// `put` after a `commit` takes that version back, as `unpublish` with its default time-out.
  TENSORHUB_DECL void put(const std::string& name, std::span<const std::byte> bytes);
  /// The same for bytes that the caller has written to where `tensor` says.
  TENSORHUB_DECL void put(const std::string& name);
  /// Where a tensor's bytes belong (null: it has none). They may be written while nothing is published, and
  /// before the tensor is put.
  [[nodiscard]] TENSORHUB_DECL void* tensor(const std::string& name);

  /// Makes `version` whole. Throws `invalid_argument` if a tensor was not put since the last `commit`, or if
  /// another version was begun.
  TENSORHUB_DECL publish_report commit(version_number version,
                                       std::chrono::milliseconds timeout = defaults::join_timeout);

  /// As at `worker`, also of an open version, which is then never whole. All tensors have to be put again.
  TENSORHUB_DECL unpublish_report unpublish(std::chrono::milliseconds timeout = defaults::drain_timeout);

 protected:
  TENSORHUB_DECL any_arena_publisher(worker_options options, const worker_policies& policies);
  ~any_arena_publisher() = default;

 private:
  /// How far a tensor is.
  enum class progress : std::uint8_t { missing, being_put, put };

  TENSORHUB_DECL void join_by(std::chrono::steady_clock::time_point until);
  /// What is left of `timeout` when it has joined.
  [[nodiscard]] TENSORHUB_DECL std::chrono::milliseconds joined_within(std::chrono::milliseconds timeout);
  /// Once: the memory. Pre-condition: `mutex_` is the caller's.
  TENSORHUB_DECL void prepare();
  /// The position of a tensor that is to be put now.
  [[nodiscard]] TENSORHUB_DECL std::size_t take(const std::string& name, std::uint64_t bytes);
  TENSORHUB_DECL void fill(std::size_t tensor, const std::byte* from);
  /// A small tensor is packed: seals the chunks that are full with it.
  TENSORHUB_DECL void seal_packed(chunk_run chunks);
  TENSORHUB_DECL void forget_what_was_put();
  [[nodiscard]] TENSORHUB_DECL std::size_t position_of(const std::string& name) const;
  [[nodiscard]] TENSORHUB_DECL error failure(errc code, const std::string& sentence,
                                             version_number version = {}) const;

  worker_options options_;
  mutable std::mutex mutex_;  ///< guards what follows
  std::vector<tensor_spec> tensors_;
  std::map<std::string, std::size_t> positions_;
  std::shared_ptr<owned_tensors> memory_;        ///< the worker's as well, which outlives this
  std::vector<progress> progress_;               ///< by tensor
  std::vector<std::uint32_t> lacking_;           ///< by chunk of the packed segment: tensors not put yet
  std::vector<std::uint32_t> tensors_of_chunk_;  ///< what `lacking_` begins with
  version_number begun_{};                       ///< open; zero: none
  bool is_published_ = false;                    ///< committed, and nothing was put since
};

/// An arena publisher of these policies.
template <transport Transport, consistency Consistency = group_consistent, integrity Integrity = xxh3_128,
          memory_space Memory = host_memory>
class arena_publisher : public any_arena_publisher {
 public:
  using transport_options = typename Transport::options;

  explicit arena_publisher(worker_options options, transport_options through = {})
      : any_arena_publisher{std::move(options),
                            policies_of<Transport, Consistency, Integrity, Memory>(std::move(through))} {
    static_assert(Memory::host_accessible, "an arena lies in host memory: put() copies by the CPU");
  }
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/arena_publisher.ipp"
#endif
