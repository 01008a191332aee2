/// \file session.cpp
/// A worker's session, with a server that says anything at any time: every call ends exactly once, at its
/// deadline at the latest, and what the session asks of its shell is in order: epochs rise, a transfer is
/// started before it is added to or stopped, nothing is started while one runs.
///
/// Input: a row of steps: calls, reports of the transfer, answers and pushes, time that passes.

#include <deque>
#include <map>
#include <vector>

#include "input.hpp"
#include "tensorhub/service/codec.hpp"
#include "tensorhub/service/session.hpp"

namespace {

using namespace tensorhub;

class scene {
 public:
  scene() : core_{options(), incarnation{5}, shape()} {}

  void step(fuzz::input& in) {
    switch (in.below(8)) {
      case 0:
      case 1:
        call(in);
        break;
      case 2:
        report(in);
        break;
      case 3:
        pass(duration{std::int64_t{1'000'000} * (in.once_in(4) ? 40 * in.byte() : in.byte())});
        break;
      case 4:
        push(in);
        break;
      case 5:
        nonsense(in);
        break;
      default:
        answer(in);
    }
    settle();
    if (is_revoking_ && ++steps_ % 3 == 0) report_revoked();
  }

  /// No server any more, and a shell that reports the ends of its transfer and of a revocation: every call
  /// ends.
  void finish() {
    for (int rounds = 0; rounds < 64 && !tickets_.empty(); ++rounds) {
      if (is_pulling_) {
        is_pulling_ = false;
        core_.pull_failed(now_, {errc::source_lost, "x"}, {});
        settle();
      }
      if (is_revoking_) report_revoked();
      pass(std::chrono::seconds{20});
      settle();
    }
    fuzz::require(tickets_.empty(), "every call ends");
  }

 private:
  [[nodiscard]] static const layout& shape() {
    static const layout made{{{"wq", dtype::f32, {8}}}, 64};
    return made;
  }
  [[nodiscard]] static session_options options() {
    session_options out;
    out.server = "tcp://server";
    out.model = "policy";
    out.replica = "r";
    out.consistency = "group_consistent";
    return out;
  }

  // ---- the caller

  void call(fuzz::input& in) {
    const time_point deadline = now_ + duration{std::int64_t{1'000'000} * 40 * in.byte()};
    remote_region control;
    control.bytes = 4096;
    switch (in.below(12)) {
      case 0:
        return called(core_.join(now_, deadline));
      case 1:
        if (in.once_in(2)) return called(core_.open(now_, {in.number()}, control, deadline));
        [[fallthrough]];
      case 2:
        return called(core_.publish(now_, {in.number()}, {1, 1}, control, deadline));
      case 3:
        return called(core_.unpublish(now_, deadline));
      case 4:
      case 5:
      case 6:
        return called(core_.update(now_, selector(in), deadline,
                                   in.once_in(2) ? std::optional{control} : std::nullopt,
                                   messages::update_reach::anywhere, in.once_in(2)));
      case 7:
        return called(core_.wait(now_, selector(in), deadline));
      case 8:
        return called(core_.list(now_, "policy", deadline));
      case 9:
        return called(core_.leave(now_, deadline));
      case 10:
        return called(core_.describe(now_, 0, deadline));
      default:
        if (in.once_in(4)) return called(core_.install(now_, {in.number()}, {1, 1}, deadline));
        core_.cancel(now_, last_ticket_);
    }
  }
  void called(session_ticket ticket) {
    fuzz::require(ticket != 0 && tickets_.try_emplace(ticket, now_).second, "a ticket names one call");
    last_ticket_ = ticket;
  }
  [[nodiscard]] static version_selector selector(fuzz::input& in) {
    return {static_cast<version_selector::kind_type>(in.below(3)), {in.number()}};
  }

  void report_revoked() {
    is_revoking_ = false;
    core_.all_cut_off(now_);
    settle();
  }

  // ---- the transfer

  void report(fuzz::input& in) {
    remote_region control;
    control.bytes = 4096;
    switch (in.below(6)) {
      case 0:
        if (is_pulling_) core_.pull_started(now_, control);
        return;
      case 1:
        if (!std::exchange(is_pulling_, false)) return;
        return core_.pull_finished(now_, control);
      case 2:
        if (!std::exchange(is_pulling_, false)) return;
        return core_.pull_failed(now_, {errc::source_lost, "x"},
                                 in.once_in(2) ? std::optional{control} : std::nullopt);
      case 3:
        return core_.source_failed(now_, {in.number()}, errc::source_lost, "x");
      case 4:
        return in.once_in(2) ? core_.pull_stalled(now_, "x") : core_.pull_ran_short(now_);
      default:
        return core_.source_released(now_, {in.number()});
    }
  }

  // ---- the server

  [[nodiscard]] messages::status status(fuzz::input& in) {
    if (!in.once_in(4)) return {};
    return {static_cast<errc>(in.below(23)), in.text(4)};
  }
  [[nodiscard]] messages::assignment source(fuzz::input& in) {
    messages::assignment out;
    out.operation = operation(in);
    out.lease = {in.number()};
    out.version = {in.once_in(4) ? in.number() : version_};
    out.source = {9};
    out.drained = in.once_in(2);
    return out;
  }
  [[nodiscard]] operation_counter operation(fuzz::input& in) {
    return {in.once_in(4) ? in.number() : operation_};
  }
  void answer(fuzz::input& in) {
    if (asked_.empty()) return;
    const std::size_t index = in.below(asked_.size());
    const messages::envelope request = asked_[index];
    if (!in.once_in(4)) asked_.erase(asked_.begin() + static_cast<std::ptrdiff_t>(index));
    messages::message body = messages::status_reply{status(in), operation(in)};
    if (holds_alternative<messages::join_request>(request.body)) {
      messages::join_reply reply;
      reply.result = status(in);
      reply.epoch = {in.number()};
      reply.wants_layout = in.once_in(4);
      reply.heartbeat_interval_ms = static_cast<std::uint32_t>(in.number());
      reply.operation = operation(in);
      reply.latest = {in.number()};
      body = reply;
    } else if (holds_alternative<messages::update_request>(request.body) ||
               holds_alternative<messages::sources_request>(request.body)) {
      messages::update_reply reply;
      reply.result = status(in);
      reply.operation = {operation_ = in.once_in(8) ? in.number() : operation_ + 1};
      reply.keep = in.once_in(8);
      reply.version = {version_ = in.number()};
      for (std::size_t count = in.below(4); count > 0; --count) reply.sources.push_back(source(in));
      reply.open = in.once_in(4);
      if (in.once_in(4)) reply.root = {in.number(), 1};
      body = reply;
    } else if (holds_alternative<messages::unpublish_request>(request.body)) {
      body = messages::drained_reply{status(in)};
    } else if (holds_alternative<messages::wait_request>(request.body)) {
      body = messages::version_reply{status(in), {in.number()}};
    }
    hear(request.sequence, std::move(body));
  }
  void push(fuzz::input& in) {
    switch (in.below(6)) {
      case 0: {
        messages::reassign_push push;
        push.old_lease = {in.number()};
        push.source = source(in);
        return hear({}, std::move(push));
      }
      case 1:
        return hear({}, messages::cut_off_push{{in.number()}});
      case 2:
        return hear({}, messages::abort_push{operation(in), status(in)});
      case 3: {
        messages::goodbye_push push;
        push.rejoin = !in.once_in(4);
        push.reason = status(in);
        return hear({}, std::move(push));
      }
      case 4:
        return hear({}, messages::committed_push{{in.once_in(4) ? in.number() : version_}, {in.number(), 1}});
      default:
        return hear({}, messages::version_push{{in.number()}});
    }
  }
  void nonsense(fuzz::input& in) {
    codec_detail::frame_header header;
    header.type = in.byte();
    header.sequence = in.number();
    const auto payload = in.bytes(in.below(128));
    header.payload_bytes = static_cast<std::uint32_t>(payload.size());
    std::vector<std::byte> frame(sizeof header + payload.size());
    std::memcpy(frame.data(), &header, sizeof header);
    if (!payload.empty()) std::memcpy(frame.data() + sizeof header, payload.data(), payload.size());
    const auto decoded = decoder_.decode(frame);
    if (decoded.ok()) core_.receive(now_, decoded.message);
  }
  void hear(request_sequence sequence, messages::message body) {
    core_.receive(now_, {77, sequence, {}, std::move(body)});
  }

  void pass(duration time) {
    now_ = now_ + time;
    // One step may be followed by the next at the same time: stopping, say, after a deadline.
    for (int steps = 0; steps < 4 && core_.next_deadline() <= now_; ++steps) core_.advance(now_);
    fuzz::require(core_.next_deadline() > now_, "the timers move on");
  }

  // ---- what comes out

  void settle() {
    for (messages::envelope& out : core_.take_output()) {
      fuzz::require(!encoder_.encode(out).empty(), "what is sent can be encoded");
      if (!out.sequence) continue;
      asked_.push_back(std::move(out));
      if (asked_.size() > 32) asked_.pop_front();
    }
    for (const session_action& action : core_.take_actions())
      visit([this](const auto& what) { perform(what); }, action);
    for (const session_result& result : core_.take_results())
      fuzz::require(tickets_.erase(result.ticket) == 1, "a call ends once");
  }
  void perform(const session_actions::raise_epoch& action) {
    fuzz::require(action.epoch > epoch_, "epochs rise");
    epoch_ = action.epoch;
  }
  void perform(const session_actions::restore& action) {
    fuzz::require(action.held.epoch == epoch_, "what is shown again has the present epoch");
  }
  void perform(const session_actions::start_pull&) {
    fuzz::require(!is_pulling_ && !is_revoking_, "one transfer at a time, and none while keys are revoked");
    is_pulling_ = true;
  }
  void perform(const session_actions::cut_off_all&) {
    fuzz::require(!is_revoking_, "one revocation at a time");
    is_revoking_ = true;
  }
  void perform(const session_actions::add_source&) {
    fuzz::require(is_pulling_, "a source is added to a transfer that runs");
  }
  template <typename Other>
  void perform(const Other&) {}

  session core_;
  time_point now_{1'000'000'000};
  std::map<session_ticket, time_point> tickets_;  ///< calls that have not ended
  session_ticket last_ticket_ = 0;
  std::deque<messages::envelope> asked_;
  std::uint64_t operation_ = 0;
  std::uint64_t version_ = 0;
  std::uint64_t epoch_ = 0;
  bool is_pulling_ = false;
  bool is_revoking_ = false;
  std::size_t steps_ = 0;  ///< while keys are being revoked
  encoder encoder_;
  decoder decoder_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  fuzz::input in{data, bytes};
  scene made;
  for (int steps = 0; steps < 256 && !in.empty(); ++steps) made.step(in);
  made.finish();
  return 0;
}
