#pragma once
/// \file socket_bio.ipp
/// Definitions of socket_bio.hpp.

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>

#include "tensorhub/transports/tls/socket_bio.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail {

TENSORHUB_DECL void record_batch::open() noexcept {
  if (!bytes_) bytes_.reset(new (std::nothrow) char[capacity]);
  open_ = bytes_ != nullptr;
}

TENSORHUB_DECL std::size_t record_batch::add(int socket, const char* record, std::size_t bytes) noexcept {
  if (bytes > capacity - end_ && !send(socket)) return 0;
  const std::size_t taken = std::min(bytes, capacity - end_);
  std::memcpy(bytes_.get() + end_, record, taken);
  end_ += taken;
  return taken;
}

TENSORHUB_DECL bool record_batch::flush(int socket) noexcept {
  open_ = false;
  if (!send(socket)) return false;
  bytes_.reset();
  return true;
}

TENSORHUB_DECL bool record_batch::send(int socket) noexcept {
  while (begin_ < end_) {
    const auto sent = ::send(socket, bytes_.get() + begin_, end_ - begin_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return false;
    begin_ += static_cast<std::size_t>(sent);
  }
  begin_ = end_ = plain_bytes_ = 0;
  return true;
}

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
  record_batch& batch = state_of(self).batch;
  ssize_t sent = -1;
  if (batch.is_open()) {
    if (const std::size_t taken = batch.add(socket, data, static_cast<std::size_t>(bytes)); taken > 0)
      return static_cast<int>(taken);
  } else if (batch.flush(socket)) {
    sent = ::send(socket, data, static_cast<std::size_t>(bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_write(self);
  return static_cast<int>(sent);
}

TENSORHUB_DECL int read_below(BIO* self, char* into, int bytes) noexcept {
  BIO* const below = ::BIO_next(self);
  if (below == nullptr) return 0;
  BIO_clear_retry_flags(self);
  const int taken = ::BIO_read(below, into, bytes);
  ::BIO_copy_next_retry(self);
  state_of(self).was_empty = taken <= 0;
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
      auto* const state = new (std::nothrow) bio_state;
      ::BIO_set_data(fresh, state);
      ::BIO_set_init(fresh, state == nullptr ? 0 : 1);
      return state == nullptr ? 0 : 1;
    });
    ::BIO_meth_set_destroy(made, [](BIO* old) {
      delete static_cast<bio_state*>(::BIO_get_data(old));
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

TENSORHUB_DECL bio_state& state_of(BIO* made) noexcept {
  return *static_cast<bio_state*>(::BIO_get_data(made));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail
