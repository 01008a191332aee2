#pragma once
/// \file server_client.ipp
/// What server_client.hpp declares.

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "tensorhub/detail/random_id.hpp"
#include "tensorhub/detail/split_list.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/server_client.hpp"
#include "tensorhub/service/client.hpp"
#include "tensorhub/service/inquiry.hpp"
#include "tensorhub/worker/results.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct server_client::state {
  explicit state(const server_client_options& options)
      : client{shared_connection(options), inquiry{told(options), detail::random_id<incarnation>()},
               [this](inquiry& core) { after_step(core); }} {}

  [[nodiscard]] static session_options told(const server_client_options& options) {
    session_options out;
    out.server = options.server;
    out.servers = detail::split_list(options.server).size();
    out.server_timeout = options.server_timeout;
    out.request_retry = options.request_retry;
    return out;
  }

  void after_step(inquiry& core) {
    for (const session_action& each : core.take_actions()) {
      if (const auto* order = get_if<session_actions::use_server>(&each)) client.use_server(order->index);
    }
    results.deliver(core.take_results());
  }

  /// One request and its answer. `start(core, now, deadline)` makes it.
  template <typename Start>
  session_result ask(const std::string& model, std::chrono::milliseconds timeout, Start&& start) {
    static constexpr std::chrono::milliseconds answer_margin{2000};
    error_context about;
    about.model = model;
    if (model.size() > limits::name_bytes)
      throw error(errc::limit_exceeded, "no model has a name of more than 512 bytes: " + model.substr(0, 64));
    const session_ticket ticket =
        client.with([&](inquiry& core, time_point now) { return start(core, now, now + timeout); });
    auto result = results.wait(ticket, std::chrono::steady_clock::now() + timeout + answer_margin);
    if (!result) throw error(errc::timed_out, "the process's control thread does not answer", about);
    if (result->outcome.ok()) return *std::move(result);
    std::string sentence = result->outcome.sentence;
    const std::string trouble = result->outcome.code == errc::disconnected ? client.trouble() : std::string{};
    if (!trouble.empty()) sentence += " (" + trouble + ")";
    throw error(result->outcome.code, sentence, about);
  }
  messages::manage_reply manage(messages::manage_request order, std::chrono::milliseconds timeout) {
    const std::string model = order.model;
    return ask(model, timeout,
               [&](inquiry& core, time_point now, time_point until) {
                 return core.manage(now, std::move(order), until);
               })
        .managed;
  }

  std::atomic<std::uint64_t> interrupts = 0;
  worker_results results;
  client_shell<inquiry> client;  ///< last: its thread uses everything above
};

namespace server_client_detail {

TENSORHUB_DECL server_client_options validated(server_client_options options) {
  if (options.server.empty())
    throw error(errc::invalid_argument,
                "server_client_options::server is empty: give the reference server's address");
  if (options.security) validate(*options.security, detail::split_list(options.server).size());
  return options;
}

[[nodiscard]] inline error_context about(std::string model, std::string replica) {
  error_context out;
  out.model = std::move(model);
  out.replica = std::move(replica);
  return out;
}
TENSORHUB_DECL messages::manage_request about_replica(messages::manage_kind kind, std::string model,
                                                      std::string replica) {
  return {kind, std::move(model), std::move(replica), {}};
}
TENSORHUB_DECL messages::manage_request about_versions(std::string model, messages::retain_request change) {
  return {messages::manage_kind::retention, std::move(model), {}, std::move(change)};
}

}  // namespace server_client_detail

TENSORHUB_DECL server_client::server_client(server_client_options options)
    : state_{std::make_unique<state>(server_client_detail::validated(std::move(options)))} {}
TENSORHUB_DECL server_client::~server_client() = default;

TENSORHUB_DECL void server_client::interrupt() {
  ++state_->interrupts;
  state_->client.with([](inquiry& core, time_point) { core.interrupt(); });
}

