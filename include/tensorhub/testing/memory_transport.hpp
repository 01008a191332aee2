#pragma once
/// \file memory_transport.hpp
/// Transport `memory`: several "processes" in one process, for tests and as an example of the concept.
///
/// Every transport object is one process. It is found under "memory://N" in a registry of the real process. A
/// read is done when the reading queue is polled, in the order of posting, by one copy under the locks of
/// both sides: nothing happens in the background, so a single-threaded test is deterministic, and promise 5
/// of concepts/transport.hpp holds because `~memory_region`, `revoke` and `cut_off` take the same lock.
///
/// In addition to the concept: `kill` (the process died), `stall` and `resume` (the process is stopped;
/// SIGSTOP).
///
/// Thread safety: as the concept says; `kill`, `stall` and `resume` may be called from any thread. Regions,
/// queues and endpoints may outlive the transport.

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tensorhub/concepts/guarded_transport.hpp"
#include "tensorhub/concepts/shared_transport.hpp"
#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/device_access.hpp"
#include "tensorhub/types/reader_gate.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

struct memory_transport_options {
  std::chrono::milliseconds peer_timeout = defaults::peer_timeout;  ///< silence of a stalled peer
  /// Larger reads end in `local_error`, to imitate a smaller device.
  std::uint64_t max_read_bytes = UINT64_MAX;
  bool operator==(const memory_transport_options&) const = default;
};

namespace memory_detail {

using key_bytes = std::array<std::byte, 16>;
using clock = std::chrono::steady_clock;

struct node;

/// One registered region. The owner's mutex guards everything but `owner`.
struct region_state {
  std::shared_ptr<node> owner;
  memory_range range{};
  region_access access = region_access::both;
  key_bytes key{};
  bool registered = false;
};

/// One "process" as its peers reach it.
struct node {
  mutable std::mutex mutex;
  explicit node(incarnation self) : gate{self} {}

  std::string address;
  bool alive = true;
  bool stalled = false;
  clock::time_point stalled_since{};
  std::uint64_t registered_bytes = 0;
  std::map<key_bytes, region_state*> regions;
  detail::reader_gate gate;
  std::mt19937_64 random{std::random_device{}()};

