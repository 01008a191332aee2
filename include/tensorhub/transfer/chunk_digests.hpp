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
#include "tensorhub/transfer/placed_chunk.hpp"
#include "tensorhub/types/device_access.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// An integrity policy, as batches need it. At most one of `seed` and `key` is set: devices then make the
/// digests (concepts/integrity.hpp).
struct digest_functions {
  digest128 (*by_cpu)(std::uint64_t seed, const placed_chunk& chunk) noexcept = nullptr;
  std::uint64_t (*seed)(std::uint64_t seed, std::uint64_t chunk) noexcept = nullptr;
  digest_key (*key)(std::uint64_t seed, std::uint64_t chunk) noexcept = nullptr;
};

/// Batches of chunks.
class batch_digests {
 public:
  explicit batch_digests(const digest_functions& policy);
  ~batch_digests();
  batch_digests(const batch_digests&) = delete;
  batch_digests& operator=(const batch_digests&) = delete;

  /// Sets `out[i]` to the digest of `chunks[i]`; all are set on return. Throws `system_failed` if a device
  /// fails, with the first chunk of its batch in the context.
  void make(std::uint64_t seed, std::span<const placed_chunk> chunks, std::span<digest128> out);

  /// Begins what `make` does; devices work while the caller goes on. The chunks' bytes and `out` must stay
  /// until `finished` has returned true or thrown, or until the object has ended. Throws like `make`, and
  /// then nothing is under way. Pre-condition: the last batch is finished.
  void begin(std::uint64_t seed, std::span<const placed_chunk> chunks, std::span<digest128> out);
  [[nodiscard]] bool has_begun() const noexcept { return !begun_.empty(); }

  /// True: every digest of the batch is set. Waits at most for `patience`. Throws like `make`.
  [[nodiscard]] bool finished(duration patience);

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

  void by_device(std::uint64_t seed, std::span<const placed_chunk> batch, std::span<digest128> out);
  /// Each batch has an end: `is_done` throws at its deadline.
  void finish();
  void note(device_state& with, lane_ticket ticket, std::span<const placed_chunk> batch,
            std::span<digest128> out);
  [[nodiscard]] bool is_done(const batch_record& batch, duration patience);
  /// No lane is used again. Destroying them ends the work that they still do, so that nothing is written
  /// after a throw.
  void drop() noexcept;
  [[noreturn]] void give_up(const batch_record& batch, lane_state state);

  digest_functions policy_;
  std::map<device_access*, device_state> devices_;
  std::vector<digest_job> jobs_;
  std::vector<keyed_digest_job> keyed_jobs_;
  std::vector<batch_record> begun_;
};

template <integrity Integrity>
class chunk_digests final : public batch_digests {
 public:
  chunk_digests() : batch_digests{functions()} {}

  /// The digest of one chunk that the CPU can read.
  [[nodiscard]] static digest128 by_cpu(std::uint64_t seed, const placed_chunk& chunk) noexcept {
    return Integrity::chunk_digest(seed, chunk.chunk, {chunk.data, chunk.bytes});
  }

 private:
  [[nodiscard]] static digest_functions functions() noexcept {
    digest_functions out{.by_cpu = by_cpu};
    if constexpr (keyed_device_integrity<Integrity>)
      out.key = [](std::uint64_t seed, std::uint64_t chunk) noexcept {
        return Integrity::chunk_key(seed, chunk);
      };
    else if constexpr (device_integrity<Integrity>)
      out.seed = [](std::uint64_t seed, std::uint64_t chunk) noexcept {
        return Integrity::chunk_seed(seed, chunk);
      };
    return out;
  }
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transfer/impl/chunk_digests.ipp"
#endif
