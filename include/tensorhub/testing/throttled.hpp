#pragma once
/// \file throttled.hpp
/// `throttled<T>`: a transport behind links of a given rate and latency.
///
///     auto nic = std::make_shared<testing::network_link>(
///         testing::network_link_options{.bytes_per_second = 100e6});
///     hub<testing::throttled<transports::tcp>>::subscriber reader{{...}, {.receiving = nic}};
///
/// A read takes its place on the reader's link (`receiving`) and, where source and reader are objects of
/// one process, on the source's (`sending`), behind all reads that took theirs before; it completes when the
/// slower of the two has carried it, plus both latencies. Several transports may share one link. So fan-out
/// from one source is as slow as its link, as on a real machine. Links are modelled as first come, first
/// served, without loss; the bytes themselves travel at once.
///
/// It speaks the inner transport's protocol and carries its name: peers may use that transport as it is.
/// Thread safety: that of concept `transport`; a link may be used from any thread.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/testing/held_completions.hpp"

namespace tensorhub::testing {

struct network_link_options {
  double bytes_per_second = std::numeric_limits<double>::infinity();
  std::chrono::nanoseconds latency{0};  ///< of each read, on top of its time on the link
};

/// One direction of a network adapter, or a path that several workers share.
class network_link {
  using steady = std::chrono::steady_clock;

 public:
  explicit network_link(const network_link_options& how = {}) : how_{how} {}

  /// Takes the next free time for `bytes`; when they have been carried.
  [[nodiscard]] steady::time_point carry(std::uint64_t bytes, steady::time_point now) noexcept {
    const std::chrono::duration<double> time{static_cast<double>(bytes) / how_.bytes_per_second};
    const std::lock_guard lock{mutex_};
    free_at_ = std::max(free_at_, now) + std::chrono::duration_cast<steady::duration>(time);
    carried_bytes_ += bytes;
    return free_at_ + std::chrono::duration_cast<steady::duration>(how_.latency);
  }
  /// All bytes that have asked for their place so far.
  [[nodiscard]] std::uint64_t carried_bytes() const noexcept {
    const std::lock_guard lock{mutex_};
    return carried_bytes_;
  }

 private:
  network_link_options how_;
  mutable std::mutex mutex_;
  steady::time_point free_at_{};
  std::uint64_t carried_bytes_ = 0;
};

namespace throttled_detail {

/// The sending links of this process's transports, found by incarnation.
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
class throttled {
 public:
  using concept_tag = transport_tag;
  static constexpr std::string_view name = Inner::name;
  static constexpr transport_capabilities capabilities = Inner::capabilities;
  struct options {
    typename Inner::options inner{};
    std::shared_ptr<network_link> receiving{};  ///< null: no limit
    std::shared_ptr<network_link> sending{};    ///< null: no limit; known to readers in the same process only
  };
  using memory_region = typename Inner::memory_region;

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
    [[nodiscard]] post_result post_read(endpoint& through, const memory_region& into, std::uint64_t offset,
                                        const remote_slice& from, request_id id) noexcept {
      const auto now = std::chrono::steady_clock::now();
      if (held_.outstanding() >= depth_) return post_result::queue_full;
      read_fate fate{now};
      if (receiving_) fate.due = std::max(fate.due, receiving_->carry(from.bytes, now));
      if (through.sending_) fate.due = std::max(fate.due, through.sending_->carry(from.bytes, now));
      return held_.post(through.inner_, into, offset, from, id, fate);
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

  explicit throttled(options how = {}, incarnation self = {})
      : self_{self}, receiving_{std::move(how.receiving)}, inner_{std::move(how.inner), self} {
    throttled_detail::sending_links::instance().insert(self_, how.sending);
  }
  ~throttled() { throttled_detail::sending_links::instance().erase(self_); }
  throttled(const throttled&) = delete;
  throttled& operator=(const throttled&) = delete;

  [[nodiscard]] Inner& inner() noexcept { return inner_; }
  [[nodiscard]] transport_address address() const { return inner_.address(); }
  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const memory_range> ranges,
                                                           region_access access) {
    return inner_.register_memory(ranges, access);
  }
  [[nodiscard]] std::uint64_t registered_bytes() const noexcept { return inner_.registered_bytes(); }
  [[nodiscard]] remote_region describe(const memory_region& region) const { return inner_.describe(region); }
  void revoke(memory_region& region) noexcept { inner_.revoke(region); }
  void cut_off(incarnation peer) noexcept { inner_.cut_off(peer); }
  [[nodiscard]] queue make_queue(std::size_t depth) { return {inner_.make_queue(depth), depth, receiving_}; }
  [[nodiscard]] endpoint connect(queue& on, const transport_address& where, incarnation peer,
                                 duration timeout) {
    return {inner_.connect(on.held_.inner(), where, peer, timeout),
            throttled_detail::sending_links::instance().of(peer)};
  }

 private:
  incarnation self_;
  std::shared_ptr<network_link> receiving_;
  Inner inner_;
};

}  // namespace tensorhub::testing
