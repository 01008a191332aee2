#pragma once
/// \file state.ipp
/// What worker/state.hpp declares: joining, results and errors, and the session's actions.

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <variant>

#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/worker/offloads.hpp"
#include "tensorhub/worker/session_orders.hpp"
#include "tensorhub/worker/state.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

// ---- one operation at a time

TENSORHUB_DECL held_turn worker_state::take_turn() {
  held_turn turn{operating};
  if (!turn)
    throw failure(errc::busy, "another publish, unpublish, update or leave of this worker is running");
  refuse_if_left();
  return turn;
}

// ---- begin and end

namespace worker_detail {

/// Of the key with which this worker connects.
[[nodiscard]] inline proven_incarnation new_incarnation_of(const worker_options& options) {
  return new_incarnation(options.security ? options.security->keys.public_key : std::string{});
}

/// Keys keep strangers out; a member of the fleet that lies is kept out by the digests alone.
[[nodiscard]] inline std::unique_ptr<data_plane> checked(std::unique_ptr<data_plane> plane,
                                                         const worker_options& options) {
  if (!options.security || options.security->trust_sources || plane->resists_forgery()) return plane;
  throw error(errc::invalid_argument,
              "this worker has keys, and its integrity policy '" + std::string{plane->integrity_name()} +
                  "' is no defence against a source that forges bytes: use hub<..., blake3_128> "
                  "(policy/integrity/blake3_128.hpp), or set trust_sources",
              context_of(options));
}

}  // namespace worker_detail

TENSORHUB_DECL worker_state::worker_state(worker_options whose, worker_policies policies, worker_role as)
    : worker_state{whose, std::move(policies), std::move(as), worker_detail::new_incarnation_of(whose)} {}

TENSORHUB_DECL worker_state::worker_state(worker_options whose, worker_policies policies, worker_role as,
                                          const proven_incarnation& first)
    : options{validated(std::move(whose))},
      role{std::move(as)},
      self{first.id},
      data{worker_detail::checked(policies.make_data_plane(options, self, role), options)},
      kept_for_others{std::make_unique<offloads>(
          *this, options, policies,
          [this](version_number version, const messages::status& reason) {
            client.with([&](session& core, time_point now) { core.offload_failed(now, version, reason); });
          })},
      client{shared_connection(options), session{told_to_session(policies, first.proof), self, shape},
             [this](session& core) { after_step(core); }, [this] { results.wake(); }} {}

TENSORHUB_DECL worker_state::~worker_state() {
  cut_offs.close();  // its thread uses the client
}

TENSORHUB_DECL session_options worker_state::told_to_session(const worker_policies& policies,
                                                             digest128 proof) const {
  session_options out;
  out.proof = proof;
  out.server = options.server;
  out.servers = servers_of(options);
  out.server_timeout = options.server_timeout;
  out.model = options.model;
  out.replica = options.replica;
  out.shard = options.shard;
  out.location = options.location;
  out.spot = options.spot;
  out.temporary = role.temporary;
  out.awaited = role.awaited;
  out.request_retry = options.request_retry;
  out.drain_timeout = options.drain_timeout;
  out.transport = data->transport_name();
  out.consistency = policies.consistency;
  out.integrity = data->integrity_name();
  out.address = data->address();
  out.capability_key = data->capability_key();
  out.renewable = data->renewable();
  out.revokes_cheaply = data->revokes_cheaply();
  return out;
}

TENSORHUB_DECL void worker_state::refuse_if_left() const {
  if (has_left) throw failure(errc::invalid_argument, "this worker has left its model: construct a new one");
  if (leaving) throw failure(errc::busy, "this worker is leaving its model");
}

TENSORHUB_DECL void worker_state::require_possible(const version_selector& selector) {
  if (selector.kind == version_selector::kind_type::exactly && !selector.version)
    throw error(errc::invalid_argument, "there is no version 0: versions count from 1");
}

TENSORHUB_DECL void worker_state::ensure_joined_beside(steady_time until) {
  refuse_if_left();
  ensure_joined(until);
}

