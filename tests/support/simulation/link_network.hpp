#pragma once
/// \file link_network.hpp
/// The simulated data network: hosts with full-duplex links, racks, datacenters and wide-area links. Bulk
/// flows share the links (flow_rates.hpp); small messages do not.
///
///     event_queue events{seed};
///     link_network network{events};
///     const host_id trainer = network.add_host({.location = {.datacenter = "eu-1", .rack = "r7"}});
///     const host_id rollout = network.add_host({.location = {.datacenter = "us-2"}});
///     network.add_wide_area("eu-1", "us-2", {.bytes_per_second = 1'250'000'000, .delay = 40ms});
///     network.add_wide_area("us-2", "eu-1", {.bytes_per_second = 1'250'000'000, .delay = 40ms});
///     network.start(trainer, rollout, chunk_bytes, [] { /* the chunk is here */ });
///     while (events.step(time_point::never())) {}
///
/// A flow is a one-sided read by its target: the request travels from target to source (one delay), the bytes
/// move at the flow's rate, the last byte arrives one delay later, and then `done` is called. A lone flow
/// therefore takes delay + bytes / slowest link + delay, to the nanosecond.
///
/// The path of a flow: the source's sending link; if the racks differ, the up-link of the source's rack and
/// the down-link of the target's rack (if they were added); if the datacenters differ, the wide-area link;
/// the target's receiving link. There is no limit between hosts of one rack.
///
/// All calls, callbacks included, belong to the thread that steps the queue. Callbacks are called from
/// events, never inside a call of this class, and may call anything here. Wrong arguments throw
/// `tensorhub::error` (invalid_argument, limit_exceeded).

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/simulation/action.hpp"
#include "support/simulation/event_queue.hpp"
#include "support/simulation/flow_rates.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/location.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// One adapter, which several workers may share. Hosts are numbered from 0 in the order of `add_host`.
struct host_id {
  std::uint32_t number = 0;
  auto operator<=>(const host_id&) const = default;
};

/// Never equal to an identifier of an earlier flow; the default value names no flow.
struct flow_id {
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;
  bool operator==(const flow_id&) const = default;
};

struct host_options {
  tensorhub::location location{};  ///< datacenter and rack are used
  std::uint64_t sending_bytes_per_second = 25'000'000'000;
  std::uint64_t receiving_bytes_per_second = 25'000'000'000;
};

struct wide_area_options {
  std::uint64_t bytes_per_second = 0;
  duration delay{};  ///< one way
};

class link_network {
 public:
  /// Borrows the queue. `lan_delay`: one way between any two hosts of one datacenter.
  explicit link_network(event_queue& events, duration lan_delay = std::chrono::microseconds{5})
      : events_{&events}, lan_delay_{lan_delay} {}
  link_network(const link_network&) = delete;  // events point to the network
  link_network& operator=(const link_network&) = delete;

  // ---- what there is (may grow at any time) -------------------------------------------------------------

  host_id add_host(const host_options& options) {
    host_state host;
    host.datacenter = datacenter_named(options.location.datacenter);
    host.rack = options.location.rack.empty() ? no_rack : rack_named(host.datacenter, options.location.rack);
    host.slower_bytes_per_second =
        std::min(options.sending_bytes_per_second, options.receiving_bytes_per_second);
    host.sending = add_link(options.sending_bytes_per_second, "a host's sending link");
    host.receiving = add_link(options.receiving_bytes_per_second, "a host's receiving link");
    hosts_.push_back(host);
    return {static_cast<std::uint32_t>(hosts_.size() - 1)};
  }

  /// Limits the bytes that leave (`up`) and enter (`down`) a rack, for flows that start later. Once per rack.
  void add_rack(const std::string& datacenter, const std::string& name, std::uint64_t up_bytes_per_second,
                std::uint64_t down_bytes_per_second) {
    if (name.empty()) throw error(errc::invalid_argument, "a rack with limits needs a name");
    rack_state& rack = racks_[rack_named(datacenter_named(datacenter), name)];
    if (rack.has_links) throw error(errc::invalid_argument, "rack " + name + " has its links already");
    rack.up = add_link(up_bytes_per_second, "a rack's up-link");
    rack.down = add_link(down_bytes_per_second, "a rack's down-link");
    rack.has_links = true;
  }

  /// Adds one direction. A flow needs both, because its request travels against its bytes. Once per ordered
  /// pair.
  void add_wide_area(const std::string& from, const std::string& to, const wide_area_options& options) {
    const std::uint32_t source = datacenter_named(from);
    const std::uint32_t target = datacenter_named(to);
    wide_area_state& wide = wide_areas_[source][target];
    if (source == target || wide.has_link) {
      throw error(errc::invalid_argument, "the wide-area link from " + from + " to " + to +
                                              " exists already, or joins a datacenter to itself");
    }
    wide.link = add_link(options.bytes_per_second, "a wide-area link");
    wide.delay = options.delay;
    wide.has_link = true;
  }

  // ---- bulk data ----------------------------------------------------------------------------------------

  /// `to` reads `bytes` (at most flow_rates::largest_flow_bytes) from `from`. Exactly one of these happens:
  ///   - `done` is called one delay after the last byte,
  ///   - `lost` is called: `from` had failed, and the detection time passed to `fail` is over,
  ///   - neither: after `cancel`, or because `to` failed, so there is no process to call.
  flow_id start(host_id from, host_id to, std::uint64_t bytes, action done, action lost = {}) {
    if (bytes > flow_rates::largest_flow_bytes) {
      throw error(errc::limit_exceeded, "a flow of " + std::to_string(bytes) + " bytes: split it");
    }
    const duration request = delay(to, from);
    static_cast<void>(delay(from, to));  // throws here and not in an event
    std::uint32_t slot = 0;
    if (free_slots_.empty()) {
      slot = static_cast<std::uint32_t>(flows_.size());
      flows_.emplace_back();
    } else {
      slot = free_slots_.back();
      free_slots_.pop_back();
    }
    flow_state& flow = flows_[slot];
    flow.done = std::move(done);
    flow.lost = std::move(lost);
    flow.bytes = bytes;
    flow.from = from;
    flow.to = to;
    flow.life_of_from = hosts_[from.number].life;
    flow.life_of_to = hosts_[to.number].life;
    ++flow.generation;
    flow.stage = flow_stage::requested;
    const flow_id id{slot, flow.generation};
    events_->after(request, [this, id] { begin(id); });
    return id;
  }

  /// Frees the flow's share at once; its callbacks are not called. Does nothing for a flow that has ended.
  void cancel(flow_id id) {
    if (!exists(id)) return;
    if (flows_[id.slot].stage == flow_stage::moving) stop_moving(id.slot, false);
    release(id.slot);
    arm();
  }

  /// Whether the flow is requested, moving, or in its last delay.
  [[nodiscard]] bool exists(flow_id id) const noexcept {
    return id.slot < flows_.size() && flows_[id.slot].generation == id.generation &&
           flows_[id.slot].stage != flow_stage::none;
  }

  // ---- small data ---------------------------------------------------------------------------------------

  /// Calls `arrived` after the delay and the time that `bytes` take at the slowest of the four directions of
  /// the two adapters. Uses no capacity and never waits for flows. The message is lost if `from` has failed,
  /// or if `to` has failed or fails before it arrives.
  void message(host_id from, host_id to, std::uint64_t bytes, action arrived) {
    const duration travel = delay(from, to);
    const host_state& source = hosts_[from.number];
    const host_state& target = hosts_[to.number];
    if (source.failed) return;
    message_bytes_ += bytes;
    const std::uint64_t rate = std::min(source.slower_bytes_per_second, target.slower_bytes_per_second);
    const auto takes =
        static_cast<std::int64_t>(static_cast<double>(bytes) / static_cast<double>(rate) * 1e9);
    events_->after(travel + duration{takes},
                   [this, to, life = target.life, arrived = std::move(arrived)]() mutable {
                     if (lives(to, life)) arrived();
                   });
  }

  // ---- failure ------------------------------------------------------------------------------------------

  /// The host fails, with all its flows. Flows that read from it call `lost` after `detection`; so do flows
  /// that are started before it is restored.
  void fail(host_id id, duration detection) {
    host_state& host = at(id);
    if (std::exchange(host.failed, true)) return;
    ++host.life;
    host.detection = detection;
    doomed_.clear();
    for (const flow_rates::link_number link : {host.sending, host.receiving}) {
      const auto flows = rates_.flows_on(link);
      doomed_.insert(doomed_.end(), flows.begin(), flows.end());
    }
    for (const std::uint32_t slot : doomed_) {
      // A flow from a host to itself is in the list twice.
      if (flows_[slot].stage != flow_stage::moving) continue;
      stop_moving(slot, false);
      lose(slot);
    }
    arm();
  }

  /// Restores the host, as after a restart: earlier flows and messages stay lost.
  void restore(host_id id) { at(id).failed = false; }

  [[nodiscard]] bool has_failed(host_id id) const { return at(id).failed; }

  // ---- observers ----------------------------------------------------------------------------------------
  // The bytes that flows have moved; a flow counts when it has sent its last byte, was cancelled or was lost.
  // Messages are counted separately, so that tests may say "exactly one model".

  [[nodiscard]] std::uint64_t sent_bytes(host_id id) const { return at(id).sent_bytes; }
  [[nodiscard]] std::uint64_t received_bytes(host_id id) const { return at(id).received_bytes; }
  /// The bytes between two datacenters, or inside one. 0 for names that no host has.
  [[nodiscard]] std::uint64_t carried_bytes(const std::string& from, const std::string& to) const {
    const auto source = std::ranges::find(datacenters_, from);
    const auto target = std::ranges::find(datacenters_, to);
    if (source == datacenters_.end() || target == datacenters_.end()) return 0;
    return wide_areas_[static_cast<std::size_t>(source - datacenters_.begin())]
                      [static_cast<std::size_t>(target - datacenters_.begin())]
                          .carried_bytes;
  }
  [[nodiscard]] std::uint64_t message_bytes() const noexcept { return message_bytes_; }

  [[nodiscard]] std::size_t moving_flows() const noexcept { return moving_; }
  /// The flow's present rate; 0 before the first byte and after the last, and in the instant of a change.
  [[nodiscard]] double bytes_per_second(flow_id id) const noexcept {
    return exists(id) && flows_[id.slot].stage == flow_stage::moving ? rates_.bytes_per_second(id.slot) : 0;
  }
  /// The delay in one direction.
  [[nodiscard]] duration delay(host_id from, host_id to) const {
    const std::uint32_t source = at(from).datacenter;
    const std::uint32_t target = at(to).datacenter;
    if (source == target) return lan_delay_;
    const wide_area_state& wide = wide_areas_[source][target];
    if (!wide.has_link) {
      throw error(errc::invalid_argument, "no wide-area link from datacenter " + datacenters_[source] +
                                              " to " + datacenters_[target] + ": add_wide_area first");
    }
    return wide.delay;
  }

 private:
  static constexpr std::uint32_t no_rack = UINT32_MAX;

  struct host_state {
    flow_rates::link_number sending = 0;
    flow_rates::link_number receiving = 0;
    std::uint32_t datacenter = 0;
    std::uint32_t rack = no_rack;
    std::uint32_t life = 0;  ///< increased when the host fails
    bool failed = false;
    duration detection{};
    std::uint64_t slower_bytes_per_second = 0;
    std::uint64_t sent_bytes = 0;
    std::uint64_t received_bytes = 0;
  };
  struct rack_state {
    std::uint32_t datacenter = 0;
    std::string name{};
    bool has_links = false;
    flow_rates::link_number up = 0;
    flow_rates::link_number down = 0;
  };
  struct wide_area_state {
    bool has_link = false;
    flow_rates::link_number link = 0;
    duration delay{};
    std::uint64_t carried_bytes = 0;
  };
  enum class flow_stage : std::uint8_t { none, requested, moving, ending };
  struct flow_state {
    action done{};
    action lost{};
    std::uint64_t bytes = 0;
    host_id from{};
    host_id to{};
    std::uint32_t life_of_from = 0;
    std::uint32_t life_of_to = 0;
    std::uint32_t generation = 0;
    flow_stage stage = flow_stage::none;
  };

  [[nodiscard]] host_state& at(host_id id) {
    if (id.number >= hosts_.size()) throw error(errc::invalid_argument, "no such host in the network");
    return hosts_[id.number];
  }
  [[nodiscard]] const host_state& at(host_id id) const { return const_cast<link_network*>(this)->at(id); }
  [[nodiscard]] bool lives(host_id id, std::uint32_t life) const noexcept {
    return !hosts_[id.number].failed && hosts_[id.number].life == life;
  }

  flow_rates::link_number add_link(std::uint64_t bytes_per_second, const char* what) {
    if (bytes_per_second == 0) throw error(errc::invalid_argument, std::string{what} + " needs a capacity");
    return rates_.add_link(bytes_per_second);
  }
  [[nodiscard]] std::uint32_t datacenter_named(const std::string& name) {
    const auto found = std::ranges::find(datacenters_, name);
    const auto number = static_cast<std::uint32_t>(found - datacenters_.begin());
    if (found != datacenters_.end()) return number;
    datacenters_.push_back(name);
    wide_areas_.resize(datacenters_.size());
    for (auto& row : wide_areas_) row.resize(datacenters_.size());
    return number;
  }
  [[nodiscard]] std::uint32_t rack_named(std::uint32_t datacenter, const std::string& name) {
    for (std::uint32_t i = 0; i < racks_.size(); ++i) {
      if (racks_[i].datacenter == datacenter && racks_[i].name == name) return i;
    }
    racks_.push_back({datacenter, name});
    return static_cast<std::uint32_t>(racks_.size() - 1);
  }

