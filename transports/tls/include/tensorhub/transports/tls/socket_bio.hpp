#pragma once
/// \file socket_bio.hpp
/// An OpenSSL BIO for sockets that does not raise SIGPIPE.
///
/// OpenSSL writes to sockets by write(2), which raises SIGPIPE if the peer has closed the connection; without
/// a handler the signal ends the process. This filter in front of OpenSSL's own socket BIO sends with
/// MSG_NOSIGNAL. If the kernel encrypts (kernel TLS, source's side only), the filter leaves writing to
/// OpenSSL's BIO: the I/O threads of a source block the signal anyway.
///
/// Thread safety: a BIO belongs to one session.

#include <openssl/bio.h>
#include <sys/socket.h>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/tls/certificate.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail {

int write_without_signal(BIO* self, const char* data, int bytes) noexcept;

int read_below(BIO* self, char* into, int bytes) noexcept;

long control_below(BIO* self, int command, long number, void* pointer) noexcept;

/// Null if there is no memory. The BIO does not close the socket.
[[nodiscard]] bio_pointer make_socket_bio(int socket) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/tls/impl/socket_bio.ipp"
#endif
