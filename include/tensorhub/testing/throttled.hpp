#pragma once
/// \file throttled.hpp
/// `throttled<T>`: a transport behind links of a given rate and latency.
///
///     auto nic = std::make_shared<testing::network_link>(
///         testing::network_link_options{.bytes_per_second = 100e6});
///     hub<testing::throttled<transports::tcp>>::subscriber reader{{...}, {.receiving = nic}};
///
/// A read queues on the reader's link (`receiving`) and, if source and reader are objects of one process, on
/// the source's link (`sending`), behind all reads that queued before. It completes when the slower of the
/// two links has carried it, plus both latencies. Several transports may share one link, so fan-out from one
/// source is limited by the link of that source, as on a real machine. Links serve reads in order and without
/// loss (network_link.hpp); the bytes themselves travel at once, and only their completions are held back.
/// Connecting and messages to the reference server are not delayed.
///
/// Processes that share a link made before they were forked wait for each other. The link may apply to all
/// peers of a process, or only to those in other datacenters (wide_area.hpp).
///
/// `throttled<T>` uses the protocol and the name of the inner transport, so peers may use that transport
/// itself. Thread safety: as concept `transport` requires; any thread may use a link.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/held_completions.hpp"
#include "tensorhub/testing/network_link.hpp"
#include "tensorhub/testing/wrapped_transport.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

namespace throttled_detail {

/// The sending links of this process's transports, by incarnation.
class sending_links {
 public:
  static sending_links& instance() {
    static sending_links all;
    return all;
  }
  void insert(incarnation self, const std::shared_ptr<network_link>& path) {
    const std::lock_guard lock{mutex_};
    if (path) links_[self] = path;
  }
  void rename(incarnation self, incarnation next) noexcept {
    const std::lock_guard lock{mutex_};
    auto entry = links_.extract(self);
    if (entry.empty()) return;
    entry.key() = next;
    links_.insert(std::move(entry));
  }
  void erase(incarnation self) noexcept {
    const std::lock_guard lock{mutex_};
    links_.erase(self);
  }
  [[nodiscard]] std::shared_ptr<network_link> of(incarnation peer) {
    const std::lock_guard lock{mutex_};
    const auto found = links_.find(peer);
    return found == links_.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  std::map<incarnation, std::shared_ptr<network_link>> links_;
};

}  // namespace throttled_detail

template <transport Inner>
class throttled : public wrapped_transport<Inner> {
 public:
  struct options {
    typename Inner::options inner{};
    std::shared_ptr<network_link> receiving{};  ///< null: no limit
    std::shared_ptr<network_link> sending{};    ///< null: no limit; only readers in the same process see it
  };
  using typename wrapped_transport<Inner>::memory_region;

  class endpoint {
   public:
    [[nodiscard]] incarnation peer() const noexcept { return inner_.peer(); }
    [[nodiscard]] bool usable() const noexcept { return inner_.usable(); }

   private:
    friend class throttled;
    endpoint(typename Inner::endpoint inner, std::shared_ptr<network_link> sending)
        : inner_{std::move(inner)}, sending_{std::move(sending)} {}
    typename Inner::endpoint inner_;
    std::shared_ptr<network_link> sending_;
  };

  class queue {
   public:
    [[nodiscard]] post_result post_read(endpoint& connection, const memory_region& into, std::uint64_t offset,
                                        const remote_slice& from, request_id id) noexcept {
      const auto now = std::chrono::steady_clock::now();
      if (held_.outstanding() >= depth_) return post_result::queue_full;
      read_fate fate{now};
      if (receiving_) fate.due = std::max(fate.due, receiving_->carry(from.bytes, now));
      if (connection.sending_) fate.due = std::max(fate.due, connection.sending_->carry(from.bytes, now));
      return held_.post(connection.inner_, into, offset, from, id, fate);
    }
    [[nodiscard]] std::size_t poll(std::span<completion> completions) noexcept {
      return held_.poll(completions);
    }
    void wait(duration timeout) noexcept { held_.wait(timeout); }
    void wake() noexcept { held_.wake(); }
    [[nodiscard]] std::size_t outstanding() const noexcept { return held_.outstanding(); }

   private:
    friend class throttled;
    queue(typename Inner::queue inner, std::size_t depth, std::shared_ptr<network_link> receiving)
        : depth_{depth}, held_{std::move(inner), depth}, receiving_{std::move(receiving)} {}
    std::size_t depth_;
    held_completions<Inner> held_;
    std::shared_ptr<network_link> receiving_;
  };

  explicit throttled(options chosen = {}, incarnation self = {})
      : wrapped_transport<Inner>{std::move(chosen.inner), self},
        receiving_{std::move(chosen.receiving)},
        sending_{std::move(chosen.sending)},
        own_{self} {
    throttled_detail::sending_links::instance().insert(self, sending_);
  }
  ~throttled() {
    for (const incarnation each : own_) throttled_detail::sending_links::instance().erase(each);
  }
  throttled(const throttled&) = delete;
  throttled& operator=(const throttled&) = delete;

  /// Readers in this process find the sending link under every incarnation that this transport is.
  void admit(incarnation self) requires shared_transport<Inner> {
    const std::lock_guard lock{mutex_};
    own_.push_back(self);
    throttled_detail::sending_links::instance().insert(self, sending_);
    this->inner().admit(self);
  }
  void rename(incarnation self, incarnation next) noexcept requires shared_transport<Inner> {
    const std::lock_guard lock{mutex_};
    std::replace(own_.begin(), own_.end(), self, next);
    throttled_detail::sending_links::instance().rename(self, next);
    this->inner().rename(self, next);
  }
  void dismiss(incarnation self) noexcept requires shared_transport<Inner> {
    const std::lock_guard lock{mutex_};
    std::erase(own_, self);
    throttled_detail::sending_links::instance().erase(self);
    this->inner().dismiss(self);
  }

  [[nodiscard]] queue make_queue(std::size_t depth) {
    return {this->inner().make_queue(depth), depth, receiving_};
  }
  [[nodiscard]] endpoint connect(queue& on, const transport_address& where, incarnation peer,
                                 duration timeout, incarnation self = {}) {
    return {connect_as(self, this->inner(), on.held_.inner(), where, peer, timeout),
            throttled_detail::sending_links::instance().of(peer)};
  }

 private:
  std::shared_ptr<network_link> receiving_;
  std::shared_ptr<network_link> sending_;
  std::mutex mutex_;
  std::vector<incarnation> own_;  ///< guarded by mutex_
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
