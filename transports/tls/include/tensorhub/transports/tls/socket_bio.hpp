#pragma once
/// \file socket_bio.hpp
/// An OpenSSL BIO for sockets that does not raise SIGPIPE, and sends several records at once.
///
/// OpenSSL writes to sockets by write(2), which raises SIGPIPE if the peer has closed the connection; without
/// a handler the signal ends the process. This filter in front of OpenSSL's own socket BIO sends with
/// MSG_NOSIGNAL. If the kernel encrypts (kernel TLS, source's side only), the filter leaves writing to
/// OpenSSL's BIO: the I/O threads of a source block the signal anyway.
///
/// OpenSSL writes each record, 16 KiB at most, by a call of its own. A `record_batch` collects records, so
/// that an answer of many records is sent in a quarter of the calls and wakes the reader less often.
///
/// Thread safety: a BIO belongs to one session, and a batch to one BIO.

#include <openssl/bio.h>
#include <sys/socket.h>

#include <cstddef>
#include <memory>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/tls/certificate.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail {

/// Encrypted records that the socket has not accepted yet. Memory is held only while there are some.
class record_batch {
 public:
  /// Until `flush`, records are collected. Without memory, nothing is collected.
  void open() noexcept;
  [[nodiscard]] bool is_open() const noexcept { return open_; }

  /// Takes at least a part, and returns how much. 0: the batch is full, and the socket accepts nothing
  /// (errno).
  [[nodiscard]] std::size_t add(int socket, const char* record, std::size_t bytes) noexcept;

  /// The user's bytes in the records that are not sent: those of complete records, as `count` was told.
  [[nodiscard]] std::size_t plain_bytes() const noexcept { return plain_bytes_; }
  void count(std::size_t plain_bytes) noexcept {
    if (begin_ < end_) plain_bytes_ += plain_bytes;
  }

  /// Sends the records, and collects no more. False: the socket did not accept all of them (errno).
  [[nodiscard]] bool flush(int socket) noexcept;

 private:
  static constexpr std::size_t capacity =
      4 * (16'384 + 256);  ///< RFC 8446, 5.2: of a record, at most so much

  [[nodiscard]] bool send(int socket) noexcept;

  std::unique_ptr<char[]> bytes_{};
  std::size_t begin_ = 0, end_ = 0;  ///< of what is not sent
  std::size_t plain_bytes_ = 0;
  bool open_ = false;
};

int write_without_signal(BIO* self, const char* data, int bytes) noexcept;

int read_below(BIO* self, char* into, int bytes) noexcept;

long control_below(BIO* self, int command, long number, void* pointer) noexcept;

/// Null if there is no memory. The BIO does not close the socket.
[[nodiscard]] bio_pointer make_socket_bio(int socket) noexcept;

/// What a BIO made here owns.
struct bio_state {
  record_batch batch{};
  bool was_empty = false;  ///< the socket had nothing when OpenSSL last read from it
};
[[nodiscard]] bio_state& state_of(BIO* made) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/tls/impl/socket_bio.ipp"
#endif
