// The transport tls (tls.hpp).
#include "tensorhub/transports/tls.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports {

template class tcp_detail::basic_tcp<tls_detail::tls_channel>;

}  // namespace tensorhub::inline TENSORHUB_MODE::transports
