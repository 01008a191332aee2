// A publish that is told what has changed: what it digests again, what readers get, and what they refuse.

#include <doctest/doctest.h>

#include <cstring>
#include <optional>
#include <tensorhub/server.hpp>

#include "blake3_hub.hpp"

using namespace system_tests;
using tensorhub::changed;
using both_doors = member<worker_of_both_doors>;

namespace {

/// Chunks of the weights: 3 of "mapped", 2 of "plain", and one with the small tensors "bias" and "norm".
constexpr std::uint64_t all_chunks = 6;

/// `publish` of what has changed, and the chunks that were digested.
template <typename Worker>
std::uint64_t digested(Worker& worker, std::uint64_t version, std::vector<std::string> names) {
  worker.publish(version, changed(std::move(names)));
  return worker.statistics().digested_chunks;
}

/// What a new reader gets of the version.
template <typename Hub>
bool arrives(const std::string& server, std::uint64_t version, const weights& expected) {
  member<typename Hub::subscriber> reader{who(server, "reader-" + std::to_string(version))};
  reader.worker.update(exactly(version), 20s);
  return are_equal(reader.memory, expected);
}

/// A trainer that shows version 2, and another one that remembers the digests of its own version 1.
struct two_trainers {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  both_doors other{who(server.address(), "trainer-1")};
  two_trainers() {
    other.publish(1);
    other.worker.unpublish(20s);
    source.publish(2);
  }
  /// The other one has the trainer's bytes now, and must not believe its digests.
  void check_other() {
    CHECK(digested(other.worker, 3, {}) == all_chunks);
    CHECK(arrives<hub>(server.address(), 3, source.memory));
  }
};

}  // namespace

TEST_CASE_TEMPLATE("changed: only the chunks of named tensors are digested again", Hub, hub, blake3_hub) {
  typename Hub::reference_server server;
  member<typename Hub::publisher> source{who(server.address(), "trainer-0")};
  member<typename Hub::subscriber> rollout{who(server.address(), "rollout-0")};
  weights& now = source.memory;
  now.fill(1);
  CHECK(digested(source.worker, 1, {"norm"}) == all_chunks);  // nothing is known yet
  rollout.worker.update(exactly(1), 20s);
  source.worker.unpublish(20s);

  now.mapped_word(7) += 1;
  CHECK(digested(source.worker, 2, {"mapped"}) == 3);
  rollout.worker.update(exactly(2), 20s);
  CHECK(are_equal(rollout.memory, now));
  source.worker.unpublish(20s);

  now.plain.back() += 1;
  now.norm[2] = static_cast<std::uint8_t>(now.norm[2] + 1);
  CHECK(digested(source.worker, 3, {"norm", "plain", "norm", "nothing", "bias"}) == 3);
  CHECK(arrives<Hub>(server.address(), 3, now));
  source.worker.unpublish(20s);

  CHECK(digested(source.worker, 4, {}) == 0);
  rollout.worker.update(exactly(4), 20s);
  CHECK(are_equal(rollout.memory, now));
  source.worker.unpublish(20s);

  source.worker.publish(5);
  CHECK(source.worker.statistics().digested_chunks == all_chunks);
}

TEST_CASE_TEMPLATE("changed: a tensor that has changed and was left out fails the publish", Hub, hub,
                   blake3_hub) {
  typename Hub::reference_server server;
  member<typename Hub::publisher> source{who(server.address(), "trainer-0")};
  source.publish(1);
  source.worker.unpublish(20s);
  std::string expected;
  SUBCASE("a large one") {
    source.memory.mapped_word(7) += 1;
    expected = "chunk 1 of tensor 'mapped' was left out";
  }
  SUBCASE("a small one") {
    source.memory.bias[3] ^= 1;
    expected = "chunk 0 of the small tensors was left out";
  }
  std::string sentence;
  CHECK(code_of([&] { source.worker.publish(2, changed({"plain"})); }, &sentence) == errc::contract_broken);
  CHECK(contains(sentence, expected));
  CHECK(contains(sentence, "trainer-0"));
  CHECK(digested(source.worker, 2, {"mapped", "bias"}) == all_chunks);
  CHECK(arrives<Hub>(server.address(), 2, source.memory));
}

TEST_CASE("changed: a name that was not added is refused, and after a publish that failed all is digested") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.memory.fill(1);
  std::string sentence;
  CHECK(code_of(
            [&] {
              source.worker.publish(1, changed({"bias", "nobody"}));
            },
            &sentence) == errc::invalid_argument);
  CHECK(contains(sentence, "tensor 'nobody' is said to have changed, and was not added"));
  CHECK(contains(sentence, "trainer-0"));
  CHECK(source.worker.held_version() == tensorhub::version_number{});
  CHECK(digested(source.worker, 1, {}) == all_chunks);
  CHECK(code_of([&] { source.worker.publish(2, changed({})); }) == errc::still_published);
  source.worker.unpublish(20s);
  source.memory.bias[3] ^= 1;
  CHECK(digested(source.worker, 2, {}) == all_chunks);
  CHECK(arrives<hub>(server.address(), 2, source.memory));
}

TEST_CASE("changed: a snapshot is a publish, so what changed before it is not named after it") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.publish(1);
  source.worker.unpublish(20s);
  SUBCASE("one that succeeds") {
    source.memory.mapped_word(7) += 1;
    source.worker.publish(2, tensorhub::snapshot);
  }
  SUBCASE("one that fails") {
    source.memory.mapped_word(7) += 1;
    CHECK(code_of([&] { source.worker.publish(0, tensorhub::snapshot); }) == errc::invalid_argument);
  }
  source.memory.bias[3] ^= 1;
  CHECK(digested(source.worker, 3, {"bias"}) == all_chunks);
  CHECK(arrives<hub>(server.address(), 3, source.memory));
}

TEST_CASE("changed: after an update into the memory all is digested") {
  two_trainers both;
  both.other.worker.update(exactly(2), 20s);
  both.other.worker.unpublish(20s);
  both.source.worker.unpublish(20s);
  both.check_other();
}

TEST_CASE("changed: after a copy of a neighbour's bytes all is digested") {
  two_trainers both;
  both_doors near{who(both.server.address(), "trainer-2")};
  near.worker.update(exactly(2), 20s);
  both.source.worker.unpublish(20s);
  both.other.worker.update_from(near.worker, 20s);
  both.other.worker.unpublish(20s);
  near.worker.unpublish(20s);
  both.check_other();
}

TEST_CASE("changed: after an open version all is digested, and what it sealed counts") {
  hub::reference_server server;
  both_doors source{who(server.address(), "trainer-0")};
  source.publish(1);
  source.worker.unpublish(20s);
  source.worker.open(2, 20s);
  source.memory.fill(2);
  for (std::size_t i = 0; i < source.worker.data().tensors().size(); ++i) source.worker.data().pack_one(i);
  source.worker.data().seal({0, all_chunks});
  source.worker.publish(2);
  CHECK(source.worker.statistics().digested_chunks == all_chunks);
  source.worker.unpublish(20s);
  CHECK(digested(source.worker, 3, {}) == all_chunks);
  CHECK(arrives<hub>(server.address(), 3, source.memory));
}

TEST_CASE("digests are bound to the shard, and their root to the version as well") {
  hub::reference_server server;
  both_doors first{who(server.address(), "trainer-0", {0, 2})};
  both_doors second{who(server.address(), "trainer-0", {1, 2})};
  for (both_doors* each : {&first, &second}) {
    each->memory.fill(1);
    each->worker.join();
  }
  const auto of_one = first.worker.data().pack({1}, std::nullopt);
  const auto of_two = first.worker.data().pack({2}, std::nullopt);
  const auto elsewhere = second.worker.data().pack({1}, std::nullopt);
  REQUIRE(of_one.table.size() == all_chunks);
  REQUIRE(elsewhere.table.size() == all_chunks);
  CHECK(of_one.table == of_two.table);  // so that `changed` may keep them
  CHECK(of_one.root != of_two.root);
  for (std::size_t i = 0; i < all_chunks; ++i) CHECK(of_one.table[i] != elsewhere.table[i]);
  CHECK(of_one.root != elsewhere.root);
}
