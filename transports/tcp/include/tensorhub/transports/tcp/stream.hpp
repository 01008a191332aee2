#pragma once
/// \file stream.hpp
/// The reader's end of one data connection: requests out, answers straight into their target memory.
///
/// Answers come in the order of the requests. After the last byte of one, the next answer's header is taken
/// by the same system call, so that a busy stream makes one call per socketful and not two per read.
///
/// Thread safety: none; a stream belongs to one queue.

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

#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/transports/tcp/protocol.hpp"
#include "tensorhub/types/completion.hpp"

namespace tensorhub::transports::tcp_detail {

struct pending_read {
  request_id id = 0;
  std::byte* target = nullptr;
  std::uint64_t bytes = 0;
};

/// What one step of receiving led to: a read has ended, some bytes have come, none have, or the connection is
/// no more.
enum class receive_outcome : std::uint8_t { finished_one, progress, nothing, broken };

class stream {
 public:
  using clock = std::chrono::steady_clock;

  /// Room for `depth` reads is made here; posting never allocates.
  stream(detail::unique_fd socket, std::size_t depth)
      : socket_{std::move(socket)}, reads_(depth), requests_(depth * sizeof(read_request)) {}

  [[nodiscard]] int socket() const noexcept { return socket_.get(); }
  [[nodiscard]] std::size_t outstanding() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t outstanding_bytes() const noexcept { return outstanding_bytes_; }
  [[nodiscard]] clock::time_point last_progress() const noexcept { return last_progress_; }

  /// Pre-condition: outstanding() < depth. False: the connection is broken.
  [[nodiscard]] bool post(const pending_read& read, const read_request& request) noexcept {
    if (count_ == 0) last_progress_ = clock::now();
    reads_[(first_ + count_) % reads_.size()] = read;
    ++count_;
    outstanding_bytes_ += read.bytes;
    if (unsent_end_ + sizeof request > requests_.size()) {
      std::memmove(requests_.data(), requests_.data() + unsent_begin_, unsent_end_ - unsent_begin_);
      unsent_end_ -= unsent_begin_;
      unsent_begin_ = 0;
    }
    std::memcpy(requests_.data() + unsent_end_, &request, sizeof request);
    unsent_end_ += sizeof request;
    return flush();
  }

  /// Sends what was posted, as far as the socket takes it. False: the connection is broken.
  [[nodiscard]] bool flush() noexcept {
    while (unsent_begin_ < unsent_end_) {
      const auto sent = ::send(socket(), requests_.data() + unsent_begin_, unsent_end_ - unsent_begin_,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) return would_block();
      unsent_begin_ += static_cast<std::size_t>(sent);
    }
    unsent_begin_ = unsent_end_ = 0;
    return true;
  }

  [[nodiscard]] bool has_unsent() const noexcept { return unsent_begin_ < unsent_end_; }

  /// Receives until one read is finished (then `done` is it), or the socket has given what it had.
  /// Pre-condition: outstanding() > 0.
  [[nodiscard]] receive_outcome receive(completion& done) noexcept {
    for (bool progress = false;; progress = true) {
      if (header_have_ == sizeof header_) {
        if (!header_is_sane()) return receive_outcome::broken;
        if (body_left() == 0) {
          done = finish_first();
          return receive_outcome::finished_one;
        }
      }
      std::array<iovec, 2> pieces{};
      std::size_t used = 0;
      std::uint64_t body_bytes = 0;
      if (header_have_ == sizeof header_) {
        body_bytes = body_left();
        pieces[used++] = {reads_[first_].target + body_have_, body_bytes};
        if (count_ > 1) pieces[used++] = {next_header_.data(), sizeof header_};
      } else {
        pieces[used++] = {reinterpret_cast<std::byte*>(&header_) + header_have_,
                          sizeof header_ - header_have_};
      }
      msghdr message{};
      message.msg_iov = pieces.data();
      message.msg_iovlen = used;
      const auto taken = ::recvmsg(socket(), &message, MSG_DONTWAIT);
      if (taken == 0) return receive_outcome::broken;
      if (taken < 0 && !would_block()) return receive_outcome::broken;
      if (taken < 0) return progress ? receive_outcome::progress : receive_outcome::nothing;
      last_progress_ = clock::now();
      auto got = static_cast<std::uint64_t>(taken);
      if (body_bytes == 0) {
        header_have_ += got;
        continue;
      }
      const std::uint64_t of_body = std::min(got, body_bytes);
      body_have_ += of_body;
      got -= of_body;
      next_header_have_ = got;
      if (of_body < body_bytes) return receive_outcome::progress;
    }
  }

  /// The oldest read that is not finished; false if there is none. Used when the connection is given up.
  [[nodiscard]] bool take_unfinished(request_id& id) noexcept {
    if (count_ == 0) return false;
    id = reads_[first_].id;
    drop_first();
    return true;
  }

 private:
  [[nodiscard]] static bool would_block() noexcept {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  }
  [[nodiscard]] bool header_is_sane() const noexcept {
    if (header_.status == static_cast<std::uint64_t>(completion_status::ok))
      return header_.bytes == reads_[first_].bytes;
    return header_.status == static_cast<std::uint64_t>(completion_status::access_denied) &&
           header_.bytes == 0;
  }
  [[nodiscard]] std::uint64_t body_left() const noexcept { return header_.bytes - body_have_; }

  void drop_first() noexcept {
    outstanding_bytes_ -= reads_[first_].bytes;
    first_ = (first_ + 1) % reads_.size();
    --count_;
  }

  [[nodiscard]] completion finish_first() noexcept {
    const completion done{reads_[first_].id, static_cast<completion_status>(header_.status)};
    drop_first();
    std::memcpy(&header_, next_header_.data(), sizeof header_);
    header_have_ = next_header_have_;
    next_header_have_ = 0;
    body_have_ = 0;
    return done;
  }

  detail::unique_fd socket_;
  std::vector<pending_read> reads_;  ///< ring: count_ entries from first_
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::uint64_t outstanding_bytes_ = 0;
  clock::time_point last_progress_{};

  std::vector<std::byte> requests_;  ///< unsent in [unsent_begin_, unsent_end_)
  std::size_t unsent_begin_ = 0;
  std::size_t unsent_end_ = 0;

  read_answer header_{};
  std::size_t header_have_ = 0;
  std::uint64_t body_have_ = 0;
  std::array<std::byte, sizeof(read_answer)> next_header_{};
  std::size_t next_header_have_ = 0;
};

}  // namespace tensorhub::transports::tcp_detail
