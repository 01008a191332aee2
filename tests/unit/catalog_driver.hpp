#pragma once
/// \file catalog_driver.hpp
/// Speaks to a catalog as workers do, without network and simulator: one call, one look at the answers.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/policy/consistency/independent.hpp"
#include "tensorhub/service/catalog.hpp"

namespace catalog_test {

using namespace tensorhub;
using namespace std::chrono_literals;

[[nodiscard]] inline layout small_layout() {
  return layout{{{"wq", dtype::f32, {8, 8}}, {"wk", dtype::f32, {8, 8}}, {"norm", dtype::f32, {8}}}, 64};
}

/// Digest that stands for the bytes of a version.
[[nodiscard]] inline digest128 root_of(version_number version) {
  return {version.value, 0xabcdefull};
}

[[nodiscard]] inline version_number of_line(std::uint32_t line, std::uint64_t number) {
  version_number out{number};
  out.line = line;
  return out;
}

template <typename Catalog = catalog>
class driver {
 public:
  /// Without the grace of a new server, unless the options say otherwise.
  explicit driver(catalog_options options = {.recovery_grace = 0ms}, server_epoch epoch = {77})
      : core{std::move(options), epoch} {}
  template <typename Scheduler>
  driver(catalog_options options, Scheduler scheduler)
      : core{without_grace(std::move(options)), server_epoch{77}, std::move(scheduler)} {}

  [[nodiscard]] static catalog_options without_grace(catalog_options options) {
    options.recovery_grace = 0ms;
    return options;
  }

  // ---- messages

  /// Sends under the worker's next sequence number, which is returned.
  std::uint64_t send(incarnation worker, messages::message body) {
    const std::uint64_t sequence = ++sequences_[worker];
    send_as(worker, sequence, std::move(body));
    return sequence;
  }
  void send_as(incarnation worker, std::uint64_t sequence, messages::message body,
               std::uint64_t acknowledged = 0, std::vector<request_sequence> open = {}) {
    const auto client = clients.find(worker);
    core.receive(now, {worker.value, {sequence}, {acknowledged}, std::move(body), std::move(open)},
                 client == clients.end() ? client_identity{} : client->second, is_batch_);
    collect();
  }
  /// What is sent by `work` is answered together.
  template <typename Work>
  void together(Work&& work) {
    is_batch_ = true;
    work();
    is_batch_ = false;
    collect();
  }
  void pass(std::chrono::milliseconds time) {
    now = now + time;
    core.advance(now);
    collect();
  }
  /// The same, with everybody's heart beating, so that nobody is declared dead.
  void pass_alive(std::chrono::milliseconds time, std::vector<incarnation> workers) {
    for (auto left = time; left > 0ms; left -= 100ms) {
      for (const incarnation worker : workers) send_as(worker, 0, messages::heartbeat_request{});
      pass(std::min(left, 100ms));
    }
  }

  /// The answer to a request, if there is one of this type; it is taken out of the inbox.
  template <typename Answer>
  [[nodiscard]] std::optional<Answer> answer(incarnation worker, std::uint64_t sequence) {
    auto& inbox = inboxes_[worker];
    for (auto at = inbox.begin(); at != inbox.end(); ++at) {
      if (at->sequence.value != sequence || !holds_alternative<Answer>(at->body)) continue;
      Answer out = *get_if<Answer>(&at->body);
      inbox.erase(at);
      return out;
    }
    return std::nullopt;
  }
  /// How a request ended, whatever the type of its answer; empty: it was not answered. Takes the answer out.
  [[nodiscard]] std::optional<messages::status> result_of(incarnation worker, std::uint64_t sequence) {
    auto& inbox = inboxes_[worker];
    const auto at = std::ranges::find_if(
        inbox, [&](const messages::envelope& each) { return each.sequence.value == sequence; });
    if (at == inbox.end()) return std::nullopt;
    messages::status out;
    visit(
        [&](const auto& reply) {
          if constexpr (requires { reply.result.sentence; }) out = reply.result;
        },
        at->body);
    inbox.erase(at);
    return out;
  }
  /// The oldest push of this type.
  template <typename Push>
  [[nodiscard]] std::optional<Push> push(incarnation worker) {
    return answer<Push>(worker, 0);
  }
  [[nodiscard]] std::size_t waiting_messages(incarnation worker) { return inboxes_[worker].size(); }
  void clear() { inboxes_.clear(); }
  /// All answers up to here have arrived: the server may forget them.
  void acknowledge(incarnation worker, std::uint64_t sequence) {
    send_as(worker, 0, messages::heartbeat_request{}, sequence);
  }
  [[nodiscard]] std::uint64_t last_sequence(incarnation worker) { return sequences_[worker]; }
  /// Throws away answers that nobody waits for here.
  void clear_answered() {
    for (auto& [worker, inbox] : inboxes_) {
      std::erase_if(inbox, [](const messages::envelope& message) {
        return message.sequence && !holds_alternative<messages::update_reply>(message.body);
      });
    }
  }

