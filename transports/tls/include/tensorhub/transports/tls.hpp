#pragma once
/// \file tls.hpp
/// Transport `tls`: transport `tcp` under TLS 1.3, with certificates on both sides, for paths that others can
/// listen to.
///
///     using hub = tensorhub::hub<tensorhub::transports::tls>;
///     const tensorhub::transports::tls_options secure{
///         .certificate_file = "worker.pem", .key_file = "worker.key", .ca_file = "authority.pem"};
///     hub::publisher trainer{{.server = ..., .model = ...}, secure};
///
/// Reader and source each show a certificate and each check the other's: its signatures up to an authority in
/// `ca_file`, its dates, that it may be used by servers and clients, and its names if `allowed_names` or
/// `verify_host` say so. What does not fit is refused with a sentence on both sides, costs nobody else
/// anything, and is counted. Below that, all is as in transport `tcp`: its options are member `tcp`, its
/// capabilities, keys and incarnations hold as well, and so do its promises. Its sendfile is not used.
///
/// OpenSSL encrypts in user space, or the kernel does for sources (`kernel_tls`), where it has module `tls`
/// loaded and OpenSSL was built for it: `report()` says which. The kernel does not renew keys
/// (`rekey_bytes`): end its connections in other ways where that matters.
///
/// Thread safety: the transport object may be used from any thread; see concepts/transport.hpp for queues.

#include "tensorhub/concepts/guarded_transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/tcp/basic_tcp.hpp"
#include "tensorhub/transports/tls/channel.hpp"
#include "tensorhub/transports/tls/options.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports {

/// Its members are those of tcp/basic_tcp.hpp, its options those of tls/options.hpp. `refused_connections()`
/// counts readers without a capability and those whose handshake failed.
class tls : public tcp_detail::basic_tcp<tls_detail::tls_channel> {
 public:
  using basic_tcp::basic_tcp;
  [[nodiscard]] tls_report report() const { return shared().report(); }
};
static_assert(guarded_transport<tls>);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports
