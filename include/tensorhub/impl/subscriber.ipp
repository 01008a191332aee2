#pragma once
/// \file subscriber.ipp
/// What subscriber.hpp declares.

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <utility>

#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/policy/steady_clock.hpp"
#include "tensorhub/subscriber.hpp"
#include "tensorhub/worker/repeated.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace subscriber_detail {
inline constexpr std::array<std::string_view, 3> mode_names{"in_place", "staged", "double_buffered"};
}

TENSORHUB_DECL std::string_view to_string(subscriber_mode mode) noexcept {
  const auto at = static_cast<std::size_t>(mode);
  return at < subscriber_detail::mode_names.size() ? subscriber_detail::mode_names[at] : "unknown";
}
TENSORHUB_DECL subscriber_mode subscriber_mode_named(std::string_view name) {
  const auto& names = subscriber_detail::mode_names;
  const auto found = detail::find(names, name);
  if (found == names.end())
    throw error(errc::invalid_argument, "a subscriber has no mode '" + std::string{name} +
                                            "': take 'in_place', 'staged' or 'double_buffered'");
  return static_cast<subscriber_mode>(found - names.begin());
}

TENSORHUB_DECL any_subscriber::any_subscriber(worker_options options, subscriber_mode mode,
                                              const worker_policies& policies)
    : options_{validated(std::move(options))}, mode_{mode} {
  if (static_cast<std::size_t>(mode) >= subscriber_detail::mode_names.size())
    throw failure(errc::invalid_argument,
                  "subscriber_mode " + std::to_string(static_cast<int>(mode)) + " does not exist");
  workers_[0] = std::make_unique<worker>(flips() ? beside(options_, "a") : options_, policies);
  if (mode == subscriber_mode::in_place) return;
  workers_[1] = std::make_unique<worker>(beside(options_, flips() ? "b" : "stage"), policies,
                                         worker_role{.added = true});
}

// ---- tensors

TENSORHUB_DECL void any_subscriber::add(std::string name, void* data,
                                        std::span<const std::uint64_t> dimensions, dtype type) {
  require(!flips(), "add() of the user's memory", "in_place or staged");
  const std::lock_guard lock{mutex_};
  if (!memories_.empty())
    throw failure(errc::invalid_argument, "tensor '" + name + "' was added after the first stage()");
  workers_[0]->add(std::move(name), data, dimensions, type);
}
TENSORHUB_DECL void any_subscriber::add(std::string name, void* data,
                                        std::initializer_list<std::uint64_t> dimensions, dtype type) {
  add(std::move(name), data, std::span{dimensions.begin(), dimensions.size()}, type);
}
TENSORHUB_DECL void any_subscriber::add(std::string name, std::span<const std::uint64_t> dimensions,
                                        dtype type) {
  require(flips(), "add() without memory", "double_buffered");
  const std::lock_guard lock{mutex_};
  if (!memories_.empty())
    throw failure(errc::invalid_argument, "tensor '" + name + "' was added after the first other call");
  if (!positions_.emplace(name, tensors_.size()).second)
    throw failure(errc::invalid_argument, "tensor '" + name + "' was added twice");
  tensors_.push_back({std::move(name), type, {dimensions.begin(), dimensions.end()}});
}
TENSORHUB_DECL void any_subscriber::add(std::string name, std::initializer_list<std::uint64_t> dimensions,
                                        dtype type) {
  add(std::move(name), std::span{dimensions.begin(), dimensions.size()}, type);
}
TENSORHUB_DECL void any_subscriber::keep_alive(std::shared_ptr<const void> owner) {
  workers_[0]->keep_alive(std::move(owner));
}

TENSORHUB_DECL void any_subscriber::join() {
  join_by(std::chrono::steady_clock::time_point::max());
}
TENSORHUB_DECL void any_subscriber::join_by(std::chrono::steady_clock::time_point until) {
  if (!flips()) return workers_[0]->join_by(until);
  prepare();
  for (const auto& side : workers_) side->join_by(until);
}

// ---- receive

