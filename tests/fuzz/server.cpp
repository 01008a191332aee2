/// \file server.cpp
/// The server as a state machine, under workers that say anything in any order: it never fails, its leases
/// keep their rules, its timers move on, every message it sends can be encoded, and what it remembers is
/// bounded by who has joined.
///
/// Input: a row of steps. Each is a message of one of eight workers, built from what that worker has been
/// told before (leases, operations, versions) so that it is often to the point, or time that passes.

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "input.hpp"
#include "support/catalog_of.hpp"
#include "tensorhub/policy/consistency/independent.hpp"
#include "tensorhub/service/catalog.hpp"
#include "tensorhub/service/codec.hpp"

namespace {

using namespace tensorhub;
using namespace std::chrono_literals;

/// What a worker believes to be, and what it was told.
struct speaker {
  incarnation id{};
  std::uint64_t sequence = 0;
  operation_counter operation{};
  version_number version{};
  std::uint64_t epoch = 1;
  std::vector<lease_id> leases{};  ///< the latest ones
  std::string replica{};
  shard_of shard{};
  tensorhub::location location{};
  bool is_dead = false;  ///< the server has said so
};

template <typename Consistency>
class scene {
 public:
  scene() : server_{{}, server_epoch{77}} {
    for (std::size_t i = 0; i < speakers_.size(); ++i) {
      speaker& each = speakers_[i];
      each.id = {100 + i};
      each.replica = "r" + std::to_string(i / 2);
      each.shard = {static_cast<std::uint32_t>(i % 2), 2};
      each.location.datacenter = i < 6 ? "here" : "there";
      say(each, join_of(each));
    }
  }

  void step(fuzz::input& in) {
    speaker& from = speakers_[in.below(speakers_.size())];
    if (std::exchange(from.is_dead, false)) return restart(from);
    switch (in.below(26)) {
      case 0:
        return pass(in.once_in(8) ? 5100ms : std::chrono::milliseconds{in.byte()});
      case 1:
        return beat_all(in);
      case 2:
        return say(in, from, liar_join(in, from));
      case 3:
        return restart(from);
      case 4:
        return say(in, from, messages::leave_request{});
      case 5:
      case 6:
        return say(in, from, publish(in, from));
      case 7:
      case 8:
      case 9:
        return say(in, from, update(in, from));
      case 10:
      case 11:
      case 12:
        return say(in, from, finish(in, from));
      case 13:
      case 14:
        return say(in, from, sources(in, from));
      case 15:
        return say(in, from, receiving(in, from));
      case 16:
        return say(in, from, messages::lease_released_request{lease(in, from)});
      case 17:
      case 18:
        return say(in, from, unpublish(in, from));
      case 19: {
        messages::cut_off_done_request done;
        done.reader = somebody(in);
        return say(in, from, done);
      }
      case 20: {
        messages::wait_request wait;
        wait.selector = selector(in, from);
        wait.timeout_ms = static_cast<std::uint32_t>(in.number());
        return say(in, from, wait);
      }
      case 21:
        return ask(in, from);
      case 22:
        return say(in, from, messages::heartbeat_request{.chunks = in.number()});
      case 23: {
        messages::retain_request retain;
        if (in.once_in(2)) retain.keep_latest = static_cast<std::uint32_t>(in.number());
        if (in.once_in(2)) retain.pin = version(in, from);
        if (in.once_in(4)) retain.release = version(in, from);
        if (in.once_in(8)) retain.roll_back_to = version(in, from);
        return say(in, from, retain);
      }
      case 24: {
        messages::offload_failed_request failed;
        failed.version = version(in, from);
        failed.reason = {errc::limit_exceeded, "x"};
        return say(in, from, failed);
      }
      default:
        if (in.once_in(3)) return say(in, from, messages::holding_request{reference(in, from)});
        return nonsense(in, from);
    }
  }

 private:
  /// A new process in the same place.
  void restart(speaker& from) {
    from.id.value += 1000;
    from.sequence = 0;
    from.leases.clear();
    say(from, join_of(from));
  }

  [[nodiscard]] static const layout& shape() {
    static const layout made{{{"wq", dtype::f32, {8, 8}}, {"norm", dtype::f32, {8}}}, 64};
    return made;
  }
  [[nodiscard]] static messages::join_request join_of(const speaker& from) {
    messages::join_request join;
    join.model = "policy";
    join.replica = from.replica;
    join.shard = from.shard;
    join.location = from.location;
    join.form.consistency = Consistency::name;
    join.form.transport = "tcp";
    join.form.integrity = "xxh3_128";
    join.form.layout_digest = shape().digest();
    join.form.chunk_bytes = shape().chunk_bytes();
    join.form.chunk_count = shape().chunk_count();
    join.form.tensors.assign(shape().tensors().begin(), shape().tensors().end());
    return join;
  }
  [[nodiscard]] messages::join_request liar_join(fuzz::input& in, speaker& from) {
    messages::join_request join = join_of(from);
    switch (in.below(10)) {
      case 0:
        join.model = in.text(4);
        break;
      case 1:
        join.replica = in.text(2);
        break;
      case 2:
        join.shard = {static_cast<std::uint32_t>(in.number()), static_cast<std::uint32_t>(in.number())};
        break;
      case 3:
        join.form.tensors.clear();
        join.form.layout_digest.low = in.number();
        break;
      case 4:
        join.form.tensors.front().shape.front() = in.number();
        break;
      case 5:
        join.form.chunk_bytes = in.number();
        break;
      default:
        break;
    }
    if (in.once_in(3)) join.before.held = reference(in, from);
    if (in.once_in(8)) {
      join.before.keeps.revision = in.number();
      join.before.keeps.rollbacks.push_back({static_cast<std::uint32_t>(in.number()), in.number()});
      if (in.once_in(2)) join.before.latest.line = static_cast<std::uint32_t>(in.number());
    }
    if (join.before.held) join.before.held->open = in.once_in(4);
    if (in.once_in(3)) join.before.operation = {in.number()};
    if (in.once_in(8)) join.location.datacenter = in.text(1);
    for (std::size_t count = in.below(4); count > 0; --count) {
      messages::assignment& old = join.before.reading.emplace_back();
      old.operation = operation(in, from);
      old.lease = lease(in, from);
      old.version = version(in, from);
      old.source = in.once_in(8) ? incarnation{in.number()} : somebody(in);
    }
    if (in.once_in(3)) join.before.receiving = reference(in, from);
    if (in.once_in(4)) join.before.latest = version(in, from);
    if (in.once_in(4)) join.before.peers = static_cast<std::uint32_t>(in.number());
    return join;
  }

  // ---- fields, to the point mostly

  [[nodiscard]] incarnation somebody(fuzz::input& in) { return speakers_[in.below(speakers_.size())].id; }
  [[nodiscard]] version_number version(fuzz::input& in, const speaker& from) {
    switch (in.below(8)) {
      case 0:
        return {in.number()};
      case 1:
      case 2:
        return latest_;
      default:
        return from.version;
    }
  }
  [[nodiscard]] version_selector selector(fuzz::input& in, const speaker& from) {
    const std::size_t kind = in.below(4);
    if (kind == 3) return latest;
    return {static_cast<version_selector::kind_type>(kind), version(in, from)};
  }
  [[nodiscard]] static operation_counter operation(fuzz::input& in, const speaker& from) {
    return in.once_in(8) ? operation_counter{in.number()} : from.operation;
  }
  [[nodiscard]] static lease_id lease(fuzz::input& in, const speaker& from) {
    if (from.leases.empty() || in.once_in(8)) return {in.number()};
    return from.leases[in.below(from.leases.size())];
  }
  [[nodiscard]] static digest128 root_of(version_number version) { return {version.value, 5}; }
  [[nodiscard]] messages::reference reference(fuzz::input& in, speaker& from) {
    messages::reference out;
    out.version = version(in, from);
    out.epoch = ++from.epoch;
    out.root = in.once_in(16) ? digest128{} : root_of(out.version);
    out.control.bytes = 4096;
    return out;
  }
  [[nodiscard]] static messages::announcement shows(speaker& from) {
    messages::announcement out;
    out.epoch = ++from.epoch;
    out.control.bytes = 4096;
    return out;
  }

  // ---- requests

