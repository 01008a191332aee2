#include "hub.hpp"

template tensorhub::data_plane_maker tensorhub::data_plane_maker_of<
    tensorhub::testing::gated<tensorhub::transports::tcp>, tensorhub::xxh3_128, tensorhub::host_memory>(
    tensorhub::testing::gated<tensorhub::transports::tcp>::options);
