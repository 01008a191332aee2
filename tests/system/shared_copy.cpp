/// \file shared_copy.cpp
/// One received copy for several processes: what they see, what they hold back, and what becomes of them
/// and of the owner when either dies, is stopped, or sends something else.

#include <tensorhub/detail/unique_fd.hpp>
#include <tensorhub/shared_copy.hpp>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <future>
#include <optional>
#include <stop_token>
#include <string>
#include <tensorhub/detail/local_socket.hpp>
#include <tensorhub/detail/random_id.hpp>
#include <tensorhub/server.hpp>
#include <tensorhub/service/codec.hpp>
#include <tensorhub/worker/copy_protocol.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "hub.hpp"
#include "support/child_process.hpp"
#include "support/sanitizers.hpp"
#include "support/short_files.hpp"

using namespace processes;
using namespace system_tests;
using tensorhub::attached_copy;
using tensorhub::held_copy;
namespace wire = tensorhub::shared_copy_detail;
namespace local = tensorhub::detail::local;

namespace {

using shared = tensorhub::shared_copy<tensorhub::transports::tcp>;
constexpr std::size_t large_words = 300'001;

[[nodiscard]] std::string fresh_name() {
  return "test-" + std::to_string(tensorhub::detail::random_number());
}

/// The same tensors as `weights`, in memory of the copy's own.
void add_to(shared& copy) {
  copy.add("mapped", {large_words}, tensorhub::dtype::u64);
  copy.add("bias", {17}, tensorhub::dtype::u16);
  copy.add("plain", {large_words / 2 + 1, 1}, tensorhub::dtype::u64);
  copy.add("norm", {3}, tensorhub::dtype::u8);
  copy.add("nothing", {0}, tensorhub::dtype::f32);
}

/// The held bytes are exactly those of this version.
[[nodiscard]] bool is(const held_copy& held, std::uint64_t version) {
  if (held.version() != version) return false;
  weights expected{large_words};
  expected.fill(version);
  const auto equals = [&](const std::string& name, const void* data, std::size_t bytes) {
    const auto found = held.tensor(name);
    return found.size() == bytes && std::memcmp(found.data(), data, bytes) == 0;
  };
  return equals("mapped", expected.mapped.data(), expected.mapped.range().bytes) &&
         equals("plain", expected.plain.data(), expected.plain.size() * 8) &&
         equals("bias", expected.bias.data(), expected.bias.size() * 2) &&
         equals("norm", expected.norm.data(), expected.norm.size()) && held.tensor("nothing").empty();
}

/// A server, a trainer that has published version 1, and a copy.
struct scene {
  std::string name = fresh_name();
  tensorhub::reference_server<> server{{.address = "tcp://127.0.0.1:*"}};
  trainer source{who(server.address(), "trainer-0"), large_words};
  std::optional<shared> copy{std::in_place, who(server.address(), "host-0"), name};
  scene() {
    add_to(*copy);
    source.publish(1);
  }
  void publish(std::uint64_t version) {
    source.worker.unpublish();
    source.publish(version);
  }
};

/// A process that attaches, holds a version, and does what it is told.
void attach_and_obey(channel& line) {
  const std::string name = line.hear();
  attached_copy weights{name};
  std::optional<held_copy> held;
  for (;;) {
    const std::string order = line.hear();
    if (order == "hold") {
      held.emplace(weights.hold());
      line.say(is(*held, held->version().value) ? "version " + std::to_string(held->version().value)
                                                : "wrong");
    } else if (order == "look") {
      line.say(is(*held, held->version().value) ? "unchanged" : "changed");
    } else if (order == "let go") {
      held.reset();
      line.say("done");
    } else if (order == "write") {
      ::signal(SIGSEGV, SIG_DFL);                                      // not the test framework's
      const_cast<std::byte&>(held->tensor("norm")[0]) = std::byte{1};  // ends this process
      line.say("written");
    }
  }
}

}  // namespace

TEST_CASE("shared copy: other processes read what one has received, and hold back what would overwrite it") {
  child_process other{attach_and_obey};
  const auto ask = [&](const std::string& order) {
    other.line().say(order);
    return other.line().hear(20s);
  };
  scene world;
  CHECK(world.copy->update(1, 20s).version == 1);
  other.line().say(world.name);
  CHECK(ask("hold") == "version 1");
  world.publish(2);
  CHECK(world.copy->update(2, 20s).version == 2);  // the other memory
  CHECK(ask("look") == "unchanged");
  world.publish(3);
  std::string sentence;
  CHECK(code_of([&] { world.copy->update(3, 300ms); }, &sentence) == errc::timed_out);
  CHECK(contains(sentence, "which processes " + std::to_string(other.id()) + " still hold"));
  CHECK(ask("look") == "unchanged");
  REQUIRE(world.copy->attached().size() == 1);
  CHECK(world.copy->attached().front().holds_previous);
  CHECK_FALSE(world.copy->attached().front().holds_live);

  SUBCASE("until it lets go") {
    auto update = std::async(std::launch::async, [&] { return world.copy->update(3, 120s).version; });
    CHECK(update.wait_for(100ms) == std::future_status::timeout);
    CHECK(code_of([&] { world.copy->update(3, 300ms); }) == errc::busy);
    CHECK(ask("let go") == "done");
    CHECK(update.wait_for(60s) == std::future_status::ready);
    CHECK(update.get() == 3);
    CHECK(ask("hold") == "version 3");
  }
  SUBCASE("until it takes what is live") {
    CHECK(ask("hold") == "version 2");
    CHECK(world.copy->update(3, 20s).version == 3);
    CHECK(ask("look") == "unchanged");
  }
  SUBCASE("until it is killed") {
    auto update = std::async(std::launch::async, [&] { return world.copy->update(3, 120s).version; });
    CHECK(update.wait_for(100ms) == std::future_status::timeout);
    other.signal(SIGKILL);
    CHECK(update.wait_for(60s) == std::future_status::ready);  // not only at its deadline
    CHECK(update.get() == 3);
    CHECK(world.copy->attached().empty());
  }
  SUBCASE("or the caller is interrupted") {
    auto update =
        std::async(std::launch::async, [&] { return code_of([&] { world.copy->update(3, 20s); }); });
    CHECK(update.wait_for(100ms) == std::future_status::timeout);
    world.copy->interrupt();
    CHECK(update.get() == errc::cancelled);
  }
  SUBCASE("it cannot write there") {
    other.line().say("write");
    CHECK(other.wait() != 0);
    CHECK(world.copy->update(3, 20s).version == 3);
  }
}

TEST_CASE(
    "shared copy: what is asked for is waited for; several objects and threads of a process hold together") {
  scene world;
  world.copy->join();
  attached_copy weights{world.name};
  REQUIRE(weights.tensors().size() == 5);
  CHECK(weights.tensors()[2].name == "plain");
  CHECK(weights.tensors()[2].shape == std::vector<std::uint64_t>{large_words / 2 + 1, 1});
  CHECK(weights.live_version() == 0);
  CHECK(code_of([&] { static_cast<void>(weights.hold(latest, 50ms)); }) == errc::timed_out);
  auto later = std::async(std::launch::async, [&] { return weights.hold(at_least(2), 20s).version(); });
  CHECK(world.copy->update(latest, 20s).version == 1);
  CHECK(later.wait_for(100ms) == std::future_status::timeout);
  const std::jthread looks{[&](const std::stop_token& stop) {  // takes no message from the thread that waits
    while (!stop.stop_requested()) static_cast<void>(weights.live_version());
  }};
  world.publish(2);
  CHECK(world.copy->update(latest, 20s).version == 2);
  CHECK(later.get() == 2);

  CHECK(world.copy->update(latest, 20s).kept);
  std::optional first{weights.hold(exactly(2), 20s)};
  std::optional second{weights.hold(latest, 20s)};
  CHECK(is(*second, 2));
  CHECK(code_of([&] { static_cast<void>(weights.hold(exactly(1), 20s)); }) == errc::unavailable);
  CHECK(code_of([&] { static_cast<void>(first->tensor("no such tensor")); }) == errc::invalid_argument);
  world.publish(3);
  CHECK(world.copy->update(latest, 20s).version == 3);
  CHECK(weights.hold(latest, 20s).version() == 3);
  world.publish(4);
  first.reset();
  CHECK(code_of([&] { world.copy->update(4, 200ms); }) == errc::timed_out);  // the second one still holds it
  CHECK(is(*second, 2));
  held_copy moved{std::move(*second)};
  second.reset();
  CHECK(code_of([&] { world.copy->update(4, 200ms); }) == errc::timed_out);
  moved = weights.hold(latest, 20s);
  CHECK(world.copy->update(4, 20s).version == 4);
  CHECK(is(moved, 3));
}

TEST_CASE("shared copy: threads that wait for different versions do not hold each other up") {
  scene world;
  world.copy->update(1, 20s);
  attached_copy weights{world.name};
  auto last = std::async(std::launch::async, [&] { return weights.hold(at_least(6), 60s).version(); });
  CHECK(last.wait_for(100ms) == std::future_status::timeout);
  CHECK(weights.hold(latest, 20s).version() == 1);
  CHECK(code_of([&] { static_cast<void>(weights.hold(exactly(7), 50ms)); }) == errc::timed_out);
  std::vector<std::future<bool>> others;
  for (std::uint64_t thread = 0; thread < 4; ++thread) {
    others.push_back(std::async(std::launch::async, [&, thread] {
      bool good = true;
      for (std::uint64_t wanted = 2; wanted <= 6; ++wanted) {
        const held_copy held = weights.hold(at_least(wanted), 60s);
        good = good && held.version() >= wanted && is(held, held.version().value);
        if (thread == 0)
          static_cast<void>(code_of([&] { static_cast<void>(weights.hold(exactly(99), 0ms)); }));
      }
      return good;
    }));
  }
  for (std::uint64_t version = 2; version <= 6; ++version) {
    world.publish(version);
    CHECK(world.copy->update(version, 60s).version == version);
  }
  CHECK(last.get() == 6);
  for (auto& each : others) CHECK(each.get());
}

TEST_CASE("shared copy: a call that has given up holds nothing") {
  scene world;
  world.copy->update(1, 20s);
  attached_copy weights{world.name};
  // The owner grants what the call did not wait for any more.
  for (int i = 0; i < 200; ++i)
    static_cast<void>(code_of([&] { static_cast<void>(weights.hold(latest, 0ms)); }));
  world.publish(2);
  CHECK(world.copy->update(2, 20s).version == 2);
  world.publish(3);
  CHECK(world.copy->update(3, 20s).version == 3);
  CHECK(weights.hold(latest, 20s).version() == 3);
}

TEST_CASE("shared copy: a child that is only forked keeps none of its memory") {
  if (TENSORHUB_UNDER_THREAD_SANITIZER) {
    std::puts("SKIPPED: system.shared_copy: a forked child: the thread sanitizer allows none beside threads");
    return;
  }
  scene world;
  world.copy->update(1, 20s);
  CHECK(count_memory_files() >= 3);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(20);  // it may wait for what another thread held at the fork
    ::_exit(count_memory_files());
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("shared copy: the owner ends: what is held stays, and a successor can be attached to") {
  scene world;
  world.copy->update(1, 20s);
  attached_copy weights{world.name};
  const held_copy held = weights.hold(latest, 20s);
  std::string sentence;
  CHECK(code_of(
            [&] {
              shared twice{who(world.server.address(), "host-1"), world.name};
              add_to(twice);
              twice.join();
            },
            &sentence) == errc::invalid_argument);
  CHECK(contains(sentence, "already shares a copy as '" + world.name + "'"));
  world.copy.reset();
  CHECK(is(held, 1));
  CHECK(code_of([&] { static_cast<void>(weights.hold(latest, 20s)); }) == errc::disconnected);
  CHECK(code_of([&] { attached_copy{world.name}; }, &sentence) == errc::disconnected);
  CHECK(contains(sentence, "start it first"));
  world.copy.emplace(who(world.server.address(), "host-0"), world.name);
  add_to(*world.copy);
  world.copy->update(1, 20s);
  weights = attached_copy{world.name};
  CHECK(is(weights.hold(latest, 20s), 1));
}

TEST_CASE("shared copy: names and tensors that cannot be shared are refused") {
  scene world;
  CHECK(code_of([&] { shared copy(who(world.server.address(), "host-1"), std::string{}); }) ==
        errc::invalid_argument);
  CHECK(code_of([&] { attached_copy{std::string(65, 'x')}; }) == errc::invalid_argument);
  std::string sentence;
  CHECK(code_of([&] { attached_copy{fresh_name()}; }, &sentence) == errc::disconnected);
  CHECK_MESSAGE(contains(sentence, "network namespace"), sentence);
  shared empty{who(world.server.address(), "host-1"), fresh_name()};
  CHECK(code_of([&] { empty.join(); }) != errc::ok);
}

TEST_CASE("shared copy: files that may not be as long as its memory or its table (ulimit -f) are an error") {
  const tensorhub::reference_server server{{.address = "tcp://127.0.0.1:*"}};
  const tensorhub::reference_server other{{.address = "tcp://127.0.0.1:*"}};  // another layout
  shared large{who(server.address(), "host-0"), fresh_name()};
  add_to(large);
  shared many{who(other.address(), "host-0"), fresh_name()};
  many.add("one", {1}, tensorhub::dtype::u8);
  for (int i = 0; i < 300; ++i) many.add("nothing " + std::to_string(i), {0}, tensorhub::dtype::u8);
  std::string of_memory, of_table;
  errc memory = errc::ok, table = errc::ok;
  {
    const short_files limit{4096};
    memory = code_of([&] { large.join(); }, &of_memory);
    table = code_of([&] { many.join(); }, &of_table);
  }
  CHECK(memory == errc::invalid_argument);
  CHECK_MESSAGE(contains(of_memory, "ulimit -f"), of_memory);
  CHECK(table == errc::system_failed);
  CHECK_MESSAGE(contains(of_table, "ulimit -f"), of_table);
  CHECK(code_of([&] { many.join(); }) == errc::ok);
}

TEST_CASE("shared copy: strangers on its socket") {
  scene world;
  world.copy->update(1, 20s);
  const auto until = std::chrono::steady_clock::now() + 20s;
  const auto connect = [&] {
    return local::connect_to(wire::copy_socket_name(world.name), "the owner", until);
  };
  const auto ended = [&](const tensorhub::detail::unique_socket& socket) {
    for (;;) {
      pollfd watched{socket.get(), POLLIN, 0};
      if (::poll(&watched, 1, 20'000) <= 0) return false;
      wire::copy_packet packet;
      tensorhub::detail::unique_fd file;
      const auto outcome = local::receive_packet(socket.get(), packet, file);
      if (outcome == local::packet_outcome::ended) return true;
    }
  };
  wire::copy_packet packet;
  SUBCASE("of another protocol") {
    packet.kind = wire::copy_message::hold;
    packet.magic += 1;
    const auto socket = connect();
    REQUIRE(local::send_packet(socket.get(), packet));
    CHECK(ended(socket));
  }
  SUBCASE("a third memory") {
    packet.kind = wire::copy_message::let_go;
    packet.side = 2;
    const auto socket = connect();
    REQUIRE(local::send_packet(socket.get(), packet));
    CHECK(ended(socket));
  }
  SUBCASE("of another size") {
    const auto socket = connect();
    REQUIRE(local::send_packet(socket.get(), std::uint64_t{7}));
    CHECK(ended(socket));
  }
  SUBCASE("what is not live is not granted, and holds nothing back") {
    const auto socket = connect();
    packet.kind = wire::copy_message::hold;
    for (const auto& [side, version] : {std::pair{1u, 1u}, {0u, 0u}, {0u, 9u}}) {
      packet.side = side;
      packet.version = tensorhub::version_number{version};
      REQUIRE(local::send_packet(socket.get(), packet));
    }
    world.publish(2);
    CHECK(world.copy->update(2, 20s).version == 2);
    world.publish(3);
    CHECK(world.copy->update(3, 20s).version == 3);
  }
  CHECK(is(attached_copy{world.name}.hold(latest, 20s), world.copy->held_version().value));
}

namespace {

/// Another process under the owner's name, which says what it is told to.
struct impostor {
  std::string name = fresh_name();
  tensorhub::detail::unique_socket listener = local::listen_at(wire::copy_socket_name(name));
  std::optional<tensorhub::detail::unique_socket> peer{};

  [[nodiscard]] static tensorhub::detail::unique_fd file(std::uint64_t bytes, int seals) {
    tensorhub::detail::unique_fd out{::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    REQUIRE(::ftruncate(out.get(), static_cast<off_t>(bytes)) == 0);
    REQUIRE(::fcntl(out.get(), F_ADD_SEALS, seals) == 0);
    return out;
  }
  struct message {
    wire::copy_packet packet{};
    int descriptor = -1;
  };
  /// The code with which an attempt to attach ends that is told these messages.
  [[nodiscard]] errc told(const std::vector<message>& messages, std::string* sentence = nullptr) {
    auto attempt = std::async(std::launch::async, [&] {
      return code_of([&] { attached_copy{name, 5s}; }, sentence);
    });
    pollfd watched{listener.get(), POLLIN, 0};
    REQUIRE(::poll(&watched, 1, 20'000) == 1);
    peer.emplace(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    for (const message& each : messages) {
      if (!local::send_packet(peer->get(), each.packet, each.descriptor)) break;  // it has refused already
    }
    return attempt.get();
  }
  [[nodiscard]] errc told(const wire::copy_packet& packet, int descriptor) {
    return told({{packet, descriptor}});
  }

  /// The table of one tensor of 100 bytes that lies at this offset; what goes into the first message.
  [[nodiscard]] static std::pair<tensorhub::detail::unique_fd, std::uint64_t> table(std::uint64_t offset) {
    tensorhub::encoder writer;
    tensorhub::messages::describe_reply shape;
    shape.tensors.push_back({"w", tensorhub::dtype::u8, {100}});
    const auto encoded = writer.encode({0, {}, {}, std::move(shape), {}});
    tensorhub::detail::unique_fd out{::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    REQUIRE(::write(out.get(), encoded.data(), encoded.size()) == static_cast<ssize_t>(encoded.size()));
    REQUIRE(::write(out.get(), &offset, sizeof offset) == static_cast<ssize_t>(sizeof offset));
    REQUIRE(::fcntl(out.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    return {std::move(out), encoded.size()};
  }
};

}  // namespace

TEST_CASE("attached copy: an owner that sends something else is refused") {
  impostor owner;
  wire::copy_packet shape;
  shape.kind = wire::copy_message::shape;
  shape.bytes = 100;
  SUBCASE("another kind of message") {
    shape.kind = wire::copy_message::live;
    CHECK(owner.told(shape, -1) == errc::protocol_mismatch);
  }
  SUBCASE("no file") {
    CHECK(owner.told(shape, -1) == errc::protocol_mismatch);
  }
  SUBCASE("a file that may become shorter") {
    CHECK(owner.told(shape, owner.file(100, 0).get()) == errc::protocol_mismatch);
  }
  SUBCASE("a file that is shorter than told") {
    CHECK(owner.told(shape, owner.file(99, F_SEAL_SHRINK).get()) == errc::protocol_mismatch);
  }
  SUBCASE("a file that is too long to be a table") {
    const auto file = impostor::file(wire::most_table_bytes + 1, F_SEAL_SHRINK);
    std::string sentence;
    CHECK(owner.told({{shape, file.get()}}, &sentence) == errc::protocol_mismatch);
    CHECK(contains(sentence, "no size that one can have"));  // it was not even mapped
  }
  SUBCASE("a table of zeros") {
    CHECK(owner.told(shape, owner.file(100, F_SEAL_SHRINK).get()) == errc::protocol_mismatch);
  }
  SUBCASE("all places are taken") {
    shape.kind = wire::copy_message::full;
    CHECK(owner.told(shape, -1) == errc::limit_exceeded);
  }
  SUBCASE("nothing") {
    CHECK(code_of([&] { attached_copy{owner.name, 100ms}; }) == errc::timed_out);
    std::stop_source stop;
    const std::jthread stopping{[&] {
      std::this_thread::sleep_for(100ms);
      stop.request_stop();
    }};
    CHECK(code_of([&] { attached_copy{owner.name, 20s, stop.get_token()}; }) == errc::cancelled);
  }
}

TEST_CASE("attached copy: memory that is not what the owner says is refused") {
  impostor owner;
  std::uint64_t offset = 0, told_bytes = 256, bytes = 256, side = 0;
  int seals = F_SEAL_SHRINK;
  errc expected = errc::protocol_mismatch;
  std::string part;
  SUBCASE("all is well") {
    expected = errc::ok;
  }
  SUBCASE("shorter than told") {
    bytes = 255, part = "not as long as told";
  }
  SUBCASE("may become shorter") {
    seals = F_SEAL_GROW, part = "may become shorter";
  }
  SUBCASE("none") {
    told_bytes = 0;
  }
  SUBCASE("larger than any shard") {
    told_bytes = tensorhub::limits::shard_bytes + 1;
  }
  SUBCASE("the other side's first") {
    side = 1;
  }
  SUBCASE("a tensor that ends outside") {
    offset = 157, part = "tensor 'w' does not lie inside";
  }
  SUBCASE("a tensor far outside") {
    offset = ~0ull - 10, part = "tensor 'w' does not lie inside";
  }
  const auto [table, encoded_bytes] = impostor::table(offset);
  const auto memory = impostor::file(bytes, seals);
  std::vector<impostor::message> messages(4);
  messages[0] = {{.kind = wire::copy_message::shape, .bytes = encoded_bytes}, table.get()};
  messages[1] = {{.kind = wire::copy_message::memory, .side = side, .bytes = told_bytes}, memory.get()};
  messages[2] = {{.kind = wire::copy_message::memory, .side = 1 - side, .bytes = told_bytes}, memory.get()};
  messages[3] = {{.kind = wire::copy_message::live}, -1};
  std::string sentence;
  CHECK(owner.told(messages, &sentence) == expected);
  CHECK_MESSAGE(contains(sentence, part), sentence);
}