  [[nodiscard]] messages::publish_request publish(fuzz::input& in, speaker& from) {
    messages::publish_request out;
    if (!in.once_in(4)) from.version = {latest_.value + (in.once_in(2) ? 1 : 0)};
    const auto* record = server_.record_of(from.id);
    if (record != nullptr && !in.once_in(8)) from.version = valid_version(record->model->keeps, from.version);
    out.operation = in.once_in(2) ? operation_counter{} : operation_counter{++from.operation.value};
    if (in.once_in(16)) out.operation = {in.number()};
    out.held = reference(in, from);
    out.held.open = in.once_in(4);
    if (out.held.version.value < 64) latest_ = std::max(latest_, out.held.version);
    return out;
  }
  [[nodiscard]] messages::unpublish_request unpublish(fuzz::input& in, speaker& from) {
    messages::unpublish_request out;
    const auto* record = server_.record_of(from.id);
    const bool is_right = record != nullptr && record->held && !in.once_in(8);
    out.version = is_right ? record->held->version : version(in, from);
    out.epoch = is_right ? record->held->epoch : in.number();
    if (in.once_in(4)) out.operation = operation(in, from);
    return out;
  }
  [[nodiscard]] messages::update_request update(fuzz::input& in, speaker& from) {
    messages::update_request out;
    out.operation =
        in.once_in(4) ? operation_counter{in.number()} : operation_counter{++from.operation.value};
    out.selector = selector(in, from);
    out.timeout_ms = static_cast<std::uint32_t>(in.once_in(2) ? 1000 : in.number());
    out.reach = in.once_in(4) ? messages::update_reach::prefer_local : messages::update_reach::anywhere;
    if (!in.once_in(4)) out.shows = shows(from);
    out.ahead = in.once_in(2);
    return out;
  }
  [[nodiscard]] messages::finish_request finish(fuzz::input& in, speaker& from) {
    messages::finish_request out;
    out.operation = operation(in, from);
    out.version = version(in, from);
    if (in.once_in(3)) out.result = {errc::cancelled, in.text(4)};
    out.intact = in.once_in(2);
    if (out.result.ok() ? !in.once_in(8) : in.once_in(8)) out.held = reference(in, from);
    out.lease = lease(in, from);
    return out;
  }
  [[nodiscard]] messages::sources_request sources(fuzz::input& in, speaker& from) {
    messages::sources_request out;
    out.operation = operation(in, from);
    if (!in.once_in(4)) out.lease = lease(in, from);
    const auto picked = in.below(23 * 3);
    out.reason = static_cast<errc>(picked % 23);
    out.why = static_cast<messages::sources_wanted>(picked / 23);
    out.detail = in.text(4);
    if (in.once_in(2)) out.chunk = in.below(4);
    return out;
  }
  [[nodiscard]] messages::receiving_request receiving(fuzz::input& in, speaker& from) {
    messages::receiving_request out;
    out.operation = operation(in, from);
    out.shows = shows(from);
    return out;
  }
  void ask(fuzz::input& in, speaker& from) {
    if (in.once_in(3)) return say(in, from, messages::list_request{in.once_in(2) ? "policy" : in.text(2)});
    if (in.once_in(4)) {
      messages::manage_request order{static_cast<messages::manage_kind>(in.below(4)),
                                     "policy",
                                     speakers_[in.below(speakers_.size())].replica,
                                     {}};
      if (in.once_in(4)) order.change.roll_back_to = version(in, from);
      if (in.once_in(4)) order.change.keep_latest = static_cast<std::uint32_t>(in.below(3));
      return say(in, from, std::move(order));
    }
    if (in.once_in(4)) {
      messages::stuck_request stuck;
      stuck.older_than_ms = static_cast<std::uint32_t>(in.number());
      return say(in, from, stuck);
    }
    if (in.once_in(2)) {
      messages::describe_request describe;
      describe.model = "policy";
      describe.shard = static_cast<std::uint32_t>(in.number());
      return say(in, from, describe);
    }
    messages::why_request why;
    why.model = "policy";
    why.replica = speakers_[in.below(speakers_.size())].replica;
    why.shard = static_cast<std::uint32_t>(in.number());
    say(in, from, why);
  }
  /// Any message at all, as far as the decoder lets it through.
  void nonsense(fuzz::input& in, const speaker& from) {
    codec_detail::frame_header header;
    header.type = in.byte();
    const auto payload = in.bytes(in.below(128));
    header.payload_bytes = static_cast<std::uint32_t>(payload.size());
    header.sender = from.id.value;
    header.sequence = in.number();
    header.acknowledged = in.number();
    std::vector<std::byte> frame(sizeof header + payload.size());
    std::memcpy(frame.data(), &header, sizeof header);
    if (!payload.empty()) std::memcpy(frame.data() + sizeof header, payload.data(), payload.size());
    const auto decoded = decoder_.decode(frame);
    if (!decoded.ok()) return;
    server_.receive(now_, decoded.message);
    check();
  }

