#pragma once
/// \file queue.ipp
/// Definitions of queue.hpp.

#include <algorithm>
#include <cstdlib>
#include <list>
#include <mutex>
#include <utility>

#include "tensorhub/detail/random_id.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/transports/libfabric/queue.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

TENSORHUB_DECL void endpoint_core::mark_broken(const std::string& why) noexcept {
  if (state_ == state::connecting) {
    try {
      refusal_ = why;
    } catch (...) {  // without memory there is no sentence
    }
  }
  if (state_ != state::closed) state_ = state::broken;
}

TENSORHUB_DECL queue_core::queue_core(const provider& chosen, const libfabric_options& options,
                                      std::size_t depth)
    : provider_{chosen},
      piece_bytes_{std::max<std::uint64_t>(1, std::min(options.piece_bytes, chosen.max_message_bytes()))},
      pieces_in_flight_{std::clamp<std::size_t>(options.pieces_in_flight, 1, cq_entries / 2)},
      peer_timeout_{tensorhub::detail::bounded(options.peer_timeout)},
      advertised_host_{options.advertised_host},
      ledger_{depth},
      waiter_{chosen.fabric()},
      reads_(ledger_.depth()) {
  if (chosen.connected()) eq_ = open_eq(chosen.fabric(), waiter_, chosen.description());
  for (posted_read& each : reads_) free_.push_back(&each);
}

TENSORHUB_DECL std::unique_ptr<endpoint_core> queue_core::connect(const peer_address& to,
                                                                  const std::string& capability,
                                                                  incarnation self, incarnation peer,
                                                                  clock::time_point until) {
  auto fresh = std::make_unique<endpoint_core>(*this, peer);
  fresh->waiting_.resize(ledger_.depth());
  for (std::size_t i = 0; i < pieces_in_flight_; ++i)
    fresh->operations_->pieces.emplace_back().owner = fresh.get();
  endpoints_.push_back(fresh.get());
  hello greeting;
  greeting.reader = self.value;
  greeting.source = peer.value;
  if (capability.size() == greeting.capability.size())
    std::memcpy(greeting.capability.data(), capability.data(), greeting.capability.size());
  if (to.connected)
    connect_connected(*fresh, to, greeting, until);
  else
    connect_addressed(*fresh, to, greeting, until);
  require_unbroken(*fresh);
  fresh->nonce_ = fresh->welcome_.nonce;
  fresh->state_ = endpoint_core::state::ready;
  return fresh;
}

TENSORHUB_DECL void queue_core::detach(endpoint_core& endpoint) noexcept {
  if (!provider_.connected()) notify_goodbye(endpoint);
  close_endpoint(endpoint, completion_status::cancelled);
  std::erase(endpoints_, &endpoint);
}

TENSORHUB_DECL post_result queue_core::post(endpoint_core& endpoint, const posted_read& read) noexcept {
  if (ledger_.full()) return post_result::queue_full;
  ledger_.begin();
  if (!endpoint.usable()) {
    ledger_.end({read.id, completion_status::peer_lost});
    return post_result::posted;
  }
  if (read.bytes == 0) {
    ledger_.end({read.id, completion_status::ok});
    return post_result::posted;
  }
  posted_read* const entry = free_.back();
  free_.pop_back();
  *entry = read;
  entry->endpoint = &endpoint;
  if (!endpoint.has_work()) endpoint.last_progress_ = clock::now();
  endpoint.waiting_[(endpoint.waiting_first_ + endpoint.waiting_count_++) % endpoint.waiting_.size()] = entry;
  provider_.drive([&] { pump(endpoint); });
  return post_result::posted;
}

TENSORHUB_DECL std::size_t queue_core::poll(std::span<completion> completions) noexcept {
  if (completions.empty()) return 0;
  if (!ledger_.any_ended()) provider_.drive([this] { drive(); });
  return ledger_.take(completions);
}

TENSORHUB_DECL void queue_core::wait(duration timeout) noexcept {
  if (ledger_.any_ended()) return;
  duration longest = timeout;
  bool expected = false;
  bool starved = false;
  const auto now = clock::now();
  for (const endpoint_core* each : endpoints_) {
    if (may_close(*each, now)) return;
    if (!each->has_work()) continue;
    expected = true;
    starved = starved || each->in_flight_ == 0;
    longest = std::min<duration>(longest, each->last_progress_ + peer_timeout_ - now);
  }
  if (waiter_.may_sleep()) waiter_.sleep(longest, expected, starved);
}

TENSORHUB_DECL void queue_core::connect_connected(endpoint_core& fresh, const peer_address& to,
                                                  const hello& greeting, clock::time_point until) {
  const auto check = [this](const char* step, std::int64_t result) {
    if (result != 0) fail(provider_.description() + ": " + step + ": " + reason(result));
  };
  if (!provider_.takes(to.raw.bytes))
    fail(to.readable() + " is not an address of " + provider_.description());
  const unique_info info{::fi_dupinfo(provider_.own_info())};
  if (!info) fail(provider_.description() + ": no memory");
  ::free(info->dest_addr);
  info->dest_addr = ::malloc(to.raw.bytes.size());
  if (info->dest_addr == nullptr) fail(provider_.description() + ": no memory");
  info->dest_addrlen = to.raw.bytes.size();
  std::memcpy(info->dest_addr, to.raw.bytes.data(), to.raw.bytes.size());
  fresh.cq_ = open_cq(provider_.domain(), cq_entries, true, waiter_, provider_.description());
  ::fid_ep* opened = nullptr;
  check("no endpoint", ::fi_endpoint(provider_.domain(), info.get(), &opened, nullptr));
  fresh.fids_.endpoint.reset(opened);
  check("an endpoint takes no event queue", ::fi_ep_bind(opened, &eq_->fid, 0));
  check("an endpoint takes no completion queue",
        ::fi_ep_bind(opened, &fresh.cq_->fid, FI_TRANSMIT | FI_RECV));
  check("an endpoint cannot be enabled", ::fi_enable(opened));
  const auto result = ::fi_connect(opened, to.raw.bytes.data(), &greeting, hello_bytes);
  if (result != 0) fail(to.readable() + " cannot be connected to: " + reason(result));
  // A connection without a welcome leads to another program, which sends nothing more.
  if (!drive_until(fresh, until, [&] { return fresh.welcomed_ || fresh.connected_; }))
    throw error(errc::timed_out, "libfabric: " + to.readable() + " did not answer in time");
  check_welcome(fresh, to);
}

TENSORHUB_DECL void queue_core::connect_addressed(endpoint_core& fresh, const peer_address& to,
                                                  const hello& greeting, clock::time_point until) {
  fresh.cq_ = open_cq(provider_.domain(), cq_entries, false, waiter_, provider_.description());
  fresh.fids_ = addressed_endpoint{provider_, provider_.domain(), provider_.own_info(), fresh.cq_.get()};
  fresh.fids_.own_address = advertised(std::move(fresh.fids_.own_address), advertised_host_);
  ::fid_ep* const own = fresh.fids_.endpoint.get();
  endpoint_operations& messages = *fresh.operations_;
  messages.outgoing = std::make_unique<message>(provider_, provider_.domain());
  messages.incoming = std::make_unique<message>(provider_, provider_.domain());
  const std::uint64_t ticket = detail::random_number();
  const ::fi_addr_t greeting_address = fresh.fids_.insert(to.raw.bytes);
  if (greeting_address == FI_ADDR_NOTAVAIL)
    fail(to.readable() + " is not an address of " + provider_.description());
  if (const int result = messages.incoming->receive(own); result != 0)
    fail(provider_.description() + ": nothing can be received: " + reason(result));
  datagram& out = messages.outgoing->content;
  out.from_reader = greeting;
  out.ticket = ticket;
  messages.outgoing->write_address(fresh.fids_.own_address);
  send_message(fresh, greeting_address, to, until);

  const datagram& in = messages.incoming->content;
  if (!drive_until(fresh, until, [&] { return !messages.incoming->busy; }))
    throw error(errc::timed_out, "libfabric: " + to.readable() + " did not answer in time");
  if (!messages.incoming->holds(welcome_magic) || in.ticket != ticket)
    fail(to.readable() + " is not a TensorHub data port: its answer is not a welcome");
  fresh.welcome_ = in.from_source;
  check_welcome(fresh, to);
  fresh.serving_address_ = fresh.fids_.insert(messages.incoming->address());
  if (fresh.serving_address_ == FI_ADDR_NOTAVAIL) fail(to.readable() + " sent an invalid endpoint address");
  out.magic = ready_magic;
  send_message(fresh, fresh.serving_address_, to, until);
}

