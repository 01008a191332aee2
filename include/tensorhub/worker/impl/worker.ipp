#pragma once
/// \file worker.ipp
/// What worker/worker.hpp declares, but for its questions (impl/questions.ipp): construction, publish,
/// unpublish, leave, and the calls that only look.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/service/session/joining.hpp"
#include "tensorhub/worker/offloads.hpp"
#include "tensorhub/worker/repeated.hpp"
#include "tensorhub/worker/state.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL void worker::interrupt() {
  ++interrupts_;
  state_->client.with([](session& core, time_point now) { core.interrupt(now); });
}

namespace worker_detail {

TENSORHUB_DECL void run_open(worker_state& self, version_number version, std::chrono::milliseconds timeout) {
  const auto until = detail::end_of(timeout);
  const held_turn busy = self.take_turn();
  self.ensure_joined(until);
  if (!version) throw self.failure(errc::invalid_argument, "version 0 cannot be published: count from 1");
  const std::chrono::milliseconds patience = detail::time_left(until);
  const session_ticket ticket = self.client.with([&](session& core, time_point now) {
    if (!core.held() && !core.fatal()) self.data->show_open(version, core.epoch());
    return core.open(now, version, self.data->control(), now + patience);
  });
  const session_result result = self.wait_for(ticket, patience);
  if (!result.outcome.ok()) throw self.failure(result.outcome, version);
}

/// For the server's answer to a publish, where the digests have taken longer than the whole call may.
inline constexpr std::chrono::milliseconds digests_are_late{1000};

/// The positions of these tensors, in the order of `add`.
[[nodiscard]] TENSORHUB_DECL std::vector<std::size_t> positions_of(const worker_state& self,
                                                                   const changed_tensors& changed) {
  std::unordered_map<std::string_view, std::size_t> known;
  const std::span<const tensor_spec> tensors = self.data->tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) known.emplace(tensors[i].name, i);
  std::vector<std::size_t> positions;
  for (const std::string& name : changed.names) {
    const auto found = known.find(name);
    if (found == known.end()) {
      throw self.failure(
          errc::invalid_argument,
          "tensor '" + name + "' is said to have changed, and was not added: name tensors as add() got them");
    }
    positions.push_back(found->second);
  }
  return positions;
}

/// `changed`: null if that is not known.
[[nodiscard]] TENSORHUB_DECL publish_report run_publish(worker_state& self, version_number version,
                                                        const changed_tensors* changed,
                                                        std::chrono::milliseconds timeout) {
  const auto started = self.clock.now();
  const auto until = detail::end_of(timeout);
  const held_turn busy = self.take_turn();
  std::optional<std::vector<std::size_t>> positions;
  if (changed != nullptr) positions = positions_of(self, *changed);
  self.ensure_joined(until);
  if (!version) throw self.failure(errc::invalid_argument, "version 0 cannot be published: count from 1");
  if (const auto held = self.held_version()) {
    throw self.failure(errc::still_published,
                       "version " + to_string(held) + " is still published: call unpublish() first", version);
  }
  publish_report report{version, self.shape.bytes(), 0, 0};
  const bool was_open = self.client.with([&](session& core, time_point) { return core.is_open(); });
  const version_digests digests = self.named(
      version, [&] { return was_open ? self.data->sealed() : self.data->pack(version, positions); });
  self.counted.digested(digests.digested_chunks);
  report.digest_seconds = to_seconds(self.clock.now() - started);
  // What took the whole time to digest is late already: one answer more.
  const auto patience =
      std::max(detail::time_left(until), std::min<std::chrono::milliseconds>(timeout, digests_are_late));
  const session_ticket ticket = self.client.with([&](session& core, time_point now) {
    // A worker that has just been declared dead shows what it holds once more.
    if ((!core.held() || core.is_open()) && !core.fatal())
      self.data->show(version, core.epoch(), digests.table);
    return core.publish(now, version, digests.root, self.data->readable(), now + patience);
  });
  const session_result result = self.wait_for(ticket, patience);
  if (!result.outcome.ok()) throw self.failure(result.outcome, version);
  report.seconds = to_seconds(self.clock.now() - started);
  return report;
}

/// After a publish that failed it is not clear since when the caller will say what has changed.
[[nodiscard]] TENSORHUB_DECL publish_report count_publish(worker_state& self, version_number version,
                                                          const changed_tensors* changed,
                                                          std::chrono::milliseconds timeout) {
  return self.counted.publish([&] {
    try {
      return run_publish(self, version, changed, timeout);
    } catch (...) {
      self.data->forget_digests();
      throw;
    }
  });
}

