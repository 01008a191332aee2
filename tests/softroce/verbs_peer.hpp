#pragma once
/// \file verbs_peer.hpp
/// What the test tells a source in another process to do, and what the source answers.
///
/// The process is this program once more, started anew: the libraries under verbs do not survive a fork. It
/// runs the (otherwise skipped) test case "the other process".

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <tensorhub/types/ids.hpp>
#include <tensorhub/types/memory.hpp>

#include "support/child_process.hpp"

namespace softroce_tests {

enum class peer_action : std::uint64_t {
  start_source,  ///< listens at `address`:`port` as `self` and registers `bytes` bytes of ones
  revoke,
  deregister,
  cut_off,       ///< reader `self`
  read_forever,  ///< connects to `address` as `self` and reads `region`; answers when it has begun
  lock_little,   ///< may lock `bytes` bytes, and registers 64 times as much
};

struct peer_order {
  peer_action action{};
  tensorhub::incarnation self{};
  tensorhub::incarnation source{};
  std::uint64_t bytes = 0;
  std::uint16_t port = 0;
  std::array<char, 256> address{};
  tensorhub::remote_region region{};
};

struct peer_answer {
  std::uint64_t value = 0;
  std::array<char, 1024> text{};  ///< address, or a sentence
  tensorhub::remote_region region{};
};

template <typename Text>
void set_text(Text& into, const std::string& from) {
  into = {};
  from.copy(into.data(), into.size() - 1);
}

struct peer_process {
  processes::child_process process = processes::child_process::of_test_case("the other process");

  /// Throws if there is no answer within 30 s.
  [[nodiscard]] peer_answer ask(const peer_order& order) const {
    process.line().tell(order);
    return process.line().take<peer_answer>(std::chrono::seconds{30});
  }
  void signal(int number) const { process.signal(number); }
  void end() { process.end(); }
};

}  // namespace softroce_tests
