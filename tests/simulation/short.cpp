/// Short histories of the real cores, with all faults at once: so many that faults which need several
/// coincidences happen too. run_histories.hpp says how one is replayed, and how more of them are run.

#include <doctest/doctest.h>

#include "histories.hpp"
#include "run_histories.hpp"
#include "support/simulation/server.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;

TEST_CASE("contract: short histories, many of them") {
  run_histories("short", policies_of(), 95'000, 0.0, short_options_for, 100);
}
