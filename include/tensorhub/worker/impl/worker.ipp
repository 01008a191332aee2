#pragma once
/// \file worker.ipp
/// What worker/worker.hpp declares, but for its questions (impl/questions.ipp): construction, publish,
/// unpublish, leave, and the calls that only look.

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "tensorhub/service/log.hpp"
#include "tensorhub/worker/offloads.hpp"
#include "tensorhub/worker/state.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace worker_detail {

[[nodiscard]] TENSORHUB_DECL publish_report run_publish(worker_state& self, version_number version,
                                                        std::chrono::milliseconds timeout) {
  const auto started = self.clock.now();
  const operation_guard busy{self};
  self.ensure_joined();
  if (!version) throw self.failure(errc::invalid_argument, "version 0 cannot be published: count from 1");
  if (const auto held = self.held_version()) {
    throw self.failure(errc::busy,
                       "version " + to_string(held) + " is still published: call unpublish() first", version);
  }
  publish_report report{version, self.shape.bytes(), 0, 0};
  const version_digests digests = self.named(version, [&] { return self.data->pack(version); });
  report.digest_seconds = to_seconds(self.clock.now() - started);
  const session_ticket ticket = self.client.with([&](session& core, time_point now) {
    self.data->show(version, core.epoch(), digests.table);
    return core.publish(now, version, digests.root, self.data->control(), now + timeout);
  });
  const session_result result = self.wait_for(ticket, timeout);
  if (!result.outcome.ok()) throw self.failure(result.outcome, version);
  report.seconds = to_seconds(self.clock.now() - started);
  return report;
}

[[nodiscard]] TENSORHUB_DECL unpublish_report run_unpublish(worker_state& self,
                                                            std::chrono::milliseconds timeout,
                                                            bool is_leaving) {
  const auto started = self.clock.now();
  const operation_guard busy{self};
  unpublish_report report;
  if (!self.joined) return report;
  const session_ticket ticket = self.client.with(
      [&](session& core, time_point now) { return core.unpublish(now, now + timeout, is_leaving); });
  const session_result result = self.wait_for(ticket, timeout);
  if (!result.outcome.ok()) throw self.failure(result.outcome, {});
  report.finished = result.drained.finished;
  report.moved = result.drained.moved;
  report.cut_off = result.drained.cut_off;
  report.forced = result.forced;
  report.lost = result.drained.lost;
  report.seconds = to_seconds(self.clock.now() - started);
  return report;
}

}  // namespace worker_detail

TENSORHUB_DECL worker::worker(worker_options options, worker_policies policies, port_choice ports)
    : state_{std::make_unique<worker_state>(std::move(options), std::move(policies), ports)} {}

TENSORHUB_DECL worker::~worker() {
  try {
    if (state_->joined) leave(std::chrono::milliseconds{0});
  } catch (const error& e) {
    if (state_->options.log) state_->options.log(line_of(log_level::warning, e, state_->self));
  }
  state_->kept_for_others->close();
}

TENSORHUB_DECL void worker::add(std::string name, const void* data, std::span<const std::uint64_t> dimensions,
                                dtype type) {
  const operation_guard busy{*state_};
  if (state_->prepared)
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

TENSORHUB_DECL void worker::join() {
  const operation_guard busy{*state_};
  state_->ensure_joined();
}

TENSORHUB_DECL publish_report worker::publish(version_number version, std::chrono::milliseconds timeout) {
  return state_->counted.publish([&] { return worker_detail::run_publish(*state_, version, timeout); });
}

TENSORHUB_DECL unpublish_report worker::unpublish(std::chrono::milliseconds timeout) {
  return state_->counted.unpublish([&] { return worker_detail::run_unpublish(*state_, timeout, false); });
}

TENSORHUB_DECL update_report worker::update(version_selector selector, std::chrono::milliseconds timeout,
                                            update_reach reach) {
  return state_->updates.update(selector, timeout, reach);
}
TENSORHUB_DECL update_handle worker::update_async(version_selector selector,
                                                  std::chrono::milliseconds timeout, update_reach reach) {
  return state_->updates.update_async(selector, timeout, reach);
}
TENSORHUB_DECL update_report worker::update_from(worker& neighbour, std::chrono::milliseconds timeout) {
  return state_->updates.update_from(*neighbour.state_, timeout);
}

TENSORHUB_DECL void worker::at_rest(const std::function<void(version_number, std::uint64_t)>& call) {
  const operation_guard busy{*state_};
  call(state_->held_version(), state_->updates.succeeded());
}

TENSORHUB_DECL std::optional<version_number> worker::newer() {
  state_->ensure_joined_idle();
  return state_->client.with([](session& core, time_point) -> std::optional<version_number> {
    const version_number held = core.held() ? core.held()->version : version_number{};
    if (core.latest() > held) return core.latest();
    return std::nullopt;
  });
}

TENSORHUB_DECL version_number worker::wait(version_selector selector, std::chrono::milliseconds timeout) {
  state_->ensure_joined_idle();
  const std::chrono::milliseconds margin = worker_state::answer_margin;
  const session_ticket ticket = state_->client.with(
      [&](session& core, time_point now) { return core.wait(now, selector, now + timeout + margin); });
  return state_->checked(state_->wait_for(ticket, timeout + margin)).version;
}

TENSORHUB_DECL void worker::leave(std::chrono::milliseconds grace) {
  if (!state_->joined) return;
  static_cast<void>(
      state_->counted.unpublish([&] { return worker_detail::run_unpublish(*state_, grace, true); }));
  state_->kept_for_others->leave(grace);
  const operation_guard busy{*state_};
  const auto timeout = std::max<std::chrono::milliseconds>(grace, std::chrono::milliseconds{500});
  const session_ticket ticket =
      state_->client.with([&](session& core, time_point now) { return core.leave(now, now + timeout); });
  state_->joined = false;
  state_->left = true;
  static_cast<void>(state_->checked(state_->wait_for(ticket, timeout)));
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
TENSORHUB_DECL const layout& worker::shape() const noexcept {
  return state_->shape;
}
TENSORHUB_DECL registration_cost worker::cost() const noexcept {
  return state_->data->cost();
}
TENSORHUB_DECL worker_statistics worker::statistics() const {
  return state_->counted.values(state_->options, state_->data->cost());
}
TENSORHUB_DECL data_plane& worker::data() noexcept {
  return *state_->data;
}

TENSORHUB_DECL std::chrono::milliseconds worker::await_stream(const void* stream,
                                                              std::chrono::milliseconds timeout) {
  try {
    return state_->data->await_stream(stream, timeout);
  } catch (const error& e) {
    throw state_->failure(e.code(), e.sentence());  // with the model, replica and shard
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE
