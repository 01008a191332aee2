#pragma once
/// \file source.hpp
/// The serving side: one thread per transport object, whatever the number of readers, that drives the
/// provider's progress (without it most providers answer nobody) and lets readers in.
///
/// All calls into the provider that can make bytes leave are made under one mutex. Who ends a permission
/// (`cut_off`, a deregistration) takes it, closes what may carry forbidden bytes, and returns: nothing is
/// being sent then, and what is closed sends nothing later. Visitors announce themselves (`visitors_`), so
/// that a busy thread lets them in.
///
/// Thread safety: all public members may be called from any thread.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/libfabric/fid.hpp"
#include "tensorhub/transports/libfabric/message.hpp"
#include "tensorhub/transports/libfabric/options.hpp"
#include "tensorhub/transports/libfabric/protocol.hpp"
#include "tensorhub/transports/libfabric/provider.hpp"
#include "tensorhub/transports/libfabric/waiter.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/reader_gate.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

class source {
 public:
  source(const provider& through, const libfabric_options& options, incarnation self, std::uint64_t nonce);
  ~source();
  source(const source&) = delete;
  source& operator=(const source&) = delete;

  [[nodiscard]] const peer_address& address() const noexcept { return address_; }

  /// Closes what comes from this reader, and refuses it from now on.
  void cut_off(incarnation reader) noexcept;

  /// Only readers with a capability of this key from now on; whoever is there already has to come again.
  void require_capability(std::span<const std::byte> key);
  [[nodiscard]] std::uint64_t refused_connections() const noexcept { return gate_.refused_connections(); }

  /// `work()` while the provider is at rest. `closes_readers`: memory loses its permission by it; where reads
  /// that were asked for before may still be answered out of it, their readers are disconnected.
  template <typename Work>
  void exclusively(Work&& work, bool closes_readers = false) {
    visitors_.fetch_add(1);
    const finally leave{[this] {
      visitors_.fetch_sub(1);
      visitors_.notify_all();
    }};
    const std::lock_guard lock{mutex_};
    work();
    if (closes_readers && !through_.deregistration_is_final()) close_if([](const served&) { return true; });
  }

 private:
  static constexpr std::size_t cq_entries = 1024;
  static constexpr std::size_t door_letters = 16;
  static constexpr std::size_t remembered_closings = 64;
  static constexpr std::chrono::seconds greeting_timeout{5};
  static constexpr std::chrono::seconds answer_keep{1};
  static constexpr std::chrono::seconds parking_time{60};
  static constexpr std::chrono::milliseconds sweep_interval{500};
  using clock = std::chrono::steady_clock;

  template <typename Action>
  struct finally {
    Action action;
    ~finally() { action(); }
  };
  template <typename Action>
  finally(Action) -> finally<Action>;

  using letters = std::vector<std::unique_ptr<message>>;

  /// One reader's connection, or its room.
  struct served {
    std::uint64_t number = 0;
    incarnation reader{};
    letters inbox{};
    unique_fid<::fid_cq> own_cq{};  ///< of a room that is closed late: nobody answers where nobody drives
    addressed_endpoint fids{};
    clock::time_point opened{};
    bool greeted = false;  ///< the connection is made; the knock has come
  };

  /// A room that nobody drives any more.
  struct parked {
    served room;
    clock::time_point until{};
  };

  /// A welcome on its way out of the door.
  struct answer {
    std::unique_ptr<message> out;
    ::fi_addr_t to = FI_ADDR_NOTAVAIL;
    clock::time_point since{};
    bool posted = false;
  };

  void check(const char* step, std::int64_t result) const;

  void listen(const libfabric_options& options);

  /// The door is in a domain of its own, in which no memory is registered for peers.
  void open_door();

  [[nodiscard]] static raw_address advertised(raw_address own, const std::string& host);

  // ---- the thread ---------------------------------------------------------------------------------------

  void run() noexcept;

  void work() noexcept;

  void read_cq(::fid_cq* cq) noexcept;
  static void complete(void* context, std::size_t bytes, int error_number) noexcept;

  // ---- connected readers --------------------------------------------------------------------------------

  void read_eq(clock::time_point now) noexcept;

  [[nodiscard]] static bool is(const served& each, const ::fid* which) noexcept {
    return each.fids.endpoint != nullptr && &each.fids.endpoint->fid == which;
  }

  void admit(::fi_info& request, std::span<const std::byte> data, clock::time_point now) noexcept;

  void accept(::fi_info& request, const hello& greeting, const welcome& reply, clock::time_point now);

  [[nodiscard]] welcome judged(const hello& greeting) noexcept;

  // ---- addressed readers --------------------------------------------------------------------------------

  void take_letters(clock::time_point now) noexcept;

  void open_room(const letter& came, clock::time_point now);

  /// A reader's address is forgotten some time after its answer has left.
  void send_answers(clock::time_point now) noexcept;

  // ---- closing ------------------------------------------------------------------------------------------

  template <typename Predicate>
  void close_if(Predicate&& matches) noexcept {
    for (auto each = served_.begin(); each != served_.end();) {
      if (matches(std::as_const(*each))) {
        close(*each);
        each = served_.erase(each);
      } else {
        ++each;
      }
    }
  }
  /// After this nothing leaves through it.
  void close(served& each) noexcept;

  const provider& through_;
  std::size_t max_connections_;
  incarnation self_;
  detail::reader_gate gate_{self_};
  std::uint64_t nonce_;
  peer_address address_{};
  waiter waiter_;

  // Letters before what may point to them, queues before the endpoints on them.
  std::deque<letters> closed_;
  letters door_inbox_;
  std::list<answer> answers_;
  unique_fid<::fid_cq> cq_;
  unique_fid<::fid_eq> eq_;
  unique_fid<::fid_domain> door_domain_;
  unique_fid<::fid_cq> door_cq_;
  addressed_endpoint door_;
  unique_fid<::fid_pep> listener_;
  std::list<served> served_;
  std::list<parked> parked_;
  std::array<::fi_cq_msg_entry, 32> entries_{};
  clock::time_point next_sweep_{};

  std::mutex mutex_;  ///< guards everything above that is not constant
  std::atomic<std::uint32_t> visitors_ = 0;
  std::atomic<bool> stopping_ = false;
  std::jthread thread_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/libfabric/impl/source.ipp"
#endif
