#pragma once
/// \file state.ipp
/// What worker/state.hpp declares: joining, results and errors, and the session's actions.

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "tensorhub/detail/random_id.hpp"
#include "tensorhub/worker/offloads.hpp"
#include "tensorhub/worker/state.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

// ---- one operation at a time

TENSORHUB_DECL operation_guard::operation_guard(worker_state& owner) : owner_{&owner} {
  if (owner.operating.exchange(true)) {
    static_cast<void>(owner_.release());
    throw owner.failure(errc::busy, "another publish, unpublish, update or leave of this worker is running");
  }
  if (owner.left)
    throw owner.failure(errc::invalid_argument, "this worker has left its model: construct a new one");
}

// ---- begin and end

TENSORHUB_DECL worker_state::worker_state(worker_options whose, worker_policies policies, port_choice ports)
    : options{validated(std::move(whose))},
      self{detail::random_id<incarnation>()},
      data{policies.make_data_plane(options, self, ports)},
      kept_for_others{std::make_unique<offloads>(
          options, policies,
          [this](version_number version, const messages::status& reason) {
            client.with([&](session& core, time_point now) { core.offload_failed(now, version, reason); });
          })},
      client{options.server, session{told_to_session(policies), self, shape},
             [this](session& core) { after_step(core); }, options.security} {}

TENSORHUB_DECL worker_state::~worker_state() = default;

TENSORHUB_DECL session_options worker_state::told_to_session(const worker_policies& policies) const {
  session_options out;
  out.server = options.server;
  out.servers = servers_of(options);
  out.server_timeout = options.server_timeout;
  out.model = options.model;
  out.replica = options.replica;
  out.shard = options.shard;
  out.place = options.location;
  out.spot = options.spot;
  out.temporary = options.temporary;
  out.request_retry = options.request_retry;
  out.drain_timeout = options.drain_timeout;
  out.transport = data->transport_name();
  out.consistency = policies.consistency;
  out.integrity = data->integrity_name();
  out.address = data->address();
  out.capability_key = data->capability_key();
  return out;
}

TENSORHUB_DECL void worker_state::ensure_joined_idle() {
  if (joined) return;
  const operation_guard busy{*this};
  ensure_joined();
}

TENSORHUB_DECL void worker_state::ensure_joined() {
  prepare();
  if (joined) return;
  const session_ticket ticket =
      client.with([&](session& core, time_point now) { return core.join(now, now + options.join_timeout); });
  static_cast<void>(checked(wait_for(ticket, options.join_timeout)));
  joined = true;
}

TENSORHUB_DECL void worker_state::prepare() {
  if (prepared) return;
  layout built = data->build_layout(options.chunk_bytes, context_of(options));
  // Under the lock: a handle of update_async may be asked for its progress already.
  client.with([&](session&, time_point) { shape = std::move(built); });
  named({}, [&] { data->register_all(shape, self); });
  client.with([&](session& core, time_point) { core.reachable_at(data->address()); });
  prepared = true;
}

TENSORHUB_DECL version_number worker_state::held_version() {
  return client.with(
      [](session& core, time_point) { return core.held() ? core.held()->version : version_number{}; });
}

// ---- results and errors

TENSORHUB_DECL session_result worker_state::wait_for(session_ticket ticket,
                                                     std::chrono::milliseconds timeout) {
  auto result = results.wait(ticket, std::chrono::steady_clock::now() + timeout + answer_margin);
  if (!result) throw failure(errc::timed_out, "the worker's control thread does not answer");
  return *std::move(result);
}

TENSORHUB_DECL session_result worker_state::checked(session_result result) const {
  if (!result.outcome.ok()) throw failure(result.outcome, {});
  return result;
}

TENSORHUB_DECL error worker_state::failure(errc code, const std::string& sentence, version_number version,
                                           const error_context& known) const {
  error_context context = context_of(options);
  if (version) context.version = version.value;
  context.peer = known.peer;
  context.chunk = known.chunk;
  return error(code, sentence, std::move(context));
}

TENSORHUB_DECL error worker_state::failure(const messages::status& outcome, version_number version) const {
  if (outcome.code != errc::disconnected) return failure(outcome.code, outcome.sentence, version);
  const std::string trouble = client.trouble();
  return failure(outcome.code, outcome.sentence + (trouble.empty() ? "" : " (" + trouble + ")"), version);
}

// ---- the session's actions

TENSORHUB_DECL void worker_state::after_step(session& core) {
  core.progress(updates.chunks_received());  // goes with the next heartbeat
  refusals.look(data->refused_connections(), self, clock.now(), options.log);
  for (session_action& action : core.take_actions()) {
    visit(
        [&](auto& order) {
          if constexpr (requires { updates.perform(core, order); })
            updates.perform(core, order);
          else
            perform(core, order);
        },
        action);
  }
  results.deliver(core.take_results());
}

TENSORHUB_DECL void worker_state::perform(session&, const session_actions::raise_epoch& order) {
  data->raise_epoch(order.epoch);
}
TENSORHUB_DECL void worker_state::perform(session&, const session_actions::restore& order) {
  data->show_again(order.held.version, order.held.epoch);
}
TENSORHUB_DECL void worker_state::perform(session& core, const session_actions::cut_off_reader& order) {
  data->cut_off(order.reader);
  core.cut_off_done(clock.now(), order.reader);
}
TENSORHUB_DECL void worker_state::perform(session&, const session_actions::cut_off_all&) {
  data->revoke_all();
}
TENSORHUB_DECL void worker_state::perform(session&, const session_actions::use_server& order) {
  client.use_server(order.index);
}
TENSORHUB_DECL void worker_state::perform(session&, const session_actions::offload& order) {
  kept_for_others->take(order.version, order.replica, shape.tensors());
}
TENSORHUB_DECL void worker_state::perform(session&, const session_actions::drop&) {
  if (options.dropped) options.dropped();
}

}  // namespace tensorhub::inline TENSORHUB_MODE
