#pragma once
/// \file copy_desk.ipp
/// Definitions of copy_desk.hpp.

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tensorhub/detail/descriptor_limit.hpp"
#include "tensorhub/detail/started_thread.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/worker/copy_desk.hpp"

namespace tensorhub::inline TENSORHUB_MODE::shared_copy_detail {

/// Processes that are attached at a time.
inline constexpr std::size_t most_attached = 1024;
/// Messages of one process that are answered before others have their turn.
inline constexpr int messages_at_once = 16;

[[nodiscard]] inline detail::unique_socket listen_as(const std::string& name) {
  try {
    return listen_at(copy_socket_name(name));
  } catch (const error& e) {
    if (e.code() != errc::invalid_argument) throw;
    throw error(errc::invalid_argument, "a process of this machine already shares a copy as '" + name +
                                            "': choose another name, or end that process");
  }
}

TENSORHUB_DECL copy_desk::copy_desk(const std::string& name, offered_copy what)
    : what_{std::move(what)}, listener_{listen_as(name)}, wake_{"shared copy"} {
  thread_ = detail::started_thread("the shared copy '" + name + "'", [this] { run(); });
}

TENSORHUB_DECL copy_desk::~copy_desk() {
  stopping_ = true;
  wake_.raise();
}

TENSORHUB_DECL bool copy_desk::is_held(std::size_t side) const noexcept {
  return detail::any_of(connections_, [&](const auto& entry) { return entry.second.who.holds[side]; });
}

TENSORHUB_DECL side_wait copy_desk::wait_until_free(std::size_t side, clock::time_point until) {
  std::unique_lock lock{mutex_};
  const std::uint64_t before = interrupts_;
  changed_.wait_until(lock, until, [&] { return !is_held(side) || interrupts_ != before; });
  return !is_held(side)          ? side_wait::free
         : interrupts_ != before ? side_wait::interrupted
                                 : side_wait::timed_out;
}

TENSORHUB_DECL void copy_desk::interrupt() noexcept {
  const std::lock_guard lock{mutex_};
  ++interrupts_;
  changed_.notify_all();
}

TENSORHUB_DECL copy_packet copy_desk::live() const noexcept {
  copy_packet out;
  out.side = live_side_;
  out.version = live_version_;
  return out;
}

TENSORHUB_DECL void copy_desk::show(std::size_t side, version_number version) noexcept {
  const std::lock_guard lock{mutex_};
  live_side_ = side;
  live_version_ = version;
  // A process that has left its messages unread, so that its socket accepts no more, asks in its next `hold`.
  for (const auto& [descriptor, each] : connections_) static_cast<void>(send_packet(descriptor, live()));
}

TENSORHUB_DECL std::vector<copy_desk::attached_process> copy_desk::attached() const {
  const std::lock_guard lock{mutex_};
  std::vector<attached_process> out;
  for (const auto& [descriptor, each] : connections_) out.push_back(each.who);
  return out;
}

TENSORHUB_DECL void copy_desk::run() noexcept {
  std::vector<pollfd> watched;
  while (!stopping_) {
    // Without a free descriptor, processes wait in the backlog instead of keeping this thread busy.
    const short accepts = is_out_of_descriptors_ ? 0 : POLLIN;
    try {
      watched.assign({{wake_.descriptor(), POLLIN, 0}, {listener_.get(), accepts, 0}});
      const std::lock_guard lock{mutex_};
      for (const auto& [descriptor, each] : connections_) watched.push_back({descriptor, POLLIN, 0});
    } catch (...) {  // no memory: those that are watched now are served, the others later
    }
    is_out_of_descriptors_ = false;
    static_cast<void>(detail::wait_for_descriptors(watched, std::chrono::milliseconds{500}));
    for (std::size_t i = 1; i < watched.size(); ++i) {
      if (watched[i].revents == 0) continue;
      if (watched[i].fd == listener_.get()) {
        accept_one();
        continue;
      }
      const std::lock_guard lock{mutex_};
      const auto found = connections_.find(watched[i].fd);
      if (found == connections_.end() || answer(found->second)) continue;
      connections_.erase(found);
      changed_.notify_all();
    }
  }
}

TENSORHUB_DECL void copy_desk::accept_one() noexcept {
  detail::unique_socket socket{::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
  if (!socket) {
    is_out_of_descriptors_ = detail::is_out_of_descriptors(errno);
    return;
  }
  const peer_credentials peer = credentials_of(socket.get());
  if (!may_talk(peer.user, {})) return;
  const std::lock_guard lock{mutex_};
  if (connections_.size() >= most_attached) {
    copy_packet full;
    full.kind = copy_message::full;
    static_cast<void>(send_packet(socket.get(), full));
    return;
  }
  if (!greet(socket.get())) return;
  try {
    const int descriptor = socket.get();
    connections_.emplace(descriptor, connection{std::move(socket), {peer.process, {}}});
  } catch (...) {  // no memory: the process is refused
  }
}

TENSORHUB_DECL bool copy_desk::greet(int socket) const noexcept {
  copy_packet shape;
  shape.kind = copy_message::shape;
  shape.bytes = what_.encoded_bytes;
  if (!send_packet(socket, shape, what_.table.descriptor.get())) return false;
  for (std::size_t side = 0; side < what_.memories.size(); ++side) {
    copy_packet memory;
    memory.kind = copy_message::memory;
    memory.side = side;
    memory.bytes = what_.memories[side].bytes;
    if (!send_packet(socket, memory, what_.memories[side].descriptor.get())) return false;
  }
  return send_packet(socket, live());
}

TENSORHUB_DECL bool copy_desk::answer(connection& each) noexcept {
  for (int i = 0; i < messages_at_once; ++i) {
    copy_packet asked;
    detail::unique_fd unwanted;
    const packet_outcome outcome = receive_packet(each.socket.get(), asked, unwanted);
    if (outcome == packet_outcome::nothing) return true;
    if (outcome != packet_outcome::taken || !asked.is_sound()) return false;
    bool& holds = each.who.holds[static_cast<std::size_t>(asked.side)];
    if (asked.kind == copy_message::let_go) {
      holds = false;
      changed_.notify_all();
      continue;
    }
    if (asked.kind != copy_message::hold) return false;
    const bool is_live = asked.version && asked.version == live_version_ && asked.side == live_side_;
    holds = holds || is_live;
    copy_packet reply = is_live ? asked : live();
    reply.kind = is_live ? copy_message::held : copy_message::gone;
    if (!send_packet(each.socket.get(), reply)) return false;
  }
  return true;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::shared_copy_detail
