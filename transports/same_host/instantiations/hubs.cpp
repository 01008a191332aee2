// The data path of the usual hubs over same_host (compiled.hpp).
#include "tensorhub/transports/same_host/compiled.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

template data_plane_maker data_plane_maker_of<transports::same_host, xxh3_128, host_memory>(
    transports::same_host::options);

}  // namespace tensorhub::inline TENSORHUB_MODE