TENSORHUB_DECL void queue_core::send_message(endpoint_core& fresh, ::fi_addr_t address,
                                             const peer_address& to, clock::time_point until) {
  message& out = *fresh.operations_->outgoing;
  int result = -FI_EAGAIN;
  const bool posted = drive_until(fresh, until, [&] {
    result = out.send(fresh.fids_.endpoint.get(), address);
    return result != -FI_EAGAIN;
  });
  if (result != 0 && result != -FI_EAGAIN) fail(to.readable() + " cannot be reached: " + reason(result));
  if (!posted || !drive_until(fresh, until, [&] { return !out.busy; }))
    throw error(errc::timed_out, "libfabric: " + to.readable() + " cannot be reached in time");
  if (out.result != 0) fail(to.readable() + " cannot be reached: " + reason(out.result));
}

TENSORHUB_DECL void queue_core::require_unbroken(const endpoint_core& fresh) {
  if (fresh.state_ != endpoint_core::state::connecting)
    fail(fresh.refusal_.empty() ? "the connection broke while it was being made" : fresh.refusal_);
}

TENSORHUB_DECL void queue_core::check_welcome(const endpoint_core& fresh, const peer_address& to) const {
  const welcome& answer = fresh.welcome_;
  const auto refuse = [&](const std::string& why) { fail(to.readable() + " " + why); };
  if (answer.magic != welcome_magic) refuse("is not a TensorHub data port");
  if (answer.status == welcome_status::full)
    refuse("has as many connections as it takes (its option max_connections)");
  const std::string why = detail::why_refused(answer, data_protocol, fresh.peer());
  if (!why.empty()) refuse(why);
}

TENSORHUB_DECL void queue_core::notify_goodbye(endpoint_core& endpoint) noexcept {
  endpoint.waiting_count_ = 0;
  message* const out = endpoint.operations_ ? endpoint.operations_->outgoing.get() : nullptr;
  if (out == nullptr || endpoint.serving_address_ == FI_ADDR_UNSPEC) return;
  const auto until = clock::now() + std::max<duration>(peer_timeout_, goodbye_timeout);
  while (endpoint.state_ != endpoint_core::state::closed && endpoint.in_flight_ > 0 && clock::now() < until) {
    drive();
    waiter_.sleep(until - clock::now(), true, true);
  }
  if (!endpoint.usable() || out->busy) return;
  out->content.magic = goodbye_magic;
  const auto goodbye_until = clock::now() + goodbye_timeout;
  int result = -FI_EAGAIN;
  while (clock::now() < goodbye_until && endpoint.usable()) {
    if (result == -FI_EAGAIN) result = out->send(endpoint.fids_.endpoint.get(), endpoint.serving_address_);
    drive();
    if ((result == 0 && !out->busy) || (result != 0 && result != -FI_EAGAIN)) return;
  }
}

TENSORHUB_DECL void queue_core::drive() noexcept {
  for (const endpoint_core* each : endpoints_) {
    if (each->cq_) read_cq(*each->cq_);
  }
  read_eq();
  const auto now = clock::now();
  for (endpoint_core* const each : endpoints_) {
    if (each->state_ != endpoint_core::state::ready) continue;
    if (each->waiting_count_ > 0) pump(*each);
    if (each->has_work() && now - each->last_progress_ > peer_timeout_) each->mark_broken({});
  }
  // By index: while a broken endpoint is closed, others may break.
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    if (may_close(*endpoints_[i], now)) close_endpoint(*endpoints_[i], completion_status::peer_lost);
  }
}

TENSORHUB_DECL bool queue_core::may_close(const endpoint_core& endpoint,
                                          clock::time_point now) const noexcept {
  return endpoint.state_ == endpoint_core::state::broken &&
         (provider_.connected() || endpoint.in_flight_ == 0 || now - endpoint.last_progress_ > peer_timeout_);
}

