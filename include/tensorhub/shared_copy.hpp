#pragma once
/// \file shared_copy.hpp
/// One received copy for all processes of a machine: one process receives, the others map the same memory.
///
///     // in one process of the machine
///     tensorhub::shared_copy<tcp> copy{{.server = ..., .model = "policy", .replica = "host-7"}, "policy"};
///     copy.add("wq", {4096, 4096}, dtype::bf16);        // no pointer: the memory is ours
///     copy.update(at_least(3));
///
///     // in any other process of the same user
///     tensorhub::attached_copy weights{"policy"};       // attached_copy.hpp
///     auto held = weights.hold(at_least(3));            // nothing is copied
///     std::span<const std::byte> wq = held.tensor("wq");
///
/// The wire and the memory are paid once per machine. The copy is a double-buffered subscriber: a version is
/// received, and verified, beside the one that is live, and then becomes live. What a process holds does not
/// change while it holds it: `update` first waits until nobody holds the memory that it needs, which is
/// that of the version before the live one. So a process may hold a version during one update, and delays
/// the next. A process that ends, in whatever way, holds nothing any more.
///
/// The name is one of the machine (exactly: of its network namespace). Only processes of the same user can
/// attach. They cannot write to the memory; the owner can.
///
/// Host memory only: device memory is not shared this way (`invalid_argument`).

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/attached_copy.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/fwd.hpp"
#include "tensorhub/subscriber.hpp"
#include "tensorhub/worker/call_turn.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace shared_copy_detail {
class copy_desk;
}

/// A process that has attached, and whether it holds something now.
struct attached_process {
  pid_t process = 0;  ///< 0: not visible from here
  bool holds_live = false;
  bool holds_previous = false;
};

/// What a shared copy of any policies can do; where nothing else is said, as at `subscriber` in mode
/// double_buffered.
/// Thread safety: as there.
class any_shared_copy : private any_subscriber {
 public:
  using any_subscriber::add;
  using any_subscriber::describe_model;
  using any_subscriber::held_version;
  using any_subscriber::list;
  using any_subscriber::mode;
  using any_subscriber::newer;
  using any_subscriber::offloaded_bytes;
  using any_subscriber::pin;
  using any_subscriber::release;
  using any_subscriber::retain;
  using any_subscriber::stage_statistics;
  using any_subscriber::statistics;
  using any_subscriber::stuck;
  using any_subscriber::tensor;
  using any_subscriber::unpublish;
  using any_subscriber::wait;
  using any_subscriber::why;

  /// Allocates both memories, joins the model, and lets processes attach. Implied by the first `update`.
  /// Throws `invalid_argument` if the name is taken, no tensor has bytes, or the memory lies in no file.
  TENSORHUB_DECL void join();

  /// Receives a version, and makes it live. One at a time: a second call fails with `busy` at once. A copy
  /// of one shard keeps what is live, and reads nothing, where that is what the server would give it; several
  /// shards always receive, because they could not agree on it. Throws `timed_out`, with the processes in the
  /// sentence, if some still hold the memory that it needs; on failure what is live stays as it is.
  TENSORHUB_DECL update_report update(version_selector selector = latest,
                                      std::chrono::milliseconds timeout = defaults::update_timeout,
                                      update_reach reach = update_reach::anywhere);

  /// Those that are attached now.
  [[nodiscard]] TENSORHUB_DECL std::vector<attached_process> attached() const;

  /// Ends the calls of other threads, as at `worker`.
  TENSORHUB_DECL void interrupt();
  /// Leaves the model within `grace`. What is live stays live for those attached, until this object ends.
  using any_subscriber::leave;

 protected:
  TENSORHUB_DECL any_shared_copy(worker_options options, const worker_policies& policies, std::string name);
  TENSORHUB_DECL ~any_shared_copy();

 private:
  TENSORHUB_DECL void join_by(std::chrono::steady_clock::time_point until);
  [[nodiscard]] TENSORHUB_DECL std::string holders_of(std::size_t side) const;

  std::string name_;
  call_turn updating_;
  mutable std::mutex mutex_;
  std::shared_ptr<shared_copy_detail::copy_desk> desk_;  ///< set once, by `join`, under mutex_
};

/// A shared copy of these policies; `name` is what other processes attach to.
template <transport Transport, consistency Consistency = group_consistent, integrity Integrity = xxh3_128>
class shared_copy : public any_shared_copy {
 public:
  using transport_options = typename Transport::options;

  shared_copy(worker_options options, std::string name, transport_options through = {})
      : any_shared_copy{std::move(options),
                        policies_of<Transport, Consistency, Integrity, host_memory>(std::move(through)),
                        std::move(name)} {}
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/shared_copy.ipp"
#endif
