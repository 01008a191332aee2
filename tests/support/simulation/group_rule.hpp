#pragma once
/// \file group_rule.hpp
/// Contract 3: the shards of a replica get one version per operation, and an update succeeds for all of them
/// or for none.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "support/simulation/violation.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/session.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

class group_rule {
 public:
  /// The server numbers this replica's calls from one again.
  void forget(const std::string& replica) { operations_.erase(replica); }

  /// Another shard's call of this operation has ended well: what was decided for it is decided for all.
  [[nodiscard]] bool has_succeeded(const std::string& replica, operation_counter number) const {
    const auto calls = operations_.find(replica);
    if (calls == operations_.end() || !calls->second.contains(number)) return false;
    return std::ranges::any_of(calls->second.at(number), &outcome::ok);
  }

  /// A shard's call has ended. `lives(incarnation)`: results of a process that has ended bind no other shard,
  /// and their numbers may be used again. `server`: the one that the worker had joined. A worker that does
  /// not know of a new server yet may end a call whose number that server has given to another call.
  template <typename Lives, typename Violate>
  void check(incarnation worker, server_epoch server, const std::string& name, const std::string& replica,
             const session_result& result, bool one_version, bool one_end, Lives&& lives, Violate&& violate) {
    std::vector<outcome>& all = operations_[replica][result.operation];
    std::erase_if(all, [&](const outcome& each) { return !lives(each.worker); });
    // A shard that gave up, got no answer in time, or is dead may not know that the group succeeded.
    const errc code = result.outcome.code;
    const bool did_not_hear = code == errc::timed_out || code == errc::disconnected ||
                              code == errc::replaced || code == errc::cancelled;
    if (!result.outcome.ok() && did_not_hear) return;
    const outcome now{worker, server, result.outcome.ok(), result.version,
                      name + ": " + result.outcome.sentence};
    for (const outcome& other : all) {
      if (one_version && other.ok && now.ok && other.version != now.version) {
        violate({rule::group_version, "shards of " + replica + " got versions " + to_string(other.version) +
                                          " and " + to_string(now.version)});
      }
      if (one_end && other.ok != now.ok && other.server == now.server) {
        violate({rule::group_end, "an update of " + replica +
                                      " succeeded for some shards and failed for others: [" + other.text +
                                      "] [" + now.text + "]"});
      }
    }
    all.push_back(now);
  }

 private:
  /// The result of one shard's call of an operation.
  struct outcome {
    incarnation worker{};
    server_epoch server{};
    bool ok = false;
    version_number version{};
    std::string text{};
  };

  std::map<std::string, std::map<operation_counter, std::vector<outcome>>> operations_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
