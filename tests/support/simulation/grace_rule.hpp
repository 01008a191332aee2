#pragma once
/// \file grace_rule.hpp
/// Contract 5: while a new server may not know all workers yet, `latest` does not go backwards, and the
/// server does not answer "not found".
///
/// The rule asks the workers themselves, not a server, which versions exist: a version exists while all
/// shards of a replica hold it and none is about to give it up. The moment of the decision counts: a shard
/// that calls later gets the decision of that moment. Decisions of an earlier server are only continued, so
/// they may name an older version than the latest.

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog.hpp"
#include "tensorhub/service/envelope.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

class grace_rule {
 public:
  struct hooks {
    std::function<bool(version_number)> is_there{};
    std::function<void(const std::string&)> violate{};
  };

  /// `grace`: the grace period of a correct server.
  grace_rule(duration grace, hooks world) : grace_{grace}, world_{std::move(world)} {}

  /// Another server is authoritative from now on. `latest_heard`: the latest version of which workers have
  /// heard.
  void attach(time_point now, version_number latest_heard) {
    until_ = now + grace_;
    latest_heard_ = latest_heard;
    selectors_.clear();
    refused_.clear();
    judged_.clear();
  }

  void before(const messages::envelope& message) {
    // A reader that prefers near sources may get an older version, or none.
    const auto* update = std::get_if<messages::update_request>(&message.body);
    if (update != nullptr && update->reach == messages::update_reach::anywhere)
      selectors_[{message.sender, message.sequence.value}] = update->selector;
  }

  /// `reader`: the server's record of the worker that gets the answer.
  void check(time_point now, const outgoing& out, const catalog_detail::worker_state* reader) {
    const auto* reply = std::get_if<messages::update_reply>(&out.message.body);
    if (reply == nullptr || reader == nullptr || now >= until_) return;
    const bool not_found = reply->result.code == errc::not_found || reply->result.code == errc::unavailable;
    const bool first = not_found &&
                       // Other shards get the answer later.
                       refused_.insert({reader->replica->name, reply->operation}).second;
    const auto found = selectors_.find({out.to.value, out.message.sequence.value});
    if (found == selectors_.end()) return;
    const version_selector& selector = found->second;
    const std::string sentence = "version " + to_string(selector.version) + " of model";
    if (first && reply->result.sentence.find(sentence) != std::string::npos &&
        world_.is_there(selector.version)) {
      world_.violate("within the grace the server says of a version that is there: " +
                     reply->result.sentence);
    }
    const bool is_latest = selector.kind == version_selector::kind_type::latest;
    if (!reply->result.ok() || !is_latest || reply->version >= latest_heard_) return;
    const auto* operation =
        catalog_detail::find_operation(*reader->replica, reply->operation, reader->shard.index);
    if (operation != nullptr) judge(*operation);
  }

  /// Called after each event of the server: checks what that event decided. `model`: null if the server has
  /// none.
  void look(time_point now, const catalog_detail::model_state* model) {
    if (model == nullptr || now >= until_) return;
    for (const auto& [name, replica] : model->replicas) {
      for (const auto& [key, operation] : replica->operations) {
        if (operation.decided && !operation.is_publish) judge(operation);
      }
    }
  }

 private:
  /// Checks once what was decided for readers that asked for the latest version.
  void judge(const catalog_detail::operation_state& operation) {
    if (!judged_.insert({operation.replica->name, operation.counter}).second) return;
    if (operation.fixed || !operation.version || operation.version >= latest_heard_) return;
    std::size_t calls = 0;
    for (const catalog_detail::member_state& member : operation.members) {
      if (!member.called) continue;
      ++calls;
      if (member.selector.kind != version_selector::kind_type::latest ||
          member.reach != messages::update_reach::anywhere)
        return;
    }
    if (calls == 0 || !world_.is_there(latest_heard_)) return;
    world_.violate("within the grace latest goes back to version " + to_string(operation.version) +
                   ", although version " + to_string(latest_heard_) + " is there");
  }

  duration grace_;
  hooks world_;
  time_point until_{};
  version_number latest_heard_{};
  std::map<std::pair<std::uint64_t, std::uint64_t>, version_selector> selectors_;  ///< by sender and number
  std::set<std::pair<std::string, operation_counter>> refused_;
  std::set<std::pair<std::string, operation_counter>> judged_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
