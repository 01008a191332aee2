#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <random>
#include <thread>
#include <zmq.hpp>

#include "hostile.hpp"
#include "hub.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/service/codec.hpp"

using namespace system_tests;

namespace {

/// Something that speaks ZeroMQ at an address of its own and answers the first frame it gets, in its own way.
class stranger_server {
 public:
  explicit stranger_server(std::function<zmq::message_t(zmq::message_t)> answer)
      : socket_{context_, zmq::socket_type::router} {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvtimeo, 20'000);
    socket_.bind("tcp://127.0.0.1:*");
    address_ = socket_.get(zmq::sockopt::last_endpoint);
    thread_ = std::jthread{[this, answer = std::move(answer)] {
      zmq::message_t identity;
      zmq::message_t frame;
      if (!socket_.recv(identity) || !socket_.recv(frame)) return;
      socket_.send(identity, zmq::send_flags::sndmore);
      socket_.send(answer(std::move(frame)), zmq::send_flags::none);
    }};
  }
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
  std::string address_;
  std::jthread thread_;
};

}  // namespace

TEST_CASE("a layout that differs is refused, and the first differing tensor is named") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.publish(1);
  std::vector<float> data(64);
  hub::subscriber other{who(server.address(), "rollout-0")};
  other.add("mapped", data.data(), {8, 8}, tensorhub::dtype::f32);
  std::string sentence;
  CHECK(code_of([&] { other.join(); }, &sentence) == errc::layout_mismatch);
  CHECK(contains(sentence, "'mapped'"));
  CHECK(contains(sentence, "f32"));
  CHECK(contains(sentence, "replica rollout-0"));
  rollout fits{who(server.address(), "rollout-1")};
  CHECK(fits.worker.update().version == 1);
}

TEST_CASE("another number of shards is refused") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0", {0, 2})};
  source.worker.join();
  rollout reader{who(server.address(), "rollout-0", {0, 3})};
  std::string sentence;
  CHECK(code_of([&] { reader.worker.join(); }, &sentence) == errc::layout_mismatch);
  CHECK(contains(sentence, "the shard count 2, this worker says"));
  CHECK(contains(sentence, "3"));
}

