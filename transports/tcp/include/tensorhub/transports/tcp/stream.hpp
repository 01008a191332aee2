#pragma once
/// \file stream.hpp
/// The reader's end of one data connection: sends requests and receives answers directly into their target
/// memory.
///
/// Answers arrive in the order of the requests. The system call that receives the last bytes of one answer
/// also receives the next answer's header, so that a busy stream makes one call per full socket buffer and
/// not two per read.
///
/// Bytes for device memory are received into pieces of a staging ring (staging.hpp) instead. A full piece, or
/// the last piece of a read, is copied to the device while the next one is filled. A read whose bytes have
/// all been received is *landing* until its last copy is done.
///
/// Thread safety: none; a stream belongs to one queue. The channel is explained in plain_channel.hpp.

#include <sys/uio.h>

#include <algorithm>
#include <array>
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
#include "tensorhub/transports/tcp/protocol.hpp"
#include "tensorhub/transports/tcp/staging.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

struct pending_read {
  request_id id = 0;
  std::byte* target = nullptr;
  std::uint64_t bytes = 0;
  device_access* device = nullptr;  ///< set if the CPU cannot access `target`
};

/// The result of one step of receiving: a read has ended, some bytes have arrived, none have, the connection
/// is broken, or a copy to a device has failed.
enum class receive_outcome : std::uint8_t { finished_one, progress, nothing, broken, copy_failed };

template <typename Channel>
class stream {
 public:
  using clock = std::chrono::steady_clock;

  /// Allocates space for `depth` reads. Posting allocates only for the first read into the memory of a device
  /// without `prepare`.
  stream(Channel channel, std::size_t depth, std::shared_ptr<staging_pool> staging)
      : channel_{std::move(channel)},
        reads_(depth),
        requests_(depth * sizeof(read_request)),
        staging_{std::move(staging)} {}

  /// Prepares for reads into this device's memory. Throws `system_failed`.
  void prepare(device_access& device) {
    if (ring_of(&device) != nullptr) return;
    landing_.resize(reads_.size());
    rings_.push_back(staging_->lend(device));
  }
  [[nodiscard]] bool prepared(device_access& device) noexcept {
    try {
      prepare(device);
      return true;
    } catch (...) {
      return false;
    }
  }

  [[nodiscard]] int socket() const noexcept { return channel_.socket(); }
  [[nodiscard]] std::size_t outstanding() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t outstanding_bytes() const noexcept { return outstanding_bytes_; }
  [[nodiscard]] clock::time_point last_progress() const noexcept { return last_progress_; }

  /// `flush` sends it, with what else is posted by then. Precondition: outstanding() < depth, and the stream
  /// is prepared for the read's device.
  void post(const pending_read& read, const read_request& request) noexcept {
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
  }

  /// Sends posted requests, as far as the socket accepts them. False: the connection is broken. The peer's
  /// silence begins with the first one: the caller may have been stopped since it was posted.
  [[nodiscard]] bool flush() noexcept {
    while (unsent_begin_ < unsent_end_) {
      const bool is_first = unsent() == count_;
      const auto sent = channel_.send(requests_.data() + unsent_begin_, unsent_end_ - unsent_begin_);
      if (sent < 0) return would_block();
      if (is_first) last_progress_ = clock::now();
      unsent_begin_ += static_cast<std::size_t>(sent);
    }
    unsent_begin_ = unsent_end_ = 0;
    return true;
  }

  [[nodiscard]] bool has_unsent() const noexcept { return unsent_begin_ < unsent_end_; }
  /// True: `receive` may return bytes that poll(2) does not report, or finish a read without further bytes.
  [[nodiscard]] bool may_have_more() const noexcept {
    return channel_.may_have_more() || (count_ > 0 && header_have_ == sizeof header_ && body_left() == 0);
  }

  /// Tells the channel how much the next poll(2) for input may wait for. Precondition: !may_have_more().
  void set_low_water() noexcept { channel_.expect(header_have_ == sizeof header_ ? body_left() : 0); }

  /// Receives until one read is finished (`done` is then set) or the socket is empty. Precondition:
  /// outstanding() > 0.
  [[nodiscard]] receive_outcome receive(completion& done) noexcept {
    for (bool progress = false;; progress = true) {
      if (header_have_ == sizeof header_) {
        if (!header_is_sane()) return receive_outcome::broken;
        if (body_left() == 0) {
          if (is_staged()) {
            land_first();
            return receive_outcome::progress;
          }
          done = finish_first();
          return receive_outcome::finished_one;
        }
      }
      std::array<iovec, 2> pieces{};
      std::size_t used = 0;
      std::uint64_t body_bytes = 0;
      if (header_have_ == sizeof header_) {
        body_bytes = body_left();
        std::byte* into = reads_[first_].target + body_have_;
        if (is_staged()) {
          if (!open_piece()) return receive_outcome::copy_failed;
          if (piece_ == nullptr) {
            last_progress_ = clock::now();  // the copies are slow, not the peer
            return progress ? receive_outcome::progress : receive_outcome::nothing;
          }
          into = piece_ + piece_have_;
          body_bytes = piece_bytes_ - piece_have_;
        }
        pieces[used++] = {into, body_bytes};
        if (count_ > 1 && body_bytes == body_left()) pieces[used++] = {next_header_.data(), sizeof header_};
      } else {
        pieces[used++] = {reinterpret_cast<std::byte*>(&header_) + header_have_,
                          sizeof header_ - header_have_};
      }
      const auto taken = channel_.receive(std::span{pieces.data(), used});
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
      if (is_staged() && !fill_piece(of_body)) return receive_outcome::copy_failed;
      if (of_body < body_bytes) return receive_outcome::progress;
    }
  }

  // ---- device memory ------------------------------------------------------------------------------------

  [[nodiscard]] std::size_t landing() const noexcept { return landing_count_; }
  /// True: the stream cannot receive until a copy is done.
  [[nodiscard]] bool waits_for_room() const noexcept { return waits_for_room_; }

  /// `finished_one`: the last copy of the oldest landing read is done. Otherwise `nothing` or `copy_failed`.
  [[nodiscard]] receive_outcome take_landed(completion& done) noexcept {
    if (landing_count_ == 0) return receive_outcome::nothing;
    const landing_read& oldest = landing_[landing_first_];
    const lane_state state = oldest.ring->state(oldest.last_copy);
    if (state == lane_state::pending) return receive_outcome::nothing;
    if (state == lane_state::failed) return receive_outcome::copy_failed;
    done = {oldest.id, completion_status::ok};
    drop_landing();
    return receive_outcome::finished_one;
  }

  /// Waits until a copy on which the stream depends is done, or for the timeout. Precondition: there is one.
  void wait_for_copy(duration timeout) noexcept {
    if (landing_count_ > 0) {
      const landing_read& oldest = landing_[landing_first_];
      static_cast<void>(oldest.ring->wait(oldest.last_copy, timeout));
    } else if (waits_for_room_ && !ring_->empty()) {
      static_cast<void>(ring_->wait(ring_->oldest().copy, timeout));
    }
  }

  /// Returns when no copy is in progress. Used when the connection is abandoned: afterwards `take_landed`
  /// returns the result of each landing read, and `take_unfinished` returns the other reads.
  void settle() noexcept {
    for (const auto& each : rings_) static_cast<void>(each->settle());
  }

  /// Takes the oldest unfinished read; false if there is none. Used when the connection is abandoned.
  [[nodiscard]] bool take_unfinished(request_id& id) noexcept {
    if (landing_count_ > 0) {
      id = landing_[landing_first_].id;
      drop_landing();
      return true;
    }
    if (count_ == 0) return false;
    id = reads_[first_].id;
    drop_first();
    return true;
  }

 private:
  [[nodiscard]] static bool would_block() noexcept {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  }
  /// Posted requests that the socket has not accepted to the last byte.
  [[nodiscard]] std::size_t unsent() const noexcept {
    return (unsent_end_ - unsent_begin_ + sizeof(read_request) - 1) / sizeof(read_request);
  }
  /// A source that answers what it was not asked would also make room for more reads than `requests_` has.
  [[nodiscard]] bool header_is_sane() const noexcept {
    if (unsent() >= count_) return false;
    if (header_.status == static_cast<std::uint64_t>(completion_status::ok))
      return header_.bytes == reads_[first_].bytes;
    return header_.status == static_cast<std::uint64_t>(completion_status::access_denied) &&
           header_.bytes == 0;
  }
  [[nodiscard]] std::uint64_t body_left() const noexcept { return header_.bytes - body_have_; }

  struct landing_read {
    request_id id = 0;
    staging_ring* ring = nullptr;
    lane_ticket last_copy = 0;
  };

  [[nodiscard]] staging_ring* ring_of(const device_access* device) const noexcept {
    for (const auto& each : rings_) {
      if (each->device() == device) return each.get();
    }
    return nullptr;
  }
  /// True: the answer being received has bytes for a device.
  [[nodiscard]] bool is_staged() const noexcept {
    return reads_[first_].device != nullptr && header_.bytes > 0;
  }
  /// Reserves a piece to receive into (`piece_`; null: no space yet). False: the lane failed.
  [[nodiscard]] bool open_piece() noexcept {
    if (piece_ != nullptr) return true;
    ring_ = ring_of(reads_[first_].device);
    if (!ring_->drop_copied()) return false;
    piece_bytes_ = std::min(body_left(), staging_ring::piece_bytes);
    piece_ = ring_->reserve(piece_bytes_);
    piece_have_ = 0;
    waits_for_room_ = piece_ == nullptr;
    return true;
  }
  /// Notes that so many bytes were received into the piece, and starts the copy of a full piece. False: the
  /// lane failed.
  [[nodiscard]] bool fill_piece(std::uint64_t bytes) noexcept {
    piece_have_ += bytes;
    if (piece_have_ < piece_bytes_) return true;
    piece_ = nullptr;
    return ring_->store(reads_[first_].target + body_have_ - piece_bytes_, piece_bytes_);
  }
  void land_first() noexcept {
    landing_[(landing_first_ + landing_count_) % landing_.size()] = {reads_[first_].id, ring_,
                                                                     ring_->newest()};
    ++landing_count_;
    static_cast<void>(finish_first());
  }
  void drop_landing() noexcept {
    landing_first_ = (landing_first_ + 1) % landing_.size();
    --landing_count_;
  }

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

  Channel channel_;
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

  std::shared_ptr<staging_pool> staging_;
  std::vector<staging_pool::lent_ring> rings_;  ///< one per device
  std::vector<landing_read> landing_;           ///< ring: landing_count_ entries from landing_first_
  std::size_t landing_first_ = 0;
  std::size_t landing_count_ = 0;
  staging_ring* ring_ = nullptr;  ///< of the answer being received, as the next three
  std::byte* piece_ = nullptr;    ///< null: none is open
  std::uint64_t piece_bytes_ = 0;
  std::uint64_t piece_have_ = 0;
  bool waits_for_room_ = false;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail
