/// \file guard_mutants.cpp
/// The rules of capability_checks.hpp on sources that guard badly: each breaks exactly the rules that name
/// its fault, and every rule is broken by one of them.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tensorhub/testing/memory_transport.hpp>
#include <tensorhub/testing/wrapped_transport.hpp>
#include <utility>
#include <vector>

#include "capability_checks.hpp"

using namespace tensorhub;
using namespace capability_checks;

namespace {

enum class guard_fault {
  none,
  refuses_everyone,
  lets_everyone_in,
  takes_any_readers,
  takes_any_sources,
  takes_what_it_cannot_check,
  gives_no_reason,
  counts_nothing,
  forgets_expiry,
  expires_the_epoch_itself,
  expires_for_ever,
  goes_back,
  expires_every_source,
  ends_connections_at_expiry,
  forgets_cut_off,
  cuts_off_everyone
};

struct bad_guard_options {
  guard_fault fault = guard_fault::none;
};

/// Judges in place of the transport inside, which is never told to guard.
class bad_guard : public testing::wrapped_transport<testing::memory_transport> {
  using base = testing::wrapped_transport<testing::memory_transport>;

 public:
  using options = bad_guard_options;
  using queue = testing::memory_transport::queue;
  using endpoint = testing::memory_transport::endpoint;

  explicit bad_guard(options chosen = {}, incarnation self = {})
      : base{{}, self}, fault_{chosen.fault}, self_{self} {
    sources()[address().text] = this;
  }
  ~bad_guard() { sources().erase(address().text); }
  bad_guard(const bad_guard&) = delete;
  bad_guard& operator=(const bad_guard&) = delete;

  [[nodiscard]] queue make_queue(std::size_t depth) { return inner().make_queue(depth); }
  [[nodiscard]] endpoint connect(queue& on, const transport_address& where, incarnation peer,
                                 duration timeout, incarnation = {}) {
    sources().at(where.text)->judge(self_, where.capability);
    return inner().connect(on, {where.text, {}}, peer, timeout);
  }
  void require_capability(std::span<const std::byte> key) { check_.require(key); }
  void expire_capabilities(incarnation self, std::uint64_t epoch) noexcept {
    if (self != self_ && fault_ != guard_fault::expires_every_source) return;
    if (fault_ == guard_fault::forgets_expiry) return;
    if (fault_ == guard_fault::ends_connections_at_expiry) inner().cut_off(reader_id);
    if (fault_ == guard_fault::expires_the_epoch_itself) ++epoch;
    if (fault_ == guard_fault::expires_for_ever) epoch = UINT64_MAX;
    oldest_ = fault_ == guard_fault::goes_back ? epoch : std::max(oldest_, epoch);
  }
  [[nodiscard]] std::uint64_t refused_connections() const noexcept { return refused_; }
  void cut_off(incarnation peer) noexcept {
    if (fault_ != guard_fault::forgets_cut_off) inner().cut_off(peer);
    if (fault_ == guard_fault::cuts_off_everyone) inner().cut_off(reader_id);
  }

 private:
  static std::map<std::string, bad_guard*>& sources() {
    static std::map<std::string, bad_guard*> all;
    return all;
  }
  void judge(incarnation reader, const std::string& shown) {
    if (fault_ == guard_fault::refuses_everyone) refuse("it wants nobody");
    if (!is_good(reader, shown, 0)) refuse("it showed no valid capability");
    if (!is_good(reader, shown, oldest_)) refuse("its lease was taken back");
  }
  [[nodiscard]] bool is_good(incarnation reader, const std::string& shown, std::uint64_t oldest) const {
    if (fault_ == guard_fault::lets_everyone_in) return true;
    if (fault_ == guard_fault::takes_what_it_cannot_check && shown.size() > capability_bytes) return true;
    const auto is_for = [&](incarnation who, incarnation where) {
      return check_.accepts(std::as_bytes(std::span{shown}), who, where, {}, oldest);
    };
    return is_for(reader, self_) || (fault_ == guard_fault::takes_any_readers && is_for(reader_id, self_)) ||
           (fault_ == guard_fault::takes_any_sources && is_for(reader, source_id));
  }
  void refuse(const std::string& why) {
    if (fault_ != guard_fault::counts_nothing) ++refused_;
    throw error{errc::transport_failed, fault_ == guard_fault::gives_no_reason ? "no" : why};
  }

  guard_fault fault_;
  incarnation self_;
  capability_check check_;
  std::uint64_t oldest_ = 0;
  std::uint64_t refused_ = 0;
};

struct expectation {
  guard_fault fault;
  rule_names broken;
};
const std::vector<expectation>& expectations() {
  static const std::vector<expectation> all{
      {guard_fault::refuses_everyone, {"a_good_one_lets_in"}},
      {guard_fault::lets_everyone_in,
       {"a_wrong_one_is_refused", "an_expired_one_is_refused", "another_readers_is_refused",
        "another_sources_is_refused", "none_is_refused", "refusals_are_counted",
        "what_has_expired_stays_so"}},
      {guard_fault::takes_any_readers, {"another_readers_is_refused", "refusals_are_counted"}},
      {guard_fault::takes_any_sources, {"another_sources_is_refused", "refusals_are_counted"}},
      {guard_fault::takes_what_it_cannot_check, {"a_wrong_one_is_refused", "refusals_are_counted"}},
      {guard_fault::gives_no_reason, {"the_reason_is_said"}},
      {guard_fault::counts_nothing, {"refusals_are_counted"}},
      {guard_fault::forgets_expiry, {"an_expired_one_is_refused", "what_has_expired_stays_so"}},
      {guard_fault::expires_the_epoch_itself, {"the_epoch_itself_is_good"}},
      {guard_fault::expires_for_ever,
       {"a_good_one_lets_in", "a_later_one_lets_in", "expiry_is_of_one_source", "the_epoch_itself_is_good"}},
      {guard_fault::goes_back, {"what_has_expired_stays_so"}},
      {guard_fault::expires_every_source, {"a_good_one_lets_in", "expiry_is_of_one_source"}},
      {guard_fault::ends_connections_at_expiry,
       {"a_later_one_lets_in", "connections_outlast_their_capability", "cut_off_is_for_one_reader",
        "the_epoch_itself_is_good"}},
      {guard_fault::forgets_cut_off, {"who_is_cut_off_stays_out"}},
      {guard_fault::cuts_off_everyone, {"cut_off_is_for_one_reader"}}};
  return all;
}

}  // namespace

TEST_CASE("a source that guards badly breaks the rules that name its fault, and each rule is broken by one") {
  const guard_findings well = try_guard<bad_guard>();
  CHECK(listed(well.broken) == "");
  rule_names broken;
  for (const expectation& each : expectations()) {
    CAPTURE(static_cast<int>(each.fault));
    const guard_findings badly = try_guard<bad_guard>({.fault = each.fault});
    CHECK(listed(badly.broken) == listed(each.broken));
    broken.insert(badly.broken.begin(), badly.broken.end());
  }
  CHECK(listed(broken) == listed(well.tried));
}
