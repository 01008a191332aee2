#pragma once
/// \file source.hpp
/// The serving side of the verbs transport, and the thread that receives the connection manager's events.
///
/// The device answers reads without the CPU; the thread only accepts readers, and cleans up when they
/// disconnect. It also learns of the end of this process's own connections and moves their queue pairs to the
/// error state, so that the reads on them end at once.
///
/// `cut_off` destroys the reader's queue pairs before it returns: from then on the device sends nothing.
///
/// Thread safety: all members may be called from any thread. An event is acknowledged after it has been
/// handled; a thread that destroys an identifier waits for that, without holding the mutex.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/wake_event.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/transports/verbs/connection.hpp"
#include "tensorhub/transports/verbs/device.hpp"
#include "tensorhub/transports/verbs/handles.hpp"
#include "tensorhub/transports/verbs/options.hpp"
#include "tensorhub/transports/verbs/protocol.hpp"
#include "tensorhub/types/reader_gate.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

class source {
 public:
  source(const verbs_options& options, incarnation self);
  ~source();
  source(const source&) = delete;
  source& operator=(const source&) = delete;

  [[nodiscard]] const std::vector<rail>& rails() const noexcept { return rails_; }
  [[nodiscard]] incarnation self() const noexcept { return gate_.self(); }
  void admit(incarnation self) { gate_.admit(self); }
  /// Destroys the connections that were made to `self`, as `dismiss` does.
  void rename(incarnation self, incarnation next) noexcept;
  void dismiss(incarnation self) noexcept;
  /// What the keys of this process's memory are bound to, for as long as it lives.
  [[nodiscard]] incarnation key_maker() const noexcept { return key_maker_; }
  /// The destination of the events of this process's own connections once they are established.
  [[nodiscard]] event_home events() noexcept { return {*channel_, mutex_}; }
  [[nodiscard]] std::atomic<std::uint64_t>& registered_bytes() noexcept { return registered_bytes_; }
  [[nodiscard]] std::uint64_t registered_bytes() const noexcept {
    return registered_bytes_.load(std::memory_order_relaxed);
  }

  [[nodiscard]] std::string address() const;

  /// Destroys the connections of this reader, and refuses the reader from now on.
  void cut_off(incarnation reader) noexcept;

  /// Accepts only readers with a capability of this key from now on, and closes all present connections:
  /// their readers have to connect again.
  void require_capability(std::span<const std::byte> key);
  void expire_capabilities(incarnation self, std::uint64_t epoch) noexcept {
    gate_.expire_capabilities(self, epoch);
  }
  [[nodiscard]] std::uint64_t refused_connections() const noexcept { return gate_.refused_connections(); }

  /// Called when memory could not be deregistered, which a device may still read: no peer may read any more.
  void refuse_everybody() noexcept;

 private:
  using clock = std::chrono::steady_clock;
  struct reader_connection {
    handle<rdma_cm_id> id;
    incarnation reader;
    incarnation source;  ///< the incarnation of this process that the reader has asked for
    clock::time_point opened = clock::now();
  };
  using reader_table = std::unordered_map<rdma_cm_id*, reader_connection>;
  static constexpr int backlog = 1024;
  /// At the limit a new connection replaces the oldest one of at least this age, and no other one for so
  /// long; at the limit of its reader, the oldest one of that reader. A reader whose machine vanished, or
  /// whose path broke, leaves its queue pair without a sign. A living reader connects again.
  static constexpr std::chrono::seconds replaceable_age{10};

  /// Detects a machine without devices before the libraries print warnings about it.
  [[nodiscard]] static handle<rdma_event_channel> open_channel();

  /// Destroys the queue pair; the caller may destroy the returned identifier without the mutex. If the device
  /// does not give up the queue pair, the identifier still has it, and no reader is accepted any more.
  [[nodiscard]] handle<rdma_cm_id> take_out(reader_table::iterator entry) noexcept;

  template <typename Predicate>
  void close_if(std::unique_lock<std::mutex>& lock, Predicate&& matches) noexcept {
    for (bool every_one = false;;) {
      const auto found = detail::find_if(
          readers_, [&](const auto& entry) { return every_one || matches(std::as_const(entry.second)); });
      if (found == readers_.end()) return;
      handle<rdma_cm_id> id = take_out(found);
      every_one = every_one || id->qp != nullptr;
      lock.unlock();
      id.reset();
      lock.lock();
    }
  }

  void run() noexcept;

  void handle_event(rdma_cm_event* event) noexcept;

  [[nodiscard]] handle<rdma_cm_id> ended(rdma_cm_id* id) noexcept;

  /// Accepts or refuses a reader. The caller destroys the returned identifier, which was refused, and
  /// `replaced`, whose place the reader has.
  [[nodiscard]] handle<rdma_cm_id> judge(const rdma_cm_event& event, handle<rdma_cm_id>& replaced) noexcept;

  /// Precondition of the three: mutex_ is held.
  [[nodiscard]] welcome_status judge(const hello& greeting, handle<rdma_cm_id>& replaced) noexcept;
  /// False: there are as many connections as may be, and none may be replaced now.
  [[nodiscard]] bool has_room(handle<rdma_cm_id>& replaced) noexcept;
  /// Takes out the oldest connection that `matches`. False: it is too young, or there is none.
  template <typename Predicate>
  [[nodiscard]] bool take_out_oldest(handle<rdma_cm_id>& replaced, Predicate&& matches) noexcept {
    auto oldest = readers_.end();
    for (auto each = readers_.begin(); each != readers_.end(); ++each) {
      if (!matches(std::as_const(each->second))) continue;
      if (oldest == readers_.end() || each->second.opened < oldest->second.opened) oldest = each;
    }
    if (oldest == readers_.end() || clock::now() - oldest->second.opened < replaceable_age) return false;
    replaced = take_out(oldest);
    return true;
  }

  /// Takes `id` if it succeeds.
  [[nodiscard]] bool accept(handle<rdma_cm_id>& id, const rail& on, const rdma_conn_param& asked,
                            const welcome& answer, const hello& greeting) noexcept;

  const std::size_t max_connections_;
  const std::size_t max_connections_per_reader_;
  const incarnation key_maker_;
  detail::reader_gate gate_;
  handle<rdma_event_channel> channel_;
  std::vector<rail> rails_;
  detail::wake_event stop_;
  std::atomic<std::uint64_t> registered_bytes_ = 0;
  std::mutex mutex_;
  reader_table readers_;             ///< guarded by mutex_, as the next
  clock::time_point replaced_at_{};  ///< when a connection was last replaced
  std::jthread thread_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/verbs/impl/source.ipp"
#endif
