#pragma once
/// \file worker.hpp
/// A simulated worker: the real session, pull and control block over simulated memory and a simulated
/// network.
///
/// The simulated worker is a shell like tensorhub/worker.hpp, with events instead of threads. Its memory
/// holds real bytes, so that a mixture of versions is a mixture of bytes and not a flag.

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/simulation/event_queue.hpp"
#include "support/simulation/options.hpp"
#include "support/simulation/server.hpp"
#include "support/simulation/violation.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/session.hpp"
#include "tensorhub/transfer/control_block.hpp"
#include "tensorhub/transfer/pull.hpp"
#include "tensorhub/transfer/pull_contacts.hpp"
#include "tensorhub/worker/control_writer.hpp"
#include "tensorhub/worker/session_orders.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// The bytes of a version: different for every version, shard and position.
[[nodiscard]] inline std::byte content_byte(version_number version, std::uint32_t shard,
                                            std::uint64_t position) noexcept {
  std::uint64_t x = version.value * 0x9e3779b97f4a7c15ull + version.line * 0xd6e8feb86659fd93ull +
                    shard * 0xbf58476d1ce4e5b9ull + position * 0x94d049bb133111ebull;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9ull;
  return static_cast<std::byte>(x >> 56);
}

class simulated_worker {
 public:
  static constexpr std::uint64_t control_base = UINT64_MAX;
  static constexpr lane_id lanes = 2;
  /// As the real ones, for a call that may take 30 ms between two chunks.
  static constexpr contact_options connection_times{.connect_timeout = std::chrono::milliseconds{60},
                                                    .next_connect_timeout = std::chrono::milliseconds{15},
                                                    .first_try = std::chrono::milliseconds{5},
                                                    .shortest_try = std::chrono::milliseconds{1}};

  /// The functions that the world provides for a worker.
  struct services {
    std::function<void(simulated_worker&, messages::envelope)> send{};
    /// The worker that answers at the address of this process: the process itself, its successor at the
    /// address, or none (null).
    std::function<const simulated_worker*(incarnation)> answers{};
    /// The name of a living process that may still read what this process has promised; empty: there is none.
    std::function<std::string(const simulated_worker&)> reader_of{};
    report_violation violate{};
    std::function<void(simulated_worker&, const session_result&)> result{};
    std::function<void(simulated_worker&, std::size_t)> use_server{};
    std::function<void(simulated_worker&)> resumed{};
    /// The incarnation as which this process joins again after it was declared dead; empty: it does not.
    std::function<std::optional<incarnation>(simulated_worker&)> returns_as{};
    std::function<void(simulated_worker&, version_number, const std::string&)> offload{};
    std::function<void(simulated_worker&)> drop{};
    std::function<bool()> flips_a_bit{};
    std::function<duration(incarnation source)> slowness{};  ///< of the read of a chunk
  };

  /// Borrows `events`, `shape` and `integrity`.
  simulated_worker(event_queue& events, services world, session_options options, incarnation self,
                   const layout& shape, const simulated_integrity& integrity)
      : events_{&events},
        integrity_{&integrity},
        world_{std::move(world)},
        name_{options.replica + "/" + std::to_string(options.shard.index)},
        shard_{options.shard},
        layout_{&shape},
        control_{control_block{self, shape}},
        core_{std::move(options), self, shape} {
    for (const auto& segment : shape.segments()) memory_.emplace_back(segment.bytes);
    std::uint64_t position = 0;
    for (chunk_index chunk = 0; chunk < shape.chunk_count(); ++chunk) {
      starts_.push_back(position);
      position += shape.slice(chunk).bytes;
    }
    chunks_.by_lease.resize(starts_.size());
    generations_.assign(memory_.size() + 1, 1);
  }

  [[nodiscard]] session& core() noexcept { return core_; }
  [[nodiscard]] const session& core() const noexcept { return core_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] shard_of shard() const noexcept { return shard_; }
  [[nodiscard]] bool alive() const noexcept { return alive_; }
  [[nodiscard]] std::uint64_t confirmed_chunks() const noexcept { return confirmed_total_; }

  /// The process ends at once; its memory answers no reads.
  void kill() {
    alive_ = false;
    end_transfer();
  }

  /// Stops the process, as SIGSTOP does: it sends, receives and times nothing, but its memory can still be
  /// read.
  void pause(duration time) {
    paused_ = true;
    events_->after(time, [this] {
      paused_ = false;
      since_.running = events_->now();
      for (const auto& put_off : std::exchange(backlog_, {})) put_off();
      settle();
      world_.resumed(*this);
    });
  }
  [[nodiscard]] bool paused() const noexcept { return paused_; }
  [[nodiscard]] time_point started() const noexcept { return since_.started; }
  /// The end of its last pause.
  [[nodiscard]] time_point running_since() const noexcept { return since_.running; }

  // ---- the user's side of the memory ----

