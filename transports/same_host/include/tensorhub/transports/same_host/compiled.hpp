#pragma once
/// \file compiled.hpp
/// What the library TensorHub::compiled_same_host has instantiated: the data path of the usual hubs over this
/// transport. same_host.hpp includes this file in compiled mode, so that users' files do not instantiate it
/// again.

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/same_host.hpp"
#include "tensorhub/worker/policy_data_plane.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

extern template data_plane_maker data_plane_maker_of<transports::same_host, xxh3_128, host_memory>(
    transports::same_host::options);

}  // namespace tensorhub::inline TENSORHUB_MODE
