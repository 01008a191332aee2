#pragma once
/// \file options.hpp
/// What goes wrong in a simulated history, how often, and what came of it.
///
/// Chances are between 0 and 1, rates are per second of virtual time. Faults happen during `length` only;
/// what follows is the finale, in which everything must come to rest (world.hpp).

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "tensorhub/types/units.hpp"

namespace tensorhub::testing {

struct simulation_options {
  std::uint64_t seed = 1;
  std::uint32_t shards = 2;
  std::size_t rollouts = 3;
  duration length = std::chrono::seconds{3};  ///< of virtual time, before the finale
  duration unpublish_timeout = std::chrono::milliseconds{100};

  // ---- processes
  double kills_per_second = 0.3;  ///< of rollout workers; a new process takes the place after a while
  double late_starters = 0.0;     ///< chance per rollout worker that it starts up to 500 ms late
  double trainer_exits = 0.0;     ///< chance per version and shard: killed in the drain, or leaves after it
  double careless_trainer = 0.0;  ///< chance per version that a trainer overwrites without unpublish

  // ---- calls
  double cancels = 0.0;          ///< chance per update that its caller cancels it, at any moment
  double short_deadlines = 0.0;  ///< chance per round of a deadline between 1 and 20 ms
  double late_shards = 0.0;      ///< chance per update that this shard calls up to 700 ms after the others
  double fickle_callers = 0.0;   ///< chance per round of many calls in a row that are given up at once
  double old_versions = 0.0;     ///< chance per round that it asks for exactly one of the last four versions

  // ---- control network
  double connection_losses_per_second = 1.0;  ///< over all control connections
  double lost_reports = 0.0;  ///< chance per report (control_network.hpp) that its connection breaks with it
  double stalled_reports = 0.0;  ///< chance per report that its connection stands still for up to 250 ms
  double stale_messages = 0.0;   ///< chance per message that a copy arrives later, behind newer ones
  double double_joins_per_second = 0.0;  ///< a worker that has joined asks to join at another place too
};

struct simulation_statistics {
  std::uint64_t events = 0;
  std::uint64_t versions = 0;
  std::uint64_t updates = 0;  ///< successful calls that moved bytes
  std::uint64_t kept = 0;
  std::uint64_t failed = 0;     ///< calls that ended in a named error
  std::uint64_t cancelled = 0;  ///< calls that were cancelled while they ran
  std::uint64_t forced_drains = 0;
  std::uint64_t chunks = 0;
  std::uint64_t kills = 0;
  std::uint64_t exits = 0;  ///< of trainers
  std::uint64_t double_joins = 0;
  std::uint64_t lost_connections = 0;
  std::uint64_t stale_messages = 0;
  std::uint64_t beliefs = 0;  ///< comparisons of the server's record with a worker at rest

  simulation_statistics& operator+=(const simulation_statistics& other) {
    events += other.events;
    versions += other.versions;
    updates += other.updates;
    kept += other.kept;
    failed += other.failed;
    cancelled += other.cancelled;
    forced_drains += other.forced_drains;
    chunks += other.chunks;
    kills += other.kills;
    exits += other.exits;
    double_joins += other.double_joins;
    lost_connections += other.lost_connections;
    stale_messages += other.stale_messages;
    beliefs += other.beliefs;
    return *this;
  }
};

}  // namespace tensorhub::testing