  void write_version(version_number version) {
    for_each_byte([&](std::uint64_t position) { return byte_at(version, position); });
  }
  /// What an optimizer does after unpublish: changes every byte.
  void scribble() {
    const std::uint64_t salt = events_->bits();
    for_each_byte(
        [&](std::uint64_t position) { return static_cast<std::byte>((salt >> (position % 56)) ^ position); });
  }
  [[nodiscard]] bool holds_bytes_of(version_number version) const {
    std::uint64_t position = 0;
    for (const auto& segment : memory_) {
      for (const std::byte byte : segment) {
        if (byte != byte_at(version, position++)) return false;
      }
    }
    return true;
  }

  /// Makes the digests, shows the version and announces it.
  session_ticket publish(version_number version, duration timeout) {
    const digest_seeds seeds = seeds_of(version);
    std::vector<digest128> table;
    for (chunk_index chunk = 0; chunk < layout_->chunk_count(); ++chunk) {
      table.push_back(integrity_->chunk_digest(seeds.chunks, chunk, bytes_of(chunk)));
    }
    if ((!core_.held() || core_.is_open()) && !core_.busy() && !core_.fatal())
      data_shell{*this}.show(version, core_.epoch(), table);
    const auto ticket = core_.publish(events_->now(), version,
                                      integrity_->enabled ? integrity_->root(seeds.root, table) : digest128{},
                                      readable(), events_->now() + timeout);
    settle();
    return ticket;
  }

  /// Opens a version: `fill` writes it, chunk by chunk, and `publish` makes it whole.
  session_ticket open(version_number version, duration timeout) {
    if (!core_.held() && !core_.busy() && !core_.fatal()) {
      control_.show_receiving(version, core_.epoch(), {}, regions());
      open_epoch_ = promised_epoch_ = core_.epoch();
    }
    const auto ticket = core_.open(events_->now(), version, control_region(), events_->now() + timeout);
    settle();
    return ticket;
  }
  /// Writes one chunk of the open version, and shows it.
  void fill(version_number version, chunk_index chunk) {
    std::uint64_t position = starts_[chunk];
    for (std::byte& each : bytes_of(chunk)) each = byte_at(version, position++);
    const std::uint64_t seed = seeds_of(version).chunks;
    control_.add_chunk(chunk, integrity_->chunk_digest(seed, chunk, bytes_of(chunk)));
  }

  /// Other workers can read received chunks meanwhile.
  session_ticket update(const version_selector& selector, duration timeout,
                        messages::update_reach reach = messages::update_reach::anywhere, bool ahead = false) {
    if (!core_.busy()) copy_.from = nullptr;
    const auto ticket =
        core_.update(events_->now(), selector, events_->now() + timeout, control_region(), reach, ahead);
    settle();
    return ticket;
  }

  /// Copies what a neighbour holds, in some milliseconds, as worker_updates::update_from does.
  /// Pre-condition: it holds a version.
  session_ticket install(const simulated_worker& neighbour, duration timeout) {
    const messages::reference seen = *neighbour.core_.held();
    if (!core_.busy()) {
      copy_.from = &neighbour;
      copy_.held = seen;
    }
    const auto ticket = core_.install(events_->now(), seen.version, seen.root, events_->now() + timeout);
    settle();
    return ticket;
  }

  /// An installation runs: it drains what is held, and copies.
  [[nodiscard]] bool is_installing() const noexcept {
    return copy_.runs != nullptr || (copy_.from != nullptr && core_.busy());
  }

  /// The version that the control block shows as complete; zero: none is shown, or it is still being
  /// received.
  [[nodiscard]] version_number shown() const noexcept { return shown_; }

  /// Contract 1: bytes may change from here on, so no reader may still be able to read what was promised.
  void check_unread(const char* why) {
    if (promised_epoch_ == 0) return;
    if (const std::string reader = world_.reader_of(*this); !reader.empty())
      world_.violate({rule::permission, "bytes of " + name_ + " may change (" + why + ") although " + reader +
                                            " may still read them"});
    promised_epoch_ = 0;
  }
  /// Whether a transfer is running.
  [[nodiscard]] bool is_reading() const noexcept { return transfer_.has_value(); }
  /// Whether this worker reads from `holder` under a lease on what `holder` has promised, and would be
  /// served.
  [[nodiscard]] bool may_read(const simulated_worker& holder) const {
    if (!alive_ || !transfer_) return false;
    for (source_slot slot = 0; slot < sources_.size(); ++slot) {
      const messages::assignment& source = sources_[slot].source;
      if (source.source != holder.core_.self() || source.epoch != holder.promised_epoch_) continue;
      if (transfer_->is_lost(slot) || transfer_->is_idle(slot)) continue;
      if (holder.admits(core_.self(), source.control) == completion_status::ok) return true;
    }
    return false;
  }

  // ---- shell ----

  /// Performs all actions of the core until there are no more, and sets the timer.
  void settle() {
    if (!alive_ || paused_) return;
    for (;;) {
      auto actions = core_.take_actions();
      for (auto& action : actions) visit([&](auto& order) { perform(order); }, action);
      for (auto& message : core_.take_output()) {
        if (faults.forgets_success) forget_success(message.body);
        world_.send(*this, std::move(message));
      }
      const auto results = core_.take_results();
      for (const auto& result : results) world_.result(*this, result);
      // Results may lead to calls of the session that has ended.
      if (actions.empty() && results.empty() && !(core_.may_return() && returns())) break;
    }
    const time_point next = core_.next_deadline();
    if (next < timer_ && next != time_point::never()) {
      timer_ = next;
      events_->schedule(next, [this, next] {
        if (timer_ != next) return;
        timer_ = time_point::never();
        when_running([this] {
          core_.advance(events_->now());
          settle();
        });
      });
    }
  }

  void receive(const messages::envelope& message) {
    when_running([this, message] {
      core_.receive(events_->now(), message);
      settle();
    });
  }

  /// A read of this worker's memory at this moment, as the serving side of a transport does it.
  [[nodiscard]] completion_status serve(incarnation reader, const remote_region& region, std::uint64_t offset,
                                        std::span<std::byte> into) const {
    if (const auto status = admits(reader, region); status != completion_status::ok) return status;
    const std::span<const std::byte> memory = region.base == control_base
                                                  ? const_cast<control_writer&>(control_).memory()
                                                  : std::span{memory_.at(region.base)};
    if (offset > memory.size() || into.size() > memory.size() - offset)
      return completion_status::access_denied;
    std::memcpy(into.data(), memory.data() + offset, into.size());
    return completion_status::ok;
  }

  /// Whether this is the process of the lease, and has shown something at this epoch without a break.
  [[nodiscard]] bool lets_read(incarnation self, std::uint64_t epoch) const noexcept {
    return core_.self() == self && open_epoch_ == epoch;
  }
  /// Whether this process has cut that reader off, which is final.
  [[nodiscard]] bool bars(incarnation reader) const { return cut_off_.contains(reader); }
  /// Whether this process lets that process read with this key.
  [[nodiscard]] completion_status admits(incarnation reader, const remote_region& region) const {
    if (!alive_) return completion_status::peer_lost;
    if (cut_off_.contains(reader)) return completion_status::cut_off;
    std::uint64_t generation = 0;
    std::memcpy(&generation, region.key.bytes.data(), sizeof generation);
    return generation == generations_[region_at(region.base)] ? completion_status::ok
                                                              : completion_status::access_denied;
  }

  /// Planted faults: the behaviour of a broken worker. They prove that the simulation detects it.
  struct planted {
    bool skip_header_check = false;  ///< accept chunks without reading the header again
    bool skip_digests = false;
    bool skip_checks = false;  ///< takes for granted that a chunk is here whose digest was seen here before
    bool no_epoch = false;     ///< unpublishes without raising the epoch
    bool no_cut_off = false;   ///< confirm cut-offs without doing them
    /// A call that gives up after the last byte reports that nothing was overwritten.
    bool forgets_success = false;
    bool forgets_description = false;  ///< shows what it held before under another version's description
    bool lanes_connect_alone = false;  ///< each as if there were no other
    bool shows_early = false;          ///< sets a chunk's bit when its read begins
    bool ends_open = false;            ///< takes an open version for whole when it has every chunk
    bool shows_unverified = false;     ///< sets a chunk's bit when the chunk has arrived, whatever its digest
    bool forgets_overwriting = false;  ///< a stopped pull says that it has changed nothing
    bool overruns = false;             ///< the read of a chunk also changes the first byte of the next one
  } faults;

  [[nodiscard]] const chunk_origins& origins() const noexcept { return origins_; }

 private:
  bool returns() {
    const auto next = world_.returns_as(*this);
    if (!next) return false;
    since_.started = events_->now();
    data_shell memory{*this};
    worker_detail::go_on_as({*next, {}}, memory, core_, events_->now());
    return true;
  }
  /// Runs an action now, or after the pause.
  template <typename Call>
  void when_running(Call call) {
    if (!alive_) return;
    if (!paused_) return call();
    backlog_.push_back([this, call] {
      if (alive_) call();
    });
  }

  [[nodiscard]] remote_region control_region() const {
    return region(control_base, control_offsets::of(*layout_).total_bytes);
  }
  [[nodiscard]] readable_memory readable() const { return {control_region(), regions()}; }
  [[nodiscard]] remote_region region(std::uint64_t base, std::uint64_t bytes) const {
    remote_region out;
    out.base = base;
    out.bytes = bytes;
    const std::uint64_t generation = generations_[region_at(base)];
    std::memcpy(out.key.bytes.data(), &generation, sizeof generation);
    out.key.used_bytes = sizeof generation;
    return out;
  }
  /// In `generations_`: the segments, then the control block.
  [[nodiscard]] std::size_t region_at(std::uint64_t base) const noexcept {
    return std::min<std::uint64_t>(base, memory_.size());
  }
  /// The last chunk changes in every other version only.
  [[nodiscard]] std::byte byte_at(version_number version, std::uint64_t position) const noexcept {
    if (position >= starts_.back()) version.value /= 2;
    return content_byte(version, shard_.index, position);
  }
  [[nodiscard]] std::span<std::byte> bytes_of(chunk_index chunk) {
    const chunk_slice slice = layout_->slice(chunk);
    return std::span{memory_[slice.segment]}.subspan(slice.offset, slice.bytes);
  }
  template <typename Value>
  void for_each_byte(Value&& value) {
    std::uint64_t position = 0;
    for (auto& segment : memory_) {
      for (std::byte& byte : segment) byte = value(position++);
    }
  }

