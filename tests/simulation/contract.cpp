/// Histories of the real cores in virtual time, of all kinds; run_histories.hpp says how one is replayed, and
/// how more of them are run. (short.cpp has the many short ones.)

#include <doctest/doctest.h>

#include <cstdint>
#include <string_view>

#include "histories.hpp"
#include "run_histories.hpp"
#include "support/simulation/world.hpp"
#include "tensorhub/policy/consistency/bounded_staleness.hpp"
#include "tensorhub/policy/consistency/independent.hpp"
#include "tensorhub/policy/integrity/none.hpp"
#include "tensorhub/policy/scheduler/least_loaded.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;

namespace {

/// Two sources and two credits: soon nobody has one left, and newcomers take places between others.
class tight_nearest_source : public nearest_source {
 public:
  static constexpr std::string_view name = "tight_nearest_source";
  struct options {};
  explicit tight_nearest_source(options) : nearest_source{nearest_source::options{{2, 2}}} {}
};
static_assert(scheduler<tight_nearest_source>);

}  // namespace

TEST_CASE("contract: the default policies") {
  run_histories<simulation<>>("default policies", 2500, 0.0);
}

TEST_CASE("contract: servers die and are replaced, workers stand still, bits flip") {
  run_histories<simulation<>>("hard", 1500, 0.0, hard_options_for);
}

TEST_CASE("contract: retained versions are handed over before their last reliable holder lets go") {
  run_histories<simulation<>>("retention", 800, 0.0, retaining_options_for);
}

TEST_CASE("contract: retained versions, while servers die and workers stand still") {
  run_histories<simulation<>>("retention, hard", 500, 0.0, hard_retaining_options_for);
}

TEST_CASE("contract: patient holders, readers that stand still, processes restarted at their address") {
  run_histories<simulation<>>("patient", 1600, 0.0, patient_options_for, 300);
  run_histories<simulation<nearest_source, group_consistent, no_integrity>>("patient, no_integrity", 400, 0.0,
                                                                            patient_options_for, 300);
}

TEST_CASE("contract: trainers that overwrite before unpublish are noticed by their readers") {
  run_histories<simulation<>>("careless trainers", 400, 0.3);
}

TEST_CASE("contract: other schedulers") {
  run_histories<simulation<least_loaded>>("least_loaded", 200, 0.0);
}

TEST_CASE("contract: newcomers take places between others") {
  run_histories<simulation<tight_nearest_source>>("two sources, two credits", 500, 0.0);
}

TEST_CASE("contract: other consistency policies") {
  run_histories<simulation<nearest_source, bounded_staleness>>("bounded_staleness", 200, 0.0);
  run_histories<simulation<nearest_source, independent>>("independent", 200, 0.0);
}

TEST_CASE("contract: without digests the control block alone keeps versions apart") {
  run_histories<simulation<nearest_source, group_consistent, no_integrity>>("no_integrity", 400, 0.0);
}

TEST_CASE("equal seeds give equal histories") {
  simulation_statistics first;
  for (int run = 0; run < 2; ++run) {
    simulation<> history{options_for(11)};
    history.run();
    if (run == 0) first = history.statistics();
    CHECK(history.statistics().events == first.events);
    CHECK(history.statistics().updates == first.updates);
    CHECK(history.statistics().chunks == first.chunks);
  }
}
