#pragma once
/// \file queue.hpp
/// The reading side: queues, and the endpoints on them.
///
/// The thread that polls does all the work: it drives the provider's completion queues (and, with connected
/// endpoints, the event queue), cuts posted reads into pieces and keeps a bounded number of them in flight.
/// Each endpoint has its own endpoint of the provider, with a completion queue: closing them guarantees that
/// no byte arrives afterwards.
///
/// Thread safety: a queue and its endpoints belong to one thread at a time; only `wake` is for any thread.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/libfabric/fid.hpp"
#include "tensorhub/transports/libfabric/message.hpp"
#include "tensorhub/transports/libfabric/options.hpp"
#include "tensorhub/transports/libfabric/protocol.hpp"
#include "tensorhub/transports/libfabric/provider.hpp"
#include "tensorhub/transports/libfabric/region.hpp"
#include "tensorhub/transports/libfabric/waiter.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/read_ledger.hpp"
#include "tensorhub/types/reader_gate.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

class queue_core;
class endpoint_core;
using clock = std::chrono::steady_clock;

struct posted_read {
  request_id id = 0;
  const region_core* into = nullptr;
  std::uint64_t into_offset = 0;
  region_key key{};
  std::uint64_t from_offset = 0;  ///< in the source's region
  std::uint64_t bytes = 0;
  std::uint64_t asked_bytes = 0;
  std::uint64_t done_bytes = 0;
  endpoint_core* endpoint = nullptr;  ///< null: this entry is free
  completion_status status = completion_status::ok;
};

struct piece : operation {
  endpoint_core* owner = nullptr;
  posted_read* read = nullptr;  ///< null: not in flight
  std::uint64_t bytes = 0;
  piece() noexcept : operation{operation_kind::piece} {}
};

/// Objects to which the provider may still point after an endpoint is closed; the queue keeps them for a
/// while.
struct endpoint_operations {
  std::deque<piece> pieces;
  std::unique_ptr<message> outgoing;
  std::unique_ptr<message> incoming;
};

/// One connection to a source. Owned by the user's endpoint, listed by its queue.
class endpoint_core {
 public:
  endpoint_core(queue_core& owner, incarnation peer) : owner_{&owner}, peer_{peer} {}
  ~endpoint_core();
  endpoint_core(const endpoint_core&) = delete;
  endpoint_core& operator=(const endpoint_core&) = delete;

  [[nodiscard]] incarnation peer() const noexcept { return peer_; }
  [[nodiscard]] bool usable() const noexcept { return state_ == state::ready; }
  /// The nonce of the source object at the other end.
  [[nodiscard]] std::uint64_t nonce() const noexcept { return nonce_; }

 private:
  friend class queue_core;
  enum class state : std::uint8_t { connecting, ready, broken, closed };

  [[nodiscard]] bool has_work() const noexcept { return in_flight_ > 0 || waiting_count_ > 0; }
  void mark_broken(const std::string& why) noexcept;

  queue_core* owner_;
  incarnation peer_;
  std::uint64_t nonce_ = 0;
  state state_ = state::connecting;
  std::string refusal_{};
  welcome welcome_{.magic = 0};
  bool welcomed_ = false;
  bool connected_ = false;

  unique_fid<::fid_cq> cq_{};  ///< its own: see `close_endpoint` and `abandon`
  addressed_endpoint fids_{};  ///< `peers` is empty for connected endpoints
  ::fi_addr_t serving_address_ = FI_ADDR_UNSPEC;
  std::unique_ptr<endpoint_operations> operations_ = std::make_unique<endpoint_operations>();
  std::vector<posted_read*> waiting_;  ///< ring: reads that are not completely requested
  std::size_t waiting_first_ = 0;
  std::size_t waiting_count_ = 0;
  std::size_t in_flight_ = 0;
  clock::time_point last_progress_{};
};

class queue_core {
 public:
  queue_core(const provider& chosen, const libfabric_options& options, std::size_t depth);
  queue_core(const queue_core&) = delete;
  queue_core& operator=(const queue_core&) = delete;

  [[nodiscard]] std::size_t outstanding() const noexcept { return ledger_.outstanding(); }

  /// Throws `transport_failed` or `timed_out`.
  [[nodiscard]] std::unique_ptr<endpoint_core> connect(const peer_address& to, const std::string& capability,
                                                       incarnation self, incarnation peer,
                                                       clock::time_point until);

  /// Called when the user destroys the endpoint.
  void detach(endpoint_core& endpoint) noexcept;

  [[nodiscard]] post_result post(endpoint_core& endpoint, const posted_read& read) noexcept;

  /// Ends a read without sending it.
  [[nodiscard]] post_result post_finished(request_id id, completion_status status) noexcept {
    return ledger_.begin_and_end({id, status});
  }

  [[nodiscard]] std::size_t poll(std::span<completion> completions) noexcept;

  void wait(duration timeout) noexcept;

  void wake() noexcept { waiter_.wake(); }

 private:
  static constexpr std::size_t cq_entries = 1024;
  static constexpr std::size_t remembered_closings = 64;
  static constexpr std::chrono::milliseconds goodbye_timeout{20};

  // ---- connecting ---------------------------------------------------------------------------------------

  void connect_connected(endpoint_core& fresh, const peer_address& to, const hello& greeting,
                         clock::time_point until);

  void connect_addressed(endpoint_core& fresh, const peer_address& to, const hello& greeting,
                         clock::time_point until);

  void send_message(endpoint_core& fresh, ::fi_addr_t address, const peer_address& to,
                    clock::time_point until);

  /// True as soon as `holds()` is true, false at the timeout; throws when the endpoint breaks.
  template <typename Predicate>
  [[nodiscard]] bool drive_until(endpoint_core& fresh, clock::time_point until, Predicate&& holds) {
    for (;;) {
      drive();
      if (holds()) return true;
      require_unbroken(fresh);
      const auto now = clock::now();
      if (now >= until) return false;
      if (waiter_.may_sleep()) waiter_.sleep(until - now, true, !provider_.connected());
    }
  }

  /// A connection may break by the event that brings its welcome, and later ones.
  static void require_unbroken(const endpoint_core& fresh);

  void check_welcome(const endpoint_core& fresh, const peer_address& to) const;

  /// For addressed endpoints: waits for the pieces in flight (see `may_close`), then tells the source.
  void notify_goodbye(endpoint_core& endpoint) noexcept;

  // ---- reading ------------------------------------------------------------------------------------------

  void drive() noexcept;

  /// Closing a connection ends its pieces in flight. An addressed peer may still be writing to this process's
  /// memory (`shm`): the queue lets it finish unless it is silent.
  [[nodiscard]] bool may_close(const endpoint_core& endpoint, clock::time_point now) const noexcept;

  /// Requests pieces, as far as the limits permit.
  void pump(endpoint_core& endpoint) noexcept;

  void read_cq(::fid_cq& cq) noexcept;

  void complete(void* context, std::size_t bytes, int error_number, int provider_error) noexcept;

  [[nodiscard]] completion_status status_of(int error_number, int provider_error) const noexcept;

  void read_eq() noexcept;

  /// Stores the source's welcome; providers may append zeros.
  static void take_welcome(endpoint_core& endpoint, std::span<const std::byte> data) noexcept;

  [[nodiscard]] std::string describe_problem(const ::fi_eq_err_entry& problem) const noexcept;

  [[nodiscard]] endpoint_core* find(const ::fid* which) noexcept;

  /// Closes the endpoint first, so that no byte arrives later; then takes the completions that had arrived,
  /// and ends the other reads. What the provider keeps for reads in flight belongs to the completion queue,
  /// which is closed too: `tcp` of libfabric 1.17 would use it twice, for reads of other endpoints.
  void close_endpoint(endpoint_core& endpoint, completion_status why) noexcept;

  /// Keeps the endpoint of a silent peer until the process ends, because it can be neither closed nor
  /// cancelled. Nobody reads its completion queue, without which `crashes_on_close` providers move no bytes.
  static void abandon(endpoint_core& endpoint) noexcept;

  void release(posted_read& read, completion_status status) noexcept;

  const provider& provider_;
  std::uint64_t piece_bytes_;
  std::size_t pieces_in_flight_;
  duration peer_timeout_;
  std::string advertised_host_;
  read_ledger ledger_;
  waiter waiter_;
  std::deque<std::unique_ptr<endpoint_operations>> closed_;
  unique_fid<::fid_eq> eq_;
  std::array<::fi_cq_msg_entry, 32> entries_{};
  std::vector<posted_read> reads_;
  std::vector<posted_read*> free_;
  std::vector<endpoint_core*> endpoints_;
};

inline endpoint_core::~endpoint_core() {
  owner_->detach(*this);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/libfabric/impl/queue.ipp"
#endif
