/// Histories of the real cores in virtual time, of all kinds; run_histories.hpp says how one is replayed, and
/// how more of them are run. (short.cpp has the many short ones.)

#include <doctest/doctest.h>

#include <string_view>

#include "histories.hpp"
#include "run_histories.hpp"
#include "support/simulation/options.hpp"
#include "support/simulation/server.hpp"
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
  run_histories("default policies", policies_of(), 2500, 0.0);
}

TEST_CASE("contract: servers die and are replaced, workers stand still, bits flip") {
  run_histories("hard", policies_of(), 1500, 0.0, hard_options_for);
}

TEST_CASE("contract: retained versions are handed over before their last reliable holder lets go") {
  run_histories("retention", policies_of(), 800, 0.0, retaining_options_for);
}

TEST_CASE("contract: retained versions, while servers die and workers stand still") {
  run_histories("retention, hard", policies_of(), 500, 0.0, hard_retaining_options_for);
}

TEST_CASE("contract: an operator drains replicas and evicts some") {
  run_histories("orders", policies_of(), 800, 0.0, ordered_options_for);
}

TEST_CASE("contract: trainers go back to a checkpoint, and publish later versions again with other bytes") {
  run_histories("roll back", policies_of(), 600, 0.0, rollback_options_for);
}

TEST_CASE("contract: patient holders, readers that stand still, processes restarted at their address") {
  run_histories("patient", policies_of(), 1600, 0.0, patient_options_for, 300);
  run_histories("patient, no_integrity", policies_of<nearest_source, group_consistent, no_integrity>(), 400,
                0.0, patient_options_for, 300);
}

TEST_CASE("contract: trainers that overwrite before unpublish are noticed by their readers") {
  run_histories("careless trainers", policies_of(), 400, 0.3);
}

TEST_CASE("contract: other schedulers") {
  run_histories("least_loaded", policies_of<least_loaded>(), 200, 0.0);
}

TEST_CASE("contract: newcomers take places between others") {
  run_histories("two sources, two credits", policies_of<tight_nearest_source>(), 500, 0.0);
}

TEST_CASE("contract: readers that run short exchange sources") {
  run_histories("slow links", policies_of<tight_nearest_source>(), 200, 0.0, slow_options_for, 4);
}

TEST_CASE("contract: other consistency policies") {
  run_histories("bounded_staleness", policies_of<nearest_source, bounded_staleness>(), 200, 0.0);
  run_histories("independent", policies_of<nearest_source, independent>(), 200, 0.0);
}

TEST_CASE("contract: without digests the control block alone keeps versions apart") {
  run_histories("no_integrity", policies_of<nearest_source, group_consistent, no_integrity>(), 400, 0.0);
}

TEST_CASE("equal seeds give equal histories") {
  const auto some = [] { return run_histories("equal seeds", policies_of(), 48, 0.0); };
  const simulation_statistics first = some();
  const simulation_statistics second = some();
  CHECK(second.events == first.events);
  CHECK(second.updates == first.updates);
  CHECK(second.chunks == first.chunks);
}
