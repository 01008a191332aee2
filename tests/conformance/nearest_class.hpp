#pragma once
/// \file nearest_class.hpp
/// What `nearest_source` promises beyond the rules of every scheduler.

#include <cstdint>
#include <string>

#include "tensorhub/testing/policy_conformance/scheduler.hpp"

namespace tensorhub::testing {

/// A source is chosen whenever there is a candidate, and none of the candidates is in a nearer class; within
/// the class none has fewer leases.
template <scheduler S>
violations nearest_class_is_chosen() {
  violations seen;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    scheduler_call call;
    scheduler_call::fill(call, seed);
    if (call.candidates.empty()) continue;
    S policy{typename S::options{}};
    const source_choice choice = policy.choose(call.query, call.candidates);
    if (!choice.index) {
      seen.add("nobody is chosen (seed " + std::to_string(seed) + ")");
      continue;
    }
    const source_candidate& chosen = call.candidates.at(*choice.index);
    const auto distance = [&](const source_candidate& c) {
      return locality_between(*call.query.place, *c.place);
    };
    for (const source_candidate& other : call.candidates) {
      seen.require(distance(other) >= distance(chosen),
                   "a nearer class was there (seed " + std::to_string(seed) + ")");
      seen.require(distance(other) != distance(chosen) || other.leases >= chosen.leases,
                   "a less loaded one of the same class was there (seed " + std::to_string(seed) + ")");
    }
  }
  return seen;
}

}  // namespace tensorhub::testing
