#pragma once
/// \file queue.hpp
/// The reading side of the TCP transport: queues, and the endpoints on them.
///
/// All work is done by the thread that polls: it takes bytes out of the sockets straight into the targets. A
/// queue sleeps in one epoll set over its endpoints' streams.
///
/// Thread safety: a queue and its endpoints belong to one thread at a time; only `wake` is for any thread.

#include <sys/epoll.h>
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
        epoll_{::epoll_create1(EPOLL_CLOEXEC)},
        event_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)},
        finished_(depth_) {
    if (!epoll_ || !event_)
      throw error(errc::system_failed, std::string{"tcp: no epoll: "} + std::strerror(errno));
    watch(event_.get(), EPOLLIN, nullptr);
  }
  queue_core(const queue_core&) = delete;
  queue_core& operator=(const queue_core&) = delete;

  [[nodiscard]] std::size_t depth() const noexcept { return depth_; }
  [[nodiscard]] std::size_t outstanding() const noexcept { return outstanding_; }

  void attach(endpoint_core& endpoint) { endpoints_.push_back(&endpoint); }
  void add_stream(endpoint_core& endpoint, detail::unique_fd socket) {
    endpoint.streams_.push_back(std::make_unique<stream>(std::move(socket), depth_));
    stream& added = *endpoint.streams_.back();
    watch(added.socket(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &added);
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
    if (finished_count_ == 0 && !receive_from_readable()) {
      take_events(0);
      if (!receive_from_readable()) check_silence();
    }
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
    if (finished_count_ > 0 || std::exchange(woken_, false)) return;
    for (const endpoint_core* endpoint : endpoints_) {
      for (const auto& each : endpoint->streams_) {
        if (each->readable && each->outstanding() > 0) return;
      }
    }
    const duration longest = std::min(timeout, until_silence());
    take_events(
        static_cast<int>(std::clamp<std::int64_t>((longest.count() + 999'999) / 1'000'000, 0, 1'000'000)));
    woken_ = false;
  }

  void wake() noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
  }

 private:
  void watch(int descriptor, std::uint32_t events, stream* which) const noexcept {
    epoll_event wanted{};
    wanted.events = events;
    wanted.data.ptr = which;
    static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &wanted));
  }

  void take_events(int timeout_ms) noexcept {
    std::array<epoll_event, 16> events{};
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      if (event.data.ptr == nullptr) {
        std::uint64_t signals = 0;
        [[maybe_unused]] const auto taken = ::read(event_.get(), &signals, sizeof signals);
        woken_ = true;
        continue;
      }
      auto& each = *static_cast<stream*>(event.data.ptr);
      if ((event.events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) each.readable = true;
      if ((event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) each.closing = true;
      // A failure to send shows as one to receive.
      if ((event.events & EPOLLOUT) != 0 && !each.flush()) each.readable = true;
    }
  }

  /// Takes at most one read off each stream, so that its bytes are still in the cache when the caller looks
  /// at them. True: something finished.
  [[nodiscard]] bool receive_from_readable() noexcept {
    bool finished = false;
    for (endpoint_core* endpoint : endpoints_) {
      for (const auto& each : endpoint->streams_) {
        if (!each->readable || each->outstanding() == 0) continue;
        completion done;
        const receive_outcome outcome = each->receive(done);
        if (outcome == receive_outcome::drained) each->readable = false;
        if (outcome == receive_outcome::finished_one) finish(done);
        if (outcome != receive_outcome::drained) finished = true;
        if (outcome == receive_outcome::broken) {
          give_up(*endpoint, completion_status::peer_lost);
          break;
        }
      }
    }
    return finished;
  }

  void check_silence() noexcept {
    const auto now = stream::clock::now();
    for (endpoint_core* endpoint : endpoints_) {
      const bool silent = std::ranges::any_of(endpoint->streams_, [&](const auto& each) {
        return each->outstanding() > 0 && now - each->last_progress() > peer_timeout_;
      });
      if (silent) give_up(*endpoint, completion_status::peer_lost);
    }
  }

  [[nodiscard]] duration until_silence() const noexcept {
    duration nearest = std::chrono::hours{1};
    const auto now = stream::clock::now();
    for (const endpoint_core* endpoint : endpoints_) {
      for (const auto& each : endpoint->streams_) {
        if (each->outstanding() == 0) continue;
        const duration left = each->last_progress() + peer_timeout_ - now + std::chrono::milliseconds{1};
        nearest = std::clamp(left, duration::zero(), nearest);
      }
    }
    return nearest;
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
  detail::unique_fd epoll_;
  detail::unique_fd event_;
  std::vector<completion> finished_;
  std::size_t finished_first_ = 0;
  std::size_t finished_count_ = 0;
  std::size_t outstanding_ = 0;
  bool woken_ = false;
  std::vector<endpoint_core*> endpoints_;
};

inline endpoint_core::~endpoint_core() {
  owner_->detach(*this);
}

}  // namespace tensorhub::transports::tcp_detail
