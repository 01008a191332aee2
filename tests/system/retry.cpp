/// \file retry.cpp
/// Updates that repeat themselves, and tensors whose type C++ knows.

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hub.hpp"

using namespace system_tests;
using tensorhub::retry;

constexpr std::size_t few_words = 1000;

TEST_CASE("retry: what cannot pass is thrown at once, and the last error when the time is over") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0"), few_words};
  source.worker.publish(1);
  rollout other{who(server.address(), "rollout-0"), few_words + 1};
  CHECK(code_of([&] { other.worker.update(latest, retry, 60s); }) == errc::layout_mismatch);
  rollout reader{who(server.address(), "rollout-1"), few_words};
  std::string sentence;
  CHECK(code_of([&] { reader.worker.update(at_least(2), retry, 300ms); }, &sentence) == errc::timed_out);
  CHECK_MESSAGE(contains(sentence, "rollout-1"), sentence);
}

TEST_CASE("retry: in the modes that stage") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0"), few_words};
  source.publish(1);
  member<staged_of<hub::subscriber>> staged{who(server.address(), "rollout-0"), few_words};
  CHECK(staged.worker.stage(latest, retry, 20s).version == 1);
  staged.worker.install();
  CHECK(staged.memory.holds(1));
  double_buffered_of<hub::subscriber> flipped{who(server.address(), "rollout-1")};
  for (const auto& tensor : source.worker.describe_model(0).tensors)
    flipped.add(tensor.name, tensor.shape, tensor.type);
  CHECK(flipped.stage(latest, retry, 20s).version == 1);
}

TEST_CASE("retry: refused for one of several shards") {
  hub::reference_server server;
  rollout shard{who(server.address(), "rollout-0", {0, 2}), few_words};
  std::string sentence;
  CHECK(code_of([&] { shard.worker.update(latest, retry, 20s); }, &sentence) == errc::invalid_argument);
  CHECK_MESSAGE(contains(sentence, "the shards of a replica repeat it together"), sentence);
  double_buffered_of<hub::subscriber> flipped{who(server.address(), "rollout-1", {1, 2})};
  CHECK(code_of([&] { flipped.stage(latest, retry, 20s); }) == errc::invalid_argument);
}

TEST_CASE("elements: vectors, arrays and spans say their type") {
  hub::reference_server server;
  const std::vector<float> source(12, 3.0f);
  const std::array<std::int16_t, 4> ids{1, 2, 3, 4};
  hub::publisher trainer{who(server.address(), "trainer-0")};
  trainer.add("w", source, {3, 4});
  trainer.add("ids", ids);
  trainer.publish(1);
  std::vector<float> target(12);
  std::array<std::int16_t, 4> taken{};
  hub::subscriber rollout{who(server.address(), "rollout-0")};
  rollout.add("w", std::span{target}, {3, 4});
  rollout.add("ids", taken);
  rollout.update(latest, 20s);
  CHECK(target == source);
  CHECK(taken == ids);
  const auto told = rollout.describe_model(0).tensors;
  REQUIRE(told.size() == 2);
  CHECK(told[0].type == tensorhub::dtype::f32);
  CHECK(told[0].shape == std::vector<std::uint64_t>{3, 4});
  CHECK(told[1].type == tensorhub::dtype::i16);
  CHECK(told[1].shape == std::vector<std::uint64_t>{4});
}

TEST_CASE("elements: a shape of another number of elements is refused by name") {
  hub::reference_server server;
  const std::vector<float> source(12);
  hub::publisher trainer{who(server.address(), "trainer-0")};
  std::string sentence;
  CHECK(code_of([&] { trainer.add("w", source, {5, 4}); }, &sentence) == errc::invalid_argument);
  CHECK_MESSAGE(contains(sentence, "tensor 'w' was given 12 elements, which are not those of"), sentence);
}