  /// What the session orders (worker/session_orders.hpp) is done to this: a data plane, with planted faults.
  struct data_shell {
    simulated_worker& worker;

    void show(version_number version, std::uint64_t epoch, std::span<const digest128> table) {
      worker.control_.show(version, epoch, table, worker.regions());
      shown(version, epoch, "shows");
    }
    [[nodiscard]] readable_memory describe_held() {
      if (!worker.faults.forgets_description) worker.control_.describe_held(worker.regions());
      return worker.readable();
    }
    void show_again(version_number version, std::uint64_t epoch) {
      worker.control_.show_again(version, epoch);
      shown(version, epoch, "restores");
    }
    void raise_epoch(std::uint64_t epoch) {
      worker.shown_ = {};
      worker.open_epoch_ = 0;
      if (!worker.faults.no_epoch) worker.control_.raise_epoch(epoch);
    }
    [[nodiscard]] readable_memory readable() const { return worker.readable(); }
    void cut_off(incarnation reader) {
      if (!worker.faults.no_cut_off) worker.cut_off_.insert(reader);
    }
    void renew(incarnation self) { worker.control_.set_holder(self); }
    void revoke_all() {
      for (std::size_t at = 0; at < worker.generations_.size(); ++at) worker.revoke(at);
    }

   private:
    void shown(version_number version, std::uint64_t epoch, const char* how) {
      if (!worker.holds_bytes_of(version))
        worker.world_.violate({rule::bytes_of_version, worker.name_ + " " + how + " version " +
                                                           to_string(version) + " with other bytes"});
      worker.shown_ = version;
      worker.open_epoch_ = worker.promised_epoch_ = epoch;
    }
  };
  [[nodiscard]] digest_seeds seeds_of(version_number version) const {
    return integrity_->bind(core_.options().model, version, shard_);
  }
  /// Other workers can read this received chunk from here on.
  void show_chunk(chunk_index chunk) {
    if (transferred_.was_open && integrity_->enabled)
      control_.add_chunk(chunk, transfer_->table()[chunk]);
    else
      control_.add_chunk(chunk);
    if (!has_bytes_of(chunk, transferred_.version))
      world_.violate({rule::shown_chunks, name_ + " shows chunk " + std::to_string(chunk) + " of version " +
                                              to_string(transferred_.version) + " with wrong bytes"});
  }
  [[nodiscard]] bool has_bytes_of(chunk_index chunk, version_number version) {
    std::uint64_t position = starts_[chunk];
    return std::ranges::all_of(bytes_of(chunk),
                               [&](std::byte byte) { return byte == byte_at(version, position++); });
  }
  [[nodiscard]] std::vector<remote_region> regions() const {
    std::vector<remote_region> out;
    for (std::size_t i = 0; i < memory_.size(); ++i) out.push_back(region(i, memory_[i].size()));
    return out;
  }

  // ---- actions ----

  static void forget_success(messages::message& body) {
    auto* finish = get_if<messages::finish_request>(&body);
    if (finish == nullptr || finish->result.ok() || finish->intact || !finish->held) return;
    finish->intact = true;
    finish->held.reset();
  }

  /// What the real worker does too.
  template <typename Order>
  void perform(const Order& order) {
    if constexpr (std::is_same_v<Order, session_actions::raise_epoch>) {
      if (!core_.is_revoking()) check_unread("its session raises the epoch");
    }
    data_shell memory{*this};
    worker_detail::perform(memory, core_, events_->now(), order);
  }
  /// Takes a time that grows with the bytes, while the session goes on (worker_state::perform).
  void perform(const session_actions::cut_off_all& order) {
    if (!core_.options().revokes_cheaply) return revoke_from(0, time_per_byte(*events_));
    data_shell memory{*this};
    worker_detail::perform(memory, core_, events_->now(), order);
    check_unread("all its readers are cut off");
  }
  void revoke(std::size_t at) {
    if (!faults.no_cut_off) ++generations_[at];
  }
  void revoke_from(std::size_t at, duration per_byte) {
    if (at == generations_.size()) {
      check_unread("all its readers are cut off");
      core_.all_cut_off(events_->now());
      return settle();
    }
    const std::uint64_t bytes = at < memory_.size() ? memory_[at].size() : control_region().bytes;
    events_->after(static_cast<std::int64_t>(bytes) * per_byte, [this, at, per_byte] {
      when_running([this, at, per_byte] {
        revoke(at);
        revoke_from(at + 1, per_byte);
      });
    });
  }
  void perform(const session_actions::offload& order) { world_.offload(*this, order.version, order.replica); }
  void perform(const session_actions::drop&) { world_.drop(*this); }
  void perform(const session_actions::use_server& order) { world_.use_server(*this, order.index); }
  void perform(const session_actions::start_pull& order) {
    if (copy_.from != nullptr) {
      copy_.runs = std::make_shared<bool>(true);
      events_->after(events_->between(std::chrono::milliseconds{1}, std::chrono::milliseconds{5}),
                     [this, life = copy_.runs] {
                       when_running([this, life] {
                         if (!*life) return;
                         end_copy();
                         settle();
                       });
                     });
      return;
    }
    end_transfer();
    pull_options rules{.window_chunks = 2, .confirm_every = 4};
    rules.needs_root = integrity_->enabled;
    rules.open = order.open;
    rules.poll_longest = std::chrono::milliseconds{1};
    rules.stall_timeout = std::chrono::milliseconds{30};
    transfer_.emplace(*layout_, rules, order.ordinal + core_.self().value);
    connecting_ = {};
    for (auto& each : connecting_.policies) each.emplace(*transfer_, connection_times);
    transferred_.version = order.version;
    transferred_.epoch = core_.epoch();
    transferred_.is_shown = false;
    transferred_.was_open = order.open;
    transferred_.is_committed = false;
    transfer_->assume(chunks_.present);
    life_ = std::make_shared<bool>(true);
    for (const messages::assignment& source : order.sources) add_source(source);
    core_.pull_started(events_->now(), control_region());
    pump();
    watch();
  }
  void perform(const session_actions::commit_pull& order) {
    if (!transfer_) return;
    transferred_.is_committed = true;
    transfer_->commit(order.root);
    pump();
  }
  void perform(const session_actions::add_source& order) {
    if (!transfer_) return;
    if (order.released) release(order.released);
    add_source(order.source);
    pump();
  }
  void perform(const session_actions::release_source& order) {
    if (!transfer_) return;
    release(order.released);
    pump();
  }
  void perform(const session_actions::stop_pull& order) {
    if (copy_.runs) return end_copy();
    if (!transfer_) return;
    const bool intact = faults.forgets_overwriting || transfer_->intact();
    end_transfer();
    data_shell memory{*this};
    worker_detail::report_end(memory, core_, events_->now(),
                              {transferred_.version, false, intact, order.reason});
  }

  void end_copy() {
    *std::exchange(copy_.runs, {}) = false;
    const auto& held = copy_.from->core_.held();
    const bool is_same =
        copy_.from->alive_ && held && held->version == copy_.held.version && held->epoch == copy_.held.epoch;
    if (is_same)
      memory_ = copy_.from->memory_;
    else
      scribble();
    messages::status trouble;
    if (!is_same) trouble = {errc::source_lost, "the neighbour has taken its version back"};
    const std::vector<digest128> table{copy_.from->control_.held_digests().begin(),
                                       copy_.from->control_.held_digests().end()};
    data_shell memory{*this};
    worker_detail::report_end(memory, core_, events_->now(),
                              {copy_.held.version, is_same, false, std::move(trouble), table});
  }

  // ---- transfer ----

  struct source_record {
    messages::assignment source{};
    std::array<std::optional<channel_id>, lanes> channels{};
    bool report_release = false;
    bool bits_flipped = false;  ///< some chunk of this source arrived wrong
  };

  /// The version that a complete, living and honest source shows under the lease can be read there.
  void check_was_unreadable(const source_failure& failure) {
    const source_record& lost = sources_[failure.slot];
    const messages::assignment& from = lost.source;
    const simulated_worker* holder = world_.answers(from.source);
    if (from.receiving || failure.reason == errc::timed_out || lost.bits_flipped || holder == nullptr) return;
    if (!holder->lets_read(from.source, from.epoch) || holder->bars(core_.self())) return;
    if (holder->shown_ != from.version || !holder->holds_bytes_of(from.version)) return;
    world_.violate({rule::readable, name_ + " gave up " + holder->name_ + ", which shows version " +
                                        to_string(from.version) + " with its bytes: " + failure.detail});
  }

  void add_source(const messages::assignment& source) {
    pull_source facts{source.lease, source.source,    source.version, source.epoch,
                      source.root,  source.receiving, source.ordinal, source.crossing};
    for (const told_region& segment : source.segments) facts.segments.push_back(segment.region());
    transfer_->add_source(facts);
    sources_.push_back({source, {}, false, false});
  }
  void release(lease_id released) {
    for (source_slot slot = 0; slot < sources_.size(); ++slot) {
      if (sources_[slot].source.lease != released) continue;
      transfer_->retire_source(slot);
      sources_[slot].report_release = true;
    }
  }

  /// Runs the transfer again periodically: map reads become due, or a stall must be noticed.
  void watch() {
    events_->after(std::chrono::microseconds{500}, [this, life = life_] {
      when_running([this, life] {
        if (!*life) return;
        pump();
        settle();
        if (*life) watch();
      });
    });
  }

  /// A process that has ended refuses, or its machine is gone, too, and nothing answers; a stopped process
  /// does not answer either. A lane that connects does nothing else.
  void connect(lane_id lane) {
    if (connecting_.now[lane]) return;
    connecting_.now[lane] = contacts(lane).next(lane);
    if (!connecting_.now[lane]) return;
    check_some_lane_reads();
    const auto travels = events_->between(std::chrono::microseconds{20}, std::chrono::microseconds{400});
    events_->after(travels, [this, life = life_, lane] {
      if (!*life) return;
      const pull_contacts::attempt& attempt = *connecting_.now[lane];
      const simulated_worker* holder = world_.answers(sources_[attempt.slot].source.source);
      const bool is_silent = holder == nullptr ? events_->chance(0.5) : holder->paused();
      const errc outcome = is_silent ? errc::timed_out : holder == nullptr ? errc::source_lost : errc::ok;
      events_->after(is_silent ? attempt.patience : duration{0}, [this, life, lane, outcome] {
        when_running([this, life, lane, outcome] {
          if (*life) connected(lane, outcome);
        });
      });
    });
  }
  void connected(lane_id lane, errc outcome) {
    const auto attempt = *std::exchange(connecting_.now[lane], std::nullopt);
    if (outcome == errc::ok)
      sources_[attempt.slot].channels[lane] = contacts(lane).made(lane, attempt);
    else
      static_cast<void>(contacts(lane).failed(lane, attempt, outcome, "no connection"));
    pump();
    settle();
  }
  [[nodiscard]] pull_contacts& contacts(lane_id lane) {
    return *connecting_.policies[faults.lanes_connect_alone ? lane : 0];
  }
  void check_some_lane_reads() {
    const bool all_wait =
        std::ranges::all_of(connecting_.now, [](const auto& each) { return each && each->explores; });
    for (source_slot slot = 0; all_wait && slot < sources_.size(); ++slot) {
      if (transfer_->is_lost(slot) || sources_[slot].channels == decltype(sources_[slot].channels){})
        continue;
      world_.violate(
          {rule::lanes, name_ + " lets every lane wait for a source beside one that is connected"});
    }
  }

  void end_transfer() {
    if (life_) *life_ = false;
    if (transfer_) chunks_.present.assign(transfer_->present().begin(), transfer_->present().end());
    transfer_.reset();
    sources_.clear();
  }

  void pump() {
    if (!transfer_) return;
    for (lane_id lane = 0; lane < lanes; ++lane) {
      connect(lane);
      for (source_slot slot = 0; slot < sources_.size() && !connecting_.now[lane]; ++slot) {
        const auto channel = sources_[slot].channels[lane];
        while (const auto task = channel ? transfer_->next(*channel, events_->now()) : std::nullopt) {
          if (faults.shows_early && task->kind == pull_task::kind_type::chunk) show_chunk(task->chunk);
          start(slot, lane, *task);
        }
      }
    }
    check_present();
    if (transfer_->take_stall(events_->now())) {
      transfer_->forgive_stall(events_->now());
      core_.pull_stalled(events_->now(), "nothing new");
    }
    if (transfer_->take_shortage(events_->now())) core_.pull_ran_short(events_->now());
    while (const auto failure = transfer_->take_failure()) {
      check_was_unreadable(*failure);
      core_.source_failed(events_->now(), failure->lease, failure->reason, failure->detail);
    }
    for (source_slot slot = 0; slot < sources_.size(); ++slot) {
      if (!sources_[slot].report_release || !transfer_->is_idle(slot)) continue;
      sources_[slot].report_release = false;
      core_.source_released(events_->now(), sources_[slot].source.lease);
    }
    if (faults.ends_open && transfer_->confirmed_chunks() == layout_->chunk_count())
      transfer_->commit(integrity_->root(seeds_of(transferred_.version).root, transfer_->table()));
    compare_roots();
    if (transfer_->done()) complete();
  }
  /// Digests what may be here already, as lanes do between two reads.
  void check_present() {
    const std::uint64_t before = transfer_->confirmed_chunks();
    while (const auto chunk = transfer_->next_check()) {
      const std::uint64_t seed = seeds_of(transferred_.version).chunks;
      digest128 digest = integrity_->chunk_digest(seed, *chunk, bytes_of(*chunk));
      if (faults.skip_checks) digest = transfer_->table()[*chunk];
      chunks_.by_lease[*chunk] = true;
      static_cast<void>(transfer_->checked(*chunk, digest, events_->now()));
      origins_.here += transfer_->is_confirmed(*chunk) ? 1 : 0;
    }
    show_confirmed();
    check_confirmed(before);
  }
  /// What was collected of an open version is what was published: all workers are honest.
  void compare_roots() {
    const auto root = transfer_->unsettled();
    if (!root) return;
    if (integrity_->root(seeds_of(transferred_.version).root, transfer_->table()) != *root) {
      if (transfer_->doubt_digests()) return;  // half of one was read before it was written
      world_.violate({rule::received_chunks, name_ + " has other digests of the open version " +
                                                 to_string(transferred_.version) + " than were published"});
    }
    transfer_->settle();
    control_.set_digests(transfer_->table());
  }

  void complete() {
    const version_number version = transferred_.version;
    for (source_slot slot = 0; slot < sources_.size(); ++slot) {
      if (sources_[slot].source.receiving) origins_.relayed += transfer_->chunks_from(slot);
    }
    const std::vector<digest128> table{transfer_->table().begin(), transfer_->table().end()};
    end_transfer();
    data_shell memory{*this};
    worker_detail::report_end(memory, core_, events_->now(), {version, true, false, {}, table});
    if (!core_.held()) promised_epoch_ = 0;  // the pull was being stopped: the received chunks are dropped
  }