TEST_CASE("wrong options are refused before anything starts") {
  const auto refused = [](tensorhub::worker_options options) {
    return code_of([&] { const hub::publisher refused_worker{options}; });
  };
  auto options = who("tcp://127.0.0.1:1", "trainer-0");
  options.server.clear();
  CHECK(refused(options) == errc::invalid_argument);
  for (const std::string address : {"not an address", "127.0.0.1:5570", "tcp://127.0.0.1", "tcp://10.0.0.1",
                                    "tcp://[::1]", "tcp://127.0.0.1:0", "tcp://127.0.0.1:65536",
                                    "tcp://127.0.0.1:port", "tcp://127.0.0.1:5570,tcp://10.0.0.2"}) {
    CAPTURE(address);
    CHECK(refused(who(address, "trainer-0")) == errc::invalid_argument);
  }
  options = who("tcp://127.0.0.1:1", "");
  CHECK(refused(options) == errc::invalid_argument);
  options = who("tcp://127.0.0.1:1", "trainer-0", {2, 2});
  CHECK(refused(options) == errc::invalid_argument);
  options = who("tcp://127.0.0.1:1", std::string(10'000, 'x'));
  CHECK(refused(options) == errc::limit_exceeded);
  options = who("tcp://127.0.0.1:1", "trainer-0");
  options.chunk_bytes = 0;
  hub::publisher worker{options};
  std::vector<float> data(8);
  worker.add("w", data.data(), {8}, tensorhub::dtype::f32);
  CHECK(code_of([&] { worker.join(); }) == errc::invalid_argument);
}

TEST_CASE("a list of a model whose name is too long is refused, and the worker lives on") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.worker.join();
  CHECK(code_of([&] { static_cast<void>(source.worker.list(std::string(600, 'x'))); }) ==
        errc::limit_exceeded);
  CHECK(source.worker.list("policy").size() == 1);
}

TEST_CASE("tensors that cannot be: duplicate name, null, overlap, too late, none") {
  hub::reference_server server;
  std::vector<float> data(64);
  hub::publisher worker{who(server.address(), "trainer-0")};
  std::string sentence;
  CHECK(code_of([&] { worker.publish(1); }, &sentence) == errc::invalid_argument);
  CHECK(contains(sentence, "add all tensors first"));
  worker.add("a", data.data(), {32}, tensorhub::dtype::f32);
  CHECK(code_of([&] { worker.add("a", data.data() + 32, {32}, tensorhub::dtype::f32); }, &sentence) ==
        errc::invalid_argument);
  CHECK(contains(sentence, "'a'"));
  CHECK(code_of([&] { worker.add("b", nullptr, {4}, tensorhub::dtype::f32); }) == errc::invalid_argument);
  CHECK(code_of([&] {
          worker.add("c", data.data(), {1ull << 62, 8}, tensorhub::dtype::f32);
        }) == errc::limit_exceeded);
  worker.add("d", data.data() + 31, {4}, tensorhub::dtype::f32);
  CHECK(code_of([&] { worker.join(); }, &sentence) == errc::invalid_argument);
  CHECK(contains(sentence, "'a' and 'd' overlap"));

  trainer good{who(server.address(), "trainer-1")};
  good.worker.join();
  CHECK(code_of([&] { good.worker.add("late", data.data(), {4}, tensorhub::dtype::f32); }) ==
        errc::invalid_argument);
}

TEST_CASE("an update without tensors is refused") {
  hub::reference_server server;
  hub::subscriber reader{who(server.address(), "rollout-0")};
  CHECK(code_of([&] { reader.update(latest, 1s); }) == errc::invalid_argument);
}

TEST_CASE("versions: zero, backwards, published twice, re-published with other bytes") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.memory.fill(5);
  CHECK(code_of([&] { source.worker.publish(0); }) == errc::invalid_argument);
  source.worker.publish(5);
  std::string sentence;
  CHECK(code_of([&] { source.worker.publish(6); }, &sentence) == errc::still_published);
  CHECK(contains(sentence, "unpublish()"));
  source.worker.unpublish();
  CHECK(code_of([&] { source.worker.publish(4); }, &sentence) == errc::version_conflict);
  CHECK(contains(sentence, "version 4"));
  source.worker.publish(5);  // the same bytes: welcome
  source.worker.unpublish();
  source.memory.mapped_word(7) ^= 1;
  CHECK(code_of([&] { source.worker.publish(5); }, &sentence) == errc::version_conflict);
  CHECK(contains(sentence, "other bytes"));
  source.worker.publish(6);
  rollout reader{who(server.address(), "rollout-0")};
  CHECK(reader.worker.update().version == 6);
}

TEST_CASE("an update or a wait whose version does not come says which, and what there is") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.memory.fill(3);
  source.worker.publish(3);
  rollout reader{who(server.address(), "rollout-0")};
  std::string sentence;
  const auto ends_with_what_there_is = [&](auto&& call) {
    for (int attempt = 0; attempt < 10; ++attempt) {  // the server's word may be late on a busy machine
      CHECK(code_of(call, &sentence) == errc::timed_out);
      if (contains(sentence, "; the latest was 3 [timed_out;")) return true;
    }
    return false;
  };
  CHECK(ends_with_what_there_is([&] { reader.worker.update(exactly(9), 1s); }));
  CHECK(contains(sentence, "(exactly 9)"));
  CHECK(contains(sentence, "; version 9;"));
  CHECK(ends_with_what_there_is([&] { reader.worker.wait(at_least(4), 1s); }));
  CHECK(contains(sentence, "(at least 4)"));
  CHECK(contains(sentence, "; version 4;"));
  const auto begun = std::chrono::steady_clock::now();
  CHECK(code_of([&] { reader.worker.update(0, 20s); }, &sentence) == errc::invalid_argument);
  CHECK(contains(sentence, "count from 1"));
  CHECK(code_of([&] { reader.worker.wait(0, 20s); }) == errc::invalid_argument);
  CHECK(std::chrono::steady_clock::now() - begun < 10s);
  source.memory.mapped_word(7) ^= 1;  // while it is published
  CHECK(code_of([&] { reader.worker.update(latest, 20s); }, &sentence) == errc::unavailable);
  CHECK(contains(sentence, "; version 3;"));
  CHECK(contains(sentence, "of tensor 'mapped'"));
}

