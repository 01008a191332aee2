#pragma once
/// \file gated.hpp
/// A transport whose reads stop at a gate: a test can hold a transfer in the middle for any time.
///
///     auto gate = std::make_shared<testing::read_gate>(8_MiB);
///     hub<testing::gated<transports::tcp>>::subscriber reader{{...}, {.gate = gate}};
///     auto running = reader.update_async();
///    gate->wait_until_shut(10s);      // reads of 8 MiB were posted, and another one was turned away
///     ...                              // whatever a test does in the middle of a transfer
///     gate->open();
///
/// `gated<T>` uses the protocol and the name of the inner transport, so peers may use that transport itself.

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/wrapped_transport.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// Admits reads of `allowance_bytes`, then none until it is opened; reads of up to `free_bytes` (of headers,
/// perhaps) always. Any thread may use it.
class read_gate {
 public:
  explicit read_gate(std::uint64_t allowance_bytes, std::uint64_t free_bytes = 0)
      : left_bytes_{allowance_bytes}, free_bytes_{free_bytes} {}

  /// Returns false if the read must wait.
  [[nodiscard]] bool pass(std::uint64_t bytes) noexcept {
    const std::lock_guard lock{mutex_};
    if (open_ || bytes <= free_bytes_) return true;
    if (bytes > left_bytes_) {
      left_bytes_ = 0;
      shut_ = true;
      changed_.notify_all();
      return false;
    }
    left_bytes_ -= bytes;
    return true;
  }
  void open() noexcept {
    const std::lock_guard lock{mutex_};
    open_ = true;
  }
  /// Returns true if a read was turned away.
  [[nodiscard]] bool wait_until_shut(duration timeout) {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, timeout, [this] { return shut_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t left_bytes_;
  std::uint64_t free_bytes_;
  bool shut_ = false;
  bool open_ = false;
};

template <transport Inner>
class gated : public wrapped_transport<Inner> {
 public:
  struct options {
    typename Inner::options inner{};
    std::shared_ptr<read_gate> gate{};  ///< null: always open
  };
  using typename wrapped_transport<Inner>::memory_region;
  using endpoint = typename Inner::endpoint;

  class queue {
   public:
    [[nodiscard]] post_result post_read(endpoint& connection, const memory_region& into, std::uint64_t offset,
                                        const remote_slice& from, request_id id) noexcept {
      if (gate_ && !gate_->pass(from.bytes)) return post_result::queue_full;
      return inner_.post_read(connection, into, offset, from, id);
    }
    [[nodiscard]] std::size_t poll(std::span<completion> completions) noexcept {
      return inner_.poll(completions);
    }
    void wait(duration timeout) noexcept { inner_.wait(timeout); }
    void wake() noexcept { inner_.wake(); }
    [[nodiscard]] std::size_t outstanding() const noexcept { return inner_.outstanding(); }

   private:
    friend class gated;
    queue(typename Inner::queue inner, std::shared_ptr<read_gate> gate)
        : inner_{std::move(inner)}, gate_{std::move(gate)} {}
    typename Inner::queue inner_;
    std::shared_ptr<read_gate> gate_;
  };

  explicit gated(options chosen = {}, incarnation self = {})
      : wrapped_transport<Inner>{std::move(chosen.inner), self}, gate_{std::move(chosen.gate)} {}

  [[nodiscard]] queue make_queue(std::size_t depth) { return {this->inner().make_queue(depth), gate_}; }
  [[nodiscard]] endpoint connect(queue& on, const transport_address& where, incarnation peer,
                                 duration timeout, incarnation self = {}) {
    return connect_as(self, this->inner(), on.inner_, where, peer, timeout);
  }

 private:
  std::shared_ptr<read_gate> gate_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
