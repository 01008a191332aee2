#pragma once
/// \file source.hpp
/// The serving side of the TCP transport: a listening socket and a fixed number of I/O threads.
///
/// Each thread owns an epoll set and some of the connections. It holds its own mutex while it works on one
/// connection; `cut_off` and `forget_region` visit it (detail/visited_mutex.hpp), so that after their return
/// no byte that they forbid is being sent.
///
/// The first thread accepts connections. Where the channel `greets_apart`, it also greets them, and does
/// nothing else: a connection that has said its hello is handed on to one of the others.
///
/// While a connection waits for a copy from device memory (connection.hpp), the epoll set reports only its
/// end, and the thread checks the copy every few microseconds; the other connections continue. Without such a
/// connection the thread sleeps.
///
/// Thread safety: all members may be called from any thread. The channel is explained in plain_channel.hpp.

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensorhub/concepts/telling_transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/descriptor_limit.hpp"
#include "tensorhub/detail/epoll_set.hpp"
#include "tensorhub/detail/listener_pause.hpp"
#include "tensorhub/detail/started_thread.hpp"
#include "tensorhub/detail/unique_socket.hpp"
#include "tensorhub/detail/visited_mutex.hpp"
#include "tensorhub/detail/wake_event.hpp"
#include "tensorhub/transports/tcp/connection.hpp"
#include "tensorhub/transports/tcp/options.hpp"
#include "tensorhub/transports/tcp/region_table.hpp"
#include "tensorhub/transports/tcp/socket.hpp"
#include "tensorhub/types/reader_gate.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

/// How many greeted connections each reader has. Thread safety: any thread.
class reader_seats {
 public:
  explicit reader_seats(std::size_t most) noexcept : most_{most} {}

  /// False: this reader has as many as it may have, or there is no memory for the note.
  [[nodiscard]] bool take(incarnation reader) noexcept {
    try {
      const std::lock_guard lock{mutex_};
      std::size_t& taken = taken_[reader];
      if (taken >= most_) return false;
      ++taken;
      return true;
    } catch (...) {
      return false;
    }
  }
  void give_back(incarnation reader) noexcept {
    const std::lock_guard lock{mutex_};
    const auto found = taken_.find(reader);
    if (found != taken_.end() && --found->second == 0) taken_.erase(found);
  }

 private:
  const std::size_t most_;
  std::mutex mutex_;
  std::unordered_map<incarnation, std::size_t> taken_;  ///< guarded by mutex_; never zero
};

template <typename Channel>
class source {
 public:
  using connection = basic_connection<Channel>;

  source(const tcp_options& options, incarnation self, typename Channel::shared& shared,
         std::shared_ptr<staging_pool> staging)
      : options_{options},
        staging_{std::move(staging)},
        near_{settings_of(options, path_kind::same_datacenter)},
        shared_{&shared},
        listener_{listen_at(options, Channel::name)},
        gate_{self} {
    for (std::size_t i = 0; i < first_server + threads_for(options); ++i)
      loops_.push_back(std::make_unique<loop>());
    loops_.front()->set.must_add(listener_.socket.get(), listener_id);
    try {
      for (const auto& each : loops_)
        each->thread = detail::started_thread(Channel::name, [this, &here = *each] { run(here); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~source() { stop(); }
  source(const source&) = delete;
  source& operator=(const source&) = delete;

  [[nodiscard]] const listening_socket& listener() const noexcept { return listener_; }
  [[nodiscard]] region_table& regions() noexcept { return regions_; }
  [[nodiscard]] const region_table& regions() const noexcept { return regions_; }

  [[nodiscard]] incarnation self() const noexcept { return gate_.self(); }
  void admit(incarnation self) { gate_.admit(self); }
  /// Closes the connections that were made to `self`, as `dismiss` does.
  void rename(incarnation self, incarnation next) noexcept {
    gate_.rename(self, next);
    close_if([self](const connection& each) { return each.source() == self; });
  }
  void dismiss(incarnation self) noexcept {
    gate_.dismiss(self);
    close_if([self](const connection& each) { return each.source() == self; });
  }

  /// Closes the connections of this reader, and refuses the reader from now on.
  void cut_off(incarnation reader) noexcept {
    gate_.cut_off(reader);
    close_if([reader](const connection& each) { return each.reader() == reader; });
  }

  /// Accepts only readers with a capability of this key from now on, and closes all present connections:
  /// their readers have to connect again.
  void require_capability(std::span<const std::byte> key) {
    gate_.require_capability(key);
    close_if([](const connection&) { return true; });
  }
  void expire_capabilities(incarnation self, std::uint64_t epoch) noexcept {
    gate_.expire_capabilities(self, epoch);
  }
  [[nodiscard]] std::uint64_t refused_connections() const noexcept {
    return gate_.refused_connections() + shared_->refused();
  }
  /// Of descriptors, or memory, for readers' connections.
  [[nodiscard]] transport_shortage shortage_told() const {
    const detail::listener_pause& pause = loops_.front()->pause;
    if (pause.shortages() == 0) return {};
    return {pause.shortages(), std::string{Channel::name} + ": " + pause.text()};
  }

  /// Closes the connections that may still send bytes of this region, whose key has changed or was removed.
  void forget_region(std::uint64_t region) noexcept {
    close_if([region](const connection& each) { return each.carries(region); });
  }

 private:
  /// A connection, which is counted while it lives, and its thread's notes on it.
  struct watched final : connection {
    template <typename... Arguments>
    explicit watched(std::atomic<std::size_t>& count, Arguments&&... arguments)
        : connection{std::forward<Arguments>(arguments)...}, all{&count} {
      all->fetch_add(1);
    }
    watched(const watched&) = delete;
    watched& operator=(const watched&) = delete;
    ~watched() {
      if (seats != nullptr) seats->give_back(seated);
      all->fetch_sub(1);
    }
    std::atomic<std::size_t>* all;
    reader_seats* seats = nullptr;  ///< where `seated` has taken one for this connection
    incarnation seated{};
    std::uint32_t events = EPOLLIN;                      ///< that the epoll set reports
    bool waits_for_copy = false;                         ///< it is in `loop::copying`
    std::chrono::steady_clock::time_point last_event{};  ///< when its thread last worked on it
  };

  struct loop {
    detail::epoll_set set{Channel::name};
    detail::wake_event event{Channel::name};
    detail::visited_mutex mutex;
    std::unordered_map<std::uint64_t, std::unique_ptr<watched>> connections;  ///< guarded by mutex
    std::vector<std::uint64_t>
        copying;  ///< connections that wait for a copy; used by the thread alone, as the next
    std::vector<std::uint64_t> copied_ids;  ///< room for the same
    std::jthread thread;
    detail::listener_pause pause;  ///< as the two before; any thread asks what it has seen
    loop() { set.must_add(event.descriptor(), event_id); }
  };

  /// The first loop whose thread answers reads.
  static constexpr std::size_t first_server = Channel::greets_apart ? 1 : 0;
  static constexpr std::uint64_t listener_id = 0;
  static constexpr std::uint64_t event_id = 1;
  static constexpr std::uint64_t budget_bytes = 8u << 20;
  static constexpr std::size_t usual_io_threads = 8;
  /// A crowd that connects without end keeps the thread neither from its connections nor from stopping.
  static constexpr std::size_t accepted_at_once = 64;
  static constexpr std::chrono::milliseconds sweep_interval{1000};
  static constexpr long copy_poll_ns = 15'000;
  static constexpr std::chrono::seconds greeting_timeout{5};
  static constexpr std::chrono::seconds idle_time{1};

  void stop() noexcept {
    stopping_ = true;
    for (const auto& each : loops_) each->event.raise();
    for (const auto& each : loops_) {
      if (each->thread.joinable()) each->thread.join();
    }
  }

  [[nodiscard]] static std::size_t threads_for(const tcp_options& options) noexcept {
    return options.io_threads != 0 ? options.io_threads : usual_io_threads;
  }

  /// Calls `work()` while the loop's thread works on no connection.
  template <typename Work>
  static void visit(loop& which, Work&& work) noexcept {
    which.mutex.visit(std::forward<Work>(work));
  }

  template <typename Predicate>
  void close_if(Predicate&& matches) noexcept {
    for (const auto& each : loops_) {
      visit(*each, [&] {
        std::erase_if(each->connections, [&](const auto& entry) {
          if (!matches(std::as_const(*entry.second))) return false;
          abort_on_close(entry.second->socket());
          return true;
        });
      });
    }
  }

  void run(loop& here) noexcept {
    // sendfile has no flag against SIGPIPE.
    sigset_t pipe;
    ::sigemptyset(&pipe);
    ::sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    ::prctl(PR_SET_TIMERSLACK, 1000ul);  // nanoseconds, for this thread's short sleeps
    std::array<epoll_event, 64> events{};
    auto next_sweep = std::chrono::steady_clock::now() + sweep_interval;
    while (!stopping_) {
      const int count = wait_for_events(here, events);
      for (int i = 0; i < count; ++i) {
        const epoll_event& event = events[static_cast<std::size_t>(i)];
        if (event.data.u64 == listener_id)
          accept_some(here);
        else if (event.data.u64 == event_id)
          here.event.lower();
        else
          work_on(here, event.data.u64, event.events);
      }
      look_at_copies(here);
      const auto now = std::chrono::steady_clock::now();
      here.pause.end_if_over(here.set, listener_.socket.get(), listener_id, now);
      if (now >= next_sweep) {
        next_sweep = now + sweep_interval;
        sweep(here, now);
      }
    }
  }

  static int wait_for_events(loop& here, std::span<epoll_event> events) noexcept {
    std::chrono::milliseconds patience = here.pause.at_most(sweep_interval);
    if (!here.copying.empty()) {
      pollfd any{here.set.descriptor(), POLLIN, 0};
      const timespec soon{0, copy_poll_ns};
      static_cast<void>(::ppoll(&any, 1, &soon, nullptr));
      patience = {};
    }
    return here.set.wait(events, patience);
  }

  void look_at_copies(loop& here) noexcept {
    if (here.copying.empty()) return;
    std::swap(here.copying, here.copied_ids);
    for (const std::uint64_t id : here.copied_ids) work_on(here, id, 0);
    here.copied_ids.clear();
  }

  /// The epoll set reports again those that are left.
  void accept_some(loop& here) noexcept {
    for (std::size_t i = 0; i < accepted_at_once && !stopping_; ++i) {
      detail::unique_socket socket{
          ::accept4(listener_.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
      if (!socket) {
        here.pause.begin_if_short(errno, here.set, listener_.socket.get(), listener_id,
                                  std::chrono::steady_clock::now());
        return;
      }
      if (connection_count_.load() >= most_connections_ && !close_oldest_unauthenticated(0) && !close_idle())
        continue;
      tune(socket.get(), near_);
      try {
        adopt(std::move(socket));
      } catch (...) {  // no memory: the reader is refused
      }
    }
  }

  void adopt(detail::unique_socket socket) {
    loop& owner = Channel::greets_apart ? *loops_.front() : next_server();
    const std::uint64_t id = ++last_connection_ + event_id;
    const int descriptor = socket.get();
    const bool by_file =
        options_.send_from_file == file_sending::always ||
        (options_.send_from_file == file_sending::automatic && !reaches_loopback(descriptor));
    static_cast<void>(close_oldest_unauthenticated(Channel::most_newcomers));
    newcomers_.emplace_back(&owner, id);
    auto fresh = std::make_unique<watched>(connection_count_, Channel::accept(*shared_, std::move(socket)),
                                           by_file, staging_, std::chrono::steady_clock::now());
    visit(owner, [&] {
      bool is_watched = false;
      try {
        owner.connections.emplace(id, std::move(fresh));
        is_watched = owner.set.add(descriptor, EPOLLIN, id);
      } catch (...) {  // no memory: the reader is refused
      }
      if (!is_watched) owner.connections.erase(id);
    });
  }

  [[nodiscard]] loop& next_server() noexcept {
    return *loops_[first_server + next_loop_++ % (loops_.size() - first_server)];
  }

  /// The first thread hands on a connection that it has greeted. Precondition: its mutex is held, so that who
  /// visits the loops in their order finds the connection in one of them.
  void hand_on(loop& here, std::uint64_t id) noexcept {
    auto moved = here.connections.extract(id);
    watched& each = *moved.mapped();
    const int socket = each.socket();
    here.set.remove(socket);
    each.events = EPOLLOUT;  // reported at once: the channel may hold requests that epoll does not know of
    loop& next = next_server();
    visit(next, [&] {
      bool is_watched = false;
      try {
        next.connections.insert(std::move(moved));
        is_watched = next.set.add(socket, EPOLLOUT, id);
      } catch (...) {
      }
      if (!is_watched) next.connections.erase(id);  // no memory: the reader is refused
    });
  }

  /// Closes the oldest connection that has not sent its hello, in favour of a new one. False: apart from the
  /// newest `kept` connections, all have sent their hello.
  bool close_oldest_unauthenticated(std::size_t kept) noexcept {
    while (newcomers_.size() > kept) {
      const auto oldest = newcomers_.front();
      newcomers_.pop_front();
      bool closed = false;
      visit(*oldest.first, [&] {
        const auto found = oldest.first->connections.find(oldest.second);
        closed = found != oldest.first->connections.end() && !found->second->greeted();
        if (closed) oldest.first->connections.erase(found);
      });
      if (closed) return true;
    }
    return false;
  }

  /// Closes the connection that has been at rest for the longest time, in favour of a new one: its reader
  /// makes another one when it needs it (transfer/lane_pool.hpp). False: none was at rest for `idle_time`.
  bool close_idle() noexcept {
    auto oldest = std::chrono::steady_clock::now() - idle_time;
    loop* owner = nullptr;
    std::uint64_t number = 0;
    for (const auto& each : loops_) {
      visit(*each, [&] {
        for (const auto& [id, one] : each->connections) {
          if (!one->at_rest() || one->last_event >= oldest) continue;
          oldest = one->last_event;
          owner = each.get();
          number = id;
        }
      });
    }
    if (owner == nullptr) return false;
    bool closed = false;
    visit(*owner, [&] {
      const auto found = owner->connections.find(number);
      closed = found != owner->connections.end() && found->second->last_event == oldest;
      if (closed) owner->connections.erase(found);
    });
    return closed;
  }

  /// `events`: zero if the connection was in `copying` and is no longer.
  void work_on(loop& here, std::uint64_t id, std::uint32_t events) noexcept {
    const std::lock_guard lock{here.mutex};
    const auto found = here.connections.find(id);
    if (found == here.connections.end()) return;  // closed since the event
    watched& each = *found->second;
    each.last_event = std::chrono::steady_clock::now();
    if (events == 0) each.waits_for_copy = false;
    const bool is_left = each.waits_for_copy && (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0;
    connection_need need = is_left ? connection_need::end : connection_need::input;
    if (!each.greeted())
      need = each.greet(gate_, [&](const hello& greeting, channel_binding binding) {
        return judge(greeting, binding, each);
      });
    if (each.greeted() && need != connection_need::end) {
      if (Channel::greets_apart && &here == loops_.front().get()) return hand_on(here, id);
      need = each.serve(regions_, budget_bytes);
    }
    if (need == connection_need::end) {
      here.connections.erase(found);
      return;
    }
    std::uint32_t wanted = need == connection_need::input ? EPOLLIN : EPOLLOUT;
    if (need == connection_need::copy && note_copying(here, id, each)) wanted = EPOLLRDHUP;
    if (wanted == each.events) return;
    each.events = wanted;
    here.set.change(each.socket(), wanted, id);
  }

  /// False: no memory for the note. The connection is then watched for output, which is reported at once.
  [[nodiscard]] static bool note_copying(loop& here, std::uint64_t id, watched& each) noexcept {
    try {
      if (!each.waits_for_copy) here.copying.push_back(id);
      each.waits_for_copy = true;
      return true;
    } catch (...) {
      return false;
    }
  }

  /// Also sets the socket up for how far away the accepted reader is.
  [[nodiscard]] welcome_status judge(const hello& greeting, channel_binding binding, watched& one) noexcept {
    const auto status = detail::status_of<welcome_status>(gate_.judge(greeting, data_protocol, binding));
    if (status != welcome_status::accepted) return status;
    if (!seats_.take({greeting.reader})) return welcome_status::crowded;
    one.seats = &seats_;
    one.seated = {greeting.reader};
    if (greeting.path == path_kind::wide_area || greeting.path == path_kind::one_of_several)
      one.copy_everything();
    if (greeting.path == path_kind::wide_area) {
      size_send_buffer(one.socket(), options_.wide_area);
      choose_congestion_control(one.socket(), options_.wide_area.congestion_control);
    } else {
      size_loopback_send_buffer(one.socket(), near_);
    }
    return status;
  }

  /// Closes connections that sent no hello in time.
  void sweep(loop& here, std::chrono::steady_clock::time_point now) noexcept {
    const std::lock_guard lock{here.mutex};
    std::erase_if(here.connections, [&](const auto& entry) {
      return !entry.second->greeted() && now - entry.second->opened() > greeting_timeout;
    });
  }

  const tcp_options options_;
  const std::shared_ptr<staging_pool> staging_;
  const tcp_path near_;
  typename Channel::shared* const shared_;
  const listening_socket listener_;
  region_table regions_;
  detail::reader_gate gate_;
  reader_seats seats_{options_.max_connections_per_reader};
  std::atomic<bool> stopping_ = false;
  std::atomic<std::size_t> connection_count_ = 0;
  const std::size_t most_connections_ = detail::at_most_half_of_descriptors(options_.max_connections);
  std::size_t next_loop_ = 0;  ///< used by the first thread alone, as the next two
  std::uint64_t last_connection_ = 0;
  std::deque<std::pair<loop*, std::uint64_t>>
      newcomers_;  ///< oldest first; some have sent their hello or are closed
  std::vector<std::unique_ptr<loop>> loops_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail
