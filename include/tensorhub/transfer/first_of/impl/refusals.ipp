#pragma once
/// \file refusals.ipp
/// The text of refusals and the memory of failures: definitions of refusals.hpp.

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

TENSORHUB_DECL void failure_memory::note(incarnation peer, std::uint32_t failed,
                                         std::chrono::milliseconds how_long) {
  if (failed == 0) return;
  const auto now = steady::now();
  const std::lock_guard lock{mutex_};
  if (entries_.size() >= max_entries)
    std::erase_if(entries_, [&](const auto& e) { return e.second.until <= now; });
  if (entries_.size() >= max_entries) entries_.clear();  // forgetting costs one more attempt each
  entries_[peer] = {failed, now + how_long};
}

TENSORHUB_DECL bool failure_memory::holds(incarnation peer, std::size_t member) {
  const std::lock_guard lock{mutex_};
  const auto found = entries_.find(peer);
  if (found == entries_.end()) return false;
  if (found->second.until <= steady::now()) {
    entries_.erase(found);
    return false;
  }
  return (found->second.failed >> member & 1u) != 0;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::first_of_detail