  template <typename Answer>
  Answer ask(incarnation worker, messages::message body) {
    auto out = answer<Answer>(worker, send(worker, std::move(body)));
    REQUIRE(out.has_value());
    return *std::move(out);
  }

  // ---- calls

  [[nodiscard]] messages::join_request join_message(std::string replica, shard_of shard = {0, 1}) const {
    messages::join_request join;
    join.model = "policy";
    join.replica = std::move(replica);
    join.shard = shard;
    join.form.transport = "tcp";
    join.form.consistency = consistency_name;
    join.form.integrity = "xxh3_128";
    join.address.text = "tcp://" + join.replica + ":" + std::to_string(shard.index);
    set_layout(join, small_layout());
    return join;
  }
  static void set_layout(messages::join_request& join, const layout& shape) {
    join.form.layout_digest = shape.digest();
    join.form.chunk_bytes = shape.chunk_bytes();
    join.form.chunk_count = shape.chunk_count();
    join.form.tensors.assign(shape.tensors().begin(), shape.tensors().end());
  }
  incarnation join(std::uint64_t id, std::string replica, shard_of shard = {0, 1}) {
    const incarnation worker{id};
    const auto reply = ask<messages::join_reply>(worker, join_message(std::move(replica), shard));
    REQUIRE(reply.result.ok());
    REQUIRE_FALSE(reply.wants_layout);
    return worker;
  }

  incarnation join_at(std::uint64_t id, std::string replica, location place, shard_of shard = {0, 1}) {
    auto message = join_message(std::move(replica), shard);
    message.location = std::move(place);
    const auto reply = ask<messages::join_reply>(incarnation{id}, std::move(message));
    REQUIRE(reply.result.ok());
    return incarnation{id};
  }

