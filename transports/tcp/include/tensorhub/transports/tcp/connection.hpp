#pragma once
/// \file connection.hpp
/// The source's end of one data connection: takes requests, sends answers, never blocks.
///
/// An answer from a region with a backing file is sent by `sendfile`: the kernel sends the pages themselves,
/// as they are when they leave (or, on one machine, when the reader takes them), so the region is noted in
/// `by_reference` and revoking it closes the connection. Other answers are copied into the socket.
///
/// Thread safety: none; the loop that owns it locks.

#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "tensorhub/detail/peer_read.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/transports/tcp/protocol.hpp"
#include "tensorhub/transports/tcp/region_table.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::transports::tcp_detail {

/// What a connection waits for, or that it is over.
enum class connection_need : std::uint8_t { input, output, more_time, end };

class connection {
 public:
  /// `send_from_file`: regions with a backing file are sent by `sendfile`.
  connection(detail::unique_fd socket, bool send_from_file, std::chrono::steady_clock::time_point now)
      : socket_{std::move(socket)}, send_from_file_{send_from_file}, opened_{now} {}

  [[nodiscard]] int socket() const noexcept { return socket_.get(); }
  [[nodiscard]] incarnation reader() const noexcept { return reader_; }
  [[nodiscard]] bool greeted() const noexcept { return greeted_; }
  [[nodiscard]] std::chrono::steady_clock::time_point opened() const noexcept { return opened_; }

  /// Bytes of this region may still be on their way over this connection.
  [[nodiscard]] bool carries(std::uint64_t region) const noexcept {
    return (answering_ && region_ == region) ||
           std::ranges::find(by_reference_, region) != by_reference_.end();
  }

  /// Takes the hello. `judge(const hello&) -> welcome_status` decides about it.
  template <typename Judge>
  [[nodiscard]] connection_need greet(incarnation self, Judge&& judge) noexcept {
    const auto taken = ::recv(socket(), input_.data() + input_end_, sizeof(hello) - input_end_, 0);
    if (taken == 0 || (taken < 0 && !would_block())) return connection_need::end;
    if (taken < 0) return connection_need::input;
    input_end_ += static_cast<std::size_t>(taken);
    hello greeting;
    std::memcpy(&greeting, input_.data(), std::min(input_end_, sizeof greeting));
    if (input_end_ >= sizeof greeting.magic && greeting.magic != hello_magic) return connection_need::end;
    if (input_end_ < sizeof greeting) return connection_need::input;
    input_end_ = 0;
    welcome answer;
    answer.source = self.value;
    answer.status = greeting.protocol != data_protocol ? welcome_status::other_protocol
                    : greeting.source != self.value    ? welcome_status::other_process
                                                       : judge(std::as_const(greeting));
    // The send buffer of a new connection is empty: this is taken whole or not at all.
    const auto sent = ::send(socket(), &answer, sizeof answer, MSG_NOSIGNAL);
    if (sent != static_cast<ssize_t>(sizeof answer) || answer.status != welcome_status::accepted)
      return connection_need::end;
    reader_ = {greeting.reader};
    greeted_ = true;
    return connection_need::input;
  }

  /// Answers requests until the socket wants no more, none is left, or `budget_bytes` are sent.
  [[nodiscard]] connection_need serve(const region_table& regions, std::uint64_t budget_bytes) noexcept {
    std::uint64_t sent_bytes = 0;
    for (;;) {
      while (answering_) {
        if (sent_bytes >= budget_bytes) return connection_need::more_time;
        const std::uint64_t wanted = next_send_bytes();
        const auto sent = send_some();
        if (sent < 0) return would_block() ? connection_need::output : connection_need::end;
        if (sent == 0) return connection_need::end;  // the file is shorter than the region
        sent_bytes += static_cast<std::uint64_t>(sent);
        if (static_cast<std::uint64_t>(sent) < wanted) return connection_need::output;
      }
      if (input_end_ - input_begin_ >= sizeof(read_request)) {
        begin_answer(regions);
        continue;
      }
      const connection_need need = take_requests();
      if (need != connection_need::more_time) return need;
    }
  }

 private:
  static constexpr std::uint64_t smallest_file_send_bytes = 32 * 1024;
  /// More at once leaves the caches before the reader takes it.
  static constexpr std::uint64_t largest_send_bytes = 1024 * 1024;

  [[nodiscard]] static bool would_block() noexcept {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  }

  /// `more_time`: at least one whole request is there.
  [[nodiscard]] connection_need take_requests() noexcept {
    std::memmove(input_.data(), input_.data() + input_begin_, input_end_ - input_begin_);
    input_end_ -= input_begin_;
    input_begin_ = 0;
    const auto taken = ::recv(socket(), input_.data() + input_end_, input_.size() - input_end_, 0);
    if (taken == 0 || (taken < 0 && !would_block())) return connection_need::end;
    if (taken < 0) return connection_need::input;
    input_end_ += static_cast<std::size_t>(taken);
    return input_end_ >= sizeof(read_request) ? connection_need::more_time : connection_need::input;
  }

  void begin_answer(const region_table& regions) noexcept {
    read_request request;
    std::memcpy(&request, input_.data() + input_begin_, sizeof request);
    input_begin_ += sizeof request;
    const auto found = regions.find(request);
    region_ = request.key.region;
    header_ = {static_cast<std::uint64_t>(found ? completion_status::ok : completion_status::access_denied),
               found ? request.bytes : 0};
    header_sent_ = 0;
    part_ = found.value_or(memory_range{});
    from_file_ = send_from_file_ && part_.backing_fd >= 0 && part_.bytes >= smallest_file_send_bytes;
    answering_ = true;
    if (from_file_ && std::ranges::find(by_reference_, region_) == by_reference_.end()) {
      try {
        by_reference_.push_back(region_);
      } catch (...) {  // no memory for the note: copy, which needs none
        from_file_ = false;
      }
    }
  }

  /// What the next `send_some` asks the socket to take.
  [[nodiscard]] std::uint64_t next_send_bytes() const noexcept {
    const std::uint64_t header_bytes = sizeof header_ - header_sent_;
    if (from_file_ && header_bytes > 0) return header_bytes;
    return header_bytes + std::min(part_.bytes, largest_send_bytes);
  }

  /// Bytes sent, or -1 with errno.
  [[nodiscard]] ssize_t send_some() noexcept {
    ssize_t sent = 0;
    const std::uint64_t part_bytes = std::min(part_.bytes, largest_send_bytes);
    if (header_sent_ == sizeof header_ && from_file_) {
      auto offset = static_cast<off_t>(part_.backing_offset);
      sent = ::sendfile(socket(), part_.backing_fd, &offset, part_bytes);
      if (sent > 0) consume(static_cast<std::uint64_t>(sent));
    } else {
      auto* const header = reinterpret_cast<std::byte*>(&header_) + header_sent_;
      const std::size_t header_bytes = sizeof header_ - header_sent_;
      std::array<iovec, 2> pieces{iovec{header, header_bytes}, iovec{part_.data, part_bytes}};
      msghdr message{};
      message.msg_iov = pieces.data();
      message.msg_iovlen = from_file_ ? 1 : pieces.size();
      const int more = from_file_ ? MSG_MORE : 0;
      const detail::peer_read reading;
      sent = ::sendmsg(socket(), &message, MSG_NOSIGNAL | more);
      if (sent > 0) {
        const std::size_t of_header = std::min(static_cast<std::size_t>(sent), header_bytes);
        header_sent_ += of_header;
        consume(static_cast<std::uint64_t>(sent) - of_header);
      }
    }
    if (header_sent_ == sizeof header_ && part_.bytes == 0) answering_ = false;
    return sent;
  }

  void consume(std::uint64_t bytes) noexcept {
    part_.data += bytes;
    part_.backing_offset += bytes;
    part_.bytes -= bytes;
  }

  detail::unique_fd socket_;
  bool send_from_file_;
  std::chrono::steady_clock::time_point opened_;
  incarnation reader_{};
  bool greeted_ = false;

  std::array<std::byte, 64 * sizeof(read_request)> input_{};
  std::size_t input_begin_ = 0;
  std::size_t input_end_ = 0;

  bool answering_ = false;
  bool from_file_ = false;
  std::uint64_t region_ = 0;
  read_answer header_{};
  std::size_t header_sent_ = 0;
  memory_range part_{};  ///< what is left of the answer
  std::vector<std::uint64_t> by_reference_;
};

}  // namespace tensorhub::transports::tcp_detail