TENSORHUB_DECL std::vector<model_entry> server_client::list(std::string model,
                                                            std::chrono::milliseconds timeout) {
  return state_
      ->ask(model, timeout,
            [&](inquiry& core, time_point now, time_point until) { return core.list(now, model, until); })
      .list.models;
}
TENSORHUB_DECL model_description server_client::describe_model(std::string model, std::uint32_t shard,
                                                               std::chrono::milliseconds timeout) {
  auto known = state_
                   ->ask(model, timeout,
                         [&](inquiry& core, time_point now, time_point until) {
                           return core.describe(now, model, shard, until);
                         })
                   .description;
  return {known.shards, known.chunk_bytes, std::move(known.tensors)};
}
TENSORHUB_DECL std::string server_client::why(std::string model, std::string replica, std::uint32_t shard,
                                              std::chrono::milliseconds timeout) {
  return state_
      ->ask(model, timeout,
            [&](inquiry& core, time_point now, time_point until) {
              return core.why(now, model, std::move(replica), shard, until);
            })
      .why;
}
TENSORHUB_DECL stuck_report server_client::stuck(std::string model, std::chrono::milliseconds older_than,
                                                 std::chrono::milliseconds timeout) {
  auto told = state_
                  ->ask(model, timeout,
                        [&](inquiry& core, time_point now, time_point until) {
                          return core.stuck(now, model, older_than, until);
                        })
                  .stuck;
  return {std::move(told.entries), told.left_out};
}

TENSORHUB_DECL void server_client::retain(std::string model, std::uint32_t versions,
                                          std::chrono::milliseconds timeout) {
  state_->manage(server_client_detail::about_versions(std::move(model), {versions, {}, {}, {}}), timeout);
}
TENSORHUB_DECL void server_client::pin(std::string model, version_number version,
                                       std::chrono::milliseconds timeout) {
  state_->manage(server_client_detail::about_versions(std::move(model), {{}, version, {}, {}}), timeout);
}
TENSORHUB_DECL void server_client::release(std::string model, version_number version,
                                           std::chrono::milliseconds timeout) {
  state_->manage(server_client_detail::about_versions(std::move(model), {{}, {}, version, {}}), timeout);
}
TENSORHUB_DECL void server_client::roll_back_to(std::string model, version_number version,
                                                std::chrono::milliseconds timeout) {
  state_->manage(server_client_detail::about_versions(std::move(model), {{}, {}, {}, version}), timeout);
}

TENSORHUB_DECL std::uint32_t server_client::evict(std::string model, std::string replica,
                                                  std::chrono::milliseconds timeout) {
  return state_
      ->manage(server_client_detail::about_replica(messages::manage_kind::evict, std::move(model),
                                                   std::move(replica)),
               timeout)
      .workers;
}
TENSORHUB_DECL drain_report server_client::drain(std::string model, std::string replica,
                                                 std::chrono::milliseconds timeout) {
  static constexpr std::chrono::milliseconds look_interval{20};
  const auto until = std::chrono::steady_clock::now() + timeout;
  const std::uint64_t before = state_->interrupts;
  for (;;) {
    if (state_->interrupts != before)
      throw error(errc::cancelled, "the caller interrupted the drain; the replica is still drained",
                  server_client_detail::about(std::move(model), std::move(replica)));
    const auto told =
        state_->manage(server_client_detail::about_replica(messages::manage_kind::drain, model, replica),
                       std::max(detail::time_left(until), std::chrono::milliseconds{1}));
    if (told.readers == 0 || std::chrono::steady_clock::now() + look_interval >= until)
      return {told.workers, told.readers};
    std::this_thread::sleep_for(look_interval);
  }
}
TENSORHUB_DECL void server_client::resume(std::string model, std::string replica,
                                          std::chrono::milliseconds timeout) {
  state_->manage(server_client_detail::about_replica(messages::manage_kind::resume, std::move(model),
                                                     std::move(replica)),
                 timeout);
}

}  // namespace tensorhub::inline TENSORHUB_MODE
