#pragma once
/// \file pull_contacts.ipp
/// Definitions of pull_contacts.hpp.

#include <algorithm>

#include "tensorhub/transfer/pull_contacts.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL pull_contacts::pull_contacts(pull& transfer, const contact_options& options)
    : transfer_{&transfer}, options_{options} {}

TENSORHUB_DECL std::optional<pull_contacts::attempt> pull_contacts::next(lane_id lane) {
  if (lane >= lanes_.size()) lanes_.resize(lane + 1);
  lane_record& self = lanes_[lane];
  if (self.seen == changes()) return std::nullopt;
  sources_.resize(transfer_->source_count());
  self.met.resize(sources_.size());
  const bool leaves_far = lane > 0 && !lanes_[0].is_trying && !transfer_->is_away(0);
  const std::optional<source_slot> slot = next_to_meet(self, leaves_far);
  if (!slot) return std::nullopt;
  source_record& source = sources_[*slot];
  transfer_->leave_reads(lane);
  self.is_trying = true;
  attempt out{*slot, patience_for(*slot), source.met == contact::none};
  if (!out.explores) return out;
  source.met = contact::trying;
  if (transfer_->facts(*slot).far) return out;
  const duration left = std::max(out.patience - source.tried, options_.shortest_try);
  if (has_others(*slot))
    out.patience = std::min(left, options_.first_try + source.tried);
  else
    out.patience = source.tried == duration{} ? std::min(left, options_.first_try_alone) : left;
  return out;
}

TENSORHUB_DECL channel_id pull_contacts::made(lane_id lane, const attempt& ended,
                                              std::uint64_t ordered_read_bytes) {
  lanes_[lane].met[ended.slot] = true;
  lanes_[lane].is_trying = false;
  if (ended.explores) {
    sources_[ended.slot].met = contact::made;
    ++ended_;
  }
  return transfer_->open_channel(ended.slot, lane, ordered_read_bytes);
}

TENSORHUB_DECL bool pull_contacts::failed(lane_id lane, const attempt& ended, errc reason,
                                          const std::string& sentence) {
  source_record& source = sources_[ended.slot];
  lanes_[lane].is_trying = false;
  if (reason == errc::system_failed && !ended.explores && source.met == contact::made) {
    lanes_[lane].met[ended.slot] = true;
    return false;
  }
  source.tried += ended.patience;
  const bool timed_out = reason == errc::timed_out;
  const bool again = timed_out && ended.explores && source.tried < patience_for(ended.slot);
  if (!again) {
    lanes_[lane].met[ended.slot] = true;
    lose(ended.slot, reason, sentence);
  }
  if (ended.explores) {
    source.met = contact::none;
    ++ended_;
  }
  return again;
}

TENSORHUB_DECL void pull_contacts::lose(source_slot slot, errc reason, const std::string& sentence) {
  const bool is_told = reason == errc::timed_out || reason == errc::system_failed;
  transfer_->lose_source(slot, is_told ? reason : errc::source_lost, "connecting: " + sentence);
}

TENSORHUB_DECL std::optional<source_slot> pull_contacts::next_to_meet(lane_record& lane,
                                                                      bool leaves_far) const {
  std::optional<source_slot> unknown;
  bool is_exploring = false, has_contact = false, has_left = false;
  for (source_slot slot = 0; slot < sources_.size(); ++slot) {
    if (transfer_->is_lost(slot)) continue;
    const contact met = sources_[slot].met;
    is_exploring |= met == contact::trying;
    has_contact |= met == contact::made;  // one that was released, too: some lane has to end its reads
    if (!transfer_->is_wanted(slot)) continue;
    if (met == contact::made && !lane.met[slot]) return slot;
    if (met != contact::none || lane.met[slot]) continue;
    const bool is_left = leaves_far && transfer_->facts(slot).far;
    has_left |= is_left;
    if (!is_left && (!unknown || sources_[slot].tried < sources_[*unknown].tried)) unknown = slot;
  }
  if (is_exploring && has_contact) unknown.reset();
  if (!unknown && !has_left) lane.seen = changes();
  return unknown;
}

TENSORHUB_DECL bool pull_contacts::has_others(source_slot slot) const {
  for (source_slot other = 0; other < sources_.size(); ++other)
    if (other != slot && !transfer_->is_lost(other) && !transfer_->is_idle(other)) return true;
  return false;
}

TENSORHUB_DECL duration pull_contacts::patience_for(source_slot slot) const {
  for (source_slot other = 0; other < sources_.size(); ++other) {
    if (other != slot && sources_[other].met == contact::made && transfer_->is_wanted(other))
      return std::min(options_.connect_timeout, options_.next_connect_timeout);
  }
  return options_.connect_timeout;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