  [[nodiscard]] messages::reference reference(version_number version) const {
    messages::reference out;
    out.version = version;
    out.epoch = 1;
    out.root = root_of(version);
    out.control.bytes = 4096;
    return out;
  }
  /// Counts as a worker does: every publish and every update is an operation.
  messages::status publish(incarnation worker, version_number version) {
    return publish(worker, reference(version));
  }
  messages::status publish(incarnation worker, const messages::reference& held) {
    return ask<messages::status_reply>(worker, messages::publish_request{{++operations_[worker]}, held})
        .result;
  }
  std::uint64_t unpublish(incarnation worker, version_number version) {
    return send(worker, messages::unpublish_request{version, 1, {}});
  }
  std::uint64_t update(incarnation worker, version_selector selector = latest,
                       std::chrono::milliseconds timeout = 1000ms) {
    return send(worker, update_message(worker, selector, timeout));
  }
  /// The same by a worker that can be read meanwhile.
  std::uint64_t update_shown(incarnation worker, version_selector selector = latest,
                             std::chrono::milliseconds timeout = 1000ms) {
    auto message = update_message(worker, selector, timeout);
    message.shows = shows();
    return send(worker, std::move(message));
  }
  [[nodiscard]] messages::update_request update_message(incarnation worker,
                                                        version_selector selector = latest,
                                                        std::chrono::milliseconds timeout = 1000ms) {
    messages::update_request out;
    out.operation = {++operations_[worker]};
    out.selector = selector;
    out.timeout_ms = static_cast<std::uint32_t>(timeout.count());
    return out;
  }
  /// How a reader shows what it receives.
  [[nodiscard]] static messages::announcement shows() {
    messages::announcement out;
    out.epoch = 2;
    out.control.bytes = 4096;
    return out;
  }
  /// The sources of an update that was answered at once; the upstream first.
  std::vector<messages::assignment> sources_of(incarnation worker, std::uint64_t sequence) {
    const auto reply = answer<messages::update_reply>(worker, sequence);
    REQUIRE(reply.has_value());
    REQUIRE_MESSAGE(reply->result.ok(), reply->result.sentence);
    REQUIRE(!reply->sources.empty());
    return reply->sources;
  }
  /// An update that is answered at once; its upstream.
  messages::assignment start_update(incarnation worker, version_selector selector = latest) {
    return sources_of(worker, update(worker, selector)).front();
  }
  /// All sources of an update of a worker that can be read meanwhile.
  std::vector<messages::assignment> start_shown(incarnation worker, version_selector selector = latest) {
    return sources_of(worker, update_shown(worker, selector));
  }
  std::uint64_t finish(incarnation worker, const messages::assignment& source) {
    return send(worker,
                messages::finish_request{
                    source.operation, source.version, {}, false, reference(source.version), source.lease});
  }
  std::uint64_t fail(incarnation worker, const messages::assignment& source, messages::status reason,
                     bool intact) {
    return send(worker, messages::finish_request{source.operation, source.version, std::move(reason), intact,
                                                 std::nullopt, source.lease});
  }
  messages::update_reply lose_source(incarnation worker, const messages::assignment& source,
                                     errc reason = errc::source_lost) {
    return ask<messages::update_reply>(
        worker, messages::sources_request{source.operation, messages::sources_wanted::one_failed,
                                          source.lease, reason, "connection reset"});
  }
  /// No source has had anything new for a while.
  messages::update_reply stall(incarnation worker) {
    return ask<messages::update_reply>(
        worker, messages::sources_request{
                    operation_of(worker), messages::sources_wanted::all_stalled, {}, {}, "no news"});
  }
  /// A shortage: the sources have had nothing new for a short while.
  messages::update_reply run_short(incarnation worker) {
    return ask<messages::update_reply>(
        worker, messages::sources_request{operation_of(worker), messages::sources_wanted::short_of_chunks});
  }
  [[nodiscard]] operation_counter operation_of(incarnation worker) { return {operations_[worker]}; }

  [[nodiscard]] messages::model_entry entry() {
    // Without its name, because a server that recovers answers that later.
    auto reply = ask<messages::list_reply>(incarnation{9999}, messages::list_request{});
    for (auto& model : reply.models) {
      if (model.name == "policy") return std::move(model);
    }
    FAIL("no such model");
    return {};
  }
  [[nodiscard]] messages::replica_entry entry(const std::string& replica) {
    for (const auto& row : entry().replicas) {
      if (row.name == replica) return row;
    }
    FAIL("no such replica");
    return {};
  }
  [[nodiscard]] std::vector<version_number> available() { return entry().available; }
  [[nodiscard]] std::size_t leases_on(incarnation source) const {
    std::size_t count = 0;
    core.for_each_lease([&](const auto& lease) { count += lease.source == source ? 1 : 0; });
    return count;
  }

  /// How the sources of a replica's only shard were chosen, a line each.
  [[nodiscard]] std::string why(std::string replica) {
    const auto reply =
        ask<messages::why_reply>(incarnation{9999}, messages::why_request{"policy", std::move(replica), 0});
    REQUIRE(reply.result.ok());
    return reply.decisions;
  }

  /// What must hold at any time; of a fleet it is asked now and then.
  void check_rules() const { REQUIRE(core.broken_rule() == ""); }

  Catalog core;
  time_point now{1'000'000'000};
  std::string consistency_name = "group_consistent";
  std::map<incarnation, client_identity> clients;  ///< whose connections they are; none: without security

 private:
  void collect() {
    if (is_batch_) return;
    for (outgoing& out : core.take_output()) inboxes_[out.to].push_back(std::move(out.message));
    if (core.worker_count() < fleet_size) check_rules();
  }

  static constexpr std::size_t fleet_size = 64;

  bool is_batch_ = false;

  std::map<incarnation, std::uint64_t> sequences_;
  std::map<incarnation, std::uint64_t> operations_;
  std::map<incarnation, std::vector<messages::envelope>> inboxes_;
};

using versions = std::vector<version_number>;

}  // namespace catalog_test