/// Pre-condition: an operation of this worker is the caller's.
[[nodiscard]] TENSORHUB_DECL session_ticket begin_unpublish(worker_state& self,
                                                            std::chrono::milliseconds timeout,
                                                            bool is_leaving) {
  return self.client.with([&](session& core, time_point now) {
    const session_ticket begun =
        core.unpublish(now, now + (timeout - session_detail::last_part(timeout)), is_leaving);
    core.end_by(now + timeout);
    return begun;
  });
}

/// A reader has refused this chunk of a version that was just withdrawn. The name of its tensor if its bytes
/// have changed since they were shown; else the fault was on the reader's way.
[[nodiscard]] TENSORHUB_DECL std::string changed_tensor(const worker_state& self, version_number version,
                                                        chunk_index chunk) {
  if (chunk >= self.shape.chunk_count()) return {};
  const auto tensor = self.shape.segments()[self.shape.slice(chunk).segment].tensor;
  try {
    if (!tensor || self.data->has_its_digest(version, chunk)) return {};
  } catch (const std::exception&) {  // no memory or thread, or a device that cannot tell
    return {};
  }
  const std::string& name = self.shape.tensors()[*tensor].name;
  error_context where;
  where.chunk = chunk;
  const error broken = self.failure(
      errc::contract_broken,
      "tensor '" + name +
          "' has changed while the version was published, and a reader has refused its bytes: do "
          "not write to tensors before unpublish() has returned, or publish a snapshot",
      version, where);
  if (self.options.log) self.options.log(line_of(log_level::error, broken, self.self));
  return name;
}

[[nodiscard]] TENSORHUB_DECL unpublish_report end_of_unpublish(worker_state& self, session_ticket ticket,
                                                               std::chrono::milliseconds timeout,
                                                               time_point started) {
  unpublish_report report;
  const session_result result = self.wait_for(ticket, timeout);
  if (!result.outcome.ok()) throw self.failure(result.outcome, {});
  report.finished = result.drained.finished;
  report.moved = result.drained.moved;
  report.cut_off = result.drained.cut_off;
  report.forced = result.forced;
  report.lost = result.drained.lost;
  if (result.drained.refused) report.changed = changed_tensor(self, result.version, *result.drained.refused);
  report.seconds = to_seconds(self.clock.now() - started);
  return report;
}

/// Pre-condition: an operation of this worker is the caller's.
[[nodiscard]] TENSORHUB_DECL unpublish_report run_unpublish(worker_state& self,
                                                            std::chrono::milliseconds timeout) {
  const auto started = self.clock.now();
  return end_of_unpublish(self, begin_unpublish(self, timeout, false), timeout, started);
}

/// No new operation begins while this lives, nor afterwards if the worker has left.
class leaving_mark {
 public:
  explicit leaving_mark(worker_state& self) : self_{&self} { self.leaving = true; }
  ~leaving_mark() { self_->leaving = false; }
  leaving_mark(const leaving_mark&) = delete;
  leaving_mark& operator=(const leaving_mark&) = delete;

 private:
  worker_state* self_;
};

/// For a server that has not answered a join yet, and may never do so.
inline constexpr std::chrono::milliseconds longest_wait_for_nothing{1000};

/// `answer`: the server's answer to the last message is waited for so long, whatever `grace` says.
[[nodiscard]] TENSORHUB_DECL unpublish_report run_leave(worker_state& self, std::chrono::milliseconds grace,
                                                        std::chrono::milliseconds answer) {
  const auto until = detail::end_of(grace);
  const auto drained_by = until - session_detail::last_part(grace);
  const leaving_mark mark{self};
  self.client.with(
      [&](session& core, time_point now) { core.make_way(now, now + detail::time_left(drained_by)); });
  held_turn turn{self.operating, std::chrono::steady_clock::now() + detail::time_left(drained_by) / 2};
  if (!turn) {  // what it keeps for others needs time, too
    self.kept_for_others->begin_leave(drained_by);
    turn = held_turn{self.operating, drained_by};
  }
  unpublish_report report;
  if (!turn) {  // it digests or copies, or tries to connect: nothing can stop it, and nothing of it counts
    self.client.with([](session& core, time_point now) { core.abandon(now); });
    report.forced = true;
    self.has_left = true;
    self.joined = false;
    self.kept_for_others->leave(until);
    self.cut_offs.await_revocation();
    return report;
  }
  if (!self.joined) {
    self.has_left = true;
    const auto patience = std::min(detail::time_left(drained_by), longest_wait_for_nothing);
    const session_ticket ticket =
        self.client.with([&](session& core, time_point now) { return core.leave(now, now + patience); });
    static_cast<void>(self.wait_for(ticket, patience));
    return report;
  }
  report = self.counted.unpublish([&] {
    const auto started = self.clock.now();
    const std::chrono::milliseconds patience = detail::time_left(drained_by);
    const session_ticket ticket = begin_unpublish(self, patience, true);
    self.kept_for_others->begin_leave(drained_by);  // as long as the drain; the server knows who leaves
    return end_of_unpublish(self, ticket, patience, started);
  });
  self.kept_for_others->leave(drained_by);
  const std::chrono::milliseconds patience = std::max(detail::time_left(until), answer);
  const session_ticket ticket =
      self.client.with([&](session& core, time_point now) { return core.leave(now, now + patience); });
  self.has_left = true;
  self.joined = false;
  static_cast<void>(self.checked(self.wait_for(ticket, patience)));
  return report;
}

}  // namespace worker_detail