TENSORHUB_DECL update_report any_subscriber::update(version_selector selector,
                                                    std::chrono::milliseconds timeout, update_reach reach) {
  return carry_out({.selector = selector, .reach = reach}, timeout);
}
TENSORHUB_DECL update_report any_subscriber::update(version_selector selector, retry_t,
                                                    std::chrono::milliseconds timeout, update_reach reach) {
  return carry_out({.selector = selector, .repeats = true, .reach = reach}, timeout);
}
TENSORHUB_DECL update_report any_subscriber::carry_out(const update_call& call,
                                                       std::chrono::milliseconds timeout) {
  const steady_clock clock;
  const auto started = clock.now();
  const auto until = detail::end_of(timeout);
  if (mode_ == subscriber_mode::in_place) {
    if (call.stream != nullptr) timeout = await_stream(call.stream, timeout);
    return call.repeats ? workers_[0]->update(call.selector, retry, timeout, call.reach)
                        : workers_[0]->update(call.selector, timeout, call.reach);
  }
  const auto attempt = [&](auto&& once) {
    const auto left = detail::time_left(until);
    return call.repeats ? detail::repeated(options_, left, *this, once) : once(left);
  };
  if (auto kept = kept_report(call.selector, timeout)) return *std::move(kept);
  update_report report =
      attempt([&](std::chrono::milliseconds left) { return stage(call.selector, left, call.reach); });
  const install_report installed =
      attempt([&](std::chrono::milliseconds left) { return install_after(call.stream, left); });
  report.kept = report.kept && installed.kept;
  report.lost = report.lost || installed.lost;
  report.seconds = to_seconds(clock.now() - started);
  return report;
}
TENSORHUB_DECL std::optional<update_report> any_subscriber::kept_report(version_selector selector,
                                                                        std::chrono::milliseconds timeout) {
  static constexpr std::chrono::milliseconds patience{1000};
  const version_number live = held_version();
  if (options_.shard.count > 1 || !live || !accepts(selector, live) || !holds_what_is_live())
    return std::nullopt;
  worker& holder = live_side();
  try {  // when its answer is here, so is all that the server has told before
    static_cast<void>(holder.why(std::min(timeout, patience)));
  } catch (const error& e) {
    if (!e.retryable()) throw;
    return std::nullopt;
  }
  const bool is_enough = selector.kind == version_selector::kind_type::exactly || !holder.newer();
  if (!is_enough || held_version() != live || !holds_what_is_live()) return std::nullopt;
  update_report kept;
  kept.version = live;
  kept.kept = true;
  return kept;
}
TENSORHUB_DECL update_handle any_subscriber::update_async(version_selector selector,
                                                          std::chrono::milliseconds timeout,
                                                          update_reach reach) {
  require(mode_ == subscriber_mode::in_place, "update_async()", "in_place (in others: stage_async, install)");
  return workers_[0]->update_async(selector, timeout, reach);
}

TENSORHUB_DECL update_report any_subscriber::stage(version_selector selector,
                                                   std::chrono::milliseconds timeout, update_reach reach) {
  // The update itself ends by `timeout`.
  return stage_async(selector, timeout, reach).wait(std::chrono::hours{24 * 365});
}
TENSORHUB_DECL update_report any_subscriber::stage(version_selector selector, retry_t,
                                                   std::chrono::milliseconds timeout, update_reach reach) {
  return detail::repeated(options_, timeout, *this,
                          [&](std::chrono::milliseconds left) { return stage(selector, left, reach); });
}
TENSORHUB_DECL update_handle any_subscriber::stage_async(version_selector selector,
                                                         std::chrono::milliseconds timeout,
                                                         update_reach reach) {
  require(mode_ != subscriber_mode::in_place, "stage()", "staged or double_buffered");
  prepare();
  const std::lock_guard lock{mutex_};  // no flip until the operation has begun
  return workers_[next_side()]->update_async(selector, timeout, reach, true);
}

