/// \file few_descriptors.cpp
/// Processes that can open few descriptors: what cannot be made says so, and ends no process.

#include "support/few_descriptors.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>

#include "support/calls.hpp"
#include "support/child_process.hpp"
#include "tensorhub/detail/descriptor_limit.hpp"
#include "tensorhub/security.hpp"
#include "tensorhub/server.hpp"
#include "tensorhub/service/control_connection.hpp"
#include "tensorhub/service/zmq_socket.hpp"

using namespace tensorhub;
using calls::code_of;
using calls::contains;

namespace {

[[nodiscard]] std::ptrdiff_t open_descriptors() {
  using entries = std::filesystem::directory_iterator;
  return std::distance(entries{"/proc/self/fd"}, entries{});
}

/// Makes it with ever more descriptors.
template <typename Make>
void check_with_few(Make&& make, std::size_t needed) {
  const auto before = open_descriptors();
  for (std::size_t left = 0; left <= needed + 2; ++left) {
    CAPTURE(left);
    errc ended{};
    std::string sentence;
    {
      const few_descriptors scarce{left};
      ended = code_of(make, &sentence);
    }
    CHECK(ended == (left < needed ? errc::system_failed : errc::ok));
    if (left < needed) CHECK_MESSAGE(contains(sentence, "ulimit -n"), sentence);
    CHECK(open_descriptors() == before);
  }
}

[[nodiscard]] reference_server_options with_keys() {
  reference_server_options out;
  out.security = server_security{make_curve_keys(), {{make_curve_keys().public_key, client_rules{"x"}}}};
  return out;
}

constexpr const char* scarce_case = "the process that can open few descriptors";

}  // namespace

// ZeroMQ ends the process with abort() if one of its threads finds no descriptor.
TEST_CASE("few descriptors: servers and control connections are refused with a sentence") {
  processes::child_process scarce = processes::child_process::of_test_case(scarce_case);
  CHECK(scarce.how_it_ended() == "ended with status 0");
}

TEST_CASE("the process that can open few descriptors" * doctest::skip()) {
  static_cast<void>(processes::channel_of_parent());
  check_with_few([] { const reference_server<> server; }, detail::descriptors_of_server);
  check_with_few([options = with_keys()] { const reference_server<> server{options}; },
                 detail::descriptors_of_server);
  check_with_few(
      [] {
        const control_connection connection{"tcp://127.0.0.1:1", std::nullopt};
      },
      detail::descriptors_of_connection);
}

TEST_CASE("few descriptors: whether there is another one") {
  CHECK(detail::has_free_descriptor());
  few_descriptors scarce{0};
  CHECK_FALSE(detail::has_free_descriptor());
  scarce.give(1);
  CHECK(detail::has_free_descriptor());
  CHECK(detail::has_free_descriptor());  // it was given back
}
