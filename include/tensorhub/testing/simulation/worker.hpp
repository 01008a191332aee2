#pragma once
/// \file worker.hpp
/// A simulated worker: the real session, pull and control block over simulated memory and a simulated
/// network.
///
/// It is a shell like tensorhub/worker.hpp, with events in the place of threads. Its memory holds real bytes,
/// so that a mixture of versions is a mixture of bytes and not a flag.

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/concepts/integrity.hpp"
#include "tensorhub/service/session.hpp"
#include "tensorhub/testing/simulation/event_queue.hpp"
#include "tensorhub/transfer/control_block.hpp"
#include "tensorhub/transfer/pull.hpp"

namespace tensorhub::testing {

/// The bytes of a version: different in every version, shard and place.
[[nodiscard]] inline std::byte content_byte(version_number version, std::uint32_t shard,
                                            std::uint64_t position) noexcept {
  std::uint64_t x = version.value * 0x9e3779b97f4a7c15ull + shard * 0xbf58476d1ce4e5b9ull +
                    position * 0x94d049bb133111ebull;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9ull;
  return static_cast<std::byte>(x >> 56);
}

template <integrity Integrity>
class simulated_worker {
 public:
  static constexpr std::uint64_t control_base = UINT64_MAX;

  /// What the world does for a worker.
  struct services {
    std::function<void(simulated_worker&, messages::envelope)> send{};
    std::function<simulated_worker*(incarnation)> find{};
    std::function<void(const std::string&)> violation{};
    std::function<void(simulated_worker&, const session_result&)> result{};
  };

  simulated_worker(event_queue& events, services world, session_options options, incarnation self,
                   const layout& shape)
      : events_{&events},
        world_{std::move(world)},
        name_{options.replica + "/" + std::to_string(options.shard.index)},
        model_{options.model},
        shard_{options.shard},
        layout_{&shape},
        control_{self, shape},
        core_{std::move(options), self, shape} {
    for (const auto& segment : shape.segments()) memory_.emplace_back(segment.bytes);
  }

  [[nodiscard]] session& core() noexcept { return core_; }
  [[nodiscard]] const session& core() const noexcept { return core_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] shard_of shard() const noexcept { return shard_; }
  [[nodiscard]] bool alive() const noexcept { return alive_; }
  [[nodiscard]] std::uint64_t confirmed_chunks() const noexcept { return confirmed_total_; }

  /// The process is gone at once; its memory answers nobody.
  void kill() {
    alive_ = false;
    end_transfer();
  }

  // ---- the user's side of the memory ----

  void write_version(version_number version) {
    for_each_byte([&](std::uint64_t position) { return content_byte(version, shard_.index, position); });
  }
  /// What an optimizer does after unpublish: every byte becomes something else.
  void scribble() {
    const std::uint64_t salt = events_->bits();
    for_each_byte(
        [&](std::uint64_t position) { return static_cast<std::byte>((salt >> (position % 56)) ^ position); });
  }
  [[nodiscard]] bool holds_bytes_of(version_number version) const {
    std::uint64_t position = 0;
    for (const auto& segment : memory_) {
      for (const std::byte byte : segment) {
        if (byte != content_byte(version, shard_.index, position++)) return false;
      }
    }
    return true;
  }

  /// Digests, shows and announces.
  session_ticket publish(version_number version, duration timeout) {
    const std::uint64_t seed = Integrity::bind(model_, version, shard_);
    std::vector<digest128> table;
    for (chunk_index chunk = 0; chunk < layout_->chunk_count(); ++chunk) {
      table.push_back(Integrity::chunk_digest(seed, chunk, bytes_of(chunk)));
    }
    if (!core_.held() && !core_.busy() && !core_.fatal()) show(version, core_.epoch(), table);
    const auto ticket = core_.publish(events_->now(), version,
                                      Integrity::enabled ? Integrity::root(seed, table) : digest128{},
                                      control_region(), events_->now() + timeout);
    settle();
    return ticket;
  }

  // ---- shell ----

  /// Performs everything that the core wants, until it wants nothing more, and sets the timer.
  void settle() {
    if (!alive_) return;
    for (;;) {
      auto actions = core_.take_actions();
      for (auto& action : actions) std::visit([&](auto& order) { perform(order); }, action);
      for (auto& message : core_.take_output()) {
        if (faults.forgets_success) forget_success(message.body);
        world_.send(*this, std::move(message));
      }
      const auto results = core_.take_results();
      for (const auto& result : results) world_.result(*this, result);
      if (actions.empty() && results.empty()) break;
    }
    const time_point next = core_.next_deadline();
    if (next < timer_ && next != time_point::never()) {
      timer_ = next;
      events_->schedule(next, [this, next] {
        if (timer_ != next) return;
        timer_ = time_point::never();
        if (!alive_) return;
        core_.advance(events_->now());
        settle();
      });
    }
  }

  void receive(const messages::envelope& message) {
    if (!alive_) return;
    core_.receive(events_->now(), message);
    settle();
  }

  /// A read of this worker's memory at this moment, as the transport's serving side would do it.
  [[nodiscard]] completion_status serve(incarnation reader, const remote_region& region, std::uint64_t offset,
                                        std::span<std::byte> into) const {
    if (!alive_) return completion_status::peer_lost;
    if (cut_off_.contains(reader)) return completion_status::cut_off;
    std::uint64_t generation = 0;
    std::memcpy(&generation, region.key.bytes.data(), sizeof generation);
    if (generation != key_generation_) return completion_status::access_denied;
    const std::span<const std::byte> memory = region.base == control_base
                                                  ? const_cast<control_block&>(control_).memory()
                                                  : std::span{memory_.at(region.base)};
    if (offset > memory.size() || into.size() > memory.size() - offset)
      return completion_status::access_denied;
    std::memcpy(into.data(), memory.data() + offset, into.size());
    return completion_status::ok;
  }

  /// Planted faults: what a broken worker does. Used to prove that the simulation sees it.
  struct planted {
    bool skip_header_check = false;  ///< accept chunks without reading the header again
    bool skip_digests = false;
    bool no_epoch = false;         ///< let go without raising the epoch
    bool no_cut_off = false;       ///< confirm cut-offs without doing them
    bool forgets_success = false;  ///< who gives up after the last byte says that nothing was overwritten
  } faults;

 private:
  [[nodiscard]] remote_region control_region() const {
    return region(control_base, control_offsets::of(*layout_).total_bytes);
  }
  [[nodiscard]] remote_region region(std::uint64_t base, std::uint64_t bytes) const {
    remote_region out;
    out.base = base;
    out.bytes = bytes;
    std::memcpy(out.key.bytes.data(), &key_generation_, sizeof key_generation_);
    out.key.used_bytes = sizeof key_generation_;
    return out;
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

  void show(version_number version, std::uint64_t epoch, std::span<const digest128> table) {
    if (!holds_bytes_of(version))
      world_.violation(name_ + " shows version " + to_string(version) + " with other bytes");
    control_.set_digests(table);
    for (std::size_t i = 0; i < memory_.size(); ++i) control_.set_segment(i, region(i, memory_[i].size()));
    control_.show(version, epoch);
  }

  // ---- actions ----

  static void forget_success(messages::message& body) {
    auto* finish = std::get_if<messages::finish_request>(&body);
    if (finish == nullptr || finish->result.ok() || finish->intact || !finish->held) return;
    finish->intact = true;
    finish->held.reset();
  }

  void perform(const session_actions::raise_epoch& order) {
    if (!faults.no_epoch) control_.raise_epoch(order.epoch);
  }
  void perform(const session_actions::restore& order) {
    if (!holds_bytes_of(order.held.version))
      world_.violation(name_ + " restores a version that it has overwritten");
    control_.show(order.held.version, order.held.epoch);
  }
  void perform(const session_actions::cut_off_reader& order) {
    if (!faults.no_cut_off) cut_off_.insert(order.reader);
    core_.cut_off_done(events_->now(), order.reader);
  }
  void perform(const session_actions::cut_off_all&) {
    if (!faults.no_cut_off) ++key_generation_;
  }
  void perform(const session_actions::start_pull& order) {
    end_transfer();
    transfer_.emplace(*layout_, pull_options{2, 4}, core_.self().value);
    life_ = std::make_shared<bool>(true);
    add_source(order.source);
    pump();
  }
  void perform(const session_actions::switch_source& order) {
    if (!transfer_) return;
    for (source_slot slot = 0; slot < sources_.size(); ++slot) {
      if (order.released && sources_[slot].source.lease == order.released) {
        transfer_->retire_source(slot);
        sources_[slot].report_release = true;
      }
    }
    add_source(order.source);
    pump();
  }
  void perform(const session_actions::stop_pull& order) {
    if (!transfer_) return;
    const bool intact = transfer_->intact();
    end_transfer();
    core_.pull_failed(events_->now(), order.reason, intact);
  }

  // ---- transfer ----

  struct source_record {
    messages::assignment source{};
    std::array<channel_id, 2> channels{};
    bool report_release = false;
  };

  void add_source(const messages::assignment& source) {
    transfer_->add_source({source.lease, source.source, source.version, source.epoch, source.root});
    source_record record{source, {}, false};
    const auto slot = static_cast<source_slot>(sources_.size());
    for (auto& channel : record.channels) channel = transfer_->open_channel(slot);
    sources_.push_back(std::move(record));
  }

  void end_transfer() {
    if (life_) *life_ = false;
    transfer_.reset();
    sources_.clear();
  }

  void pump() {
    if (!transfer_) return;
    for (std::size_t slot = 0; slot < sources_.size(); ++slot) {
      for (const channel_id channel : sources_[slot].channels) {
        while (const auto task = transfer_->next(channel)) start(slot, channel, *task);
      }
    }
    while (const auto failure = transfer_->take_failure()) {
      core_.source_failed(events_->now(), failure->lease, failure->reason, failure->detail);
    }
    for (source_slot slot = 0; slot < sources_.size(); ++slot) {
      if (!sources_[slot].report_release || !transfer_->is_idle(slot)) continue;
      sources_[slot].report_release = false;
      core_.source_released(events_->now(), sources_[slot].source.lease);
    }
    if (transfer_->done()) complete();
  }

  void complete() {
    const version_number version = transfer_->facts(0).version;
    const std::vector<digest128> table{transfer_->table().begin(), transfer_->table().end()};
    end_transfer();
    show(version, core_.epoch(), table);
    core_.pull_finished(events_->now(), control_region());
  }

  /// One read: the request travels, the bytes are taken in up to three pieces at different times, the
  /// completion travels.
  struct read_state {
    std::vector<std::byte> bytes{};
    std::span<std::byte> target{};  ///< of a chunk: arrives here piece by piece
    completion_status status = completion_status::ok;
  };

  void start(std::size_t slot, channel_id channel, const pull_task& task) {
    const messages::assignment source = sources_[slot].source;
    auto state = std::make_shared<read_state>();
    remote_region from = source.control;
    std::uint64_t offset = 0;
    std::uint64_t bytes = sizeof(control_header);
    if (task.kind == pull_task::kind_type::block) bytes = control_offsets::of(*layout_).total_bytes;
    if (task.kind == pull_task::kind_type::chunk) {
      const chunk_slice slice = layout_->slice(task.chunk);
      from = transfer_->segments(static_cast<source_slot>(slot))[slice.segment];
      offset = slice.offset;
      bytes = slice.bytes;
      state->target = bytes_of(task.chunk);
    }
    state->bytes.resize(bytes);
    const auto life = life_;
    duration delay = events_->between(std::chrono::microseconds{20}, std::chrono::microseconds{200});
    const std::uint64_t pieces = 1 + events_->below(3);
    for (std::uint64_t piece = 0; piece < pieces; ++piece) {
      const std::uint64_t first = bytes * piece / pieces;
      const std::uint64_t last = bytes * (piece + 1) / pieces;
      events_->after(delay, [this, life, state, source, from, offset, first, last] {
        if (!*life || state->status != completion_status::ok) return;
        const simulated_worker* holder = world_.find(source.source);
        const auto part = std::span{state->bytes}.subspan(first, last - first);
        state->status = holder == nullptr ? completion_status::peer_lost
                                          : holder->serve(core_.self(), from, offset + first, part);
        if (state->status == completion_status::ok && !state->target.empty()) {
          std::memcpy(state->target.data() + first, part.data(), part.size());
        }
      });
      delay += events_->between(std::chrono::microseconds{0}, std::chrono::microseconds{400});
    }
    // A lost peer is noticed late, like a time-out.
    events_->after(delay, [this, life, state, channel, task] {
      if (!*life) return;
      const duration extra =
          state->status == completion_status::peer_lost
              ? events_->between(std::chrono::milliseconds{1}, std::chrono::milliseconds{40})
              : duration{0};
      events_->after(extra, [this, life, state, channel, task] {
        if (*life && alive_) arrived(channel, task, *state);
      });
    });
  }

  void arrived(channel_id channel, const pull_task& task, const read_state& state) {
    const std::uint64_t before = transfer_->confirmed_chunks();
    switch (task.kind) {
      case pull_task::kind_type::block: {
        const version_number version = transfer_->facts(0).version;
        digest128 root;
        if (Integrity::enabled && state.status == completion_status::ok) {
          root = Integrity::root(Integrity::bind(model_, version, shard_),
                                 read_control_digests(state.bytes, *layout_));
        }
        transfer_->block_arrived(channel, state.status, state.bytes, root);
        break;
      }
      case pull_task::kind_type::chunk: {
        digest128 digest;
        if (Integrity::enabled && state.status == completion_status::ok) {
          digest = Integrity::chunk_digest(Integrity::bind(model_, transfer_->facts(0).version, shard_),
                                           task.chunk, bytes_of(task.chunk));
        }
        if (faults.skip_digests && !transfer_->table().empty()) digest = transfer_->table()[task.chunk];
        transfer_->chunk_arrived(channel, task.chunk, state.status, digest);
        break;
      }
      case pull_task::kind_type::header: {
        if (!faults.skip_header_check) {
          transfer_->header_arrived(channel, state.status, state.bytes);
        } else {
          control_header forged;
          const pull_source& facts = transfer_->facts(0);
          forged.holder = facts.holder.value;
          forged.epoch = facts.epoch;
          forged.version = facts.version.value;
          forged.state = static_cast<std::uint64_t>(control_state::shown);
          transfer_->header_arrived(channel, completion_status::ok, std::as_bytes(std::span{&forged, 1}));
        }
        break;
      }
    }
    check_confirmed(before);
    pump();
    settle();
  }

  /// Contract 2: a chunk that was accepted has the bytes of its version, at the moment of its acceptance.
  void check_confirmed(std::uint64_t before) {
    const std::uint64_t now_confirmed = transfer_->confirmed_chunks();
    if (now_confirmed == before) return;
    confirmed_total_ += now_confirmed - before;
    const version_number version = transfer_->facts(0).version;
    std::uint64_t position = 0;
    for (chunk_index chunk = 0; chunk < layout_->chunk_count(); ++chunk) {
      const auto bytes = bytes_of(chunk);
      if (transfer_->is_confirmed(chunk)) {
        for (std::size_t i = 0; i < bytes.size(); ++i) {
          if (bytes[i] == content_byte(version, shard_.index, position + i)) continue;
          world_.violation(name_ + " accepted chunk " + std::to_string(chunk) + " of version " +
                           to_string(version) + " with wrong bytes");
          return;
        }
      }
      position += bytes.size();
    }
  }

  event_queue* events_;
  services world_;
  std::string name_;
  std::string model_;
  shard_of shard_;
  const layout* layout_;
  std::vector<std::vector<std::byte>> memory_;
  control_block control_;
  std::uint64_t key_generation_ = 1;
  std::set<incarnation> cut_off_;
  session core_;
  bool alive_ = true;
  time_point timer_ = time_point::never();

  std::optional<pull> transfer_;
  std::vector<source_record> sources_;
  std::shared_ptr<bool> life_;
  std::uint64_t confirmed_total_ = 0;
};

}  // namespace tensorhub::testing
