#pragma once
/// \file source.ipp
/// Definitions of source.hpp.

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <utility>

#include "tensorhub/detail/started_thread.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/same_host/source.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

TENSORHUB_DECL source::source(const same_host_options& options, incarnation self,
                              std::function<void()> every_second)
    : options_{options},
      gate_{self},
      socket_name_{random_name()},
      regions_{grants_, options},
      desk_{regions_, [this](const stage_job& job, answer_status status) { answer_staged(job, status); }},
      every_second_{std::move(every_second)},
      listener_{listen_at(socket_name_)},
      wake_{"same_host"} {
  if (options.attach == memory_attach::never) {
    if (options.allow_any_tracer)
      throw error(
          errc::invalid_argument,
          "same_host: allow_any_tracer lets every process attach, and attach = never none: set one of "
          "the two");
    static_cast<void>(::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
  }
#ifdef PR_SET_PTRACER
  if (options.allow_any_tracer) static_cast<void>(::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0));
#endif
  set_.must_add(listener_.get(), listener_id);
  set_.must_add(wake_.descriptor(), event_id);
  thread_ = tensorhub::detail::started_thread("same_host", [this] { run(); });
}

TENSORHUB_DECL source::~source() {
  desk_.stop();
  stopping_ = true;
  wake_.raise();
  thread_.join();
  for (const auto& [id, each] : connections_) drop(*each);
}

TENSORHUB_DECL void source::cut_off(incarnation reader) noexcept {
  exclusively([&] {
    gate_.cut_off(reader);
    std::erase_if(connections_, [&](const auto& entry) {
      const connection& each = *entry.second;
      if (!each.greeted || each.reader != reader) return false;
      grants_.end(each.given.slot, cut_off_grant);  // the slot is never used again
      if (each.stage) each.stage->close();
      return true;
    });
  });
  desk_.settle();
}

TENSORHUB_DECL void source::require_capability(std::span<const std::byte> key) {
  gate_.require_capability(key);
  exclusively([&] {
    for (const auto& [id, each] : connections_) drop(*each);
    connections_.clear();
  });
}

TENSORHUB_DECL void source::rename(incarnation self, incarnation next) noexcept {
  exclusively([&] {
    gate_.rename(self, next);
    drop_readers_of(self);
  });
}
TENSORHUB_DECL void source::dismiss(incarnation self) noexcept {
  exclusively([&] {
    gate_.dismiss(self);
    drop_readers_of(self);
  });
}
TENSORHUB_DECL void source::drop_readers_of(incarnation self) noexcept {
  std::erase_if(connections_, [&](const auto& entry) {
    connection& each = *entry.second;
    if (!each.greeted || each.source != self) return false;
    drop(each);
    return true;
  });
}

TENSORHUB_DECL std::string source::random_name() {
  using id = strong_id<struct socket_tag>;
  return "tensorhub-" + to_hex(id{detail::random_number()}) + to_hex(id{detail::random_number()});
}

TENSORHUB_DECL void source::run() noexcept {
  std::array<epoll_event, 64> events{};
  auto next_sweep = clock::now() + sweep_interval;
  while (!stopping_) {
    const int count = set_.wait(events, pause_.at_most(sweep_interval));
    for (int i = 0; i < count; ++i) {
      const std::uint64_t id = events[static_cast<std::size_t>(i)].data.u64;
      if (id == listener_id)
        accept_some();
      else if (id != event_id)
        work_on(id);
    }
    const auto now = clock::now();
    pause_.end_if_over(set_, listener_.get(), listener_id, now);
    if (now < next_sweep) continue;
    next_sweep = now + sweep_interval;
    sweep();
    if (every_second_) every_second_();
  }
}

TENSORHUB_DECL void source::accept_some() noexcept {
  for (std::size_t i = 0; i < accepted_at_once && !stopping_; ++i) {
    detail::unique_socket socket{::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    if (!socket) {
      pause_.begin_if_short(errno, set_, listener_.get(), listener_id, clock::now());
      return;
    }
    const uid_t user = credentials_of(socket.get()).user;
    if (!may_talk(user, options_.allowed_uids)) {
      turn_away(socket, welcome_status::other_user);
      continue;
    }
    try {
      adopt(std::move(socket), user);
    } catch (...) {  // no memory: the reader is refused
    }
  }
}

TENSORHUB_DECL void source::adopt(detail::unique_socket socket, uid_t user) {
  const std::uint64_t id = ++last_connection_ + event_id;
  const int descriptor = socket.get();
  const std::lock_guard lock{mutex_};
  if (connections_.size() >= most_connections_ && !close_oldest_silent())
    return turn_away(socket, welcome_status::full);
  auto fresh = std::make_unique<connection>();
  fresh->socket = std::move(socket);
  fresh->user = user;
  fresh->opened = clock::now();
  const auto added = connections_.emplace(id, std::move(fresh)).first;
  if (!set_.add(descriptor, EPOLLIN, id)) connections_.erase(added);
}

TENSORHUB_DECL void source::turn_away(const detail::unique_socket& socket,
                                      welcome_status why) const noexcept {
  // A socket that is closed with a packet unread would lose the welcome.
  static_cast<void>(::shutdown(socket.get(), SHUT_RD));
  hello unread;
  detail::unique_fd unwanted;
  while (receive_packet(socket.get(), unread, unwanted) == packet_outcome::taken) {
  }
  welcome answer;
  answer.status = why;
  static_cast<void>(send_packet(socket.get(), answer));
}

TENSORHUB_DECL bool source::close_oldest_silent() noexcept {
  auto oldest = connections_.end();
  for (auto each = connections_.begin(); each != connections_.end(); ++each) {
    if (!each->second->greeted && (oldest == connections_.end() || each->first < oldest->first))
      oldest = each;
  }
  if (oldest == connections_.end()) return false;
  connections_.erase(oldest);
  return true;
}

TENSORHUB_DECL void source::work_on(std::uint64_t id) noexcept {
  const std::lock_guard lock{mutex_};
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;  // closed since the event
  connection& each = *found->second;
  bool goes_on = false;
  try {
    goes_on = each.greeted ? answer_some(id, each) : greet(each);
  } catch (...) {  // no memory
  }
  if (goes_on) return;
  drop(each);
  connections_.erase(found);
}

TENSORHUB_DECL bool source::greet(connection& each) {
  hello greeting;
  detail::unique_fd unwanted;
  const packet_outcome outcome = receive_packet(each.socket.get(), greeting, unwanted);
  if (outcome == packet_outcome::nothing) return true;
  if (outcome != packet_outcome::taken || greeting.magic != hello_magic) return false;
  welcome answer;
  answer.source = gate_.self_for({greeting.source}).value;
  answer.status = judge(greeting);
  const bool accepted = answer.status == welcome_status::accepted;
  if (accepted) {
    each.given = grants_.take();
    each.reader = {greeting.reader};
    each.source = {greeting.source};
    each.greeted = true;
    answer.grant = each.given.number;
    answer.grant_slot = each.given.slot;
    if (options_.attach != memory_attach::never)
      answer.probe_address = reinterpret_cast<std::uintptr_t>(&probe_word_);
    answer.probe_value = probe_word_;
  }
  return send_packet(each.socket.get(), answer, accepted ? grants_.file() : -1) && accepted;
}

TENSORHUB_DECL welcome_status source::judge(const hello& greeting) noexcept {
  const auto status = detail::status_of<welcome_status>(gate_.judge(greeting, protocol_number));
  if (status != welcome_status::accepted) return status;
  const auto present = detail::count_if(connections_, [&](const auto& entry) {
    return entry.second->greeted && entry.second->reader.value == greeting.reader;
  });
  return static_cast<std::size_t>(present) < options_.max_connections_per_reader ? status
                                                                                 : welcome_status::crowded;
}

TENSORHUB_DECL bool source::answer_some(std::uint64_t id, connection& each) {
  for (std::size_t i = 0; i < answers_at_once; ++i) {
    region_request request;
    detail::unique_fd unwanted;
    const packet_outcome outcome = receive_packet(each.socket.get(), request, unwanted);
    if (outcome == packet_outcome::nothing) return true;
    if (outcome != packet_outcome::taken) return false;
    const bool is_valid =
        request.wants == request_kind::staged_piece ? stage(id, each, request) : answer(each, request);
    if (!is_valid) return false;
  }
  return true;  // epoll reports the rest again
}

TENSORHUB_DECL bool source::answer(connection& each, const region_request& request) {
  region_answer answer;
  answer.number = request.number;
  int descriptor = -1;
  if (const auto facts = regions_.find(request.key)) {
    fill(answer, *facts);
    const bool shows_file = facts->file && facts->file->may_go_to(each.user);
    if (options_.attach == memory_attach::never) {
      answer.address = 0;
      if (facts->memory == region_memory::host && !shows_file) answer.memory = region_memory::staged;
    }
    if (shows_file) {
      answer.file = facts->file->number;
      answer.file_offset = facts->range.backing_offset;
      if (each.files.insert(answer.file).second || request.wants == request_kind::region_and_file)
        descriptor = facts->file->descriptor.get();
      answer.brings_file = descriptor >= 0 ? 1 : 0;
    }
  }
  // A correct reader has so few requests outstanding that the socket accepts the answers.
  return send_packet(each.socket.get(), answer, descriptor);
}

TENSORHUB_DECL void source::fill(region_answer& answer, const region_facts& facts) noexcept {
  answer.status = answer_status::granted;
  answer.bytes = facts.range.bytes;
  answer.address = reinterpret_cast<std::uintptr_t>(facts.range.data);
  answer.grant = facts.given.number;
  answer.grant_slot = facts.given.slot;
  answer.memory = facts.memory;
  if (facts.allocation) {
    answer.export_number = facts.allocation->number;
    answer.exported = facts.allocation->words;
    answer.exported.offset = facts.allocation_offset;
  }
  if (facts.why) facts.why->copy(answer.why.data(), answer.why.size() - 1);
}

TENSORHUB_DECL bool source::stage(std::uint64_t id, connection& each, const region_request& request) {
  if (request.slot >= stage_slots || request.bytes == 0 || request.bytes > stage_piece_bytes ||
      each.staging >= stage_slots)
    return false;
  if (!each.stage) each.stage = std::make_shared<stage_file>();
  desk_.add({id, request, each.stage});
  ++each.staging;
  return true;
}

TENSORHUB_DECL void source::answer_staged(const stage_job& job, answer_status status) noexcept {
  exclusively([&] {
    const auto found = connections_.find(job.connection);
    if (found == connections_.end()) return;
    connection& each = *found->second;
    --each.staging;
    region_answer answer;
    answer.number = job.request.number;
    answer.status = status;
    const bool brings_file = status == answer_status::granted && !each.has_stage;
    answer.brings_file = brings_file ? 1 : 0;
    each.has_stage = each.has_stage || brings_file;
    if (send_packet(each.socket.get(), answer, brings_file ? job.into->file() : -1)) return;
    drop(each);
    connections_.erase(found);
  });
}

TENSORHUB_DECL void source::sweep() noexcept {
  const std::lock_guard lock{mutex_};
  const auto now = clock::now();
  std::erase_if(connections_, [&](const auto& entry) {
    return !entry.second->greeted && now - entry.second->opened > greeting_timeout;
  });
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
