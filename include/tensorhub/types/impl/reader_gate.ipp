#pragma once
/// \file reader_gate.ipp
/// Definitions of types/reader_gate.hpp.

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/types/reader_gate.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL std::string describe(refusal why, const handshake_facts& facts) {
  switch (why) {
    case refusal::none:
      return {};
    case refusal::other_protocol:
      return "speaks data protocol " + std::to_string(facts.source_protocol) + ", this process speaks " +
             std::to_string(facts.own_protocol);
    case refusal::other_process:
      return "is another process (incarnation " + to_hex(facts.found) +
             ") than the one that was expected there (" + to_hex(facts.expected) + ")";
    case refusal::changed_process:
      return "is another process than the one that was expected there";
    case refusal::cut_off:
      return "has cut this process off: it was declared dead";
    case refusal::no_capability:
      return "accepts only readers with a capability from the reference server: this process showed none, or "
             "one that was made for another reader or another source, or for a version that was taken back";
    case refusal::unknown:
      break;
  }
  return "answered with an unknown status";
}

TENSORHUB_DECL incarnation reader_gate::self() const noexcept {
  return self_for({});
}
TENSORHUB_DECL incarnation reader_gate::self_for(incarnation expected) const noexcept {
  const std::lock_guard lock{mutex_};
  if (detail::find(own_, expected, &identity::self) != own_.end()) return expected;
  return own_.empty() ? incarnation{} : own_.front().self;
}
TENSORHUB_DECL reader_gate::identity* reader_gate::find(incarnation self) noexcept {
  const auto found = detail::find(own_, self, &identity::self);
  return found == own_.end() ? nullptr : &*found;
}
TENSORHUB_DECL void reader_gate::admit(incarnation self) {
  const std::lock_guard lock{mutex_};
  if (find(self) == nullptr) own_.push_back({self});
}
TENSORHUB_DECL void reader_gate::rename(incarnation self, incarnation next) noexcept {
  const std::lock_guard lock{mutex_};
  if (identity* const known = find(self)) known->self = next;
}
TENSORHUB_DECL void reader_gate::dismiss(incarnation self) noexcept {
  const std::lock_guard lock{mutex_};
  std::erase_if(own_, [self](const identity& each) { return each.self == self; });
}

TENSORHUB_DECL void reader_gate::cut_off(incarnation reader) noexcept {
  const std::lock_guard lock{mutex_};
  try {
    cut_off_.insert(reader);
  } catch (...) {
    refuses_everybody_ = true;
  }
}

TENSORHUB_DECL void reader_gate::refuse_everybody() noexcept {
  const std::lock_guard lock{mutex_};
  refuses_everybody_ = true;
}

TENSORHUB_DECL void reader_gate::require_capability(std::span<const std::byte> key) {
  const std::lock_guard lock{mutex_};
  capabilities_.require(key);
}

TENSORHUB_DECL void reader_gate::expire_capabilities(incarnation self, std::uint64_t epoch) noexcept {
  const std::lock_guard lock{mutex_};
  if (identity* const known = find(self)) known->oldest_epoch = std::max(known->oldest_epoch, epoch);
}

TENSORHUB_DECL bool reader_gate::has_cut_off(incarnation reader) const noexcept {
  const std::lock_guard lock{mutex_};
  return refuses_everybody_ || cut_off_.contains(reader);
}

TENSORHUB_DECL refusal reader_gate::judge_reader(incarnation reader, incarnation expected,
                                                 std::span<const std::byte> capability,
                                                 channel_binding binding) noexcept {
  const std::lock_guard lock{mutex_};
  const identity* const known = find(expected);
  if (known == nullptr) return refusal::other_process;
  if (refuses_everybody_ || cut_off_.contains(reader)) return refusal::cut_off;
  if (capabilities_.accepts(capability, reader, expected, binding, known->oldest_epoch)) return refusal::none;
  refused_connections_.fetch_add(1);
  return refusal::no_capability;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
