#pragma once
/// \file arena_publisher.ipp
/// What arena_publisher.hpp declares.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/arena_publisher.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/detail/whole_range.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL any_arena_publisher::any_arena_publisher(worker_options options,
                                                        const worker_policies& policies)
    : worker{options, policies}, options_{std::move(options)} {}

TENSORHUB_DECL void any_arena_publisher::add(std::string name, std::span<const std::uint64_t> dimensions,
                                             dtype type) {
  const std::lock_guard lock{mutex_};
  if (memory_)
    throw failure(errc::invalid_argument, "tensor '" + name + "' was added after the first other call");
  if (!positions_.emplace(name, tensors_.size()).second)
    throw failure(errc::invalid_argument, "tensor '" + name + "' was added twice");
  tensors_.push_back({std::move(name), type, {dimensions.begin(), dimensions.end()}});
}
TENSORHUB_DECL void any_arena_publisher::add(std::string name,
                                             std::initializer_list<std::uint64_t> dimensions, dtype type) {
  add(std::move(name), std::span{dimensions.begin(), dimensions.size()}, type);
}

TENSORHUB_DECL void any_arena_publisher::prepare() {
  if (!memory_) {
    std::shared_ptr<owned_tensors> memory = data().allocate(tensors_, tensor_place::memory_space);
    keep_alive(memory);  // the worker is a base: it leaves after the members have gone
    memory_ = std::move(memory);
  }
  progress_.resize(tensors_.size());
  for (std::size_t i = data().tensors().size(); i < tensors_.size(); ++i)  // an earlier call may have failed
    worker::add(tensors_[i].name, memory_->data(i), tensors_[i].shape, tensors_[i].type);
}

TENSORHUB_DECL void any_arena_publisher::join() {
  join_by(std::chrono::steady_clock::time_point::max());
}
TENSORHUB_DECL void any_arena_publisher::join_by(std::chrono::steady_clock::time_point until) {
  const std::lock_guard lock{mutex_};  // of `worker`'s calls a second one is refused: `put`s take turns
  prepare();
  worker::join_by(until);
  if (!tensors_of_chunk_.empty() || shard_layout().packed_bytes() == 0) return;
  tensors_of_chunk_.resize(static_cast<std::size_t>(shard_layout().segments().front().chunk_count));
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!shard_layout().packed_offset(i)) continue;
    const chunk_run run = shard_layout().chunks_of(i);
    for (std::uint64_t k = 0; k < run.count; ++k)
      ++tensors_of_chunk_[static_cast<std::size_t>(run.first + k)];
  }
  lacking_ = tensors_of_chunk_;
}

TENSORHUB_DECL std::chrono::milliseconds any_arena_publisher::joined_within(
    std::chrono::milliseconds timeout) {
  const auto until = detail::end_of(timeout);
  join_by(until);
  return detail::time_left(until);
}
TENSORHUB_DECL void any_arena_publisher::retain(std::uint32_t versions, std::chrono::milliseconds timeout) {
  worker::retain(versions, joined_within(timeout));
}
TENSORHUB_DECL void any_arena_publisher::pin(version_number version, std::chrono::milliseconds timeout) {
  worker::pin(version, joined_within(timeout));
}
TENSORHUB_DECL void any_arena_publisher::release(version_number version, std::chrono::milliseconds timeout) {
  worker::release(version, joined_within(timeout));
}
TENSORHUB_DECL void any_arena_publisher::roll_back_to(version_number version,
                                                      std::chrono::milliseconds timeout) {
  worker::roll_back_to(version, joined_within(timeout));
}

TENSORHUB_DECL void any_arena_publisher::begin(version_number version, std::chrono::milliseconds timeout) {
  const auto until = detail::end_of(timeout);
  join();
  unpublish(timeout);
  worker::open(version, std::max(detail::time_left(until), options_.join_timeout));
  for (std::size_t i = 0; i < tensors_of_chunk_.size(); ++i)
    if (tensors_of_chunk_[i] == 0) data().seal({i, 1});  // nothing but the space between tensors
  const std::lock_guard lock{mutex_};
  begun_ = version;
}

TENSORHUB_DECL void any_arena_publisher::put(const std::string& name, std::span<const std::byte> bytes) {
  if (bytes.data() == nullptr && !bytes.empty())
    throw failure(errc::invalid_argument, "tensor '" + name + "' has no memory (null)");
  const std::size_t tensor = take(name, bytes.size());
  fill(tensor, bytes.data());
}
TENSORHUB_DECL void any_arena_publisher::put(const std::string& name) {
  fill(take(name, *tensors_[position_of(name)].bytes()), nullptr);
}