TENSORHUB_DECL void worker_state::ensure_joined(steady_time until, update_state* asking) {
  prepare();
  if (joined) return;
  const std::chrono::milliseconds patience = std::min(options.join_timeout, detail::time_left(until));
  const auto refuse_leaving = [this] {  // under the client's mutex: a leave begins before or after this
    if (leaving || has_left) throw failure(errc::cancelled, "this worker leaves its model");
  };
  const session_ticket ticket = client.with([&](session& core, time_point now) {
    refuse_leaving();
    if (asking != nullptr && asking->is_cancelled())
      throw failure(errc::cancelled, "the caller cancelled the update");
    const session_ticket begun = core.join(now, now + patience);
    if (asking != nullptr) asking->join_ticket = begun;
    return begun;
  });
  static_cast<void>(checked(wait_for(ticket, patience)));
  client.with([&](session&, time_point) {
    refuse_leaving();
    joined = true;
  });
}

TENSORHUB_DECL void worker_state::prepare() {
  if (prepared.done) return;
  const std::lock_guard lock{prepared.mutex};
  if (prepared.done) return;
  layout built = data->build_layout(options.chunk_bytes, context_of(options));
  // Under the lock: a handle of update_async may be asked for its progress already.
  client.with([&](session&, time_point) { shape = std::move(built); });
  named({}, [&] { data->register_all(shape, self); });
  client.with([&](session& core, time_point) { core.reachable_at(data->address()); });
  prepared.done = true;
}

TENSORHUB_DECL version_number worker_state::held_version() {
  return client.with([](session& core, time_point) { return core.valid_version_held().number(); });
}

TENSORHUB_DECL version_number worker_state::newest_listed() {
  static constexpr std::chrono::milliseconds between{200};
  const std::unique_lock lock{listed_.mutex, std::try_to_lock};
  if (!lock || has_left) return {};
  if (listed_.asked != 0) {
    if (const auto answer = results.wait(listed_.asked, std::chrono::steady_clock::now())) {
      listed_.asked = 0;
      for (const messages::model_entry& model : answer->list.models) {
        for (const version_number each : model.available) listed_.newest = std::max(listed_.newest, each);
      }
    }
  }
  const time_point now = clock.now();
  if (listed_.asked == 0 && now >= listed_.next) {
    listed_.next = now + between;
    listed_.asked = client.with([&](session& core, time_point asked_at) {
      return core.list(asked_at, options.model, asked_at + options.join_timeout);
    });
  }
  return listed_.newest;
}

// ---- results and errors

TENSORHUB_DECL session_result worker_state::wait_for(session_ticket ticket,
                                                     std::chrono::milliseconds timeout) {
  auto result = results.wait(ticket, std::chrono::steady_clock::now() + timeout + answer_margin);
  // Keys may be revoked for longer, and after that the server answers.
  for (bool is_last = false; !result && !is_last;) {
    is_last = !cut_offs.revokes();
    result = results.wait(ticket, std::chrono::steady_clock::now() + answer_margin);
  }
  if (!result) throw failure(errc::timed_out, "the worker's control thread does not answer");
  return *std::move(result);
}

TENSORHUB_DECL session_result worker_state::checked(session_result result) const {
  if (!result.outcome.ok()) throw failure(result.outcome, {});
  return result;
}

TENSORHUB_DECL error worker_state::failure(errc code, const std::string& sentence, version_number version,
                                           const error_context& known) const {
  error_context context = context_of(options, version);
  context.peer = known.peer;
  context.chunk = known.chunk;
  return error(code, sentence, std::move(context));
}

TENSORHUB_DECL error worker_state::failure(const messages::status& outcome, version_number version) const {
  if (outcome.code != errc::disconnected) return failure(outcome.code, outcome.sentence, version);
  const auto [code, why] = client.trouble();
  return failure(code, outcome.sentence + (why.empty() ? "" : " (" + why + ")"), version);
}

TENSORHUB_DECL log_line worker_state::line(log_level level, std::string text) const {
  log_line out{level, std::move(text), {}};
  out.about.model = options.model;
  out.about.replica = options.replica;
  out.about.shard = options.shard.index;
  out.about.worker = self;
  return out;
}

// ---- the session's actions

TENSORHUB_DECL void worker_state::after_step(session& core) {
  core.progress(updates.chunks_received());  // goes with the next heartbeat
  if (options.log) {
    log_transport();
    log_silence(core);
  }
  // What is reported while an action is carried out may order more.
  for (auto actions = core.take_actions(); !actions.empty(); actions = core.take_actions()) {
    for (session_action& action : actions) carry_out(core, action);
  }
  const version_number held = core.is_open() ? core.held()->version : core.valid_version_held();
  newer = core.latest() > held ? core.latest().value : 0;
  results.deliver(core.take_results());
  if (core.may_return()) go_on(core);
}

TENSORHUB_DECL void worker_state::log_transport() {
  for (log_line& each : data->lines_to_log(clock.now())) {
    each.about.worker = self;
    options.log(each);
  }
}

TENSORHUB_DECL void worker_state::log_silence(const session& core) {
  const bool is_silent = core.server_is_silent(clock.now());
  if (is_silent == server_is_silent || !core.joined()) return;
  server_is_silent = is_silent;
  const std::string server = "the reference server at " + options.server;
  options.log(is_silent ? line(log_level::warning, server + " is silent: versions stay readable, and calls "
                                                            "wait for the server")
                        : line(log_level::info, server + " answers again"));
}

TENSORHUB_DECL void worker_state::go_on(session& core) {
  const proven_incarnation next = worker_detail::new_incarnation_of(options);
  worker_detail::go_on_as(next, *data, core, clock.now());
  self = next.id;
  if (!options.log) return;
  const std::string holds =
      core.held() ? "version " + to_string(core.held()->version) : std::string{"no version"};
  options.log(line(log_level::warning, "the server has declared " + options.model + "/" + options.replica +
                                           ", shard " + to_string(options.shard) +
                                           ", dead: it joins again by itself, and holds " + holds));
}

TENSORHUB_DECL void worker_state::carry_out(session& core, session_action& action) {
  visit(
      [&](auto& order) {
        if constexpr (requires { updates.perform(core, order); })
          updates.perform(core, order);
        else if constexpr (requires { this->perform(core, order); })
          perform(core, order);
        else
          worker_detail::perform(*data, core, clock.now(), order);
      },
      action);
}

TENSORHUB_DECL void worker_state::perform(session&, const session_actions::use_server& order) {
  client.use_server(order.index);
}
TENSORHUB_DECL void worker_state::perform(session& core, const session_actions::cut_off_reader& order) {
  if (!cut_offs.give(order.reader)) worker_detail::perform(*data, core, clock.now(), order);
}
TENSORHUB_DECL void worker_state::perform(session& core, const session_actions::cut_off_all& order) {
  if (data->revokes_cheaply() || !cut_offs.give(cut_off_orders::everybody))
    worker_detail::perform(*data, core, clock.now(), order);
}
TENSORHUB_DECL void worker_state::cut_off(incarnation reader) {
  if (reader == cut_off_orders::everybody)
    data->revoke_all();
  else
    data->cut_off(reader);
  while (!report_cut_off(reader)) std::this_thread::sleep_for(std::chrono::milliseconds{10});
}
TENSORHUB_DECL bool worker_state::report_cut_off(incarnation reader) noexcept {
  try {
    client.with([this, reader](session& core, time_point now) {
      if (reader == cut_off_orders::everybody)
        core.all_cut_off(now);
      else
        core.cut_off_done(now, reader);
      cut_offs.ended(reader);  // before the next order can come
    });
    return true;
  } catch (...) {
    return false;
  }
}
TENSORHUB_DECL void worker_state::perform(session& core, const session_actions::offload& order) {
  try {
    kept_for_others->take(order.version, order.replica, shape.tensors());
  } catch (const std::exception& e) {  // no memory, no thread
    core.offload_failed(clock.now(), order.version, {errc::system_failed, e.what()});
  }
}
TENSORHUB_DECL void worker_state::perform(session&, const session_actions::drop&) {
  if (role.dropped) role.dropped();
}

}  // namespace tensorhub::inline TENSORHUB_MODE
