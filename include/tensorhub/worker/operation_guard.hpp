#pragma once
/// \file operation_guard.hpp
/// One operation of a worker at a time: a second call of publish, unpublish, update or leave is told `busy`.

#include <memory>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Held while an operation runs. Movable, so that a call can go on in another thread. `Worker` befriends it,
/// and has the flags `operating_` (atomic) and `left_`, and `failure`, which makes its errors.
template <typename Worker>
class operation_guard {
 public:
  /// Throws `busy`, or `invalid_argument` if the worker has left its model.
  explicit operation_guard(Worker& owner) : owner_{&owner} {
    if (owner.operating_.exchange(true)) {
      static_cast<void>(owner_.release());
      throw owner.failure(errc::busy,
                          "another publish, unpublish, update or leave of this worker is running");
    }
    if (owner.left_)
      throw owner.failure(errc::invalid_argument, "this worker has left its model: construct a new one");
  }

 private:
  struct end_operation {
    void operator()(Worker* owner) const noexcept { owner->operating_ = false; }
  };
  std::unique_ptr<Worker, end_operation> owner_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
