#pragma once
/// \file channel.hpp
/// A data connection under TLS 1.3: a channel as tcp/plain_channel.hpp defines it, implemented with OpenSSL.
///
/// A source performs its handshakes step by step in a thread of their own, and keeps no TLS state for a
/// connection that has not sent anything. A refused peer learns the reason by TLS's alerts: the
/// connection stays open until the peer has received the alert or the greeting timeout is over. A reader of
/// transport `tcp` that connects to this port gets the answer `needs_tls` in its own protocol.
///
/// The bytes of an answer are copied when they are encrypted: nothing is sent by reference. Of what a socket
/// does not accept, at most five records of 16 KiB wait, as copies; the caller passes their bytes again.
///
/// Thread safety: none; one thread at a time.

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_socket.hpp"
#include "tensorhub/transports/tcp/plain_channel.hpp"
#include "tensorhub/transports/tcp/protocol.hpp"
#include "tensorhub/transports/tcp/socket.hpp"
#include "tensorhub/transports/tls/context.hpp"
#include "tensorhub/transports/tls/options.hpp"
#include "tensorhub/transports/tls/socket_bio.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail {

using tcp_detail::handshake_need;

/// "127.0.0.1:40112".
[[nodiscard]] std::string peer_of(int socket);

class tls_channel {
 public:
  using options = tls_options;
  using shared = tls_context;
  static constexpr std::string_view name = "tls";
  static constexpr std::string_view scheme = "tls://";
  static constexpr transport_capabilities capabilities{.max_read_bytes = UINT64_MAX,
                                                       .max_region_bytes = UINT64_MAX,
                                                       .survives_access_errors = true,
                                                       .crosses_hosts = true,
                                                       .crosses_datacenters = true,
                                                       .reads_device_memory = true,
                                                       .uses_backing_file = false,
                                                       .sends_by_reference = false,
                                                       .revokes_cheaply = true,
                                                       .encrypts = true};
  static constexpr bool sends_files = false;
  [[nodiscard]] static constexpr std::uint64_t ordered_read_bytes(tcp_detail::path_kind) noexcept {
    return UINT64_MAX;
  }
  /// Each may hold OpenSSL's memory for half a handshake, about 40 KiB.
  static constexpr std::size_t most_newcomers = 4096;
  static constexpr bool greets_apart = true;

  [[nodiscard]] static tcp_options sockets_of(const options& all);

  [[nodiscard]] static tls_channel accept(tls_context& common, detail::unique_socket socket) {
    return tls_channel{common, std::move(socket)};
  }

  /// Performs the reader's handshake before the deadline. Throws `transport_failed` or `timed_out`.
  [[nodiscard]] static tls_channel connect(tls_context& common, detail::unique_socket socket,
                                           const std::string& address, tcp_detail::deadline until);

  /// Continues the source's handshake as far as possible without blocking.
  [[nodiscard]] handshake_need handshake() noexcept;

  /// TLS exporter (RFC 8446, section 7.5). If OpenSSL fails: random bytes, for which no capability fits.
  [[nodiscard]] std::array<std::byte, 32> binding() const noexcept;

  [[nodiscard]] int socket() const noexcept { return socket_.get(); }

  [[nodiscard]] ssize_t send(const void* data, std::size_t bytes) noexcept;

  /// One record contains everything before the last piece, and the beginning of the last piece. After fewer
  /// bytes than asked for, the next call must begin with the same bytes as the rest.
  [[nodiscard]] ssize_t send(std::span<iovec> pieces, int) noexcept;

  [[nodiscard]] ssize_t receive(void* into, std::size_t bytes) noexcept;

  /// Receives until the pieces are full, no bytes are left, or `largest_receive_bytes` are received.
  [[nodiscard]] ssize_t receive(std::span<iovec> pieces) noexcept;

  [[nodiscard]] bool may_have_more() const noexcept { return may_have_more_; }
  /// The socket's bytes are records, of which some may have been taken out: it cannot wait for a number.
  static constexpr void expect(std::uint64_t) noexcept {}

  /// A source refuses a reader only after the reader's part of the handshake.
  [[nodiscard]] std::string why_closed() const;

 private:
  enum class phase : std::uint8_t { silent, shaking, open, refused };
  static constexpr std::size_t record_bytes = 16'384;  ///< the maximum size of a TLS record
  static constexpr std::size_t largest_receive_bytes = 1u << 20;
  static constexpr std::size_t most_drained_bytes = 64 * 1024;
  static constexpr int most_messages = 16;  ///< of the protocol itself, that a call handles
  static constexpr unsigned char handshake_record = 0x16;

  tls_channel(tls_context& common, detail::unique_socket socket)
      : socket_{std::move(socket)}, shared_{&common} {}

  void begin(session_role role);
  void note_opened() noexcept;

  void expect_host(const std::string& address);

  /// A peer that does not begin a handshake costs no session. Empty: the peer does begin one.
  [[nodiscard]] std::optional<handshake_need> look_at_first_byte();

  [[nodiscard]] handshake_need go_on();

  /// Called when OpenSSL has sent the alert. Closing at once would lose it if the peer has sent more in the
  /// meantime.
  void refuse(const std::string& why);
  [[nodiscard]] handshake_need drain() noexcept;

  [[nodiscard]] std::string why_refused_reader() const;
  [[nodiscard]] std::string why_no_connection(int need) const;
  [[nodiscard]] std::string refused_ours(std::string_view why) const;

  /// Encrypts the pieces without their first bytes, as far as there is room; returns how many bytes.
  [[nodiscard]] std::size_t encrypt(std::span<const iovec> pieces, std::size_t skipped) noexcept;

  /// Encrypts at most one record, and sends it or adds it to the open batch, completely or not at all; -1
  /// with errno. The function changes the key before a record, never after one: a later read must not have to
  /// send the key update.
  [[nodiscard]] ssize_t write(const void* data, std::size_t bytes) noexcept;

  detail::unique_socket socket_;
  tls_context* shared_;
  std::unique_ptr<verdict> verdict_{};
  session_pointer session_{};  ///< destroyed before the socket is closed, and before the verdict
  bio_state* bio_ = nullptr;   ///< of the session
  phase phase_ = phase::silent;
  bool by_kernel_ = false;
  bool may_have_more_ = true;
  unsigned long last_trouble_ = 0;
  std::size_t drained_bytes_ = 0;
  std::uint64_t sent_bytes_ = 0;  ///< under the current key
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/tls/impl/channel.ipp"
#endif
