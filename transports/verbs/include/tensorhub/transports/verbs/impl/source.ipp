#pragma once
/// \file source.ipp
/// Definitions of source.hpp.

#include "tensorhub/detail/started_thread.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/verbs/source.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

TENSORHUB_DECL source::source(const verbs_options& options, incarnation self)
    : max_connections_{options.max_connections},
      max_connections_per_reader_{options.max_connections_per_reader},
      key_maker_{self},
      gate_{self},
      channel_{open_channel()},
      rails_{open_rails(*channel_, options)},
      stop_{"verbs"} {
  for (rail& each : rails_) {
    each.listener->context = &each;
    if (::rdma_listen(each.listener.get(), backlog) != 0) {
      throw error(errc::transport_failed, "verbs: cannot listen on " + each.device + " at " +
                                              each.address.host() + ": " + reason(errno));
    }
  }
  thread_ = tensorhub::detail::started_thread("verbs", [this] { run(); });
}

TENSORHUB_DECL source::~source() {
  stop_.raise();
  thread_.join();
  while (!readers_.empty()) {
    handle<rdma_cm_id> id = take_out(readers_.begin());
  }
}

TENSORHUB_DECL std::string source::address() const {
  std::string text = "verbs://";
  for (const rail& each : rails_) {
    if (&each != &rails_.front()) text += ",";
    text += host_and_port(each.address, ntohs(::rdma_get_src_port(each.listener.get())));
  }
  return text;
}

TENSORHUB_DECL void source::cut_off(incarnation reader) noexcept {
  std::unique_lock lock{mutex_};
  gate_.cut_off(reader);
  close_if(lock, [reader](const reader_connection& each) { return each.reader == reader; });
}

TENSORHUB_DECL void source::rename(incarnation self, incarnation next) noexcept {
  std::unique_lock lock{mutex_};
  gate_.rename(self, next);
  close_if(lock, [self](const reader_connection& each) { return each.source == self; });
}

TENSORHUB_DECL void source::dismiss(incarnation self) noexcept {
  std::unique_lock lock{mutex_};
  gate_.dismiss(self);
  close_if(lock, [self](const reader_connection& each) { return each.source == self; });
}

TENSORHUB_DECL void source::require_capability(std::span<const std::byte> key) {
  std::unique_lock lock{mutex_};
  gate_.require_capability(key);
  close_if(lock, [](const reader_connection&) { return true; });
}

TENSORHUB_DECL void source::refuse_everybody() noexcept {
  std::unique_lock lock{mutex_};
  gate_.refuse_everybody();
  close_if(lock, [](const reader_connection&) { return true; });
}

TENSORHUB_DECL handle<rdma_event_channel> source::open_channel() {
  if (device_names().empty()) {
    throw error(errc::transport_failed,
                "verbs: this machine has no RDMA device (or its driver is not loaded: see `ibv_devices` and "
                "`rdma link`)");
  }
  return make_event_channel();
}

TENSORHUB_DECL handle<rdma_cm_id> source::take_out(reader_table::iterator entry) noexcept {
  handle<rdma_cm_id> id = std::move(entry->second.id);
  if (!destroy_queue_pair(*id)) gate_.refuse_everybody();
  readers_.erase(entry);
  return id;
}

TENSORHUB_DECL void source::run() noexcept {
  pollfd entries[2] = {{channel_->fd, POLLIN, 0}, {stop_.descriptor(), POLLIN, 0}};
  for (;;) {
    static_cast<void>(::poll(entries, 2, -1));
    if (entries[1].revents != 0) return;
    rdma_cm_event* event = nullptr;
    while (::rdma_get_cm_event(channel_.get(), &event) == 0) handle_event(event);
  }
}

TENSORHUB_DECL void source::handle_event(rdma_cm_event* event) noexcept {
  handle<rdma_cm_id> finished;  // destroyed last, when the event is acknowledged
  handle<rdma_cm_id> replaced;
  switch (event->event) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
      finished = judge(*event, replaced);
      break;
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_REJECTED:
      finished = ended(event->id);
      break;
    default: {  // established, time-wait over, address changed: nothing to do here
      const std::lock_guard seen{mutex_};
      break;
    }
  }
  static_cast<void>(::rdma_ack_cm_event(event));
}

