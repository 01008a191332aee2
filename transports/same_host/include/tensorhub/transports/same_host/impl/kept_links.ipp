#pragma once
/// \file kept_links.ipp
/// Definitions of kept_links.hpp.

#include <algorithm>
#include <utility>

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/transports/same_host/kept_links.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

TENSORHUB_DECL std::unique_ptr<link> kept_links::take(const std::string& address, incarnation self,
                                                      incarnation peer) noexcept {
  for (;;) {
    std::unique_ptr<link> found;
    {
      const std::lock_guard lock{mutex_};
      const auto at = detail::find_if(links_, [&](const auto& each) {
        return each->peer() == peer && each->self() == self && each->address() == address;
      });
      if (at == links_.end()) return nullptr;
      found = std::move(*at);
      links_.erase(at);
    }
    if (found->state() != completion_status::ok) continue;
    found->begin_again();
    return found;
  }
}

TENSORHUB_DECL void kept_links::put(std::unique_ptr<link> one) noexcept {
  if (most_ == 0 || one->state() != completion_status::ok) return;
  const std::lock_guard lock{mutex_};
  links_.push_back(std::move(one));  // reserved
  if (links_.size() > most_) links_.erase(links_.begin());
}

TENSORHUB_DECL void kept_links::sweep() noexcept {
  const std::lock_guard lock{mutex_};
  std::erase_if(links_, [](const auto& each) { return each->state() != completion_status::ok; });
  for (const auto& each : links_) each->sweep();
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
