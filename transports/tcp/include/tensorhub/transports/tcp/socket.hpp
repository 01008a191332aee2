#pragma once
/// \file socket.hpp
/// Sockets: listening, connecting with a deadline, options.
///
/// Thread safety: free functions without shared state.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_socket.hpp"
#include "tensorhub/transports/tcp/options.hpp"
#include "tensorhub/transports/tcp/protocol.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

using deadline = std::chrono::steady_clock::time_point;

using resolved_addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// An address in digits is found whatever addresses this machine has itself. Of a name those that the machine
/// could reach (AI_ADDRCONFIG), or all if there are none; with AI_NUMERICHOST in `flags`, a name is an error.
/// `transport`, here and below, is the name that begins an error's sentence.
[[nodiscard]] resolved_addresses resolve(const std::string& host, const std::string& port, int flags,
                                         std::string_view transport);

void set_option(int socket, int level, int name, int value) noexcept;

[[nodiscard]] bool is_loopback(const sockaddr_storage& address) noexcept;

/// The other end of this connection is on this machine, at a loopback address or at the address of this end.
/// (A container of this machine with an address of its own looks like another machine.)
[[nodiscard]] bool reaches_loopback(int socket) noexcept;

/// The settings of a connection to or from a peer that far away.
[[nodiscard]] tcp_path settings_of(const tcp_options& options, path_kind path);

/// If the kernel does not have the algorithm, or does not permit this user to choose it, the system's default
/// stays.
void choose_congestion_control(int socket, std::string_view control) noexcept;

/// Sets the options that both ends of a data connection use.
void tune(int socket, const tcp_path& path) noexcept;

/// As the kernel has measured it lately, by what this end has sent; zero: it has not.
[[nodiscard]] duration round_trip_of(int socket) noexcept;

/// The last number in a file of /proc/sys; zero if there is none.
[[nodiscard]] std::uint64_t kernel_limit(const char* file) noexcept;

/// Sets one buffer's size. An explicit size ends the kernel's own tuning, and without CAP_NET_ADMIN the
/// kernel limits it to `net.core.*mem_max`, which is often much less than the tuning reaches
/// (`net.ipv4.tcp_*mem`). In that case the function does nothing. (The kernel doubles the given size for its
/// own bookkeeping.)
void size_buffer(int socket, int option, int forced_option, std::size_t wanted, const char* largest_by_hand,
                 const char* largest_by_tuning) noexcept;

/// A receive buffer must be set before the connection is made, otherwise the window does not scale with it; a
/// send buffer may be set at any time.
void size_send_buffer(int socket, const tcp_path& path) noexcept;
void size_buffers(int socket, const tcp_path& path) noexcept;

/// The buffers of a connection within this machine, where the options leave their sizes to the kernel: in
/// those that it tunes, of several MiB, the bytes leave the processor's caches before they are received.
inline constexpr std::size_t loopback_send_buffer_bytes = 512u << 10;
inline constexpr std::size_t loopback_receive_buffer_bytes = 1u << 20;

/// As `reaches_loopback`, for a connection that is yet to be made.
[[nodiscard]] bool leads_to_loopback(const addrinfo& address) noexcept;
/// Does nothing if the connection leaves this machine, or the path has a size.
void size_loopback_send_buffer(int socket, const tcp_path& path) noexcept;

/// How many bytes of a long answer a reader should wait for at once. Elsewhere than in this machine it is 1.
/// Here it is a quarter of what the receive buffer has been given, so that the source can go on meanwhile.
[[nodiscard]] std::uint64_t wake_bytes_of(int socket) noexcept;

/// A listening socket, and where it listens: a numeric host, and the port, which the kernel may have chosen.
struct listening_socket {
  detail::unique_socket socket{};
  std::string host{};
  std::uint16_t port = 0;
};

/// Throws `transport_failed`.
[[nodiscard]] listening_socket listen_at(const tcp_options& options, std::string_view transport);

/// The host that a source which listens there tells its readers. Throws `transport_failed`.
[[nodiscard]] std::string advertised_host(const tcp_options& options, const std::string& listening,
                                          std::string_view transport);

/// Waits until the socket is ready for `events`; false at the deadline.
[[nodiscard]] bool wait_ready(int socket, short events, deadline until) noexcept;

/// Opens a non-blocking connection. Throws `transport_failed`, `timed_out`, or `system_failed` if this
/// process has no descriptor left. `names`: the host may be a name; the resolver does not know `until`.
[[nodiscard]] detail::unique_socket connect_to(const std::string& address, const tcp_path& path,
                                               deadline until, std::string_view transport = "tcp",
                                               bool names = false);

/// Makes closing the socket drop unsent bytes and reset the connection.
void abort_on_close(int socket) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/tcp/impl/socket.ipp"
#endif
