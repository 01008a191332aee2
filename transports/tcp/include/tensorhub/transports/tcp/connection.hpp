#pragma once
/// \file connection.hpp
/// The source's end of one data connection: receives requests and sends answers without ever blocking.
///
/// An answer from a region with a backing file is sent by `sendfile`: the kernel sends the pages themselves,
/// with the content that they have on departure (or, on one machine, when the reader receives them). The
/// region is therefore noted in `by_reference_`, and revoking it closes the connection. Other answers are
/// copied into the socket.
///
/// Answers from device memory go through a staging ring (staging.hpp). Their pieces, and those of the next
/// requests, are copied into the ring ahead of sending, as far as it has space and no bytes of host memory
/// are to be sent before them: answers hold what memory held in the order of the requests. A piece is sent
/// when its copy is done, so that a header never promises bytes that are not available. A failed copy ends
/// the connection.
/// The connection takes a ring with the first such answer and returns it when no request is left; several
/// devices use a connection one after the other.
///
/// Thread safety: none; the loop that owns it locks. The channel is explained in plain_channel.hpp.

#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/peer_read.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/transports/tcp/plain_channel.hpp"
#include "tensorhub/transports/tcp/protocol.hpp"
#include "tensorhub/transports/tcp/region_table.hpp"
#include "tensorhub/transports/tcp/staging.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/reader_gate.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

/// What a connection is waiting for, or that it has ended. `copy`: it waits for a device, not for its socket.
enum class connection_need : std::uint8_t { input, output, more_time, copy, end };

template <typename Channel>
class basic_connection {
 public:
  /// `send_from_file`: regions with a backing file are sent by `sendfile`.
  basic_connection(Channel channel, bool send_from_file, std::shared_ptr<staging_pool> staging,
                   std::chrono::steady_clock::time_point now)
      : channel_{std::move(channel)},
        send_from_file_{send_from_file},
        staging_{std::move(staging)},
        opened_{now} {}

  [[nodiscard]] int socket() const noexcept { return channel_.socket(); }
  [[nodiscard]] incarnation reader() const noexcept { return reader_; }
  /// The incarnation of this process that the reader has asked for.
  [[nodiscard]] incarnation source() const noexcept { return source_; }
  [[nodiscard]] bool greeted() const noexcept { return greeted_; }
  /// The reader waits for nothing.
  [[nodiscard]] bool at_rest() const noexcept { return greeted_ && answer_count_ == 0 && !send_is_pending_; }
  [[nodiscard]] std::chrono::steady_clock::time_point opened() const noexcept { return opened_; }

  /// From now on, nothing is sent by reference.
  void copy_everything() noexcept { send_from_file_ = false; }

  /// True: bytes of this region may still be in flight on this connection, or being copied for it. (The
  /// destructor waits for these copies.)
  [[nodiscard]] bool carries(std::uint64_t region) const noexcept {
    for (std::size_t i = 0; i < answer_count_; ++i) {
      if (answer_at(i).region == region) return true;
    }
    return detail::contains(by_reference_, region);
  }

