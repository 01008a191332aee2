#pragma once
/// \file source.hpp
/// The serving side of the TCP transport: a listening socket and a fixed number of I/O threads.
///
/// Each thread owns an epoll set and some of the connections. It holds its own mutex while it works on one
/// connection; `cut_off` and `forget_region` take that mutex, so that after their return no byte that they
/// forbid is being sent. They announce themselves first (`visitors_`), so that a busy thread lets them in.
///
/// Thread safety: all members may be called from any thread.

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/tcp/connection.hpp"
#include "tensorhub/transports/tcp/options.hpp"
#include "tensorhub/transports/tcp/region_table.hpp"
#include "tensorhub/transports/tcp/socket.hpp"

namespace tensorhub::transports::tcp_detail {

class source {
 public:
  source(const tcp_options& options, incarnation self)
      : options_{options}, self_{self}, listener_{listen_at(options, port_)} {
    const std::size_t threads = options.io_threads == 0 ? 1 : options.io_threads;
    for (std::size_t i = 0; i < threads; ++i) loops_.push_back(std::make_unique<loop>());
    watch(*loops_.front(), EPOLL_CTL_ADD, listener_.get(), EPOLLIN, listener_id);
    for (const auto& each : loops_) each->thread = std::jthread{[this, &here = *each] { run(here); }};
  }
  ~source() {
    stopping_ = true;
    for (const auto& each : loops_) wake(*each);
    for (const auto& each : loops_) each->thread.join();
  }
  source(const source&) = delete;
  source& operator=(const source&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  [[nodiscard]] region_table& regions() noexcept { return regions_; }
  [[nodiscard]] const region_table& regions() const noexcept { return regions_; }

  /// Closes what comes from this reader, and refuses it from now on.
  void cut_off(incarnation reader) noexcept {
    {
      const std::lock_guard lock{refused_mutex_};
      try {
        refused_.insert(reader);
      } catch (...) {  // without memory to remember one name, refuse everybody
        refuse_all_ = true;
      }
    }
    close_if([reader](const connection& each) { return each.reader() == reader; });
  }

  /// The region's key has changed or is gone: nothing of it may be sent any more.
  void forget_region(std::uint64_t region) noexcept {
    close_if([region](const connection& each) { return each.carries(region); });
  }

 private:
  struct loop {
    detail::unique_fd epoll{::epoll_create1(EPOLL_CLOEXEC)};
    detail::unique_fd event{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    std::mutex mutex;
    std::atomic<std::uint32_t> visitors = 0;
    std::unordered_map<std::uint64_t, std::unique_ptr<connection>> connections;  ///< guarded by mutex
    std::jthread thread;
    bool listening = true;  ///< the thread's own
    loop() {
      if (!epoll || !event)
        throw error(errc::system_failed, std::string{"tcp: no epoll: "} + std::strerror(errno));
      epoll_event wanted{};
      wanted.events = EPOLLIN;
      wanted.data.u64 = event_id;
      static_cast<void>(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, event.get(), &wanted));
    }
  };

  static constexpr std::uint64_t listener_id = 0;
  static constexpr std::uint64_t event_id = 1;
  static constexpr std::uint64_t budget_bytes = 8u << 20;
  static constexpr std::chrono::milliseconds sweep_interval{1000};
  static constexpr std::chrono::seconds greeting_timeout{5};

  static void wake(loop& where) noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(where.event.get(), &one, sizeof one);
  }

  static void watch(loop& where, int operation, int socket, std::uint32_t events, std::uint64_t id) noexcept {
    epoll_event wanted{};
    wanted.events = events;
    wanted.data.u64 = id;
    static_cast<void>(::epoll_ctl(where.epoll.get(), operation, socket, &wanted));
  }

  template <typename Predicate>
  void close_if(Predicate&& matches) noexcept {
    for (const auto& each : loops_) {
      each->visitors.fetch_add(1);
      {
        const std::lock_guard lock{each->mutex};
        const auto closed = std::erase_if(each->connections, [&](const auto& entry) {
          if (!matches(std::as_const(*entry.second))) return false;
          abort_on_close(entry.second->socket());
          return true;
        });
        connection_count_.fetch_sub(closed);
      }
      each->visitors.fetch_sub(1);
      each->visitors.notify_all();
    }
  }

  void run(loop& here) noexcept {
    // sendfile has no flag against SIGPIPE.
    sigset_t pipe;
    ::sigemptyset(&pipe);
    ::sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    std::array<epoll_event, 64> events{};
    auto next_sweep = std::chrono::steady_clock::now() + sweep_interval;
    while (!stopping_) {
      const int count = ::epoll_wait(here.epoll.get(), events.data(), static_cast<int>(events.size()),
                                     static_cast<int>(sweep_interval.count()));
      for (int i = 0; i < count; ++i) {
        const epoll_event& event = events[static_cast<std::size_t>(i)];
        if (event.data.u64 == listener_id)
          accept_all(here);
        else if (event.data.u64 == event_id)
          drain(here);
        else
          work_on(here, event.data.u64, event.events);
      }
      const auto now = std::chrono::steady_clock::now();
      if (now >= next_sweep) {
        next_sweep = now + sweep_interval;
        sweep(here, now);
      }
    }
  }

  static void drain(loop& here) noexcept {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto taken = ::read(here.event.get(), &count, sizeof count);
  }

  void accept_all(loop& here) noexcept {
    for (;;) {
      detail::unique_fd socket{::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
      if (!socket) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          // Readers wait in the backlog until the next sweep, instead of keeping this thread busy.
          watch(here, EPOLL_CTL_MOD, listener_.get(), 0, listener_id);
          here.listening = false;
        }
        return;
      }
      if (connection_count_.load() >= options_.max_connections) continue;
      tune(socket.get(), options_);
      try {
        adopt(std::move(socket));
      } catch (...) {  // no memory: the reader is turned away
      }
    }
  }

  void adopt(detail::unique_fd socket) {
    loop& owner = *loops_[next_loop_++ % loops_.size()];
    const std::uint64_t id = ++last_connection_ + event_id;
    const int descriptor = socket.get();
    const bool by_file =
        options_.send_from_file == file_sending::always ||
        (options_.send_from_file == file_sending::automatic && !reaches_loopback(descriptor));
    auto fresh = std::make_unique<connection>(std::move(socket), by_file, std::chrono::steady_clock::now());
    const std::lock_guard lock{owner.mutex};
    owner.connections.emplace(id, std::move(fresh));
    connection_count_.fetch_add(1);
    watch(owner, EPOLL_CTL_ADD, descriptor, EPOLLIN, id);
  }

  void work_on(loop& here, std::uint64_t id, std::uint32_t events) noexcept {
    for (auto visitors = here.visitors.load(); visitors != 0; visitors = here.visitors.load()) {
      here.visitors.wait(visitors);
    }
    const std::lock_guard lock{here.mutex};
    const auto found = here.connections.find(id);
    if (found == here.connections.end()) return;  // closed since the event
    connection& each = *found->second;
    connection_need need = connection_need::input;
    if (!each.greeted()) need = each.greet(self_, [this](const hello& greeting) { return judge(greeting); });
    if (each.greeted() && need != connection_need::end) need = each.serve(regions_, budget_bytes);
    if (need == connection_need::end) {
      here.connections.erase(found);
      connection_count_.fetch_sub(1);
      return;
    }
    const std::uint32_t wanted = need == connection_need::input ? EPOLLIN : EPOLLOUT;
    if (need == connection_need::input ? (events & EPOLLOUT) != 0 : (events & EPOLLOUT) == 0)
      watch(here, EPOLL_CTL_MOD, each.socket(), wanted, id);
  }

  [[nodiscard]] welcome_status judge(const hello& greeting) noexcept {
    const std::lock_guard lock{refused_mutex_};
    return refuse_all_ || refused_.contains({greeting.reader}) ? welcome_status::refused
                                                               : welcome_status::accepted;
  }

  /// Closes connections that never said hello, and listens again after a shortage.
  void sweep(loop& here, std::chrono::steady_clock::time_point now) noexcept {
    {
      const std::lock_guard lock{here.mutex};
      const auto closed = std::erase_if(here.connections, [&](const auto& entry) {
        return !entry.second->greeted() && now - entry.second->opened() > greeting_timeout;
      });
      connection_count_.fetch_sub(closed);
    }
    if (!here.listening && &here == loops_.front().get()) {
      here.listening = true;
      watch(here, EPOLL_CTL_MOD, listener_.get(), EPOLLIN, listener_id);
    }
  }

  const tcp_options options_;
  const incarnation self_;
  std::uint16_t port_ = 0;
  detail::unique_fd listener_;
  region_table regions_;
  std::mutex refused_mutex_;
  std::unordered_set<incarnation> refused_;
  bool refuse_all_ = false;
  std::atomic<bool> stopping_ = false;
  std::atomic<std::size_t> connection_count_ = 0;
  std::size_t next_loop_ = 0;  ///< the first thread's own, as the next
  std::uint64_t last_connection_ = 0;
  std::vector<std::unique_ptr<loop>> loops_;
};

}  // namespace tensorhub::transports::tcp_detail
