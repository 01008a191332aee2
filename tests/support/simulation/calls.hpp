#pragma once
/// \file calls.hpp
/// The running calls of a simulated history: each must end once, and by its deadline.

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/simulation/violation.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/session.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

template <typename Worker>
class simulated_calls {
 public:
  using continuation = std::function<void(const session_result&)>;
  /// The time that one answer needs, after the deadline.
  static constexpr duration answer_time = std::chrono::milliseconds{600};

  explicit simulated_calls(report_violation violate) : violate_{std::move(violate)} {}

  /// `start(session, now, deadline)` returns the ticket; `done` gets the result of the call.
  template <typename Start>
  session_ticket begin(Worker& worker, std::string what, time_point now, duration timeout, Start&& start,
                       continuation done) {
    starting_ = true;
    const session_ticket ticket = start(worker.core(), now, now + timeout);
    starting_ = false;
    open_[{worker.core().self(), ticket}] = {std::move(what) + " of " + worker.name(),
                                             now + timeout + answer_time, std::move(done)};
    if (const auto early = std::exchange(early_, std::nullopt)) end(worker, *early);
    worker.settle();
    return ticket;
  }

  void end(Worker& worker, const session_result& result) {
    const auto found = open_.find({worker.core().self(), result.ticket});
    if (found == open_.end() && starting_) {  // the call ended at once
      early_ = result;
      return;
    }
    if (found == open_.end()) return violate_({rule::calls, "a result without a call at " + worker.name()});
    auto done = std::move(found->second.done);
    open_.erase(found);
    done(result);
  }

  /// The worker's process has ended, so its calls need not end.
  [[nodiscard]] std::vector<continuation> end_all_of(incarnation worker) {
    std::vector<continuation> ended;
    std::erase_if(open_, [&](auto& entry) {
      if (entry.first.first != worker) return false;
      ended.push_back(std::move(entry.second.done));
      return true;
    });
    return ended;
  }

  /// `find(incarnation)`: the living worker, or null. A paused process cannot end a call.
  template <typename Find>
  void check(time_point now, Find&& find) const {
    for (const auto& [key, call] : open_) {
      const Worker* worker = find(key.first);
      const bool stood_still =
          worker != nullptr && (worker->paused() || now < worker->running_since() + answer_time);
      if (!stood_still && now > call.deadline)
        return violate_({rule::calls, call.what + " did not end by its deadline"});
    }
  }

  template <typename Visitor>
  void for_each(Visitor&& visit) const {
    for (const auto& [key, call] : open_) visit(key.first, call.what);
  }
  [[nodiscard]] bool is_open(incarnation worker, session_ticket ticket) const {
    return open_.contains({worker, ticket});
  }
  [[nodiscard]] bool empty() const noexcept { return open_.empty(); }

 private:
  struct call_state {
    std::string what{};
    time_point deadline{};
    continuation done{};
  };

  report_violation violate_;
  std::map<std::pair<incarnation, session_ticket>, call_state> open_;
  bool starting_ = false;
  std::optional<session_result> early_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
