#pragma once
/// \file compiled.hpp
/// What the library TensorHub::compiled_tcp has instantiated: the transport, and the data path of the usual
/// hubs over it. tcp.hpp includes this file in compiled mode, so that users' files do not instantiate it
/// again.

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/policy/integrity/none.hpp"
#include "tensorhub/transports/tcp.hpp"
#include "tensorhub/worker/policy_data_plane.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

extern template class transports::tcp_detail::basic_tcp<transports::tcp_detail::plain_channel>;
extern template data_plane_maker data_plane_maker_of<transports::tcp, xxh3_128, host_memory>(
    transports::tcp::options);
extern template data_plane_maker data_plane_maker_of<transports::tcp, no_integrity, host_memory>(
    transports::tcp::options);

}  // namespace tensorhub::inline TENSORHUB_MODE
