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

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
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

/// A lane as its pool knows it: scratch memory, and the places at which it keeps connections.
class kept_lane {
 public:
  static constexpr std::size_t most_kept = 8;
  static constexpr std::chrono::minutes kept_for{2};
  using clock = std::chrono::steady_clock;

  explicit kept_lane(std::size_t scratch_words);
  virtual ~kept_lane();
  kept_lane(const kept_lane&) = delete;
  kept_lane& operator=(const kept_lane&) = delete;

  [[nodiscard]] std::span<const std::byte> scratch() const noexcept {
    return std::as_bytes(std::span{scratch_});
  }
  [[nodiscard]] bool has_idle(clock::time_point now) const noexcept;
  void close_idle(clock::time_point now);
  [[nodiscard]] virtual std::size_t outstanding() const noexcept = 0;

 protected:
  [[nodiscard]] memory_range scratch_range() noexcept;
  /// The place of the connection between these ends, which is given up with this; empty: there is none.
  [[nodiscard]] std::optional<std::size_t> take_place(const connection_ends& ends);
  /// A place for one more: a free one, or that of the oldest.
  [[nodiscard]] std::size_t new_place(connection_ends ends);
  /// Closes the connection at this place.
  virtual void close(std::size_t place) noexcept = 0;

 private:
  struct kept_connection {
    connection_ends ends;
    clock::time_point since;
    std::size_t place;
  };
  std::vector<std::uint64_t> scratch_;
  std::vector<kept_connection> kept_;  ///< oldest first
};

/// The lanes of a pool that nobody has borrowed.
class idle_lanes {
 public:
  idle_lanes();
  ~idle_lanes();
  idle_lanes(const idle_lanes&) = delete;
  idle_lanes& operator=(const idle_lanes&) = delete;

  /// Null: none is idle that has so much scratch memory.
  [[nodiscard]] std::unique_ptr<kept_lane> take(std::size_t scratch_words, kept_lane::clock::time_point now);
  /// A lane with reads outstanding, which nobody waits for any more, is not kept.
  void give_back(std::unique_ptr<kept_lane> lane);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<kept_lane>> idle_;  ///< guarded by mutex_
};

template <transport Transport>
class lane_pool {
 public:
  static constexpr std::size_t most_kept = kept_lane::most_kept;
  static constexpr std::chrono::minutes kept_for = kept_lane::kept_for;
  using clock = kept_lane::clock;

  class lane final : public kept_lane {
   public:
    using endpoint_type = typename Transport::endpoint;

    /// Throws what the transport throws.
    lane(Transport& through, std::size_t depth, std::size_t scratch_words)
        : kept_lane{scratch_words}, queue_{through.make_queue(depth)} {
      const memory_range range = scratch_range();
      scratch_region_ = through.register_memory(std::span{&range, 1}, region_access::local_write);
    }

    [[nodiscard]] typename Transport::queue& queue() noexcept { return queue_; }
    [[nodiscard]] const typename Transport::memory_region& scratch_region() const noexcept {
      return scratch_region_.front();
    }
    [[nodiscard]] std::size_t outstanding() const noexcept override { return queue_.outstanding(); }

    /// Empty: there is none between these ends that may still be alive.
    [[nodiscard]] std::optional<endpoint_type> take(const connection_ends& ends) {
      std::optional<endpoint_type> out;
      if (const auto place = take_place(ends)) std::swap(out, endpoints_[*place]);
      if (out && !out->usable()) out.reset();
      return out;
    }
    /// Keeps an endpoint, or closes it; in the place of the oldest if there are enough of them. To close one
    /// may take long. Pre-condition: no read of the endpoint is outstanding.
    void keep(connection_ends ends, endpoint_type endpoint) {
      if (!endpoint.usable()) return;
      if constexpr (requires { endpoint.kept_by_transport(); }) {
        if (endpoint.kept_by_transport()) return;
      }
      endpoints_[new_place(std::move(ends))].emplace(std::move(endpoint));
    }

   private:
    void close(std::size_t place) noexcept override { endpoints_[place].reset(); }

    typename Transport::queue queue_;
    std::vector<typename Transport::memory_region> scratch_region_;
    std::array<std::optional<endpoint_type>, most_kept> endpoints_{};  ///< destroyed before the queue
  };

  explicit lane_pool(Transport& through) noexcept : through_{&through} {}

  [[nodiscard]] Transport& through() const noexcept { return *through_; }

  /// A queue for `depth` reads, the same number every time, and at least so much scratch memory.
  [[nodiscard]] std::unique_ptr<lane> borrow(std::size_t depth, std::size_t scratch_words,
                                             clock::time_point now = clock::now()) {
    if (auto idle = idle_.take(scratch_words, now))
      return std::unique_ptr<lane>{static_cast<lane*>(idle.release())};
    return std::make_unique<lane>(*through_, depth, scratch_words);
  }
  void give_back(std::unique_ptr<lane> borrowed) { idle_.give_back(std::move(borrowed)); }

 private:
  Transport* through_;
  idle_lanes idle_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transfer/impl/lane_pool.ipp"
#endif