  void say(speaker& from, messages::message body) {
    server_.receive(now_, {from.id.value, {++from.sequence}, {}, std::move(body)});
    check();
  }
  void say(fuzz::input& in, speaker& from, messages::message body) {
    messages::envelope out;
    out.sender = from.id.value;
    out.sequence = {++from.sequence};
    out.acknowledged = {from.sequence - 1};
    const std::uint8_t how = in.byte();
    if (how >= 240) out.sequence = {in.number()};  // a repetition, or a leap
    if (how >= 224 && how < 240) out.acknowledged = {in.number()};
    if (how >= 128 && how < 160) out.acknowledged = {};
    out.body = std::move(body);
    ++received_;
    const bool more = how >= 200 && how < 224;  // the next message comes before the output is taken
    server_.receive(now_, out, {}, more);
    if (!more) check();
  }
  void pass(std::chrono::milliseconds time) {
    now_ = now_ + time;
    if (server_.next_deadline() > now_) return;
    server_.advance(now_);
    fuzz::require(server_.next_deadline() > now_, "the timers move on");
    check();
  }
  void beat_all(fuzz::input& in) {
    for (speaker& each : speakers_) {
      messages::heartbeat_request beat;
      beat.chunks = in.below(4);
      server_.receive(now_, {each.id.value, {}, {each.sequence}, beat});
    }
    pass(100ms);
  }

  // ---- promises

  void check() {
    const std::vector<outgoing> output = server_.take_output();
    fuzz::require(output.size() <= 512 * (1 + std::exchange(received_, 0)),
                  "one message moves a bounded number of others");
    for (const outgoing& each : output) {
      fuzz::require(!encoder_.encode(each.message).empty(), "what is sent can be encoded");
      for (speaker& to : speakers_) {
        if (to.id == each.to) learn(to, each.message.body);
      }
    }
    static_cast<void>(server_.take_log());
    check_rules();
  }
  void learn(speaker& to, const messages::message& body) {
    if (const auto* reply = get_if<messages::update_reply>(&body)) {
      if (reply->operation) to.operation = reply->operation;
      if (reply->version) to.version = reply->version;
      for (const messages::assignment& source : reply->sources) note(to, source.lease);
    }
    if (const auto* push = get_if<messages::goodbye_push>(&body)) to.is_dead = !push->rejoin;
    if (const auto* push = get_if<messages::reassign_push>(&body)) {
      note(to, push->source.lease);
      note(to, push->old_lease);
    }
    if (const auto* reply = get_if<messages::status_reply>(&body); reply != nullptr && reply->operation)
      to.operation = reply->operation;
  }
  static void note(speaker& to, lease_id lease) {
    if (!lease) return;
    to.leases.push_back(lease);
    if (to.leases.size() > 8) to.leases.erase(to.leases.begin());
  }

  void check_rules() {
    const std::string broken = server_.broken_rule();
    fuzz::require(broken.empty(), broken.c_str());
    std::size_t count = 0;
    server_.for_each_lease([&](const auto&) { ++count; });
    for (const speaker& each : speakers_) {
      const auto* record = server_.record_of(each.id);
      if (record == nullptr) continue;
      fuzz::require(record->requests.answers.size() <= limits::worker_requests_in_flight,
                    "open requests are bounded");
      fuzz::require(record->as_reader.leases.size() <= 4 * limits::sources,
                    "leases of one reader are bounded");
      fuzz::require(
          record->model->waiters.size() <= limits::worker_requests_in_flight * server_.worker_count(),
          "waiters are bounded by who has joined");
      fuzz::require(
          record->model->operations.all.size() <= limits::worker_requests_in_flight * server_.worker_count(),
          "open operations are bounded by who has joined");
    }
    fuzz::require(count <= 1024, "leases are bounded");
  }

  testing::catalog_of<nearest_source, Consistency> server_;
  time_point now_{1'000'000'000};
  std::array<speaker, 8> speakers_{};
  version_number latest_{};
  std::size_t received_ = 0;  ///< messages since the output was taken
  encoder encoder_;
  decoder decoder_;
};

template <typename Consistency>
void run(fuzz::input& in) {
  scene<Consistency> made;
  for (int steps = 0; steps < 256 && !in.empty(); ++steps) made.step(in);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  fuzz::input in{data, bytes};
  if (in.once_in(4))
    run<independent>(in);
  else
    run<group_consistent>(in);
  return 0;
}
