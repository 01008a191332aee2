#pragma once
/// \file updates.ipp
/// What worker/updates.hpp and worker/update_handle.hpp declare.

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "tensorhub/detail/started_thread.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/service/session/joining.hpp"
#include "tensorhub/transfer/pull_task.hpp"
#include "tensorhub/worker/session_orders.hpp"
#include "tensorhub/worker/state.hpp"
#include "tensorhub/worker/update_handle.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace worker_detail {

/// A session's word for a source, in the driver's. `chunks`: of the shard.
[[nodiscard]] TENSORHUB_DECL pull_target pull_target_of(const messages::assignment& source,
                                                        std::uint64_t chunks) {
  pull_target out{{source.lease, source.source, source.version, source.epoch, source.root, source.receiving,
                   first_chunk_of(source.ordinal, chunks), source.crossing},
                  source.address,
                  source.control,
                  source.source_replica + "/" + std::to_string(source.source_shard)};
  for (const told_region& segment : source.segments) out.facts.segments.push_back(segment.region());
  return out;
}

/// A source that was given up, for the log.
[[nodiscard]] TENSORHUB_DECL log_line line_of(const worker_state& reader, version_number version,
                                              const source_failure& lost) {
  log_line out = reader.line(log_level::warning, "gave up a source: " + lost.detail);
  out.about.peer = lost.holder;
  out.about.version = version;
  out.about.lease = lost.lease;
  out.about.chunk = lost.chunk;
  out.about.code = lost.reason;
  return out;
}

}  // namespace worker_detail

// ---- the calls

TENSORHUB_DECL update_report worker_updates::update(version_selector selector,
                                                    std::chrono::milliseconds timeout, update_reach reach) {
  return whole_->counted.update(
      [&] { return run(whole_->take_turn(), selector, timeout, reach, false, nullptr); });
}

TENSORHUB_DECL update_handle worker_updates::update_async(version_selector selector,
                                                          std::chrono::milliseconds timeout,
                                                          update_reach reach, bool ahead) {
  auto state = std::make_shared<update_state>();
  state->owner = whole_;
  update_handle handle{state};
  auto work = [this, state, selector, timeout, reach, ahead, busy = whole_->take_turn()]() mutable {
    update_report report;
    std::exception_ptr failed;
    try {
      report = whole_->counted.update(
          [&] { return run(std::move(busy), selector, timeout, reach, ahead, state.get()); });
    } catch (...) {
      failed = std::current_exception();
    }
    std::unique_lock lock{state->mutex};
    state->changed.wait(lock, [&] { return state->cancelling == 0; });
    state->report = std::move(report);
    state->failure = failed;
    state->ended = true;
    state->changed.notify_all();
    if (state->completion) state->completion->raise();
  };
  whole_->named({}, [&] { handle.thread_ = detail::started_thread("the update", std::move(work)); });
  return handle;
}

TENSORHUB_DECL update_report worker_updates::update_from(worker_state& neighbour,
                                                         std::chrono::milliseconds timeout) {
  const held_turn ours = whole_->take_turn();
  const auto started = whole_->clock.now();
  const auto until = detail::end_of(timeout);
  const auto held = neighbour.client.with(
      [](session& core, time_point) { return core.valid_version_held() ? core.held() : std::nullopt; });
  if (!held) throw whole_->failure(errc::not_found, "the worker to copy from holds no version");
  whole_->ensure_joined(until);
  if (whole_->shape.digest() != neighbour.shape.digest()) {
    throw whole_->failure(errc::layout_mismatch,
                          "the worker to copy from has other tensors: " +
                              first_difference(whole_->shape, neighbour.shape, "that one"));
  }
  copied_from_.emplace(copy_origin{&neighbour, *held});
  struct forget {
    std::optional<copy_origin>& origin;
    ~forget() { origin.reset(); }
  } const forget_at_exit{copied_from_};
  return whole_->counted.update([&] {
    const session_ticket ticket = whole_->client.with([&](session& core, time_point now) {
      if (whole_->leaving) throw whole_->failure(errc::cancelled, "this worker leaves its model");
      return core.install(now, held->version, held->root, now + detail::time_left(until));
    });
    update_report report;
    const session_result result = carry_out(ticket, until, started, report);
    return end_of(result, started, std::move(report));
  });
}

TENSORHUB_DECL update_report worker_updates::end_of(const session_result& result, time_point started,
                                                    update_report report) {
  if (!result.outcome.ok())
    throw whole_->failure(result.outcome, result.version ? result.version : report.version);
  report.version = result.version.number();
  report.kept = result.kept;
  report.lost = result.drained.lost;
  report.seconds = to_seconds(whole_->clock.now() - started);
  ++succeeded_;
  return report;
}

TENSORHUB_DECL update_report worker_updates::run([[maybe_unused]] held_turn busy,
                                                 const version_selector& selector,
                                                 std::chrono::milliseconds timeout, update_reach reach,
                                                 bool ahead, update_state* handle) {
  const auto started = whole_->clock.now();
  const auto until = detail::end_of(timeout);
  whole_->named(selector.version, [&] {
    worker_state::require_possible(selector);
    whole_->ensure_joined(until, handle);
  });
  const session_ticket ticket = whole_->client.with([&](session& core, time_point now) {
    if (whole_->leaving) throw whole_->failure(errc::cancelled, "this worker leaves its model");
    const std::chrono::milliseconds left = detail::time_left(until);
    const session_ticket begun = core.update(now, selector, now + (left - session_detail::last_part(left)),
                                             whole_->data->control(), reach, ahead);
    core.end_by(now + left);
    return begun;
  });
  if (handle != nullptr) {
    const std::uint64_t before = whole_->data->transfers();
    std::unique_lock lock{handle->mutex};
    handle->transfer = before;  // of what is held, if that is kept
    handle->ticket = ticket;
    const bool cancelled = handle->cancelled;
    lock.unlock();
    if (cancelled) whole_->client.with([&](session& core, time_point now) { core.cancel(now, ticket); });
  }
  update_report report;
  report.version = selector.version;
  const session_result result = carry_out(ticket, until, started, report, handle);
  return end_of(result, started, std::move(report));
}

TENSORHUB_DECL session_result worker_updates::carry_out(session_ticket ticket,
                                                        std::chrono::steady_clock::time_point until,
                                                        time_point started, update_report& report,
                                                        update_state* handle) {
  for (bool is_last = false;;) {
    const auto last_look = std::chrono::steady_clock::now() + worker_state::answer_margin;
    const auto give_up = std::max(until + 2 * worker_state::answer_margin, last_look);
    worker_results::step next = whole_->results.next(ticket, give_up);
    const bool is_silent = !next.order && !next.result;
    // The process may have been stopped until now, the control thread with it: one look more.
    if (is_silent && (whole_->cut_offs.revokes() || !std::exchange(is_last, true))) continue;
    if (is_silent) throw whole_->failure(errc::timed_out, "the update's own control thread does not answer");
    if (next.result) return *std::move(next.result);
    report.wait_seconds = to_seconds(whole_->clock.now() - started);
    next.order->time_left = detail::time_left(until);
    report.version = next.order->version.number();
    copied_from_ ? copy_now(*next.order, report) : pull_now(*std::move(next.order), report, handle);
  }
}

TENSORHUB_DECL void worker_updates::copy_now(const pull_order& order, update_report& report) {
  const auto started = whole_->clock.now();
  try {
    std::vector<digest128> digests;
    bool is_intact = true;
    messages::status trouble = copy(report, digests, is_intact);
    report.pull_seconds = to_seconds(whole_->clock.now() - started);
    whole_->client.with([&](session& core, time_point now) {
      forget_transfer();
      const bool is_complete = trouble.ok();
      worker_detail::report_end(*whole_->data, core, now,
                                {order.version, is_complete, is_intact, std::move(trouble), digests});
    });
  } catch (...) {
    fail_transfer();
  }
}

TENSORHUB_DECL messages::status worker_updates::copy(update_report& report, std::vector<digest128>& digests,
                                                     bool& is_intact) {
  worker_state& neighbour = *copied_from_->owner;
  if (whole_->client.with([&](session& core, time_point) { return stop_requested_ || core.fatal(); }))
    return {errc::cancelled, "the copy was stopped before it had begun"};
  try {
    is_intact = whole_->data->copies_cannot_fail();
    whole_->data->copy_from(*neighbour.data);
    is_intact = false;
    digests = digests_of_copy();
    report.bytes = whole_->shape.bytes();
    report.sources = {neighbour.options.replica + "/" + std::to_string(whole_->options.shard.index)};
    report.paths = {"copy"};
    report.source_bytes = {report.bytes};
    whole_->counted.received("copy", false, report.bytes);
    return {};
  } catch (...) {
    return worker_detail::status_of_exception("the copy failed");
  }
}

TENSORHUB_DECL void worker_updates::forget_transfer() noexcept {
  running_ = nullptr;
  stop_requested_ = false;
  pending_changes_.clear();
  preferred_.clear();
  chunks_received_ = 0;
}
TENSORHUB_DECL void worker_updates::fail_transfer() noexcept {
  whole_->client.with([&](session&, time_point) { forget_transfer(); });
  whole_->client.fail();
}

TENSORHUB_DECL std::vector<digest128> worker_updates::digests_of_copy() {
  worker_state& neighbour = *copied_from_->owner;
  return neighbour.client.with([&](session& core, time_point) {
    const bool is_same = core.held() && core.held()->version == copied_from_->held.version &&
                         core.held()->epoch == copied_from_->held.epoch;
    if (!is_same) {
      throw whole_->failure(errc::source_lost,
                            "replica '" + neighbour.options.replica + "' has taken back version " +
                                to_string(copied_from_->held.version) + " while it was copied");
    }
    const std::span<const digest128> table = neighbour.data->digests();
    return std::vector(table.begin(), table.end());
  });
}

TENSORHUB_DECL void worker_updates::pull_now(pull_order order, update_report& report, update_state* handle) {
  const auto started = whole_->clock.now();
  const version_number version = order.version;
  std::unique_ptr<pull_driver> begun;
  try {
    messages::status trouble = pull_all(std::move(order), begun, handle);
    report.pull_seconds = to_seconds(whole_->clock.now() - started);
    whole_->client.with([&](session& core, time_point now) {
      forget_transfer();
      const bool complete = trouble.ok();
      worker_detail::report_end(*whole_->data, core, now,
                                {version, complete, !begun || begun->intact(), std::move(trouble),
                                 complete ? begun->table() : std::span<const digest128>{}});
    });
  } catch (...) {
    fail_transfer();
  }
  if (!begun) return;  // last: without memory these throw
  report.add(begun->progress());
  whole_->counted.transferred(begun->progress());
}

TENSORHUB_DECL messages::status worker_updates::pull_all(pull_order order,
                                                         std::unique_ptr<pull_driver>& begun,
                                                         update_state* handle) {
  const version_number version = order.version;
  // Whatever is thrown here, by the library or by a callback of the options: the session must learn of the
  // end, and nobody may use the transfer after it.
  try {
    transfer_events events = events_of(order, handle);
    begun = whole_->data->begin(std::move(order), std::move(events));
    if (handle != nullptr) {
      const std::uint64_t number = whole_->data->transfers();
      const std::lock_guard lock{handle->mutex};
      handle->transfer = number;
      handle->arrivals.emplace(whole_->shape);  // a tensor without bytes has arrived with this
      handle->changed.notify_all();
    }
    whole_->client.with([&](session& core, time_point) {
      running_ = begun.get();
      reading_version_ = version;
      for (pull_change& change : std::exchange(pending_changes_, {})) change_sources(std::move(change));
      begun->prefer(preferred_.empty() ? first_wanted(handle) : preferred_);
      if (const auto root = std::exchange(committed_, std::nullopt)) begun->commit(*root);
      if (std::exchange(stop_requested_, false) || core.fatal()) begun->stop();
    });
    if (!begun->run()) return {errc::cancelled, "the transfer was stopped"};
    whole_->data->unpack();
    return {};
  } catch (...) {
    return worker_detail::status_of_exception("the transfer failed");
  }
}

TENSORHUB_DECL std::vector<chunk_index> worker_updates::first_wanted(update_state* handle) {
  if (handle == nullptr) return {};
  const std::lock_guard lock{handle->mutex};
  return handle->arrivals->missing(handle->order, arriving_tensors::look_ahead_chunks);
}

TENSORHUB_DECL transfer_events worker_updates::events_of(const pull_order& order, update_state* handle) {
  transfer_events out;
  if (handle != nullptr) {
    out.arrived = [handle](std::span<const chunk_index> chunks) {
      const std::lock_guard arrival{handle->mutex};
      handle->arrivals->add(chunks);
      handle->changed.notify_all();
    };
  }
  out.source_failed = [this, version = order.version](const source_failure& lost) {
    whole_->counted.source_failed(lost.reason);
    if (whole_->options.log) whole_->options.log(worker_detail::line_of(*whole_, version, lost));
    whole_->client.with([&](session& core, time_point now) {
      core.source_failed(now, lost.lease, lost.reason, lost.detail, lost.chunk);
    });
  };
  out.source_released = [this](lease_id lease) {
    whole_->client.with([&](session& core, time_point now) { core.source_released(now, lease); });
  };
  out.stalled = [this](const std::string& detail) {
    whole_->counted.stalled();
    whole_->client.with([&](session& core, time_point now) { core.pull_stalled(now, detail); });
  };
  out.ran_short = [this] {
    whole_->client.with([](session& core, time_point now) { core.pull_ran_short(now); });
  };
  out.chunks_received = &chunks_received_;
  return out;
}

// ---- for handles

TENSORHUB_DECL void worker_updates::cancel(update_state& handle) {
  std::unique_lock lock{handle.mutex};
  handle.cancelled = true;
  const session_ticket ticket = handle.ticket;
  lock.unlock();
  whole_->client.with([&](session& core, time_point now) {
    if (ticket != 0)
      core.cancel(now, ticket);
    else if (!handle.has_ended())
      core.cancel_join(handle.join_ticket, {errc::cancelled, "the caller cancelled the update"});
  });
}

TENSORHUB_DECL update_progress worker_updates::progress_of(const update_state& handle) {
  const layout& shape = whole_->shape;
  update_progress out = whole_->client.with([&](session&, time_point) -> update_progress {
    if (running_ == nullptr) return {{}, 0, shape.bytes(), false, {}};
    pull_progress at = running_->progress();
    return {reading_version_.number(), at.bytes, at.total_bytes, false, std::move(at.sources)};
  });
  const std::lock_guard lock{handle.mutex};
  if (handle.ended && !handle.failure) {
    out = {handle.report.version, shape.bytes(), shape.bytes(), true, {}};
  }
  out.done = handle.ended;
  return out;
}

TENSORHUB_DECL void worker_updates::prefer(std::span<const chunk_index> chunks) {
  whole_->client.with([&](session&, time_point) {
    if (running_ != nullptr)
      running_->prefer(chunks);
    else
      preferred_.assign(chunks.begin(), chunks.end());
  });
}

TENSORHUB_DECL update_handle::~update_handle() {
  end();
}
TENSORHUB_DECL update_handle& update_handle::operator=(update_handle&& other) noexcept {
  if (this == &other) return *this;
  end();
  state_ = std::move(other.state_);
  thread_ = std::move(other.thread_);
  return *this;
}
TENSORHUB_DECL void update_handle::end() noexcept {
  if (!state_ || !thread_.joinable()) return;
  try {
    cancel();
  } catch (...) {  // it ends at its own deadline
  }
  thread_.join();
}
TENSORHUB_DECL update_progress update_handle::progress() const {
  return state_->owner->updates.progress_of(*state_);
}
TENSORHUB_DECL void update_handle::cancel() {
  {
    const std::lock_guard lock{state_->mutex};
    if (state_->ended) return;  // its worker may have ended since
    ++state_->cancelling;
  }
  struct in_use {
    update_state& of;
    ~in_use() {
      const std::lock_guard lock{of.mutex};
      --of.cancelling;
      of.changed.notify_all();
    }
  } const until_cancelled{*state_};
  state_->owner->updates.cancel(*state_);
}
TENSORHUB_DECL bool update_handle::done() const {
  const std::lock_guard lock{state_->mutex};
  return state_->ended;
}
TENSORHUB_DECL int update_handle::descriptor() const {
  const std::lock_guard lock{state_->mutex};
  if (!state_->completion) {
    state_->completion.emplace("an update's end");
    if (state_->ended) state_->completion->raise();
  }
  return state_->completion->descriptor();
}
TENSORHUB_DECL update_report update_handle::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock{state_->mutex};
  if (!state_->changed.wait_for(lock, detail::bounded(timeout), [this] { return state_->ended; })) {
    throw state_->owner->failure(errc::timed_out, "the update is still running");
  }
  if (state_->failure) std::rethrow_exception(state_->failure);
  return state_->report;
}

TENSORHUB_DECL arriving_tensors update_handle::tensors(std::span<const std::string> names) const {
  const worker_state& owner = *state_->owner;
  const std::span<const tensor_spec> known = owner.data->tensors();
  std::vector<std::size_t> order;
  if (names.empty()) {
    order.resize(known.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
  }
  std::unordered_map<std::string_view, std::size_t> positions;
  for (std::size_t i = 0; i < known.size() && !names.empty(); ++i) positions.emplace(known[i].name, i);
  for (const std::string& name : names) {
    const auto found = positions.find(name);
    if (found == positions.end())
      throw owner.failure(errc::invalid_argument, "no tensor '" + name + "' was added");
    order.push_back(found->second);
  }
  const std::lock_guard lock{state_->mutex};
  state_->order = order;
  return {state_, std::move(order)};
}

// ---- one tensor after the other

TENSORHUB_DECL std::optional<arrived_tensor> arriving_tensors::next(std::chrono::milliseconds timeout) {
  await_next(timeout);
  std::unique_lock lock{update_->mutex};
  if (update_->failure) std::rethrow_exception(update_->failure);
  const std::uint64_t transfer = update_->transfer;
  const version_number version = update_->report.version;
  lock.unlock();
  if (taken_ == order_.size()) return std::nullopt;
  data_plane& data = *update_->owner->data;
  const std::size_t position = order_[taken_];
  const tensor_spec& tensor = data.tensors()[position];
  if (!data.unpack(position, transfer)) {
    throw update_->owner->failure(errc::unavailable,
                                  "tensor '" + tensor.name + "' of version " + to_string(version) +
                                      " is gone: another update of this worker has begun; take all before",
                                  version);
  }
  ++taken_;
  const memory_range& range = data.ranges()[position];
  return arrived_tensor{position, tensor.name, tensor.type, tensor.shape, range.data, range.bytes};
}

TENSORHUB_DECL void arriving_tensors::await_next(std::chrono::milliseconds timeout) {
  const auto until = detail::end_of(timeout);
  const std::span<const std::size_t> rest = std::span<const std::size_t>{order_}.subspan(taken_);
  std::optional<chunk_index> last_preferred;
  std::unique_lock lock{update_->mutex};
  const auto is_here = [&] {
    return !rest.empty() && update_->arrivals && update_->arrivals->has(rest.front());
  };
  while (!update_->ended && !is_here()) {
    const auto& arrivals = update_->arrivals;
    if (arrivals && !rest.empty() && (!last_preferred || arrivals->has_chunk(*last_preferred))) {
      const std::vector<chunk_index> wanted = arrivals->missing(rest, look_ahead_chunks);
      last_preferred = wanted.back();
      lock.unlock();
      update_->owner->updates.prefer(wanted);
      lock.lock();
      continue;
    }
    if (update_->changed.wait_until(lock, until) == std::cv_status::no_timeout) continue;
    if (update_->ended || is_here()) return;
    throw update_->owner->failure(
        errc::timed_out, rest.empty() ? std::string{"all tensors have arrived, but the update has not ended"}
                                      : "tensor '" + update_->owner->data->tensors()[rest.front()].name +
                                            "' has not arrived yet: wait longer");
  }
}

// ---- the session's orders

TENSORHUB_DECL void worker_updates::perform(session& core, session_actions::start_pull& order) {
  pending_changes_.clear();
  stop_requested_ = false;
  committed_.reset();
  pull_order next{order.version, core.epoch(), order.ordinal, {}, order.open};
  for (const messages::assignment& source : order.sources)
    next.sources.push_back(worker_detail::pull_target_of(source, whole_->shape.chunk_count()));
  try {
    if (!copied_from_) core.pull_started(whole_->clock.now(), whole_->data->control());
    whole_->results.order(std::move(next));
  } catch (...) {
    worker_detail::report_end(
        *whole_->data, core, whole_->clock.now(),
        {order.version, false, true, worker_detail::status_of_exception("the transfer cannot begin"), {}});
  }
}
TENSORHUB_DECL void worker_updates::perform(session&, const session_actions::commit_pull& order) {
  if (running_ != nullptr)
    running_->commit(order.root);
  else
    committed_ = order.root;
}
TENSORHUB_DECL void worker_updates::perform(session&, session_actions::add_source& order) {
  change_sources({worker_detail::pull_target_of(order.source, whole_->shape.chunk_count()), order.released});
}
TENSORHUB_DECL void worker_updates::perform(session&, const session_actions::release_source& order) {
  change_sources({std::nullopt, order.released});
}
TENSORHUB_DECL void worker_updates::perform(session&, const session_actions::stop_pull&) {
  if (running_ != nullptr)
    running_->stop();
  else
    stop_requested_ = true;
}
TENSORHUB_DECL void worker_updates::change_sources(pull_change change) {
  if (running_ == nullptr) return pending_changes_.push_back(std::move(change));
  if (change.released) running_->release_source(change.released);
  if (change.added) running_->add_source(*std::move(change.added));
}

}  // namespace tensorhub::inline TENSORHUB_MODE
