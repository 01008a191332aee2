#pragma once
/// \file pull_driver.hpp
/// Runs a `pull` over a transport: the thin shell between the pure core and one-sided reads.
///
/// `run` works in the calling thread and in `lanes - 1` more. Each lane has its own queue, endpoints and
/// scratch memory, and digests a chunk right after its arrival, while it is in the cache of the core that
/// received it. All lanes share one `pull` under one mutex that is held for decisions only, never for a byte
/// of a chunk.
///
/// Thread safety: `add_source`, `switch_source`, `stop`, `progress` may be called by any thread while `run`
/// runs; `run` is called once.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensorhub/concepts/integrity.hpp"
#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transfer/pull.hpp"

namespace tensorhub {

/// Where a layout segment lies in this process.
template <typename Region>
struct segment_place {
  const Region* region = nullptr;  ///< borrowed
  std::uint64_t offset = 0;        ///< of the segment in the region
  std::byte* data = nullptr;
};

struct pull_driver_options {
  std::size_t lanes = 1;
  std::size_t window_chunks = 4;  ///< per lane
  duration connect_timeout = defaults::connect_timeout;
};

/// A source as the driver needs it: what to believe and where to find it.
struct pull_target {
  pull_source facts{};
  transport_address address{};
  remote_region control{};
  std::string name{};  ///< for reports
};

struct pull_progress {
  std::uint64_t bytes = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t chunks = 0;
  std::uint64_t total_chunks = 0;
};

template <transport Transport, integrity Integrity>
class pull_driver {
 public:
  using region_type = typename Transport::memory_region;
  struct callbacks {
    std::function<void(const source_failure&)>
        source_failed{};                              ///< ask for another one; any lane, no lock held
    std::function<void(lease_id)> source_released{};  ///< nothing of it is outstanding any more; ditto
  };

  /// Borrows everything; `places` has one entry per layout segment.
  pull_driver(Transport& through, const layout& shape, std::span<const segment_place<region_type>> places,
              std::uint64_t digest_seed, chunk_index first_chunk, pull_driver_options options,
              callbacks handlers)
      : transport_{&through},
        layout_{&shape},
        places_{places},
        seed_{digest_seed},
        options_{options},
        handlers_{std::move(handlers)},
        core_{shape, {.window_chunks = options.window_chunks}, first_chunk} {
    options_.lanes = std::max<std::size_t>(1, options_.lanes);
    total_bytes_ = shape.bytes();
  }

  void add_source(pull_target target) { switch_source(std::move(target), {}); }

  /// `released`: lease of the source to let go (if set), which is then reported.
  void switch_source(pull_target target, lease_id released) {
    const std::lock_guard lock{mutex_};
    for (source_slot slot = 0; slot < sources_.size(); ++slot) {
      if (released && sources_[slot].target.facts.lease == released) {
        core_.retire_source(slot);
        sources_[slot].report_release = true;
      }
    }
    core_.add_source(target.facts);
    sources_.push_back({std::move(target), false});
    ++generation_;
    wake_all();
  }

  /// Ends `run` soon. Idempotent.
  void stop() {
    const std::lock_guard lock{mutex_};
    stopped_ = true;
    ++generation_;
    wake_all();
  }

  /// Reads until everything is confirmed (true) or until stopped (false). When it returns, no read is
  /// outstanding. Throws what a lane's set-up threw (queue, registration of scratch memory).
  bool run() {
    {
      std::vector<std::jthread> helpers;
      for (std::size_t i = 1; i < options_.lanes; ++i) helpers.emplace_back([this] { guarded_lane(); });
      guarded_lane();
    }
    if (failure_) std::rethrow_exception(failure_);
    return core_.done();
  }

  [[nodiscard]] pull_progress progress() const {
    const std::lock_guard lock{mutex_};
    return {core_.confirmed_bytes(), total_bytes_, core_.confirmed_chunks(), layout_->chunk_count()};
  }
  /// Names of all sources so far.
  [[nodiscard]] std::vector<std::string> source_names() const {
    const std::lock_guard lock{mutex_};
    std::vector<std::string> names;
    for (const auto& source : sources_) names.push_back(source.target.name);
    return names;
  }
  /// How each of them was reached, in the same order; empty: it was not.
  [[nodiscard]] std::vector<std::string> source_paths() const {
    const std::lock_guard lock{mutex_};
    std::vector<std::string> paths;
    for (const auto& source : sources_) paths.push_back(source.path);
    return paths;
  }
  /// After `run`: no byte of the target memory was touched.
  [[nodiscard]] bool intact() const { return core_.intact(); }
  /// After `run` returned true.
  [[nodiscard]] std::span<const digest128> table() const { return core_.table(); }

 private:
  using queue_type = typename Transport::queue;
  using endpoint_type = typename Transport::endpoint;

  struct source_record {
    pull_target target{};
    bool report_release = false;
    std::string path{};
  };
  struct channel_record {
    source_slot slot = 0;
    channel_id id = 0;
    std::optional<endpoint_type> endpoint{};
  };
  struct lane_state {
    queue_type queue;
    std::vector<std::uint64_t> scratch;  ///< whole control block, then a header
    std::vector<region_type> scratch_region{};
    std::vector<channel_record> channels{};
    std::uint64_t generation = 0;  ///< of the sources that this lane has looked at
  };

  // A request names its channel (upper 16 bits), its kind (2) and its chunk (the rest).
  static constexpr unsigned chunk_bits = 46;
  [[nodiscard]] static request_id pack(std::size_t channel, const pull_task& task) noexcept {
    return static_cast<request_id>(channel) << 48 | static_cast<request_id>(task.kind) << chunk_bits |
           task.chunk;
  }

  void guarded_lane() {
    try {
      lane();
    } catch (...) {
      const std::lock_guard lock{mutex_};
      if (!failure_) failure_ = std::current_exception();
      stopped_ = true;
      wake_all();
    }
  }

  void lane() {
    const std::uint64_t block_bytes = control_offsets::of(*layout_).total_bytes;
    lane_state self{transport_->make_queue(options_.window_chunks + 4),
                    std::vector<std::uint64_t>((block_bytes + sizeof(control_header) + 7) / 8)};
    const memory_range scratch{std::as_writable_bytes(std::span{self.scratch}).data(),
                               self.scratch.size() * 8};
    self.scratch_region = transport_->register_memory(std::span{&scratch, 1}, region_access::local_write);
    {
      const std::lock_guard lock{mutex_};
      queues_.push_back(&self.queue);
    }
    struct unlist {
      pull_driver* driver;
      queue_type* queue;
      ~unlist() {
        const std::lock_guard lock{driver->mutex_};
        std::erase(driver->queues_, queue);
      }
    } const unlist_at_exit{this, &self.queue};

    std::array<completion, 16> completions;
    while (!finished()) {
      open_channels(self);
      const bool posted = post_tasks(self);
      const std::size_t count = self.queue.poll(completions);
      for (std::size_t i = 0; i < count; ++i) take_in(self, completions[i]);
      report(self);
      if (!posted && count == 0) self.queue.wait(idle_wait);
    }
    self.channels.clear();  // endpoints end their outstanding reads; the queue's destruction makes that final
  }

  [[nodiscard]] bool finished() const {
    const std::lock_guard lock{mutex_};
    return stopped_ || core_.done();
  }

  /// Connects to sources that this lane does not know yet.
  void open_channels(lane_state& self) {
    for (;;) {
      pull_target target;
      source_slot slot{};
      {
        const std::lock_guard lock{mutex_};
        if (self.generation == generation_ && self.channels.size() == sources_.size()) return;
        self.generation = generation_;
        slot = static_cast<source_slot>(self.channels.size());
        if (slot == sources_.size() || stopped_) return;
        self.channels.push_back({slot, core_.open_channel(slot), std::nullopt});
        if (core_.is_lost(slot)) continue;
        target = sources_[slot].target;
      }
      try {
        self.channels.back().endpoint.emplace(
            transport_->connect(self.queue, target.address, target.facts.holder, options_.connect_timeout));
        note_path(slot, *self.channels.back().endpoint);
      } catch (const error& e) {
        const std::lock_guard lock{mutex_};
        core_.lose_source(slot, e.code() == errc::timed_out ? errc::timed_out : errc::source_lost,
                          "connecting: " + e.sentence());
        wake_all();
      }
    }
  }

  /// How a source is reached: the transport's name, or the choice that a composed one made.
  void note_path(source_slot slot, const endpoint_type& through) {
    const std::lock_guard lock{mutex_};
    if constexpr (requires { through.why(); }) {
      sources_[slot].path = through.why();
    } else {
      sources_[slot].path = Transport::name;
    }
  }

  bool post_tasks(lane_state& self) {
    bool posted = false;
    for (std::size_t i = 0; i < self.channels.size(); ++i) {
      channel_record& channel = self.channels[i];
      while (channel.endpoint) {
        std::optional<pull_task> task;
        const remote_region* from = nullptr;
        {
          const std::lock_guard lock{mutex_};
          task = core_.next(channel.id);
          if (task && task->kind == pull_task::kind_type::chunk) {
            from = &core_.segments(channel.slot)[layout_->slice(task->chunk).segment];
          } else {
            from = &sources_[channel.slot].target.control;
          }
        }
        if (!task) break;
        if (post(self, i, *task, *from) == post_result::queue_full) {
          const std::lock_guard lock{mutex_};
          core_.not_posted(channel.id, *task);
          break;
        }
        posted = true;
      }
    }
    return posted;
  }

