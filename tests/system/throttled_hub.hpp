#pragma once
// A hub with a transport as slow as it is told (instantiated once: hubs.cpp).

#include <tensorhub/testing/throttled.hpp>

#include "hub.hpp"

extern template tensorhub::data_plane_maker tensorhub::data_plane_maker_of<
    tensorhub::testing::throttled<tensorhub::transports::tcp>, tensorhub::xxh3_128, tensorhub::host_memory>(
    tensorhub::testing::throttled<tensorhub::transports::tcp>::options);

namespace system_tests {

using throttled_hub = tensorhub::hub<tensorhub::testing::throttled<tensorhub::transports::tcp>>;

}  // namespace system_tests
