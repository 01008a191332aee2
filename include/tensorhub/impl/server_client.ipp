#pragma once
/// \file server_client.ipp
/// What server_client.hpp declares.

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <thread>
#include <utility>

#include "tensorhub/detail/random_id.hpp"
#include "tensorhub/detail/server_groups.hpp"
#include "tensorhub/detail/split_list.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/server_client.hpp"
#include "tensorhub/service/client.hpp"
#include "tensorhub/service/inquiry.hpp"
#include "tensorhub/types/plain_text.hpp"
#include "tensorhub/worker/held_wait.hpp"
#include "tensorhub/worker/results.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct server_client::state {
  explicit state(const server_client_options& options)
      : client{shared_connection(options), inquiry{told(options), detail::random_id<incarnation>()},
               [this](inquiry& core) { after_step(core); }, [this] { results.wake(); }} {}

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
    timeout = detail::bounded(timeout);
    error_context about;
    about.model = model;
    if (model.size() > limits::name_bytes) throw error(errc::limit_exceeded, why_too_long(model));
    const session_ticket ticket =
        client.with([&](inquiry& core, time_point now) { return start(core, now, now + timeout); });
    auto result = results.wait(ticket, std::chrono::steady_clock::now() + timeout + answer_margin);
    if (!result) throw error(errc::timed_out, "the process's control thread does not answer", about);
    if (result->outcome.ok()) return *std::move(result);
    if (result->outcome.code != errc::disconnected)
      throw error(result->outcome.code, result->outcome.sentence, about);
    const auto [code, why] = client.trouble();
    throw error(code, result->outcome.sentence + (why.empty() ? "" : " (" + why + ")"), about);
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

/// The same for each group of servers.
TENSORHUB_DECL std::vector<server_client_options> validated(const server_client_options& options) {
  if (options.server.empty())
    throw error(errc::invalid_argument, "server is empty: give the reference server's address");
  std::vector<server_client_options> out(detail::split_groups(options.server).size(), options);
  for (std::size_t i = 0; i < out.size(); ++i) {
    choose_group(i, out[i].server, out[i].security);
    if (out[i].security) validate(*out[i].security, detail::split_list(out[i].server).size());
    detail::bound_intervals(out[i]);
  }
  return out;
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

TENSORHUB_DECL server_client::server_client(server_client_options options) {
  for (const server_client_options& each : server_client_detail::validated(options))
    groups_.push_back(std::make_unique<state>(each));
}
TENSORHUB_DECL server_client::~server_client() = default;

TENSORHUB_DECL server_client::state& server_client::of(const std::string& model) const {
  return *groups_[detail::group_of_model(model, groups_.size())];
}

TENSORHUB_DECL void server_client::interrupt() {
  for (const auto& each : groups_) {
    ++each->interrupts;
    each->client.with([](inquiry& core, time_point now) { core.interrupt(now); });
  }
}

TENSORHUB_DECL std::vector<model_entry> server_client::list(std::string model,
                                                            std::chrono::milliseconds timeout) {
  const auto until = detail::end_of(timeout);
  std::vector<model_entry> out;
  for (const auto& each : groups_) {
    if (!model.empty() && each.get() != &of(model)) continue;
    auto told =
        each->ask(model, std::max(detail::time_left(until), std::chrono::milliseconds{1}),
                  [&](inquiry& core, time_point now, time_point end) { return core.list(now, model, end); })
            .list.models;
    out.insert(out.end(), std::move_iterator{told.begin()}, std::move_iterator{told.end()});
  }
  std::sort(out.begin(), out.end(),
            [](const model_entry& a, const model_entry& b) { return a.name < b.name; });
  return out;
}
TENSORHUB_DECL model_description server_client::describe_model(std::string model, std::uint32_t shard,
                                                               std::chrono::milliseconds timeout) {
  auto known = of(model)
                   .ask(model, timeout,
                        [&](inquiry& core, time_point now, time_point until) {
                          return core.describe(now, model, shard, until);
                        })
                   .description;
  return {known.shards, known.chunk_bytes, std::move(known.tensors)};
}
TENSORHUB_DECL std::string server_client::why(std::string model, std::string replica, std::uint32_t shard,
                                              std::chrono::milliseconds timeout) {
  return of(model)
      .ask(model, timeout,
           [&](inquiry& core, time_point now, time_point until) {
             return core.why(now, model, std::move(replica), shard, until);
           })
      .why;
}
TENSORHUB_DECL stuck_report server_client::stuck(std::string model, std::chrono::milliseconds older_than,
                                                 std::chrono::milliseconds timeout) {
  const auto until = detail::end_of(timeout);
  stuck_report out;
  for (const auto& each : groups_) {
    if (!model.empty() && each.get() != &of(model)) continue;
    auto told = each->ask(model, std::max(detail::time_left(until), std::chrono::milliseconds{1}),
                          [&](inquiry& core, time_point now, time_point end) {
                            return core.stuck(now, model, older_than, end);
                          })
                    .stuck;
    out.entries.insert(out.entries.end(), std::move_iterator{told.entries.begin()},
                       std::move_iterator{told.entries.end()});
    out.left_out += told.left_out;
  }
  std::stable_sort(out.entries.begin(), out.entries.end(),
                   [](const stuck_entry& a, const stuck_entry& b) { return a.waited_ms > b.waited_ms; });
  return out;
}
TENSORHUB_DECL std::vector<std::string> server_client::wait_held(std::string model, version_number version,
                                                                 std::vector<std::string> replicas,
                                                                 std::chrono::milliseconds timeout) {
  const state& servers = of(model);
  return detail::wait_held(
      {version, {}, {}, std::move(replicas)}, timeout,
      {[&](std::chrono::milliseconds left) { return list(model, left); },
       [&servers, before = servers.interrupts.load()] { return servers.interrupts != before; },
       [&](errc code, const std::string& sentence) {
         auto about = server_client_detail::about(model, {});
         about.version = version.value;
         return error(code, sentence, std::move(about));
       }});
}

TENSORHUB_DECL void server_client::retain(std::string model, std::uint32_t versions,
                                          std::chrono::milliseconds timeout) {
  of(model).manage(server_client_detail::about_versions(model, {versions, {}, {}, {}}), timeout);
}
TENSORHUB_DECL void server_client::pin(std::string model, version_number version,
                                       std::chrono::milliseconds timeout) {
  of(model).manage(server_client_detail::about_versions(model, {{}, version, {}, {}}), timeout);
}
TENSORHUB_DECL void server_client::release(std::string model, version_number version,
                                           std::chrono::milliseconds timeout) {
  of(model).manage(server_client_detail::about_versions(model, {{}, {}, version, {}}), timeout);
}
TENSORHUB_DECL void server_client::roll_back_to(std::string model, version_number version,
                                                std::chrono::milliseconds timeout) {
  of(model).manage(server_client_detail::about_versions(model, {{}, {}, {}, version}), timeout);
}

TENSORHUB_DECL std::uint32_t server_client::evict(std::string model, std::string replica,
                                                  std::chrono::milliseconds timeout) {
  return of(model)
      .manage(server_client_detail::about_replica(messages::manage_kind::evict, model, std::move(replica)),
              timeout)
      .workers;
}
TENSORHUB_DECL drain_report server_client::drain(std::string model, std::string replica,
                                                 std::chrono::milliseconds timeout) {
  static constexpr std::chrono::milliseconds look_interval{20};
  const auto until = detail::end_of(timeout);
  state& servers = of(model);
  const std::uint64_t before = servers.interrupts;
  for (;;) {
    if (servers.interrupts != before)
      throw error(errc::cancelled, "the caller interrupted the drain; the replica is still drained",
                  server_client_detail::about(std::move(model), std::move(replica)));
    const auto told =
        servers.manage(server_client_detail::about_replica(messages::manage_kind::drain, model, replica),
                       std::max(detail::time_left(until), std::chrono::milliseconds{1}));
    if (told.readers == 0 || std::chrono::steady_clock::now() + look_interval >= until)
      return {told.workers, told.readers};
    std::this_thread::sleep_for(look_interval);
  }
}
TENSORHUB_DECL void server_client::resume(std::string model, std::string replica,
                                          std::chrono::milliseconds timeout) {
  of(model).manage(
      server_client_detail::about_replica(messages::manage_kind::resume, model, std::move(replica)), timeout);
}

}  // namespace tensorhub::inline TENSORHUB_MODE
