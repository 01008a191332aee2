#pragma once
/// \file chunk_digests.hpp
/// Digests of chunks, made by the CPU or by the device that owns the memory.
///
/// A device makes many digests in one call, so callers pass batches. If the device does not know the
/// integrity policy (concepts/integrity.hpp), the chunks are copied to host memory first.
///
/// Thread safety: one thread at a time; each thread has its own object.

#include <chrono>
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
#include "tensorhub/types/units.hpp"

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
    begin(seed, chunks, out);
    finish();
  }

  /// Begins what `make` does; devices work while the caller goes on. The chunks' bytes and `out` must stay
  /// until `finished` has returned true or thrown, or until the object has ended. Throws like `make`, and
  /// then nothing is under way. Pre-condition: the last batch is finished.
  void begin(std::uint64_t seed, std::span<const placed_chunk> chunks, std::span<digest128> out) {
    try {
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
    } catch (...) {
      drop();
      throw;
    }
  }
  [[nodiscard]] bool has_begun() const noexcept { return !begun_.empty(); }

  /// True: every digest of the batch is set. Waits at most for `patience`. Throws like `make`.
  [[nodiscard]] bool finished(duration patience) {
    for (; !begun_.empty(); begun_.pop_back()) {
      const batch_record& last = begun_.back();
      if (!is_done(last, patience)) return false;
      for (digest128& each : last.out) each = detail::never_zero(each);
    }
    return true;
  }

  /// The digest of one chunk that the CPU can read.
  [[nodiscard]] static digest128 by_cpu(std::uint64_t seed, const placed_chunk& chunk) noexcept {
    return Integrity::chunk_digest(seed, chunk.chunk, {chunk.data, chunk.bytes});
  }

 private:
  using clock = std::chrono::steady_clock;
  struct device_state {
    std::unique_ptr<device_lane> lane;
    pinned_memory scratch;  ///< for policies that the device does not know
  };
  struct batch_record {
    device_state* with = nullptr;
    lane_ticket ticket = 0;
    clock::time_point until{};
    placed_chunk first{};
    std::span<digest128> out{};
  };

  void by_device(std::uint64_t seed, std::span<const placed_chunk> batch, std::span<digest128> out) {
    device_access& device = *batch.front().device;
    device_state& with = devices_[&device];
    if (!with.lane) with.lane = device.open_lane();
    if constexpr (keyed_device_integrity<Integrity>) {
      keyed_jobs_.clear();
      for (const placed_chunk& each : batch)
        keyed_jobs_.push_back({each.data, each.bytes, Integrity::chunk_key(seed, each.chunk)});
      note(with, with.lane->keyed_digest(keyed_jobs_, out.data()), batch, out);
    } else if constexpr (device_integrity<Integrity>) {
      jobs_.clear();
      for (const placed_chunk& each : batch)
        jobs_.push_back({each.data, each.bytes, Integrity::chunk_seed(seed, each.chunk)});
      note(with, with.lane->digest(jobs_, out.data()), batch, out);
    } else {
      for (std::size_t i = 0; i < batch.size(); ++i) {
        if (with.scratch.bytes() < batch[i].bytes) with.scratch = pinned_memory{device, batch[i].bytes};
        note(with, with.lane->copy(with.scratch.data(), batch[i].data, batch[i].bytes), batch.subspan(i, 1),
             {});
        finish();
        out[i] = by_cpu(seed, {batch[i].chunk, with.scratch.data(), batch[i].bytes, nullptr});
      }
    }
  }

  /// Each batch has an end: `is_done` throws at its deadline.
  void finish() {
    while (!finished(device_lane::patience)) {
    }
  }

  void note(device_state& with, lane_ticket ticket, std::span<const placed_chunk> batch,
            std::span<digest128> out) {
    begun_.push_back({&with, ticket, clock::now() + device_lane::patience, batch.front(), out});
  }

  [[nodiscard]] bool is_done(const batch_record& batch, duration patience) {
    device_lane& lane = *batch.with->lane;
    lane_state state = lane_state::failed;
    if (batch.ticket != 0)
      state = patience.count() > 0 ? lane.wait(batch.ticket, patience) : lane.state(batch.ticket);
    if (state == lane_state::done) return true;
    if (state == lane_state::pending && clock::now() < batch.until) return false;
    give_up(batch, state);
  }

  /// No lane is used again. Destroying them ends the work that they still do, so that nothing is written
  /// after a throw.
  void drop() noexcept {
    for (auto& [device, with] : devices_) with.lane.reset();
    begun_.clear();
  }

  [[noreturn]] void give_up(const batch_record& batch, lane_state state) {
    const placed_chunk first = batch.first;
    std::string why = state == lane_state::pending
                          ? "no answer for " + std::to_string(device_lane::patience.count()) + " s"
                          : batch.with->lane->trouble();
    drop();
    error_context context;
    context.chunk = first.chunk;
    throw error(errc::system_failed,
                first.device->description() + " could not compute digests from chunk " +
                    std::to_string(first.chunk) + " on: " + why +
                    "; retry, and restart the process if the device keeps failing",
                std::move(context));
  }

  std::map<device_access*, device_state> devices_;
  std::vector<digest_job> jobs_;
  std::vector<keyed_digest_job> keyed_jobs_;
  std::vector<batch_record> begun_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
