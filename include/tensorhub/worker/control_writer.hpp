#pragma once
/// \file control_writer.hpp
/// What a worker writes into its control block, and in which order.
///
/// A transfer overwrites the description (digest table and regions) of the version that is held. If the
/// transfer then ends before it has written a byte of the weights, `describe_held` writes that description
/// again, with the keys that are valid now, and `show_again` shows the version.
///
/// The simulator runs this code too (tests/support/simulation/worker.hpp).
///
/// Thread safety: `add_chunk` for any thread, of each chunk once; the worker serialises everything else.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transfer/control_block.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/memory.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class control_writer {
 public:
  explicit control_writer(control_block block) : block_{std::move(block)} {}

  [[nodiscard]] std::span<std::byte> memory() noexcept { return block_.memory(); }
  /// The digest table of the version that `show` showed last; empty: integrity is off.
  [[nodiscard]] std::span<const digest128> held_digests() const noexcept { return held_; }

  /// Shows a version that is held completely. `regions`: one per segment. Table empty: integrity is off.
  void show(version_number version, std::uint64_t epoch, std::span<const digest128> table,
            std::span<const remote_region> regions) {
    describe(table, regions);
    held_.assign(table.begin(), table.end());
    block_.show(version, epoch);
  }
  /// Shows a version of which no chunk is here yet.
  void show_receiving(version_number version, std::uint64_t epoch, std::span<const digest128> table,
                      std::span<const remote_region> regions) noexcept {
    describe(table, regions);
    block_.show_receiving(version, epoch);
  }
  /// The process goes on as another incarnation. Pre-condition: nothing is shown.
  void set_holder(incarnation holder) noexcept { block_.set_holder(holder); }
  /// Describes the version that `show` showed last once more. Pre-condition: nothing is shown.
  void describe_held(std::span<const remote_region> regions) noexcept { describe(held_, regions); }
  /// Shows the version that is described, whose bytes are still there.
  void show_again(version_number version, std::uint64_t epoch) noexcept { block_.show(version, epoch); }
  void add_chunk(chunk_index chunk) noexcept { block_.add_chunk(chunk); }
  /// The same in a version whose table is not known as a whole yet (`show_receiving` without a table).
  void add_chunk(chunk_index chunk, digest128 digest) noexcept {
    block_.set_digest(chunk, digest);
    block_.add_chunk(chunk);
  }
  /// The table of the version that is being received, which was shown without it.
  void set_digests(std::span<const digest128> table) noexcept { block_.set_digests(table); }
  /// Bytes may change after this returns.
  void raise_epoch(std::uint64_t epoch) noexcept { block_.raise_epoch(epoch); }

 private:
  void describe(std::span<const digest128> table, std::span<const remote_region> regions) noexcept {
    block_.set_digests(table);
    for (std::size_t i = 0; i < regions.size(); ++i) block_.set_segment(i, regions[i]);
  }

  control_block block_;
  std::vector<digest128> held_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
