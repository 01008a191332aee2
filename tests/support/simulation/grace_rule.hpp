#pragma once
/// \file grace_rule.hpp
/// Which version an update gets: the latest one that is there, and what is there is not said to be missing.
/// Contract 5: so it is while a new server may not know everything yet.
///
/// What is there is taken from the workers themselves, not from any server: a version is there while all
/// shards of a replica hold it and are not about to let go of it. The server knows of it if it has answered
/// these shards; within the grace, an answer of an earlier server counts, too. What counts is the moment of
/// the decision: a shard that calls later is told what was decided then. What an earlier server has decided
/// already is only gone on with, so it may be older than the latest.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "support/simulation/violation.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog.hpp"
#include "tensorhub/service/envelope.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

class grace_rule {
 public:
  struct hooks {
    std::function<version_number(version_number)> valid{};  ///< the valid version of a number
    std::function<bool(version_number)> is_there{};
    std::function<version_number()> newest_known{};  ///< of those that are there, and the server knows of
    std::function<bool(version_number)> is_known{};
    report_violation violate{};
  };

  /// `grace`: of a server that works.
  grace_rule(duration grace, hooks world) : grace_{grace}, world_{std::move(world)} {}

  /// Another server is to be believed from now on. `told`: the latest version of which workers have heard.
  void attach(time_point now, version_number told) {
    until_ = now + grace_;
    told_ = told;
    asked_.clear();
    refused_.clear();
    judged_.clear();
  }

  void before(const messages::envelope& message) {
    // Who prefers what is near may get something older, or nothing.
    const auto* update = get_if<messages::update_request>(&message.body);
    if (update != nullptr && update->reach == messages::update_reach::anywhere)
      asked_[{message.sender, message.sequence.value}] = update->selector;
  }

  /// `reader`: what the server knows of the worker that is answered.
  void check(time_point now, const outgoing& out, const catalog_detail::worker_state* reader) {
    const auto* reply = get_if<messages::update_reply>(&out.message.body);
    if (reply == nullptr || reader == nullptr) return;
    const bool not_found = reply->result.code == errc::not_found || reply->result.code == errc::unavailable;
    const bool first =
        not_found &&
        refused_.insert({reader->replica->name, reply->operation}).second;  // others hear it later
    const auto asked = asked_.find({out.to.value, out.message.sequence.value});
    if (asked == asked_.end()) return;
    const version_selector& selector = asked->second;
    const auto* operation =
        catalog_detail::find_operation(*reader->replica, reply->operation, reader->shard.index);
    if (first && operation != nullptr && is_refusal_of(*operation, selector)) {
      const version_number version = world_.valid(selector.version);
      if (now < until_ ? world_.is_there(version) : world_.is_known(version))
        world_.violate({rule::grace, within(now) + "the server says of a version that is there: " +
                                         reply->result.sentence});
    }
    if (reply->result.ok() && operation != nullptr) judge(now, *operation);
  }

  /// After each event of the server: what it has decided by that. `model`: null if it knows none.
  void look(time_point now, const catalog_detail::model_state* model) {
    if (model == nullptr) return;
    for (const auto& [serial, operation] : model->operations.all)
      if (operation->is_decided() && !operation->is_publish) judge(now, *operation);
  }

 private:
  /// The operation ended because its version was refused, and all shards that called it asked for that
  /// version. (An operation that ran out of sources has been decided, here or by an earlier server, perhaps
  /// for another version than a shard asks for that calls it late.)
  [[nodiscard]] static bool is_refusal_of(const catalog_detail::operation_state& operation,
                                          const version_selector& selector) {
    return operation.stage == catalog_detail::operation_stage::abandoned && !operation.inherited &&
           std::ranges::all_of(operation.members, [&](const catalog_detail::member_state& member) {
             return !member.called || member.selector.version == selector.version;
           });
  }

  [[nodiscard]] std::string within(time_point now) const { return now < until_ ? "within the grace " : ""; }

  /// Once: what was decided for those who asked for the latest version.
  void judge(time_point now, const catalog_detail::operation_state& operation) {
    if (!judged_.insert(operation.serial).second || operation.inherited || !operation.version) return;
    std::size_t calls = 0;
    for (const catalog_detail::member_state& member : operation.members) {
      if (!member.called) continue;
      ++calls;
      if (member.selector.kind == version_selector::kind_type::exactly ||
          member.reach != messages::update_reach::anywhere)
        return;
    }
    if (calls == 0) return;
    version_number newest = world_.newest_known();
    if (now < until_ && told_ > newest && world_.is_there(told_)) newest = told_;
    if (operation.version >= newest) return;
    world_.violate({rule::grace, within(now) + "latest is version " + to_string(operation.version) +
                                     ", although version " + to_string(newest) + " is there"});
  }

  duration grace_;
  hooks world_;
  time_point until_{};
  version_number told_{};
  std::map<std::pair<std::uint64_t, std::uint64_t>, version_selector> asked_;  ///< by sender and number
  std::set<std::pair<std::string, operation_counter>> refused_;
  std::set<std::uint64_t> judged_;  ///< by their serial numbers
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