  // ---- the stages of a flow -----------------------------------------------------------------------------

  /// The request has reached the source.
  void begin(flow_id id) {
    if (!exists(id)) return;
    flow_state& flow = flows_[id.slot];
    if (!lives(flow.from, flow.life_of_from) || !lives(flow.to, flow.life_of_to)) return lose(id.slot);
    const host_state& source = hosts_[flow.from.number];
    const host_state& target = hosts_[flow.to.number];
    std::array<flow_rates::link_number, flow_rates::links_per_flow> path{};
    std::size_t links = 0;
    path[links++] = source.sending;
    if (source.rack != target.rack) {
      if (source.rack != no_rack && racks_[source.rack].has_links) path[links++] = racks_[source.rack].up;
      if (target.rack != no_rack && racks_[target.rack].has_links) path[links++] = racks_[target.rack].down;
    }
    if (source.datacenter != target.datacenter)
      path[links++] = wide_areas_[source.datacenter][target.datacenter].link;
    path[links++] = target.receiving;
    flow.stage = flow_stage::moving;
    ++moving_;
    rates_.begin(id.slot, std::span{path}.first(links), flow.bytes, events_->now());
    arm();
  }

  /// Moves a flow from the rates into the counters.
  void stop_moving(std::uint32_t slot, bool complete) {
    flow_state& flow = flows_[slot];
    const std::uint64_t left = rates_.end(slot, events_->now());
    const std::uint64_t moved = complete ? flow.bytes : flow.bytes - left;
    host_state& source = hosts_[flow.from.number];
    host_state& target = hosts_[flow.to.number];
    source.sent_bytes += moved;
    target.received_bytes += moved;
    wide_areas_[source.datacenter][target.datacenter].carried_bytes += moved;
    flow.stage = flow_stage::ending;
    --moving_;
  }

  /// The last byte has left.
  void complete(std::uint32_t slot) {
    stop_moving(slot, true);
    const flow_state& flow = flows_[slot];
    const flow_id id{slot, flow.generation};
    events_->after(delay(flow.from, flow.to), [this, id] { tell(id, false); });
  }

  void lose(std::uint32_t slot) {
    flow_state& flow = flows_[slot];
    if (!lives(flow.to, flow.life_of_to)) return release(slot);
    flow.stage = flow_stage::ending;
    const flow_id id{slot, flow.generation};
    events_->after(hosts_[flow.from.number].detection, [this, id] { tell(id, true); });
  }

  void tell(flow_id id, bool lost) {
    if (!exists(id)) return;
    flow_state& flow = flows_[id.slot];
    const bool heard = lives(flow.to, flow.life_of_to);
    action callback = std::move(lost ? flow.lost : flow.done);
    release(id.slot);
    if (heard && callback) callback();
  }

  void release(std::uint32_t slot) {
    flow_state& flow = flows_[slot];
    flow.done.reset();
    flow.lost.reset();
    flow.stage = flow_stage::none;
    free_slots_.push_back(slot);
  }

  // ---- one event for the first flow to end --------------------------------------------------------------

  /// Schedules `wake` for the end of the next flow, or for now if shares must be computed: all changes within
  /// one nanosecond are shared once. A later wake that was scheduled earlier is ignored when it runs.
  void arm() {
    const time_point next = rates_.has_changed() ? events_->now() : rates_.first_end();
    if (next >= armed_) return;
    armed_ = next;
    events_->schedule(next, [this, next] { wake(next); });
  }

  void wake(time_point armed) {
    if (armed != armed_) return;
    armed_ = time_point::never();
    const time_point now = events_->now();
    while (true) {
      while (rates_.first_end() <= now) complete(rates_.first_flow());
      if (!rates_.has_changed()) break;
      rates_.share(now);
    }
    arm();
  }

  event_queue* events_;
  duration lan_delay_;
  flow_rates rates_;
  std::vector<host_state> hosts_;
  std::vector<rack_state> racks_;
  std::vector<std::string> datacenters_;
  std::vector<std::vector<wide_area_state>> wide_areas_;  ///< [from][to]; the diagonal is only for counting
  std::vector<flow_state> flows_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<std::uint32_t> doomed_;
  std::size_t moving_ = 0;
  std::uint64_t message_bytes_ = 0;
  time_point armed_ = time_point::never();
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