TENSORHUB_DECL void queue_core::pump(endpoint_core& endpoint) noexcept {
  while (endpoint.waiting_count_ > 0 && endpoint.in_flight_ < pieces_in_flight_ &&
         endpoint.state_ == endpoint_core::state::ready) {
    posted_read& read = *endpoint.waiting_[endpoint.waiting_first_];
    const auto slot = detail::find(endpoint.operations_->pieces, nullptr, &piece::read);
    const std::uint64_t target = read.into_offset + read.asked_bytes;
    const std::uint64_t source = read.from_offset + read.asked_bytes;
    const std::uint64_t part = source / read.key.part_bytes;
    const std::uint64_t in_part = source % read.key.part_bytes;
    const std::uint64_t bytes =
        std::min({piece_bytes_, read.bytes - read.asked_bytes, read.key.part_bytes - in_part,
                  read.into->descriptor_reach(target)});
    const std::uint64_t address = read.key.start == 0 ? in_part : read.key.start + source;
    const auto result = ::fi_read(endpoint.fids_.endpoint.get(), read.into->range.data + target, bytes,
                                  read.into->descriptor_at(target), endpoint.serving_address_, address,
                                  read.key.key_of(part), &slot->context);
    if (result == -FI_EAGAIN) return;
    if (result != 0) {
      read.status = status_of(static_cast<int>(-result), 0);
      endpoint.mark_broken({});
      return;
    }
    slot->read = &read;
    slot->bytes = bytes;
    if (endpoint.in_flight_++ == 0) endpoint.last_progress_ = clock::now();
    read.asked_bytes += bytes;
    if (read.asked_bytes == read.bytes) {
      endpoint.waiting_first_ = (endpoint.waiting_first_ + 1) % endpoint.waiting_.size();
      --endpoint.waiting_count_;
    }
  }
}

TENSORHUB_DECL void queue_core::read_cq(::fid_cq& cq) noexcept {
  for (;;) {
    const auto count = ::fi_cq_read(&cq, entries_.data(), entries_.size());
    if (count > 0) {
      waiter_.progress_seen();
      for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
        complete(entries_[i].op_context, entries_[i].len, 0, 0);
      if (static_cast<std::size_t>(count) < entries_.size()) return;
    } else if (count == -FI_EAVAIL) {
      ::fi_cq_err_entry problem{};
      if (::fi_cq_readerr(&cq, &problem, 0) <= 0) return;
      complete(problem.op_context, problem.len, problem.err, problem.prov_errno);
    } else {
      return;
    }
  }
}

TENSORHUB_DECL void queue_core::complete(void* context, std::size_t bytes, int error_number,
                                         int provider_error) noexcept {
  if (context == nullptr) return;
  operation* const done = operation::from(context);
  if (done->kind == operation_kind::message) {
    static_cast<message*>(done)->complete(bytes, error_number);
    return;
  }
  piece& part = *static_cast<piece*>(done);
  posted_read* const read = std::exchange(part.read, nullptr);
  if (read == nullptr) return;  // the endpoint is closed
  endpoint_core& endpoint = *part.owner;
  --endpoint.in_flight_;
  endpoint.last_progress_ = clock::now();
  if (error_number != 0) {
    // The first error is the cause; later ones are flushed operations.
    if (endpoint.state_ == endpoint_core::state::ready)
      read->status = status_of(error_number, provider_error);
    endpoint.mark_broken({});
    return;
  }
  read->done_bytes += part.bytes;
  if (read->done_bytes == read->bytes) release(*read, completion_status::ok);
}

TENSORHUB_DECL completion_status queue_core::status_of(int error_number, int provider_error) const noexcept {
  constexpr int verbs_local_protection = 4;
  constexpr int verbs_remote_access = 10;
  const bool by_verbs = provider_.is_verbs();
  if (error_number == FI_EACCES || error_number == FI_EPERM || error_number == FI_EKEYREJECTED ||
      error_number == FI_ENOKEY || (by_verbs && provider_error == verbs_remote_access))
    return completion_status::access_denied;
  if (error_number == FI_EFAULT || (by_verbs && provider_error == verbs_local_protection))
    return completion_status::local_error;
  return completion_status::peer_lost;
}

TENSORHUB_DECL void queue_core::read_eq() noexcept {
  if (!eq_) return;
  connection_event event;
  for (;;) {
    const auto bytes = event.read(eq_.get());
    if (bytes == -FI_EAVAIL) {
      ::fi_eq_err_entry problem;
      if (!event.read_error(eq_.get(), problem)) return;
      if (endpoint_core* const endpoint = find(problem.fid)) {
        if (problem.err_data != nullptr)
          take_welcome(*endpoint, {static_cast<const std::byte*>(problem.err_data), problem.err_data_size});
        endpoint->mark_broken(describe_problem(problem));
      }
      continue;
    }
    if (bytes < 0) return;
    waiter_.progress_seen();
    endpoint_core* const endpoint = find(event.endpoint());
    if (endpoint == nullptr) continue;
    if (event.kind() == FI_CONNECTED) {
      endpoint->connected_ = true;
      take_welcome(*endpoint, event.data());
    }
    if (event.kind() == FI_SHUTDOWN) endpoint->mark_broken("the source closed the connection");
  }
}

TENSORHUB_DECL void queue_core::take_welcome(endpoint_core& endpoint,
                                             std::span<const std::byte> data) noexcept {
  if (endpoint.state_ != endpoint_core::state::connecting || endpoint.welcomed_) return;
  if (data.size() < sizeof endpoint.welcome_) return;
  std::memcpy(&endpoint.welcome_, data.data(), sizeof endpoint.welcome_);
  endpoint.welcomed_ = true;
}

TENSORHUB_DECL std::string queue_core::describe_problem(const ::fi_eq_err_entry& problem) const noexcept {
  try {
    return provider_.description() +
           ": the peer refused the connection or is not there: " + reason(problem.err);
  } catch (...) {
    return {};
  }
}

TENSORHUB_DECL endpoint_core* queue_core::find(const ::fid* which) noexcept {
  const auto found = detail::find_if(endpoints_, [which](const endpoint_core* each) {
    return each->fids_.endpoint != nullptr && &each->fids_.endpoint->fid == which;
  });
  return found == endpoints_.end() ? nullptr : *found;
}

TENSORHUB_DECL void queue_core::close_endpoint(endpoint_core& endpoint, completion_status why) noexcept {
  if (endpoint.state_ == endpoint_core::state::closed) return;
  endpoint.state_ = endpoint_core::state::closed;
  if (endpoint.fids_.endpoint && provider_.connected())
    static_cast<void>(::fi_shutdown(endpoint.fids_.endpoint.get(), 0));
  const message* const message_out = endpoint.operations_->outgoing.get();
  const bool is_busy = endpoint.in_flight_ > 0 || (message_out != nullptr && message_out->busy);
  if (is_busy && provider_.crashes_on_close()) abandon(endpoint);
  endpoint.fids_.endpoint.reset();
  if (endpoint.cq_) {
    read_cq(*endpoint.cq_);
    waiter_.forget(endpoint.cq_->fid);
  }
  endpoint.fids_.peers.reset();
  endpoint.cq_.reset();
  endpoint.in_flight_ = 0;
  if (endpoint.operations_) {
    for (piece& each : endpoint.operations_->pieces) each.read = nullptr;
  }
  endpoint.waiting_count_ = 0;
  for (posted_read& each : reads_) {
    if (each.endpoint == &endpoint) release(each, each.status == completion_status::ok ? why : each.status);
  }
  try {
    if (endpoint.operations_) closed_.push_back(std::move(endpoint.operations_));
    if (closed_.size() > remembered_closings) closed_.pop_front();
  } catch (...) {  // no memory for the list: the operations leak, because the provider may point to them
    static_cast<void>(endpoint.operations_.release());
  }
}

TENSORHUB_DECL void queue_core::abandon(endpoint_core& endpoint) noexcept {
  struct remains {
    ::fid_ep* endpoint;
    ::fid_av* peers;
    ::fid_cq* cq;
    endpoint_operations* operations;
  };
  static std::mutex mutex;
  static auto* const kept =
      new std::list<remains>;  // never destroyed, so that leak checkers find the objects
  const remains left{endpoint.fids_.endpoint.release(), endpoint.fids_.peers.release(),
                     endpoint.cq_.release(), endpoint.operations_.release()};
  try {
    const std::lock_guard lock{mutex};
    kept->push_back(left);
  } catch (...) {  // no memory for the note
  }
}

TENSORHUB_DECL void queue_core::release(posted_read& read, completion_status status) noexcept {
  ledger_.end_written({read.id, status}, read.into->range);
  read.endpoint = nullptr;
  free_.push_back(&read);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail
