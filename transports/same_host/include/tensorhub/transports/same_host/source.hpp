#pragma once
/// \file source.hpp
/// The serving side of the same-host transport: a listening socket, one thread, and the grant page.
///
/// The thread tells readers the regions' locations; it never accesses the regions' bytes (staging.hpp does,
/// for memory that readers cannot or may not access). Ending a permission needs neither the thread nor the
/// readers: it is one store into the grant page. Where memory is staged, it waits for this process's own copy
/// of the pieces that have begun.
///
/// The thread holds a mutex while it works on one connection, and then answers a limited number of requests.
/// Others visit it (detail/visited_mutex.hpp).
///
/// Thread safety: all members may be called from any thread.

#include <sys/prctl.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tensorhub/concepts/telling_transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/descriptor_limit.hpp"
#include "tensorhub/detail/epoll_set.hpp"
#include "tensorhub/detail/listener_pause.hpp"
#include "tensorhub/detail/local_socket.hpp"
#include "tensorhub/detail/random_id.hpp"
#include "tensorhub/detail/unique_socket.hpp"
#include "tensorhub/detail/visited_mutex.hpp"
#include "tensorhub/detail/wake_event.hpp"
#include "tensorhub/transports/same_host/grants.hpp"
#include "tensorhub/transports/same_host/options.hpp"
#include "tensorhub/transports/same_host/protocol.hpp"
#include "tensorhub/transports/same_host/region_table.hpp"
#include "tensorhub/transports/same_host/staging.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/reader_gate.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

using namespace detail::local;

class source {
 public:
  /// The thread calls `every_second` about once a second.
  source(const same_host_options& options, incarnation self, std::function<void()> every_second);
  ~source();
  source(const source&) = delete;
  source& operator=(const source&) = delete;

  [[nodiscard]] const std::string& socket_name() const noexcept { return socket_name_; }
  [[nodiscard]] region_table& regions() noexcept { return regions_; }
  [[nodiscard]] const region_table& regions() const noexcept { return regions_; }

  /// No read of this reader succeeds from now on, and the reader is refused for ever.
  void cut_off(incarnation reader) noexcept;

  /// Accepts only readers with a capability of this key from now on, and closes all present connections:
  /// their readers have to connect again.
  void require_capability(std::span<const std::byte> key);
  void expire_capabilities(incarnation self, std::uint64_t epoch) noexcept {
    gate_.expire_capabilities(self, epoch);
  }
  [[nodiscard]] incarnation self() const noexcept { return gate_.self(); }
  void admit(incarnation self) { gate_.admit(self); }
  /// Closes the connections that were made to `self`, as `dismiss` does.
  void rename(incarnation self, incarnation next) noexcept;
  void dismiss(incarnation self) noexcept;
  [[nodiscard]] std::uint64_t refused_connections() const noexcept { return gate_.refused_connections(); }
  /// Of descriptors, or memory, for readers' connections.
  [[nodiscard]] transport_shortage shortage_told() const {
    if (pause_.shortages() == 0) return {};
    return {pause_.shortages(), "same_host: " + pause_.text()};
  }

 private:
  struct connection {
    detail::unique_socket socket{};
    uid_t user = static_cast<uid_t>(-1);
    clock::time_point opened{};
    bool greeted = false;
    incarnation reader{};
    incarnation source{};  ///< the incarnation of this process that the reader has asked for
    grant given{};
    std::unordered_set<std::uint64_t> files{};  ///< the files that the reader has received
    std::shared_ptr<stage_file> stage{};        ///< null: the reader has never requested a staged piece
    bool has_stage = false;                     ///< the reader has received the staging file
    std::uint32_t staging = 0;                  ///< pieces requested and not yet answered
  };

  static constexpr std::uint64_t listener_id = 0;
  static constexpr std::uint64_t event_id = 1;
  static constexpr std::chrono::milliseconds sweep_interval{1000};
  static constexpr std::chrono::seconds greeting_timeout{5};
  static constexpr std::size_t answers_at_once =
      requests_in_flight + stage_slots;  ///< all of a correct reader
  /// A crowd that connects without end keeps the thread neither from its readers nor from stopping.
  static constexpr std::size_t accepted_at_once = 64;

  [[nodiscard]] static std::string random_name();

  /// Calls `work()` while the thread works on no connection.
  template <typename Work>
  void exclusively(Work&& work) noexcept {
    mutex_.visit(std::forward<Work>(work));
  }

  void run() noexcept;

  /// The epoll set reports again those that are left.
  void accept_some() noexcept;

  void adopt(detail::unique_socket socket, uid_t user);

  /// Says why, and closes the connection.
  void turn_away(const detail::unique_socket& socket, welcome_status why) const noexcept;

  /// Closes the oldest connection that has not sent its hello. False: all have (the mutex is held).
  [[nodiscard]] bool close_oldest_silent() noexcept;

  void work_on(std::uint64_t id) noexcept;

  /// Pre-condition: mutex_ is held.
  void drop_readers_of(incarnation self) noexcept;
  void drop(const connection& each) noexcept {
    if (each.greeted) grants_.give_back(each.given.slot);
    if (each.stage) each.stage->close();
  }

  /// False: the connection ends.
  [[nodiscard]] bool greet(connection& each);
  [[nodiscard]] welcome_status judge(const hello& greeting) noexcept;

  /// Answers a limited number of requests, so that a reader that asks without end does not keep the thread.
  /// False: the connection ends, as with the next.
  [[nodiscard]] bool answer_some(std::uint64_t id, connection& each);
  [[nodiscard]] bool answer(connection& each, const region_request& request);

  static void fill(region_answer& answer, const region_facts& facts) noexcept;

  /// False: the request is invalid.
  [[nodiscard]] bool stage(std::uint64_t id, connection& each, const region_request& request);
  void answer_staged(const stage_job& job, answer_status status) noexcept;

  /// Closes connections that sent no hello in time.
  void sweep() noexcept;

  const same_host_options options_;
  const std::size_t most_connections_ = detail::at_most_half_of_descriptors(options_.max_connections);
  detail::reader_gate gate_;
  const std::string socket_name_;
  const std::uint64_t probe_word_ = detail::random_number();
  grant_page grants_;
  region_table regions_;
  stage_desk desk_;
  std::function<void()> every_second_;
  detail::unique_socket listener_;
  detail::epoll_set set_{"same_host"};
  detail::wake_event wake_;
  std::atomic<bool> stopping_ = false;
  detail::listener_pause
      pause_;  ///< any thread asks what it has seen; the rest, and the next, is the thread's
  std::uint64_t last_connection_ = 0;
  detail::visited_mutex mutex_;
  std::unordered_map<std::uint64_t, std::unique_ptr<connection>> connections_;
  std::jthread thread_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/same_host/impl/source.ipp"
#endif
