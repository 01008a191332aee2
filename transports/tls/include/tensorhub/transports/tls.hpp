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
/// `ca_file`, its dates, its permitted uses (server and client), and its names if `allowed_names` or
/// `verify_host` are set. A failed check refuses the connection with a sentence on both sides, is counted,
/// and does not affect other peers. Everything else is as in transport `tcp`: its options are member `tcp`,
/// and its capabilities, keys, incarnations and promises apply. sendfile is not used.
///
/// OpenSSL encrypts in user space. At sources the kernel can encrypt instead (`kernel_tls`), if module `tls`
/// is loaded and OpenSSL was built with support for it: `report()` tells which. The kernel does not renew
/// keys (`rekey_bytes`): if that matters, end such connections in another way.
///
/// Thread safety: the transport object may be used from any thread; see concepts/transport.hpp for queues.

#include "tensorhub/concepts/shared_transport.hpp"
#include "tensorhub/concepts/telling_transport.hpp"
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
  [[nodiscard]] transport_refusal refusal_told() const { return shared().refusal_told(); }
  [[nodiscard]] transport_renewal renewal_told() const { return shared().renewal_told(); }
};
static_assert(telling_transport<tls> && shared_transport<tls> && shortage_telling_transport<tls>);

#if !defined(TENSORHUB_HEADER_ONLY)
/// The library TensorHub::compiled_tls has it instantiated.
extern template class tcp_detail::basic_tcp<tls_detail::tls_channel>;
#endif

}  // namespace tensorhub::inline TENSORHUB_MODE::transports
