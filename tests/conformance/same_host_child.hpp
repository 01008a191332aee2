#pragma once
/// \file same_host_child.hpp
/// What tests with a same-host source in another process have in common: the process, and what became of
/// the reads from it.

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <iostream>
#include <map>
#include <string>
#include <tensorhub/transports/same_host.hpp>

namespace same_host_tests {

using counts = std::map<tensorhub::completion_status, std::size_t>;

/// A process of this one's that hears orders and answers. It ends when it is told to, or when the test does.
struct child_process {
  pid_t id = -1;
  int orders = -1;
  int answers = -1;

  /// The child runs `serve(up, down)`, with which it answers and hears, and ends if that returns or throws.
  template <typename Serve>
  explicit child_process(Serve&& serve) {
    int up[2];
    int down[2];
    REQUIRE(::pipe(up) == 0);
    REQUIRE(::pipe(down) == 0);
    id = ::fork();
    if (id == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(down[1]);
      try {
        serve(up[1], down[0]);
      } catch (const std::exception& e) {
        std::cerr << "source process: " << e.what() << "\n";
      }
      std::_Exit(1);
    }
    ::close(up[1]);
    ::close(down[0]);
    orders = down[1];
    answers = up[0];
  }
  ~child_process() {
    end();
    ::close(orders);
    ::close(answers);
  }
  child_process(const child_process&) = delete;
  child_process& operator=(const child_process&) = delete;

  void end() {
    if (id < 0) return;
    ::kill(id, SIGKILL);
    ::waitpid(id, nullptr, 0);
    id = -1;
  }

  /// A value, as the child has written it.
  template <typename Value>
  void hear(Value& value) const {
    REQUIRE(::read(answers, &value, sizeof value) == static_cast<ssize_t>(sizeof value));
  }
  [[nodiscard]] std::string hear_text() const {
    std::array<char, 256> text{};
    hear(text);
    return text.data();
  }
  /// The child's side of both.
  template <typename Value>
  static void tell(int up, const Value& value) {
    static_cast<void>(!::write(up, &value, sizeof value));
  }
  static void tell_text(int up, const std::string& text) {
    std::array<char, 256> out{};
    text.copy(out.data(), out.size() - 1);
    tell(up, out);
  }
};

/// Takes in what is outstanding: how often each status came. Every read ends once.
[[nodiscard]] inline counts drain(tensorhub::transports::same_host::queue& queue) {
  using namespace std::chrono_literals;
  counts ended;
  std::map<tensorhub::request_id, std::size_t> times;
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (queue.outstanding() > 0 && std::chrono::steady_clock::now() < until) {
    std::array<tensorhub::completion, 8> done;
    const std::size_t count = queue.poll(done);
    for (std::size_t i = 0; i < count; ++i) {
      ++ended[done[i].status];
      ++times[done[i].id];
    }
    if (count == 0) queue.wait(1s);
  }
  CHECK(queue.outstanding() == 0);
  for (const auto& [id, count] : times) CHECK(count == 1);
  return ended;
}

}  // namespace same_host_tests
