#pragma once
/// \file wide_area.hpp
/// `wide_area<T>`: datacenters on one machine. Transport T connects peers in the same datacenter directly,
/// and peers in different datacenters through an emulated link.
///
///     using data = testing::wide_area<transports::tcp>;
///     auto into_b = std::make_shared<testing::network_link>(
///         testing::network_link_options{.bytes_per_second = 125e6, .latency = 50ms});
///     ... fork() ...
///     tensorhub::hub<data>::subscriber rollout{{..., .location = {.datacenter = "b"}},
///                                              data::with(testing::throttled<transports::tcp>::options{
///                                                  .receiving = into_b})};
///
/// `wide_area` is a `first_of`, which chooses by the locations of both sides: a member that does not cross
/// datacenters is not used between datacenters. If one side names no datacenter, there is no link between the
/// two.
///
/// A link is one direction of the path into a datacenter, shared by all its workers that have the link: their
/// reads from other datacenters go through it one after the other, whatever the source. The model does not
/// include loss, the source's own adapter, connecting, and messages to the reference server (throttled.hpp).
/// T gets the location and therefore uses its own settings for such a path too (tcp: few streams, large
/// buffers).
///
/// Thread safety: as concept `transport` requires.

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/throttled.hpp"
#include "tensorhub/transfer/first_of.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// The same transport, declared as unable to reach other datacenters. Its options are those of `Inner`.
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
