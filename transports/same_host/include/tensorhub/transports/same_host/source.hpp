#pragma once
/// \file source.hpp
/// The serving side of the same-host transport: a listening socket, one thread, and the grant page.
///
/// The thread tells readers where regions are; it never touches the regions' bytes (staging.hpp does, for
/// memory that only this process's device can reach). Ending a permission needs
/// neither the thread nor the readers: it is one store into the grant page.
///
/// Thread safety: all members may be called from any thread.

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/same_host/grants.hpp"
#include "tensorhub/transports/same_host/machine.hpp"
#include "tensorhub/transports/same_host/options.hpp"
#include "tensorhub/transports/same_host/protocol.hpp"
#include "tensorhub/transports/same_host/region_table.hpp"
#include "tensorhub/transports/same_host/socket.hpp"
#include "tensorhub/transports/same_host/staging.hpp"
#include "tensorhub/types/capability.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

class source {
 public:
  /// `every_second` is called by the thread about once a second.
  source(const same_host_options& options, incarnation self, std::function<void()> every_second)
      : options_{options},
        self_{self},
        socket_name_{random_name()},
        regions_{grants_, options.files != backing_files::ignore},
        desk_{regions_, [this](const stage_job& job, answer_status status) { answer_staged(job, status); }},
        every_second_{std::move(every_second)},
        listener_{listen_at(socket_name_)},
        epoll_{::epoll_create1(EPOLL_CLOEXEC)},
        event_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)} {
    if (!epoll_ || !event_)
      throw error(errc::system_failed, std::string{"same_host: no epoll: "} + std::strerror(errno));
#ifdef PR_SET_PTRACER
    if (options.allow_any_tracer) static_cast<void>(::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0));
