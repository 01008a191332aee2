#pragma once
/// \file attached_copy.ipp
/// What attached_copy.hpp declares.

#include <utility>

#include "tensorhub/attached_copy.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/worker/copy_view.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL held_copy::~held_copy() {
  if (view_) view_->let_go(side_);
}
TENSORHUB_DECL held_copy& held_copy::operator=(held_copy&& other) noexcept {
  std::swap(view_, other.view_);
  std::swap(side_, other.side_);
  std::swap(version_, other.version_);
  return *this;
}
TENSORHUB_DECL std::span<const std::byte> held_copy::tensor(const std::string& name) const {
  if (!view_) throw error(errc::invalid_argument, "this object holds nothing: it was moved from");
  return view_->tensor(name, side_);
}

TENSORHUB_DECL attached_copy::attached_copy(const std::string& name, std::chrono::milliseconds timeout,
                                            std::stop_token stop)
    : view_{std::make_shared<shared_copy_detail::copy_view>(name, detail::end_of(timeout), stop)} {}

TENSORHUB_DECL std::span<const tensor_spec> attached_copy::tensors() const noexcept {
  return view_->tensors();
}

TENSORHUB_DECL held_copy attached_copy::hold(version_selector selector, std::chrono::milliseconds timeout) {
  const auto found = view_->hold(selector, detail::end_of(timeout));
  return held_copy{view_, found.side, found.version};
}

TENSORHUB_DECL version_number attached_copy::live_version() {
  return view_->live_version();
}

}  // namespace tensorhub::inline TENSORHUB_MODE
