#pragma once
/// \file source_process.hpp
/// What the tests of transports against other processes share: a source in a forked process, a reading side
/// in this process, and the cases of a source that is killed, stopped or replaced with reads outstanding.

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tensorhub/concepts/memory_space.hpp>
#include <tensorhub/concepts/transport.hpp>
#include <tensorhub/error.hpp>
#include <tensorhub/memory/host.hpp>
#include <utility>
#include <vector>

#include "support/child_process.hpp"

namespace source_processes {

using namespace std::chrono_literals;
using processes::channel;
using processes::child_process;
using tensorhub::completion;
using tensorhub::completion_status;
using tensorhub::errc;
using tensorhub::incarnation;
using counts = std::map<completion_status, std::size_t>;  ///< how often reads ended so

inline constexpr std::uint64_t region_bytes = 16u << 20;
inline constexpr incarnation source_id{21};
inline constexpr incarnation reader_id{22};
inline constexpr incarnation successor_id{23};
inline constexpr std::size_t reads_at_once = 8;

/// What all memory of the source is filled with, and of its successor; a reader's target is zero.
inline constexpr std::byte byte_of_source{0xaa};
inline constexpr std::byte byte_of_successor{0xbb};
[[nodiscard]] constexpr std::byte byte_of(incarnation self) {
  return self == successor_id ? byte_of_successor : byte_of_source;
}

inline constexpr std::uint64_t piece_bytes = 1u << 20;  ///< memory is filled and compared in such pieces

/// Fills a range with one byte, also where the CPU cannot touch it.
template <tensorhub::memory_space Memory>
void fill(const tensorhub::memory_range& range, std::byte with) {
  Memory memory;
  const std::vector<std::byte> piece(piece_bytes, with);
  for (std::uint64_t at = 0; at < range.bytes; at += piece_bytes)
    memory.copy(range.data + at, piece.data(), std::min(piece_bytes, range.bytes - at));
}

// ---- messages of a source to the test

using text = std::array<char, 1024>;

[[nodiscard]] inline text text_of(const std::string& from) {
  text out{};
  from.copy(out.data(), out.size() - 1);
  return out;
}
/// Says where the source is and what it serves.
template <tensorhub::transport T>
void introduce(const channel& line, const T& through, const typename T::memory_region& region) {
  line.tell(text_of(through.address().text));
  line.tell(through.describe(region));
}

/// A process that serves one region, until it is killed. `port_of(options)` is where options have the port,
/// `Memory` what the region is of.
template <tensorhub::transport T, tensorhub::memory_space Memory = tensorhub::host_memory>
struct source_process {
  child_process process;
  tensorhub::transport_address address{};
  tensorhub::remote_region region{};

  /// Fork before this process has threads. With `later`, the child starts to listen when it is told where.
  template <typename PortOf>
  source_process(const typename T::options& how, PortOf&& port_of, incarnation self = source_id,
                 bool later = false)
      : process{[&](channel& line) {
          typename T::options mine = how;
          port_of(mine) = later ? line.take<std::uint16_t>() : std::uint16_t{0};
          const typename Memory::allocation memory = Memory{}.allocate(region_bytes);
          T through{mine, self};
          const auto range = memory.range();
          fill<Memory>(range, byte_of(self));
          const auto regions =
              through.register_memory(std::span{&range, 1}, tensorhub::region_access::remote_read);
          introduce(line, through, regions.front());
          for (;;) ::pause();
        }} {
    if (!later) hear();
  }
  void listen_on(std::uint16_t port) {
    process.line().tell(port);
    hear();
  }
  void signal(int number) const { process.signal(number); }

 private:
  void hear() {
    address.text = process.line().take<text>().data();
    region = process.line().take<tensorhub::remote_region>();
  }
};

// ---- this process

using endings = std::map<tensorhub::request_id, completion_status>;

[[nodiscard]] inline counts counted(const endings& each) {
  counts out;
  for (const auto& [id, status] : each) ++out[status];
  return out;
}

/// Takes in what is outstanding, and checks that every read ends, and ends once. `after_first()` is called
/// when the first of them has ended.
template <typename Queue>
endings drain_each(Queue& queue, const std::function<void()>& after_first = {}) {
  endings ended;
  const std::size_t posted = queue.outstanding();
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (queue.outstanding() > 0 && std::chrono::steady_clock::now() < until) {
    std::array<completion, 16> done;
    const std::size_t count = queue.poll(done);
    if (count > 0 && ended.empty() && after_first) after_first();
    for (std::size_t i = 0; i < count; ++i) {
      const bool is_first_of_its_id = ended.try_emplace(done[i].id, done[i].status).second;
      CHECK(is_first_of_its_id);
    }
    if (count == 0) queue.wait(1s);
  }
  CHECK(queue.outstanding() == 0);
  CHECK(ended.size() == posted);
  std::array<completion, 4> more;
  CHECK(queue.poll(more) == 0);
  return ended;
}

/// A reader: a transport, memory for what it reads, a queue and one endpoint.
template <tensorhub::transport T, tensorhub::memory_space Memory = tensorhub::host_memory>
struct reading_side {
  T through;
  typename Memory::allocation target;
  tensorhub::memory_range range = target.range();
  std::vector<typename T::memory_region> into =
      through.register_memory(std::span{&range, 1}, tensorhub::region_access::local_write);
  typename T::queue queue = through.make_queue(2 * reads_at_once);
  std::optional<typename T::endpoint> endpoint{};

  explicit reading_side(const typename T::options& options = {}, std::uint64_t bytes = region_bytes)
      : through{options, reader_id}, target{Memory{}.allocate(bytes)} {}

  void connect(const tensorhub::transport_address& address, incarnation peer = source_id) {
    endpoint.reset();
    endpoint.emplace(through.connect(queue, address, peer, 10s));
  }
  /// Code and sentence of a refused connection; `ok` if it was made.
  std::pair<errc, std::string> try_to_connect(const tensorhub::transport_address& address,
                                              std::chrono::milliseconds timeout = 5s,
                                              incarnation peer = source_id) {
    try {
      endpoint.reset();
      endpoint.emplace(through.connect(queue, address, peer, timeout));
      return {errc::ok, {}};
    } catch (const tensorhub::error& e) {
      return {e.code(), e.sentence()};
    }
  }
  void post(const tensorhub::remote_region& from, std::uint64_t bytes, std::uint64_t offset = 0,
            tensorhub::request_id id = 0, std::uint64_t to = 0) {
    REQUIRE(queue.post_read(*endpoint, into.front(), to, {&from, offset, bytes}, id) ==
            tensorhub::post_result::posted);
  }
  /// Several reads of all that fits.
  void post_all(const tensorhub::remote_region& from, std::size_t count = reads_at_once) {
    for (std::size_t i = 0; i < count; ++i) post(from, range.bytes, 0, i);
  }
  /// Several reads of a whole region, each to a place of its own: read i to i * region_bytes.
  void post_side_by_side(const tensorhub::remote_region& from) {
    for (std::size_t i = 0; i < reads_at_once; ++i) post(from, region_bytes, 0, i, i * region_bytes);
  }
  counts drain(const std::function<void()>& after_first = {}) {
    return counted(drain_each(queue, after_first));
  }
  /// How many bytes of a part of the target are neither of these two.
  [[nodiscard]] std::uint64_t others_than(std::byte one, std::byte other, std::uint64_t from = 0,
                                          std::uint64_t bytes = UINT64_MAX) const {
    Memory memory;
    std::vector<std::byte> piece(piece_bytes);
    const std::vector<std::byte> whole(piece_bytes, one);
    const std::uint64_t end = from + std::min(bytes, range.bytes - from);
    std::uint64_t found = 0;
    for (std::uint64_t at = from; at < end; at += piece_bytes) {
      const std::uint64_t here = std::min(piece_bytes, end - at);
      memory.copy(piece.data(), range.data + at, here);
      if (std::memcmp(piece.data(), whole.data(), here) == 0) continue;
      for (std::uint64_t i = 0; i < here; ++i) found += piece[i] != one && piece[i] != other ? 1 : 0;
    }
    return found;
  }
  /// How one read ends.
  completion_status read(const tensorhub::remote_region& from, std::uint64_t bytes = 4096,
                         std::uint64_t offset = 0) {
    post(from, bytes, offset);
    const counts ended = drain();
    REQUIRE(ended.size() == 1);
    return ended.begin()->first;
  }
};

// ---- cases

enum class moment { before_the_reads, after_the_posts, after_a_completion };

/// Each read has ended as `ok` or `peer_lost`. One that says `ok` has brought all bytes of the source, one
/// that does not some of them or none; and none has brought anything else.
template <typename Reader>
void check_bytes(const Reader& reader, const endings& ended) {
  for (const auto& each : ended) {
    const tensorhub::request_id id = each.first;
    const completion_status status = each.second;
    CAPTURE(id);
    CHECK((status == completion_status::ok || status == completion_status::peer_lost));
    const std::byte untouched = status == completion_status::ok ? byte_of_source : std::byte{0};
    CHECK(reader.others_than(byte_of_source, untouched, id * region_bytes, region_bytes) == 0);
  }
}

/// Reads, sends a signal to the source at that moment, and counts how each of the reads ends. No read ends
/// well afterwards.
template <tensorhub::transport T, tensorhub::memory_space Memory = tensorhub::host_memory, typename Source>
counts end_while_reading(const Source& source, const typename T::options& options, int signal, moment when) {
  reading_side<T, Memory> reader{options, reads_at_once * region_bytes};
  reader.connect(source.address);
  CHECK(reader.read(source.region) == completion_status::ok);
  CHECK(reader.others_than(byte_of_source, byte_of_source, 0, 4096) == 0);
  if (when == moment::before_the_reads) source.signal(signal);
  reader.post_side_by_side(source.region);
  if (when == moment::after_the_posts) source.signal(signal);
  const endings ended = drain_each(reader.queue, [&] {
    if (when == moment::after_a_completion) source.signal(signal);
  });
  check_bytes(reader, ended);
  CHECK(!reader.endpoint->usable());
  CHECK(reader.read(source.region) == completion_status::peer_lost);
  return counted(ended);
}

/// The number behind the last colon.
[[nodiscard]] inline std::uint16_t port_in(const std::string& address) {
  return static_cast<std::uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)));
}

/// The source is replaced by another process at its address while it is read: nothing of the new process
/// arrives. `end_first()` kills the source; `second()` is then at its address, as `successor_id`.
template <tensorhub::transport T, typename Source, typename EndFirst, typename Second>
void replace_while_reading(const typename T::options& options, const Source& first, EndFirst&& end_first,
                           Second&& second) {
  reading_side<T> reader{options, reads_at_once * region_bytes};
  const auto address = first.address;
  const tensorhub::remote_region old_region = first.region;
  reader.connect(address);
  reader.post_side_by_side(old_region);
  end_first();
  const auto& successor = second();
  REQUIRE(successor.address.text == address.text);
  const endings ended = drain_each(reader.queue);
  CHECK(counted(ended).contains(completion_status::peer_lost));
  check_bytes(reader, ended);
  CHECK(!reader.endpoint->usable());
  const auto refused = reader.try_to_connect(successor.address);
  const std::string& sentence = refused.second;
  CHECK(refused.first == errc::transport_failed);
  CHECK_MESSAGE(sentence.find("another process") != std::string::npos, sentence);
  reader.connect(successor.address, successor_id);
  CHECK(reader.read(old_region) == completion_status::access_denied);
  CHECK(reader.others_than(byte_of_source, std::byte{0}) == 0);
  if (!reader.endpoint->usable()) reader.connect(successor.address, successor_id);
  CHECK(reader.read(successor.region) == completion_status::ok);
  CHECK(reader.others_than(byte_of_successor, byte_of_successor, 0, 4096) == 0);
}

/// The same for a source that is forked: its successor exists already, for this process has threads by then.
template <tensorhub::transport T, typename PortOf>
void replace_forked_source(const typename T::options& source_options,
                           const typename T::options& reader_options, PortOf&& port_of) {
  source_process<T> second{source_options, port_of, successor_id, true};
  source_process<T> first{source_options, port_of};
  replace_while_reading<T>(
      reader_options, first, [&] { first.process.end(); },
      [&]() -> auto& {
        second.listen_on(port_in(first.address.text));
        return second;
      });
}

}  // namespace source_processes