TENSORHUB_DECL handle<rdma_cm_id> source::ended(rdma_cm_id* id) noexcept {
  const std::lock_guard lock{mutex_};
  const auto found = readers_.find(id);
  if (found != readers_.end()) return take_out(found);
  const bool is_listener =
      detail::any_of(rails_, [id](const rail& each) { return each.listener.get() == id; });
  if (!is_listener && id->context != nullptr) static_cast<connection*>(id->context)->lose();
  return {};
}

TENSORHUB_DECL handle<rdma_cm_id> source::judge(const rdma_cm_event& event,
                                                handle<rdma_cm_id>& replaced) noexcept {
  handle<rdma_cm_id> id{event.id};
  const auto& on = *static_cast<const rail*>(event.listen_id->context);
  id->context = nullptr;
  hello greeting;
  greeting.magic = 0;
  const rdma_conn_param& asked = event.param.conn;
  if (asked.private_data != nullptr && asked.private_data_len >= sizeof greeting)
    std::memcpy(&greeting, asked.private_data, sizeof greeting);
  const std::lock_guard lock{mutex_};
  welcome answer;
  answer.source = gate_.self_for({greeting.source}).value;
  answer.key_maker = key_maker_.value;
  answer.status = judge(greeting, replaced);
  if (answer.status == welcome_status::accepted && !accept(id, on, asked, answer, greeting))
    answer.status = welcome_status::overloaded;
  if (answer.status != welcome_status::accepted)
    static_cast<void>(::rdma_reject(id.get(), &answer, sizeof answer));
  return id;
}

TENSORHUB_DECL welcome_status source::judge(const hello& greeting, handle<rdma_cm_id>& replaced) noexcept {
  if (greeting.magic != hello_magic) return welcome_status::other_transport;
  const auto status = detail::status_of<welcome_status>(gate_.judge(greeting, data_protocol));
  if (status != welcome_status::accepted) return status;
  const auto is_of_reader = [&](const reader_connection& each) {
    return each.reader.value == greeting.reader;
  };
  const auto present = static_cast<std::size_t>(
      detail::count_if(readers_, [&](const auto& entry) { return is_of_reader(entry.second); }));
  if (present >= max_connections_per_reader_)
    return take_out_oldest(replaced, is_of_reader) ? welcome_status::accepted : welcome_status::crowded;
  return has_room(replaced) ? welcome_status::accepted : welcome_status::overloaded;
}

TENSORHUB_DECL bool source::has_room(handle<rdma_cm_id>& replaced) noexcept {
  if (readers_.size() < max_connections_) return true;
  const auto now = clock::now();
  if (now - replaced_at_ < replaceable_age) return false;
  if (!take_out_oldest(replaced, [](const reader_connection&) { return true; })) return false;
  replaced_at_ = now;
  return true;
}

TENSORHUB_DECL bool source::accept(handle<rdma_cm_id>& id, const rail& on, const rdma_conn_param& asked,
                                   const welcome& answer, const hello& greeting) noexcept {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = on.unused_queue.get();
  wanted.cap = {1, 1, 1, 1, 0};
  wanted.qp_type = IBV_QPT_RC;
  rdma_cm_id* const raw = id.get();
  if (::rdma_create_qp(raw, on.domain.get(), &wanted) != 0) return false;
  rdma_conn_param given{};
  given.private_data = &answer;
  given.private_data_len = sizeof answer;
  given.responder_resources = std::min(on.limits.reads_in, asked.responder_resources);
  given.initiator_depth = std::min<std::uint8_t>(1, asked.initiator_depth);
  given.rnr_retry_count = 7;
  try {
    readers_.emplace(raw, reader_connection{{}, {greeting.reader}, {greeting.source}}).first->second.id =
        std::move(id);
  } catch (...) {  // no memory: the reader is refused
    static_cast<void>(destroy_queue_pair(*raw));
    return false;
  }
  if (::rdma_accept(raw, &given) == 0) return true;
  id = take_out(readers_.find(raw));
  return false;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail
