#pragma once
/// \file plain_channel.hpp
/// The channel of a data connection without encryption: the socket itself.
///
/// The classes of this folder are templates over a *channel*, a class with the members below: `tcp` is
/// basic_tcp<plain_channel>, and transport `tls` provides another channel. No member is virtual, and features
/// that the plain channel does not need (a handshake, held-back bytes) are constants that the compiler
/// removes.
///
/// | member                          | means                                                                |
/// |---------------------------------|----------------------------------------------------------------------|
/// | options, name, scheme,          | of the transport; `scheme` is what its addresses begin with          |
/// | capabilities                    |                                                                      |
/// | sends_files                     | answers may be sent by `sendfile`                                    |
/// | ordered_read_bytes(path)        | of at most so many bytes, answers hold what the memory held in the   |
/// |                                 | order of the requests; constexpr                                     |
/// | most_newcomers                  | connections that a source keeps while they have not said hello       |
/// | greets_apart                    | handshakes cost so much that a source has a thread for them, apart   |
/// |                                 | from those that answer reads                                         |
/// | shared{options}                 | what all connections of one transport share; throws. `refused()`:    |
/// |                                 | connections that the channel itself has refused                      |
/// | sockets_of(options)             | the part of the options that is about sockets                        |
/// | connect(shared, socket,         | the reader's end of a fresh connection; throws `transport_failed` or |
/// |   address, until)               | `timed_out`                                                          |
/// | accept(shared, socket)          | the source's end; does not block                                     |
/// | c.handshake()                   | the source's next step of it, never blocking; nothing may be sent or |
/// |                                 | received before it says `done`                                       |
/// | c.binding()                     | once the handshake is done: what only the two ends know of this      |
/// |                                 | connection (types/capability.hpp), as a container of bytes or empty  |
/// | c.send, c.receive               | as ::send and ::recv on a non-blocking socket: bytes, or -1 with     |
/// |                                 | errno. A handful of pieces may come in one call. Having received     |
/// |                                 | less than 2 KiB, and less than asked for, means that the socket is   |
/// |                                 | empty and poll(2) will tell of more                                  |
/// | c.may_have_more()               | bytes may have been taken out of the socket and not yet received:    |
/// |                                 | poll(2) does not know of them                                        |
/// | c.expect(bytes)                 | so many bytes of the present answer are to come, or zero if its      |
/// |                                 | header is not here yet: poll(2) need not tell of the first of many   |
/// | c.why_closed()                  | the peer's reason, after a `receive` that said that it is over       |
///
/// Thread safety: `shared` for all threads, a channel for one at a time.

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_socket.hpp"
#include "tensorhub/transports/tcp/address.hpp"
#include "tensorhub/transports/tcp/options.hpp"
#include "tensorhub/transports/tcp/protocol.hpp"
#include "tensorhub/transports/tcp/socket.hpp"
#include "tensorhub/types/capability.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

/// What a source's handshake is waiting for.
enum class handshake_need : std::uint8_t { done, input, output, end };

class plain_channel {
 public:
  using options = tcp_options;
  static constexpr std::string_view name = "tcp";
  static constexpr std::string_view scheme = address_scheme;
  static constexpr transport_capabilities capabilities{.max_read_bytes = UINT64_MAX,
                                                       .max_region_bytes = UINT64_MAX,
                                                       .survives_access_errors = true,
                                                       .crosses_hosts = true,
                                                       .crosses_datacenters = true,
                                                       .reads_device_memory = true,
                                                       .uses_backing_file = true,
                                                       .sends_by_reference = true,
                                                       .revokes_cheaply = true};
  static constexpr bool sends_files = true;
  [[nodiscard]] static constexpr std::uint64_t ordered_read_bytes(path_kind path) noexcept {
    return path == path_kind::wide_area ? UINT64_MAX : smallest_reference_bytes - 1;
  }
  /// More than a listening socket's backlog: the source accepts the whole backlog before it reads the first
  /// hello.
  static constexpr std::size_t most_newcomers = 8192;
  static constexpr bool greets_apart = false;

  struct shared {
    explicit shared(const options&) noexcept {}
    [[nodiscard]] static constexpr std::uint64_t refused() noexcept { return 0; }
  };
  [[nodiscard]] static const tcp_options& sockets_of(const options& all) noexcept { return all; }

  plain_channel(detail::unique_socket socket) noexcept : socket_{std::move(socket)} {}
  [[nodiscard]] static plain_channel connect(shared&, detail::unique_socket socket, const std::string&,
                                             deadline) noexcept {
    plain_channel out{std::move(socket)};
    out.wake_bytes_ = wake_bytes_of(out.socket());
    return out;
  }
  [[nodiscard]] static plain_channel accept(shared&, detail::unique_socket socket) noexcept {
    return {std::move(socket)};
  }
  [[nodiscard]] static constexpr handshake_need handshake() noexcept { return handshake_need::done; }

  [[nodiscard]] static constexpr channel_binding binding() noexcept { return {}; }
  [[nodiscard]] int socket() const noexcept { return socket_.get(); }
  [[nodiscard]] ssize_t send(const void* data, std::size_t bytes) noexcept {
    return ::send(socket(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  /// `more`: MSG_MORE, or 0.
  [[nodiscard]] ssize_t send(std::span<iovec> pieces, int more) noexcept;
  [[nodiscard]] ssize_t receive(void* into, std::size_t bytes) noexcept {
    return ::recv(socket(), into, bytes, MSG_DONTWAIT);
  }
  [[nodiscard]] ssize_t receive(std::span<iovec> pieces) noexcept;
  [[nodiscard]] static constexpr bool may_have_more() noexcept { return false; }
  /// Of a long answer poll(2) then waits for `wake_bytes_`, because each wake-up costs two changes of
  /// context. Of a short one, and of the end of a long one, it waits for any byte: this end copies while the
  /// source does.
  void expect(std::uint64_t bytes) noexcept;
  [[nodiscard]] static std::string why_closed() {
    return "closed the connection instead of greeting: is it a data port of TensorHub? (It closes "
           "connections beyond its max_connections, or half of ulimit -n, too.)";
  }

 private:
  [[nodiscard]] static msghdr message_of(std::span<iovec> pieces) noexcept;

  detail::unique_socket socket_;
  std::uint64_t wake_bytes_ = 1;  ///< 1 at the source's end, too, which never waits for more
  std::uint64_t low_water_ = 1;   ///< as the socket has it
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/tcp/impl/plain_channel.ipp"
#endif
