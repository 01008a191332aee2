#include "hub.hpp"

template class tensorhub::worker<tensorhub::transports::tcp>;
template class tensorhub::worker<tensorhub::transports::tcp, tensorhub::group_consistent,
                                 tensorhub::no_integrity>;
template class tensorhub::worker<tensorhub::testing::gated<tensorhub::transports::tcp>>;
template class tensorhub::reference_server<>;
