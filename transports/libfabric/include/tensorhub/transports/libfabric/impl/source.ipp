#pragma once
/// \file source.ipp
/// Definitions of source.hpp.

#include <algorithm>
#include <mutex>

#include "tensorhub/detail/local_host.hpp"
#include "tensorhub/detail/peer_read.hpp"
#include "tensorhub/detail/started_thread.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/libfabric/source.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

TENSORHUB_DECL source::source(const provider& chosen, const libfabric_options& options, incarnation self,
                              std::uint64_t nonce, const replaceable_ages& ages)
    : provider_{chosen},
      limits_{detail::at_most_half_of_descriptors(options.max_connections),
              chosen.connected() ? ages.connected : ages.addressed},
      advertised_host_{options.advertised_host},
      gate_{self},
      nonce_{nonce},
      waiter_{chosen.fabric()},
      cq_{open_cq(chosen.domain(), cq_entries, chosen.connected(), waiter_, chosen.description())} {
  if (chosen.connected())
    listen(options);
  else
    open_greeting_endpoint();
  address_ = {
      provider_.name(), provider_.connected(),
      advertised(provider_.connected() ? provider_.address_of(*listener_) : greeting_endpoint_.own_address,
                 advertised_host_)};
  thread_ = tensorhub::detail::started_thread("libfabric", [this] { run(); });
}

TENSORHUB_DECL source::~source() {
  stopping_ = true;
  waiter_.wake();
  thread_.join();
  for (served& each : served_) close(each);
}

TENSORHUB_DECL void source::cut_off(incarnation reader) noexcept {
  exclusively([&] {
    gate_.cut_off(reader);
    close_if([reader](const served& each) { return each.reader == reader; });
  });
}

TENSORHUB_DECL void source::rename(incarnation self, incarnation next) noexcept {
  exclusively([&] {
    gate_.rename(self, next);
    close_if([self](const served& each) { return each.source == self; });
  });
}
TENSORHUB_DECL void source::dismiss(incarnation self) noexcept {
  exclusively([&] {
    gate_.dismiss(self);
    close_if([self](const served& each) { return each.source == self; });
  });
}

TENSORHUB_DECL void source::require_capability(std::span<const std::byte> key) {
  exclusively([&] {
    gate_.require_capability(key);
    close_if([](const served&) { return true; });
  });
}

TENSORHUB_DECL void source::check(const char* step, std::int64_t result) const {
  if (result != 0) fail(provider_.description() + ": " + step + ": " + reason(result));
}

TENSORHUB_DECL void source::listen(const libfabric_options& options) {
  eq_ = open_eq(provider_.fabric(), waiter_, provider_.description());
  const auto check_listening = [&](int result) {
    if (result != 0)
      throw listen_error(errc::transport_failed, "libfabric: " + provider_.description() +
                                                     ": cannot listen at " +
                                                     detail::or_loopback(options.listen_host) + ":" +
                                                     std::to_string(options.listen_port) +
                                                     " (listen_host, listen_port): " + reason(result));
  };
  ::fid_pep* listener = nullptr;
  check_listening(::fi_passive_ep(provider_.fabric(), provider_.listening_info(), &listener, nullptr));
  listener_.reset(listener);
  check("a listening endpoint takes no event queue", ::fi_pep_bind(listener, &eq_->fid, 0));
  check_listening(::fi_listen(listener));
  std::size_t data_bytes = 0;
  std::size_t size = sizeof data_bytes;
  if (::fi_getopt(&listener->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &data_bytes, &size) == 0 &&
      data_bytes < hello_bytes)
    fail(provider_.description() + ": connection requests carry " + std::to_string(data_bytes) + " bytes; " +
         std::to_string(hello_bytes) + " are needed: set the option endpoint_type to addressed");
}

TENSORHUB_DECL void source::open_greeting_endpoint() {
  greeting_domain_ = provider_.open_domain();
  greeting_cq_ = open_cq(greeting_domain_.get(), cq_entries, false, waiter_, provider_.description());
  for (std::size_t i = 0; i < greeting_messages; ++i)
    greeting_inbox_.push_back(std::make_unique<message>(provider_, greeting_domain_.get()));
  greeting_endpoint_ =
      addressed_endpoint{provider_, greeting_domain_.get(), provider_.listening_info(), greeting_cq_.get()};
  for (const auto& each : greeting_inbox_)
    check("nothing can be received", each->receive(greeting_endpoint_.endpoint.get()));
}

TENSORHUB_DECL void source::run() noexcept {
  while (!stopping_) {
    bool at_rest = false;
    bool expected = false;
    bool retrying = false;
    {
      const std::lock_guard lock{mutex_};
      provider_.drive([this] { work(); });
      retrying = detail::any_of(answers_, [](const answer& each) { return !each.posted; });
      expected = !served_.empty() || !answers_.empty();
      at_rest = waiter_.may_sleep();
    }
    if (at_rest && !stopping_) waiter_.sleep(sweep_interval, expected, retrying);
  }
}

TENSORHUB_DECL void source::work() noexcept {
  const detail::peer_read reading;
  const auto now = clock::now();
  read_cq(cq_.get());
  for (const served& each : served_) {
    if (each.own_cq) read_cq(each.own_cq.get());
  }
  if (provider_.connected()) {
    read_eq(now);
  } else {
    read_cq(greeting_cq_.get());
    receive_messages(now);
    send_answers(now);
  }
  if (now >= next_sweep_) {
    next_sweep_ = now + sweep_interval;
    close_if([now](const served& each) { return !each.greeted && now - each.opened > greeting_timeout; });
    std::erase_if(parked_, [now](const parked& each) { return now > each.until; });
  }
}

TENSORHUB_DECL void source::read_cq(::fid_cq* cq) noexcept {
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

TENSORHUB_DECL void source::complete(void* context, std::size_t bytes, int error_number) noexcept {
  if (context == nullptr) return;
  operation* const done = operation::from(context);
  if (done->kind == operation_kind::message) static_cast<message*>(done)->complete(bytes, error_number);
}

TENSORHUB_DECL void source::read_eq(clock::time_point now) noexcept {
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
      for (served& each : served_) each.greeted = each.greeted || is(each, event.endpoint());
    } else if (event.kind() == FI_SHUTDOWN) {
      close_if([&](const served& each) { return is(each, event.endpoint()); });
    }
  }
}

TENSORHUB_DECL void source::admit(::fi_info& request, std::span<const std::byte> data,
                                  clock::time_point now) noexcept {
  hello greeting{.magic = 0};
  if (data.size() >= hello_bytes) std::memcpy(static_cast<void*>(&greeting), data.data(), hello_bytes);
  welcome reply = judged(greeting, now);
  if (reply.status == welcome_status::accepted) {
    ::fid_ep* opened = nullptr;
    if (::fi_endpoint(provider_.domain(), &request, &opened, nullptr) == 0)
      return accept(unique_fid<::fid_ep>{opened}, greeting, reply, now);
    reply.status = welcome_status::full;  // no memory, no descriptors
  }
  static_cast<void>(::fi_reject(listener_.get(), request.handle, &reply, sizeof reply));
}

TENSORHUB_DECL void source::accept(unique_fid<::fid_ep> endpoint, const hello& greeting, const welcome& reply,
                                   clock::time_point now) noexcept {
  ::fid_ep* const opened = endpoint.get();
  if (::fi_ep_bind(opened, &eq_->fid, 0) != 0 ||
      ::fi_ep_bind(opened, &cq_->fid, FI_TRANSMIT | FI_RECV) != 0 || ::fi_enable(opened) != 0)
    return;
  try {
    served& fresh = served_.emplace_back();
    fresh.reader = {greeting.reader};
    fresh.source = {greeting.source};
    fresh.opened = now;
    fresh.fids.endpoint = std::move(endpoint);
  } catch (...) {  // no memory
    return;
  }
  if (::fi_accept(opened, &reply, sizeof reply) != 0) served_.pop_back();
}

TENSORHUB_DECL welcome source::judged(const hello& greeting, clock::time_point now) noexcept {
  welcome reply;
  reply.source = gate_.self_for({greeting.source}).value;
  reply.nonce = nonce_;
  if (greeting.magic != hello_magic) {
    reply.status = welcome_status::other_protocol;
    return reply;
  }
  reply.status = detail::status_of<welcome_status>(gate_.judge(greeting, data_protocol));
  if (reply.status == welcome_status::accepted && !has_room(now)) reply.status = welcome_status::full;
  return reply;
}

TENSORHUB_DECL void source::receive_messages(clock::time_point now) noexcept {
  for (const auto& each : greeting_inbox_) {
    if (each->busy) continue;
    if (each->holds(hello_magic)) {
      try {
        answer_hello(*each, now);
      } catch (...) {  // no memory, no endpoint: the reader gets no answer and retries or fails
      }
    }
    each->result = 0;
    static_cast<void>(each->receive(greeting_endpoint_.endpoint.get()));
  }
  for (served& serving : served_) {
    for (const auto& each : serving.inbox) {
      if (each->busy) continue;
      if (each->holds(ready_magic)) serving.greeted = true;
      if (each->holds(goodbye_magic)) serving.reader = {};
      each->result = 0;
      static_cast<void>(each->receive(serving.fids.endpoint.get()));
    }
  }
  close_if([](const served& each) { return !each.reader; });
}

TENSORHUB_DECL void source::answer_hello(const message& came, clock::time_point now) {
  const welcome verdict = judged(came.content.from_reader, now);
  const bool refuses = verdict.status != welcome_status::accepted;
  const auto waiting = detail::count(answers_, refuses, &answer::refuses);
  const std::size_t most = refuses ? most_refusals : limits_.connections;
  if (static_cast<std::size_t>(waiting) >= most || !greeting_endpoint_.takes(came.address())) return;
  answer reply{std::make_unique<message>(provider_, greeting_domain_.get()), FI_ADDR_NOTAVAIL, now};
  reply.refuses = refuses;
  reply.out->content.from_source = verdict;
  reply.out->content.ticket = came.content.ticket;
  if (!refuses) reply.out->write_address(open_reader_endpoint(came.content.from_reader, now));
  reply.to = greeting_endpoint_.insert(came.address());
  if (reply.to != FI_ADDR_NOTAVAIL) answers_.push_back(std::move(reply));
}

TENSORHUB_DECL const raw_address& source::open_reader_endpoint(const hello& greeting, clock::time_point now) {
  served serving;
  serving.reader = {greeting.reader};
  serving.source = {greeting.source};
  serving.opened = now;
  serving.inbox.push_back(std::make_unique<message>(provider_, provider_.domain()));
  serving.inbox.push_back(std::make_unique<message>(provider_, provider_.domain()));
  if (provider_.closes_late())
    serving.own_cq = open_cq(provider_.domain(), cq_entries, false, waiter_, provider_.description());
  serving.fids = addressed_endpoint{provider_, provider_.domain(), provider_.own_info(),
                                    serving.own_cq ? serving.own_cq.get() : cq_.get()};
  serving.fids.own_address = advertised(std::move(serving.fids.own_address), advertised_host_);
  for (const auto& each : serving.inbox)
    check("nothing can be received", each->receive(serving.fids.endpoint.get()));
  served_.push_back(std::move(serving));
  return served_.back().fids.own_address;
}

TENSORHUB_DECL void source::send_answers(clock::time_point now) noexcept {
  for (auto each = answers_.begin(); each != answers_.end();) {
    if (!each->posted) {
      const int result = each->out->send(greeting_endpoint_.endpoint.get(), each->to);
      each->posted = result == 0;
      if (result != 0 && result != -FI_EAGAIN) each->since = now - 2 * greeting_timeout;
    }
    const auto age = now - each->since;
    if (!each->out->busy && (each->posted ? age > answer_keep : age > greeting_timeout)) {
      greeting_endpoint_.remove(each->to);
      each = answers_.erase(each);
    } else {
      ++each;
    }
  }
}

TENSORHUB_DECL bool source::has_room(clock::time_point now) noexcept {
  if (!is_full()) return true;
  if (served_.empty() || !parked_.empty() || now - served_.front().opened < limits_.replaceable_age ||
      now - replaced_at_ < replacement_interval)
    return false;
  replaced_at_ = now;
  close(served_.front());
  served_.pop_front();
  return !is_full();
}

TENSORHUB_DECL void source::close(served& each) noexcept {
  if (provider_.closes_late()) {
    try {
      parked_.push_back({std::move(each), clock::now() + parking_time});
    } catch (...) {  // no memory for the list: it is closed now
    }
    return;
  }
  if (provider_.connected() && each.fids.endpoint)
    static_cast<void>(::fi_shutdown(each.fids.endpoint.get(), 0));
  each.fids.endpoint.reset();
  read_cq(cq_.get());
  each.fids.peers.reset();
  if (each.inbox.empty()) return;
  try {
    closed_.push_back(std::move(each.inbox));
    if (closed_.size() > remembered_closings) closed_.pop_front();
  } catch (...) {  // no memory for the list: the messages leak, because the provider may point to them
    for (auto& one : each.inbox) static_cast<void>(one.release());
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail
