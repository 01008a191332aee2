#pragma once
/// \file fleet.hpp
/// Hundreds or thousands of workers over a simulated data network: the real catalog, session and pull, in
/// virtual time, without bytes. It measures the speed of replication, while world.hpp checks correctness.
///
///     testing::fleet fleet{{.chunks = 4096, .shard_bytes = 50'000'000'000}};
///     auto& trainer = fleet.add({.replica = "trainer"});
///     auto& rollout = fleet.add({.replica = "rollout-0"});
///     fleet.publish(trainer, 1);
///     fleet.update(rollout, exactly(1), [&](const fleet_update& done) { ... });
///     fleet.run();
///
/// Chunks are flows of the network (link_network.hpp) from the source's host to the reader's. Headers, maps
/// and control blocks are small messages of their true size in both directions. Control messages take
/// `control_delay` each way, and the server handles one after the other in `server_time` each (20 us: the
/// time that the ZeroMQ shell needs on one core). Digests, packing and memory take no time. Connecting takes
/// `connect_time`.
///
/// A chunk that is read although its source no longer shows it, or does not have it, is counted in
/// `broken_reads`, which must stay zero. fleet_rules.hpp checks the limits of the catalog (credits, seeds,
/// upstreams).
///
/// Thread safety: none.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "support/simulation/link_network.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/policy/integrity/none.hpp"
#include "tensorhub/service/catalog.hpp"
#include "tensorhub/service/session.hpp"
#include "tensorhub/transfer/control_block.hpp"
#include "tensorhub/transfer/pull.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

struct fleet_options {
  std::uint64_t chunks = 4096;
  std::uint64_t shard_bytes = 50'000'000'000;
  std::uint32_t shards = 1;
  pull_options rules{.window_chunks = 8};  ///< of every worker, which has one lane
  duration control_delay = std::chrono::microseconds{25};
  duration server_time = std::chrono::microseconds{20};
  duration connect_time = std::chrono::microseconds{200};
  duration lost_after = std::chrono::milliseconds{50};  ///< time until a dead source's reads end
  duration lan_delay = std::chrono::microseconds{5};
  std::uint64_t seed = 1;
};

struct fleet_member_options {
  std::string replica{};
  std::uint32_t shard = 0;
  tensorhub::location location{};
  bool spot = false;
  std::uint64_t sending_bytes_per_second = 25'000'000'000;
  std::uint64_t receiving_bytes_per_second = 25'000'000'000;
};

/// The outcome of an update.
struct fleet_update {
  messages::status outcome{};
  version_number version{};
  bool kept = false;
  time_point began{};
  time_point ended{};
  [[nodiscard]] double seconds() const noexcept { return to_seconds(ended - began); }
};

/// One chunk read, for traces.
struct fleet_read {
  std::uint32_t reader = 0;  ///< number of the worker, from 0 in the order of `add`
  std::uint32_t source = 0;
  chunk_index chunk = 0;
  time_point posted{};
  time_point arrived{};
};

class fleet {
 public:
  class member {
   public:
    [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
    [[nodiscard]] host_id host() const noexcept { return host_; }
    [[nodiscard]] const session& core() const noexcept { return core_; }
    [[nodiscard]] bool alive() const noexcept { return alive_; }
    [[nodiscard]] const tensorhub::location& location() const noexcept { return core_.options().location; }

   private:
    friend class fleet;
    struct channel_state {
      channel_id id = 0;
      member* source = nullptr;
    };
    member(std::uint32_t number, host_id host, session_options options, incarnation self, const layout& shape)
        : number_{number}, host_{host}, core_{std::move(options), self, shape} {}

    std::uint32_t number_;
    host_id host_;
    session core_;
    bool alive_ = true;
    time_point timer_ = time_point::never();
    time_point poll_timer_ = time_point::never();
    std::map<session_ticket, std::function<void(const session_result&)>> calls_{};
    // The content of its control block.
    control_header header_{};
    std::vector<std::uint64_t> map_{};
    // The running transfer.
    std::optional<pull> transfer_{};
    version_number transfer_version_{};
    std::vector<channel_state> channels_{};
    std::vector<messages::assignment> sources_{};
    std::vector<source_slot> connected_{};  ///< sources that it may still ask, in order
    std::vector<source_slot> released_{};   ///< sources of which it reports when their reads have ended
    std::uint64_t life_ = 0;  ///< of the transfer: late events notice that their transfer has ended
  };

  explicit fleet(fleet_options options, any_scheduler scheduler = nearest_source{})
      : options_{options},
        events_{options.seed},
        network_{events_, options.lan_delay},
        shape_{shape_of(options)},
        server_{settings(), server_epoch{1}, std::move(scheduler)} {
    tick();
  }
  fleet(const fleet&) = delete;
  fleet& operator=(const fleet&) = delete;

  [[nodiscard]] event_queue& events() noexcept { return events_; }
  [[nodiscard]] link_network& network() noexcept { return network_; }
  [[nodiscard]] const layout& shard_layout() const noexcept { return shape_; }
  [[nodiscard]] const catalog& server() const noexcept { return server_; }
  [[nodiscard]] std::uint64_t broken_reads() const noexcept { return broken_reads_; }
  /// The number of all members so far, including dead ones.
  [[nodiscard]] std::size_t size() const noexcept { return members_.size(); }
  [[nodiscard]] member& at(std::size_t number) noexcept { return *members_[number]; }
  /// Called for each chunk that has arrived.
  std::function<void(const fleet_read&)> trace{};
  std::function<void(const log_line&)> log{};
  /// Called with true before the server works, and with false after it: a benchmark measures its time.
  std::function<void(bool)> around_server{};

  /// The new member joins at once.
  member& add(const fleet_member_options& worker) {
    session_options options;
    options.server = "simulated";
    options.model = "policy";
    options.replica = worker.replica;
    options.shard = {worker.shard, options_.shards};
    options.location = worker.location;
    options.spot = worker.spot;
    options.transport = "simulated";
    options.consistency = group_consistent::name;
    options.integrity = no_integrity::name;
    const host_id host = network_.add_host(
        {worker.location, worker.sending_bytes_per_second, worker.receiving_bytes_per_second});
    const auto number = static_cast<std::uint32_t>(members_.size());
    members_.push_back(std::unique_ptr<member>{
        new member{number, host, std::move(options), incarnation{1000 + number}, shape_}});
    member& added = *members_.back();
    added.header_.holder = added.core_.self().value;
    added.header_.layout_low = shape_.digest().low;
    added.header_.layout_high = shape_.digest().high;
    added.header_.chunk_count = shape_.chunk_count();
    added.header_.segment_count = shape_.segments().size();
    added.map_.resize((shape_.chunk_count() + 63) / 64);
    call(added, added.core_.join(events_.now(), events_.now() + std::chrono::seconds{60}), {});
    return added;
  }

  void publish(member& worker, version_number version, std::function<void()> done = {}) {
    show(worker, control_state::shown, version, worker.core_.epoch());
    const auto ticket =
        worker.core_.publish(events_.now(), version, {}, control(), events_.now() + long_time);
    call(worker, ticket, [done = std::move(done)](const session_result& result) {
      if (done && result.outcome.ok()) done();
    });
  }
  void unpublish(member& worker, std::function<void()> done = {}, duration timeout = long_time) {
    call(worker, worker.core_.unpublish(events_.now(), events_.now() + timeout),
         [done = std::move(done)](const session_result&) {
           if (done) done();
         });
  }
  void update(member& worker, const version_selector& selector, std::function<void(const fleet_update&)> done,
              messages::update_reach reach = messages::update_reach::anywhere, duration timeout = long_time) {
    const time_point began = events_.now();
    const auto ticket = worker.core_.update(began, selector, began + timeout, control(), reach);
    call(worker, ticket, [this, began, done = std::move(done)](const session_result& result) {
      if (done) done({result.outcome, result.version, result.kept, began, events_.now()});
    });
  }
  /// Ends the process and its host.
  void kill(member& worker) {
    worker.alive_ = false;
    end_transfer(worker);
    network_.fail(worker.host_, options_.lost_after);
  }

  void after(duration delay, action what) { events_.after(delay, std::move(what)); }
  /// Runs until `done`, or until no event is left before `end`. Returns true if `done` holds.
  template <typename Done>
  bool run(Done&& done, duration limit = std::chrono::hours{24}) {
    const time_point end = events_.now() + limit;
    while (!done()) {
      if (!events_.step(end)) return false;
    }
    return true;
  }

 private:
  static constexpr duration long_time = std::chrono::hours{10};

  [[nodiscard]] static layout shape_of(const fleet_options& options) {
    const std::uint64_t chunk = options.shard_bytes / options.chunks;
    return layout{{{"weights", dtype::u8, {chunk * options.chunks}}}, chunk};
  }
  [[nodiscard]] static catalog_options settings() {
    catalog_options out;
    out.group_timeout = std::chrono::hours{1};
    return out;
  }
  [[nodiscard]] remote_region control() const {
    remote_region out;
    out.bytes = control_offsets::of(shape_).total_bytes;
    return out;
  }

  // ---- the control plane

  void call(member& worker, session_ticket ticket, std::function<void(const session_result&)> done) {
    worker.calls_[ticket] = std::move(done);
    settle(worker);
  }

  void settle(member& worker) {
    if (!worker.alive_) return;
    for (;;) {
      auto actions = worker.core_.take_actions();
      for (auto& order : actions) visit([&](auto& each) { perform(worker, each); }, order);
      for (auto& message : worker.core_.take_output()) to_server(std::move(message));
      const auto results = worker.core_.take_results();
      for (const auto& result : results) {
        auto found = worker.calls_.extract(result.ticket);
        if (!found.empty() && found.mapped()) found.mapped()(result);
      }
      if (actions.empty() && results.empty()) break;
    }
    const time_point next = worker.core_.next_deadline();
    if (next >= worker.timer_) return;
    worker.timer_ = next;
    events_.schedule(next, [this, &worker, next] {
      if (worker.timer_ != next || !worker.alive_) return;
      worker.timer_ = time_point::never();
      if (worker.transfer_) worker.core_.progress(worker.transfer_->confirmed_chunks());
      worker.core_.advance(events_.now());
      settle(worker);
    });
  }

  void to_server(messages::envelope message) {
    const time_point arrives = events_.now() + options_.control_delay;
    server_free_at_ = std::max(server_free_at_, arrives) + options_.server_time;
    events_.schedule(server_free_at_, [this, message = std::move(message)] {
      if (around_server) around_server(true);
      server_.receive(events_.now(), message);
      if (around_server) around_server(false);
      flush();
    });
  }
  void flush() {
    for (outgoing& out : server_.take_output()) {
      const std::uint64_t number = out.to.value - 1000;
      if (number >= members_.size()) continue;
      member& worker = *members_[number];
      events_.after(options_.control_delay, [this, &worker, message = std::move(out.message)] {
        if (!worker.alive_) return;
        worker.core_.receive(events_.now(), message);
        settle(worker);
      });
    }
    for (const log_line& line : server_.take_log()) {
      if (log) log(line);
    }
  }
  void tick() {
    const time_point next = std::max(server_.next_deadline(), events_.now() + std::chrono::milliseconds{5});
    events_.schedule(next, [this] {
      if (around_server) around_server(true);
      server_.advance(events_.now());
      if (around_server) around_server(false);
      flush();
      tick();
    });
  }

  // ---- the shell of a session

  void show(member& worker, control_state state, version_number version, std::uint64_t epoch) {
    worker.header_.state = static_cast<std::uint64_t>(state);
    worker.header_.version = version.value;
    worker.header_.epoch = epoch;
    if (state != control_state::shown) std::ranges::fill(worker.map_, std::uint64_t{0});
  }
  void perform(member& worker, const session_actions::raise_epoch& order) {
    show(worker, control_state::empty, version_number{worker.header_.version}, order.epoch);
  }
  void perform(member& worker, const session_actions::restore& order) {
    show(worker, control_state::shown, order.held.version, order.held.epoch);
  }
  void perform(member& worker, const session_actions::cut_off_reader& order) {
    worker.core_.cut_off_done(events_.now(), order.reader);
  }
  void perform(member& worker, const session_actions::cut_off_all&) {
    worker.core_.all_cut_off(events_.now());
  }
  void perform(member&, const session_actions::use_server&) {}
  void perform(member&, const session_actions::offload&) {}
  void perform(member&, const session_actions::drop&) {}
  void perform(member& worker, const session_actions::start_pull& order) {
    end_transfer(worker);
    worker.transfer_.emplace(shape_, options_.rules, first_chunk_of(order.ordinal, shape_.chunk_count()));
    worker.transfer_version_ = order.version;
    show(worker, control_state::receiving, order.version, worker.core_.epoch());
    for (const messages::assignment& source : order.sources) add_source(worker, source);
    worker.core_.pull_started(events_.now(), control());
    pump(worker);
  }
  /// Nobody publishes an open version here.
  void perform(member&, const session_actions::commit_pull&) {}
  void perform(member& worker, const session_actions::add_source& order) {
    if (!worker.transfer_) return;
    release(worker, order.released);
    add_source(worker, order.source);
    pump(worker);
  }
  void perform(member& worker, const session_actions::release_source& order) {
    if (!worker.transfer_) return;
    release(worker, order.released);
    pump(worker);
  }
  void perform(member& worker, const session_actions::stop_pull& order) {
    if (!worker.transfer_) return;
    std::optional<readable_memory> kept;
    if (worker.transfer_->intact()) kept = control();
    end_transfer(worker);
    worker.core_.pull_failed(events_.now(), order.reason, std::move(kept));
  }

  // ---- the data plane

  void end_transfer(member& worker) {
    ++worker.life_;
    worker.transfer_.reset();
    worker.channels_.clear();
    worker.sources_.clear();
    worker.connected_.clear();
    worker.released_.clear();
  }
  void release(member& worker, lease_id released) {
    for (source_slot slot = 0; slot < worker.sources_.size(); ++slot) {
      if (!released || worker.sources_[slot].lease != released) continue;
      worker.transfer_->retire_source(slot);
      worker.released_.push_back(slot);
    }
  }
  void add_source(member& worker, const messages::assignment& source) {
    const source_slot slot = worker.transfer_->add_source(
        {source.lease, source.source, source.version, source.epoch, source.root, source.receiving,
         first_chunk_of(source.ordinal, shape_.chunk_count()), source.crossing});
    worker.sources_.push_back(source);
    worker.channels_.push_back(
        {worker.transfer_->open_channel(slot), members_[source.source.value - 1000].get()});
    events_.after(options_.connect_time, [this, &worker, life = worker.life_, slot] {
      if (worker.life_ != life) return;
      worker.connected_.insert(std::ranges::upper_bound(worker.connected_, slot), slot);
      pump(worker);
      settle(worker);
    });
  }

  void pump(member& worker) {
    if (!worker.transfer_) return;
    pull& transfer = *worker.transfer_;
    const time_point now = events_.now();
    for (bool posted = true; posted;) {
      posted = false;
      std::erase_if(worker.connected_,
                    [&](source_slot slot) { return transfer.is_lost(slot) || transfer.is_idle(slot); });
      order_ = worker.connected_;
      std::ranges::stable_sort(order_, {}, [&](source_slot slot) { return transfer.in_flight(slot); });
      for (const source_slot slot : order_) {
        const auto task = transfer.next(worker.channels_[slot].id, now);
        if (!task) continue;
        posted = true;
        start(worker, slot, *task);
      }
    }
    while (const auto failure = transfer.take_failure())
      worker.core_.source_failed(now, failure->lease, failure->reason, failure->detail);
    std::erase_if(worker.released_, [&](source_slot slot) {
      const bool is_idle = transfer.is_idle(slot);
      if (is_idle) worker.core_.source_released(now, worker.sources_[slot].lease);
      return is_idle;
    });
    if (transfer.take_stall(now)) {
      transfer.forgive_stall(now);
      worker.core_.pull_stalled(now, "nothing new");
    }
    if (transfer.take_shortage(now)) worker.core_.pull_ran_short(now);
    if (transfer.done()) return complete(worker);
    time_point due = now + std::chrono::milliseconds{600};  // for stalls
    for (const source_slot slot : worker.connected_)
      due = std::min(due, transfer.due(worker.channels_[slot].id));
    due = std::max(due, now + std::chrono::microseconds{1});
    if (due >= worker.poll_timer_) return;
    worker.poll_timer_ = due;
    events_.schedule(due, [this, &worker, due] {
      if (worker.poll_timer_ != due) return;
      worker.poll_timer_ = time_point::never();
      pump(worker);
      settle(worker);
    });
  }

  void complete(member& worker) {
    const version_number version = worker.transfer_version_;
    end_transfer(worker);
    show(worker, control_state::shown, version, worker.core_.epoch());
    worker.core_.pull_finished(events_.now(), control());
  }