TENSORHUB_DECL install_report any_subscriber::install(std::chrono::milliseconds timeout) {
  return install_after(nullptr, timeout);
}
TENSORHUB_DECL install_report any_subscriber::install_after(const void* stream,
                                                            std::chrono::milliseconds timeout) {
  require(mode_ != subscriber_mode::in_place, "install()", "staged or double_buffered");
  return flips() ? flip() : copy_over(stream, timeout);
}
TENSORHUB_DECL install_report any_subscriber::copy_over(const void* stream,
                                                        std::chrono::milliseconds timeout) {
  std::uint64_t stages = 0;
  workers_[1]->at_rest([&](version_number, std::uint64_t updates) { stages = updates; });
  {
    const std::lock_guard lock{mutex_};
    if (stages == installed_[1])
      throw failure(errc::not_found, "nothing is staged: install() follows a stage() that has succeeded");
  }
  if (stream != nullptr) timeout = await_stream(stream, timeout);
  const update_report done = workers_[0]->update_from(*workers_[1], timeout);
  const std::lock_guard lock{mutex_};
  installed_[1] = stages;
  return {done.version, done.kept, done.bytes, done.wait_seconds, done.pull_seconds, done.seconds, done.lost};
}
TENSORHUB_DECL install_report any_subscriber::flip() {
  const std::lock_guard lock{mutex_};
  const steady_clock clock;
  const auto started = clock.now();
  const std::size_t next = next_side();
  install_report report;
  workers_[next]->at_rest([&](version_number held, std::uint64_t updates) {
    if (!held || updates == installed_[next])
      throw failure(errc::not_found, "nothing is staged: install() follows a stage() that has succeeded");
    installed_[next] = updates;
    live_ = next;
    live_version_ = report.version = held;
  });
  report.seconds = to_seconds(clock.now() - started);
  return report;
}

TENSORHUB_DECL void* any_subscriber::tensor(const std::string& name) const {
  require(flips(), "tensor()", "double_buffered");
  const std::lock_guard lock{mutex_};
  const auto found = positions_.find(name);
  if (found == positions_.end()) throw failure(errc::invalid_argument, "no tensor '" + name + "' was added");
  if (!live_) throw failure(errc::not_found, "no version is live yet: call stage() and install()");
  return memories_[*live_]->data(found->second);
}

// ---- what there is

TENSORHUB_DECL version_number any_subscriber::held_version() const {
  if (!flips()) return workers_[0]->held_version();
  const std::lock_guard lock{mutex_};
  return live_version_;
}
TENSORHUB_DECL version_number any_subscriber::staged_version() const {
  return mode_ == subscriber_mode::in_place ? version_number{} : idle_side().held_version();
}
TENSORHUB_DECL std::optional<version_number> any_subscriber::newer() {
  const std::unique_lock lock{mutex_, std::try_to_lock};  // another call may allocate memory now
  if (!lock && flips()) return std::nullopt;
  return workers_[live_.value_or(0)]->newer();
}
TENSORHUB_DECL version_number any_subscriber::wait(version_selector selector,
                                                   std::chrono::milliseconds timeout) {
  const auto until = detail::end_of(timeout);
  if (flips()) prepare();
  return live_side().wait(selector, detail::time_left(until));
}

// ---- the end

TENSORHUB_DECL unpublish_report any_subscriber::unpublish(std::chrono::milliseconds timeout) {
  if (!flips()) return workers_[0]->unpublish(timeout);
  const std::array<worker*, 2> both{workers_[0].get(), workers_[1].get()};
  return unpublish_together(both, timeout);
}
TENSORHUB_DECL unpublish_report any_subscriber::release_stage(std::chrono::milliseconds timeout) {
  require(mode_ != subscriber_mode::in_place, "release_stage()", "staged or double_buffered");
  return idle_side().unpublish(timeout);
}
TENSORHUB_DECL unpublish_report any_subscriber::leave(std::chrono::milliseconds grace) {
  if (mode_ == subscriber_mode::in_place) return workers_[0]->leave(grace);
  const std::array<worker*, 2> both{workers_[1].get(), workers_[0].get()};
  return leave_together(both, grace);
}
TENSORHUB_DECL void any_subscriber::interrupt() {
  if (workers_[1]) workers_[1]->interrupt();
  workers_[0]->interrupt();
}

// ---- questions

TENSORHUB_DECL std::vector<model_entry> any_subscriber::list(std::string model,
                                                             std::chrono::milliseconds timeout) {
  return workers_[0]->list(std::move(model), timeout);
}
TENSORHUB_DECL model_description any_subscriber::describe_model(std::uint32_t shard,
                                                                std::chrono::milliseconds timeout) {
  return workers_[0]->describe_model(shard, timeout);
}
TENSORHUB_DECL std::string any_subscriber::why(std::chrono::milliseconds timeout) {
  return (flips() ? idle_side() : *workers_[0]).why(timeout);
}
TENSORHUB_DECL stuck_report any_subscriber::stuck(std::chrono::milliseconds older_than,
                                                  std::chrono::milliseconds timeout) {
  return workers_[0]->stuck(older_than, timeout);
}
TENSORHUB_DECL void any_subscriber::retain(std::uint32_t versions, std::chrono::milliseconds timeout) {
  if (flips()) prepare();
  workers_[0]->retain(versions, timeout);
}
TENSORHUB_DECL void any_subscriber::pin(version_number version, std::chrono::milliseconds timeout) {
  if (flips()) prepare();
  workers_[0]->pin(version, timeout);
}
TENSORHUB_DECL void any_subscriber::release(version_number version, std::chrono::milliseconds timeout) {
  if (flips()) prepare();
  workers_[0]->release(version, timeout);
}

