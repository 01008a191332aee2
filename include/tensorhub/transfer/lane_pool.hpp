#pragma once
/// \file lane_pool.hpp
/// What the lanes of a worker's updates keep from one update to the next: queues, scratch memory, and
/// connections to sources.
///
/// A lane is borrowed for one update, and given back when none of its reads is outstanding. A connection is
/// kept with the lane that made it, under the names of both ends; nobody looks at it until the next update,
/// so that it may have ended meanwhile. At most `most_kept` connections of a lane are kept, the latest
/// ones. An update that begins closes those that no update has used for `kept_for`.
///
/// A transport whose endpoints are `kept_by_transport` keeps its connections itself.
///
/// Thread safety: any thread may borrow and give back; a borrowed lane belongs to its borrower.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Both ends of a connection. The capability is not among them: a connection lasts as long as its ends want
/// it.
struct connection_ends {
  std::string address{};
  incarnation source{};
  incarnation reader{};
  bool operator==(const connection_ends&) const = default;
};

template <transport Transport>
class lane_pool {
 public:
  static constexpr std::size_t most_kept = 8;
  static constexpr std::chrono::minutes kept_for{2};
  using clock = std::chrono::steady_clock;

  class lane {
   public:
    using endpoint_type = typename Transport::endpoint;

    /// Throws what the transport throws.
    lane(Transport& through, std::size_t depth, std::size_t scratch_words)
        : queue_{through.make_queue(depth)}, scratch_(scratch_words) {
      const memory_range range{std::as_writable_bytes(std::span{scratch_}).data(), scratch_.size() * 8};
      scratch_region_ = through.register_memory(std::span{&range, 1}, region_access::local_write);
      kept_.reserve(most_kept);
    }

    [[nodiscard]] typename Transport::queue& queue() noexcept { return queue_; }
    [[nodiscard]] std::span<const std::byte> scratch() const noexcept {
      return std::as_bytes(std::span{scratch_});
    }
    [[nodiscard]] const typename Transport::memory_region& scratch_region() const noexcept {
      return scratch_region_.front();
    }

    /// Empty: there is none between these ends that may still be alive.
    [[nodiscard]] std::optional<endpoint_type> take(const connection_ends& ends) {
      const auto found = detail::find(kept_, ends, &kept_connection::ends);
      if (found == kept_.end()) return std::nullopt;
      std::optional<endpoint_type> out{std::move(found->endpoint)};
      kept_.erase(found);
      if (!out->usable()) out.reset();
      return out;
    }
    /// Returns the endpoint that is not kept: this one, or the oldest. To destroy it may take long.
    /// Pre-condition: no read of the endpoint is outstanding.
    std::optional<endpoint_type> keep(connection_ends ends, endpoint_type endpoint) {
      if (!endpoint.usable()) return endpoint;
      if constexpr (requires { endpoint.kept_by_transport(); }) {
        if (endpoint.kept_by_transport()) return endpoint;
      }
      std::optional<endpoint_type> oldest;
      if (kept_.size() == most_kept) {
        oldest.emplace(std::move(kept_.front().endpoint));
        kept_.erase(kept_.begin());
      }
      kept_.push_back({std::move(ends), clock::now(), std::move(endpoint)});
      return oldest;
    }
    [[nodiscard]] bool has_idle(clock::time_point now) const noexcept {
      return !kept_.empty() && kept_.front().since < now - kept_for;
    }
    void close_idle(clock::time_point now) {
      std::erase_if(kept_, [&](const kept_connection& each) { return each.since < now - kept_for; });
    }

   private:
    struct kept_connection {
      connection_ends ends;
      clock::time_point since;
      endpoint_type endpoint;
    };
    typename Transport::queue queue_;
    std::vector<std::uint64_t> scratch_;
    std::vector<typename Transport::memory_region> scratch_region_;
    std::vector<kept_connection> kept_;  ///< oldest first; destroyed before the queue
  };

  explicit lane_pool(Transport& through) noexcept : through_{&through} {}

  [[nodiscard]] Transport& through() const noexcept { return *through_; }

  /// A queue for `depth` reads, the same number every time, and at least so much scratch memory.
  [[nodiscard]] std::unique_ptr<lane> borrow(std::size_t depth, std::size_t scratch_words,
                                             clock::time_point now = clock::now()) {
    std::unique_ptr<lane> out;
    // To close a connection may take long, and uses its lane's queue: meanwhile nobody else has the lane.
    std::vector<std::unique_ptr<lane>> stale;
    {
      const std::lock_guard lock{mutex_};
      if (!idle_.empty()) {
        out = std::move(idle_.back());
        idle_.pop_back();
      }
      const auto first = std::partition(idle_.begin(), idle_.end(),
                                        [now](const auto& each) { return !each->has_idle(now); });
      stale.assign(std::make_move_iterator(first), std::make_move_iterator(idle_.end()));
      idle_.erase(first, idle_.end());
    }
    if (out) out->close_idle(now);
    for (auto& each : stale) {
      each->close_idle(now);
      give_back(std::move(each));
    }
    if (!out || out->scratch().size() < scratch_words * 8)
      return std::make_unique<lane>(*through_, depth, scratch_words);
    return out;
  }
  /// A lane with reads outstanding, which nobody waits for any more, is not kept.
  void give_back(std::unique_ptr<lane> borrowed) {
    if (borrowed->queue().outstanding() > 0) return;
    const std::lock_guard lock{mutex_};
    idle_.push_back(std::move(borrowed));
  }

 private:
  Transport* through_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<lane>> idle_;  ///< guarded by mutex_
};

}  // namespace tensorhub::inline TENSORHUB_MODE
