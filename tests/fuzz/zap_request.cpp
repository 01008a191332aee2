/// \file zap_request.cpp
/// Questions of ZAP about a new connection, of any form: each gets one answer of six parts, and only a key on
/// the list is let in.
///
/// Input: rows of parts, each right, of the input's own bytes, or left out.

#include <cerrno>
#include <string>
#include <tensorhub/service/curve_guard.hpp>
#include <vector>
#include <zmq.hpp>

#include "input.hpp"

namespace {

using namespace tensorhub;

/// What all inputs share: a guard with its thread, and the one that asks it.
struct parties {
  zmq::context_t context;
  zmq::socket_t router{context, zmq::socket_type::router};
  curve_key_pair good = make_curve_keys();
  server_security security{make_curve_keys(), {{good.public_key, {}}}};
  tensorhub::detail::curve_guard guard{context, router, security, [] {}};
  zmq::socket_t asker{context, zmq::socket_type::req};
  std::string good_key = std::string(32, '\0');

  parties() {
    ::zmq_z85_decode(reinterpret_cast<std::uint8_t*>(good_key.data()), good.public_key.c_str());
    asker.set(zmq::sockopt::linger, 0);
    asker.set(zmq::sockopt::rcvtimeo, 20'000);
    asker.connect("inproc://zeromq.zap.01");
  }
  [[nodiscard]] static parties& instance() {
    static parties all;
    return all;
  }
};

[[nodiscard]] std::vector<std::string> question_of(fuzz::input& in) {
  std::vector<std::string> out{
      "1.0", "1", "tensorhub", "127.0.0.1", "", "CURVE", parties::instance().good_key};
  if (in.once_in(2)) out[in.below(out.size())] = in.text(64);
  if (in.once_in(4)) out.resize(1 + in.below(out.size()));
  if (in.once_in(4)) out.resize(out.size() + in.below(8), in.text(255));
  return out;
}

/// False: nothing has come in time. (The fuzzer's timer interrupts.)
[[nodiscard]] bool hear(zmq::message_t& part) {
  for (;;) {
    try {
      return parties::instance().asker.recv(part).has_value();
    } catch (const zmq::error_t& e) {
      if (e.num() != EINTR) throw;
    }
  }
}

void ask(const std::vector<std::string>& question) {
  parties& all = parties::instance();
  for (std::size_t i = 0; i < question.size(); ++i)
    all.asker.send(zmq::const_buffer{question[i].data(), question[i].size()},
                   i + 1 < question.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
  std::vector<std::string> answer;
  for (bool more = true; more;) {
    zmq::message_t part;
    fuzz::require(hear(part), "every question is answered");
    answer.push_back(part.to_string());
    more = part.more();
  }
  fuzz::require(answer.size() == 6 && answer[0] == "1.0", "an answer has the form of ZAP 1.0");
  fuzz::require(answer[1] == (question.size() > 1 ? question[1] : ""), "it names the question");
  const bool is_good = question.size() == 7 && question[5] == "CURVE" && question[6] == all.good_key;
  fuzz::require((answer[2] == "200") == is_good, "only a key on the list is let in");
  fuzz::require((answer[4] == all.good.public_key) == is_good, "it is the client's key");
  static_cast<void>(all.guard.take_log());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  fuzz::input in{data, bytes};
  for (int questions = 0; questions < 8 && !in.empty(); ++questions) ask(question_of(in));
  return 0;
}