TENSORHUB_DECL incarnation any_subscriber::self() const noexcept {
  return workers_[0]->self();
}
TENSORHUB_DECL const layout& any_subscriber::shard_layout() const noexcept {
  return workers_[0]->shard_layout();
}
TENSORHUB_DECL registration_cost any_subscriber::cost() const noexcept {
  registration_cost all = workers_[0]->cost();
  if (workers_[1]) all.add(workers_[1]->cost());
  return all;
}
TENSORHUB_DECL std::uint64_t any_subscriber::offloaded_bytes() const {
  return workers_[0]->offloaded_bytes() + (workers_[1] ? workers_[1]->offloaded_bytes() : 0);
}
TENSORHUB_DECL worker_statistics any_subscriber::statistics() const {
  return workers_[0]->statistics();
}
TENSORHUB_DECL worker_statistics any_subscriber::stage_statistics() const {
  require(mode_ != subscriber_mode::in_place, "stage_statistics()", "staged or double_buffered");
  return workers_[1]->statistics();
}

// ---- inside

TENSORHUB_DECL std::chrono::milliseconds any_subscriber::await_stream(const void* stream,
                                                                      std::chrono::milliseconds timeout) {
  return workers_[0]->await_stream(stream, timeout);
}

TENSORHUB_DECL void any_subscriber::require(bool has_call, const char* call, const char* modes) const {
  if (has_call) return;
  throw failure(errc::invalid_argument, std::string{call} + " is for subscribers in mode " + modes +
                                            ", and this one is " + std::string{to_string(mode_)});
}

TENSORHUB_DECL void any_subscriber::prepare() {
  const std::lock_guard lock{mutex_};
  if (flips())
    prepare_sides();
  else
    prepare_stage();
}
// Both go on where an earlier call has failed: each `add` is `busy` while another call uses that worker.
TENSORHUB_DECL void any_subscriber::prepare_stage() {
  const auto tensors = workers_[0]->data().tensors();
  // A device is not asked for room for a second shard: what is staged waits in host memory.
  if (memories_.empty())
    memories_.push_back(workers_[0]->data().allocate(tensors, tensor_place::offload_space));
  for (std::size_t i = workers_[1]->data().tensors().size(); i < tensors.size(); ++i)
    workers_[1]->add(tensors[i].name, memories_[0]->data(i), tensors[i].shape, tensors[i].type);
}
TENSORHUB_DECL void any_subscriber::prepare_sides() {
  if (memories_.empty()) {
    std::vector<std::unique_ptr<owned_tensors>> memories;
    for (const auto& side : workers_)
      memories.push_back(side->data().allocate(tensors_, tensor_place::memory_space));
    memories_ = std::move(memories);
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    for (std::size_t t = workers_[i]->data().tensors().size(); t < tensors_.size(); ++t)
      workers_[i]->add(tensors_[t].name, memories_[i]->data(t), tensors_[t].shape, tensors_[t].type);
  }
}

TENSORHUB_DECL std::size_t any_subscriber::side_to_stage() const {
  const std::lock_guard lock{mutex_};
  return next_side();
}
TENSORHUB_DECL worker& any_subscriber::idle_side() const {
  return *workers_[side_to_stage()];
}
TENSORHUB_DECL worker& any_subscriber::live_side() const {
  const std::lock_guard lock{mutex_};
  return *workers_[live_.value_or(0)];
}
TENSORHUB_DECL bool any_subscriber::holds_what_is_live() const {
  const version_number live = held_version();
  return live && live_side().held_version() == live;
}

TENSORHUB_DECL error any_subscriber::failure(errc code, const std::string& sentence) const {
  return error(code, sentence, context_of(options_));
}

}  // namespace tensorhub::inline TENSORHUB_MODE
