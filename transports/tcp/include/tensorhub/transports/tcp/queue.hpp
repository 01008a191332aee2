#pragma once
/// \file queue.hpp
/// The reading side of the TCP transport: queues, and the endpoints on them.
///
/// The thread that polls does all the work: it sends what was posted since the last poll, in one message per
/// stream, receives bytes from the sockets directly into the targets, or starts their copies to a device
/// (stream.hpp). A queue sleeps in poll(2) over its streams, and wakes often
/// while a copy is in progress, because poll does not report copies. A queue has few streams, and poll costs
/// nothing while the thread is busy; an epoll set would be updated for every segment that arrives.
///
/// Thread safety: a queue and its endpoints belong to one thread at a time; only `wake` is for any thread.

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/wake_event.hpp"
#include "tensorhub/transports/tcp/stream.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/read_ledger.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

template <typename Channel>
class queue_core;

/// Streams to one source. Owned by an endpoint, listed by its queue.
template <typename Channel>
class endpoint_core {
 public:
  endpoint_core(queue_core<Channel>& owner, incarnation peer, std::uint64_t ordered_read_bytes)
      : owner_{&owner}, peer_{peer}, ordered_read_bytes_{ordered_read_bytes} {}
  ~endpoint_core();
  endpoint_core(const endpoint_core&) = delete;
  endpoint_core& operator=(const endpoint_core&) = delete;

  [[nodiscard]] incarnation peer() const noexcept { return peer_; }
  [[nodiscard]] bool usable() const noexcept { return usable_; }
  [[nodiscard]] std::uint64_t ordered_read_bytes() const noexcept { return ordered_read_bytes_; }
  [[nodiscard]] duration round_trip() const noexcept {
    return streams_.empty() ? duration{} : round_trip_of(streams_.front()->socket());
  }

 private:
  friend class queue_core<Channel>;
  queue_core<Channel>* owner_;
  incarnation peer_;
  std::uint64_t ordered_read_bytes_;
  bool usable_ = true;
  std::vector<std::unique_ptr<stream<Channel>>> streams_;
};

template <typename Channel>
class queue_core {
 public:
  using endpoint_core = tcp_detail::endpoint_core<Channel>;
  using stream = tcp_detail::stream<Channel>;

  queue_core(std::size_t depth, duration peer_timeout, std::shared_ptr<staging_pool> staging)
      : ledger_{depth}, peer_timeout_{peer_timeout}, staging_{std::move(staging)}, wake_{Channel::name} {
    reserve_waits(0);
  }
  queue_core(const queue_core&) = delete;
  queue_core& operator=(const queue_core&) = delete;

  [[nodiscard]] std::size_t depth() const noexcept { return ledger_.depth(); }
  [[nodiscard]] std::size_t outstanding() const noexcept { return ledger_.outstanding(); }

  void attach(endpoint_core& endpoint) { endpoints_.push_back(&endpoint); }
  /// `devices`: the devices into whose memory reads are expected. Throws `system_failed`.
  void add_stream(endpoint_core& endpoint, Channel channel, std::span<device_access* const> devices) {
    std::size_t streams = 1;
    for (const endpoint_core* each : endpoints_) streams += each->streams_.size();
    reserve_waits(streams);
    auto added = std::make_unique<stream>(std::move(channel), ledger_.depth(), staging_);
    for (device_access* each : devices) added->prepare(*each);
    endpoint.streams_.push_back(std::move(added));
  }
  void detach(endpoint_core& endpoint) noexcept {
    abandon(endpoint, completion_status::cancelled);
    std::erase(endpoints_, &endpoint);
  }

  [[nodiscard]] post_result post(endpoint_core& endpoint, const pending_read& read,
                                 const read_request& request) noexcept {
    if (ledger_.full()) return post_result::queue_full;
    ledger_.begin();
    if (!endpoint.usable_) {
      ledger_.end({read.id, completion_status::peer_lost});
      return post_result::posted;
    }
    stream& least_busy = **std::min_element(
        endpoint.streams_.begin(), endpoint.streams_.end(),
        [](const auto& a, const auto& b) { return a->outstanding_bytes() < b->outstanding_bytes(); });
    if (read.device != nullptr && !least_busy.prepared(*read.device)) {
      ledger_.end({read.id, completion_status::local_error});
      return post_result::posted;
    }
    least_busy.post(read, request);
    return post_result::posted;
  }

  /// A read that ends before it was sent.
  [[nodiscard]] post_result post_finished(request_id id, completion_status status) noexcept {
    return ledger_.begin_and_end({id, status});
  }

  [[nodiscard]] std::size_t poll(std::span<completion> completions) noexcept {
    if (completions.empty() || ledger_.any_ended())
      send_posted();
    else
      receive();
    return ledger_.take(completions);
  }

  void wait(duration timeout) noexcept {
    if (ledger_.any_ended()) return;
    waits_.clear();
    waits_.push_back({wake_.descriptor(), POLLIN, 0});
    duration longest = std::min<duration>(timeout, std::chrono::hours{1});
    stream* copying = nullptr;
    const auto now = stream::clock::now();
    for (const endpoint_core* endpoint : endpoints_) {
      for (const auto& each : endpoint->streams_) {
        if (each->landing() > 0) copying = each.get();
        if (each->outstanding() == 0) continue;
        if (each->waits_for_room()) {
          copying = each.get();
          if (!each->has_unsent()) continue;
          waits_.push_back({each->socket(), POLLOUT, 0});
          continue;
        }
        if (each->may_have_more()) return;
        each->set_low_water();
        const short unsent = each->has_unsent() ? POLLOUT : 0;
        waits_.push_back({each->socket(), static_cast<short>(POLLIN | unsent), 0});
        longest = std::min<duration>(longest, each->last_progress() + peer_timeout_ - now);
      }
    }
    if (copying != nullptr && waits_.size() == 1) {
      copying->wait_for_copy(std::clamp<duration>(longest, duration::zero(), longest_copy_wait));
      longest = duration::zero();
    } else if (copying != nullptr) {
      longest = std::min<duration>(longest, copy_poll_interval);
    }
    detail::wait_for_descriptors(waits_, longest);
    if ((waits_.front().revents & POLLIN) != 0) wake_.lower();
  }

  void wake() noexcept { wake_.raise(); }

 private:
  /// How long a `wake` may go unnoticed while the queue waits for a copy alone.
  static constexpr std::chrono::microseconds longest_copy_wait{200};
  /// How often the queue checks copies while it also waits for bytes.
  static constexpr std::chrono::microseconds copy_poll_interval{20};

  /// `wait` must not allocate.
  void reserve_waits(std::size_t streams) { waits_.reserve(streams + 1); }

  /// A stream that is broken stays as it is: `receive` finds out.
  void send_posted() noexcept {
    for (const endpoint_core* endpoint : endpoints_)
      for (const auto& each : endpoint->streams_) static_cast<void>(each->flush());
  }

  /// Finishes at most one read per stream, so that its bytes are still in the cache when the caller uses
  /// them. Abandons endpoints that are broken or have been silent for too long.
  void receive() noexcept {
    for (endpoint_core* endpoint : endpoints_) {
      for (const auto& each : endpoint->streams_) {
        completion done;
        if (each->landing() > 0 && !finish_landed(*each)) {
          abandon(*endpoint, completion_status::local_error);
          break;
        }
        if (each->outstanding() == 0) continue;
        receive_outcome outcome = each->flush() ? each->receive(done) : receive_outcome::broken;
        if (outcome == receive_outcome::finished_one) ledger_.end(done);
        if (outcome == receive_outcome::nothing &&
            stream::clock::now() - each->last_progress() > peer_timeout_)
          outcome = receive_outcome::broken;
        if (outcome == receive_outcome::broken || outcome == receive_outcome::copy_failed) {
          abandon(*endpoint, outcome == receive_outcome::broken ? completion_status::peer_lost
                                                                : completion_status::local_error);
          break;
        }
      }
    }
  }

  /// Ends the reads whose last copy is done. False: a copy failed.
  [[nodiscard]] bool finish_landed(stream& from) noexcept {
    for (;;) {
      completion done;
      const receive_outcome outcome = from.take_landed(done);
      if (outcome == receive_outcome::copy_failed) return false;
      if (outcome != receive_outcome::finished_one) return true;
      ledger_.end(done);
    }
  }

  /// Ends all of the endpoint's reads and closes its connections. Nothing is written to their targets
  /// afterwards: the function waits for copies that have begun.
  void abandon(endpoint_core& endpoint, completion_status why) noexcept {
    endpoint.usable_ = false;
    for (const auto& each : endpoint.streams_) {
      each->settle();
      if (!finish_landed(*each)) why = completion_status::local_error;
    }
    for (const auto& each : endpoint.streams_) {
      request_id id = 0;
      while (each->take_unfinished(id)) ledger_.end({id, why});
    }
    endpoint.streams_.clear();
  }

  read_ledger ledger_;
  duration peer_timeout_;
  std::shared_ptr<staging_pool> staging_;
  detail::wake_event wake_;
  std::vector<endpoint_core*> endpoints_;
  std::vector<pollfd> waits_;
};

template <typename Channel>
endpoint_core<Channel>::~endpoint_core() {
  owner_->detach(*this);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail
