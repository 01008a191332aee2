#pragma once
/// \file wide_area.hpp
/// `wide_area<T>`: datacenters on one machine. Peers in the same datacenter are reached by transport T as it
/// is, peers in another one by T behind an emulated link.
///
///     using data = testing::wide_area<transports::tcp>;
///     auto into_b = std::make_shared<testing::network_link>(
///         testing::network_link_options{.bytes_per_second = 125e6, .latency = 50ms});
///     ... fork() ...
///     tensorhub::hub<data>::subscriber rollout{{..., .location = {.datacenter = "b"}},
///                                              data::with(testing::throttled<transports::tcp>::options{
///                                                  .receiving = into_b})};
///
/// It is a `first_of`, which chooses for each pair by the locations of both: a member that does not cross
/// datacenters is left out there. Where either side names no datacenter there is no link between them.
///
/// A link is one direction of the path into a datacenter, shared by all the workers there that were given it:
/// its readers' reads across go through it, one after the other, whoever the source is. What is not modelled:
/// loss, the source's own adapter, connecting, and what goes to the reference server (throttled.hpp). T is
/// told where it is and so uses its own settings for such a path as well (tcp: few streams, large buffers).
///
/// Thread safety: that of concept `transport`.

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/throttled.hpp"
#include "tensorhub/transfer/first_of.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// The same transport, without a claim to reach other datacenters. Its options are those of `Inner`.
template <transport Inner>
class within_datacenter : public Inner {
 public:
  using Inner::Inner;
  static constexpr transport_capabilities capabilities = [] {
    transport_capabilities can = Inner::capabilities;
    can.crosses_datacenters = false;
    return can;
  }();
};

/// `Far` is T behind a link, with or without further decorators around it.
template <transport T, transport Far = throttled<T>>
using wide_area = first_of<within_datacenter<T>, Far>;

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
