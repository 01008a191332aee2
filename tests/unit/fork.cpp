// What a forked child does not inherit: the sockets of its parent's transports, and memory of host_memory.

#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <tensorhub/detail/process_wide.hpp>
#include <tensorhub/detail/unique_fd.hpp>
#include <tensorhub/detail/unique_socket.hpp>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/service/zmq_socket.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "support/sanitizers.hpp"

using namespace tensorhub;

namespace {

/// Runs `body` in a forked process, which goes on until this object ends.
class forked {
 public:
  template <typename Body>
  explicit forked(Body&& body) : child_{::fork()} {
    REQUIRE(child_ >= 0);
    if (child_ != 0) return;
    ::signal(SIGSEGV, SIG_DFL);
    body();
    for (;;) ::pause();
  }
  ~forked() {
    if (child_ == 0) return;
    ::kill(child_, SIGKILL);
    static_cast<void>(ended_by());
  }
  /// The signal that it is ended by, sooner or later.
  [[nodiscard]] int ended_by() {
    int status = 0;
    ::waitpid(std::exchange(child_, 0), &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }

 private:
  pid_t child_;
};

/// Counts how often it is made.
struct counted_object {
  static inline std::atomic<int> made = 0;
  std::mutex mutex;
  counted_object() { ++made; }
  void in_child() noexcept {}
};

struct connected {
  detail::unique_socket ours;
  detail::unique_fd theirs;
  connected() {
    std::array<int, 2> both{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both.data()) == 0);
    ours = detail::unique_socket{both[0]};
    theirs = detail::unique_fd{both[1]};
  }
  /// Our end was closed, everywhere.
  [[nodiscard]] bool has_ended() const {
    pollfd entry{theirs.get(), POLLIN, 0};
    char byte{};
    return ::poll(&entry, 1, 0) == 1 && ::recv(theirs.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }
};

/// What `body` returns in a forked process, which is killed if it does not end by itself.
template <typename Body>
bool holds_in_child(Body&& body) {
  constexpr unsigned patience_s = 20;
  forked child{[&] {
    ::signal(SIGALRM, SIG_DFL);
    ::alarm(patience_s);
    ::raise(body() ? SIGKILL : SIGTERM);
  }};
  return child.ended_by() == SIGKILL;
}

}  // namespace

TEST_CASE("fork: what a process has once is there before a thread can use it for the first time") {
  CHECK(counted_object::made == 1);
  static_cast<void>(detail::process_wide<counted_object>());
  CHECK(counted_object::made == 1);
}

TEST_CASE("fork: a connection ends when its process closes it, whatever children live") {
  connected pair;
  connected moved;
  moved.ours = std::move(pair.ours);  // what it had before is closed
  CHECK(moved.has_ended());
  int ready[2]{};
  REQUIRE(::pipe(ready) == 0);
  const detail::unique_fd from_child{ready[0]};
  const detail::unique_fd to_parent{ready[1]};
  const forked child{[&] { static_cast<void>(!::write(to_parent.get(), "r", 1)); }};
  char byte{};
  REQUIRE(::read(from_child.get(), &byte, 1) == 1);  // the child has what it inherits
  CHECK_FALSE(pair.has_ended());                     // its copies were given up, ours was not
  REQUIRE(::send(moved.ours.get(), "x", 1, 0) == 1);
  CHECK(::recv(pair.theirs.get(), &byte, 1, MSG_DONTWAIT) == 1);
  moved.ours.reset();
  CHECK(pair.has_ended());
}

TEST_CASE("fork: a child that closes what it has copied ends nothing of its parent's") {
  connected pair;
  forked child{[&] {
    pair.ours.reset();
    ::raise(SIGKILL);
  }};
  CHECK(child.ended_by() == SIGKILL);
  CHECK_FALSE(pair.has_ended());
}

TEST_CASE("fork: a child cannot write to memory that is published") {
  auto memory = host_memory{}.allocate(4096);
  std::byte* const data = memory.range().data;
  *data = std::byte{1};
  forked child{[&] {
    *const_cast<volatile std::byte*>(data) = std::byte{2};
    ::raise(SIGKILL);
  }};
  CHECK(child.ended_by() == SIGSEGV);
  CHECK(*data == std::byte{1});
}

TEST_CASE("fork: a child does not offer the memory of its parent, which it has not inherited") {
  const auto memory = host_memory{}.allocate(4096);
  const memory_range inside{memory.range().data, 64};
  REQUIRE(host_memory{}.allocation_around(inside).backing_fd >= 0);
  CHECK(holds_in_child([&] { return host_memory{}.allocation_around(inside).backing_fd < 0; }));
}

TEST_CASE("fork: a child keeps no page of its parent's allocation: it has not even the file") {
  const auto memory = host_memory{}.allocate(4096);
  const int file = host_memory{}.allocation_around(memory.range()).backing_fd;
  REQUIRE(file >= 0);
  struct stat of_parent {};
  REQUIRE(::fstat(file, &of_parent) == 0);
  CHECK(holds_in_child([&] {
    struct stat here {};
    return ::fstat(file, &here) == 0 && here.st_ino != of_parent.st_ino;
  }));
}

TEST_CASE(
    "fork: an allocation that ends in a child takes nothing that the child has mapped at its addresses") {
  constexpr std::size_t bytes = 4096;
  const auto survives = [](const auto& end) {
    std::optional ended{host_memory{}.allocate(bytes)};
    return holds_in_child([&] {
      std::byte* const data = ended->data();
      const void* const own = ::mmap(data, bytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
      end(ended);
      return own == data && ::msync(data, bytes, MS_ASYNC) == 0;
    });
  };
  CHECK(survives([](auto& ended) { ended.reset(); }));
  CHECK(survives([](auto& ended) { ended = host_memory{}.allocate(bytes); }));
  CHECK(survives([](auto& ended) { auto moved = std::move(*ended); }));
  CHECK(survives([](auto& ended) {
    auto other = host_memory{}.allocate(bytes);
    other = std::move(*ended);
  }));
}

TEST_CASE("fork: an allocation of a child, at the address of its parent's, stays known when that ends") {
  std::optional parents{host_memory{}.allocate(4096)};
  CHECK(holds_in_child([&] {
    const std::byte* const data = parents->data();
    std::vector<host_memory::allocation> own;
    do own.push_back(host_memory{}.allocate(4096));
    while (own.back().data() != data && own.size() < 1000);
    parents.reset();
    return host_memory{}.allocation_around({own.back().data(), 64}).backing_fd >= 0;
  }));
}

TEST_CASE("fork: a child is not held up by what other threads of its parent were doing") {
#if TENSORHUB_UNDER_ADDRESS_SANITIZER
  std::puts("SKIPPED: unit.fork: a child of a busy parent: the sanitizer's own allocator is held up by it");
#else
  std::atomic<bool> ends = false;
  const std::jthread busy{[&] {
    while (!ends) static_cast<void>(host_memory{}.allocate(4096));
  }};
  for (int i = 0; i < 100; ++i)
    CHECK(holds_in_child([] { return host_memory{}.allocate(4096).range().data != nullptr; }));
  ends = true;
#endif
}

TEST_CASE("fork: a child has a ZeroMQ context of its own, whose threads run") {
#if TENSORHUB_UNDER_THREAD_SANITIZER
  std::puts("SKIPPED: unit.fork: a forked child that starts threads: the thread sanitizer ends it");
#else
  const auto ours = detail::shared_context();
  CHECK(holds_in_child([&] {
    const auto own = detail::shared_context();
    zmq::socket_t answers = detail::bounded_socket(*own, zmq::socket_type::rep);
    zmq::socket_t asks = detail::bounded_socket(*own, zmq::socket_type::req);
    answers.bind("tcp://127.0.0.1:*");
    answers.set(zmq::sockopt::rcvtimeo, 10'000);
    asks.connect(answers.get(zmq::sockopt::last_endpoint));
    asks.send(zmq::str_buffer("?"), zmq::send_flags::none);
    zmq::message_t got;
    return own != ours && answers.recv(got).has_value();
  }));
  CHECK(detail::shared_context() == ours);
#endif
}
