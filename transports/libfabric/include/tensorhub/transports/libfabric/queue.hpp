#pragma once
/// \file queue.hpp
/// The reading side: queues, and the endpoints on them.
///
/// All work is done by the thread that polls: it drives the provider's completion queue (and event queue,
/// where endpoints are connected), cuts posted reads into pieces and keeps a bounded number of them in
/// flight. A queue has a completion queue of its own (and each addressed endpoint), an endpoint of ours is a
/// provider's endpoint of its own: closing it is what guarantees that no byte comes afterwards.
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
  endpoint_core* through = nullptr;  ///< null: this entry is free
  completion_status status = completion_status::ok;
};

struct piece : operation {
  endpoint_core* owner = nullptr;
  posted_read* read = nullptr;  ///< null: not in flight
  std::uint64_t bytes = 0;
  piece() noexcept : operation{operation_kind::piece} {}
};

/// What the provider may still point to after an endpoint is closed: kept by the queue for a while.
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
  /// Of the source object at the other end.
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

  unique_fid<::fid_cq> own_cq_{};  ///< of addressed endpoints: one that is not driven does nothing
  addressed_endpoint fids_{};      ///< `peers` is empty on connected endpoints
  ::fi_addr_t room_ = FI_ADDR_UNSPEC;
  std::unique_ptr<endpoint_operations> operations_ = std::make_unique<endpoint_operations>();
  std::vector<posted_read*> waiting_;  ///< ring: not yet wholly asked for
  std::size_t waiting_first_ = 0;
  std::size_t waiting_count_ = 0;
  std::size_t in_flight_ = 0;
  clock::time_point last_progress_{};
};

class queue_core {
 public:
  queue_core(const provider& through, const libfabric_options& options, std::size_t depth);
  queue_core(const queue_core&) = delete;
  queue_core& operator=(const queue_core&) = delete;

  [[nodiscard]] std::size_t outstanding() const noexcept { return ledger_.outstanding(); }

  /// Throws `transport_failed` or `timed_out`.
  [[nodiscard]] std::unique_ptr<endpoint_core> connect(const peer_address& to, const std::string& capability,
                                                       incarnation self, incarnation peer,
                                                       clock::time_point until);

  /// The user destroys the endpoint.
  void detach(endpoint_core& endpoint) noexcept;

  [[nodiscard]] post_result post(endpoint_core& endpoint, const posted_read& read) noexcept;

  /// A read that ends before it was asked for.
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

  void send_letter(endpoint_core& fresh, ::fi_addr_t address, const peer_address& to,
                   clock::time_point until);

  /// True when `holds()` does, false at the time-out; throws when the endpoint breaks.
  template <typename Predicate>
  [[nodiscard]] bool drive_until(endpoint_core& fresh, clock::time_point until, Predicate&& holds) {
    for (;;) {
      drive();
      if (holds()) return true;
      if (fresh.state_ != endpoint_core::state::connecting)
        fail(fresh.refusal_.empty() ? "the connection broke while it was made" : fresh.refusal_);
      const auto now = clock::now();
      if (now >= until) return false;
      if (waiter_.may_sleep()) waiter_.sleep(until - now, true, !through_.connected());
    }
  }

  void check_welcome(const endpoint_core& fresh, const peer_address& to) const;

  /// Addressed endpoints: what is in flight is waited for (see `may_be_buried`), then the source is told.
  void say_goodbye(endpoint_core& endpoint) noexcept;

  // ---- reading ------------------------------------------------------------------------------------------

  void drive() noexcept;

  /// Closing a connection ends what is in flight on it. An addressed peer may still be writing to our memory
  /// (`shm`): unless it is silent, it is let finish.
  [[nodiscard]] bool may_be_buried(const endpoint_core& endpoint, clock::time_point now) const noexcept;

  /// Asks for pieces, as far as there is room.
  void pump(endpoint_core& endpoint) noexcept;

  void read_cq(::fid_cq& cq) noexcept;

  void complete(void* context, std::size_t bytes, int error_number, int provider_error) noexcept;

  [[nodiscard]] completion_status status_of(int error_number, int provider_error) const noexcept;

  void read_eq() noexcept;

  /// Whatever the source said; providers may append zeroes.
  static void take_welcome(endpoint_core& endpoint, std::span<const std::byte> data) noexcept;

  [[nodiscard]] std::string describe_problem(const ::fi_eq_err_entry& problem) const noexcept;

  [[nodiscard]] endpoint_core* find(const ::fid* which) noexcept;

  /// Closes the endpoint first, so that no byte comes later; takes what had come; ends the rest.
  void bury(endpoint_core& endpoint, completion_status why) noexcept;

  /// What is left of a silent peer's endpoint, where it can neither be closed nor be told to cancel: it stays
  /// until the process ends. Nobody drives it, so that nothing comes of it.
  static void abandon(endpoint_core& endpoint) noexcept;

  void release(posted_read& read, completion_status status) noexcept;

  const provider& through_;
  std::uint64_t piece_bytes_;
  std::size_t pieces_in_flight_;
  duration peer_timeout_;
  read_ledger ledger_;
  waiter waiter_;
  std::deque<std::unique_ptr<endpoint_operations>> closed_;  ///< before the queue that may point to it
  unique_fid<::fid_cq> cq_;
  unique_fid<::fid_eq> eq_;
  std::array<::fi_cq_msg_entry, 32> entries_{};
  std::size_t in_flight_ = 0;
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
