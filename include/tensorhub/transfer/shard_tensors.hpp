#pragma once
/// \file shard_tensors.hpp
/// A worker's tensors as segments of a layout: where each lies, and what is to be copied for the small ones.
///
/// Large tensors are read and written in place. Small tensors have a packed copy: `pack` makes it, and
/// `unpack` writes it back. Memory space and transport belong to the class that derives from this one
/// (shard_memory.hpp).
///
/// Thread safety: any thread may call `cost`, `transfers` and `unpack`; the worker serialises all other
/// calls.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transfer/placed_chunk.hpp"
#include "tensorhub/transfer/registration.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class shard_tensors {
 public:
  shard_tensors(const shard_tensors&) = delete;
  shard_tensors& operator=(const shard_tensors&) = delete;

  [[nodiscard]] layout build_layout(std::uint64_t chunk_bytes, const error_context& context) const;

  /// Copies the small tensors into the packed segment. Throws `system_failed` if a device fails to copy.
  void pack();
  /// One tensor into the packed segment, from any thread. A large one is where it belongs already.
  void pack(std::size_t tensor);

  /// Other bytes are about to arrive: another transfer begins. The first one throws `invalid_argument` for
  /// memory that cannot be written.
  void expect();
  /// How many have begun.
  [[nodiscard]] std::uint64_t transfers() const noexcept;
  /// Copies the packed segment into those small tensors into which it was not copied yet. Throws like `pack`.
  void unpack();
  /// The same for one tensor, from any thread, while no other transfer has begun than the `transfer`-th;
  /// false: one has, and what was received before is gone. A large one is where it belongs already.
  [[nodiscard]] bool unpack(std::size_t tensor, std::uint64_t transfer);

  /// The tensors and their memory: one range per tensor, in the order of `add`.
  [[nodiscard]] std::span<const tensor_spec> tensors() const noexcept { return specs_; }
  [[nodiscard]] std::span<const memory_range> ranges() const noexcept { return ranges_; }

  /// One place per layout segment; valid after `register_all`.
  [[nodiscard]] std::span<const segment_place> places() const noexcept { return places_; }

  [[nodiscard]] registration_cost cost() const noexcept;

 protected:
  using clock = std::chrono::steady_clock;

  /// `copies_in_batches`: `unpack` calls `copy_small` once, with all runs. Otherwise it calls it with one
  /// run after the other, and so needs no memory.
  explicit shard_tensors(bool copies_in_batches);
  ~shard_tensors();

  /// Throws `system_failed` if a device fails.
  virtual void copy_small(std::span<const copy_run> runs) = 0;

  /// Throws `invalid_argument` (no name, null, duplicate name) or `limit_exceeded`. Returns the bytes.
  std::uint64_t check_new(const tensor_spec& tensor, const void* data) const;
  /// Pre-condition: `check_new` has returned.
  void append(tensor_spec tensor, const memory_range& range, const memory_range& allocation);

  /// From now on the tensors have this layout, which is borrowed. Returns regions for the large ones, in the
  /// order of their segments.
  [[nodiscard]] registration_plan plan(const layout& shape, std::uint64_t max_region_bytes);
  /// Of `plan`.
  [[nodiscard]] const layout& shard_layout() const noexcept { return *layout_; }
  /// Adds the packed segment, which is the first one.
  static void add_packed(registration_plan& to, const memory_range& packed);
  /// `made`: what was registered.
  void note_registered(const registration_plan& made, clock::time_point started);
  /// The first tensor that is packed and lies on a device; null: there is none.
  [[nodiscard]] const memory_range* packed_on_device() const noexcept;
  /// Copies of all segments from the same segments of `from`, which has the same layout.
  [[nodiscard]] std::vector<copy_run> runs_from(const shard_tensors& from) const;

 private:
  /// A tensor that lies in the packed segment, too.
  struct small_tensor {
    std::size_t position = 0;  ///< in the order of `add`
    std::byte* own = nullptr;
    std::byte* packed = nullptr;
    std::uint64_t bytes = 0;
    bool unpacked = false;  ///< guarded by unpack_mutex_: what has arrived was copied
  };

  void check_writable() const;
  void find_small();
  /// Null: it is a large one, or empty.
  [[nodiscard]] small_tensor* small_at(std::size_t position) noexcept;
  void note(double registration_cost::*what, clock::time_point started) noexcept;

  bool copies_in_batches_;
  const layout* layout_ = nullptr;
  std::vector<tensor_spec> specs_;
  std::unordered_set<std::string> names_;
  std::vector<memory_range> ranges_;
  std::vector<memory_range> allocations_;  ///< the allocation around each range
  std::vector<segment_place> places_;
  std::vector<small_tensor> small_;  ///< in the order of `add`
  mutable std::mutex unpack_mutex_;
  std::uint64_t transfers_ = 0;  ///< guarded by unpack_mutex_
  mutable std::mutex cost_mutex_;
  registration_cost cost_{};
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transfer/impl/shard_tensors.ipp"
#endif
