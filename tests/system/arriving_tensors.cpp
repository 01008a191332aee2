// The tensors of a version one by one, while the rest of it is still arriving.

#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hub.hpp"

using namespace system_tests;

namespace {

constexpr std::size_t large_words = 4u << 20;  // "mapped": 32 MiB; "plain": half of it
constexpr std::uint64_t plain_bytes = (large_words / 2 + 1) * sizeof(std::uint64_t);

using gated_rollout = member<gated_hub::subscriber>;
using gated_double = double_buffered_of<gated_hub::subscriber>;

/// For chunks; control blocks always pass.
[[nodiscard]] std::shared_ptr<tensorhub::testing::read_gate> gate_after(std::uint64_t bytes) {
  return std::make_shared<tensorhub::testing::read_gate>(bytes, 16u << 10);
}

[[nodiscard]] std::vector<std::string> names_of(tensorhub::arriving_tensors& arriving) {
  std::vector<std::string> out;
  while (const auto tensor = arriving.next(20s)) out.emplace_back(tensor->name);
  return out;
}

}  // namespace

TEST_CASE("tensors arrive in the order asked for, whole and verified, while others are on their way") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0"), large_words};
  source.memory.fill(1);
  // Room for the small tensors and "plain", and for less than half of "mapped".
  const auto gate = gate_after(plain_bytes + (12u << 20));
  gated_rollout reader{who(server.address(), "rollout-0"), large_words, {.gate = gate}};
  auto running = reader.worker.update_async(latest, 60s);
  auto arriving = running.tensors(std::vector<std::string>{"norm", "plain", "nothing", "mapped"});
  source.worker.publish(1);
  const auto norm = arriving.next(20s);
  REQUIRE(norm.has_value());
  CHECK(norm->name == "norm");
  CHECK(norm->data == reader.memory.norm.data());
  CHECK(norm->bytes == reader.memory.norm.size());
  CHECK(reader.memory.norm == source.memory.norm);
  const auto plain = arriving.next(20s);
  REQUIRE(plain.has_value());
  CHECK(plain->data == reader.memory.plain.data());
  CHECK(reader.memory.plain == source.memory.plain);
  CHECK(arriving.next(20s)->name == "nothing");
  REQUIRE(gate->wait_until_shut(20s));
  CHECK(!running.done());
  CHECK(code_of([&] { static_cast<void>(arriving.next(50ms)); }) == errc::timed_out);
  CHECK(!reader.memory.holds(1));
  gate->open();
  const auto mapped = arriving.next(20s);
  REQUIRE(mapped.has_value());
  CHECK(mapped->name == "mapped");
  CHECK(!arriving.next(20s).has_value());
  CHECK(running.done());
  CHECK(reader.memory.holds(1));
}

TEST_CASE("the same, beside what is live") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.publish(1);
  gated_double reader{who(server.address(), "rollout-0")};
  for (const auto& each : source.worker.shard_layout().tensors())
    reader.add(each.name, each.shape, each.type);
  auto first = reader.stage_async(latest, 20s);
  auto arriving = first.tensors();
  std::optional<tensorhub::arrived_tensor> mapped = arriving.next(20s);
  REQUIRE(mapped.has_value());
  CHECK(mapped->name == "mapped");
  CHECK(std::memcmp(mapped->data, source.memory.mapped.data(), mapped->bytes) == 0);
  CHECK(names_of(arriving) == std::vector<std::string>{"bias", "plain", "norm", "nothing"});
  reader.install();
  CHECK(reader.tensor("mapped") == mapped->data);
}

TEST_CASE("tensors of a version that is held already are all there") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.publish(1);
  rollout reader{who(server.address(), "rollout-0")};
  reader.worker.update();
  auto again = reader.worker.update_async(latest, 20s);
  auto arriving = again.tensors();
  CHECK(names_of(arriving) == std::vector<std::string>{"mapped", "bias", "plain", "norm", "nothing"});
  CHECK(again.wait(1s).kept);
}

TEST_CASE("the error of a version comes instead of its next tensor") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0"), large_words};
  source.memory.fill(1);
  const auto gate = gate_after(plain_bytes + (12u << 20));
  gated_rollout reader{who(server.address(), "rollout-0"), large_words, {.gate = gate}};
  auto running = reader.worker.update_async(latest, 60s);
  CHECK(code_of([&] { static_cast<void>(running.tensors(std::vector<std::string>{"wq"})); }) ==
        errc::invalid_argument);
  auto arriving = running.tensors(std::vector<std::string>{"plain", "mapped"});
  source.worker.publish(1);
  CHECK(arriving.next(20s)->name == "plain");
  REQUIRE(gate->wait_until_shut(20s));
  running.cancel();
  CHECK(code_of([&] { static_cast<void>(arriving.next(20s)); }) == errc::cancelled);
  CHECK(code_of([&] { static_cast<void>(arriving.next(20s)); }) == errc::cancelled);
}

TEST_CASE("tensors that were not taken are gone when the next update writes, which they do not disturb") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0"), large_words};
  source.publish(1);
  const auto gate = gate_after(large_words * sizeof(std::uint64_t) + plain_bytes);  // all of one version
  gated_rollout reader{who(server.address(), "rollout-0"), large_words, {.gate = gate}};
  auto first = reader.worker.update_async(latest, 60s);
  auto arriving = first.tensors(std::vector<std::string>{"norm", "bias", "mapped"});
  CHECK(first.wait(20s).version == 1);
  CHECK(arriving.next(20s)->name == "norm");
  source.worker.unpublish();
  source.publish(2);
  auto second = reader.worker.update_async(exactly(2), 60s);
  REQUIRE(gate->wait_until_shut(20s));
  std::string sentence;
  CHECK(code_of([&] { static_cast<void>(arriving.next(20s)); }, &sentence) == errc::unavailable);
  CHECK(contains(sentence, "version 1"));
  gate->open();
  CHECK(second.wait(20s).version == 2);
  CHECK(reader.memory.holds(2));
  CHECK(code_of([&] { static_cast<void>(arriving.next(20s)); }) == errc::unavailable);
}
