#pragma once
/// \file source_process.hpp
/// A transport over sockets against a source in another process, which is killed, stopped, or replaced with
/// reads outstanding.

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <tensorhub/concepts/memory_space.hpp>
#include <tensorhub/concepts/transport.hpp>
#include <tensorhub/detail/unique_fd.hpp>
#include <tensorhub/error.hpp>
#include <tensorhub/memory/host.hpp>
#include <vector>

#include "../process_signal.hpp"

namespace source_processes {

using namespace std::chrono_literals;
using tensorhub::completion;
using tensorhub::completion_status;
using tensorhub::incarnation;

inline constexpr std::uint64_t region_bytes = 64u << 20;
inline constexpr incarnation source_id{21};
inline constexpr incarnation reader_id{22};

/// A process that serves one region, until it is killed. `port_of(options)` is where options have the port,
/// `Memory` what the region is of.
template <tensorhub::transport T, tensorhub::memory_space Memory = tensorhub::host_memory>
struct source_process {
  pid_t id = -1;
  tensorhub::transport_address address{};
  tensorhub::remote_region region{};

  /// Fork before this process has threads. With `later`, the child starts to listen when it is told where.
  template <typename PortOf>
  source_process(typename T::options how, PortOf&& port_of, incarnation self = source_id,
                 bool later = false) {
    int ends[2], orders[2];
    REQUIRE(::pipe(ends) == 0);
    REQUIRE(::pipe(orders) == 0);
    id = ::fork();
    if (id == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(orders[1]);
      std::uint16_t port = 0;
      if (later && ::read(orders[0], &port, sizeof port) <= 0) std::_Exit(1);
      port_of(how) = port;
      const typename Memory::allocation memory = Memory{}.allocate(region_bytes);
      T through{how, self};
      const auto range = memory.range();
      const auto regions =
          through.register_memory(std::span{&range, 1}, tensorhub::region_access::remote_read);
      const auto described = through.describe(regions.front());
      std::array<char, 256> text{};
      through.address().text.copy(text.data(), text.size() - 1);
      static_cast<void>(::write(ends[1], text.data(), text.size()));
      static_cast<void>(::write(ends[1], &described, sizeof described));
      for (;;) ::pause();
    }
    ::close(ends[1]);
    ::close(orders[0]);
    answers_.reset(ends[0]);
    orders_.reset(orders[1]);
    if (!later) hear();
  }
  void listen_on(std::uint16_t port) {
    REQUIRE(::write(orders_.get(), &port, sizeof port) == static_cast<ssize_t>(sizeof port));
    hear();
  }
  ~source_process() {
    ::kill(id, SIGKILL);
    ::waitpid(id, nullptr, 0);
  }

 private:
  void hear() {
    std::array<char, 256> text{};
    REQUIRE(::read(answers_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    REQUIRE(::read(answers_.get(), &region, sizeof region) == static_cast<ssize_t>(sizeof region));
    address.text = text.data();
  }
  tensorhub::detail::unique_fd answers_, orders_;
};

/// Posts reads, does something to the source, and counts how each of them ends.
template <tensorhub::transport T, tensorhub::memory_space Memory>
std::map<completion_status, std::size_t> end_while_reading(const source_process<T, Memory>& source,
                                                           typename T::options reader_options, int signal,
                                                           bool ends_at_once) {
  T through{reader_options, reader_id};
  const typename Memory::allocation target = Memory{}.allocate(region_bytes);
  const auto range = target.range();
  const auto into = through.register_memory(std::span{&range, 1}, tensorhub::region_access::local_write);
  constexpr std::size_t reads = 8;
  auto queue = through.make_queue(reads);
  auto endpoint = through.connect(queue, source.address, source_id, 5s);
  if (ends_at_once) signal_process(source.id, signal);
  for (std::size_t i = 0; i < reads; ++i) {
    REQUIRE(queue.post_read(endpoint, into.front(), 0, {&source.region, 0, region_bytes}, i) ==
            tensorhub::post_result::posted);
  }
  if (!ends_at_once) signal_process(source.id, signal);
  std::map<completion_status, std::size_t> ended;
  std::vector<std::size_t> times(reads);
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (queue.outstanding() > 0 && std::chrono::steady_clock::now() < until) {
    std::array<completion, reads> done;
    const std::size_t count = queue.poll(done);
    for (std::size_t i = 0; i < count; ++i) {
      ++ended[done[i].status];
      ++times.at(done[i].id);
    }
    if (count == 0) queue.wait(1s);
  }
  CHECK(queue.outstanding() == 0);
  for (const std::size_t count : times) CHECK(count == 1);
  std::array<completion, 4> more;
  CHECK(queue.poll(more) == 0);
  CHECK(!endpoint.usable());
  return ended;
}

/// The source is replaced by another process at its port while it is read: nothing of the new one arrives.
template <tensorhub::transport T, typename PortOf>
void replace_while_reading(const typename T::options& source_options,
                           const typename T::options& reader_options, PortOf&& port_of) {
  constexpr incarnation other_id{23};
  source_process<T> second{source_options, port_of, other_id, true};
  auto first = std::make_unique<source_process<T>>(source_options, port_of);
  const std::string where = first->address.text;
  T through{reader_options, reader_id};
  const tensorhub::host_memory::allocation target{region_bytes};
  const auto range = target.range();
  const auto into = through.register_memory(std::span{&range, 1}, tensorhub::region_access::local_write);
  auto queue = through.make_queue(8);
  auto endpoint = through.connect(queue, first->address, source_id, 5s);
  const tensorhub::remote_region region = first->region;
  for (std::size_t i = 0; i < 8; ++i) {
    REQUIRE(queue.post_read(endpoint, into.front(), 0, {&region, 0, region_bytes}, i) ==
            tensorhub::post_result::posted);
  }
  first.reset();  // killed
  second.listen_on(static_cast<std::uint16_t>(std::stoi(where.substr(where.rfind(':') + 1))));
  REQUIRE(second.address.text == where);
  std::size_t lost = 0;
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (queue.outstanding() > 0 && std::chrono::steady_clock::now() < until) {
    std::array<completion, 8> done;
    const std::size_t count = queue.poll(done);
    for (std::size_t i = 0; i < count; ++i) lost += done[i].status == completion_status::peer_lost ? 1 : 0;
    if (count == 0) queue.wait(1s);
  }
  CHECK(lost > 0);
  CHECK(queue.outstanding() == 0);
  CHECK(!endpoint.usable());
  std::string sentence;
  try {
    static_cast<void>(through.connect(queue, second.address, source_id, 5s));
  } catch (const tensorhub::error& e) {
    sentence = e.what();
  }
  CHECK_MESSAGE(sentence.find("another process") != std::string::npos, sentence);
  auto meant = through.connect(queue, second.address, other_id, 5s);
  CHECK(meant.usable());
}

}  // namespace source_processes
