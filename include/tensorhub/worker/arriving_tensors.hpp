#pragma once
/// \file arriving_tensors.hpp
/// The tensors of a version one by one, verified, while the rest of it is still arriving.
///
///     auto running = rollout.update_async(tensorhub::at_least(step));
///     auto arriving = running.tensors();                    // or in another order: running.tensors(names)
///     while (const auto tensor = arriving.next(5s)) load(tensor->name, tensor->data, tensor->bytes);
///
/// Thread safety: one thread at a time, beside anything else.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/tensor.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct update_state;

/// A tensor whose bytes are here and verified. They stay as they are until the worker's next call. Name and
/// shape are the worker's, and live as long as it does.
struct arrived_tensor {
  std::size_t position = 0;  ///< in the order of `add`
  std::string_view name{};
  dtype type = dtype::u8;
  std::span<const std::uint64_t> shape{};
  void* data = nullptr;  ///< where the version is received: in a stage, if it is staged
  std::uint64_t bytes = 0;
};

/// Made by `update_handle::tensors`. The transfer reads next what this waits for next. The worker must
/// outlive it; the handle need not, but its end is the update's end.
class arriving_tensors {
 public:
  /// Chunks that the transfer is told to read first.
  static constexpr std::size_t look_ahead_chunks = 64;

  /// The next tensor, as soon as it is here. Empty after the last one, once the update has succeeded: only
  /// then do all tensors belong to a version that counts.
  ///
  /// Throws the update's error if it fails; what was taken before is then no version. `timed_out`: not yet,
  /// and the next call goes on waiting. `unavailable`: the update had ended, and the worker's next one writes
  /// to the tensors.
  [[nodiscard]] TENSORHUB_DECL std::optional<arrived_tensor> next(std::chrono::milliseconds timeout);

 private:
  friend class update_handle;
  arriving_tensors(std::shared_ptr<update_state> update, std::vector<std::size_t> order)
      : update_{std::move(update)}, order_{std::move(order)} {}

  /// Returns when the update has ended, or the next tensor is here.
  TENSORHUB_DECL void await_next(std::chrono::milliseconds timeout);

  std::shared_ptr<update_state> update_;
  std::vector<std::size_t> order_;
  std::size_t taken_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/worker/worker.hpp"  // whose implementation has the members above
#endif