#endif
    watch(EPOLL_CTL_ADD, listener_.get(), EPOLLIN, listener_id);
    watch(EPOLL_CTL_ADD, event_.get(), EPOLLIN, event_id);
    thread_ = std::jthread{[this] { run(); }};
  }
  ~source() {
    desk_.stop();
    stopping_ = true;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
    thread_.join();
    for (const auto& [id, each] : connections_) drop(*each);
  }
  source(const source&) = delete;
  source& operator=(const source&) = delete;

  [[nodiscard]] const std::string& socket_name() const noexcept {
    return socket_name_;
  }
  [[nodiscard]] region_table& regions() noexcept {
    return regions_;
  }
  [[nodiscard]] const region_table& regions() const noexcept {
    return regions_;
  }

  /// No read of this reader ends well from here on, and it is refused for ever.
  void cut_off(incarnation reader) noexcept {
    const std::lock_guard lock{mutex_};
    try {
      refused_.insert(reader);
    } catch (...) {  // without memory to remember one name, refuse everybody
      refuse_all_ = true;
    }
    std::erase_if(connections_, [&](const auto& entry) {
      const connection& each = *entry.second;
      if (!each.greeted || each.reader != reader) return false;
      grants_.end(each.given.slot, cut_off_grant);  // and the slot is never used again
      return true;
    });
  }

  /// Only readers with a capability of this key from now on; whoever is there already has to come again.
  void require_capability(std::span<const std::byte> key) {
    const std::lock_guard lock{mutex_};
    capabilities_.require(key);
    for (const auto& [id, each] : connections_) drop(*each);
    connections_.clear();
  }
  [[nodiscard]] std::uint64_t refused_connections() const noexcept {
    return refused_connections_.load();
  }

 private:
  struct connection {
    detail::unique_fd socket{};
    clock::time_point opened{};
    bool greeted = false;
    incarnation reader{};
    grant given{};
    std::unordered_set<std::uint64_t> files{};  ///< that it has been given
    std::shared_ptr<stage_file> stage{};        ///< null: it has never asked for a staged piece
    bool has_stage = false;                     ///< it has been given the file
    std::uint32_t staging = 0;                  ///< pieces that it has asked for and has not got
  };

  static constexpr std::uint64_t listener_id = 0;
  static constexpr std::uint64_t event_id = 1;
  static constexpr std::chrono::milliseconds sweep_interval{1000};
  static constexpr std::chrono::seconds greeting_timeout{5};

  [[nodiscard]] static std::uint64_t random_word() {
    std::uint64_t word = 0;
    if (::getrandom(&word, sizeof word, 0) != static_cast<ssize_t>(sizeof word))
      throw error(errc::system_failed, std::string{"same_host: no random numbers: "} + std::strerror(errno));
    return word;
  }
  [[nodiscard]] static std::string random_name() {
    using id = strong_id<struct socket_tag>;
    return "tensorhub-" + to_hex(id{random_word()}) + to_hex(id{random_word()});
  }

  void watch(int operation, int descriptor, std::uint32_t events, std::uint64_t id) noexcept {
    epoll_event wanted{};
    wanted.events = events;
    wanted.data.u64 = id;
    static_cast<void>(::epoll_ctl(epoll_.get(), operation, descriptor, &wanted));
  }

  void run() noexcept {
    std::array<epoll_event, 64> events{};
    auto next_sweep = clock::now() + sweep_interval;
    while (!stopping_) {
      const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                     static_cast<int>(sweep_interval.count()));
      for (int i = 0; i < count; ++i) {
        const std::uint64_t id = events[static_cast<std::size_t>(i)].data.u64;
        if (id == listener_id)
          accept_all();
        else if (id != event_id)
          work_on(id);
      }
      if (clock::now() < next_sweep) continue;
      next_sweep = clock::now() + sweep_interval;
      sweep();
      if (every_second_) every_second_();
    }
  }

  void accept_all() noexcept {
    for (;;) {
      detail::unique_fd socket{::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
      if (!socket) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          // Readers wait in the backlog until the next sweep, instead of keeping this thread busy.
          watch(EPOLL_CTL_MOD, listener_.get(), 0, listener_id);
          is_listening_ = false;
        }
        return;
      }
      try {
        const std::uint64_t id = ++last_connection_ + event_id;
        auto fresh = std::make_unique<connection>();
        const int descriptor = socket.get();
        fresh->socket = std::move(socket);
        fresh->opened = clock::now();
        const std::lock_guard lock{mutex_};
        connections_.emplace(id, std::move(fresh));
        watch(EPOLL_CTL_ADD, descriptor, EPOLLIN, id);
      } catch (...) {  // no memory: the reader is turned away
      }
    }
  }

  void work_on(std::uint64_t id) noexcept {
    const std::lock_guard lock{mutex_};
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;  // closed since the event
    connection& each = *found->second;
    bool goes_on = false;
    try {
      goes_on = each.greeted ? answer_all(id, each) : greet(each);
    } catch (...) {  // no memory
    }
    if (goes_on) return;
    drop(each);
    connections_.erase(found);
  }

  void drop(const connection& each) noexcept {
    if (each.greeted) grants_.give_back(each.given.slot);
  }

  /// False: the connection ends.
  [[nodiscard]] bool greet(connection& each) {
    hello greeting;
    detail::unique_fd unwanted;
    const packet_outcome outcome = receive_packet(each.socket.get(), greeting, unwanted);
    if (outcome == packet_outcome::nothing) return true;
    if (outcome != packet_outcome::taken || greeting.magic != hello_magic) return false;
    welcome answer;
    answer.source = self_.value;
    answer.status = judge(each, greeting);
    const bool accepted = answer.status == welcome_status::accepted;
    if (accepted) {
      each.given = grants_.take();
      each.reader = {greeting.reader};
      each.greeted = true;
      answer.grant = each.given.number;
      answer.grant_slot = each.given.slot;
      answer.probe_address = reinterpret_cast<std::uintptr_t>(&probe_word_);
      answer.probe_value = probe_word_;
    }
    return send_packet(each.socket.get(), answer, accepted ? grants_.file() : -1) && accepted;
  }

  [[nodiscard]] welcome_status judge(const connection& each, const hello& greeting) {
    if (!may_talk(credentials_of(each.socket.get()).user, options_.allowed_uids))
      return welcome_status::other_user;
    if (greeting.protocol != protocol_number) return welcome_status::other_protocol;
    if (greeting.source != self_.value) return welcome_status::other_process;
    if (refuse_all_ || refused_.contains({greeting.reader})) return welcome_status::refused;
    if (!capabilities_.accepts(greeting.capability, {greeting.reader}, self_)) {
      refused_connections_.fetch_add(1);
      return welcome_status::no_capability;
    }
    return connections_.size() > options_.max_connections ? welcome_status::full : welcome_status::accepted;
  }

  [[nodiscard]] bool answer_all(std::uint64_t id, connection& each) {
    for (;;) {
      region_request request;
      detail::unique_fd unwanted;
      const packet_outcome outcome = receive_packet(each.socket.get(), request, unwanted);
      if (outcome == packet_outcome::nothing) return true;
      if (outcome != packet_outcome::taken) return false;
      if (request.wants == request_kind::staged_piece) {
        if (!stage(id, each, request)) return false;
        continue;
      }
      region_answer answer;
      answer.number = request.number;
      int descriptor = -1;
      if (const auto facts = regions_.find(request.key)) {
        fill(answer, *facts);
        if (facts->file) {
          answer.file = facts->file->number;
          answer.file_offset = facts->range.backing_offset;
          if (each.files.insert(answer.file).second || request.wants == request_kind::region_and_file)
            descriptor = facts->file->descriptor.get();
          answer.brings_file = descriptor >= 0 ? 1 : 0;
        }
      }
      // An honest reader has so few questions open that the socket takes the answers.
      if (!send_packet(each.socket.get(), answer, descriptor)) return false;
    }
  }

  static void fill(region_answer& answer, const region_facts& facts) noexcept {
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

  /// False: no honest reader asks for this.
  [[nodiscard]] bool stage(std::uint64_t id, connection& each, const region_request& request) {
    if (request.slot >= stage_slots || request.bytes == 0 || request.bytes > stage_piece_bytes ||
        each.staging >= stage_slots)
      return false;
    if (!each.stage) each.stage = std::make_shared<stage_file>();
    desk_.add({id, request, each.stage});
    ++each.staging;
    return true;
  }
  void answer_staged(const stage_job& job, answer_status status) noexcept {
    const std::lock_guard lock{mutex_};
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
  }

  /// Closes connections that never said hello, and listens again after a shortage.
  void sweep() noexcept {
    {
      const std::lock_guard lock{mutex_};
      const auto now = clock::now();
      std::erase_if(connections_, [&](const auto& entry) {
        return !entry.second->greeted && now - entry.second->opened > greeting_timeout;
      });
    }
    if (is_listening_) return;
    is_listening_ = true;
    watch(EPOLL_CTL_MOD, listener_.get(), EPOLLIN, listener_id);
  }

  const same_host_options options_;
  const incarnation self_;
  const std::string socket_name_;
  const std::uint64_t probe_word_ = random_word();
  grant_page grants_;
  region_table regions_;
  stage_desk desk_;
  std::function<void()> every_second_;
  detail::unique_fd listener_;
  detail::unique_fd epoll_;
  detail::unique_fd event_;
  std::atomic<bool> stopping_ = false;
  bool is_listening_ = true;  ///< the thread's own, as the next
  std::uint64_t last_connection_ = 0;
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::unique_ptr<connection>> connections_;
  std::unordered_set<incarnation> refused_;
  bool refuse_all_ = false;
  capability_check capabilities_;  ///< guarded by mutex_
  std::atomic<std::uint64_t> refused_connections_ = 0;
  std::jthread thread_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
