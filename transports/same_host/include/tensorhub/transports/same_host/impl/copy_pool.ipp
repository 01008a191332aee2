#pragma once
/// \file copy_pool.ipp
/// Definitions of copy_pool.hpp.

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string>

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/transports/same_host/copy_pool.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

TENSORHUB_DECL void read_ring::pop() noexcept {
  first_ = (first_ + 1) % entries_.size();
  --count_;
}

TENSORHUB_DECL work_queue::work_queue(std::size_t depth)
    : ready{depth}, finished{depth}, event{"same_host"} {}

TENSORHUB_DECL void work_queue::wake() const noexcept {
  event.raise();
}

TENSORHUB_DECL copy_pool::copy_pool(std::size_t helpers) {
  helpers_.reserve(helpers);
  try {
    while (helpers_.size() < helpers) helpers_.emplace_back([this] { help(); });
  } catch (const std::exception&) {  // no more threads: those that run, and the polling one, do the rest
  }
}

TENSORHUB_DECL copy_pool::~copy_pool() {
  {
    const std::lock_guard lock{mutex_};
    stopping_ = true;
  }
  work_.notify_all();
  helpers_.clear();
}

TENSORHUB_DECL void copy_pool::attach(work_queue& queue) {
  const std::lock_guard lock{mutex_};
  queues_.push_back(&queue);
}

TENSORHUB_DECL void copy_pool::detach(work_queue& queue) noexcept {
  const std::lock_guard lock{mutex_};
  std::erase(queues_, &queue);
}

TENSORHUB_DECL void copy_pool::add(work_queue& queue, read_record& read) noexcept {
  bool wants_help = false;
  {
    const std::lock_guard lock{mutex_};
    read.state = read_state::ready;
    queue.ready.push(&read);
    ready_bytes_ += read.bytes;
    wants_help = ready_bytes_ >= worth_help_bytes && idle_helpers_ > 0;
  }
  if (wants_help) work_.notify_all();
}

TENSORHUB_DECL void copy_pool::begin_elsewhere(read_record& read) noexcept {
  const std::lock_guard lock{mutex_};
  read.state = read_state::ready;
  read.handed_out = true;
  read.pieces_out = 1;
}

TENSORHUB_DECL void copy_pool::end_elsewhere(work_queue& queue, read_record& read,
                                             completion_status status) noexcept {
  const std::lock_guard lock{mutex_};
  read.pieces_out = 0;
  if (read.status == completion_status::ok) read.status = status;
  finish_now(queue, read);
}

TENSORHUB_DECL void copy_pool::finish(work_queue& queue, read_record& read,
                                      completion_status status) noexcept {
  const std::lock_guard lock{mutex_};
  read.status = status;
  finish_now(queue, read);
}

TENSORHUB_DECL bool copy_pool::copy_one(work_queue& queue) noexcept {
  std::unique_lock lock{mutex_};
  return copy_one(queue, lock);
}

TENSORHUB_DECL void copy_pool::end_all(work_queue& queue, std::vector<read_record>& reads,
                                       const endpoint_core& endpoint, completion_status status,
                                       bool wait) noexcept {
  std::unique_lock lock{mutex_};
  queue.ready.erase_if([&](const read_record& each) {
    if (each.endpoint != &endpoint) return false;
    ready_bytes_ -= each.bytes - each.next;
    return true;
  });
  for (read_record& each : reads) {
    if (each.endpoint != &endpoint || each.state == read_state::free || each.state == read_state::finished)
      continue;
    each.status = status;
    each.handed_out = true;
    if (each.pieces_out == 0) finish_now(queue, each);
  }
  if (!wait) return;
  quiet_.wait(lock, [&] {
    return detail::none_of(
        reads, [&](const read_record& each) { return each.endpoint == &endpoint && each.pieces_out > 0; });
  });
}

TENSORHUB_DECL read_record* copy_pool::take_finished(work_queue& queue) noexcept {
  const std::lock_guard lock{mutex_};
  if (queue.finished.empty()) return nullptr;
  read_record* const read = queue.finished.front();
  queue.finished.pop();
  return read;
}

TENSORHUB_DECL bool copy_pool::has_finished(const work_queue& queue) const noexcept {
  const std::lock_guard lock{mutex_};
  return !queue.finished.empty();
}

TENSORHUB_DECL bool copy_pool::begin_sleep(work_queue& queue) noexcept {
  const std::lock_guard lock{mutex_};
  queue.sleeping = queue.finished.empty() && queue.ready.empty();
  return queue.sleeping;
}

TENSORHUB_DECL void copy_pool::end_sleep(work_queue& queue) noexcept {
  const std::lock_guard lock{mutex_};
  queue.sleeping = false;
}

TENSORHUB_DECL std::uint64_t copy_pool::next_piece_bytes(const read_record& read) noexcept {
  const std::uint64_t left = read.bytes - read.next;
  if (read.region->file || read.bytes < 2 * attached_piece_bytes) return std::min(piece_bytes, left);
  const std::uint64_t address = read.region->address + read.offset + read.next;
  return std::min(attached_piece_bytes - address % attached_piece_bytes, left);
}

TENSORHUB_DECL bool copy_pool::copy_one(work_queue& queue, std::unique_lock<std::mutex>& lock) noexcept {
  if (queue.ready.empty()) return false;
  read_record& read = *queue.ready.front();
  const std::uint64_t at = read.next;
  const std::uint64_t bytes = next_piece_bytes(read);
  read.next += bytes;
  ready_bytes_ -= bytes;
  ++read.pieces_out;
  if (read.next == read.bytes) {
    read.handed_out = true;
    queue.ready.pop();
  }
  lock.unlock();
  const completion_status status =
      read.connection->copy(*read.region, read.offset + at, read.target + at, bytes, read.streaming);
  lock.lock();
  --read.pieces_out;
  if (status != completion_status::ok && read.status == completion_status::ok) {
    read.status = status;
    if (!read.handed_out) {
      read.handed_out = true;
      ready_bytes_ -= read.bytes - read.next;
      queue.ready.erase_if([&](const read_record& each) { return &each == &read; });
    }
  }
  if (read.pieces_out == 0 && read.handed_out) finish_now(queue, read);
  return true;
}

TENSORHUB_DECL void copy_pool::finish_now(work_queue& queue, read_record& read) noexcept {
  read.state = read_state::finished;
  queue.finished.push(&read);
  if (queue.sleeping) {
    queue.sleeping = false;
    queue.wake();
  }
  quiet_.notify_all();
}

TENSORHUB_DECL void copy_pool::help() noexcept {
  std::unique_lock lock{mutex_};
  while (!stopping_) {
    bool found = false;
    for (std::size_t i = 0; i < queues_.size() && !found; ++i)
      found = copy_one(*queues_[next_queue_++ % queues_.size()], lock);
    if (found) continue;
    ++idle_helpers_;
    work_.wait(lock);
    --idle_helpers_;
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
