#pragma once
/// \file fragile_transport.hpp
/// The memory transport, with connections that may end while nobody reads through them, and whose closing a
/// test can watch. A connection that has ended stays so; a new one to the same process works.
///
/// Thread safety: as concept `transport` requires; the hooks are set before they are needed.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "tensorhub/testing/memory_transport.hpp"
#include "tensorhub/testing/wrapped_transport.hpp"

namespace pull_test {

using namespace tensorhub;
using testing::memory_transport;

class fragile_transport : public testing::wrapped_transport<memory_transport> {
 public:
  using options = memory_transport::options;

  class endpoint {
   public:
    endpoint(endpoint&&) noexcept = default;
    endpoint& operator=(endpoint&& other) noexcept {
      if (this == &other) return *this;
      say_closed();
      inner_ = std::move(other.inner_);
      is_ended_ = std::move(other.is_ended_);
      through_ = other.through_;
      return *this;
    }
    ~endpoint() { say_closed(); }
    [[nodiscard]] incarnation peer() const noexcept { return inner_.peer(); }
    [[nodiscard]] bool usable() const noexcept { return !*is_ended_ && inner_.usable(); }
    [[nodiscard]] std::uint64_t ordered_read_bytes() const noexcept { return inner_.ordered_read_bytes(); }

   private:
    friend class fragile_transport;
    endpoint(memory_transport::endpoint inner, std::shared_ptr<std::atomic<bool>> is_ended,
             fragile_transport& through)
        : inner_{std::move(inner)}, is_ended_{std::move(is_ended)}, through_{&through} {}
    void say_closed() const noexcept {
      if (is_ended_ && through_->on_close) through_->on_close(peer());
    }
    memory_transport::endpoint inner_;
    std::shared_ptr<std::atomic<bool>> is_ended_;
    fragile_transport* through_;
  };

  class queue {
   public:
    [[nodiscard]] post_result post_read(endpoint& connection, const memory_region& into, std::uint64_t offset,
                                        const remote_slice& from, request_id id) noexcept {
      if (!*connection.is_ended_ && from.bytes == connection.through_->fatal_bytes) {
        fatal_.emplace_back(id, connection.is_ended_);
        return post_result::posted;
      }
      if (!*connection.is_ended_) return inner_.post_read(connection.inner_, into, offset, from, id);
      ended_.push_back({id, completion_status::peer_lost});
      return post_result::posted;
    }
    [[nodiscard]] std::size_t poll(std::span<completion> completions) noexcept {
      if (ended_.empty() || completions.empty()) {
        const std::size_t count = inner_.poll(completions);
        if (count > 0) end_with_fatal_reads();
        return count;
      }
      completions[0] = ended_.back();
      ended_.pop_back();
      return 1;
    }
    void wait(duration timeout) noexcept {
      if (ended_.empty()) inner_.wait(timeout);
    }
    void wake() noexcept {
      ++*wakes_;
      inner_.wake();
    }
    [[nodiscard]] std::size_t outstanding() const noexcept {
      return inner_.outstanding() + ended_.size() + fatal_.size();
    }

   private:
    friend class fragile_transport;
    queue(memory_transport::queue inner, std::atomic<std::size_t>& wakes)
        : inner_{std::move(inner)}, wakes_{&wakes} {}
    void end_with_fatal_reads() {
      for (const auto& [id, is_ended] : fatal_) {
        *is_ended = true;
        ended_.push_back({id, completion_status::peer_lost});
      }
      fatal_.clear();
    }
    memory_transport::queue inner_;
    std::atomic<std::size_t>* wakes_;
    std::vector<completion> ended_;
    std::vector<std::pair<request_id, std::shared_ptr<std::atomic<bool>>>> fatal_;  ///< and their connections
  };

  explicit fragile_transport(options chosen = {}, incarnation self = {}) : wrapped_transport{chosen, self} {}

  [[nodiscard]] queue make_queue(std::size_t depth) { return {inner().make_queue(depth), wakes_}; }
  [[nodiscard]] endpoint connect(queue& on, const transport_address& where, incarnation peer,
                                 duration timeout, incarnation self = {}) {
    if (on_connect) on_connect(peer, timeout);
    auto is_ended = std::make_shared<std::atomic<bool>>(peer == always_ends.load());
    {
      const std::lock_guard lock{mutex_};
      connections_.push_back({peer, is_ended});
    }
    return {connect_as(self, inner(), on.inner_, where, peer, timeout), std::move(is_ended), *this};
  }

  /// All connections to this process end.
  void end(incarnation peer) {
    const std::lock_guard lock{mutex_};
    for (const auto& [to, is_ended] : connections_)
      if (to == peer) *is_ended = true;
  }

  /// Of all queues together.
  [[nodiscard]] std::size_t wakes() const noexcept { return wakes_; }

  std::function<void(incarnation, duration)> on_connect{};
  std::function<void(incarnation)> on_close{};
  std::atomic<incarnation> always_ends{};  ///< new connections to this process have ended, too
  /// A read of so many bytes ends its connection, but not before another read has ended well.
  std::atomic<std::uint64_t> fatal_bytes = 0;

 private:
  std::atomic<std::size_t> wakes_ = 0;
  std::mutex mutex_;
  std::vector<std::pair<incarnation, std::shared_ptr<std::atomic<bool>>>> connections_;
};

}  // namespace pull_test