TEST_CASE("publishing while this worker updates is refused, and the update goes on") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  member<worker_of_both_doors> worker{who(server.address(), "rollout-0")};
  auto pending = worker.worker.update_async(latest, 20s);
  CHECK(code_of([&] { worker.worker.publish(9); }) == errc::busy);
  source.publish(1);
  CHECK(pending.wait(20s).version == 1);
}

TEST_CASE("nobody at the server's address: a sentence within the join time-out") {
  auto options = who("tcp://127.0.0.1:1", "trainer-0");
  options.join_timeout = 300ms;
  trainer source{options};
  std::string sentence;
  CHECK(code_of([&] { source.worker.publish(1); }, &sentence) == errc::disconnected);
  CHECK(contains(sentence, "tcp://127.0.0.1:1 within 300 ms"));
  CHECK_FALSE(contains(sentence, "the host in tcp"));
}

TEST_CASE("a server's host that has no address is told from a server that does not answer") {
  const std::string server = "tcp://" + std::string(64, 'x') + ":5570";  // too long for a name
  auto options = who_here(server, "trainer-0");
  options.join_timeout = 3s;
  std::string sentence;
  CHECK(code_of([&] { const trainer source{options}; }, &sentence) == errc::disconnected);
  CHECK(contains(sentence, "its name has no address here"));
  CHECK(contains(sentence, "tcp://xxxx"));
  trainer source{options, 1000, {.advertised_host = "127.0.0.1"}};  // needs no address of this machine
  CHECK(code_of([&] { source.worker.publish(1); }, &sentence) == errc::disconnected);
  CHECK(contains(sentence, "the host in tcp://xxxx"));
  tensorhub::server_client client{{.server = server}};
  CHECK(code_of([&] { static_cast<void>(client.list({}, 3s)); }, &sentence) == errc::disconnected);
  CHECK(contains(sentence, "the host in tcp://xxxx"));
}

TEST_CASE("a server that cannot listen says at what, and what it expects") {
  std::string sentence;
  for (const std::string address : {"127.0.0.1:5570", "tcp://127.0.0.1", "tcp://127.0.0.1:65536"}) {
    CAPTURE(address);
    CHECK(code_of([&] { const hub::reference_server other{{.address = address}}; }, &sentence) ==
          errc::invalid_argument);
    CHECK(contains(sentence, "'" + address + "'"));
    CHECK(contains(sentence, "tcp://host:port"));
  }
}

TEST_CASE("what listens at the server's address is something else") {
  SUBCASE("a process that speaks ZeroMQ, but no TensorHub") {
    const stranger_server other{[](const zmq::message_t&) {
      return zmq::message_t{std::string_view{"I sell weather reports to everybody who asks"}};
    }};
    trainer source{who(other.address(), "trainer-0")};
    std::string sentence;
    CHECK(code_of([&] { source.worker.join(); }, &sentence) == errc::protocol_mismatch);
    CHECK(contains(sentence, "not a TensorHub reference server"));
  }
  SUBCASE("a plain TCP server") {
    const tensorhub::detail::unique_fd listener{::socket(AF_INET, SOCK_STREAM, 0)};
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
    REQUIRE(::listen(listener.get(), 8) == 0);
    REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
    auto options = who("tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port)), "trainer-0");
    options.join_timeout = 500ms;
    trainer source{options};
    CHECK(code_of([&] { source.worker.join(); }) == errc::disconnected);
  }
}

TEST_CASE("a server of another protocol is named by its number") {
  const stranger_server other{[](zmq::message_t frame) {
    const std::uint16_t number = 77;
    std::memcpy(static_cast<std::byte*>(frame.data()) + 4, &number, sizeof number);
    return frame;
  }};
  trainer source{who(other.address(), "trainer-0")};
  std::string sentence;
  CHECK(code_of([&] { source.worker.join(); }, &sentence) == errc::protocol_mismatch);
  CHECK(contains(sentence, "77"));
}

TEST_CASE("a worker of another protocol gets an answer that says so") {
  hub::reference_server server;
  zmq::context_t context;
  zmq::socket_t worker{context, zmq::socket_type::dealer};
  worker.set(zmq::sockopt::rcvtimeo, 10'000);
  worker.connect(server.address());
  tensorhub::encoder encoder;
  tensorhub::messages::envelope envelope;
  envelope.sender = 42;
  envelope.sequence = {1};
  envelope.body = tensorhub::messages::list_request{};
  const auto frame = encoder.encode(envelope);
  std::vector<std::byte> bytes{frame.begin(), frame.end()};
  const std::uint16_t number = 78;
  std::memcpy(bytes.data() + 4, &number, sizeof number);
  worker.send(zmq::const_buffer{bytes.data(), bytes.size()}, zmq::send_flags::none);
  zmq::message_t answer;
  REQUIRE(worker.recv(answer));
  tensorhub::decoder decoder;
  const auto decoded = decoder.decode({static_cast<const std::byte*>(answer.data()), answer.size()});
  REQUIRE(decoded.ok());
  const auto* goodbye = get_if<tensorhub::messages::goodbye_push>(&decoded.message.body);
  REQUIRE(goodbye != nullptr);
  CHECK(goodbye->reason.code == errc::protocol_mismatch);
  CHECK(contains(goodbye->reason.sentence, "78"));
}

TEST_CASE("policies that do not fit are refused with a sentence") {
  using independent_hub =
      tensorhub::hub<tensorhub::transports::tcp, tensorhub::nearest_source, tensorhub::independent>;
  hub::reference_server server;
  std::string sentence;
  member<independent_hub::publisher> other{who(server.address(), "trainer-0")};
  CHECK(code_of([&] { other.worker.join(); }, &sentence) == errc::policy_mismatch);
  CHECK(contains(sentence, "independent"));
  trainer source{who(server.address(), "trainer-0")};
  source.worker.join();
  member<unchecked_hub::subscriber> unchecked{who(server.address(), "rollout-0")};
  CHECK(code_of([&] { unchecked.worker.join(); }, &sentence) == errc::policy_mismatch);
}

TEST_CASE("garbage at the server: it is counted, dropped, and the service goes on") {
  hub::reference_server server;
  zmq::context_t context;
  zmq::socket_t stranger{context, zmq::socket_type::dealer};
  stranger.set(zmq::sockopt::linger, 0);
  stranger.connect(server.address());
  std::mt19937_64 random{7};
  for (int i = 0; i < 500; ++i) {
    std::string frame(random() % 300, '\0');
    for (char& c : frame) c = static_cast<char>(random());
    if (i % 3 == 0 && frame.size() > 8) frame.replace(0, 4, "THUB");
    if (i % 5 == 0) stranger.send(zmq::buffer(frame), zmq::send_flags::sndmore);
    stranger.send(zmq::buffer(frame), zmq::send_flags::none);
  }
  REQUIRE(comes_true([&] { return server.statistics().bad_frames >= 500; }));
  CHECK(server.statistics().messages == 0);
  trainer source{who(server.address(), "trainer-0")};
  rollout reader{who(server.address(), "rollout-0")};
  source.publish(1);
  CHECK(reader.worker.update().version == 1);
}

TEST_CASE("an oversized frame costs its sender the connection, nobody else anything") {
  hub::reference_server server;
  trainer source{who(server.address(), "trainer-0")};
  source.publish(1);
  zmq::context_t context;
  zmq::socket_t stranger{context, zmq::socket_type::dealer};
  zmq::socket_t monitor{context, zmq::socket_type::pair};
  stranger.set(zmq::sockopt::linger, 0);
  REQUIRE(::zmq_socket_monitor(stranger.handle(), "inproc://events", ZMQ_EVENT_DISCONNECTED) == 0);
  monitor.set(zmq::sockopt::rcvtimeo, 30'000);
  monitor.connect("inproc://events");
  stranger.connect(server.address());
  const std::string large(tensorhub::limits::frame_bytes + 1, 'x');
  stranger.send(zmq::buffer(large), zmq::send_flags::none);
  zmq::message_t event;
  CHECK(monitor.recv(event).has_value());
  rollout reader{who(server.address(), "rollout-0")};
  CHECK(reader.worker.update().version == 1);
  ::zmq_socket_monitor(stranger.handle(), nullptr, 0);
}

namespace {

/// Sends garbage in place of a greeting: nothing comes back but the end.
void send_garbage(const std::string& address, const std::string& garbage) {
  data_stranger stranger{address};
  stranger.send(garbage.data(), garbage.size());
  CHECK_MESSAGE(stranger.hear(1).empty(), "the data port answers garbage");
  CHECK_MESSAGE(stranger.ended(), "the data port keeps a connection that has sent garbage");
}

/// A reader that is let in, and sends garbage in place of requests: each is denied, and no byte is sent.
void request_garbage(const std::string& address, const wire::hello& greeting, const std::string& garbage) {
  data_stranger stranger{address};
  stranger.send(greeting);
  REQUIRE(stranger.hear_one<wire::welcome>().status == wire::welcome_status::accepted);
  REQUIRE(stranger.send(garbage.data(), garbage.size()) == garbage.size());
  stranger.say_no_more();
  for (std::size_t i = 0; i < garbage.size() / sizeof(wire::read_request); ++i) {
    const auto answer = stranger.hear_one<wire::read_answer>();
    REQUIRE(answer.status == static_cast<std::uint64_t>(tensorhub::completion_status::access_denied));
    REQUIRE(answer.bytes == 0);
  }
  CHECK_MESSAGE(stranger.hear(1).empty(), "the data port says more than it was asked");
  CHECK_MESSAGE(stranger.ended(), "the data port keeps a connection that its reader has ended");
}

}  // namespace

TEST_CASE("garbage at the data port: the connection ends, the readers go on") {
  hub::reference_server server;
  member<worker_of_both_doors> source{who(server.address(), "trainer-0")};
  source.publish(1);
  rollout reader{who(server.address(), "rollout-0")};
  CHECK(reader.worker.update().version == 1);
  const std::string address = source.worker.data().address().text;
  const std::string& key = source.worker.data().capability_key();
  REQUIRE(!key.empty());
  std::mt19937_64 random{11};
  for (int i = 0; i < 50; ++i) {
    std::string garbage(100 + random() % 5000, '\0');
    for (char& c : garbage) c = static_cast<char>(random());
    if (i % 2 == 1) {
      send_garbage(address, garbage);
      continue;
    }
    const auto shown = tensorhub::make_capability(key, {5}, source.worker.self(), UINT64_MAX);
    request_garbage(address, data_stranger::greeting(5, source.worker.self().value, shown), garbage);
  }
  source.worker.unpublish();
  source.publish(2);
  CHECK(reader.worker.update(at_least(2)).version == 2);
  CHECK(reader.memory.holds(2));
}
