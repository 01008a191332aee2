#pragma once
/// \file seeder.hpp
/// Offload seeding: a background reader that brings each version into a datacenter's host memory while its
/// GPUs keep generating. Everybody there then updates from nearby, in the time of a local transfer.
///
///     hub::seeder seed{{.server = ..., .model = "policy", .replica = "seed-us-2",
///                       .location = {.datacenter = "us-2"}}};
///     ...
///     // The rollouts of that datacenter keep what they have until the seed has a newer one:
///     rollout.update(latest, 60s, tensorhub::prefer_local);
///
/// It needs no tensors: it asks the server for the layout and allocates memory of its own, one shard large.
/// It is a worker like any other (a replica of the model, of as many shards), so the server's rule that one
/// transfer per version and shard crosses into a datacenter holds for it too, and it serves while it
/// receives. A version that comes while another one is on its way is taken afterwards; of several, the
/// latest. A transfer may take any time as long as something new arrives within each
/// `worker_options::drain_timeout`; one that does not advance is begun anew.
///
/// Threads: one, besides those of a worker. Thread safety: every member may be called from any thread.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/fwd.hpp"
#include "tensorhub/server_client.hpp"
#include "tensorhub/worker/policy_data_plane.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// What a seeder of any policies can do.
class any_seeder {
 public:
  any_seeder(const any_seeder&) = delete;
  any_seeder& operator=(const any_seeder&) = delete;

  /// The version that is held completely; zero: none yet.
  [[nodiscard]] TENSORHUB_DECL version_number held_version() const;
  /// Waits until it holds `version` or a later one, and the server knows: a reader that prefers what is near
  /// finds it. Throws `timed_out`, with the last failure.
  TENSORHUB_DECL version_number wait(version_number version,
                                     std::chrono::milliseconds timeout = defaults::update_timeout);
  /// The calls of other threads (`wait`, and those below) end soon, with `cancelled`. The seeder goes on.
  TENSORHUB_DECL void interrupt();
  /// What went wrong last; empty: nothing so far.
  [[nodiscard]] TENSORHUB_DECL std::string last_failure() const;
  /// What it has done (worker/statistics.hpp).
  [[nodiscard]] TENSORHUB_DECL worker_statistics statistics() const;
  [[nodiscard]] TENSORHUB_DECL registration_cost cost() const noexcept;
  [[nodiscard]] TENSORHUB_DECL incarnation self() const noexcept;
  /// Host memory in which its process keeps retained versions for others, besides the seed's own.
  [[nodiscard]] TENSORHUB_DECL std::uint64_t offloaded_bytes() const;

  // ---- questions to the server, and what it is to retain; as at `worker`

  [[nodiscard]] TENSORHUB_DECL std::vector<model_entry> list(
      std::string model = {}, std::chrono::milliseconds timeout = defaults::join_timeout);
  [[nodiscard]] TENSORHUB_DECL model_description
  describe_model(std::uint32_t shard, std::chrono::milliseconds timeout = defaults::join_timeout);
  [[nodiscard]] TENSORHUB_DECL std::string why(std::chrono::milliseconds timeout = defaults::join_timeout);
  [[nodiscard]] TENSORHUB_DECL stuck_report
  stuck(std::chrono::milliseconds older_than = std::chrono::seconds{1},
        std::chrono::milliseconds timeout = defaults::join_timeout);
  TENSORHUB_DECL void retain(std::uint32_t versions,
                             std::chrono::milliseconds timeout = defaults::join_timeout);
  TENSORHUB_DECL void pin(version_number version, std::chrono::milliseconds timeout = defaults::join_timeout);
  TENSORHUB_DECL void release(version_number version,
                              std::chrono::milliseconds timeout = defaults::join_timeout);

 protected:
  TENSORHUB_DECL any_seeder(worker_options options, worker_policies policies);
  /// A transfer that is running ends within the transport's peer time-out.
  TENSORHUB_DECL ~any_seeder();

 private:
  TENSORHUB_DECL void run(const std::stop_token& stop);
  TENSORHUB_DECL void round(const std::stop_token& stop);
  /// Throws `not_found` while no worker of the shard has joined.
  TENSORHUB_DECL void take_layout();
  /// Waits for a newer version for a while, and reads it.
  TENSORHUB_DECL void step(const std::stop_token& stop);
  /// Returns when the update has ended, or is to; throws `timed_out` if it does not advance.
  TENSORHUB_DECL void watch(const update_handle& begun, const std::stop_token& stop);
  TENSORHUB_DECL void note(const error& failed, const std::stop_token& stop);

  static constexpr std::chrono::milliseconds waiting{500};  ///< between two looks at the stop request
  static constexpr std::chrono::milliseconds pause{200};    ///< after a failure
  static constexpr std::chrono::seconds long_pause{60};     ///< after one that lasts: it has been replaced

  worker_options options_;
  std::unique_ptr<owned_tensors> memory_;  ///< outlives the worker, which reads into it
  worker worker_;
  server_client client_;  ///< asks without joining: the worker joins when the layout is known
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  version_number held_{};
  std::uint64_t interrupts_ = 0;
  std::string last_failure_;
  bool has_layout_ = false;  ///< all tensors are added. This and the next one are the thread's
  bool is_failing_ = false;
  std::jthread thread_;  ///< last: it uses everything above
};

/// A seeder of these policies. `Memory` is host memory; for readers with devices best such as these copy from
/// fast (`offload_space_of`).
template <transport Transport, consistency Consistency = group_consistent, integrity Integrity = xxh3_128,
          memory_space Memory = host_memory>
class seeder : public any_seeder {
  static_assert(Memory::host_accessible, "a seed is kept in host memory: see offload_space_of");

 public:
  using transport_options = typename Transport::options;

  /// Begins at once, and goes on until it is destroyed: also while there is no server, no layout, no version.
  explicit seeder(worker_options options, transport_options through = {})
      : any_seeder{std::move(options),
                   policies_of<Transport, Consistency, Integrity, Memory>(std::move(through))} {}
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/seeder.ipp"
#endif
