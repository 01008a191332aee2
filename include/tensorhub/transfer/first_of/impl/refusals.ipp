#pragma once
/// \file refusals.ipp
/// The text of refusals and the memory of failures: definitions of refusals.hpp.

#include <algorithm>

#include "tensorhub/transfer/first_of/refusals.hpp"

namespace tensorhub::inline TENSORHUB_MODE::first_of_detail {

TENSORHUB_DECL std::string refusals::of(std::string_view member) const {
  for (const auto& [name, why] : all_)
    if (name == member) return why;
  return {};
}

TENSORHUB_DECL std::string refusals::text() const {
  std::string out;
  for (const auto& [name, why] : all_) {
    if (!out.empty()) out += "; ";
    out += std::string{name} + ": " + why;
  }
  return out;
}

TENSORHUB_DECL void failure_memory::note(incarnation peer, std::uint32_t failed, std::uint32_t late,
                                         const times& how_long) {
  const auto now = steady::now();
  const std::lock_guard lock{mutex_};
  for (std::size_t member = 0; failed >> member != 0; ++member) {
    if ((failed >> member & 1u) == 0) continue;
    if (entries_.size() >= max_entries)
      std::erase_if(entries_, [&](const auto& e) { return e.second.until <= now; });
    if (entries_.size() >= max_entries) entries_.clear();  // forgetting costs one more attempt each
    entry& each = entries_[{peer, member}];
    const bool is_late = (late >> member & 1u) != 0;
    each.how_long = is_late ? std::max(how_long.shortest, 2 * each.how_long) : how_long.longest;
    each.how_long = std::min(each.how_long, how_long.longest);
    each.until = now + each.how_long;
  }
}

TENSORHUB_DECL void failure_memory::forget(incarnation peer, std::size_t member) {
  const std::lock_guard lock{mutex_};
  entries_.erase({peer, member});
}

TENSORHUB_DECL bool failure_memory::holds(incarnation peer, std::size_t member) {
  const std::lock_guard lock{mutex_};
  const auto found = entries_.find({peer, member});
  return found != entries_.end() && found->second.until > steady::now();
}

}  // namespace tensorhub::inline TENSORHUB_MODE::first_of_detail
