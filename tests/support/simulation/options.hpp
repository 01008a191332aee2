#pragma once
/// \file options.hpp
/// The faults of a simulated history with their frequencies, and the counts of what happened.
///
/// Chances are between 0 and 1; rates are per second of virtual time. Faults happen during `length` only; in
/// the finale that follows, the whole system must come to rest (world.hpp).

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// What trainers do besides publishing one version after the other; each a chance per version.
struct trainer_faults {
  double exits = 0.0;      ///< per shard, too: it is killed in the drain, or leaves after it
  double careless = 0.0;   ///< it overwrites without unpublish
  double rollbacks = 0.0;  ///< it goes back to one of the last few versions
};

/// What happens to reads of chunks.
struct read_faults {
  double flipped_bits = 0.0;  ///< chance per read that one bit of the chunk arrives wrong
  double slow_links = 0.0;    ///< share of the processes from which a read takes up to 150 ms
};

struct simulation_options {
  std::uint64_t seed = 1;
  std::uint32_t shards = 2;
  std::size_t rollouts = 3;
  std::size_t datacenters = 1;                ///< the trainer is in the first one
  duration length = std::chrono::seconds{3};  ///< of virtual time, before the finale
  /// Time after the last fault: all workers that will be declared dead have been, and are replaced.
  duration settling = std::chrono::milliseconds{1500};
  duration unpublish_timeout = std::chrono::milliseconds{100};

  // ---- processes
  double kills_per_second = 0.3;   ///< of rollout workers; a new process replaces each after a while
  double late_starters = 0.0;      ///< chance per rollout worker that it starts up to 500 ms late
  double pauses_per_second = 0.0;  ///< of any worker, for up to 900 ms: longer than the server's patience
  double paused_readers = 0.0;     ///< chance per update that its reader is paused during the update
  double instant_restarts = 0.0;   ///< chance per death that the next process gets the address within 100 us
  read_faults reads{};

  // ---- calls
  double cancels = 0.0;          ///< chance per update that its caller cancels it at some moment
  double short_deadlines = 0.0;  ///< chance per round of a deadline between 1 and 20 ms
  double late_shards = 0.0;      ///< chance per update that this shard calls up to 700 ms after the others
  double fickle_callers = 0.0;   ///< chance per round of many calls in a row that the caller gives up at once
  double old_versions = 0.0;     ///< chance per round that it asks for exactly one of the last four versions
  /// Chance per round that the reader takes versions only from its own datacenter.
  double local_updates = 0.0;

  trainer_faults trainer{};

  // ---- retention
  std::uint32_t keep_latest = 0;  ///< versions that the trainer asks to be retained
  double pins = 0.0;              ///< chance per version that it is pinned, for a while
  double polite_leavers_per_second =
      0.0;                      ///< rollouts that leave within a grace period and return as new processes
  double leave_together = 0.0;  ///< chance that all other rollouts leave at the same moment
  double no_room = 0.0;         ///< chance per offload that the host lacks memory for it

  // ---- servers
  double server_kills_per_second = 0.0;  ///< another one starts at the same address after up to 600 ms
  /// Another server takes over at the next address, under the next term; the old one continues for up to 300
  /// ms.
  double takeovers_per_second = 0.0;

  // ---- control network
  double connection_losses_per_second = 1.0;  ///< over all control connections
  double lost_reports = 0.0;  ///< chance per report (control_network.hpp) that its connection breaks with it
  double stalled_reports = 0.0;          ///< chance per report that its connection stalls for up to 250 ms
  double stale_messages = 0.0;           ///< chance per message that a copy arrives later, behind newer ones
  double double_joins_per_second = 0.0;  ///< a joined worker also asks to join in another role
  double orders_per_second = 0.0;        ///< of an operator: replicas are drained for a while, or evicted

  /// Chance per update that another caller of the process waits, every other time for what never comes.
  [[nodiscard]] double watchers() const noexcept { return seed % 4 == 1 ? 0.02 : 0; }
  /// The server receives what arrives within a moment before it answers any of it, as the real one does.
  [[nodiscard]] bool batches() const noexcept { return seed % 4 >= 2; }
  /// The trainers fill every other version while it is open, and half of the updates read open versions.
  [[nodiscard]] bool fills() const noexcept { return seed % 2 == 1; }
  /// Chance per round that each shard makes three calls, and does not wait for the others in between.
  [[nodiscard]] double hasty() const noexcept { return seed % 5 == 2 ? 0.3 : 0; }
  /// Chance per round that the shards copy what a neighbour on their machine holds, instead of an update.
  [[nodiscard]] double installs() const noexcept { return seed % 3 == 2 ? 0.15 : 0; }
};

struct ended_processes {
  std::uint64_t kills = 0;
  std::uint64_t returns = 0;       ///< went on after they were declared dead
  std::uint64_t busy_leavers = 0;  ///< were to leave during a call
  std::uint64_t drained = 0;       ///< orders that a replica serve nobody for a while
  std::uint64_t evicted = 0;       ///< orders that a replica end
};

struct trainer_acts {
  std::uint64_t exits = 0;
  std::uint64_t rollbacks = 0;  ///< to an earlier version
};

struct chunk_origins {
  std::uint64_t relayed = 0;  ///< read from a worker that was receiving itself
  std::uint64_t ahead = 0;    ///< read before their version was whole
  std::uint64_t here = 0;     ///< not read, because they were there already
  std::uint64_t trades = 0;   ///< moments at which two workers read from each other
};

/// What the last server did.
struct source_changes {
  std::uint64_t taken_back = 0;  ///< from readers without progress
  std::uint64_t shortages = 0;   ///< that readers reported
  std::uint64_t exchanged = 0;   ///< after that
};

struct simulation_statistics {
  std::uint64_t events = 0;
  std::uint64_t versions = 0;
  std::uint64_t updates = 0;  ///< successful calls that moved bytes
  std::uint64_t waits = 0;    ///< calls that a version has ended
  std::uint64_t kept = 0;
  std::uint64_t failed = 0;     ///< calls that ended in a named error
  std::uint64_t cancelled = 0;  ///< calls that were cancelled while they ran
  std::uint64_t forced_drains = 0;
  std::uint64_t chunks = 0;
  chunk_origins origins{};
  std::uint64_t seeds = 0;  ///< moments at which a lease crossed into another datacenter
  source_changes sources{};
  ended_processes processes{};
  std::uint64_t pauses = 0;
  std::uint64_t flipped_bits = 0;
  std::uint64_t retired = 0;      ///< workers that left within their grace period
  std::uint64_t offloads = 0;     ///< offloads that were requested
  std::uint64_t handed_over = 0;  ///< temporary replicas (shards) that received their version
  std::uint64_t lost = 0;         ///< retained versions that the server reported as lost
  std::uint64_t server_kills = 0;
  std::uint64_t refused_publishes = 0;  ///< publishes out of step with the group, after the end of a server
  std::uint64_t takeovers = 0;
  trainer_acts trainers{};
  std::uint64_t double_joins = 0;
  std::uint64_t lost_connections = 0;
  std::uint64_t stale_messages = 0;
  std::uint64_t beliefs = 0;  ///< comparisons of the server's record with an idle worker

  simulation_statistics& operator+=(const simulation_statistics& other) {
    events += other.events;
    versions += other.versions;
    updates += other.updates;
    waits += other.waits;
    kept += other.kept;
    failed += other.failed;
    cancelled += other.cancelled;
    forced_drains += other.forced_drains;
    chunks += other.chunks;
    origins.relayed += other.origins.relayed;
    origins.ahead += other.origins.ahead;
    origins.here += other.origins.here;
    origins.trades += other.origins.trades;
    seeds += other.seeds;
    sources.taken_back += other.sources.taken_back;
    sources.shortages += other.sources.shortages;
    sources.exchanged += other.sources.exchanged;
    processes.kills += other.processes.kills;
    processes.returns += other.processes.returns;
    processes.busy_leavers += other.processes.busy_leavers;
    processes.drained += other.processes.drained;
    processes.evicted += other.processes.evicted;
    pauses += other.pauses;
    flipped_bits += other.flipped_bits;
    retired += other.retired;
    offloads += other.offloads;
    handed_over += other.handed_over;
    lost += other.lost;
    server_kills += other.server_kills;
    refused_publishes += other.refused_publishes;
    trainers.rollbacks += other.trainers.rollbacks;
    takeovers += other.takeovers;
    trainers.exits += other.trainers.exits;
    double_joins += other.double_joins;
    lost_connections += other.lost_connections;
    stale_messages += other.stale_messages;
    beliefs += other.beliefs;
    return *this;
  }
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
