#pragma once
/// \file session_driver.hpp
/// Plays server and shell for one session: takes its messages and actions, and answers them one at a time.

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tensorhub/service/session.hpp"

namespace session_test {

using namespace tensorhub;
using namespace std::chrono_literals;

class driver {
 public:
  driver() : driver{[](session_options&) {}} {}
  template <typename Change>
  explicit driver(Change&& change) : core{changed(change), incarnation{42}, shape_} {}

  /// A change of the options: the replica has another shard.
  static void in_two_shards(session_options& options) { options.shard = {0, 2}; }

  static session_options options() {
    session_options out;
    out.server = "tcp://server:5570";
    out.model = "policy";
    out.replica = "rollout";
    out.consistency = "group_consistent";
    out.request_retry = 1000ms;
    out.drain_timeout = 5000ms;
    return out;
  }

  // ---- what comes out

  /// The next message of this type that was not taken yet; others stay.
  template <typename Message>
  [[nodiscard]] std::optional<messages::envelope> sent() {
    for (auto& message : core.take_output()) output_.push_back(std::move(message));
    for (auto at = output_.begin(); at != output_.end(); ++at) {
      if (!holds_alternative<Message>(at->body)) continue;
      messages::envelope out = *std::move(at);
      output_.erase(at);
      return out;
    }
    return std::nullopt;
  }
  template <typename Message>
  [[nodiscard]] Message sent_body() {
    auto message = sent<Message>();
    REQUIRE(message.has_value());
    last_sequence = message->sequence;
    return std::move(*get_if<Message>(&message->body));
  }
  [[nodiscard]] bool silent() {
    for (auto& message : core.take_output()) output_.push_back(std::move(message));
    return output_.empty();
  }
  void clear_output() {
    static_cast<void>(core.take_output());
    output_.clear();
  }

  /// How often the session has asked for a new connection to its only server. No other action counts these.
  std::size_t new_connections = 0;
  /// The next action, which must be of this type.
  template <typename Action>
  [[nodiscard]] Action action() {
    take_actions();
    REQUIRE(!actions_.empty());
    REQUIRE(holds_alternative<Action>(actions_.front()));
    Action out = *get_if<Action>(&actions_.front());
    actions_.erase(actions_.begin());
    return out;
  }
  /// Takes the order `cut_off_all`, and carries it out.
  void carry_out_cut_off() {
    static_cast<void>(action<session_actions::cut_off_all>());
    core.all_cut_off(now);
  }
  void drop_actions() {
    take_actions();
    actions_.clear();
  }
  [[nodiscard]] bool no_action() {
    take_actions();
    return actions_.empty();
  }

  /// How this call ended; empty: not yet. No call may end twice.
  [[nodiscard]] std::optional<session_result> result(session_ticket ticket) {
    for (auto& one : core.take_results()) results_.push_back(std::move(one));
    std::optional<session_result> out;
    for (auto& one : results_) {
      if (one.ticket != ticket) continue;
      REQUIRE_FALSE(out.has_value());
      out = one;
    }
    return out;
  }

  // ---- what goes in

  void answer(messages::message body) { answer(last_sequence, std::move(body)); }
  void answer(request_sequence sequence, messages::message body) {
    core.receive(now, {77, sequence, {}, std::move(body)});
  }
  void push(messages::message body) { answer(request_sequence{}, std::move(body)); }
  void pass(std::chrono::milliseconds time) {
    now = now + time;
    core.advance(now);
  }
  /// The same, while the server can be heard.
  void pass_heard(std::chrono::milliseconds time) {
    push(messages::heartbeat_reply{server_epoch{77}, {}});
    now = now + time;
    push(messages::heartbeat_reply{server_epoch{77}, {}});
    core.advance(now);
  }
  [[nodiscard]] time_point in(std::chrono::milliseconds time) const { return now + time; }

  // ---- whole steps

  void join() {
    const auto ticket = core.join(now, in(30s));
    static_cast<void>(sent_body<messages::join_request>());
    answer(joined_reply());
    REQUIRE(result(ticket).value().outcome.ok());
    clear_output();
  }
  [[nodiscard]] static messages::join_reply joined_reply() {
    messages::join_reply reply;
    reply.epoch = server_epoch{77};
    reply.heartbeat_interval_ms = 500;
    return reply;
  }
  void hold(version_number version) {
    const auto ticket = core.publish(now, version, {1, 2}, control(), in(1s));
    static_cast<void>(sent_body<messages::publish_request>());
    answer(messages::status_reply{{}, {1}});
    REQUIRE(result(ticket).value().outcome.ok());
    REQUIRE(core.held()->version == version);
  }
  [[nodiscard]] static messages::assignment source(version_number version, std::uint64_t lease = 5,
                                                   bool drained = true) {
    messages::assignment out;
    out.operation = {1};
    out.lease = {lease};
    out.version = version;
    out.root = {version.value, 9};
    out.source = {100 + lease};
    out.source_replica = "trainer";
    out.address.text = "tcp://trainer:1";
    out.epoch = 3;
    out.drained = drained;
    return out;
  }
  [[nodiscard]] static messages::update_reply assign(const messages::assignment& from) {
    return assign(std::vector{from});
  }
  [[nodiscard]] static messages::update_reply assign(std::vector<messages::assignment> from,
                                                     std::uint64_t ordinal = 0) {
    const version_number version = from.front().version;
    return {{}, {}, false, version, std::move(from), ordinal};
  }
  /// An update that is pulling now.
  session_ticket start_update(version_number version, std::chrono::milliseconds timeout = 60s) {
    const auto ticket = core.update(now, latest, in(timeout));
    static_cast<void>(sent_body<messages::update_request>());
    answer(assign(source(version)));
    begin_reading(version);
    return ticket;
  }
  /// The next actions are those of a pull that begins: the epoch first, then the reading.
  session_actions::start_pull begin_reading(version_number version) {
    CHECK(action<session_actions::raise_epoch>().epoch == core.epoch());
    auto order = action<session_actions::start_pull>();
    REQUIRE(order.version == version);
    return order;
  }
  [[nodiscard]] static remote_region control(std::uint64_t base = 0) {
    remote_region out;
    out.base = base;
    out.bytes = 4096;
    return out;
  }

  /// With the memory of one segment.
  [[nodiscard]] static readable_memory readable(std::uint64_t base) {
    return {control(base), std::array{control(base + 1)}};
  }

  session core;
  time_point now{1'000'000'000};
  request_sequence last_sequence{};

 private:
  template <typename Change>
  [[nodiscard]] static session_options changed(Change& change) {
    session_options out = options();
    change(out);
    return out;
  }
  void take_actions() {
    for (auto& one : core.take_actions()) {
      const auto* order = get_if<session_actions::use_server>(&one);
      if (order != nullptr && core.options().servers == 1)
        ++new_connections;
      else
        actions_.push_back(std::move(one));
    }
  }

  layout shape_{{{"wq", dtype::f32, {8, 8}}, {"norm", dtype::f32, {8}}}, 1024};
  std::vector<messages::envelope> output_;
  std::vector<session_action> actions_;
  std::vector<session_result> results_;
};

}  // namespace session_test