  void start(member& worker, source_slot slot, const pull_task& task) {
    member& source = *worker.channels_[slot].source;
    if (task.kind != pull_task::kind_type::chunk) return look(worker, slot, task.kind);
    const time_point posted = events_.now();
    const auto arrive = [this, &worker, life = worker.life_, slot, chunk = task.chunk, posted](bool ok) {
      if (worker.life_ != life) return;
      member& from = *worker.channels_[slot].source;
      if (ok && !has(from, worker.sources_[slot], chunk)) ++broken_reads_;
      if (ok && trace) trace({worker.number_, from.number_, chunk, posted, events_.now()});
      worker.transfer_->chunk_arrived(worker.channels_[slot].id, chunk,
                                      ok ? completion_status::ok : completion_status::peer_lost, {},
                                      events_.now());
      pump(worker);
      settle(worker);
    };
    network_.start(
        source.host_, worker.host_, shape_.slice(task.chunk).bytes, [arrive] { arrive(true); },
        [arrive] { arrive(false); });
  }

  /// If the source has raised its epoch, the header that is read next reveals it.
  [[nodiscard]] bool has(const member& source, const messages::assignment& lease, chunk_index chunk) const {
    if (source.header_.epoch != lease.epoch) return true;
    if (source.header_.state == static_cast<std::uint64_t>(control_state::shown)) return true;
    return (source.map_[chunk / 64] >> (chunk % 64) & 1) != 0;
  }

  /// A read of a header, map or block: request and answer.
  void look(member& worker, source_slot slot, pull_task::kind_type kind) {
    member& source = *worker.channels_[slot].source;
    const auto at = control_offsets::of(shape_);
    const std::uint64_t bytes = kind == pull_task::kind_type::header ? sizeof(control_header)
                                : kind == pull_task::kind_type::map  ? at.map_end()
                                                                     : at.total_bytes;
    const duration there = network_.delay(worker.host_, source.host_);
    if (network_.has_failed(source.host_)) {
      events_.after(options_.lost_after, [this, &worker, life = worker.life_, slot, kind] {
        if (worker.life_ == life) looked(worker, slot, kind, completion_status::peer_lost, {});
      });
      return;
    }
    events_.after(there, [this, &worker, &source, life = worker.life_, slot, kind, bytes] {
      if (worker.life_ != life) return;
      if (network_.has_failed(source.host_)) {
        events_.after(options_.lost_after, [this, &worker, life, slot, kind] {
          if (worker.life_ == life) looked(worker, slot, kind, completion_status::peer_lost, {});
        });
        return;
      }
      auto seen = std::make_unique<std::vector<std::byte>>(picture(source, kind));
      network_.message(source.host_, worker.host_, bytes,
                       [this, &worker, life, slot, kind, seen = std::move(seen)] {
                         if (worker.life_ == life) looked(worker, slot, kind, completion_status::ok, *seen);
                       });
    });
  }

  [[nodiscard]] std::vector<std::byte> picture(const member& source, pull_task::kind_type kind) const {
    const auto at = control_offsets::of(shape_);
    const bool whole = kind == pull_task::kind_type::block;
    std::vector<std::byte> bytes(whole                               ? at.total_bytes
                                 : kind == pull_task::kind_type::map ? at.map_end()
                                                                     : sizeof(control_header));
    std::memcpy(bytes.data(), &source.header_, sizeof(control_header));
    if (kind != pull_task::kind_type::header)
      std::memcpy(bytes.data() + at.bitmap, source.map_.data(), source.map_.size() * 8);
    if (whole) {
      control_segment segment;
      segment.bytes = shape_.segments().front().bytes;
      std::memcpy(bytes.data() + at.segments, &segment, sizeof segment);
    }
    return bytes;
  }

  void looked(member& worker, source_slot slot, pull_task::kind_type kind, completion_status status,
              const std::vector<std::byte>& bytes) {
    pull& transfer = *worker.transfer_;
    const channel_id channel = worker.channels_[slot].id;
    if (kind == pull_task::kind_type::block)
      transfer.block_arrived(channel, status, bytes, {}, events_.now());
    else if (kind == pull_task::kind_type::map)
      transfer.map_arrived(channel, status, bytes, events_.now());
    else
      transfer.header_arrived(channel, status, bytes, events_.now());
    for (const chunk_index chunk : transfer.take_confirmed()) worker.map_[chunk / 64] |= 1ull << (chunk % 64);
    pump(worker);
    settle(worker);
  }

  fleet_options options_;
  event_queue events_;
  link_network network_;
  layout shape_;
  catalog server_;
  time_point server_free_at_{};
  std::vector<std::unique_ptr<member>> members_;
  std::vector<source_slot> order_;  ///< scratch of pump
  std::uint64_t broken_reads_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
