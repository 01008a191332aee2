#pragma once
/// \file lane_pool.hpp
/// The lanes of a worker's updates over one transport: queues, scratch memory, and the connections to sources
/// that they keep from one update to the next (kept_lane.hpp).
///
/// A transport whose endpoints are `kept_by_transport` keeps its connections itself.
///
/// Thread safety: any thread may borrow and give back; a borrowed lane belongs to its borrower.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transfer/kept_lane.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

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

  /// For the lane of this number of an update: a queue for `depth` reads, the same every time, and at least
  /// so much scratch memory.
  [[nodiscard]] std::unique_ptr<lane> borrow(std::size_t number, std::size_t depth, std::size_t scratch_words,
                                             clock::time_point now = clock::now()) {
    if (auto idle = idle_.take(number, scratch_words, now))
      return std::unique_ptr<lane>{static_cast<lane*>(idle.release())};
    return std::make_unique<lane>(*through_, depth, scratch_words);
  }
  void give_back(std::size_t number, std::unique_ptr<lane> borrowed) {
    idle_.give_back(number, std::move(borrowed));
  }

 private:
  Transport* through_;
  idle_lanes idle_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
