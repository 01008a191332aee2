#pragma once
/// \file tcp.hpp
/// Transport `tcp`: one-sided reads over TCP, between any two machines that reach each other.
///
/// The source's memory is sent by a fixed number of I/O threads (never one per peer): copied into the socket,
/// or given to `sendfile` where the region lies in a memfd or another shared file and the reader is on
/// another machine. The reader receives the bytes from the socket directly into their final place. The table
/// of concept `transport` lists the promises; the protocol is in tcp/protocol.hpp.
///
/// Security: a source accepts a peer that shows a capability for it (`require_capability`; a worker requires
/// one). The peer can read only the regions whose keys it has (128 random bits). Capabilities and keys travel
/// through the reference server. Nothing is encrypted: transport `tls` is the same protocol over TLS 1.3. The
/// default interface is loopback; a worker whose reference server is on another machine listens at the
/// interface towards that server (`listen_host`). Serve other machines on a network you trust.
///
/// Thread safety: the transport object may be used from any thread; see concepts/transport.hpp for queues.

#include "tensorhub/concepts/guarded_transport.hpp"
#include "tensorhub/concepts/shared_transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/tcp/basic_tcp.hpp"
#include "tensorhub/transports/tcp/plain_channel.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports {

/// Its members are those of tcp/basic_tcp.hpp, its options those of tcp/options.hpp.
class tcp : public tcp_detail::basic_tcp<tcp_detail::plain_channel> {
 public:
  using basic_tcp::basic_tcp;
};
static_assert(guarded_transport<tcp> && shared_transport<tcp> && shortage_telling_transport<tcp>);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports

#if !defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/tcp/compiled.hpp"
#endif