  /// One read: the request travels, up to three pieces of the bytes are taken at different times, the
  /// completion travels.
  struct read_state {
    std::vector<std::byte> bytes{};
    std::span<std::byte> target{};  ///< of a chunk: its bytes arrive here piece by piece
    completion_status status = completion_status::ok;
    bool by_lease = true;  ///< the source showed the lease's version until the last byte was taken
  };

  void start(source_slot slot, lane_id lane, const pull_task& task) {
    const messages::assignment source = sources_[slot].source;
    auto state = std::make_shared<read_state>();
    remote_region from = source.control;
    std::uint64_t offset = 0;
    std::uint64_t bytes = sizeof(control_header);
    if (task.kind == pull_task::kind_type::block) bytes = control_offsets::of(*layout_).total_bytes;
    if (task.kind == pull_task::kind_type::map) bytes = transfer_->map_bytes();
    if (task.kind == pull_task::kind_type::chunk) {
      const chunk_slice slice = layout_->slice(task.chunk);
      from = transfer_->segments(slot)[slice.segment];
      offset = slice.offset;
      bytes = slice.bytes;
      state->target = bytes_of(task.chunk);
    }
    state->bytes.resize(bytes);
    const auto life = life_;
    duration delay = events_->between(std::chrono::microseconds{20}, std::chrono::microseconds{200});
    if (task.kind == pull_task::kind_type::chunk) delay += world_.slowness(source.source);
    const std::uint64_t pieces = 1 + events_->below(3);
    for (std::uint64_t piece = 0; piece < pieces; ++piece) {
      const std::uint64_t first = bytes * piece / pieces;
      const std::uint64_t last = bytes * (piece + 1) / pieces;
      events_->after(delay, [this, life, state, slot, source, from, offset, first, last] {
        if (!*life || state->status != completion_status::ok) return;
        const simulated_worker* holder = world_.answers(source.source);
        const auto part = std::span{state->bytes}.subspan(first, last - first);
        state->status = holder == nullptr ? completion_status::peer_lost
                                          : holder->serve(core_.self(), from, offset + first, part);
        if (holder != nullptr) state->by_lease = holder->lets_read(source.source, source.epoch);
        if (state->status == completion_status::ok && !state->target.empty() && world_.flips_a_bit()) {
          part.front() ^= std::byte{1};
          sources_[slot].bits_flipped = true;
        }
        if (state->status == completion_status::ok && !state->target.empty()) {
          std::memcpy(state->target.data() + first, part.data(), part.size());
        }
      });
      delay += events_->between(std::chrono::microseconds{0}, std::chrono::microseconds{400});
    }
    // A lost peer is noticed late, as by a time-out.
    events_->after(delay, [this, life, state, slot, lane, task] {
      if (!*life) return;
      const duration extra =
          state->status == completion_status::peer_lost
              ? events_->between(std::chrono::milliseconds{1}, std::chrono::milliseconds{40})
              : duration{0};
      events_->after(extra,
                     [this, life, state, slot, lane, task] { deliver(life, slot, lane, task, state); });
    });
  }
  /// A completion waits for its lane.
  void deliver(const std::shared_ptr<bool>& life, source_slot slot, lane_id lane, const pull_task& task,
               const std::shared_ptr<read_state>& state) {
    when_running([this, life, state, slot, lane, task] {
      if (!*life) return;
      if (!connecting_.now[lane]) return arrived(slot, *sources_[slot].channels[lane], task, *state);
      events_->after(std::chrono::microseconds{100},
                     [this, life, slot, lane, task, state] { deliver(life, slot, lane, task, state); });
    });
  }

  void arrived(source_slot slot, channel_id channel, const pull_task& task, const read_state& state) {
    const std::uint64_t before = transfer_->confirmed_chunks();
    switch (task.kind) {
      case pull_task::kind_type::block: {
        const version_number version = transferred_.version;
        digest128 root;
        if (integrity_->enabled && state.status == completion_status::ok) {
          root = integrity_->root(seeds_of(version).root, read_control_digests(state.bytes, *layout_));
        }
        if (transfer_->block_arrived(channel, state.status, state.bytes, root, events_->now()) &&
            !transferred_.is_shown) {
          show_transferred();
        }
        show_confirmed();
        break;
      }
      case pull_task::kind_type::chunk: {
        digest128 digest;
        if (integrity_->enabled && state.status == completion_status::ok) {
          digest = integrity_->chunk_digest(seeds_of(transferred_.version).chunks, task.chunk,
                                            bytes_of(task.chunk));
        }
        if (faults.skip_digests && !transfer_->table().empty()) digest = transfer_->table()[task.chunk];
        if (state.status == completion_status::ok) chunks_.by_lease[task.chunk] = state.by_lease;
        if (faults.shows_unverified && state.status == completion_status::ok) show_chunk(task.chunk);
        if (faults.overruns) overrun(task.chunk + 1);
        transfer_->chunk_arrived(channel, task.chunk, state.status, digest, events_->now());
        break;
      }
      case pull_task::kind_type::header:
      case pull_task::kind_type::map: {
        std::vector<std::byte> seen = state.bytes;
        completion_status status = state.status;
        if (faults.skip_header_check) {
          const pull_source& facts = transfer_->facts(slot);
          control_header forged;
          std::memcpy(&forged, seen.data(), sizeof forged);
          forged.magic = control_header::magic_number;
          forged.holder = facts.holder.value;
          forged.epoch = facts.epoch;
          forged.version = facts.version.value;
          forged.state =
              static_cast<std::uint64_t>(facts.receiving ? control_state::receiving : control_state::shown);
          std::memcpy(seen.data(), &forged, sizeof forged);
          status = completion_status::ok;
        }
        if (task.kind == pull_task::kind_type::map)
          transfer_->map_arrived(channel, status, seen, events_->now());
        else
          transfer_->header_arrived(channel, status, seen, events_->now());
        show_confirmed();
        break;
      }
    }
    check_confirmed(before);
    pump();
    settle();
  }

