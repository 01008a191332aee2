#pragma once
/// \file seeder.hpp
/// Offload seeding: a background reader that brings each version into a datacenter's host memory while its
/// GPUs keep generating. Everybody there then updates from nearby, in the time of a local transfer.
///
///     hub::seeder seed{{.server = ..., .model = "policy", .replica = "seed-us-2", .location = {.datacenter =
///     "us-2"}}}; ...                                                          // in the rollouts of that
///     datacenter: rollout.update(latest, 60s, tensorhub::prefer_local);        // keeps what it has until
///     the seed has a newer one
///
/// It needs no tensors: it asks the server for the layout and allocates memory of its own, one shard large.
/// It is a worker like any other (a replica of the model, of as many shards), so the server's rule that one
/// transfer per version and shard crosses into a datacenter holds for it too, and it serves while it
/// receives. A version that comes while another one is on its way is taken afterwards; of several, the
/// latest.
///
/// Threads: one, besides those of a worker. Thread safety: every member may be called from any thread.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transfer/tensor_memory.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// `Memory` is host memory; for readers with devices best such as these copy from fast (`offload_space_of`).
template <transport Transport, consistency Consistency = group_consistent, integrity Integrity = xxh3_128,
          memory_space Memory = host_memory>
class seeder {
  static_assert(Memory::host_accessible, "a seed is kept in host memory: see offload_space_of");
  using worker_type = worker<Transport, Consistency, Integrity, Memory>;

 public:
  using transport_options = typename worker_type::transport_options;

  /// Begins at once, and goes on until it is destroyed: also while there is no server, no layout, no version.
  explicit seeder(worker_options options, transport_options through = {})
      : options_{options}, worker_{std::move(options), std::move(through)} {
    thread_ = std::jthread{[this](const std::stop_token& stop) { run(stop); }};
  }
  seeder(const seeder&) = delete;
  seeder& operator=(const seeder&) = delete;
  /// A transfer that is running ends within the transport's peer time-out.
  ~seeder() {
    thread_.request_stop();
    const std::lock_guard lock{mutex_};
    if (running_) running_->cancel();
    changed_.notify_all();
  }

  /// The version that is held completely; zero: none yet.
  [[nodiscard]] version_number held_version() const {
    const std::lock_guard lock{mutex_};
    return held_;
  }
  /// Waits until it holds `version` or a later one. Throws `timed_out`, with the last failure.
  version_number wait(version_number version, std::chrono::milliseconds timeout = defaults::update_timeout) {
    std::unique_lock lock{mutex_};
    if (!changed_.wait_for(lock, timeout, [&] { return held_ >= version; })) {
      throw error(errc::timed_out,
                  "the seed '" + options_.replica + "' holds version " + to_string(held_) + ", not yet " +
                      to_string(version) +
                      (last_failure_.empty() ? std::string{} : "; its last failure: " + last_failure_),
                  {.model = options_.model,
                   .replica = options_.replica,
                   .shard = options_.shard.index,
                   .version = version.value,
                   .peer = {},
                   .chunk = {}});
    }
    return held_;
  }
  /// What went wrong last; empty: nothing so far.
  [[nodiscard]] std::string last_failure() const {
    const std::lock_guard lock{mutex_};
    return last_failure_;
  }

  /// What it has done (worker/statistics.hpp).
  [[nodiscard]] worker_statistics statistics() const { return worker_.statistics(); }

 private:
  using handle_type = typename worker_type::update_handle;

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      try {
        if (!memory_) take_layout();
        step(stop);
      } catch (const error& e) {
        if (e.code() != errc::timed_out) note(e);
      }
    }
  }

  /// Throws `not_found` while no worker of the shard has joined.
  void take_layout() {
    const auto known = worker_.describe_model(options_.shard.index, waiting);
    memory_.emplace(known.tensors);
    for (std::size_t i = 0; i < known.tensors.size(); ++i)
      worker_.add(known.tensors[i].name, memory_->data(i), known.tensors[i].shape, known.tensors[i].type);
  }

  /// Waits for a newer version for a while, and reads it.
  void step(const std::stop_token& stop) {
    const version_selector newer = at_least(version_number{held_version().value + 1});
    worker_.wait(newer, waiting);
    auto begun = worker_.update_async(newer);
    {
      const std::lock_guard lock{mutex_};
      running_ = &begun;
      if (stop.stop_requested()) begun.cancel();
    }
    std::optional<error> failed;
    version_number version{};
    try {
      version = begun.wait().version;
    } catch (const error& e) {
      failed = e;
    }
    const std::lock_guard lock{mutex_};
    running_ = nullptr;
    if (failed) throw *failed;
    held_ = version;
    changed_.notify_all();
  }

  void note(const error& e) {
    std::unique_lock lock{mutex_};
    last_failure_ = e.what();
    if (options_.log) {
      log_line line = line_of(log_level::warning, e);
      line.text = "seed: " + line.text;
      options_.log(line);
    }
    changed_.wait_for(lock, thread_.get_stop_token(), pause, [] { return false; });
  }

  static constexpr std::chrono::milliseconds waiting{500};  ///< between two looks at the stop request
  static constexpr std::chrono::milliseconds pause{200};    ///< after a failure

  worker_options options_;
  std::optional<tensor_memory<Memory>> memory_;  ///< outlives the worker, which reads into it
  worker_type worker_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  version_number held_{};
  handle_type* running_ = nullptr;
  std::string last_failure_;
  std::jthread thread_;  ///< last: it uses everything above
};

}  // namespace tensorhub::inline TENSORHUB_MODE
