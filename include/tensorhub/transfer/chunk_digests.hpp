#pragma once
/// \file chunk_digests.hpp
/// Digests of chunks, made by the CPU or by the device that owns the memory.
///
/// A device makes many digests in one call, so callers pass batches. If the device does not know the
/// integrity policy (concepts/integrity.hpp), the chunks are copied to host memory first.
///
/// Thread safety: one thread at a time; each thread has its own object.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/concepts/integrity.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/device_access.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/layout.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// One chunk's bytes.
struct placed_chunk {
  chunk_index chunk = 0;
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  device_access* device = nullptr;  ///< null: the CPU may follow `data`
};

template <integrity Integrity>
class chunk_digests {
 public:
  /// Sets `out[i]` to the digest of `chunks[i]`; all are set on return. Throws `system_failed` if a device
  /// fails, with the first chunk of its batch in the context.
  void make(std::uint64_t seed, std::span<const placed_chunk> chunks, std::span<digest128> out) {
    for (std::size_t begin = 0; begin < chunks.size();) {
      std::size_t end = begin;
      while (end < chunks.size() && chunks[end].device == chunks[begin].device) ++end;
      const auto batch = chunks.subspan(begin, end - begin);
      if (batch.front().device == nullptr) {
        for (std::size_t i = 0; i < batch.size(); ++i) out[begin + i] = by_cpu(seed, batch[i]);
      } else {
        by_device(seed, batch, out.subspan(begin, batch.size()));
      }
      begin = end;
    }
  }

  /// The digest of one chunk that the CPU can read.
  [[nodiscard]] static digest128 by_cpu(std::uint64_t seed, const placed_chunk& chunk) noexcept {
    return Integrity::chunk_digest(seed, chunk.chunk, {chunk.data, chunk.bytes});
  }

 private:
  struct device_state {
    std::unique_ptr<device_lane> lane;
    pinned_memory scratch;  ///< for policies that the device does not know
  };

  void by_device(std::uint64_t seed, std::span<const placed_chunk> batch, std::span<digest128> out) {
    device_access& device = *batch.front().device;
    device_state& with = devices_[&device];
    if (!with.lane) with.lane = device.open_lane();
    if constexpr (keyed_device_integrity<Integrity>) {
      keyed_jobs_.clear();
      for (const placed_chunk& each : batch)
        keyed_jobs_.push_back({each.data, each.bytes, Integrity::chunk_key(seed, each.chunk)});
      finish(with, with.lane->keyed_digest(keyed_jobs_, out.data()), batch.front(), device);
      for (digest128& each : out) each = detail::never_zero(each);
    } else if constexpr (device_integrity<Integrity>) {
      jobs_.clear();
      for (const placed_chunk& each : batch)
        jobs_.push_back({each.data, each.bytes, Integrity::chunk_seed(seed, each.chunk)});
      finish(with, with.lane->digest(jobs_, out.data()), batch.front(), device);
      for (digest128& each : out) each = detail::never_zero(each);
    } else {
      for (std::size_t i = 0; i < batch.size(); ++i) {
        if (with.scratch.bytes() < batch[i].bytes) with.scratch = pinned_memory{device, batch[i].bytes};
        const lane_ticket copy = with.lane->copy(with.scratch.data(), batch[i].data, batch[i].bytes);
        finish(with, copy, batch[i], device);
        out[i] = by_cpu(seed, {batch[i].chunk, with.scratch.data(), batch[i].bytes, nullptr});
      }
    }
  }

  /// A lane that failed or hangs is not used again. Destroying it ends the work that it still does, so that
  /// nothing is written after the throw.
  void finish(device_state& with, lane_ticket ticket, const placed_chunk& first,
              const device_access& device) {
    const lane_state state =
        ticket == 0 ? lane_state::failed : with.lane->wait(ticket, device_lane::patience);
    if (state == lane_state::done) return;
    std::string why = state == lane_state::pending
                          ? "no answer for " + std::to_string(device_lane::patience.count()) + " s"
                          : with.lane->trouble();
    with.lane.reset();
    error_context context;
    context.chunk = first.chunk;
    throw error(errc::system_failed,
                device.description() + " could not compute digests from chunk " +
                    std::to_string(first.chunk) + " on: " + why +
                    "; retry, and restart the process if the device keeps failing",
                std::move(context));
  }

  std::map<device_access*, device_state> devices_;
  std::vector<digest_job> jobs_;
  std::vector<keyed_digest_job> keyed_jobs_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
