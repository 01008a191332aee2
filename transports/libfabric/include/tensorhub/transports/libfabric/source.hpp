#pragma once
/// \file source.hpp
/// The serving side: one thread per transport object, whatever the number of readers. The thread drives the
/// provider's progress (without which most providers answer no reads) and accepts readers.
///
/// One mutex guards all calls into the provider that can make bytes leave. A function that ends a permission
/// (`cut_off`, a deregistration) visits it, closes the endpoints that may carry forbidden bytes, and
/// returns: nothing is being sent at that moment, and a closed endpoint sends nothing later.
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
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/descriptor_limit.hpp"
#include "tensorhub/detail/visited_mutex.hpp"
#include "tensorhub/transports/libfabric/fid.hpp"
#include "tensorhub/transports/libfabric/message.hpp"
#include "tensorhub/transports/libfabric/options.hpp"
#include "tensorhub/transports/libfabric/protocol.hpp"
#include "tensorhub/transports/libfabric/provider.hpp"
#include "tensorhub/transports/libfabric/waiter.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/reader_gate.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

/// The age from which on a source at its limit of connections may replace one by a new one. Readers that
/// vanished leave connections without a sign; those that are alive connect again.
struct replaceable_ages {
  std::chrono::milliseconds connected{10'000};
  /// A living reader with addressed endpoints notices only by its silence that its own is gone, and waits for
  /// `libfabric_options::peer_timeout` before it connects again.
  std::chrono::milliseconds addressed{300'000};
};

class source {
 public:
  source(const provider& chosen, const libfabric_options& options, incarnation self, std::uint64_t nonce,
         const replaceable_ages& ages = {});
  ~source();
  source(const source&) = delete;
  source& operator=(const source&) = delete;

  [[nodiscard]] const peer_address& address() const noexcept { return address_; }

  /// Closes the connections of this reader, and refuses the reader from now on.
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

  /// Calls `work()` while the provider is at rest. `closes_readers`: `work` ends the permission of some
  /// memory. If earlier reads may still be answered from that memory, their readers are disconnected.
  template <typename Work>
  void exclusively(Work&& work, bool closes_readers = false) {
    mutex_.visit([&] {
      work();
      if (closes_readers && !provider_.deregistration_is_final())
        close_if([](const served&) { return true; });
    });
  }

 private:
  static constexpr std::size_t cq_entries = 1024;
  static constexpr std::size_t greeting_messages = 16;
  /// Refusals that wait at one time. A stranger names the address that gets one: a source that answered all
  /// would knock at many doors for it.
  static constexpr std::size_t most_refusals = 16;
  static constexpr std::size_t remembered_closings = 64;
  static constexpr std::chrono::seconds greeting_timeout{5};
  static constexpr std::chrono::seconds answer_keep{1};
  static constexpr std::chrono::seconds parking_time{60};
  static constexpr std::chrono::milliseconds sweep_interval{500};
  /// The shortest time between two replacements.
  static constexpr std::chrono::seconds replacement_interval{10};
  using clock = std::chrono::steady_clock;

  using messages = std::vector<std::unique_ptr<message>>;

  /// One reader's connection or serving endpoint.
  struct served {
    std::uint64_t number = 0;
    incarnation reader{};
    incarnation source{};  ///< the incarnation of this process that the reader has asked for
    messages inbox{};
    unique_fid<::fid_cq>
        own_cq{};  ///< for an endpoint that is closed late: an endpoint that is not driven answers nothing
    addressed_endpoint fids{};
    clock::time_point opened{};
    bool greeted = false;  ///< the connection is made, or `ready` was received
  };

  /// A serving endpoint that is no longer driven and will be closed.
  struct parked {
    served endpoint;
    clock::time_point until{};
  };

  /// A welcome to be sent by the greeting endpoint.
  struct answer {
    std::unique_ptr<message> out;
    ::fi_addr_t to = FI_ADDR_NOTAVAIL;
    clock::time_point since{};
    bool posted = false;
    bool refuses = false;
  };

  void check(const char* step, std::int64_t result) const;

  void listen(const libfabric_options& options);

  /// The greeting endpoint has its own domain, in which no memory is registered for peers.
  void open_greeting_endpoint();

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

  /// The endpoint owns the request, so a failure is told to the reader by closing it, never by `fi_reject`.
  void accept(unique_fid<::fid_ep> endpoint, const hello& greeting, const welcome& reply,
              clock::time_point now) noexcept;

  [[nodiscard]] welcome judged(const hello& greeting, clock::time_point now) noexcept;

  // ---- addressed readers --------------------------------------------------------------------------------

  void receive_messages(clock::time_point now) noexcept;

  /// A letter gets no answer if its address is none of the provider's, or if it is refused and enough refused
  /// ones wait for theirs.
  void answer_hello(const message& came, clock::time_point now);

  /// Returns the address of the new serving endpoint.
  [[nodiscard]] const raw_address& open_reader_endpoint(const hello& greeting, clock::time_point now);

  /// Removes a reader's address some time after its answer was sent.
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
  /// False: there are as many connections as may be, and none may be replaced now. Over a provider that
  /// closes late, the place of a replaced one is free when it is closed.
  [[nodiscard]] bool has_room(clock::time_point now) noexcept;
  /// Those that are no longer driven count until they are closed.
  [[nodiscard]] bool is_full() const noexcept {
    return served_.size() + parked_.size() >= limits_.connections;
  }
  /// Afterwards the endpoint sends nothing.
  void close(served& each) noexcept;

  const provider& provider_;
  struct {
    std::size_t connections;
    std::chrono::milliseconds replaceable_age;
  } const limits_;
  std::string advertised_host_;
  detail::reader_gate gate_;
  std::uint64_t nonce_;
  peer_address address_{};
  waiter waiter_;

  // A domain is declared before the messages that may be registered with it, messages before the objects that
  // may point to them, queues before their endpoints.
  unique_fid<::fid_domain> greeting_domain_;
  std::deque<messages> closed_;
  messages greeting_inbox_;
  std::list<answer> answers_;
  unique_fid<::fid_cq> cq_;
  unique_fid<::fid_eq> eq_;
  unique_fid<::fid_cq> greeting_cq_;
  addressed_endpoint greeting_endpoint_;
  unique_fid<::fid_pep> listener_;
  std::list<served> served_;
  std::list<parked> parked_;
  std::array<::fi_cq_msg_entry, 32> entries_{};
  clock::time_point next_sweep_{};
  clock::time_point replaced_at_{};  ///< when a connection was last replaced

  detail::visited_mutex mutex_;  ///< guards all members above that are not constant
  std::atomic<bool> stopping_ = false;
  std::jthread thread_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/libfabric/impl/source.ipp"
#endif
