// Transports in a process that may start only some of the threads that they want, or watch only some
// descriptors: a source is not made, with an error; a reader copies with fewer threads, or is refused. None
// waits for ever.

#include <doctest/doctest.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <iostream>
#include <span>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <vector>

#include "support/child_process.hpp"
#include "support/few_threads.hpp"

#ifdef TENSORHUB_HAS_TLS
#include <tensorhub/transports/tls.hpp>

#include "tls_certificates.hpp"
#endif

#if TENSORHUB_THREADS_CAN_FAIL

static std::atomic<int> watches_left = -1;  ///< -1: as many as fs.epoll.max_user_watches allows

extern "C" int epoll_ctl(int set, int operation, int descriptor, epoll_event* event) noexcept {
  static const auto real = reinterpret_cast<decltype(&epoll_ctl)>(::dlsym(RTLD_NEXT, "epoll_ctl"));
  if (operation == EPOLL_CTL_ADD && watches_left == 0) {
    errno = ENOSPC;
    return -1;
  }
  if (operation == EPOLL_CTL_ADD && watches_left > 0) --watches_left;
  return real(set, operation, descriptor, event);
}

namespace {

using namespace std::chrono_literals;
using tensorhub::errc;
using tensorhub::transports::same_host;
using tensorhub::transports::tcp;

/// How `work()` ends in a process that can start so many threads. `timed_out`: it does not.
template <typename Work>
errc ending(int threads, const Work& work) {
  const processes::child_process child{[&](processes::channel& line) {
    threads_left = threads;
    errc code = errc::ok;
    try {
      work();
    } catch (const tensorhub::error& e) {
      code = e.code();
    }
    line.tell(code);
  }};
  errc code = errc::timed_out;
  static_cast<void>(child.line().try_take(code, 20s));
  return code;
}

/// A reader with three threads reads what this process itself serves.
void read_with_three_threads() {
  constexpr std::size_t bytes = 4u << 20;
  std::vector<std::byte> from(bytes, std::byte{7}), to(bytes);
  const tensorhub::memory_range source_range{from.data(), bytes}, target_range{to.data(), bytes};
  same_host both{{.copy_threads = 3}, {1}};
  const auto region =
      both.register_memory(std::span{&source_range, 1}, tensorhub::region_access::remote_read);
  const auto into = both.register_memory(std::span{&target_range, 1}, tensorhub::region_access::local_write);
  auto queue = both.make_queue(1);
  auto endpoint = both.connect(queue, both.address(), {1}, 10s);
  const tensorhub::remote_region remote = both.describe(region.front());
  static_cast<void>(queue.post_read(endpoint, into.front(), 0, {&remote, 0, bytes}, 1));
  std::array<tensorhub::completion, 1> done{};
  while (queue.poll(done) == 0) queue.wait(1s);
  if (done[0].status != tensorhub::completion_status::ok || to != from)
    throw tensorhub::error(errc::corrupt, "the bytes have not arrived");
}

}  // namespace

TEST_CASE("tcp: a source whose threads cannot all be started ends with an error") {
  const auto make = [] { const tcp source{{.io_threads = 3}, {1}}; };
  for (int threads = 0; threads < 3; ++threads) {
    CAPTURE(threads);
    CHECK(ending(threads, make) == errc::system_failed);
  }
  CHECK(ending(3, make) == errc::ok);
}

/// How a reader connects to a source of its own process, in which so many descriptors may be watched.
template <typename Transport>
static errc connecting(int watches, typename Transport::options options) {
  return ending(-1, [&] {
    watches_left = watches;
    Transport both{options, {1}};
    auto queue = both.make_queue(1);
    static_cast<void>(both.connect(queue, both.address(), {1}, 10s));
  });
}

TEST_CASE("few watches: a source that cannot watch its own descriptors is not made, nor a reader accepted") {
  for (int watches = 0; watches < 3; ++watches) {  // the listener, and what wakes two threads
    CAPTURE(watches);
    CHECK(connecting<tcp>(watches, {.io_threads = 2}) == errc::system_failed);
  }
  CHECK(connecting<tcp>(3, {.io_threads = 2}) == errc::transport_failed);
  CHECK(connecting<tcp>(4, {.io_threads = 2}) == errc::ok);
  CHECK(connecting<same_host>(1, {}) == errc::system_failed);
  CHECK(connecting<same_host>(2, {}) == errc::transport_failed);
  CHECK(connecting<same_host>(3, {}) == errc::ok);
}

TEST_CASE("tcp: a source whose threads would have too small a stack is not made") {
  const auto with_stack = [](std::size_t bytes) {
    return ending(-1, [bytes] {
      pthread_attr_t usual;
      REQUIRE(::pthread_getattr_default_np(&usual) == 0);
      REQUIRE(::pthread_attr_setstacksize(&usual, bytes) == 0);
      REQUIRE(::pthread_setattr_default_np(&usual) == 0);
      const tcp source{{}, {1}};
    });
  };
  // The guard, a page, is part of a stack. Where pages are small, ARM has no stack that is too small.
  const std::size_t enough = (124u << 10) + static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t less = enough - (32u << 10);
  if (less >= static_cast<std::size_t>(PTHREAD_STACK_MIN)) CHECK(with_stack(less) == errc::system_failed);
  CHECK(with_stack(enough) == errc::ok);
}

#ifdef TENSORHUB_HAS_TLS
TEST_CASE("tls: a source whose threads cannot all be started ends with an error") {
  const tls_tests::authority authority;
  auto options = authority.options();
  options.tcp.io_threads = 2;
  const auto make = [&] { const tensorhub::transports::tls source{options, {1}}; };
  for (int threads = 0; threads < 3; ++threads) {  // one greets
    CAPTURE(threads);
    CHECK(ending(threads, make) == errc::system_failed);
  }
  CHECK(ending(3, make) == errc::ok);
}
#endif

TEST_CASE("same_host: a reader whose helpers cannot all be started copies with those that are there") {
  for (int threads = 1; threads <= 3; ++threads) {  // the first one is the source's
    CAPTURE(threads);
    CHECK(ending(threads, read_with_three_threads) == errc::ok);
  }
}

#else

TEST_CASE("threads that cannot be started") {
  std::cout << "SKIPPED: conformance.few_threads: the sanitizer itself replaces pthread_create" << std::endl;
}

#endif
