// The data path of the usual hubs over tcp (compiled.hpp).
#include "tensorhub/transports/tcp/compiled.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

template data_plane_maker data_plane_maker_of<transports::tcp, xxh3_128, host_memory>(
    transports::tcp::options);
template data_plane_maker data_plane_maker_of<transports::tcp, no_integrity, host_memory>(
    transports::tcp::options);

}  // namespace tensorhub::inline TENSORHUB_MODE
