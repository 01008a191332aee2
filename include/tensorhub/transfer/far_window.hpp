#pragma once
/// \file far_window.hpp
/// How many bytes of one channel are on their way over a wide-area path: about two bandwidth-delay products.
///
/// With less than one, the path is idle while requests cross it. What is more than the path holds waits in
/// the source, and each header read waits behind it: no chunk is confirmed meanwhile, so the readers of this
/// reader get nothing, and all of it is lost with this reader.
///
/// The product is what arrives in one round trip, as in BBR (N. Cardwell et al., "BBR: congestion-based
/// congestion control", ACM Queue, 2016): the highest of the recent rates times the round trip. That is the
/// shortest time that any read has taken, or more if the transport measures more now: the path has become
/// longer. (It may measure less: the way to a proxy.)
/// While the path is not full, what is on its way arrives in the next round trip, so the window doubles with
/// each: it grows as fast as the window of TCP in its slow start.
///
/// Thread safety: as a value.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class far_window {
 public:
  far_window() = default;
  /// Begins with a quarter of `most_chunks`, and holds no more than those.
  far_window(std::size_t most_chunks, std::uint64_t chunk_bytes) noexcept
      : most_bytes_{most_chunks * chunk_bytes},
        chunk_bytes_{chunk_bytes},
        product_{std::max(most_chunks / 4, fewest_at_first) * chunk_bytes / products} {}

  /// A chunk has arrived, and the round trip is known to be this one.
  void arrived(std::uint64_t bytes, time_point now, duration round_trip) {
    const duration span = std::max(round_trip, shortest_span);
    total_ += bytes;
    arrivals_.push_back({now, total_});
    while (arrivals_.size() > 2 && now - arrivals_[1].at >= span) arrivals_.pop_front();
    const duration took = now - arrivals_.front().at;
    if (took < span) return;
    if (now - lowered_ >= span) {
      product_ -= product_ / 8;
      lowered_ = now;
    }
    const auto arrived = static_cast<double>(total_ - arrivals_.front().total);
    product_ = std::max(product_, static_cast<std::uint64_t>(arrived * to_seconds(span) / to_seconds(took)));
  }

  /// One chunk more than the products, because a chunk is on its way until the last of it is here.
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return std::min(most_bytes_, products * product_ + chunk_bytes_);
  }

 private:
  struct arrival {
    time_point at{};
    std::uint64_t total = 0;  ///< that had arrived then
  };
  static constexpr std::uint64_t products = 2;
  static constexpr std::size_t fewest_at_first = 4;
  /// The threads of a busy machine wait so long for each other.
  static constexpr duration shortest_span = std::chrono::milliseconds{10};

  std::uint64_t most_bytes_ = 0;
  std::uint64_t chunk_bytes_ = 0;
  std::uint64_t product_ = 0;  ///< falls by an eighth per round trip, down to the last rate
  std::uint64_t total_ = 0;
  time_point lowered_{};
  std::deque<arrival> arrivals_{};  ///< of the last round trip, and the one before
};

}  // namespace tensorhub::inline TENSORHUB_MODE
