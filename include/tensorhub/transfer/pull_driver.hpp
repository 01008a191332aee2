#pragma once
/// \file pull_driver.hpp
/// Runs a `pull` over a transport: a thin shell between the pure state machine and one-sided reads.
///
/// `run` works in the calling thread and in `lanes - 1` more threads, but no more than the shard has chunks,
/// and no more than the system can start. Each lane has its own queue, endpoints and scratch memory, which it
/// keeps for the next update (lane_pool.hpp). A lane digests each chunk right after the chunk has arrived,
/// while the bytes are in the cache of the core that received them. All lanes share one `pull` under one
/// mutex; the mutex is held for decisions only, never while the bytes of a chunk are read or digested.
/// `pull_contacts` decides which lane connects to which source.
///
/// Thread safety: `add_source`, `release_source`, `stop`, `progress` may be called by any thread while `run`
/// runs; `run` is called once.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tensorhub/concepts/integrity.hpp"
#include "tensorhub/concepts/shared_transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transfer/chunk_digests.hpp"
#include "tensorhub/transfer/lane_pool.hpp"
#include "tensorhub/transfer/pull.hpp"
#include "tensorhub/transfer/pull_contacts.hpp"
#include "tensorhub/transfer/pull_report.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Where a layout segment lies in this process.
template <typename Region>
struct segment_place {
  const Region* region = nullptr;  ///< borrowed
  std::uint64_t offset = 0;        ///< of the segment in the region
  std::byte* data = nullptr;
  device_access* device = nullptr;  ///< null: the CPU may follow `data`
};

struct pull_driver_options {
  std::size_t lanes = 1;
  std::size_t window_chunks = 4;  ///< per lane
  contact_options contacts{};
  /// For the whole transfer, from its construction: no attempt to connect goes on beyond it.
  duration time_left = std::chrono::hours{24};
  pull_options rules{};  ///< everything but the window, which is `window_chunks`
  incarnation reader{};  ///< as which the lanes connect (concepts/shared_transport.hpp)
};

template <transport Transport, integrity Integrity>
class pull_driver {
 public:
  using region_type = typename Transport::memory_region;
  struct callbacks {
    /// Asks for another source. Any lane calls it, without a lock.
    std::function<void(const source_failure&)> source_failed{};
    /// Nothing of this source is outstanding any more. Any lane calls it, without a lock.
    std::function<void(lease_id)> source_released{};
    /// No source has had a new chunk for a while. Any lane calls it, without a lock.
    std::function<void(const std::string&)> stalled{};
    /// The digest table is known, so confirmed chunks may be shown from now on. Called once, before any
    /// `confirmed`, while the driver's lock is held: it must be short and must not call the driver.
    std::function<void(std::span<const digest128>)> believed{};
    /// Other workers may read these chunks, whose digests are in the table. Called while the driver's lock is
    /// held: it must be short and must not call the driver.
    std::function<void(std::span<const chunk_index>, std::span<const digest128>)> confirmed{};
    /// The version was open, and this is its table. Called once, as `confirmed`.
    std::function<void(std::span<const digest128>)> settled{};
    std::function<void(const chunk_event&)> traced{};  ///< called by any lane, without a lock
  };

  /// Borrows all arguments; `places` has one entry per layout segment.
  pull_driver(lane_pool<Transport>& lanes, const layout& shape,
              std::span<const segment_place<region_type>> places, const digest_seeds& bound_to,
              chunk_index first_chunk, pull_driver_options options, callbacks handlers)
      : lanes_{&lanes},
        layout_{&shape},
        places_{places},
        offsets_{control_offsets::of(shape)},
        seeds_{bound_to},
        options_{options},
        handlers_{std::move(handlers)},
        core_{shape, with_window(options), first_chunk},
        contacts_{core_, options.contacts} {
    options_.lanes =
        std::clamp<std::size_t>(options_.lanes, 1, std::max<std::size_t>(1, shape.chunk_count()));
    total_bytes_ = shape.bytes();
    look_bytes_ = core_.map_bytes();
  }

  void add_source(pull_target target) {
    const std::lock_guard lock{mutex_};
    core_.add_source(target.facts);
    sources_.push_back({std::move(target)});
    wake_all();
  }

  /// Stops reading from the source of this lease. `source_released` follows when nothing of that source is
  /// outstanding.
  void release_source(lease_id released) {
    const std::lock_guard lock{mutex_};
    for (source_slot slot = 0; slot < sources_.size(); ++slot) {
      if (sources_[slot].target.facts.lease != released) continue;
      core_.retire_source(slot);
      sources_[slot].report_release = true;
    }
    wake_all();
  }

  /// As at `pull`.
  void commit(digest128 root) {
    const std::lock_guard lock{mutex_};
    core_.commit(root);
    settle();
    wake_all();
  }
  /// As at `pull`.
  void prefer(std::span<const chunk_index> chunks) {
    const std::lock_guard lock{mutex_};
    core_.prefer(chunks);
    wake_all();
  }

  /// Makes `run` end soon. Idempotent.
  void stop() {
    const std::lock_guard lock{mutex_};
    stopped_ = true;
    wake_all();
  }

  /// Reads until all chunks are confirmed (returns true) or until `stop` (returns false). No read is
  /// outstanding when it returns. Rethrows errors of a lane's set-up (queue, registration of scratch memory).
  bool run() {
    {
      std::vector<std::jthread> helpers;
      helpers.reserve(options_.lanes);
      try {
        for (lane_id i = 1; i < options_.lanes; ++i) helpers.emplace_back([this, i] { guarded_lane(i); });
      } catch (const std::exception&) {  // no more threads: the lanes that run do the rest
      }
      guarded_lane(0);
    }
    if (failure_) std::rethrow_exception(failure_);
    return core_.done();
  }

  [[nodiscard]] pull_progress progress() const {
    const std::lock_guard lock{mutex_};
    pull_progress out{
        core_.confirmed_bytes(), total_bytes_, core_.confirmed_chunks(), layout_->chunk_count(), {}};
    for (source_slot slot = 0; slot < sources_.size(); ++slot) {
      out.sources.push_back({sources_[slot].target.name, sources_[slot].path, core_.chunks_from(slot),
                             core_.bytes_from(slot), core_.is_lost(slot), sources_[slot].target.facts.far});
    }
    return out;
  }
  /// For use after `run`: no byte of the target memory was written.
  [[nodiscard]] bool intact() const { return core_.intact(); }
  /// For use after `run` has returned true.
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
    /// Set: the endpoint is an earlier update's, and has not been seen to work in this one. When it was
    /// last asked.
    time_point reused{};
    bool is_stale = false;        ///< such an endpoint had ended: another one has to be made
    std::size_t look = 0;         ///< the lane's scratch slot that receives the channel's headers and maps
    std::size_t outstanding = 0;  ///< reads that have not completed
  };
  struct taken_task {
    pull_task what{};
    const remote_region* from = nullptr;
  };
  /// Scratch memory: one whole control block, followed by slots for headers and maps, one per channel.
  struct lane_state {
    lane_id number = 0;
    typename lane_pool<Transport>::lane& own;
    queue_type& queue;
    std::vector<std::size_t> free_looks{};
    std::deque<channel_record> channels{};
    bool block_pending = false;
    std::vector<taken_task> tasks{};             ///< taken from the core, not posted yet
    bool has_connected = false;                  ///< has tried to, once: a stall begins after it
    std::map<chunk_index, time_point> posted{};  ///< chunk reads in flight, if the caller traces
    // Chunks that have arrived in device memory. One batch of them is being digested, while the next one
    // arrives.
    struct batch {
      std::vector<placed_chunk> chunks{};
      std::vector<std::size_t> through{};  ///< which channel
    };
    batch arrived{};
    batch digested{};
    std::vector<digest128> made{};
    chunk_digests<Integrity> digests{};  ///< after `made`, into which devices write
  };

  // A request names its channel (upper 16 bits), its kind (2) and its chunk (the rest).
  static constexpr unsigned chunk_bits = 46;
  [[nodiscard]] static request_id pack(std::size_t channel, const pull_task& task) noexcept {
    return static_cast<request_id>(channel) << 48 | static_cast<request_id>(task.kind) << chunk_bits |
           task.chunk;
  }

  [[nodiscard]] static pull_options with_window(const pull_driver_options& options) {
    pull_options rules = options.rules;
    rules.window_chunks = options.window_chunks;
    rules.needs_root = Integrity::enabled;
    return rules;
  }
  [[nodiscard]] static time_point now() noexcept {
    return {
        std::chrono::duration_cast<duration>(std::chrono::steady_clock::now().time_since_epoch()).count()};
  }
  /// So much of `patience` as the transfer has left.
  [[nodiscard]] duration in_time(duration patience) const noexcept {
    return std::max<duration>(std::min(patience, began_ + options_.time_left - now()),
                              std::chrono::milliseconds{1});
  }

  void guarded_lane(lane_id number) {
    try {
      lane(number);
    } catch (...) {
      const std::lock_guard lock{mutex_};
      if (!failure_) failure_ = std::current_exception();
      stopped_ = true;
      wake_all();
    }
  }

  void lane(lane_id number) {
    auto borrowed =
        lanes_->borrow(options_.window_chunks + options_.rules.far_window_chunks + looks_per_lane + 1,
                       look_offset(looks_per_lane) / 8);
    lane_state self{number, *borrowed, borrowed->queue()};
    for (std::size_t look = looks_per_lane; look > 0; --look) self.free_looks.push_back(look - 1);
    work(self);
    leave(self);
    lanes_->give_back(std::move(borrowed));
  }

  void work(lane_state& self) {
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

    std::array<completion, 64> room;
    // The CPU digests each chunk of a batch, while nothing is posted; a device digests the whole batch.
    const bool on_device = detail::any_of(places_, [](const auto& place) { return place.device != nullptr; });
    const std::span completions = std::span{room}.first(on_device ? room.size() : room.size() / 4);
    for (;;) {
      const bool ended = report(self);  // before anything that may take long, such as connecting
      if (finished()) return;
      const bool tries_again = open_channels(self);
      self.has_connected = true;
      const bool posted = post_tasks(self);
      const std::size_t count = self.queue.poll(completions);
      for (std::size_t i = 0; i < count; ++i) process_completion(self, completions[i]);
      const bool digested = digest_arrived(self);
      if (posted || count > 0 || ended || tries_again || digested) continue;
      if (self.digests.has_begun())
        static_cast<void>(self.digests.finished(while_digesting));
      else
        self.queue.wait(time_to_wait(self));
    }
  }

  /// Keeps the endpoints that are at rest, and ends the reads of the others.
  void leave(lane_state& self) {
    std::vector<endpoint_type> closing;
    {
      const std::lock_guard lock{mutex_};
      for (channel_record& channel : self.channels) {
        if (!channel.endpoint) continue;
        note_path(channel.slot, *channel.endpoint);
        if (channel.outstanding == 0 && !core_.is_lost(channel.slot)) keep(self, channel, closing);
      }
    }
    closing.clear();
    self.channels.clear();
    std::array<completion, 16> ended;
    while (self.queue.outstanding() > 0 && self.queue.poll(ended) > 0) {
    }
  }
  /// Adds to `closing` what is not kept. To destroy an endpoint may take seconds, so nobody does it with the
  /// lock held.
  void keep(lane_state& self, channel_record& channel, std::vector<endpoint_type>& closing) {
    const pull_target& target = sources_[channel.slot].target;
    auto other = self.own.keep({target.address.text, target.facts.holder, options_.reader},
                               *std::move(channel.endpoint));
    channel.endpoint.reset();
    if (other) closing.push_back(*std::move(other));
  }

  [[nodiscard]] bool finished() const {
    const std::lock_guard lock{mutex_};
    return stopped_ || core_.done();
  }

  /// The time until a step is due that no completion announces.
  [[nodiscard]] duration time_to_wait(const lane_state& self) const {
    time_point due = time_point::never();
    {
      const std::lock_guard lock{mutex_};
      for (const channel_record& channel : self.channels) {
        if (channel.endpoint) due = std::min(due, core_.due(channel.id));
      }
    }
    if (due == time_point::never()) return idle_wait;
    return std::clamp<duration>(due - now(), duration::zero(), idle_wait);
  }

  /// Connects to sources that are new to this lane. Returns true if an attempt failed and will be repeated.
  bool open_channels(lane_state& self) {
    for (channel_record& channel : self.channels) {
      if (has_ended_unread(channel)) close_stale(self, channel);
      if (channel.is_stale) connect_again(self, channel);
    }
    for (;;) {
      std::optional<pull_contacts::attempt> attempt;
      pull_target target;
      {
        const std::lock_guard lock{mutex_};
        if (stopped_ || core_.done() || self.free_looks.empty()) return false;
        if (has_released()) return true;  // since the last report: connecting may take long
        attempt = contacts_.next(self.number);
        if (!attempt) return false;
        target = sources_[attempt->slot].target;
      }
      try {
        auto kept = self.own.take({target.address.text, target.facts.holder, options_.reader});
        const bool is_kept = kept.has_value();
        endpoint_type made = is_kept
                                 ? *std::move(kept)
                                 : connect_as(options_.reader, lanes_->through(), self.queue, target.address,
                                              target.facts.holder, in_time(attempt->patience));
        const std::lock_guard lock{mutex_};
        self.channels.emplace_back();
        channel_record& channel = self.channels.back();
        channel.slot = attempt->slot;
        channel.id = contacts_.made(self.number, *attempt, ordered_read_bytes(made));
        channel.endpoint.emplace(std::move(made));
        if (is_kept) channel.reused = now();
        channel.look = self.free_looks.back();
        self.free_looks.pop_back();
        note_path(channel.slot, *channel.endpoint);
        if (attempt->explores) wake_all();
      } catch (const error& e) {
        const std::lock_guard lock{mutex_};
        const bool again = contacts_.failed(self.number, *attempt, e.code(), e.sentence());
        wake_all();
        if (again) return true;
      }
    }
  }

  /// An earlier update's endpoint has ended, and no read of it will say so.
  [[nodiscard]] static bool has_ended_unread(const channel_record& channel) noexcept {
    return channel.endpoint && channel.reused != time_point{} && channel.outstanding == 0 &&
           !channel.endpoint->usable();
  }

  /// Gives back a task of an endpoint that had ended before this update. False: it had not, as far as anybody
  /// knows.
  bool give_back_stale(lane_state& self, channel_record& channel, const pull_task& task,
                       completion_status status) {
    const bool ends = status == completion_status::peer_lost || status == completion_status::cut_off;
    const bool is_stale = channel.reused != time_point{} && ends && now() - channel.reused < soon;
    if (!is_stale) {
      channel.reused = {};
      return false;
    }
    {
      const std::lock_guard lock{mutex_};
      if (core_.is_lost(channel.slot)) return false;  // the core waits for this read to end
      if (task.kind == pull_task::kind_type::block) self.block_pending = false;
      core_.not_posted(channel.id, task);
    }
    if (channel.outstanding == 0) close_stale(self, channel);
    return true;
  }
  void close_stale(lane_state& self, channel_record& channel) {
    {
      const std::lock_guard lock{mutex_};
      core_.leave_reads(self.number);
    }
    channel.endpoint.reset();
    channel.is_stale = true;
  }
  void connect_again(lane_state& self, channel_record& channel) {
    channel.is_stale = false;
    channel.reused = {};
    pull_target target;
    duration patience{};
    {
      const std::lock_guard lock{mutex_};
      target = sources_[channel.slot].target;
      patience = contacts_.patience_for(channel.slot);
      core_.leave_reads(self.number);
      if (core_.is_lost(channel.slot) || core_.is_idle(channel.slot))
        return self.free_looks.push_back(channel.look);
    }
    try {
      channel.endpoint.emplace(connect_as(options_.reader, lanes_->through(), self.queue, target.address,
                                          target.facts.holder, in_time(patience)));
      const std::lock_guard lock{mutex_};
      core_.reconnected(channel.id, ordered_read_bytes(*channel.endpoint));
    } catch (const error& e) {
      self.free_looks.push_back(channel.look);
      const std::lock_guard lock{mutex_};
      contacts_.lose(channel.slot, e.code(), e.sentence());
      wake_all();
    }
  }

  [[nodiscard]] static std::uint64_t ordered_read_bytes(const endpoint_type& endpoint) noexcept {
    if constexpr (requires { endpoint.ordered_read_bytes(); })
      return endpoint.ordered_read_bytes();
    else
      return 0;
  }

  /// Records how a source is reached: the name of the transport, or the choice of a composed one, and the
  /// reason for a detour of the bytes. That reason is known only after the first read, to the lane that
  /// posted it.
  void note_path(source_slot slot, const endpoint_type& endpoint) {
    std::string path{Transport::name};
    if constexpr (requires { endpoint.through(); }) {
      path = endpoint.why();
    } else if constexpr (requires { endpoint.why(); }) {
      if (const std::string reason = endpoint.why(); !reason.empty()) path += " (" + reason + ")";
    }
    std::string& known = sources_[slot].path;
    if (path.size() > known.size()) known = std::move(path);
  }

  bool post_tasks(lane_state& self) {
    bool posted = false;
    for (std::size_t i = 0; i < self.channels.size(); ++i) {
      channel_record& channel = self.channels[i];
      while (channel.endpoint && (channel.reused == time_point{} || channel.endpoint->usable())) {
        take_tasks(self, channel);
        std::size_t done = 0;
        while (done < self.tasks.size() && post_now(self, i, self.tasks[done])) ++done;
        posted = posted || done > 0;
        if (done == self.tasks.size() && done > 0) continue;
        if (self.tasks.empty()) break;
        const std::lock_guard lock{mutex_};
        for (std::size_t left = self.tasks.size(); left > done; --left) {
          const pull_task& task = self.tasks[left - 1].what;
          if (task.kind == pull_task::kind_type::block) self.block_pending = false;
          core_.not_posted(channel.id, task);
        }
        if (done > 0) wake_all(&self.queue);  // others may have looked meanwhile
        break;
      }
    }
    return posted;
  }

  /// What the core wants read next, some chunks at a time: lanes meet at the lock less often, and chunks that
  /// follow one another stay in one lane.
  void take_tasks(lane_state& self, const channel_record& channel) {
    self.tasks.clear();
    const std::lock_guard lock{mutex_};
    while (self.tasks.size() < tasks_at_once) {
      const auto task = core_.next(channel.id, now());
      if (core_.has_failure()) wake_all();  // a slow source was dropped: other lanes have reads of it
      if (!task) return;
      if (task->kind == pull_task::kind_type::block && self.block_pending)
        return core_.not_posted(channel.id, *task);  // its scratch slot is in use
      const bool is_chunk = task->kind == pull_task::kind_type::chunk;
      const remote_region& from = is_chunk ? core_.segments(channel.slot)[layout_->slice(task->chunk).segment]
                                           : sources_[channel.slot].target.control;
      self.tasks.push_back({*task, &from});
      if (task->kind == pull_task::kind_type::block) self.block_pending = true;
    }
  }

  /// False: the queue is full.
  bool post_now(lane_state& self, std::size_t number, const taken_task& task) {
    channel_record& channel = self.channels[number];
    if (post(self, number, task.what, *task.from) == post_result::queue_full) return false;
    if (channel.reused != time_point{} && channel.outstanding == 0) channel.reused = now();
    ++channel.outstanding;
    if (handlers_.traced && task.what.kind == pull_task::kind_type::chunk)
      self.posted[task.what.chunk] = now();
    return true;
  }

  [[nodiscard]] post_result post(lane_state& self, std::size_t channel, const pull_task& task,
                                 const remote_region& from) {
    endpoint_type& endpoint = *self.channels[channel].endpoint;
    const auto& scratch = self.own.scratch_region();
    const request_id id = pack(channel, task);
    const std::uint64_t look = look_offset(self.channels[channel].look);
    switch (task.kind) {
      case pull_task::kind_type::block:
        return self.queue.post_read(endpoint, scratch, 0, {&from, 0, offsets_.total_bytes}, id);
      case pull_task::kind_type::header:
        return self.queue.post_read(endpoint, scratch, look, {&from, 0, sizeof(control_header)}, id);
      case pull_task::kind_type::map:
        return self.queue.post_read(endpoint, scratch, look, {&from, 0, look_bytes_}, id);
      case pull_task::kind_type::chunk:
        break;
    }
    const chunk_slice slice = layout_->slice(task.chunk);
    const auto& place = places_[slice.segment];
    return self.queue.post_read(endpoint, *place.region, place.offset + slice.offset,
                                {&from, slice.offset, slice.bytes}, id);
  }

  /// The offset of a channel's slot for headers and maps in the scratch memory of its lane.
  [[nodiscard]] std::uint64_t look_offset(std::size_t look) const noexcept {
    return (offsets_.total_bytes + 7) / 8 * 8 + look * look_bytes_;
  }

  void process_completion(lane_state& self, const completion& done) {
    channel_record& channel = self.channels[done.id >> 48];
    const auto kind = static_cast<pull_task::kind_type>((done.id >> chunk_bits) & 3u);
    const chunk_index chunk = done.id & ((1ull << chunk_bits) - 1);
    const auto scratch = self.own.scratch();
    if (--channel.outstanding == 0 && !channel.endpoint) self.free_looks.push_back(channel.look);
    if (channel.endpoint && give_back_stale(self, channel, {kind, chunk}, done.status)) return;
    switch (kind) {
      case pull_task::kind_type::chunk: {
        digest128 digest;
        if (Integrity::enabled && done.status == completion_status::ok) {
          const chunk_slice slice = layout_->slice(chunk);
          const auto& place = places_[slice.segment];
          const placed_chunk placed{chunk, place.data + slice.offset, slice.bytes, place.device};
          if (placed.device != nullptr) {
            self.arrived.chunks.push_back(placed);
            self.arrived.through.push_back(done.id >> 48);
            return;
          }
          digest = chunk_digests<Integrity>::by_cpu(seeds_.chunks, placed);
        }
        arrived(self, channel, chunk, done.status, digest);
        return;
      }
      case pull_task::kind_type::header:
      case pull_task::kind_type::map: {
        const bool is_map = kind == pull_task::kind_type::map;
        const auto bytes =
            scratch.subspan(look_offset(channel.look), is_map ? look_bytes_ : sizeof(control_header));
        const std::lock_guard lock{mutex_};
        const bool leaves_some = is_map ? core_.map_arrived(channel.id, done.status, bytes, now())
                                        : core_.header_arrived(channel.id, done.status, bytes, now());
        if (leaves_some) wake_all(&self.queue);
        show_confirmed(channel.slot);
        return;
      }
      case pull_task::kind_type::block: {
        self.block_pending = false;
        const auto block = scratch.first(offsets_.total_bytes);
        digest128 root;
        if (Integrity::enabled && done.status == completion_status::ok)
          root = Integrity::root(seeds_.root, read_control_digests(block, *layout_));
        const std::lock_guard lock{mutex_};
        const bool believed = core_.block_arrived(channel.id, done.status, block, root, now());
        if (believed && !std::exchange(showing_, true) && handlers_.believed)
          handlers_.believed(core_.table());
        show_confirmed(channel.slot);
        wake_all();
        return;
      }
    }
  }

  /// After a report that may have confirmed chunks of this source, or lost it. Pre-condition: the lock is
  /// held.
  void show_confirmed(source_slot slot) {
    const auto fresh = core_.take_confirmed();
    if (!fresh.empty() && handlers_.confirmed) handlers_.confirmed(fresh, core_.table());
    settle();
    if (core_.done() || core_.is_lost(slot)) wake_all();
  }

  /// Compares what was collected of an open version with its root. Pre-condition: the lock is held.
  void settle() {
    const auto root = core_.unsettled();
    if (!root) return;
    if (Integrity::root(seeds_.root, core_.table()) == *root) {
      core_.settle();
      if (handlers_.settled) handlers_.settled(core_.table());
    } else if (!failure_) {
      failure_ = std::make_exception_ptr(
          error(errc::corrupt,
                "the chunks that were read while the version was open are not those that were "
                "published: update again"));
      stopped_ = true;
    }
    wake_all();
  }

  void trace(lane_state& self, const channel_record& channel, chunk_index chunk, completion_status status,
             time_point at) {
    handlers_.traced({chunk, name_of(channel.slot), self.number, self.posted[chunk], at, status});
    self.posted.erase(chunk);
  }

  void arrived(lane_state& self, const channel_record& channel, chunk_index chunk, completion_status status,
               const digest128& digest) {
    const time_point at = now();
    if (handlers_.traced) trace(self, channel, chunk, status, at);
    const std::lock_guard lock{mutex_};
    if (core_.chunk_arrived(channel.id, chunk, status, digest, at)) wake_all(&self.queue);
    show_confirmed(channel.slot);
  }

  /// Takes in the batch whose digests are made, and begins those of the next one. True: there is more to do
  /// now. Throws what the device throws: without digests no chunk can be believed.
  bool digest_arrived(lane_state& self) {
    if (!self.digests.finished(duration::zero())) return false;
    const bool was_digesting = !self.digested.chunks.empty();
    if (was_digesting) take_in(self, self.digested);
    self.digested.chunks.clear();
    self.digested.through.clear();
    if (self.arrived.chunks.empty()) return was_digesting;
    std::swap(self.digested, self.arrived);
    self.made.resize(self.digested.chunks.size());
    self.digests.begin(seeds_.chunks, self.digested.chunks, self.made);
    return was_digesting || !self.digests.has_begun();  // made already: taken in next time
  }

  void take_in(lane_state& self, const typename lane_state::batch& digested) {
    const time_point at = now();
    const std::size_t count = digested.chunks.size();
    for (std::size_t i = 0; handlers_.traced && i < count; ++i)
      trace(self, self.channels[digested.through[i]], digested.chunks[i].chunk, completion_status::ok, at);
    const std::lock_guard lock{mutex_};
    for (std::size_t i = 0; i < count; ++i) {
      const channel_record& channel = self.channels[digested.through[i]];
      const chunk_index chunk = digested.chunks[i].chunk;
      if (core_.chunk_arrived(channel.id, chunk, completion_status::ok, self.made[i], at))
        wake_all(&self.queue);
      show_confirmed(channel.slot);
    }
  }

  [[nodiscard]] std::string_view name_of(source_slot slot) const {
    const std::lock_guard lock{mutex_};
    return sources_[slot].target.name;  // the string does not move
  }

  /// Reports the findings of the core to the session, and then closes endpoints that are not needed any more.
  /// Returns true if it has closed one, so that its reads end now.
  bool report(lane_state& self) {
    bool ended = false;
    std::vector<endpoint_type> closing;
    std::vector<source_failure> failed;
    std::vector<lease_id> released;
    std::string stall;
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
      if (self.has_connected && core_.take_stall(now())) stall = describe_stall();
      for (channel_record& channel : self.channels) {
        const bool is_over = core_.is_lost(channel.slot) || core_.is_idle(channel.slot);
        if (!channel.endpoint || !is_over) continue;
        note_path(channel.slot, *channel.endpoint);
        if (channel.outstanding == 0) {
          self.free_looks.push_back(channel.look);
          if (!core_.is_lost(channel.slot)) keep(self, channel, closing);
        }
        if (channel.endpoint) closing.push_back(*std::move(channel.endpoint));
        channel.endpoint.reset();
        ended = true;
      }
      if (ended || !failed.empty() || !released.empty() || !stall.empty()) core_.leave_reads(self.number);
    }
    if (handlers_.source_failed) {
      for (const source_failure& failure : failed) handlers_.source_failed(failure);
    }
    if (handlers_.source_released) {
      for (const lease_id lease : released) handlers_.source_released(lease);
    }
    if (!stall.empty() && handlers_.stalled) handlers_.stalled(stall);
    return ended;
  }

  /// A source is free, and `report` has not said so yet. Pre-condition: the lock is held.
  [[nodiscard]] bool has_released() const {
    for (source_slot slot = 0; slot < sources_.size(); ++slot) {
      if (sources_[slot].report_release && core_.is_idle(slot)) return true;
    }
    return false;
  }

  /// Pre-condition: the lock is held, and the core has just reported a stall.
  [[nodiscard]] std::string describe_stall() {
    core_.forgive_stall(now());
    std::string names;
    for (source_slot slot = 0; slot < sources_.size(); ++slot) {
      if (core_.is_wanted(slot)) names += " " + sources_[slot].target.name;
    }
    std::string text = "no new chunk";
    if (!names.empty())
      text += " from" + names;
    else if (!sources_.empty())
      text += ", and no source is left: the last one was " + sources_.back().target.name;
    return text + ": " + std::to_string(core_.confirmed_chunks()) + " of " +
           std::to_string(layout_->chunk_count()) + " are here";
  }

  /// `but`: this one is awake.
  void wake_all(const queue_type* but = nullptr) noexcept {
    for (queue_type* queue : queues_)
      if (queue != but) queue->wake();
  }

  static constexpr duration idle_wait = std::chrono::milliseconds{100};
  static constexpr std::size_t tasks_at_once = 8;
  static constexpr duration while_digesting =
      std::chrono::microseconds{100};  ///< reads may complete meanwhile
  /// The end of a connection is noticed at once; a source that says nothing for longer is lost.
  static constexpr duration soon = std::chrono::milliseconds{500};
  static constexpr std::size_t looks_per_lane = limits::sources;

  lane_pool<Transport>* lanes_;
  const layout* layout_;
  std::span<const segment_place<region_type>> places_;
  control_offsets offsets_;
  digest_seeds seeds_;
  pull_driver_options options_;
  const time_point began_ = now();
  callbacks handlers_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t look_bytes_ = 0;  ///< of a task `map`

  mutable std::mutex mutex_;
  pull core_;
  pull_contacts contacts_;
  bool showing_ = false;               ///< `believed` was called
  std::deque<source_record> sources_;  ///< a deque, because lanes keep pointers into it
  bool stopped_ = false;
  std::vector<queue_type*> queues_;
  std::exception_ptr failure_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
