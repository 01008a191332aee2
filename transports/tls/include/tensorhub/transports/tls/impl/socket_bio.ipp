#pragma once
/// \file socket_bio.ipp
/// Definitions of socket_bio.hpp.

#include <cerrno>
#include <cstddef>

#include "tensorhub/transports/tls/socket_bio.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail {

TENSORHUB_DECL int write_without_signal(BIO* self, const char* data, int bytes) noexcept {
  BIO* const below = ::BIO_next(self);
  if (below == nullptr || bytes <= 0) return 0;
  BIO_clear_retry_flags(self);
  if (BIO_get_ktls_send(below)) {
    const int written = ::BIO_write(below, data, bytes);
    ::BIO_copy_next_retry(self);
    return written;
  }
  int socket = -1;
  BIO_get_fd(below, &socket);
  const auto sent = ::send(socket, data, static_cast<std::size_t>(bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_write(self);
  return static_cast<int>(sent);
}

TENSORHUB_DECL int read_below(BIO* self, char* into, int bytes) noexcept {
  BIO* const below = ::BIO_next(self);
  if (below == nullptr) return 0;
  BIO_clear_retry_flags(self);
  const int taken = ::BIO_read(below, into, bytes);
  ::BIO_copy_next_retry(self);
  return taken;
}

TENSORHUB_DECL long control_below(BIO* self, int command, long number, void* pointer) noexcept {
  BIO* const below = ::BIO_next(self);
  return below == nullptr ? 0 : ::BIO_ctrl(below, command, number, pointer);
}

TENSORHUB_DECL bio_pointer make_socket_bio(int socket) noexcept {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_FILTER, "socket, no signal");
    if (made == nullptr) return made;
    ::BIO_meth_set_write(made, &write_without_signal);
    ::BIO_meth_set_read(made, &read_below);
    ::BIO_meth_set_ctrl(made, &control_below);
    ::BIO_meth_set_create(made, [](BIO* fresh) {
      ::BIO_set_init(fresh, 1);
      return 1;
    });
    return made;
  }();
  if (method == nullptr) return nullptr;
  bio_pointer filter{::BIO_new(method)};
  bio_pointer below{::BIO_new_socket(socket, BIO_NOCLOSE)};
  if (!filter || !below) return nullptr;
  ::BIO_push(filter.get(), below.release());
  return filter;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail
