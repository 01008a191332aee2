#pragma once
/// \file session.hpp
/// The two sides' conversation over the control channel.
///
///     reader                                  source
///     hello {transports, regions, memory} ->
///                                          <- ready {addresses, keys, costs, machine} or refused {sentence}
///     cpu {}                              ->                              (before and after every round)
///                                          <- cpu {seconds}
///     done {}                             ->
///                                          <- bye {}
/// or  gave_up {sentence}                  ->
///
/// Each message is a JSON object with a "type". A side that does not understand the other says why and ends.

#include "channel.hpp"
#include "results.hpp"
#include "settings.hpp"

namespace transport_bench {

/// Serves one reader to its end. Throws channel_error, reader_gave_up or tensorhub::error.
void serve_reader(channel& control, const settings& how);

/// Runs the whole sweep. Throws channel_error, tensorhub::error or std::runtime_error (a read failed).
[[nodiscard]] results run_sweep(channel& control, const settings& how);

}  // namespace transport_bench
