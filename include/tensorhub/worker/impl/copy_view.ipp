#pragma once
/// \file copy_view.ipp
/// Definitions of copy_view.hpp.

#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tensorhub/detail/wake_event.hpp"
#include "tensorhub/service/codec.hpp"
#include "tensorhub/worker/copy_view.hpp"

namespace tensorhub::inline TENSORHUB_MODE::shared_copy_detail {

// ---- attaching

TENSORHUB_DECL copy_view::copy_view(std::string name, clock::time_point until, const std::stop_token& stop)
    : name_{std::move(name)} {
  if (!is_copy_name(name_)) throw failure(errc::invalid_argument, why_no_copy_name());
  try {
    socket_ = connect_to(copy_socket_name(name_), "the owner of shared copy '" + name_ + "'", until);
  } catch (const error& e) {
    if (e.code() == errc::timed_out) throw;
    throw failure(
        errc::disconnected,
        "no process of this machine, user and network namespace shares a copy under this name: start it "
        "first (" +
            e.sentence() + ")");
  }
  if (const uid_t user = credentials_of(socket_.get()).user; !may_talk(user, {}))
    throw failure(errc::refused, "the process that shares a copy under this name " + other_user_text(user) +
                                     ": run both as one user");
  greet(until, stop);
}

TENSORHUB_DECL void copy_view::greet(clock::time_point until, const std::stop_token& stop) {
  copy_packet packet;
  detail::unique_fd file;
  expect(packet, file, until, stop, copy_message::shape);
  read_table(file, packet.bytes);
  for (std::uint64_t side = 0; side < memories_.size(); ++side) {
    file.reset();
    expect(packet, file, until, stop, copy_message::memory);
    if (packet.side != side || packet.bytes == 0 || packet.bytes > limits::shard_bytes)
      throw failure(errc::protocol_mismatch, "the owner's message is none of this protocol's");
    memories_[static_cast<std::size_t>(side)] = map(file, packet.bytes);
  }
  check_table();
  expect(packet, file, until, stop, copy_message::live);
  live_ = {static_cast<std::size_t>(packet.side), packet.version};
}

TENSORHUB_DECL void copy_view::expect(copy_packet& packet, detail::unique_fd& file, clock::time_point until,
                                      const std::stop_token& stop, copy_message kind) {
  constexpr clock::duration between_looks = std::chrono::milliseconds{50};
  pollfd watched{socket_.get(), POLLIN, 0};
  for (;;) {
    switch (receive_packet(socket_.get(), packet, file)) {
      case packet_outcome::taken:
        if (packet.is_sound() && packet.kind == copy_message::full)
          throw failure(errc::limit_exceeded, "too many processes are attached to this copy");
        if (packet.is_sound() && packet.kind == kind) return;
        [[fallthrough]];
      case packet_outcome::strange:
        throw failure(
            errc::protocol_mismatch,
            "the owner's message is none of this protocol's: both sides need one version of the library");
      case packet_outcome::ended:
        throw failure(errc::disconnected, "the owner has ended, or accepts this process no more");
      case packet_outcome::nothing:
        break;
    }
    if (stop.stop_requested()) throw failure(errc::cancelled, "the caller gave up before the owner answered");
    const auto left = until - clock::now();
    if (left.count() <= 0)
      throw failure(errc::timed_out, "the owner does not answer: it hangs or is stopped");
    detail::wait_for_descriptors({&watched, 1}, stop.stop_possible() ? std::min(left, between_looks) : left);
  }
}

TENSORHUB_DECL detail::file_mapping_view copy_view::map(const detail::unique_fd& file,
                                                        std::uint64_t bytes) const {
  if (!file || detail::file_bytes(file.get()) != bytes || !detail::is_sealed_against_shrinking(file.get()))
    throw failure(errc::protocol_mismatch,
                  "a file of the owner is not as long as told, or may become shorter");
  detail::file_mapping_view view{file.get(), bytes, PROT_READ};
  if (view) return view;
  throw failure(errc::system_failed,
                "a file of " + std::to_string(bytes) + " bytes cannot be mapped: " + std::strerror(errno));
}

TENSORHUB_DECL void copy_view::read_table(const detail::unique_fd& file, std::uint64_t encoded_bytes) {
  const std::uint64_t size = file ? detail::file_bytes(file.get()) : 0;
  if (size == 0 || size > most_table_bytes || encoded_bytes > size)
    throw failure(errc::protocol_mismatch, "the table of tensors has no size that one can have");
  const detail::file_mapping_view table = map(file, size);
  const std::span all{table.data(), static_cast<std::size_t>(size)};
  const auto encoded = all.first(static_cast<std::size_t>(encoded_bytes));
  const auto offsets = all.subspan(encoded.size());
  decoder reader;
  decode_result decoded = reader.decode(encoded);
  auto* const shape = decoded.ok() ? get_if<messages::describe_reply>(&decoded.message.body) : nullptr;
  if (shape == nullptr || offsets.size() != shape->tensors.size() * sizeof(std::uint64_t))
    throw failure(errc::protocol_mismatch, "the table of tensors cannot be read");
  tensors_ = std::move(shape->tensors);
  offsets_.resize(tensors_.size());
  std::memcpy(offsets_.data(), offsets.data(), offsets.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) positions_.emplace(tensors_[i].name, i);
}

TENSORHUB_DECL void copy_view::check_table() const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto bytes = tensors_[i].bytes();
    for (const detail::file_mapping_view& memory : memories_) {
      const std::uint64_t all = memory.bytes();
      if (!bytes || *bytes > all || offsets_[i] > all - *bytes) {
        throw failure(errc::protocol_mismatch,
                      "tensor '" + tensors_[i].name + "' does not lie inside the owner's memory");
      }
    }
  }
}

// ---- holding

TENSORHUB_DECL std::span<const std::byte> copy_view::tensor(const std::string& name, std::size_t side) const {
  const auto found = positions_.find(name);
  if (found == positions_.end())
    throw failure(errc::invalid_argument, "the copy has no tensor '" + name + "'");
  const auto bytes = static_cast<std::size_t>(*tensors_[found->second].bytes());
  return {memories_[side].data() + offsets_[found->second], bytes};
}

TENSORHUB_DECL copy_hold copy_view::hold(const version_selector& selector, clock::time_point until) {
  std::unique_lock lock{mutex_};
  struct leaving {  // with the lock held
    copy_view& of;
    hold_call mine;
    ~leaving() { of.give_up(mine); }
  } call{*this, {selector}};
  for (;;) {
    if (const auto found = try_hold(call.mine)) return *found;
    if (clock::now() >= until) break;
    await_news(lock, until);
  }
  throw failure(
      errc::timed_out,
      "the deadline passed while waiting for the version (" + to_string(selector) + "); " +
          (live_.version ? "version " + to_string(live_.version) + " is live" : "none is live yet"));
}

TENSORHUB_DECL void copy_view::await_news(std::unique_lock<std::mutex>& lock, clock::time_point until) {
  if (has_ended_) return;
  if (is_awaited_) {
    news_.wait_until(lock, until);
    return;
  }
  is_awaited_ = true;
  lock.unlock();
  pollfd watched{socket_.get(), POLLIN, 0};
  detail::wait_for_descriptors({&watched, 1}, until - clock::now());
  lock.lock();
  is_awaited_ = false;
  news_.notify_all();
}

TENSORHUB_DECL std::optional<copy_hold> copy_view::try_hold(hold_call& call) {
  receive_all();
  const version_selector& selector = call.selector;
  const auto fits = [&](version_number version) { return version && accepts(selector, version); };
  if (granted_ && asker_ == &call) {
    const copy_hold answer = *std::exchange(granted_, std::nullopt);
    asker_ = nullptr;
    held_[answer.side] = answer.version;
    ++holders_[answer.side];
    news_.notify_all();
    return answer;
  }
  if (has_ended_) throw failure(errc::disconnected, "the owner has ended: attach to its successor");
  if (fits(live_.version) && holders_[live_.side] > 0 && held_[live_.side] == live_.version) {
    ++holders_[live_.side];
    return live_;
  }
  if (asked_ || granted_) return std::nullopt;
  const bool is_exactly = selector.kind == version_selector::kind_type::exactly;
  if (call.has_asked && is_exactly && live_.version > selector.version) {
    throw failure(errc::unavailable, "version " + to_string(selector.version) +
                                         " is no longer live: version " + to_string(live_.version) + " is");
  }
  // What is live is asked once in each call: the owner does not wait for a process that reads no messages.
  if (fits(live_.version) || !call.has_asked) {
    asked_ = fits(live_.version) ? live_ : copy_hold{};
    asker_ = &call;
    call.has_asked = true;
    send(copy_message::hold, *asked_);
  }
  return std::nullopt;
}

TENSORHUB_DECL void copy_view::receive_all() noexcept {
  while (!has_ended_ && !is_awaited_) {
    copy_packet packet;
    detail::unique_fd unwanted;
    const packet_outcome outcome = receive_packet(socket_.get(), packet, unwanted);
    if (outcome == packet_outcome::nothing) return;
    if (outcome != packet_outcome::taken || !packet.is_sound()) {
      has_ended_ = true;
      return;
    }
    const copy_hold told{static_cast<std::size_t>(packet.side), packet.version};
    if (packet.kind != copy_message::held) live_ = told;
    if (packet.kind == copy_message::live) continue;
    const auto asked = std::exchange(asked_, std::nullopt);
    if (asker_ != nullptr && packet.kind == copy_message::held)
      granted_ = asked;
    else
      asker_ = nullptr;
  }
}

TENSORHUB_DECL void copy_view::send(copy_message kind, const copy_hold& what) noexcept {
  copy_packet packet;
  packet.kind = kind;
  packet.side = what.side;
  packet.version = what.version;
  // There are never more than a few messages that the owner has not read: each `hold` waits for its answer.
  if (!send_packet(socket_.get(), packet)) has_ended_ = true;
}

TENSORHUB_DECL void copy_view::give_up(const hold_call& call) noexcept {
  if (asker_ != &call) return;
  asker_ = nullptr;
  const auto given_back = granted_ ? std::exchange(granted_, std::nullopt) : asked_;
  if (given_back && holders_[given_back->side] == 0) send(copy_message::let_go, *given_back);
  news_.notify_all();
}

TENSORHUB_DECL void copy_view::let_go(std::size_t side) noexcept {
  const std::lock_guard lock{mutex_};
  if (--holders_[side] == 0) send(copy_message::let_go, {side, held_[side]});
}

TENSORHUB_DECL version_number copy_view::live_version() noexcept {
  const std::lock_guard lock{mutex_};
  receive_all();
  return live_.version;
}

TENSORHUB_DECL error copy_view::failure(errc code, const std::string& sentence) const {
  error_context about;
  about.peer = "shared copy '" + name_ + "'";
  return error(code, sentence, std::move(about));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::shared_copy_detail
