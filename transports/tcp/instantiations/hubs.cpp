// The transport tcp, and the data path of the usual hubs over it (compiled.hpp).
#include "tensorhub/transports/tcp/compiled.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

template class transports::tcp_detail::basic_tcp<transports::tcp_detail::plain_channel>;
template data_plane_maker data_plane_maker_of<transports::tcp, xxh3_128, host_memory>(
    transports::tcp::options);
template data_plane_maker data_plane_maker_of<transports::tcp, no_integrity, host_memory>(
    transports::tcp::options);

}  // namespace tensorhub::inline TENSORHUB_MODE
