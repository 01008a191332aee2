#pragma once
/// \file socket_bio.hpp
/// OpenSSL's way to a socket, without the signal.
///
/// OpenSSL writes to sockets by write(2), which raises SIGPIPE where the peer is gone, and would end the
/// process of a user who has not thought of that. This filter before OpenSSL's own socket BIO sends by
/// MSG_NOSIGNAL. Where the kernel encrypts (kernel TLS, source's side only), it leaves writing to OpenSSL's:
/// the I/O threads of a source block the signal anyway.
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

/// Null without memory. The socket is not closed with it.
[[nodiscard]] bio_pointer make_socket_bio(int socket) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/tls/impl/socket_bio.ipp"
#endif