  /// Called with the mutex held.
  [[nodiscard]] key_bytes new_key() noexcept {
    const std::array<std::uint64_t, 2> words{random(), random()};
    key_bytes key{};
    std::memcpy(key.data(), words.data(), key.size());
    return key;
  }
};

/// The listening processes by address, within this process.
class registry {
 public:
  [[nodiscard]] static registry& instance() {
    static registry all;
    return all;
  }
  void insert(const std::shared_ptr<node>& process) {
    const std::lock_guard lock{mutex_};
    process->address = "memory://" + std::to_string(++last_number_);
    nodes_[process->address] = process;
  }
  void erase(const std::string& address) noexcept {
    const std::lock_guard lock{mutex_};
    nodes_.erase(address);
  }
  [[nodiscard]] std::shared_ptr<node> find(const std::string& address) const {
    const std::lock_guard lock{mutex_};
    const auto found = nodes_.find(address);
    return found == nodes_.end() ? nullptr : found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<node>> nodes_;
  std::uint64_t last_number_ = 0;
};

/// The reader's end of a connection. The queue's mutex guards the flags.
struct endpoint_state {
  std::shared_ptr<node> source;
  incarnation peer{};
  incarnation reader{};
  bool broken = false;
  bool closed = false;
};

struct posted_read {
  request_id id = 0;
  std::shared_ptr<endpoint_state> endpoint;
  std::shared_ptr<region_state> into;
  std::uint64_t offset = 0;
  remote_region from{};
  std::uint64_t from_offset = 0;
  std::uint64_t bytes = 0;
  clock::time_point posted_at{};
  bool dead_on_arrival = false;  ///< the endpoint was broken when it was posted
};

struct queue_state {
  mutable std::mutex mutex;
  std::condition_variable woken_up;
  bool woken = false;
  std::size_t depth = 0;
  std::shared_ptr<node> reader;
  memory_transport_options options{};
  std::vector<posted_read> reads;  ///< in the order of posting; room for `depth` is reserved
};

/// The bytes that the read asks for if its key opens a region that covers the whole slice, else null. A
/// described region may be a part of the registered one. Called with the source's mutex held.
[[nodiscard]] inline memory_range opened_by(const node& source, const posted_read& read) noexcept {
  key_bytes key{};
  if (read.from.key.used_bytes != key.size()) return {};
  std::memcpy(key.data(), read.from.key.bytes.data(), key.size());
  const auto found = source.regions.find(key);
  if (found == source.regions.end()) return {};
  const region_state& region = *found->second;
  const auto first = reinterpret_cast<std::uintptr_t>(region.range.data);
  if (region.access == region_access::local_write || read.from.base < first) return {};
  const std::uint64_t begin = read.from.base - first;
  if (!detail::lies_within(region.range.bytes, begin, read.from.bytes)) return {};
  if (!detail::lies_within(read.from.bytes, read.from_offset, read.bytes)) return {};
  memory_range part = region.range;
  part.data += begin + read.from_offset;
  part.bytes = read.bytes;
  return part;
}

/// Device memory is copied by its device; the copy waits for the device.
[[nodiscard]] inline bool copied(const memory_range& into, std::uint64_t offset,
                                 const memory_range& from) noexcept {
  if (from.bytes == 0) return true;
  if (into.host_accessible() && from.host_accessible()) {
    std::memmove(into.data + offset, from.data, from.bytes);
    return true;
  }
  try {
    const auto lane = (into.host_accessible() ? from : into).device->open_lane();
    const lane_ticket ticket = lane->copy(into.data + offset, from.data, from.bytes);
    return lane->wait(ticket, std::chrono::seconds{30}) == lane_state::done;
  } catch (...) {  // no lane
    return false;
  }
}

/// Does the read, or returns false if the read cannot be done now. Called with the queue's mutex held.
[[nodiscard]] inline bool finish(queue_state& queue, posted_read& read, completion_status& status) noexcept {
  endpoint_state& endpoint = *read.endpoint;
  const auto ends = [&status](completion_status outcome) {
    status = outcome;
    return true;
  };
  const auto breaks = [&](completion_status outcome) {
    endpoint.broken = true;
    return ends(outcome);
  };
  if (endpoint.closed) return ends(completion_status::cancelled);
  if (read.dead_on_arrival) return ends(completion_status::peer_lost);

  std::unique_lock source_lock{endpoint.source->mutex, std::defer_lock};
  std::unique_lock reader_lock{queue.reader->mutex, std::defer_lock};
  if (endpoint.source == queue.reader) {
    source_lock.lock();
  } else {
    std::lock(source_lock, reader_lock);
  }
  const node& source = *endpoint.source;
  const region_state& into = *read.into;
  if (!into.registered || into.owner != queue.reader || into.access == region_access::remote_read ||
      !detail::lies_within(into.range.bytes, read.offset, read.bytes) ||
      read.bytes > queue.options.max_read_bytes) {
    return ends(completion_status::local_error);
  }
  if (!source.alive) return breaks(completion_status::peer_lost);
  if (source.gate.has_cut_off(endpoint.reader)) return breaks(completion_status::cut_off);
  if (source.stalled) {
    const auto silent_since = std::max(read.posted_at, source.stalled_since);
    if (clock::now() - silent_since < detail::bounded(queue.options.peer_timeout)) return false;
    return breaks(completion_status::peer_lost);
  }
  const memory_range from = opened_by(source, read);
  if (from.data == nullptr) return ends(completion_status::access_denied);
  return copied(into.range, read.offset, from) ? ends(completion_status::ok)
                                               : breaks(completion_status::local_error);
}

}  // namespace memory_detail

/// Model of `transport` (concepts/transport.hpp).
class memory_transport {
  using region_state = memory_detail::region_state;
  using endpoint_state = memory_detail::endpoint_state;
  using queue_state = memory_detail::queue_state;

 public:
  using concept_tag = transport_tag;
  static constexpr std::string_view name = "memory";
  static constexpr transport_capabilities capabilities{
      .max_read_bytes = UINT64_MAX,
      .max_region_bytes = UINT64_MAX,
      .survives_access_errors = true,
      .crosses_hosts = false,
      .reads_device_memory = true,
      .uses_backing_file = false,
  };
  using options = memory_transport_options;

  class memory_region {
   public:
    memory_region(memory_region&& other) noexcept = default;
    memory_region& operator=(memory_region&& other) noexcept {
      if (this != &other) {
        deregister();
        state_ = std::move(other.state_);
      }
      return *this;
    }
    ~memory_region() { deregister(); }
    [[nodiscard]] memory_range range() const noexcept { return state_ ? state_->range : memory_range{}; }

   private:
    friend class memory_transport;
    explicit memory_region(std::shared_ptr<region_state> state) noexcept : state_{std::move(state)} {}
    void deregister() noexcept {
      if (!state_) return;
      memory_detail::node& owner = *state_->owner;
      {
        const std::lock_guard lock{owner.mutex};
        owner.regions.erase(state_->key);
        owner.registered_bytes -= state_->range.bytes;
        state_->registered = false;
      }
      state_.reset();
    }
    std::shared_ptr<region_state> state_;
  };

  class endpoint {
   public:
    endpoint(endpoint&&) noexcept = default;
    endpoint& operator=(endpoint&& other) noexcept {
      if (this != &other) {
        close();
        queue_ = std::move(other.queue_);
        state_ = std::move(other.state_);
      }
      return *this;
    }
    ~endpoint() { close(); }
    [[nodiscard]] incarnation peer() const noexcept { return state_ ? state_->peer : incarnation{}; }
    [[nodiscard]] bool usable() const noexcept {
      if (!state_) return false;
      const std::lock_guard lock{queue_->mutex};
      return !state_->broken;
    }
    [[nodiscard]] std::uint64_t ordered_read_bytes() const noexcept { return UINT64_MAX; }

   private:
    friend class memory_transport;
    endpoint(std::shared_ptr<queue_state> queue, std::shared_ptr<endpoint_state> state) noexcept
        : queue_{std::move(queue)}, state_{std::move(state)} {}
    void close() noexcept {
      if (!state_) return;
      const std::lock_guard lock{queue_->mutex};
      state_->closed = true;
    }
    std::shared_ptr<queue_state> queue_;
    std::shared_ptr<endpoint_state> state_;
  };

  class queue {
   public:
    queue(queue&&) noexcept = default;
    queue& operator=(queue&& other) noexcept {
      if (this != &other) {
        close();
        state_ = std::move(other.state_);
      }
      return *this;
    }
    ~queue() { close(); }

    post_result post_read(endpoint& connection, const memory_region& into, std::uint64_t offset,
                          const remote_slice& from, request_id id) noexcept {
      const std::lock_guard lock{state_->mutex};
      if (state_->reads.size() >= state_->depth) return post_result::queue_full;
      state_->reads.push_back({id, connection.state_, into.state_, offset, *from.region, from.offset,
                               from.bytes, memory_detail::clock::now(), connection.state_->broken});
      return post_result::posted;
    }

