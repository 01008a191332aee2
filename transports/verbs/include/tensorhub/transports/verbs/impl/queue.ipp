#pragma once
/// \file queue.ipp
/// Definitions of queue.hpp.

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <thread>

#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/transports/verbs/queue.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

TENSORHUB_DECL queue_core::queue_core(std::size_t depth, const verbs_options& options)
    : ledger_{depth},
      peer_timeout_{tensorhub::detail::bounded(options.peer_timeout)},
      mode_{options.completions},
      event_{"verbs"} {
  if (ledger_.depth() >= no_slot)
    throw error(errc::invalid_argument, "verbs: a queue of this depth cannot be made");
  slots_.resize(ledger_.depth());
  for (std::size_t i = 0; i + 1 < ledger_.depth(); ++i) slots_[i].next = static_cast<std::uint32_t>(i + 1);
  waits_.reserve(1);
}

TENSORHUB_DECL void queue_core::attach(endpoint_core& endpoint) {
  std::size_t connections = endpoint.connections_.size();
  for (const endpoint_core* each : endpoints_) connections += each->connections_.size();
  waits_.reserve(connections + 1);  // `wait` must not allocate
  endpoints_.push_back(&endpoint);
}

TENSORHUB_DECL void queue_core::detach(endpoint_core& endpoint) noexcept {
  if (endpoint.usable_) take_completed(endpoint);
  give_up(endpoint, completion_status::cancelled);
  std::erase(endpoints_, &endpoint);
}

TENSORHUB_DECL post_result queue_core::post(endpoint_core& endpoint, request_id id, const region& into,
                                            std::uint64_t offset, const region_key& key,
                                            std::uint64_t remote_offset, std::uint64_t bytes) noexcept {
  if (ledger_.full()) return post_result::queue_full;
  if (!endpoint.usable_) return post_finished(id, completion_status::peer_lost);
  ledger_.begin();
  const std::uint32_t number = free_;
  read_slot& slot = slots_[number];
  free_ = slot.next;
  slot.endpoint = &endpoint;
  slot.id = id;
  slot.into = &into;
  slot.local_offset = offset;
  slot.remote_offset = remote_offset;
  slot.unposted_bytes = bytes;
  slot.remote_piece_bytes = piece_bytes_of(key.head.bytes, key.head.pieces);
  slot.work_requests = 0;
  slot.next = no_slot;
  slot.key = key;
  ++endpoint.reads_;
  if (endpoint.line_first_ == no_slot)
    endpoint.line_first_ = number;
  else
    slots_[endpoint.line_last_].next = number;
  endpoint.line_last_ = number;
  post_line(endpoint);
  return post_result::posted;
}

TENSORHUB_DECL std::size_t queue_core::poll(std::span<completion> completions) noexcept {
  if (completions.empty()) return 0;
  if (!ledger_.any_ended()) receive();
  return ledger_.take(completions);
}

TENSORHUB_DECL void queue_core::wait(duration timeout) noexcept {
  if (ledger_.any_ended()) return;
  const auto until = connection::clock::now() + std::min<duration>(timeout, std::chrono::hours{1});
  if (mode_ == completion_mode::polling && ledger_.outstanding() > 0) {
    spin(until);
    return;
  }
  waits_.clear();
  waits_.push_back({event_.descriptor(), POLLIN, 0});
  auto earliest = until;
  for (const endpoint_core* endpoint : endpoints_) {
    for (const auto& each : endpoint->connections_) {
      if (each->outstanding() == 0) continue;
      each->arm();
      waits_.push_back({each->descriptor(), POLLIN, 0});
      earliest = std::min(earliest, each->last_progress() + peer_timeout_);
    }
  }
  // Work requests that completed before the arming produce no event.
  if (waits_.size() > 1) receive();
  if (ledger_.any_ended()) return;
  detail::wait_for_descriptors(waits_, earliest - connection::clock::now());
  if (waits_.front().revents != 0) take_wake();
  std::size_t at = 1;
  for (const endpoint_core* endpoint : endpoints_) {
    for (const auto& each : endpoint->connections_) {
      if (at == waits_.size() || waits_[at].fd != each->descriptor()) continue;
      if (waits_[at++].revents != 0) each->disarm();
    }
  }
}

TENSORHUB_DECL void queue_core::wake() noexcept {
  woken_.store(true, std::memory_order_release);
  event_.raise();
}

TENSORHUB_DECL completion_status queue_core::status_of(ibv_wc_status status) noexcept {
  switch (status) {
    case IBV_WC_REM_ACCESS_ERR:
      return completion_status::access_denied;
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
      return completion_status::local_error;
    default:
      return completion_status::peer_lost;
  }
}

TENSORHUB_DECL void queue_core::take_wake() noexcept {
  event_.lower();
  woken_.store(false, std::memory_order_relaxed);
}

TENSORHUB_DECL void queue_core::spin(connection::clock::time_point until) noexcept {
  for (;;) {
    receive();
    if (ledger_.any_ended()) return;
    if (woken_.load(std::memory_order_acquire)) return take_wake();
    if (connection::clock::now() >= until) return;
    std::this_thread::yield();
  }
}

TENSORHUB_DECL void queue_core::post_line(endpoint_core& endpoint) noexcept {
  const std::size_t connections = endpoint.connections_.size();
  while (endpoint.line_first_ != no_slot) {
    connection& next = *endpoint.connections_[endpoint.turn_];
    if (!next.has_room()) return;
    const std::uint32_t number = endpoint.line_first_;
    read_slot& slot = slots_[number];
    const std::uint64_t local_piece = slot.local_offset / slot.into->piece_bytes();
    const std::uint64_t remote_piece = slot.remote_offset / slot.remote_piece_bytes;
    const std::uint64_t local_left = (local_piece + 1) * slot.into->piece_bytes() - slot.local_offset;
    const std::uint64_t remote_left = (remote_piece + 1) * slot.remote_piece_bytes - slot.remote_offset;
    const std::uint64_t bytes =
        std::min({slot.unposted_bytes, local_left, remote_left, endpoint.largest_work_request_});
    const work_request what{reinterpret_cast<std::uintptr_t>(slot.into->range().data) + slot.local_offset,
                            slot.into->local_key(next.local_rail(), local_piece),
                            slot.key.rkey(next.remote_rail(), static_cast<std::size_t>(remote_piece)),
                            slot.key.head.base + slot.remote_offset,
                            static_cast<std::uint32_t>(bytes),
                            number};
    slot.local_offset += bytes;
    slot.remote_offset += bytes;
    slot.unposted_bytes -= bytes;
    ++slot.work_requests;
    if (slot.unposted_bytes == 0) endpoint.line_first_ = slot.next;
    // Fewer work requests than connections may follow: this one could be the read's last on its connection.
    const bool is_last = slot.unposted_bytes <= (connections - 1) * endpoint.largest_work_request_;
    if (!next.post(what, is_last)) return give_up(endpoint, completion_status::peer_lost);
    endpoint.turn_ = endpoint.turn_ + 1 == connections ? 0 : endpoint.turn_ + 1;
  }
}

TENSORHUB_DECL void queue_core::receive() noexcept {
  for (endpoint_core* each : endpoints_) {
    if (each->reads_ > 0) receive(*each);
  }
}

TENSORHUB_DECL void queue_core::receive(endpoint_core& endpoint) noexcept {
  std::array<ibv_wc, batch> done;
  for (const auto& each : endpoint.connections_) {
    if (each->outstanding() == 0) continue;
    int count = each->poll(done.data(), batch);
    const bool some = count > 0;
    for (; count > 0; count = each->poll(done.data(), batch)) {
      for (int i = 0; i < count; ++i) {
        const ibv_wc& one = done[static_cast<std::size_t>(i)];
        if (one.status != IBV_WC_SUCCESS) {
          const std::uint32_t offending = each->slot_of(one.wr_id);
          take_completed(endpoint, each.get());
          return give_up(endpoint, completion_status::peer_lost, offending, status_of(one.status));
        }
        each->retire(one.wr_id, [this](std::uint32_t slot) { retire(slot); });
      }
      if (count < batch) break;
    }
    if (count < 0) return give_up(endpoint, completion_status::peer_lost);
    const auto now = connection::clock::now();
    if (some)
      each->note_progress(now);
    else if (now - each->last_progress() > peer_timeout_)
      return give_up(endpoint, completion_status::peer_lost);
  }
  if (endpoint.line_first_ != no_slot) post_line(endpoint);
}

TENSORHUB_DECL void queue_core::take_completed(endpoint_core& endpoint, const connection* without) noexcept {
  std::array<ibv_wc, batch> done;
  for (const auto& each : endpoint.connections_) {
    if (each.get() == without) continue;
    for (bool going_on = true; going_on && each->outstanding() > 0;) {
      const int count = each->poll(done.data(), batch);
      going_on = count == batch;
      for (int i = 0; i < count; ++i) {
        const ibv_wc& one = done[static_cast<std::size_t>(i)];
        going_on = going_on && one.status == IBV_WC_SUCCESS;
        if (one.status != IBV_WC_SUCCESS) break;
        each->retire(one.wr_id, [this](std::uint32_t slot) { retire(slot); });
      }
    }
  }
}

TENSORHUB_DECL void queue_core::retire(std::uint32_t number) noexcept {
  read_slot& slot = slots_[number];
  if (--slot.work_requests == 0 && slot.unposted_bytes == 0) end(number, completion_status::ok);
}

TENSORHUB_DECL void queue_core::end(std::uint32_t number, completion_status status) noexcept {
  read_slot& slot = slots_[number];
  --slot.endpoint->reads_;
  slot.endpoint = nullptr;
  slot.next = free_;
  free_ = number;
  ledger_.end_written({slot.id, status}, slot.into->range());
}

TENSORHUB_DECL void queue_core::give_up(endpoint_core& endpoint, completion_status why,
                                        std::uint32_t offending, completion_status offence) noexcept {
  endpoint.usable_ = false;
  for (const auto& each : endpoint.connections_) {
    if (!each->close()) why = offence = completion_status::local_error;
  }
  endpoint.connections_.clear();
  endpoint.line_first_ = no_slot;
  for (std::uint32_t i = 0; i < slots_.size() && endpoint.reads_ > 0; ++i) {
    if (slots_[i].endpoint == &endpoint) end(i, i == offending ? offence : why);
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail
