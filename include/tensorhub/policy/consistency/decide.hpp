#pragma once
/// \file decide.hpp
/// The common part of all consistency policies: the answer to a selector when no staleness is allowed.

#include "tensorhub/concepts/consistency.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

[[nodiscard]] constexpr version_decision decide_fresh(const version_selector& selector,
                                                      const version_view& view) noexcept {
  using kind = version_decision::kind_type;
  const auto take_or_keep = [&](version_number version) -> version_decision {
    return {version == view.held ? kind::keep : kind::take, version, errc::ok};
  };
  switch (selector.kind) {
    case version_selector::kind_type::exactly:
      if (selector.version == view.held && view.held) return take_or_keep(view.held);
      if (view.wanted_available) return take_or_keep(selector.version);
      // A version above all seen versions may still come; a version that is gone does not come back.
      if (selector.version > view.latest_ever) return {kind::wait, {}, errc::ok};
      return {kind::refuse, {}, errc::unavailable};
    case version_selector::kind_type::latest:
    case version_selector::kind_type::at_least: {
      const version_number best = view.held > view.latest_available ? view.held : view.latest_available;
      if (best && (selector.kind == version_selector::kind_type::latest || best >= selector.version)) {
        return take_or_keep(best);
      }
      return {kind::wait, {}, errc::ok};
    }
  }
  return {kind::refuse, {}, errc::invalid_argument};
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
