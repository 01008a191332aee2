#pragma once
// A hub with a transport that fails as it is told (instantiated once: hubs.cpp).

#include <tensorhub/testing/faulty.hpp>

#include "hub.hpp"

extern template tensorhub::data_plane_maker tensorhub::data_plane_maker_of<
    tensorhub::testing::faulty<tensorhub::transports::tcp>, tensorhub::xxh3_128, tensorhub::host_memory>(
    tensorhub::testing::faulty<tensorhub::transports::tcp>::options);

namespace system_tests {

using faulty_hub = tensorhub::hub<tensorhub::testing::faulty<tensorhub::transports::tcp>>;

}  // namespace system_tests
