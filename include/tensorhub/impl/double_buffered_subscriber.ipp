#pragma once
/// \file double_buffered_subscriber.ipp
/// What double_buffered_subscriber.hpp declares.

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <utility>

#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/double_buffered_subscriber.hpp"
#include "tensorhub/policy/steady_clock.hpp"
#include "tensorhub/worker/repeated.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL any_double_buffered_subscriber::any_double_buffered_subscriber(worker_options options,
                                                                              const worker_policies& policies)
    : options_{validated(std::move(options))},
      sides_{std::make_unique<worker>(beside(options_, "a"), policies),
             std::make_unique<worker>(beside(options_, "b"), policies, worker_role{.added = true})} {}

TENSORHUB_DECL void any_double_buffered_subscriber::add(std::string name,
                                                        std::span<const std::uint64_t> shape, dtype type) {
  const std::lock_guard lock{mutex_};
  if (!memories_.empty())
    throw failure(errc::invalid_argument, "tensor '" + name + "' was added after the first other call");
  if (!positions_.emplace(name, tensors_.size()).second)
    throw failure(errc::invalid_argument, "tensor '" + name + "' was added twice");
  tensors_.push_back({std::move(name), type, {shape.begin(), shape.end()}});
}
TENSORHUB_DECL void any_double_buffered_subscriber::add(std::string name,
                                                        std::initializer_list<std::uint64_t> shape,
                                                        dtype type) {
  add(std::move(name), std::span{shape.begin(), shape.size()}, type);
}

TENSORHUB_DECL void any_double_buffered_subscriber::join() {
  prepare();
  for (const auto& each : sides_) each->join();
}

TENSORHUB_DECL update_report any_double_buffered_subscriber::stage(version_selector selector,
                                                                   std::chrono::milliseconds timeout,
                                                                   update_reach reach) {
  // The update itself ends by `timeout`.
  return stage_async(selector, timeout, reach).wait(std::chrono::hours{24 * 365});
}
TENSORHUB_DECL update_report any_double_buffered_subscriber::stage(version_selector selector, retry_t,
                                                                   std::chrono::milliseconds timeout,
                                                                   update_reach reach) {
  return detail::repeated(options_, timeout,
                          [&](std::chrono::milliseconds left) { return stage(selector, left, reach); });
}
TENSORHUB_DECL any_double_buffered_subscriber::stage_handle any_double_buffered_subscriber::stage_async(
    version_selector selector, std::chrono::milliseconds timeout, update_reach reach) {
  prepare();
  const std::lock_guard lock{mutex_};  // no flip until the operation has begun
  return sides_[next_side()]->update_async(selector, timeout, reach, true);
}

TENSORHUB_DECL install_report any_double_buffered_subscriber::install() {
  const std::lock_guard lock{mutex_};
  const steady_clock clock;
  const auto started = clock.now();
  const std::size_t next = next_side();
  install_report report;
  sides_[next]->at_rest([&](version_number held, std::uint64_t updates) {
    if (!held || updates == flipped_at_[next]) {
      throw failure(errc::not_found, "nothing is staged: install() follows a stage() that has succeeded");
    }
    flipped_at_[next] = updates;
    live_ = next;
    live_version_ = report.version = held;
  });
  report.seconds = to_seconds(clock.now() - started);
  return report;
}

TENSORHUB_DECL void* any_double_buffered_subscriber::tensor(const std::string& name) const {
  const std::lock_guard lock{mutex_};
  const auto found = positions_.find(name);
  if (found == positions_.end()) throw failure(errc::invalid_argument, "no tensor '" + name + "' was added");
  if (!live_) throw failure(errc::not_found, "no version is live yet: call stage() and install()");
  return memories_[*live_]->data(found->second);
}

TENSORHUB_DECL version_number any_double_buffered_subscriber::live_version() const {
  const std::lock_guard lock{mutex_};
  return live_version_;
}
TENSORHUB_DECL version_number any_double_buffered_subscriber::staged_version() {
  return idle_side().held_version();
}

TENSORHUB_DECL std::optional<version_number> any_double_buffered_subscriber::newer() {
  const std::unique_lock lock{mutex_, std::try_to_lock};  // another call may allocate the memories now
  if (!lock) return std::nullopt;
  return sides_[live_.value_or(0)]->newer();
}
TENSORHUB_DECL version_number any_double_buffered_subscriber::wait(version_selector selector,
                                                                   std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  prepare();
  return live_side().wait(selector, detail::time_left(until));
}

TENSORHUB_DECL std::vector<model_entry> any_double_buffered_subscriber::list(
    std::string model, std::chrono::milliseconds timeout) {
  return sides_[0]->list(std::move(model), timeout);
}
TENSORHUB_DECL model_description
any_double_buffered_subscriber::describe_model(std::uint32_t shard, std::chrono::milliseconds timeout) {
  return sides_[0]->describe_model(shard, timeout);
}
TENSORHUB_DECL std::string any_double_buffered_subscriber::why(std::chrono::milliseconds timeout) {
  return idle_side().why(timeout);
}
TENSORHUB_DECL stuck_report any_double_buffered_subscriber::stuck(std::chrono::milliseconds older_than,
                                                                  std::chrono::milliseconds timeout) {
  return sides_[0]->stuck(older_than, timeout);
}

TENSORHUB_DECL void any_double_buffered_subscriber::retain(std::uint32_t versions,
                                                           std::chrono::milliseconds timeout) {
  prepare();
  sides_[0]->retain(versions, timeout);
}
TENSORHUB_DECL void any_double_buffered_subscriber::pin(version_number version,
                                                        std::chrono::milliseconds timeout) {
  prepare();
  sides_[0]->pin(version, timeout);
}
TENSORHUB_DECL void any_double_buffered_subscriber::release(version_number version,
                                                            std::chrono::milliseconds timeout) {
  prepare();
  sides_[0]->release(version, timeout);
}
TENSORHUB_DECL std::uint64_t any_double_buffered_subscriber::offloaded_bytes() const {
  return sides_[0]->offloaded_bytes() + sides_[1]->offloaded_bytes();
}

TENSORHUB_DECL registration_cost any_double_buffered_subscriber::cost() const noexcept {
  registration_cost all = sides_[0]->cost();
  all.add(sides_[1]->cost());
  return all;
}
TENSORHUB_DECL const layout& any_double_buffered_subscriber::shape() const noexcept {
  return sides_[0]->shape();
}

TENSORHUB_DECL std::array<worker_statistics, 2> any_double_buffered_subscriber::statistics() const {
  return {sides_[0]->statistics(), sides_[1]->statistics()};
}

TENSORHUB_DECL unpublish_report any_double_buffered_subscriber::unpublish(std::chrono::milliseconds timeout) {
  const auto started = std::chrono::steady_clock::now();
  unpublish_report report;
  for (const auto& each : sides_) report.add(each->unpublish(detail::time_left(started + timeout)));
  report.seconds = to_seconds(std::chrono::steady_clock::now() - started);
  return report;
}
TENSORHUB_DECL void any_double_buffered_subscriber::interrupt() {
  for (const auto& each : sides_) each->interrupt();
}
TENSORHUB_DECL unpublish_report any_double_buffered_subscriber::leave(std::chrono::milliseconds grace) {
  const std::array<worker*, 2> both{sides_[0].get(), sides_[1].get()};
  return leave_together(both, grace);
}

TENSORHUB_DECL void any_double_buffered_subscriber::prepare() {
  const std::lock_guard lock{mutex_};
  if (!memories_.empty()) return;
  std::vector<std::unique_ptr<owned_tensors>> memories;
  for (const auto& side : sides_)
    memories.push_back(side->data().allocate(tensors_, tensor_place::memory_space));
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    for (std::size_t t = 0; t < tensors_.size(); ++t)
      sides_[i]->add(tensors_[t].name, memories[i]->data(t), tensors_[t].shape, tensors_[t].type);
  }
  memories_ = std::move(memories);
}

TENSORHUB_DECL std::size_t any_double_buffered_subscriber::side_to_stage() const {
  const std::lock_guard lock{mutex_};
  return next_side();
}
TENSORHUB_DECL worker& any_double_buffered_subscriber::idle_side() {
  const std::lock_guard lock{mutex_};
  return *sides_[next_side()];
}
TENSORHUB_DECL worker& any_double_buffered_subscriber::live_side() {
  const std::lock_guard lock{mutex_};
  return *sides_[live_.value_or(0)];
}

TENSORHUB_DECL error any_double_buffered_subscriber::failure(errc code, const std::string& sentence) const {
  return error(code, sentence, context_of(options_));
}

}  // namespace tensorhub::inline TENSORHUB_MODE
