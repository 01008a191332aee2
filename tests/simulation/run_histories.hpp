#pragma once
/// \file run_histories.hpp
/// Runs many histories, on all cores, and requires that none breaks the contract.
///
/// A failing seed is printed. TENSORHUB_SIMULATION_SEED=<seed> replays it (one history of each kind, with the
/// server's log). TENSORHUB_SIMULATION_LONG=1 runs four times as many histories as the gate;
/// TENSORHUB_SIMULATION_HISTORIES=<count> runs that many of each kind.

#include <cstdint>

#include "histories.hpp"
#include "support/simulation/options.hpp"
#include "support/simulation/server.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// Seeds 1 to `count` in a long run, fewer otherwise (`scaled`). Something must have happened in one of `per`
/// histories. Returns what has happened in all of them.
simulation_statistics run_histories(const char* title, const simulated_policies& policies,
                                    std::uint64_t count, double careless,
                                    simulation_options (*options_of)(std::uint64_t) = options_for,
                                    std::uint64_t per = 1);

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
