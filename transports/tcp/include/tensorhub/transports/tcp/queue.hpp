#pragma once
/// \file queue.hpp
/// The reading side of the TCP transport: queues, and the endpoints on them.
///
/// All work is done by the thread that polls: it takes bytes out of the sockets straight into the targets. A
/// queue sleeps in poll(2) over its streams. It has few of them, and poll costs nothing while it does not
/// sleep; an epoll set would be told of every segment that arrives.
///
/// Thread safety: a queue and its endpoints belong to one thread at a time; only `wake` is for any thread.

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/tcp/stream.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::transports::tcp_detail {

class queue_core;

/// Streams to one source. Owned by an endpoint, listed by its queue.
class endpoint_core {
 public:
  endpoint_core(queue_core& owner, incarnation peer) : owner_{&owner}, peer_{peer} {}
  ~endpoint_core();
  endpoint_core(const endpoint_core&) = delete;
  endpoint_core& operator=(const endpoint_core&) = delete;

  [[nodiscard]] incarnation peer() const noexcept { return peer_; }
  [[nodiscard]] bool usable() const noexcept { return usable_; }

 private:
  friend class queue_core;
  queue_core* owner_;
  incarnation peer_;
  bool usable_ = true;
  std::vector<std::unique_ptr<stream>> streams_;
};

class queue_core {
 public:
  queue_core(std::size_t depth, duration peer_timeout)
      : depth_{std::max<std::size_t>(1, depth)},
        peer_timeout_{peer_timeout},
        event_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)},
        finished_(depth_) {
    if (!event_) throw error(errc::system_failed, std::string{"tcp: no eventfd: "} + std::strerror(errno));
    reserve_waits(0);
  }
  queue_core(const queue_core&) = delete;
  queue_core& operator=(const queue_core&) = delete;

  [[nodiscard]] std::size_t depth() const noexcept { return depth_; }
  [[nodiscard]] std::size_t outstanding() const noexcept { return outstanding_; }

  void attach(endpoint_core& endpoint) { endpoints_.push_back(&endpoint); }
  void add_stream(endpoint_core& endpoint, detail::unique_fd socket) {
    std::size_t streams = 1;
    for (const endpoint_core* each : endpoints_) streams += each->streams_.size();
    reserve_waits(streams);
    endpoint.streams_.push_back(std::make_unique<stream>(std::move(socket), depth_));
  }
  void detach(endpoint_core& endpoint) noexcept {
    give_up(endpoint, completion_status::cancelled);
    std::erase(endpoints_, &endpoint);
  }

  [[nodiscard]] post_result post(endpoint_core& endpoint, const pending_read& read,
                                 const read_request& request) noexcept {
    if (outstanding_ == depth_) return post_result::queue_full;
    ++outstanding_;
    if (!endpoint.usable_) {
      finish({read.id, completion_status::peer_lost});
      return post_result::posted;
    }
    stream& least_busy = **std::ranges::min_element(
        endpoint.streams_, {}, [](const auto& each) { return each->outstanding_bytes(); });
    if (!least_busy.post(read, request)) give_up(endpoint, completion_status::peer_lost);
    return post_result::posted;
  }

  /// A read that ends before it was sent.
  [[nodiscard]] post_result post_finished(request_id id, completion_status status) noexcept {
    if (outstanding_ == depth_) return post_result::queue_full;
    ++outstanding_;
    finish({id, status});
    return post_result::posted;
  }

  [[nodiscard]] std::size_t poll(std::span<completion> completions) noexcept {
    if (completions.empty()) return 0;
    if (finished_count_ == 0) receive();
    std::size_t count = 0;
    while (count < completions.size() && finished_count_ > 0) {
      completions[count++] = finished_[finished_first_];
      finished_first_ = (finished_first_ + 1) % finished_.size();
      --finished_count_;
      --outstanding_;
    }
    return count;
  }

  void wait(duration timeout) noexcept {
    if (finished_count_ > 0) return;
    waits_.clear();
    waits_.push_back({event_.get(), POLLIN, 0});
    duration longest = std::min<duration>(timeout, std::chrono::hours{1});
    const auto now = stream::clock::now();
    for (const endpoint_core* endpoint : endpoints_) {
      for (const auto& each : endpoint->streams_) {
        if (each->outstanding() == 0) continue;
        const short unsent = each->has_unsent() ? POLLOUT : 0;
        waits_.push_back({each->socket(), static_cast<short>(POLLIN | unsent), 0});
        longest = std::min<duration>(longest, each->last_progress() + peer_timeout_ - now);
      }
    }
    const timespec limit = to_timespec(std::max(longest, duration::zero()));
    static_cast<void>(::ppoll(waits_.data(), waits_.size(), &limit, nullptr));
    if ((waits_.front().revents & POLLIN) != 0) {
      std::uint64_t signals = 0;
      [[maybe_unused]] const auto taken = ::read(event_.get(), &signals, sizeof signals);
    }
  }

  void wake() noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
  }

 private:
  /// `wait` must not allocate.
  void reserve_waits(std::size_t streams) { waits_.reserve(streams + 1); }

  [[nodiscard]] static timespec to_timespec(duration time) noexcept {
    return {static_cast<time_t>(time.count() / 1'000'000'000),
            static_cast<long>(time.count() % 1'000'000'000)};
  }

  /// Takes at most one read off each stream, so that its bytes are still in the cache when the caller looks
  /// at them. Gives up what is broken or has been silent for too long.
  void receive() noexcept {
    for (endpoint_core* endpoint : endpoints_) {
      for (const auto& each : endpoint->streams_) {
        if (each->outstanding() == 0) continue;
        completion done;
        receive_outcome outcome = each->flush() ? each->receive(done) : receive_outcome::broken;
        if (outcome == receive_outcome::finished_one) finish(done);
        if (outcome == receive_outcome::nothing &&
            stream::clock::now() - each->last_progress() > peer_timeout_)
          outcome = receive_outcome::broken;
        if (outcome == receive_outcome::broken) {
          give_up(*endpoint, completion_status::peer_lost);
          break;
        }
      }
    }
  }

  /// Ends all of its reads and closes its connections.
  void give_up(endpoint_core& endpoint, completion_status why) noexcept {
    endpoint.usable_ = false;
    for (const auto& each : endpoint.streams_) {
      request_id id = 0;
      while (each->take_unfinished(id)) finish({id, why});
    }
    endpoint.streams_.clear();
  }

  /// The ring has room: it is as large as the number of reads that can be outstanding.
  void finish(completion done) noexcept {
    finished_[(finished_first_ + finished_count_) % finished_.size()] = done;
    ++finished_count_;
  }

  std::size_t depth_;
  duration peer_timeout_;
  detail::unique_fd event_;
  std::vector<completion> finished_;
  std::size_t finished_first_ = 0;
  std::size_t finished_count_ = 0;
  std::size_t outstanding_ = 0;
  std::vector<endpoint_core*> endpoints_;
  std::vector<pollfd> waits_;
};

inline endpoint_core::~endpoint_core() {
  owner_->detach(*this);
}

}  // namespace tensorhub::transports::tcp_detail
