#pragma once
// A hub whose readers on the same machine copy (instantiated once: hubs.cpp).

#include <tensorhub/transfer/first_of.hpp>
#include <tensorhub/transports/same_host.hpp>

#include "hub.hpp"

extern template tensorhub::data_plane_maker tensorhub::data_plane_maker_of<
    tensorhub::first_of<tensorhub::transports::same_host, tensorhub::transports::tcp>, tensorhub::xxh3_128,
    tensorhub::host_memory>(
    tensorhub::first_of<tensorhub::transports::same_host, tensorhub::transports::tcp>::options);

namespace system_tests {

using near_hub =
    tensorhub::hub<tensorhub::first_of<tensorhub::transports::same_host, tensorhub::transports::tcp>>;

}  // namespace system_tests
