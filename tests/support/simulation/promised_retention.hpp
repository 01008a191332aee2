#pragma once
/// \file promised_retention.hpp
/// Which versions must be retained, by the calls that have succeeded, whatever the server says of them.
///
/// It is the least that was promised: a call counts for a promise when it has returned, and against one when
/// it begins. (A version that is being published may push an older one out of the latest few.) A new server
/// learns from the workers what an earlier one was told: from the process that made the call, or from another
/// one that says so. Until it has heard that, nothing is promised.

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/envelope.hpp"
#include "tensorhub/service/rollbacks.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

class promised_retention {
 public:
  /// `patience`: after so long every worker that is heard knows of a change.
  explicit promised_retention(duration patience) : patience_{patience} {}

  void begins(const messages::retain_request& change) {
    if (!change.release) return;
    released_.insert(change.release.number());
    std::erase_if(pins_, [&](const auto& each) { return each.first.value == change.release.value; });
  }
  void succeeded(time_point now, const messages::retain_request& change, incarnation caller) {
    if (change.keep_latest) latest_ = {*change.keep_latest, {caller, now, true}};
    if (change.pin && !released_.contains(change.pin.number())) pins_[change.pin] = {caller, now, true};
  }
  /// A worker begins to publish this version.
  void publishes(version_number version) { begun_.insert(version); }

  /// Another server is to be believed. `until`: the end of its grace.
  void attach(time_point now, time_point until) {
    learns_until_ = until;
    for_each([&](promise& each) {
      each.is_known = false;
      if (now < each.since + patience_) each.caller = {};
    });
  }
  /// Nobody is left who knows.
  void forget() {
    for_each([](promise& each) { each = {}; });
  }
  /// The server hears what this worker knows.
  void hear(time_point now, incarnation worker, const messages::retention& keeps) {
    if (now >= learns_until_) return;
    const auto tells = [&](const promise& each) { return each.caller == worker; };
    if (tells(latest_.made) || keeps.keep_latest == latest_.count) latest_.made.is_known = true;
    for (auto& [version, made] : pins_)
      made.is_known = made.is_known || tells(made) || is_pinned(keeps, version);
  }

  /// `valid`: by the calls of the trainer that have succeeded.
  [[nodiscard]] bool holds(version_number version, const messages::retention& valid) const {
    if (is_void(valid, version)) return false;
    if (const auto pin = pins_.find(version); pin != pins_.end() && pin->second.is_known) return true;
    if (!latest_.made.is_known) return false;
    std::uint32_t newer = 0;
    for (auto each = begun_.rbegin(); each != begun_.rend() && *each > version; ++each)
      newer += is_void(valid, *each) ? 0 : 1;
    return newer < latest_.count;
  }

 private:
  struct promise {
    incarnation caller{};
    time_point since{};
    bool is_known = false;  ///< to the present server
  };
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit(latest_.made);
    for (auto& [version, made] : pins_) visit(made);
  }

  duration patience_;
  time_point learns_until_{};
  struct {
    std::uint32_t count = 0;
    promise made{};
  } latest_;
  std::map<version_number, promise> pins_;
  std::set<version_number> released_;  ///< numbers
  std::set<version_number> begun_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
