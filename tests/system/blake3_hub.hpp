#pragma once
// A hub with digests that nobody can forge (instantiated once: hubs.cpp).

#include <tensorhub/policy/integrity/blake3_128.hpp>

#include "hub.hpp"

extern template tensorhub::data_plane_maker
    tensorhub::data_plane_maker_of<tensorhub::transports::tcp, tensorhub::blake3_128, tensorhub::host_memory>(
        tensorhub::transports::tcp::options);

namespace system_tests {

using blake3_hub = tensorhub::hub<tensorhub::transports::tcp, tensorhub::blake3_128>;

}  // namespace system_tests
