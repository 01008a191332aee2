#pragma once
/// \file arrival_budget.ipp
/// Definitions of service/arrival_budget.hpp.

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/arrival_budget.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL void arrival_budget::account::refill(time_point now) noexcept {
  credits = std::min(credits + to_seconds(now - as_of) * credits_per_second, most_credits);
  as_of = now;
}

TENSORHUB_DECL arrival_budget::account* arrival_budget::account_of(const ip_network& from, time_point now) {
  if (accounts_.size() >= prune_at_ && now >= prune_from_) {
    prune_from_ = now + std::chrono::seconds{1};
    for (auto& [network, each] : accounts_) each.refill(now);
    std::erase_if(accounts_, [](const auto& entry) { return entry.second.credits >= most_credits; });
    prune_at_ = std::min(2 * accounts_.size() + 1024, most_networks);
  }
  auto found = accounts_.find(from);
  if (found == accounts_.end()) {
    if (accounts_.size() >= most_networks) return nullptr;
    found = accounts_.emplace(from, account{most_credits, now}).first;
  }
  found->second.refill(now);
  return &found->second;
}

TENSORHUB_DECL void arrival_budget::proved(const ip_network& from, time_point now) {
  if (account* const known = account_of(from, now); known != nullptr)
    known->credits = std::min(known->credits + 1, most_credits);
}

TENSORHUB_DECL void arrival_budget::charge(const ip_network& from, double cost, time_point now) {
  account* const known = account_of(from, now);
  if (known == nullptr) return;
  known->credits = std::max(known->credits - cost, 0.0);
  if (known->credits > 0 || detail::contains(blocked_, from)) return;
  if (blocked_.size() >= most_filtered_networks) blocked_.erase(blocked_.begin());
  blocked_.push_back(from);
  ++times_blocked_;
  has_changed_ = true;
}

TENSORHUB_DECL bool arrival_budget::refresh(time_point now) {
  const std::size_t opened = std::erase_if(blocked_, [&](const ip_network& each) {
    account* const known = account_of(each, now);
    return known == nullptr || known->credits >= credits_to_reopen;
  });
  return std::exchange(has_changed_, false) || opened > 0;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
