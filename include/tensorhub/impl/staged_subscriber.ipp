#pragma once
/// \file staged_subscriber.ipp
/// What staged_subscriber.hpp declares.

#include <array>
#include <chrono>
#include <mutex>
#include <string>
#include <utility>

#include "tensorhub/staged_subscriber.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL any_staged_subscriber::any_staged_subscriber(worker_options options,
                                                            const worker_policies& policies,
                                                            staging_options how)
    : worker{options, policies},
      how_{how},
      stage_{beside(std::move(options), "stage"), policies, worker_role{.added = true}} {}

TENSORHUB_DECL void any_staged_subscriber::add(std::string name, void* data,
                                               std::span<const std::uint64_t> dimensions, dtype type) {
  const std::lock_guard lock{mutex_};
  if (staged_) throw error(errc::invalid_argument, "tensor '" + name + "' was added after the first stage()");
  worker::add(std::move(name), data, dimensions, type);
}
TENSORHUB_DECL void any_staged_subscriber::add(std::string name, void* data,
                                               std::initializer_list<std::uint64_t> dimensions, dtype type) {
  add(std::move(name), data, std::span{dimensions.begin(), dimensions.size()}, type);
}

TENSORHUB_DECL update_report any_staged_subscriber::stage(version_selector selector,
                                                          std::chrono::milliseconds timeout,
                                                          update_reach reach) {
  prepare_stage();
  return stage_.update(selector, timeout, reach);
}
TENSORHUB_DECL update_report any_staged_subscriber::stage(version_selector selector, retry_t,
                                                          std::chrono::milliseconds timeout,
                                                          update_reach reach) {
  prepare_stage();
  return stage_.update(selector, retry, timeout, reach);
}
TENSORHUB_DECL any_staged_subscriber::stage_handle any_staged_subscriber::stage_async(
    version_selector selector, std::chrono::milliseconds timeout, update_reach reach) {
  prepare_stage();
  return stage_.update_async(selector, timeout, reach, true);
}

TENSORHUB_DECL install_report any_staged_subscriber::install(std::chrono::milliseconds timeout) {
  return install_after(nullptr, timeout);
}

TENSORHUB_DECL install_report any_staged_subscriber::install_after(const void* stream,
                                                                   std::chrono::milliseconds timeout) {
  std::uint64_t stages = 0;
  stage_.at_rest([&](version_number, std::uint64_t updates) { stages = updates; });
  {
    const std::lock_guard lock{mutex_};
    if (stages == installed_)
      throw error(errc::not_found, "nothing is staged: install() follows a stage() that has succeeded");
  }
  if (stream != nullptr) timeout = await_stream(stream, timeout);
  const update_report done = worker::update_from(stage_, timeout);
  {
    const std::lock_guard lock{mutex_};
    installed_ = stages;
  }
  if (how_.release_after_install) stage_.unpublish();
  return {done.version, done.kept, done.bytes, done.wait_seconds, done.pull_seconds, done.seconds, done.lost};
}

TENSORHUB_DECL version_number any_staged_subscriber::staged_version() {
  return stage_.held_version();
}
TENSORHUB_DECL worker_statistics any_staged_subscriber::stage_statistics() const {
  return stage_.statistics();
}
TENSORHUB_DECL std::uint64_t any_staged_subscriber::offloaded_bytes() const {
  return worker::offloaded_bytes() + stage_.offloaded_bytes();
}
TENSORHUB_DECL unpublish_report any_staged_subscriber::release_stage(std::chrono::milliseconds timeout) {
  return stage_.unpublish(timeout);
}

TENSORHUB_DECL void any_staged_subscriber::interrupt() {
  stage_.interrupt();
  worker::interrupt();
}

TENSORHUB_DECL unpublish_report any_staged_subscriber::leave(std::chrono::milliseconds grace) {
  const std::array<worker*, 2> both{&stage_, this};
  return leave_together(both, grace);
}

TENSORHUB_DECL void any_staged_subscriber::prepare_stage() {
  const std::lock_guard lock{mutex_};
  if (staged_) return;
  const auto tensors = data().tensors();
  std::unique_ptr<owned_tensors> memory = data().allocate(tensors, tensor_place::offload_space);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    stage_.add(tensors[i].name, memory->data(i), tensors[i].shape, tensors[i].type);
  staged_ = std::move(memory);
}

}  // namespace tensorhub::inline TENSORHUB_MODE