  /// Performs the channel's handshake and receives the hello; `judge(const hello&, channel_binding) ->
  /// welcome_status` decides whether the reader is accepted.
  template <typename Judge>
  [[nodiscard]] connection_need greet(const detail::reader_gate& gate, Judge&& judge) noexcept {
    switch (channel_.handshake()) {
      case handshake_need::done:
        break;
      case handshake_need::input:
        return connection_need::input;
      case handshake_need::output:
        return connection_need::output;
      case handshake_need::end:
        return connection_need::end;
    }
    const auto taken = channel_.receive(input_.data() + input_end_, sizeof(hello) - input_end_);
    if (taken == 0 || (taken < 0 && !would_block())) return connection_need::end;
    if (taken < 0) return connection_need::input;
    input_end_ += static_cast<std::size_t>(taken);
    hello greeting;
    std::memcpy(&greeting, input_.data(), std::min(input_end_, sizeof greeting));
    if (input_end_ >= sizeof greeting.magic && greeting.magic != hello_magic) return connection_need::end;
    // The hello of another protocol version may be shorter.
    const bool speaks_ours = input_end_ < offsetof(hello, path) || greeting.protocol == data_protocol;
    if (speaks_ours && input_end_ < sizeof greeting) return connection_need::input;
    input_end_ = 0;
    welcome answer;
    answer.source = gate.self_for({greeting.source}).value;
    const auto binding = channel_.binding();
    answer.status = judge(std::as_const(greeting), binding);
    if (answer.status == welcome_status::accepted) answer.proof = gate.proof_to(greeting, binding);
    // The send buffer of a new connection is empty: the socket takes the whole message or nothing.
    const auto sent = channel_.send(&answer, sizeof answer);
    if (sent != static_cast<ssize_t>(sizeof answer) || answer.status != welcome_status::accepted)
      return connection_need::end;
    reader_ = {greeting.reader};
    source_ = {greeting.source};
    greeted_ = true;
    return connection_need::input;
  }

  /// Answers requests until the socket accepts no more bytes, the next answer waits for a copy, no request is
  /// left, or `budget_bytes` are sent.
  [[nodiscard]] connection_need serve(const region_table& regions, std::uint64_t budget_bytes) noexcept {
    std::uint64_t sent_bytes = 0;
    for (;;) {
      while (answer_count_ > 0) {
        if (sent_bytes >= budget_bytes) return connection_need::more_time;
        if (ring_) {
          const connection_need need = look_ahead(regions);
          if (need != connection_need::more_time) return need;
        }
        const std::uint64_t wanted = next_send_bytes();
        const auto sent = send_some();
        send_is_pending_ = sent < static_cast<ssize_t>(wanted);
        if (sent < 0) return would_block() ? connection_need::output : connection_need::end;
        if (sent == 0) return connection_need::end;  // the file is shorter than the region
        sent_bytes += static_cast<std::uint64_t>(sent);
        if (send_is_pending_) return connection_need::output;
      }
      if (has_request()) {
        if (!begin_answer(regions)) return connection_need::end;
        continue;
      }
      const connection_need need = take_requests();
      if (need == connection_need::more_time) continue;
      ring_.reset();  // empty: everything is sent
      return need;
    }
  }

 private:
  /// More bytes per call would leave the caches before the reader receives them.
  static constexpr std::uint64_t largest_send_bytes = 1024 * 1024;

  [[nodiscard]] static bool would_block() noexcept {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  }

  /// `more_time`: at least one whole request has arrived.
  [[nodiscard]] connection_need take_requests() noexcept {
    std::memmove(input_.data(), input_.data() + input_begin_, input_end_ - input_begin_);
    input_end_ -= input_begin_;
    input_begin_ = 0;
    const auto taken = channel_.receive(input_.data() + input_end_, input_.size() - input_end_);
    if (taken == 0 || (taken < 0 && !would_block())) return connection_need::end;
    if (taken < 0) return connection_need::input;
    input_end_ += static_cast<std::size_t>(taken);
    return input_end_ >= sizeof(read_request) ? connection_need::more_time : connection_need::input;
  }

  /// One request and the rest of its answer.
  struct pending_answer {
    std::uint64_t region = 0;
    read_answer header{};
    std::size_t header_sent = 0;
    memory_range part{};                ///< not sent yet
    const std::byte* copied = nullptr;  ///< for device memory: the copies up to here have begun
    std::uint64_t uncopied_bytes = 0;   ///< for device memory: bytes without a copy yet
    bool from_file = false;
    bool from_device = false;
  };
  /// The number of requests for device memory that are processed at once: many small ones wait for their
  /// copies together.
  static constexpr std::size_t most_answers = 16;

  [[nodiscard]] const pending_answer& answer_at(std::size_t i) const noexcept {
    return answers_[(first_answer_ + i) % most_answers];
  }
  [[nodiscard]] pending_answer& answer_at(std::size_t i) noexcept {
    return answers_[(first_answer_ + i) % most_answers];
  }

  [[nodiscard]] bool has_request() const noexcept {
    return input_end_ - input_begin_ >= sizeof(read_request);
  }

  /// Takes the next request. False: there is no ring for it. Precondition: `has_request()`, and a free answer
  /// slot.
  [[nodiscard]] bool begin_answer(const region_table& regions) noexcept {
    read_request request;
    std::memcpy(&request, input_.data() + input_begin_, sizeof request);
    const auto found = regions.find(request);
    pending_answer fresh;
    fresh.region = request.key.region;
    fresh.header = {
        static_cast<std::uint64_t>(found ? completion_status::ok : completion_status::access_denied),
        found ? request.bytes : 0};
    fresh.part = found.value_or(memory_range{});
    if (!fresh.part.host_accessible() && fresh.part.bytes > 0) {
      if (!has_ring_of(*fresh.part.device)) return false;
      fresh.from_device = true;
      fresh.copied = fresh.part.data;
      fresh.uncopied_bytes = fresh.part.bytes;
    }
    fresh.from_file = Channel::sends_files && send_from_file_ && fresh.part.backing_fd >= 0 &&
                      fresh.part.bytes >= smallest_reference_bytes;
    if (fresh.from_file && !detail::contains(by_reference_, fresh.region)) {
      try {
        by_reference_.push_back(fresh.region);
      } catch (...) {  // no memory for the note: copy instead, which needs none
        fresh.from_file = false;
      }
    }
    input_begin_ += sizeof request;
    answer_at(answer_count_) = fresh;
    ++answer_count_;
    return true;
  }

  /// Replaces a ring of another device when that ring is empty.
  [[nodiscard]] bool has_ring_of(device_access& device) noexcept {
    if (ring_ && ring_->device() == &device) return true;
    if (answer_count_ > 0 && ring_) return false;
    try {
      ring_ = staging_->lend(device);
      return true;
    } catch (...) {  // no pinned memory
      return false;
    }
  }

  /// Starts the copies of the current answer and of the next ones. `more_time`: the current answer can
  /// continue.
  [[nodiscard]] connection_need look_ahead(const region_table& regions) noexcept {
    for (;;) {
      if (!start_copies()) return connection_need::end;
      if (answer_at(answer_count_ - 1).uncopied_bytes > 0 || answer_count_ == most_answers) break;
      if (!has_request()) {
        if (send_is_pending_) break;  // TLS must finish that first
        const connection_need need = take_requests();
        if (need == connection_need::end) return need;
        if (need != connection_need::more_time) break;
      }
      if (!begin_answer(regions)) break;  // for another device: later
    }
    if (!answer_at(0).from_device) return connection_need::more_time;
    switch (ring_->state(ring_->oldest().copy)) {
      case lane_state::done:
        return connection_need::more_time;
      case lane_state::pending:
        return connection_need::copy;
      case lane_state::failed:
        break;
    }
    return connection_need::end;
  }

  /// Starts as many copies as the ring has space for, in the order of the answers, up to one that sends host
  /// memory. False: the lane failed.
  [[nodiscard]] bool start_copies() noexcept {
    for (std::size_t i = 0; i < answer_count_; ++i) {
      pending_answer& each = answer_at(i);
      if (!each.from_device && each.part.bytes > 0) return true;
      while (each.uncopied_bytes > 0) {
        const std::uint64_t bytes = std::min(each.uncopied_bytes, staging_ring::piece_bytes);
        if (ring_->reserve(bytes) == nullptr) return true;
        if (!ring_->load(each.copied, bytes)) return false;
        each.copied += bytes;
        each.uncopied_bytes -= bytes;
      }
    }
    return true;
  }

  /// The bytes that can be sent now, after the header.
  [[nodiscard]] iovec next_bytes(const pending_answer& now) const noexcept {
    if (!now.from_device) return {now.part.data, std::min(now.part.bytes, largest_send_bytes)};
    const staging_ring::piece& oldest = ring_->oldest();
    return {oldest.data + piece_sent_, oldest.bytes - piece_sent_};
  }

  /// The bytes that the next `send_some` passes to the socket.
  [[nodiscard]] std::uint64_t next_send_bytes() const noexcept {
    const pending_answer& now = answer_at(0);
    const std::uint64_t header_bytes = sizeof now.header - now.header_sent;
    if (now.from_file && header_bytes > 0) return header_bytes;
    return header_bytes + next_bytes(now).iov_len;
  }

  /// Returns the bytes sent, or -1 with errno.
  [[nodiscard]] ssize_t send_some() noexcept {
    pending_answer& now = answer_at(0);
    ssize_t sent = 0;
    // A header that was requested behind a chunk is read behind it, also by CPUs that reorder loads.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (now.header_sent == sizeof now.header && now.from_file) {
      auto offset = static_cast<off_t>(now.part.backing_offset);
      sent = ::sendfile(socket(), now.part.backing_fd, &offset, std::min(now.part.bytes, largest_send_bytes));
      if (sent < 0 && !would_block() && errno != EPIPE && errno != ECONNRESET) {
        now.from_file = send_from_file_ = false;  // no file system has to know sendfile: hugetlbfs does not
        return send_some();
      }
      if (sent > 0) consume(now, static_cast<std::uint64_t>(sent));
    } else {
      auto* const header = reinterpret_cast<std::byte*>(&now.header) + now.header_sent;
      const std::size_t header_bytes = sizeof now.header - now.header_sent;
      std::array<iovec, 2> pieces{iovec{header, header_bytes}, next_bytes(now)};
      const std::size_t used = now.from_file ? 1 : pieces.size();
      const detail::peer_read reading;
      sent = channel_.send(std::span{pieces.data(), used}, now.from_file ? MSG_MORE : 0);
      if (sent > 0) {
        const std::size_t of_header = std::min(static_cast<std::size_t>(sent), header_bytes);
        now.header_sent += of_header;
        consume(now, static_cast<std::uint64_t>(sent) - of_header);
      }
    }
    if (now.header_sent == sizeof now.header && now.part.bytes == 0) {
      first_answer_ = (first_answer_ + 1) % most_answers;
      --answer_count_;
    }
    return sent;
  }

  void consume(pending_answer& now, std::uint64_t bytes) noexcept {
    now.part.data += bytes;
    now.part.backing_offset += bytes;
    now.part.bytes -= bytes;
    if (!now.from_device) return;
    piece_sent_ += bytes;
    if (piece_sent_ < ring_->oldest().bytes) return;
    ring_->drop_oldest();
    piece_sent_ = 0;
  }

  Channel channel_;
  bool send_from_file_;
  std::shared_ptr<staging_pool> staging_;
  std::chrono::steady_clock::time_point opened_;
  incarnation reader_{};
  incarnation source_{};
  bool greeted_ = false;

  std::array<std::byte, 64 * sizeof(read_request)> input_{};
  std::size_t input_begin_ = 0;
  std::size_t input_end_ = 0;

  std::array<pending_answer, most_answers> answers_{};  ///< ring: answer_count_ entries from first_answer_
  std::size_t first_answer_ = 0;
  std::size_t answer_count_ = 0;
  bool send_is_pending_ = false;  ///< the socket did not take all of the last one
  std::vector<std::uint64_t> by_reference_;

  staging_pool::lent_ring ring_;  ///< while there are answers from device memory
  std::uint64_t piece_sent_ = 0;  ///< of the oldest piece
};

using connection = basic_connection<plain_channel>;

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail
