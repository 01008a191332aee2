#pragma once
/// \file attached_copy.hpp
/// The weights of a shared copy (shared_copy.hpp) of another process of this machine, mapped for reading.
///
/// Needs no reference server and no transport. Where the owner has ended, or is stopped, what is held
/// stays as it is; `hold` then fails with `disconnected` or `timed_out`, and a new object attaches to the
/// owner's successor.

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/tensor.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace shared_copy_detail {
class copy_view;
}

/// A version whose bytes stay as they are as long as this object lives. Movable. Thread safety: `version` and
/// `tensor` may be called from any thread, and this object may end in any thread.
class held_copy {
 public:
  held_copy(held_copy&& other) noexcept = default;
  TENSORHUB_DECL held_copy& operator=(held_copy&& other) noexcept;
  TENSORHUB_DECL ~held_copy();

  [[nodiscard]] version_number version() const noexcept { return version_; }
  /// The bytes of a tensor, at a multiple of 256. Valid as long as this object. Throws `invalid_argument`
  /// for a name that the copy does not have, or if this object was moved from.
  [[nodiscard]] TENSORHUB_DECL std::span<const std::byte> tensor(const std::string& name) const;

 private:
  friend class attached_copy;
  held_copy(std::shared_ptr<shared_copy_detail::copy_view> view, std::size_t side,
            version_number version) noexcept
      : view_{std::move(view)}, side_{side}, version_{version} {}

  std::shared_ptr<shared_copy_detail::copy_view> view_;
  std::size_t side_ = 0;
  version_number version_{};
};

/// Thread safety: any thread may call any function. A forked child constructs its own.
class attached_copy {
 public:
  /// Attaches to the process that shares a copy as `name`. Throws `disconnected` if there is none,
  /// `refused` if it belongs to another user, `protocol_mismatch` if it is none of ours or of another
  /// version of the library, `timed_out` if it does not answer, `limit_exceeded` if too many processes are
  /// attached, `cancelled` soon after `stop` was requested.
  TENSORHUB_DECL explicit attached_copy(const std::string& name,
                                        std::chrono::milliseconds timeout = defaults::connect_timeout,
                                        std::stop_token stop = {});

  /// Names, types and shapes, in the owner's order.
  [[nodiscard]] TENSORHUB_DECL std::span<const tensor_spec> tensors() const noexcept;

  /// Begins to hold what is live, as soon as it is what the selector asks for. Throws `timed_out`;
  /// `unavailable` for `exactly` a version that is live no more; `disconnected` if the owner has ended.
  [[nodiscard]] TENSORHUB_DECL held_copy hold(version_selector selector = latest,
                                              std::chrono::milliseconds timeout = defaults::update_timeout);

  /// The version that is live, as last told; zero: none yet. Never waits.
  [[nodiscard]] TENSORHUB_DECL version_number live_version();

 private:
  std::shared_ptr<shared_copy_detail::copy_view> view_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/attached_copy.ipp"
#endif