TENSORHUB_DECL worker::worker(worker_options options, worker_policies policies, worker_role role)
    : state_{std::make_unique<worker_state>(std::move(options), std::move(policies), std::move(role))} {}

TENSORHUB_DECL worker::~worker() {
  static constexpr std::chrono::milliseconds answer{500};
  try {
    if (state_->joined)
      static_cast<void>(worker_detail::run_leave(*state_, std::chrono::milliseconds{0}, answer));
  } catch (const error& e) {
    if (state_->options.log) state_->options.log(line_of(log_level::warning, e, state_->self));
  } catch (...) {  // no memory: the server finds out by itself
  }
  state_->kept_for_others->close();
}

TENSORHUB_DECL void worker::add(std::string name, const void* data, std::span<const std::uint64_t> dimensions,
                                dtype type) {
  const held_turn busy = state_->take_turn();
  const std::lock_guard lock{state_->prepared.mutex};
  if (state_->prepared.done)
    throw state_->failure(errc::invalid_argument,
                          "tensor '" + name + "' was added after the first publish or update");
  state_->named({}, [&] {
    state_->data->add({std::move(name), type, {dimensions.begin(), dimensions.end()}}, data);
  });
}
TENSORHUB_DECL void worker::add(std::string name, const void* data,
                                std::initializer_list<std::uint64_t> dimensions, dtype type) {
  add(std::move(name), data, std::span{dimensions.begin(), dimensions.size()}, type);
}

TENSORHUB_DECL void worker::keep_alive(std::shared_ptr<const void> owner) {
  const held_turn busy = state_->take_turn();
  owners_.push_back(std::move(owner));
}

TENSORHUB_DECL void worker::join() {
  state_->ensure_joined_beside();
}
TENSORHUB_DECL void worker::join_by(std::chrono::steady_clock::time_point until) {
  state_->ensure_joined_beside(until);
}

TENSORHUB_DECL void worker::open(version_number version, std::chrono::milliseconds timeout) {
  worker_detail::run_open(*state_, version, timeout);
}

TENSORHUB_DECL publish_report worker::publish(version_number version, std::chrono::milliseconds timeout) {
  return worker_detail::count_publish(*state_, version, nullptr, timeout);
}
TENSORHUB_DECL publish_report worker::publish(version_number version, const changed_tensors& changed,
                                              std::chrono::milliseconds timeout) {
  return worker_detail::count_publish(*state_, version, &changed, timeout);
}

TENSORHUB_DECL unpublish_report worker::unpublish(std::chrono::milliseconds timeout) {
  return state_->counted.unpublish([&] {
    const held_turn busy = state_->take_turn();
    return state_->joined ? worker_detail::run_unpublish(*state_, detail::bounded(timeout))
                          : unpublish_report{};
  });
}

TENSORHUB_DECL update_report worker::update(version_selector selector, std::chrono::milliseconds timeout,
                                            update_reach reach) {
  return state_->updates.update(selector, timeout, reach);
}
TENSORHUB_DECL update_report worker::update(version_selector selector, retry_t,
                                            std::chrono::milliseconds timeout, update_reach reach) {
  return detail::repeated(state_->options, timeout, *this,
                          [&](std::chrono::milliseconds left) { return update(selector, left, reach); });
}
TENSORHUB_DECL update_handle worker::update_async(version_selector selector,
                                                  std::chrono::milliseconds timeout, update_reach reach,
                                                  bool ahead) {
  return state_->updates.update_async(selector, timeout, reach, ahead);
}
TENSORHUB_DECL update_report worker::update_from(worker& neighbour, std::chrono::milliseconds timeout) {
  const held_turn theirs = neighbour.state_->take_turn();
  return state_->updates.update_from(*neighbour.state_, timeout);
}