  void overrun(chunk_index next) {
    if (next < layout_->chunk_count() && transfer_->is_confirmed(next))
      bytes_of(next).front() ^= std::byte{1};
  }
  void show_confirmed() {
    for (const chunk_index chunk : transfer_->take_confirmed()) {
      check_read_by_lease(chunk);
      show_chunk(chunk);
    }
  }
  void show_transferred() {
    transferred_.is_shown = true;
    const auto table = transferred_.was_open ? std::span<const digest128>{} : transfer_->table();
    control_.show_receiving(transferred_.version, transferred_.epoch, table, regions());
    open_epoch_ = transferred_.epoch;
  }

  /// Contract 2: an accepted chunk has the bytes of its version at the moment of its acceptance.
  void check_confirmed(std::uint64_t before) {
    const std::uint64_t now_confirmed = transfer_->confirmed_chunks();
    if (now_confirmed == before) return;
    confirmed_total_ += now_confirmed - before;
    if (transferred_.was_open && !transferred_.is_committed) origins_.ahead += now_confirmed - before;
    for (chunk_index chunk = 0; chunk < layout_->chunk_count(); ++chunk) {
      if (transfer_->is_confirmed(chunk) && !has_bytes_of(chunk, transferred_.version))
        return world_.violate({rule::received_chunks, name_ + " accepted chunk " + std::to_string(chunk) +
                                                          " of version " + to_string(transferred_.version) +
                                                          " with wrong bytes"});
    }
  }
  /// Contract 2, second part: the chunk was read from the process of the lease, which had not withdrawn it.
  void check_read_by_lease(chunk_index chunk) {
    if (chunks_.by_lease[chunk]) return;
    world_.violate({rule::sources, name_ + " accepted chunk " + std::to_string(chunk) + " of version " +
                                       to_string(transferred_.version) +
                                       ", which was read after its source had let go of it"});
  }

  event_queue* events_;
  const simulated_integrity* integrity_;
  services world_;
  std::string name_;
  shard_of shard_;
  const layout* layout_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::uint64_t> starts_;  ///< of the chunks, in the shard's bytes
  control_writer control_;
  version_number shown_{};        ///< the complete version that is shown
  std::uint64_t open_epoch_ = 0;  ///< the epoch of what is shown now, complete or not; zero: nothing is shown
  std::uint64_t promised_epoch_ =
      0;  ///< the last epoch at which it was complete; zero: bytes have changed since
  std::vector<std::uint64_t> generations_;  ///< of the keys, by region
  std::set<incarnation> cut_off_;
  session core_;
  bool alive_ = true;
  bool paused_ = false;
  struct {
    time_point started{};  ///< as this incarnation
    time_point running{};
  } since_{events_->now(), {}};
  std::vector<std::function<void()>> backlog_;  ///< the actions of a pause
  time_point timer_ = time_point::never();

  struct {
    const simulated_worker* from = nullptr;  ///< null: an update runs, or was the last call
    messages::reference held{};              ///< there, when the installation began
    std::shared_ptr<bool> runs;              ///< empty: no copy runs
  } copy_;                                   ///< of the last installation
  std::optional<pull> transfer_;
  struct {
    std::array<std::optional<pull_contacts>, lanes> policies{};  ///< the first, without planted faults
    std::array<std::optional<pull_contacts::attempt>, lanes> now{};
  } connecting_;
  struct {
    version_number version{};
    std::uint64_t epoch = 0;
    bool is_shown = false;  ///< other workers can read received chunks
    bool was_open = false;
    bool is_committed = false;  ///< it was open, and its root is known
  } transferred_;
  chunk_origins origins_;
  std::vector<source_record> sources_;
  struct {
    std::vector<bool> by_lease;      ///< `read_state::by_lease` of its last read
    std::vector<digest128> present;  ///< at the end of the last transfer
  } chunks_;                         ///< by chunk
  std::shared_ptr<bool> life_;
  std::uint64_t confirmed_total_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