  [[nodiscard]] post_result post(lane_state& self, std::size_t channel, const pull_task& task,
                                 const remote_region& from) {
    endpoint_type& endpoint = *self.channels[channel].endpoint;
    const std::uint64_t block_bytes = control_offsets::of(*layout_).total_bytes;
    switch (task.kind) {
      case pull_task::kind_type::block:
        return self.queue.post_read(endpoint, self.scratch_region.front(), 0, {&from, 0, block_bytes},
                                    pack(channel, task));
      case pull_task::kind_type::header:
        return self.queue.post_read(endpoint, self.scratch_region.front(), header_offset(block_bytes),
                                    {&from, 0, sizeof(control_header)}, pack(channel, task));
      case pull_task::kind_type::chunk:
        break;
    }
    const chunk_slice slice = layout_->slice(task.chunk);
    const auto& place = places_[slice.segment];
    return self.queue.post_read(endpoint, *place.region, place.offset + slice.offset,
                                {&from, slice.offset, slice.bytes}, pack(channel, task));
  }

  [[nodiscard]] static std::uint64_t header_offset(std::uint64_t block_bytes) noexcept {
    return (block_bytes + 7) / 8 * 8;
  }

  void take_in(lane_state& self, const completion& done) {
    channel_record& channel = self.channels[done.id >> 48];
    const auto kind = static_cast<pull_task::kind_type>((done.id >> chunk_bits) & 3u);
    const chunk_index chunk = done.id & ((1ull << chunk_bits) - 1);
    const auto scratch = std::as_bytes(std::span{self.scratch});
    const std::uint64_t block_bytes = control_offsets::of(*layout_).total_bytes;
    switch (kind) {
      case pull_task::kind_type::chunk: {
        digest128 digest;
        if (Integrity::enabled && done.status == completion_status::ok) {
          const chunk_slice slice = layout_->slice(chunk);
          digest = Integrity::chunk_digest(seed_, chunk,
                                           {places_[slice.segment].data + slice.offset, slice.bytes});
        }
        const std::lock_guard lock{mutex_};
        core_.chunk_arrived(channel.id, chunk, done.status, digest);
        if (core_.is_lost(channel.slot)) wake_all();
        return;
      }
      case pull_task::kind_type::header: {
        const std::lock_guard lock{mutex_};
        core_.header_arrived(channel.id, done.status,
                             scratch.subspan(header_offset(block_bytes), sizeof(control_header)));
        if (core_.done() || core_.is_lost(channel.slot)) wake_all();
        return;
      }
      case pull_task::kind_type::block: {
        digest128 root;
        if (Integrity::enabled && done.status == completion_status::ok) {
          const auto table = read_control_digests(scratch.first(block_bytes), *layout_);
          root = Integrity::root(seed_, table);
        }
        const std::lock_guard lock{mutex_};
        core_.block_arrived(channel.id, done.status, scratch.first(block_bytes), root);
        wake_all();
        return;
      }
    }
  }

  /// Tells the session what the core has found out.
  void report(lane_state& self) {
    std::vector<source_failure> failed;
    std::vector<lease_id> released;
    {
      const std::lock_guard lock{mutex_};
      while (auto failure = core_.take_failure()) {
        failed.push_back(*std::move(failure));
        failed.back().detail = sources_[failed.back().slot].target.name + ": " + failed.back().detail;
      }
      for (source_slot slot = 0; slot < sources_.size(); ++slot) {
        if (!sources_[slot].report_release || !core_.is_idle(slot)) continue;
        sources_[slot].report_release = false;
        released.push_back(sources_[slot].target.facts.lease);
      }
      for (channel_record& channel : self.channels) {
        if (channel.endpoint && core_.is_lost(channel.slot)) channel.endpoint.reset();
      }
    }
    if (handlers_.source_failed) {
      for (const source_failure& failure : failed) handlers_.source_failed(failure);
    }
    if (handlers_.source_released) {
      for (const lease_id lease : released) handlers_.source_released(lease);
    }
  }

  void wake_all() noexcept {
    for (queue_type* queue : queues_) queue->wake();
  }

  static constexpr duration idle_wait = std::chrono::milliseconds{100};

  Transport* transport_;
  const layout* layout_;
  std::span<const segment_place<region_type>> places_;
  std::uint64_t seed_;
  pull_driver_options options_;
  callbacks handlers_;
  std::uint64_t total_bytes_ = 0;

  mutable std::mutex mutex_;
  pull core_;
  std::deque<source_record> sources_;  ///< lanes keep pointers into it
  std::uint64_t generation_ = 0;
  bool stopped_ = false;
  std::vector<queue_type*> queues_;
  std::exception_ptr failure_;
};

}  // namespace tensorhub
