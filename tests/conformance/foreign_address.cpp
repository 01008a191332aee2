// Every transport is given every other transport's address: an error that says so, in time, and no harm done.

#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <tensorhub/error.hpp>
#include <tensorhub/testing/memory_transport.hpp>
#include <tensorhub/transfer/first_of.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <utility>
#include <vector>
#ifdef TENSORHUB_HAS_LIBFABRIC
#include <tensorhub/transports/libfabric.hpp>
#endif

using namespace std::chrono_literals;
using namespace tensorhub;
using namespace tensorhub::transports;

namespace {

/// A process of some transport that serves one region, and how it connects to an address.
struct party {
  std::string name;
  std::string address;
  std::function<errc(const std::string&, incarnation, std::string&)> connect;
  std::function<bool()> still_serves;
};

template <transport T>
party make_party(std::uint64_t id) {
  struct state {
    T through{{}, {}};
    std::vector<std::byte> bytes = std::vector<std::byte>(4096, std::byte{7});
    std::vector<typename T::memory_region> regions{};
    explicit state(incarnation self) : through{{}, self} {
      const memory_range range{bytes.data(), bytes.size()};
      regions = through.register_memory(std::span{&range, 1}, region_access::both);
    }
  };
  const incarnation self{id};
  const auto own = std::make_shared<state>(self);
  party out;
  out.name = T::name;
  out.address = own->through.address().text;
  out.connect = [own](const std::string& where, incarnation peer, std::string& sentence) {
    auto queue = own->through.make_queue(1);
    try {
      static_cast<void>(own->through.connect(queue, {where}, peer, 3s));
    } catch (const error& e) {
      sentence = e.what();
      return e.code();
    }
    return errc::ok;
  };
  out.still_serves = [own, self] {
    T reader{{}, incarnation{self.value + 1000}};
    std::vector<std::byte> target(4096);
    const memory_range range{target.data(), target.size()};
    const auto into = reader.register_memory(std::span{&range, 1}, region_access::local_write);
    auto queue = reader.make_queue(1);
    auto endpoint = reader.connect(queue, own->through.address(), self, 3s);
    const remote_region from = own->through.describe(own->regions.front());
    if (queue.post_read(endpoint, into.front(), 0, {&from, 0, 4096}, 1) != post_result::posted) return false;
    completion done;
    const auto until = std::chrono::steady_clock::now() + 10s;
    while (queue.poll({&done, 1}) == 0 && std::chrono::steady_clock::now() < until) queue.wait(100ms);
    return done.id == 1 && done.status == completion_status::ok && target == own->bytes;
  };
  return out;
}

}  // namespace

TEST_CASE("an address of another transport, or of nothing, is refused with a sentence") {
  std::vector<party> all;
  all.push_back(make_party<tcp>(1));
  all.push_back(make_party<same_host>(2));
  all.push_back(make_party<tensorhub::testing::memory_transport>(3));
  all.push_back(make_party<first_of<same_host, tcp>>(4));
#ifdef TENSORHUB_HAS_LIBFABRIC
  all.push_back(make_party<libfabric>(5));
#else
  MESSAGE("libfabric is not built: it does not take part");
#endif
  std::vector<std::string> nonsense{"",
                                    "tcp://",
                                    "tcp://127.0.0.1",
                                    "tcp://127.0.0.1:0",
                                    "tcp://127.0.0.1:99999",
                                    "tcp://[::1",
                                    "same_host://",
                                    "libfabric://",
                                    "verbs://10.0.0.1:1",
                                    "first_of/1 ",
                                    "127.0.0.1:80",
                                    std::string(3000, 'a'),
                                    std::string("tcp://127.0.0.1\0:80", 19)};
#ifdef TENSORHUB_HAS_LIBFABRIC
  // Shorter than an address of that family (of IPv6), or than any.
  const std::string& own = all.back().address;
  nonsense.push_back(own.substr(0, own.rfind('/') + 1) + "0a00" + std::string(28, '0'));
  nonsense.emplace_back("libfabric://tcp/msg/0/0a");
#endif
  for (const party& from : all) {
    for (std::size_t to = 0; to < all.size(); ++to) {
      if (all[to].name == from.name) continue;
      std::string sentence;
      const errc code = from.connect(all[to].address, {to + 1}, sentence);
      CHECK_MESSAGE((code == errc::transport_failed || code == errc::timed_out),
                    from.name << " to " << all[to].address << ": " << sentence);
      CHECK_MESSAGE(sentence.size() > 20, sentence);
    }
    for (const std::string& where : nonsense) {
      std::string sentence;
      const errc code = from.connect(where, {1}, sentence);
      CHECK_MESSAGE((code == errc::transport_failed || code == errc::timed_out ||
                     code == errc::invalid_argument || code == errc::limit_exceeded),
                    from.name << " to '" << where.substr(0, 40) << "': " << sentence);
    }
  }
  for (const party& each : all) CHECK_MESSAGE(each.still_serves(), each.name);
}

TEST_CASE("a port number of one transport under the name of another: the greeting is not understood") {
  // What a configuration mistake looks like: the right machine and port, the wrong transport.
  const tcp source{{}, incarnation{1}};
  const std::string port = source.address().text.substr(source.address().text.rfind(':') + 1);
#ifdef TENSORHUB_HAS_LIBFABRIC
  libfabric reader{{}, incarnation{2}};
  const std::string own = reader.address().text;
  const std::string where = own.substr(0, own.rfind(':') + 1) + port;
  auto queue = reader.make_queue(1);
  std::string sentence;
  errc code = errc::ok;
  try {
    static_cast<void>(reader.connect(queue, {where}, {1}, 3s));
  } catch (const error& e) {
    code = e.code();
    sentence = e.what();
  }
  CHECK_MESSAGE((code == errc::transport_failed || code == errc::timed_out), where << ": " << sentence);
#else
  MESSAGE("libfabric is not built: nothing to mistake " << port << " for");
#endif
}