TENSORHUB_DECL void worker::at_rest(const std::function<void(version_number, std::uint64_t)>& call) {
  const held_turn busy = state_->take_turn();
  call(state_->held_version(), state_->updates.succeeded());
}

TENSORHUB_DECL std::optional<version_number> worker::newer() {
  const version_number known = state_->joined ? version_number{state_->newer} : state_->newest_listed();
  return known ? std::optional{known} : std::nullopt;
}

TENSORHUB_DECL version_number worker::wait(version_selector selector, std::chrono::milliseconds timeout) {
  const auto until = detail::end_of(timeout);
  return state_->named(selector.version, [&] {
    worker_state::require_possible(selector);
    state_->ensure_joined_beside(until);
    return state_
        ->ask(detail::time_left(until),
              [&](session& core, time_point now, time_point late) { return core.wait(now, selector, late); })
        .version;
  });
}

TENSORHUB_DECL unpublish_report worker::leave(std::chrono::milliseconds grace) {
  ++interrupts_;  // a call that waits for the user's stream, or to be repeated
  return worker_detail::run_leave(*state_, grace, std::chrono::milliseconds{0});
}

TENSORHUB_DECL unpublish_report unpublish_together(std::span<worker* const> workers,
                                                   std::chrono::milliseconds timeout) {
  timeout = detail::bounded(timeout);
  struct unpublishing {
    worker_state* self;
    held_turn busy;
    time_point started{};
    session_ticket ticket = 0;  ///< zero: it has not joined
  };
  std::vector<unpublishing> all;
  for (const worker* const each : workers) {
    try {
      all.push_back({each->state_.get(), each->state_->take_turn()});
    } catch (const error& e) {
      workers.front()->state_->counted.unpublish_refused(e.code());
      throw;
    }
  }
  for (unpublishing& each : all) {
    each.started = each.self->clock.now();
    if (each.self->joined) each.ticket = worker_detail::begin_unpublish(*each.self, timeout, false);
  }
  return all.front().self->counted.unpublish([&] {
    unpublish_report report;
    std::exception_ptr failed;
    for (const unpublishing& each : all) {
      if (each.ticket == 0) continue;
      try {
        report.add(worker_detail::end_of_unpublish(*each.self, each.ticket, timeout, each.started));
      } catch (...) {
        if (!failed) failed = std::current_exception();
      }
    }
    if (failed) std::rethrow_exception(failed);
    return report;
  });
}

TENSORHUB_DECL unpublish_report leave_together(std::span<worker* const> workers,
                                               std::chrono::milliseconds grace) {
  std::vector<unpublish_report> reports(workers.size());
  std::vector<std::exception_ptr> failures(workers.size());
  const auto until = detail::end_of(grace);
  const auto leave = [&](std::size_t i) {
    try {
      reports[i] = workers[i]->leave(detail::time_left(until));
    } catch (...) {
      failures[i] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < workers.size(); ++i) {
      try {
        others.emplace_back(leave, i);
      } catch (const std::exception&) {  // no thread can be started: one after the other
        leave(i);
      }
    }
    if (!workers.empty()) leave(0);
  }
  for (const std::exception_ptr& each : failures) {
    if (each) std::rethrow_exception(each);
  }
  unpublish_report all;
  for (const unpublish_report& each : reports) all.add(each);
  return all;
}

TENSORHUB_DECL std::uint64_t worker::offloaded_bytes() const {
  return state_->kept_for_others->bytes();
}
TENSORHUB_DECL version_number worker::held_version() {
  return state_->held_version();
}
TENSORHUB_DECL incarnation worker::self() const noexcept {
  return state_->self;
}
TENSORHUB_DECL const layout& worker::shard_layout() const noexcept {
  static const layout none;
  return state_->prepared.done ? state_->shape : none;
}
TENSORHUB_DECL registration_cost worker::cost() const noexcept {
  return state_->data->cost();
}
TENSORHUB_DECL worker_statistics worker::statistics() const {
  return state_->counted.values(state_->options, state_->data->cost());
}
TENSORHUB_DECL worker_recorder& worker::recorder() noexcept {
  return state_->counted;
}
TENSORHUB_DECL data_plane& worker::data() noexcept {
  return *state_->data;
}

TENSORHUB_DECL std::chrono::milliseconds worker::await_stream(const void* stream,
                                                              std::chrono::milliseconds timeout) {
  const std::uint64_t before = interrupts_;
  state_->refuse_if_left();
  const auto gives_up = [&] { return interrupts_ != before || state_->leaving || state_->has_left; };
  try {
    return state_->data->await_stream(stream, timeout, gives_up);
  } catch (const error& e) {
    throw state_->failure(e.code(), e.sentence());  // with the model, replica and shard
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE
