#pragma once
/// \file questions.ipp
/// The calls of a worker (worker/worker.hpp) that move no weights: what it asks the server, and what it asks
/// the server to retain. Each is one request and its answer; `wait_held` is several.

#include <string>
#include <utility>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/types/plain_text.hpp"
#include "tensorhub/worker/held_wait.hpp"
#include "tensorhub/worker/state.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace worker_detail {

TENSORHUB_DECL model_description described(messages::describe_reply reply) {
  return {reply.shards, reply.chunk_bytes, std::move(reply.tensors)};
}
TENSORHUB_DECL stuck_report reported(messages::stuck_reply reply) {
  return {std::move(reply.entries), reply.left_out};
}

}  // namespace worker_detail

TENSORHUB_DECL std::vector<model_entry> worker::list(std::string model, std::chrono::milliseconds timeout) {
  if (model.size() > limits::name_bytes) throw state_->failure(errc::limit_exceeded, why_too_long(model));
  return state_
      ->ask(timeout, [&](session& core, time_point now,
                         time_point until) { return core.list(now, std::move(model), until); })
      .list.models;
}

TENSORHUB_DECL model_description worker::describe_model(std::uint32_t shard,
                                                        std::chrono::milliseconds timeout) {
  return worker_detail::described(
      state_
          ->ask(timeout, [&](session& core, time_point now,
                             time_point until) { return core.describe(now, shard, until); })
          .description);
}

TENSORHUB_DECL std::string worker::why(std::chrono::milliseconds timeout) {
  return state_
      ->ask(timeout, [](session& core, time_point now, time_point until) { return core.why(now, until); })
      .why;
}

TENSORHUB_DECL stuck_report worker::stuck(std::chrono::milliseconds older_than,
                                          std::chrono::milliseconds timeout) {
  return worker_detail::reported(state_
                                     ->ask(timeout,
                                           [&](session& core, time_point now, time_point until) {
                                             return core.stuck(now, state_->options.model, older_than, until);
                                           })
                                     .stuck);
}

namespace worker_detail {

TENSORHUB_DECL std::vector<std::string> wait_held(worker& self, const worker_state& state,
                                                  detail::held_question question,
                                                  std::chrono::milliseconds timeout) {
  const version_number version = question.version;
  return detail::wait_held(
      std::move(question), timeout,
      {[&](std::chrono::milliseconds left) { return self.list(state.options.model, left); },
       [&, before = self.interrupts()] { return self.interrupts() != before; },
       [&](errc code, const std::string& sentence) { return state.failure(code, sentence, version); }});
}

}  // namespace worker_detail

TENSORHUB_DECL std::vector<std::string> worker::wait_held(version_number version, std::uint32_t replicas,
                                                          std::chrono::milliseconds timeout) {
  return worker_detail::wait_held(*this, *state_, {version, replicas, state_->options.replica, {}}, timeout);
}
TENSORHUB_DECL std::vector<std::string> worker::wait_held(version_number version,
                                                          std::vector<std::string> replicas,
                                                          std::chrono::milliseconds timeout) {
  return worker_detail::wait_held(*this, *state_, {version, {}, {}, std::move(replicas)}, timeout);
}

namespace worker_detail {

TENSORHUB_DECL void change_retention(worker_state& self, const messages::retain_request& change,
                                     std::chrono::milliseconds timeout) {
  const auto until = detail::end_of(timeout);
  self.ensure_joined_beside(until);
  self.ask(detail::time_left(until),
           [&](session& core, time_point now, time_point late) { return core.retain(now, change, late); });
}

}  // namespace worker_detail

TENSORHUB_DECL void worker::retain(std::uint32_t versions, std::chrono::milliseconds timeout) {
  worker_detail::change_retention(*state_, {versions, {}, {}, {}}, timeout);
}
TENSORHUB_DECL void worker::pin(version_number version, std::chrono::milliseconds timeout) {
  worker_detail::change_retention(*state_, {{}, version, {}, {}}, timeout);
}
TENSORHUB_DECL void worker::release(version_number version, std::chrono::milliseconds timeout) {
  worker_detail::change_retention(*state_, {{}, {}, version, {}}, timeout);
}
TENSORHUB_DECL void worker::roll_back_to(version_number version, std::chrono::milliseconds timeout) {
  worker_detail::change_retention(*state_, {{}, {}, {}, version}, timeout);
}

}  // namespace tensorhub::inline TENSORHUB_MODE