TENSORHUB_DECL std::size_t any_arena_publisher::take(const std::string& name, std::uint64_t bytes) {
  join();
  std::unique_lock lock{mutex_};
  const std::size_t tensor = position_of(name);
  if (bytes != *tensors_[tensor].bytes()) {
    throw failure(errc::invalid_argument, "tensor '" + name + "' is " + describe(tensors_[tensor]) + ", " +
                                              std::to_string(*tensors_[tensor].bytes()) +
                                              " bytes: it cannot be put as " + std::to_string(bytes));
  }
  if (is_published_) {
    worker::unpublish();
    is_published_ = false;
  }
  const bool may_be_read = begun_ && progress_[tensor] == progress::put;
  if (may_be_read || progress_[tensor] == progress::being_put)
    throw failure(errc::invalid_argument, "tensor '" + name + "' was put already: commit() or unpublish()");
  progress_[tensor] = progress::being_put;
  return tensor;
}

TENSORHUB_DECL void any_arena_publisher::fill(std::size_t tensor, const std::byte* from) {
  const std::uint64_t bytes = *tensors_[tensor].bytes();
  std::byte* const place = memory_->data(tensor);
  const chunk_run run = shard_layout().chunks_of(tensor);
  const bool is_small = shard_layout().packed_offset(tensor).has_value();
  std::unique_lock lock{mutex_};
  const bool is_open = begun_ != version_number{};
  lock.unlock();
  const std::uint64_t step = is_open && !is_small ? shard_layout().chunk_bytes() : bytes;
  for (std::uint64_t at = 0, i = 0; at < bytes; at += step, ++i) {
    if (from != nullptr) std::memcpy(place + at, from + at, std::min(step, bytes - at));
    if (is_open && !is_small) data().seal({run.first + i, 1});  // while its bytes are in the cache
  }
  if (is_open && is_small) {
    data().pack_one(tensor);
    seal_packed(run);
  }
  lock.lock();
  progress_[tensor] = progress::put;
}

TENSORHUB_DECL void any_arena_publisher::seal_packed(chunk_run chunks) {
  for (chunk_index i = chunks.first; i < chunks.first + chunks.count; ++i) {
    std::unique_lock lock{mutex_};
    const bool is_full = --lacking_[static_cast<std::size_t>(i)] == 0;
    lock.unlock();
    if (is_full) data().seal({i, 1});
  }
}

TENSORHUB_DECL void* any_arena_publisher::tensor(const std::string& name) {
  const std::lock_guard lock{mutex_};
  prepare();
  return memory_->data(position_of(name));
}

TENSORHUB_DECL publish_report any_arena_publisher::commit(version_number version,
                                                          std::chrono::milliseconds timeout) {
  const auto until = detail::end_of(timeout);
  join_by(until);
  const std::lock_guard lock{mutex_};
  if (begun_ && begun_ != version) {
    throw failure(errc::invalid_argument,
                  "version " + to_string(begun_) + " was begun: commit that one, or unpublish()", version);
  }
  const auto missing = detail::count_if(progress_, [](progress p) { return p != progress::put; });
  if (missing > 0) {
    const auto first = detail::find_if(progress_, [](progress p) { return p != progress::put; });
    throw failure(errc::invalid_argument,
                  "the version is not whole: " + std::to_string(missing) +
                      " tensors were not put, such as '" +
                      tensors_[static_cast<std::size_t>(first - progress_.begin())].name + "'",
                  version);
  }
  publish_report report = worker::publish(version, detail::time_left(until));
  forget_what_was_put();
  is_published_ = true;
  return report;
}

TENSORHUB_DECL unpublish_report any_arena_publisher::unpublish(std::chrono::milliseconds timeout) {
  const std::lock_guard lock{mutex_};
  const unpublish_report report = worker::unpublish(timeout);
  forget_what_was_put();
  is_published_ = false;
  return report;
}

TENSORHUB_DECL void any_arena_publisher::forget_what_was_put() {
  std::fill(progress_.begin(), progress_.end(), progress::missing);
  lacking_ = tensors_of_chunk_;
  begun_ = {};
}

TENSORHUB_DECL std::size_t any_arena_publisher::position_of(const std::string& name) const {
  const auto found = positions_.find(name);
  if (found == positions_.end()) throw failure(errc::invalid_argument, "no tensor '" + name + "' was added");
  return found->second;
}

TENSORHUB_DECL error any_arena_publisher::failure(errc code, const std::string& sentence,
                                                  version_number version) const {
  return error(code, sentence, context_of(options_, version));
}

}  // namespace tensorhub::inline TENSORHUB_MODE