    /// Does the possible reads, oldest first, until the span is full.
    std::size_t poll(std::span<completion> completions) noexcept {
      const std::lock_guard lock{state_->mutex};
      std::vector<memory_detail::posted_read>& reads = state_->reads;
      std::size_t filled = 0;
      std::size_t kept = 0;
      for (std::size_t i = 0; i < reads.size(); ++i) {
        completion_status status{};
        if (filled < completions.size() && memory_detail::finish(*state_, reads[i], status)) {
          completions[filled++] = {reads[i].id, status};
        } else {
          if (kept != i) reads[kept] = std::move(reads[i]);
          ++kept;
        }
      }
      reads.erase(reads.begin() + static_cast<std::ptrdiff_t>(kept), reads.end());
      return filled;
    }

    void wait(duration timeout) noexcept {
      std::unique_lock lock{state_->mutex};
      // `poll` does every outstanding read unless the peer is stalled; only then must `wait` sleep instead of
      // spinning.
      duration longest = std::min<duration>(timeout, std::chrono::hours{1});
      if (!state_->reads.empty()) longest = std::min<duration>(longest, std::chrono::microseconds{200});
      state_->woken_up.wait_for(lock, longest, [this] { return state_->woken || any_ready(); });
      state_->woken = false;
    }

    void wake() noexcept {
      const std::lock_guard lock{state_->mutex};
      state_->woken = true;
      state_->woken_up.notify_all();
    }

    [[nodiscard]] std::size_t outstanding() const noexcept {
      if (!state_) return 0;
      const std::lock_guard lock{state_->mutex};
      return state_->reads.size();
    }

   private:
    friend class memory_transport;
    explicit queue(std::shared_ptr<queue_state> state) noexcept : state_{std::move(state)} {}
    void close() noexcept {
      if (!state_) return;
      const std::lock_guard lock{state_->mutex};
      state_->reads.clear();
    }
    [[nodiscard]] bool any_ready() const noexcept {
      return std::any_of(state_->reads.begin(), state_->reads.end(), [](const auto& read) {
        if (read.endpoint->closed || read.dead_on_arrival) return true;
        const std::lock_guard lock{read.endpoint->source->mutex};
        return !read.endpoint->source->stalled;
      });
    }
    std::shared_ptr<queue_state> state_;
  };

  memory_transport(options chosen, incarnation self)
      : options_{chosen}, node_{std::make_shared<memory_detail::node>(self)} {
    memory_detail::registry::instance().insert(node_);
  }
  ~memory_transport() { kill(); }
  memory_transport(const memory_transport&) = delete;
  memory_transport& operator=(const memory_transport&) = delete;

  [[nodiscard]] transport_address address() const { return {node_->address}; }

  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const memory_range> ranges,
                                                           region_access access) {
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const std::string which = "range " + std::to_string(i) + " of " + std::to_string(ranges.size());
      if (ranges[i].bytes == 0) throw error{errc::invalid_argument, which + " has no bytes to register"};
      if (ranges[i].data == nullptr) throw error{errc::invalid_argument, which + " has no memory"};
      if (!ranges[i].host_accessible() && ranges[i].device == nullptr)
        throw error{errc::invalid_argument, which + " is device memory of no known device"};
    }
    std::vector<memory_region> regions;
    regions.reserve(ranges.size());
    for (const memory_range& range : ranges) {
      auto state = std::make_shared<region_state>();
      state->owner = node_;
      state->range = range;
      state->access = access;
      state->registered = true;
      {
        const std::lock_guard lock{node_->mutex};
        do {
          state->key = node_->new_key();
        } while (!node_->regions.emplace(state->key, state.get()).second);
        node_->registered_bytes += range.bytes;
      }
      regions.push_back(memory_region{std::move(state)});
    }
    return regions;
  }

  [[nodiscard]] std::uint64_t registered_bytes() const noexcept {
    const std::lock_guard lock{node_->mutex};
    return node_->registered_bytes;
  }

  [[nodiscard]] remote_region describe(const memory_region& region) const {
    const std::lock_guard lock{node_->mutex};
    const region_state& state = *region.state_;
    remote_region described{reinterpret_cast<std::uintptr_t>(state.range.data), state.range.bytes, {}};
    std::memcpy(described.key.bytes.data(), state.key.data(), state.key.size());
    described.key.used_bytes = static_cast<std::uint8_t>(state.key.size());
    return described;
  }

  void revoke(memory_region& region) noexcept {
    const std::lock_guard lock{node_->mutex};
    region_state& state = *region.state_;
    auto entry = node_->regions.extract(state.key);
    do {
      state.key = node_->new_key();
    } while (node_->regions.contains(state.key));
    entry.key() = state.key;
    node_->regions.insert(std::move(entry));
  }

  void cut_off(incarnation peer) noexcept {
    const std::lock_guard lock{node_->mutex};  // no read is half done when this returns
    node_->gate.cut_off(peer);
  }

  void admit(incarnation self) { node_->gate.admit(self); }
  void rename(incarnation self, incarnation next) noexcept { node_->gate.rename(self, next); }
  void dismiss(incarnation self) noexcept { node_->gate.dismiss(self); }

  void require_capability(std::span<const std::byte> key) { node_->gate.require_capability(key); }
  void expire_capabilities(incarnation self, std::uint64_t epoch) noexcept {
    node_->gate.expire_capabilities(self, epoch);
  }
  [[nodiscard]] std::uint64_t refused_connections() const noexcept {
    return node_->gate.refused_connections();
  }

  [[nodiscard]] queue make_queue(std::size_t depth) {
    if (depth == 0) throw error{errc::invalid_argument, "a queue needs room for one read at least"};
    auto state = std::make_shared<queue_state>();
    state->depth = depth;
    state->reader = node_;
    state->options = options_;
    state->reads.reserve(depth);
    return queue{std::move(state)};
  }

  [[nodiscard]] endpoint connect(queue& own_queue, const transport_address& address, incarnation peer,
                                 duration timeout, incarnation self = {}) {
    const std::shared_ptr<memory_detail::node> source =
        memory_detail::registry::instance().find(address.text);
    error_context context;
    context.peer = to_hex(peer) + " at " + address.text;
    if (!source)
      throw error{errc::transport_failed, "connection refused: nothing is listening at this address",
                  context};
    const incarnation reader = self ? self : node_->gate.self();
    const auto give_up = memory_detail::clock::now() + std::min<duration>(timeout, std::chrono::hours{1});
    for (;;) {
      {
        const std::lock_guard lock{source->mutex};
        if (!source->alive) throw error{errc::transport_failed, "the peer is gone", context};
        const auto shown = std::as_bytes(std::span{address.capability});
        const detail::refusal why = source->gate.judge_reader(reader, peer, shown, {});
        if (why != detail::refusal::none) {
          throw error{errc::transport_failed,
                      "the peer " + detail::describe(why, {0, 0, source->gate.self(), peer}), context};
        }
        if (!source->stalled) break;
      }
      if (memory_detail::clock::now() >= give_up)
        throw error{errc::timed_out, "the peer did not answer a connection", context};
      std::this_thread::sleep_for(std::chrono::microseconds{200});
    }
    return endpoint{own_queue.state_,
                    std::make_shared<endpoint_state>(endpoint_state{source, peer, reader, false, false})};
  }

  /// Behaves as if the process had died: its address is gone and reads from it end in `peer_lost`. Noexcept.
  void kill() noexcept {
    memory_detail::registry::instance().erase(node_->address);
    const std::lock_guard lock{node_->mutex};
    node_->alive = false;
  }
  /// Behaves as if the process had been stopped: its peers wait until their time-outs.
  void stall() noexcept {
    const std::lock_guard lock{node_->mutex};
    node_->stalled = true;
    node_->stalled_since = memory_detail::clock::now();
  }
  void resume() noexcept {
    const std::lock_guard lock{node_->mutex};
    node_->stalled = false;
  }

 private:
  options options_;
  std::shared_ptr<memory_detail::node> node_;
};
static_assert(guarded_transport<memory_transport> && shared_transport<memory_transport>);

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
