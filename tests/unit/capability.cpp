/// \file capability.cpp
/// Capabilities: what a source lets in, and each transport that asks for them.

#include "tensorhub/types/capability.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "catalog_driver.hpp"
#include "support/archetypes.hpp"
#include "tensorhub/service/guarding.hpp"
#include "tensorhub/types/reader_gate.hpp"

using namespace tensorhub;

namespace {

[[nodiscard]] std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span{text});
}

}  // namespace

TEST_CASE("capability: lets in its reader at its source, and nobody else anywhere") {
  const std::string key = random_capability_key();
  capability_check check;
  CHECK(check.accepts(std::string{}, {1}, {2}));  // as long as nobody asks
  check.require(bytes_of(key));
  const std::string good = make_capability(key, {1}, {2}, 3);
  CHECK(good.size() == capability_bytes);
  CHECK(check.accepts(good, {1}, {2}));
  CHECK(!check.accepts(good, {4}, {2}));
  CHECK(!check.accepts(good, {1}, {4}));
  CHECK(!check.accepts(std::string{}, {1}, {2}));
  CHECK(!check.accepts(good.substr(1), {1}, {2}));
  CHECK(!check.accepts(good + "x", {1}, {2}));
  CHECK(!check.accepts(std::string(capability_bytes, '\0'), {1}, {2}));
  CHECK(!check.accepts(make_capability(random_capability_key(), {1}, {2}, 3), {1}, {2}));
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bent = good;
    bent[bit / 8] = static_cast<char>(bent[bit / 8] ^ 1 << bit % 8);
    CHECK(!check.accepts(bent, {1}, {2}));
  }
}

TEST_CASE("capability: what is shown over one connection is worth nothing over another") {
  const std::string key = random_capability_key();
  capability_check check;
  check.require(bytes_of(key));
  const std::string given = make_capability(key, {1}, {2}, 3);
  const std::string one(32, 'a'), other(32, 'b');
  const auto shown = shown_over(given, bytes_of(one));
  CHECK(check.accepts(shown, {1}, {2}, bytes_of(one)));
  CHECK(!check.accepts(shown, {1}, {2}, bytes_of(other)));
  CHECK(!check.accepts(shown, {1}, {2}));                           // nor in the clear
  CHECK(!check.accepts(bytes_of(given), {1}, {2}, bytes_of(one)));  // nor the capability itself under TLS
  CHECK(!check.accepts(shown, {4}, {2}, bytes_of(one)));
  CHECK(shown_over("no capability", bytes_of(one)) == std::array<std::byte, capability_bytes>{});

  const source_proof proof = check.proof_to(shown, {1}, {2}, bytes_of(one));
  CHECK(is_same(proof, proof_of_source(given, bytes_of(one))));
  CHECK(!is_same(proof, proof_of_source(given, bytes_of(other))));
  CHECK(!is_same(proof, proof_of_source(make_capability(key, {1}, {2}, 4), bytes_of(one))));
  CHECK(std::memcmp(proof.data(), shown.data() + 8, proof.size()) != 0);  // not the reader's own words
  CHECK(capability_check{}.proof_to(shown, {1}, {2}, bytes_of(one)) == source_proof{});
}

TEST_CASE("capability: each epoch has another one, each key is another one") {
  const std::string key = random_capability_key();
  CHECK(key.size() == capability_key_bytes);
  CHECK(key != random_capability_key());
  CHECK(make_capability(key, {1}, {2}, 3).substr(8) != make_capability(key, {1}, {2}, 4).substr(8));
  CHECK(make_capability(key, {1}, {2}, 3) == make_capability(key, {1}, {2}, 3));
  CHECK(make_capability({}, {1}, {2}, 3).empty());
  CHECK(make_capability("short", {1}, {2}, 3).empty());
  capability_check check;
  CHECK_THROWS_AS(check.require(bytes_of("short")), error);
  CHECK(!check.required());
}

TEST_CASE("capability: the key does not stay in memory after its check has ended") {
  const std::string key = random_capability_key();
  alignas(capability_check) unsigned char place[sizeof(capability_check)] = {};
  const auto has_key = [&] {
    return std::search(std::begin(place), std::end(place), key.begin(), key.end(),
                       [](unsigned char a, char b) { return a == static_cast<unsigned char>(b); }) !=
           std::end(place);
  };
  auto* const check = new (place) capability_check;
  check->require(bytes_of(key));
  CHECK(has_key());
  check->~capability_check();
  CHECK_FALSE(has_key());
}

TEST_CASE("capability: the hash is BLAKE2b-128 over the three numbers") {
  // python3: hashlib.blake2b(struct.pack('<3Q', 1, 2, 3), digest_size=16, key=bytes(range(32))).hexdigest()
  std::string key(capability_key_bytes, '\0');
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<char>(i);
  const std::string made = make_capability(key, {1}, {2}, 3);
  std::string hex;
  for (const char c : made.substr(8)) {
    static constexpr char digits[] = "0123456789abcdef";
    hex += digits[static_cast<unsigned char>(c) >> 4];
    hex += digits[static_cast<unsigned char>(c) & 15u];
  }
  CHECK(hex == "c8e1be8eb16e8eff3789d2d95a13a0a9");
}

TEST_CASE(
    "capability: the catalog gives one for each lease, of the source's epoch, on a source that asks for "
    "them") {
  catalog_test::driver<> server;
  const std::string key = random_capability_key();
  auto announce = server.join_message("trainer");
  announce.capability_key = key;
  const incarnation trainer{1};
  const auto joined = server.answer<messages::join_reply>(trainer, server.send(trainer, announce));
  REQUIRE(joined.has_value());
  REQUIRE(joined->result.ok());
  REQUIRE(server.publish(trainer, 1).ok());
  const incarnation first = server.join(2, "rollout-a");
  const incarnation second = server.join(3, "rollout-b");
  const messages::assignment to_first = server.start_update(first);
  CHECK(to_first.source == trainer);
  CHECK(to_first.address.capability == make_capability(key, first, trainer, to_first.epoch));
  const messages::assignment to_second = server.start_update(second);
  CHECK(to_second.source == trainer);
  CHECK(to_second.address.capability == make_capability(key, second, trainer, to_second.epoch));
  CHECK(to_first.address.capability != to_second.address.capability);
}

TEST_CASE("capability: a source that asks for none gets none") {
  catalog_test::driver<> server;
  const incarnation trainer = server.join(1, "trainer");
  REQUIRE(server.publish(trainer, 1).ok());
  CHECK(server.start_update(server.join(2, "rollout-a")).address.capability.empty());
}

TEST_CASE("a welcome: who accepts this reader in another protocol is not believed") {
  struct welcome {
    enum class status_type { accepted, other_protocol, other_process, refused, no_capability } status{};
    std::uint32_t protocol = 3;
    std::uint64_t source = 7;
  };
  CHECK(detail::why_refused(welcome{}, 3, incarnation{7}).empty());
  CHECK_FALSE(detail::why_refused(welcome{}, 3, incarnation{8}).empty());
  CHECK(detail::why_refused(welcome{}, 4, incarnation{7}).starts_with("speaks data protocol 3"));
}

TEST_CASE("capability: refused connections are told once, and at most once a second") {
  refusal_watch watch;
  const auto look = [&](std::uint64_t count, time_point now) {
    return watch.look(count, now, [] { return transport_refusal{}; });
  };
  const auto at = [](std::int64_t milliseconds) { return time_point{milliseconds * 1'000'000}; };
  CHECK_FALSE(look(0, at(1000)).has_value());
  CHECK(look(3, at(1000)).value().find("refused 3 data connections") != std::string::npos);
  CHECK_FALSE(look(3, at(3000)).has_value());
  CHECK(look(4, at(3000)).value().find("refused 1 data connections") != std::string::npos);
  CHECK_FALSE(look(6, at(3999)).has_value());
  CHECK_FALSE(look(3, at(5000)).has_value());  // who looked before the others, and asks after them
  CHECK(look(7, at(5000)).value().find("refused 3 data connections") != std::string::npos);
}

TEST_CASE("capability: the line about refused connections has the reason if the latest of them has one") {
  refusal_watch watch;
  const auto look = [&](std::uint64_t count, std::int64_t second, transport_refusal told) {
    return watch.look(count, time_point{second * 1'000'000'000}, [&] { return told; }).value();
  };
  const auto says = [](const std::string& line, const char* what) {
    return line.find(what) != std::string::npos;
  };
  const std::string first = look(1, 1, {1, "10.0.0.7: the certificate CN=a expired"});
  CHECK_MESSAGE(says(first, "10.0.0.7: the certificate CN=a expired"), first);
  CHECK_FALSE(says(first, "without a lease"));
  const std::string later = look(2, 3, {1, "10.0.0.7: the certificate CN=a expired"});  // of the one before
  CHECK_MESSAGE(says(later, "without a lease"), later);
  CHECK_FALSE(says(later, "CN=a"));
}

TEST_CASE("a renewal is told once to all workers of a process") {
  renewal_watch watch;
  CHECK_FALSE(watch.look({}).has_value());
  CHECK(watch.look({1, true, "expired"}).value().text == "expired");
  CHECK_FALSE(watch.look({1, true, "expired"}).has_value());
  CHECK_FALSE(watch.look({2, false, "in use"}).value().failed);
}

TEST_CASE("that this machine has lost an address that peers were told is told once") {
  address_watch watch{{"10.0.0.1", "10.0.0.2", "10.0.0.1"}};
  std::string lost;
  const auto look = [&](std::int64_t second) {
    const auto has = [&](const std::string& host) { return host != lost; };
    return watch.look(time_point{second * 1'000'000'000}, has).value_or("");
  };
  CHECK(look(1) == "");
  lost = "10.0.0.1";
  CHECK(look(10) == "");  // it is not looked for all the time
  const std::string line = look(11);
  CHECK_MESSAGE(line.find("no longer has the address 10.0.0.1") != std::string::npos, line);
  CHECK(look(30) == "");
  lost = "10.0.0.2";
  CHECK(look(50).find("10.0.0.2") != std::string::npos);
  CHECK(look(70) == "");
}

TEST_CASE("a transport's log has a line about an address that this machine does not have") {
  const testing::transport_archetype transport{{}, {1}};
  const auto lines_of = [&](std::vector<std::string> hosts) {
    return transport_watch{std::move(hosts)}.look(transport, time_point{1'000'000'000}).size();
  };
  CHECK(lines_of({}) == 0);
  CHECK(lines_of({"127.0.0.1"}) == 0);
  CHECK(lines_of({"127.0.0.1", "192.0.2.1"}) == 1);  // that one is of no machine (RFC 5737)
}
