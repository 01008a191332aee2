#pragma once
/// \file bare_tcp.hpp
/// What TCP transport is compared with: the shortest loops that move bytes from one process's memory into
/// another's, blocking, one thread per stream and side, by send/recv or by sendfile/recv. The reader asks for
/// a range (16 bytes), the source answers with its bytes; ranges are chunks, asked for `depth` ahead.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tensorhub/detail/unique_fd.hpp>
#include <thread>
#include <vector>

namespace bench {

struct range_request {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  ///< zero: the reader is done
};

/// Where the source is, and how its connections are set.
struct bare_path {
  std::string host = "127.0.0.1";
  std::string congestion_control = "cubic";
  int buffer_bytes = 0;  ///< of a socket, as only root may set it; 0: the kernel tunes it
};

inline void prepare_socket(int socket, const bare_path& path) {
  const int one = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  ::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, path.congestion_control.data(),
               static_cast<socklen_t>(path.congestion_control.size()));
  if (path.buffer_bytes == 0) return;
  ::setsockopt(socket, SOL_SOCKET, SO_SNDBUFFORCE, &path.buffer_bytes, sizeof path.buffer_bytes);
  ::setsockopt(socket, SOL_SOCKET, SO_RCVBUFFORCE, &path.buffer_bytes, sizeof path.buffer_bytes);
}

[[nodiscard]] inline sockaddr_in address_of(const bare_path& path, std::uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(port);
  ::inet_pton(AF_INET, path.host.c_str(), &out.sin_addr);
  return out;
}

inline bool send_all(int socket, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const auto sent = ::send(socket, at, std::min<std::size_t>(bytes, 1u << 20), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}
inline bool receive_all(int socket, void* data, std::size_t bytes) {
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const auto taken = ::recv(socket, at, std::min<std::size_t>(bytes, 1u << 20), 0);
    if (taken <= 0) return false;
    at += taken;
    bytes -= static_cast<std::size_t>(taken);
  }
  return true;
}

/// Serves every connection with a thread, for ever. `descriptor` is a file with the same bytes as `data`.
class bare_source {
 public:
  bare_source(const std::byte* data, int descriptor, bool use_sendfile, bare_path path = {})
      : data_{data},
        descriptor_{descriptor},
        use_sendfile_{use_sendfile},
        path_{std::move(path)},
        listener_{::socket(AF_INET, SOCK_STREAM, 0)} {
    prepare_socket(listener_.get(), path_);
    sockaddr_in address = address_of(path_, 0);
    socklen_t length = sizeof address;
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        ::listen(listener_.get(), 16) != 0 ||
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
      throw std::runtime_error("the bare source cannot listen");
    port_ = ntohs(address.sin_port);
    std::thread{[this] { accept_all(); }}.detach();  // ends with its process
  }
  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  void accept_all() {
    for (;;) {
      const int socket = ::accept(listener_.get(), nullptr, nullptr);
      if (socket < 0) return;
      prepare_socket(socket, path_);
      std::thread{[this, socket] { serve(socket); }}.detach();
    }
  }
  void serve(int socket) const {
    const tensorhub::detail::unique_fd owner{socket};
    range_request request;
    while (receive_all(socket, &request, sizeof request) && request.bytes > 0) {
      if (!use_sendfile_) {
        if (!send_all(socket, data_ + request.offset, request.bytes)) return;
        continue;
      }
      auto offset = static_cast<off_t>(request.offset);
      while (request.bytes > 0) {
        const auto sent = ::sendfile(socket, descriptor_, &offset, request.bytes);
        if (sent <= 0) return;
        request.bytes -= static_cast<std::uint64_t>(sent);
      }
    }
  }
  const std::byte* data_;
  int descriptor_;
  bool use_sendfile_;
  bare_path path_;
  tensorhub::detail::unique_fd listener_;
  std::uint16_t port_ = 0;
};

/// Streams to a bare source, kept open from turn to turn.
class bare_reader {
 public:
  bare_reader(std::uint16_t port, std::size_t streams, const bare_path& path = {}) {
    const sockaddr_in address = address_of(path, port);
    for (std::size_t i = 0; i < streams; ++i) {
      sockets_.emplace_back(::socket(AF_INET, SOCK_STREAM, 0));
      prepare_socket(sockets_.back().get(), path);
      if (::connect(sockets_.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
        throw std::runtime_error("the bare reader cannot connect");
    }
  }

  /// Every stream reads an equal part, in chunks, `depth` asked for ahead.
  void read(std::byte* target, std::uint64_t bytes, std::uint64_t chunk_bytes, std::size_t depth) {
    const std::uint64_t part = bytes / sockets_.size();
    std::vector<std::jthread> helpers;
    for (std::size_t i = 1; i < sockets_.size(); ++i)
      helpers.emplace_back(
          [=, this] { read_part(sockets_[i].get(), target, i * part, part, chunk_bytes, depth); });
    read_part(sockets_[0].get(), target, 0, part, chunk_bytes, depth);
  }

 private:
  static void read_part(int socket, std::byte* target, std::uint64_t begin, std::uint64_t bytes,
                        std::uint64_t chunk_bytes, std::size_t depth) {
    std::uint64_t asked = 0;
    const auto ask = [&] {
      if (asked >= bytes) return;
      const range_request request{begin + asked, std::min(chunk_bytes, bytes - asked)};
      asked += request.bytes;
      if (!send_all(socket, &request, sizeof request)) throw std::runtime_error("bare reader: send failed");
    };
    for (std::size_t i = 0; i < depth; ++i) ask();
    for (std::uint64_t done = 0; done < bytes;) {
      const std::uint64_t length = std::min(chunk_bytes, bytes - done);
      if (!receive_all(socket, target + begin + done, length))
        throw std::runtime_error("bare reader: receive failed");
      done += length;
      ask();
    }
  }
  std::vector<tensorhub::detail::unique_fd> sockets_;
};

}  // namespace bench
