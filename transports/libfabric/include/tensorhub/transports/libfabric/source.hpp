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

#include <algorithm>
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
#include <unordered_set>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/peer_read.hpp"
#include "tensorhub/transports/libfabric/fid.hpp"
#include "tensorhub/transports/libfabric/message.hpp"
#include "tensorhub/transports/libfabric/options.hpp"
#include "tensorhub/transports/libfabric/protocol.hpp"
#include "tensorhub/transports/libfabric/provider.hpp"
#include "tensorhub/transports/libfabric/waiter.hpp"
#include "tensorhub/types/capability.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

class source {
 public:
  source(const provider& through, const libfabric_options& options, incarnation self, std::uint64_t nonce)
      : through_{through},
        max_connections_{options.max_connections},
        self_{self},
        nonce_{nonce},
        waiter_{through.fabric()},
        cq_{open_cq(through.domain(), cq_entries, through.connected(), waiter_, through.description())} {
    if (through.connected())
      listen(options);
    else
      open_door();
    address_ = {through_.name(), through_.connected(),
                advertised(through_.connected() ? through_.address_of(*listener_)
                                                : through_.address_of(*door_.endpoint),
                           options.advertised_host)};
    thread_ = std::jthread{[this] { run(); }};
  }
  ~source() {
    stopping_ = true;
    waiter_.wake();
    thread_.join();
    for (served& each : served_) close(each);
  }
  source(const source&) = delete;
  source& operator=(const source&) = delete;

  [[nodiscard]] const peer_address& address() const noexcept { return address_; }

  /// Closes what comes from this reader, and refuses it from now on.
  void cut_off(incarnation reader) noexcept {
    exclusively([&] {
      try {
        refused_.insert(reader);
      } catch (...) {  // without memory to remember one name, refuse everybody
        refuse_all_ = true;
      }
      close_if([reader](const served& each) { return each.reader == reader; });
    });
  }

  /// Only readers with a capability of this key from now on; whoever is there already has to come again.
  void require_capability(std::span<const std::byte> key) {
    exclusively([&] {
      capabilities_.require(key);
      close_if([](const served&) { return true; });
    });
  }
  [[nodiscard]] std::uint64_t refused_connections() const noexcept { return refused_connections_.load(); }

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

  void check(const char* step, std::int64_t result) const {
    if (result != 0) fail(through_.description() + ": " + step + ": " + reason(result));
  }

  void listen(const libfabric_options& options) {
    eq_ = open_eq(through_.fabric(), waiter_, through_.description());
    const auto check_listening = [&](int result) {
      if (result != 0)
        fail(through_.description() + ": cannot listen at " + options.listen_host + ":" +
             std::to_string(options.listen_port) +
             " (libfabric_options::listen_host, listen_port): " + reason(result));
    };
    ::fid_pep* listener = nullptr;
    check_listening(::fi_passive_ep(through_.fabric(), through_.listening_info(), &listener, nullptr));
    listener_.reset(listener);
    check("a listening endpoint takes no event queue", ::fi_pep_bind(listener, &eq_->fid, 0));
    check_listening(::fi_listen(listener));
    std::size_t data_bytes = 0;
    std::size_t size = sizeof data_bytes;
    if (::fi_getopt(&listener->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &data_bytes, &size) == 0 &&
        data_bytes < hello_bytes)
      fail(through_.description() + ": connection requests carry " + std::to_string(data_bytes) + " bytes; " +
           std::to_string(hello_bytes) + " are needed: set libfabric_options::endpoint_type to addressed");
  }

  /// The door is in a domain of its own, in which no memory is registered for peers.
  void open_door() {
    door_domain_ = through_.open_domain();
    door_cq_ = open_cq(door_domain_.get(), cq_entries, false, waiter_, through_.description());
    for (std::size_t i = 0; i < door_letters; ++i)
      door_inbox_.push_back(std::make_unique<message>(through_, door_domain_.get()));
    door_ = addressed_endpoint{through_, door_domain_.get(), through_.listening_info(), door_cq_.get()};
    for (const auto& each : door_inbox_)
      check("nothing can be received", each->receive(door_.endpoint.get()));
  }

  [[nodiscard]] static raw_address advertised(raw_address own, const std::string& host) {
    if (host.empty()) return own;
    if (own.format == FI_SOCKADDR_IN && own.bytes.size() == sizeof(sockaddr_in)) {
      sockaddr_in in{};
      std::memcpy(&in, own.bytes.data(), sizeof in);
      if (::inet_pton(AF_INET, host.c_str(), &in.sin_addr) == 1) {
        std::memcpy(own.bytes.data(), &in, sizeof in);
        return own;
      }
    }
    if (own.format == FI_SOCKADDR_IN6 && own.bytes.size() == sizeof(sockaddr_in6)) {
      sockaddr_in6 in{};
      std::memcpy(&in, own.bytes.data(), sizeof in);
      if (::inet_pton(AF_INET6, host.c_str(), &in.sin6_addr) == 1) {
        std::memcpy(own.bytes.data(), &in, sizeof in);
        return own;
      }
    }
    throw error(errc::invalid_argument,
                "libfabric: advertised_host '" + host +
                    "' is no numeric address of the kind that the provider listens at");
  }

  // ---- the thread ---------------------------------------------------------------------------------------

  void run() noexcept {
    while (!stopping_) {
      for (auto visitors = visitors_.load(); visitors != 0; visitors = visitors_.load())
        visitors_.wait(visitors);
      bool at_rest = false;
      bool expected = false;
      bool retrying = false;
      {
        const std::lock_guard lock{mutex_};
        work();
        retrying = std::ranges::any_of(answers_, [](const answer& each) { return !each.posted; });
        expected = !served_.empty() || !answers_.empty();
        at_rest = waiter_.may_sleep();
      }
      if (at_rest && !stopping_) waiter_.sleep(sweep_interval, expected, retrying);
    }
  }

  void work() noexcept {
    const detail::peer_read reading;
    const auto now = clock::now();
    read_cq(cq_.get());
    for (const served& each : served_) {
      if (each.own_cq) read_cq(each.own_cq.get());
    }
    if (through_.connected()) {
      read_eq(now);
    } else {
      read_cq(door_cq_.get());
      take_letters(now);
      send_answers(now);
    }
    if (now >= next_sweep_) {
      next_sweep_ = now + sweep_interval;
      close_if([now](const served& each) { return !each.greeted && now - each.opened > greeting_timeout; });
      std::erase_if(parked_, [now](const parked& each) { return now > each.until; });
    }
  }

  void read_cq(::fid_cq* cq) noexcept {
    for (;;) {
      const auto count = ::fi_cq_read(cq, entries_.data(), entries_.size());
      if (count > 0) {
        waiter_.progress_seen();
        for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
          complete(entries_[i].op_context, entries_[i].len, 0);
        if (static_cast<std::size_t>(count) < entries_.size()) return;
      } else if (count == -FI_EAVAIL) {
        ::fi_cq_err_entry problem{};
        if (::fi_cq_readerr(cq, &problem, 0) <= 0) return;
        complete(problem.op_context, problem.len, problem.err);
      } else {
        return;
      }
    }
  }
  static void complete(void* context, std::size_t bytes, int error_number) noexcept {
    if (context == nullptr) return;
    operation* const done = operation::from(context);
    if (done->kind == operation_kind::letter) static_cast<message*>(done)->complete(bytes, error_number);
  }

  // ---- connected readers --------------------------------------------------------------------------------

  void read_eq(clock::time_point now) noexcept {
    connection_event event;
    for (;;) {
      const auto bytes = event.read(eq_.get());
      if (bytes == -FI_EAVAIL) {
        ::fi_eq_err_entry problem;
        if (!event.read_error(eq_.get(), problem)) return;
        close_if([&](const served& each) { return is(each, problem.fid); });
        continue;
      }
      if (bytes < 0) return;
      waiter_.progress_seen();
      if (event.kind() == FI_CONNREQ) {
        const unique_info request{event.info()};
        admit(*request, event.data(), now);
      } else if (event.kind() == FI_CONNECTED) {
        for (served& each : served_) each.greeted = each.greeted || is(each, event.about());
      } else if (event.kind() == FI_SHUTDOWN) {
        close_if([&](const served& each) { return is(each, event.about()); });
      }
    }
  }

  [[nodiscard]] static bool is(const served& each, const ::fid* which) noexcept {
    return each.fids.endpoint != nullptr && &each.fids.endpoint->fid == which;
  }

  void admit(::fi_info& request, std::span<const std::byte> data, clock::time_point now) noexcept {
    hello greeting{.magic = 0};
    if (data.size() >= hello_bytes) std::memcpy(static_cast<void*>(&greeting), data.data(), hello_bytes);
    welcome reply = judged(greeting);
    if (reply.status == welcome_status::accepted) {
      try {
        accept(request, greeting, reply, now);
        return;
      } catch (...) {  // no memory, no descriptors: the reader is turned away
        reply.status = welcome_status::full;
      }
    }
    static_cast<void>(::fi_reject(listener_.get(), request.handle, &reply, sizeof reply));
  }

  void accept(::fi_info& request, const hello& greeting, const welcome& reply, clock::time_point now) {
    served fresh;
    fresh.reader = {greeting.reader};
    fresh.opened = now;
    ::fid_ep* opened = nullptr;
    check("no endpoint", ::fi_endpoint(through_.domain(), &request, &opened, nullptr));
    fresh.fids.endpoint.reset(opened);
    check("an endpoint takes no event queue", ::fi_ep_bind(opened, &eq_->fid, 0));
    check("an endpoint takes no completion queue", ::fi_ep_bind(opened, &cq_->fid, FI_TRANSMIT | FI_RECV));
    check("an endpoint cannot be enabled", ::fi_enable(opened));
    served_.push_back(std::move(fresh));
    if (const int result = ::fi_accept(opened, &reply, sizeof reply); result != 0) {
      served_.pop_back();  // the handle went with the endpoint
    }
  }

  [[nodiscard]] welcome judged(const hello& greeting) noexcept {
    welcome reply;
    reply.source = self_.value;
    reply.nonce = nonce_;
    reply.status = greeting.magic != hello_magic || greeting.protocol != data_protocol
                       ? welcome_status::other_protocol
                   : greeting.source != self_.value ? welcome_status::other_process
                   : refuse_all_ || refused_.contains(incarnation{greeting.reader}) ? welcome_status::refused
                   : served_.size() >= max_connections_                             ? welcome_status::full
                                                        : welcome_status::accepted;
    if (reply.status == welcome_status::accepted &&
        !capabilities_.accepts(greeting.capability, {greeting.reader}, self_)) {
      refused_connections_.fetch_add(1);
      reply.status = welcome_status::no_capability;
    }
    return reply;
  }

  // ---- addressed readers --------------------------------------------------------------------------------

  void take_letters(clock::time_point now) noexcept {
    for (const auto& each : door_inbox_) {
      if (each->busy) continue;
      if (each->holds_letter(hello_magic)) {
        try {
          open_room(each->content, now);
        } catch (...) {  // no memory, no endpoint: the reader hears nothing and asks again, or gives up
        }
      }
      each->result = 0;
      static_cast<void>(each->receive(door_.endpoint.get()));
    }
    for (served& room : served_) {
      for (const auto& each : room.inbox) {
        if (each->busy) continue;
        if (each->holds_letter(knock_magic)) room.greeted = true;
        if (each->holds_letter(goodbye_magic)) room.reader = {};
        each->result = 0;
        static_cast<void>(each->receive(room.fids.endpoint.get()));
      }
    }
    close_if([](const served& each) { return !each.reader; });
  }

  void open_room(const letter& came, clock::time_point now) {
    if (answers_.size() >= max_connections_) return;
    answer reply{std::make_unique<message>(through_, door_domain_.get()), FI_ADDR_NOTAVAIL, now, false};
    letter& out = reply.out->content;
    out.from_source = judged(came.from_reader);
    out.ticket = came.ticket;
    if (out.from_source.status == welcome_status::accepted) {
      served room;
      room.reader = {came.from_reader.reader};
      room.opened = now;
      room.inbox.push_back(std::make_unique<message>(through_, through_.domain()));
      room.inbox.push_back(std::make_unique<message>(through_, through_.domain()));
      if (through_.closes_late())
        room.own_cq = open_cq(through_.domain(), cq_entries, false, waiter_, through_.description());
      room.fids = addressed_endpoint{through_, through_.domain(), through_.own_info(),
                                     room.own_cq ? room.own_cq.get() : cq_.get()};
      for (const auto& each : room.inbox)
        check("nothing can be received", each->receive(room.fids.endpoint.get()));
      reply.out->write_address(through_.address_of(*room.fids.endpoint));
      served_.push_back(std::move(room));
    }
    reply.to = door_.insert(came.address.data());
    if (reply.to != FI_ADDR_NOTAVAIL) answers_.push_back(std::move(reply));
  }

  /// A reader's address is forgotten some time after its answer has left.
  void send_answers(clock::time_point now) noexcept {
    for (auto each = answers_.begin(); each != answers_.end();) {
      if (!each->posted) {
        const int result = each->out->send(door_.endpoint.get(), each->to);
        each->posted = result == 0;
        if (result != 0 && result != -FI_EAGAIN) each->since = now - 2 * greeting_timeout;
      }
      const auto age = now - each->since;
      if (!each->out->busy && (each->posted ? age > answer_keep : age > greeting_timeout)) {
        door_.remove(each->to);
        each = answers_.erase(each);
      } else {
        ++each;
      }
    }
  }

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
  void close(served& each) noexcept {
    if (through_.closes_late()) {
      try {
        parked_.push_back({std::move(each), clock::now() + parking_time});
      } catch (...) {  // no memory to keep it by: it is closed now
      }
      return;
    }
    if (through_.connected() && each.fids.endpoint)
      static_cast<void>(::fi_shutdown(each.fids.endpoint.get(), 0));
    each.fids.endpoint.reset();
    read_cq(cq_.get());
    each.fids.peers.reset();
    if (each.inbox.empty()) return;
    try {
      closed_.push_back(std::move(each.inbox));
      if (closed_.size() > remembered_closings) closed_.pop_front();
    } catch (...) {  // no memory to keep them by: they stay where the provider may point to
      for (auto& one : each.inbox) static_cast<void>(one.release());
    }
  }

  const provider& through_;
  std::size_t max_connections_;
  incarnation self_;
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
  std::unordered_set<incarnation> refused_;
  bool refuse_all_ = false;
  capability_check capabilities_;  ///< guarded by mutex_
  std::atomic<std::uint64_t> refused_connections_ = 0;
  std::atomic<bool> stopping_ = false;
  std::jthread thread_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail
