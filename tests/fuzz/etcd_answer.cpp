/// \file etcd_answer.cpp
/// What answers in the place of etcd's gateway may say anything: each answer is understood or refused by a
/// sentence, and a candidate that believes it leads within its lease only, and never twice in one term.
///
/// Input: a row of steps of one candidate; each lets time pass and answers the question that is open.

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>

#include "input.hpp"
#include "tensorhub/etcd/election.hpp"
#include "tensorhub/etcd/gateway.hpp"

namespace {

using namespace tensorhub;
using etcd_detail::json;

constexpr std::chrono::hours longest_lease{24};

election_options settings() {
  election_options out;
  out.name = "fuzz";
  out.address = "tcp://a:1";
  return validated(out);
}

class scene {
 public:
  void step(fuzz::input& in) {
    pass(in);
    const std::optional<etcd_request> asked = core_.take_request(now_);
    check();
    if (!asked) return leave(in);
    const etcd_post post = to_post("fuzz", *asked);
    fuzz::require(!post.path.empty() && json::accept(post.body), "a question is valid JSON");
    sent_ = std::max(sent_, now_);
    if (in.once_in(8)) pass(in);
    const long status = in.once_in(8) ? static_cast<long>(in.number()) : 200;
    const std::string body = body_for(*asked, in);
    const etcd_answer answer = to_answer(*asked, status, body);
    check_answer(answer, status);
    core_.receive(now_, in.once_in(16) ? in.number() : asked->number, answer);
    check();
  }

 private:
  void pass(fuzz::input& in) {
    const std::size_t kind = in.below(4);
    if (kind == 0) now_ = now_ + std::chrono::milliseconds{in.byte()};
    if (kind == 1) now_ = now_ + std::chrono::seconds{in.byte()};
    if (kind >= 2 && core_.next_deadline() != time_point::never())
      now_ = std::max(now_, core_.next_deadline());
  }

  /// The owner of a server that is no leader any more stops serving; now and then one gives up by itself.
  void leave(fuzz::input& in) {
    if (in.once_in(2)) core_.stopped(now_);
    if (in.once_in(16)) core_.resign(now_, "it wants to");
    check();
  }

  json number(fuzz::input& in, std::int64_t right) {
    switch (in.below(16)) {
      case 0:
        return in.number();
      case 1:
        return std::to_string(in.number());
      case 2:
        return -static_cast<std::int64_t>(in.byte());
      case 3:
        return nullptr;
      case 4:
        return right;
      default:
        return std::to_string(right);
    }
  }
  json base64(fuzz::input& in, const std::string& right) {
    switch (in.below(12)) {
      case 0:
        return etcd_detail::to_base64(in.text(16));
      case 1:
        return etcd_detail::to_base64(std::to_string(in.number()));
      case 2:
        return std::string(in.below(8), '=');
      default:
        return etcd_detail::to_base64(right);
    }
  }

  /// What a read of one key has found.
  json read_of(fuzz::input& in, const std::string& value) {
    json range = json::object();
    if (in.once_in(3)) return json{{"response_range", range}};
    json entry{{"value", base64(in, value)}, {"mod_revision", number(in, revision_)}};
    if (in.once_in(2)) entry["lease"] = number(in, core_.lease());
    range["kvs"] = in.once_in(16) ? entry : json::array({entry});
    return json{{"response_range", range}};
  }

  std::string body_for(const etcd_request& asked, fuzz::input& in) {
    if (in.once_in(16)) return std::string(std::size_t{in.byte()}, in.once_in(2) ? '[' : '{');
    if (in.once_in(16)) return in.text(255);
    json out = json::object();
    revision_ = static_cast<std::int64_t>(in.below(4));
    if (const auto* grant = std::get_if<etcd_requests::grant_lease>(&asked.body)) {
      out = {{"ID", number(in, grant->lease)}, {"TTL", number(in, grant->seconds)}};
    } else if (const auto* renewal = std::get_if<etcd_requests::keep_alive>(&asked.body)) {
      out = {{"result", {{"ID", number(in, renewal->lease)}, {"TTL", number(in, 5)}}}};
    } else if (!std::holds_alternative<etcd_requests::revoke_lease>(asked.body)) {
      if (in.once_in(2)) out["succeeded"] = true;
      if (!in.once_in(8)) out["responses"] = json::array({read_of(in, "tcp://b:1"), read_of(in, "7")});
    }
    if (in.once_in(16)) out = {{"code", number(in, 5)}, {"message", "no"}, {"error", out}};
    std::string text = out.dump();
    if (in.once_in(16)) text.resize(in.below(text.size() % 255 + 1));
    return text;
  }

  static void check_answer(const etcd_answer& answer, long status) {
    if (const auto* none = std::get_if<etcd_answers::no_answer>(&answer))
      fuzz::require(!none->why.empty() && none->why.size() <= 256, "a refusal has a short sentence");
    if (status != 200)
      fuzz::require(!std::holds_alternative<etcd_answers::situation>(answer), "an error page says nothing");
    const auto* seen = std::get_if<etcd_answers::situation>(&answer);
    if (seen == nullptr) return;
    fuzz::require(seen->term.value_or(0) <= server_term_max, "a term fits its place in an epoch");
    fuzz::require(seen->leader_address.size() <= 1024, "an address is short");
  }

  void check() {
    const bool leads = core_.leads(now_);
    if (core_.state() != election_state::deposed)
      fuzz::require(core_.next_deadline() != time_point::never(), "a candidate has something to wait for");
    if (leads) {
      fuzz::require(core_.lease() != 0, "who leads has a lease");
      fuzz::require(core_.leads_until() <= sent_ + longest_lease, "a lease is counted from its question");
      fuzz::require(core_.term() >= 1 && core_.term() <= server_term_max, "a leader's term is one");
      if (!led_) fuzz::require(core_.term() > term_, "each leader has a term of its own");
      if (led_) fuzz::require(core_.term() == term_, "a leader stays in its term");
      term_ = core_.term();
    }
    led_ = core_.state() == election_state::leader;
    fuzz::require(core_.take_log().size() <= 8, "there is not much to say");
  }

  election core_{settings(), 1};
  time_point now_{1'000'000'000};
  time_point sent_{};  ///< when the newest question was asked
  std::int64_t revision_ = 0;
  bool led_ = false;
  std::uint64_t term_ = 0;  ///< the last one that it led in
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  fuzz::input in{data, bytes};
  if (in.once_in(8)) {
    const etcd_request look{1, time_point::never(), etcd_requests::look{}};
    static_cast<void>(to_answer(look, 200, in.rest()));
    return 0;
  }
  scene made;
  for (int steps = 0; steps < 64 && !in.empty(); ++steps) made.step(in);
  return 0;
}
