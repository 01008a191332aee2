#include "blake3_hub.hpp"
#include "faulty_hub.hpp"
#include "near_hub.hpp"
#include "throttled_hub.hpp"

using tensorhub::blake3_128;
using tensorhub::data_plane_maker;
using tensorhub::data_plane_maker_of;
using tensorhub::first_of;
using tensorhub::host_memory;
using tensorhub::xxh3_128;
using tensorhub::testing::faulty;
using tensorhub::testing::throttled;
using tensorhub::transports::same_host;
using tensorhub::transports::tcp;
template data_plane_maker tensorhub::data_plane_maker_of<tcp, blake3_128, host_memory>(tcp::options);
template data_plane_maker tensorhub::data_plane_maker_of<faulty<tcp>, xxh3_128, host_memory>(
    faulty<tcp>::options);
template data_plane_maker tensorhub::data_plane_maker_of<first_of<same_host, tcp>, xxh3_128, host_memory>(
    first_of<same_host, tcp>::options);
template data_plane_maker tensorhub::data_plane_maker_of<throttled<tcp>, xxh3_128, host_memory>(
    throttled<tcp>::options);
