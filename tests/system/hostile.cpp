// Clients that mean harm, beside a trainer and a rollout that go on: every one of their rounds ends well,
// with the right bytes, and what the server remembers stays within its bounds.

#include "hostile.hpp"

#include <random>

using namespace system_tests;
namespace messages = tensorhub::messages;

namespace {

/// Of this process, in KiB, as the kernel counts it now.
std::size_t resident_kib() {
  std::size_t total = 0;
  std::size_t resident = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  REQUIRE(file != nullptr);
  const int read = std::fscanf(file, "%zu %zu", &total, &resident);
  std::fclose(file);
  REQUIRE(read == 2);
  return resident * 4;
}

}  // namespace

TEST_CASE("a flood of 100,000 frames whose answers are never read") {
  hub::reference_server server;
  bystanders good{server.address()};
  const std::uint64_t before = server.statistics().messages + server.statistics().bad_frames;
  std::jthread flood{[&] {
    liar one{server.address()};
    const std::vector<std::byte> garbage(100, std::byte{7});
    for (std::uint64_t i = 0; i < 100'000; ++i) {
      if (i % 4 == 0)
        one.send_frame(garbage);
      else
        one.send_as(0xbad, i + 1, messages::list_request{});
    }
    // Until the last but three are there: what it has not sent is lost with it.
    CHECK(comes_true([&] { return server.statistics().bad_frames >= 25'000; }));
  }};
  for (int i = 0; i < 10; ++i) good.round();
  flood.join();
  good.round();
  CHECK(server.statistics().messages + server.statistics().bad_frames >= before + 99'997);
}

TEST_CASE("a flood of joins over one connection: other names, models, replicas and incarnations each time") {
  std::mutex mutex;
  std::vector<std::string> lines;
  tensorhub::reference_server_options how;
  how.catalog.worker_timeout = std::chrono::minutes{5};  // nobody makes room by being silent
  how.level = tensorhub::log_level::warning;
  how.log = [&](const tensorhub::log_line& line) {
    const std::lock_guard lock{mutex};
    lines.push_back(line.text);
  };
  hub::reference_server server{how};
  bystanders good{server.address()};
  liar one{server.address()};
  const messages::join_request fits = one.join_of("x");
  constexpr std::uint64_t joins = 20'000;
  for (std::uint64_t i = 0; i < joins; ++i) {
    messages::join_request join = fits;
    join.replica = "r" + std::to_string(i);
    if (i % 2 == 0) {
      join.model = "m" + std::to_string(i);
      join.form.tensors = {{"w", tensorhub::dtype::f32, {i + 1}}};
      const tensorhub::layout shape{join.form.tensors, 1024};
      join.form.layout_digest = shape.digest();
      join.form.chunk_bytes = 1024;
      join.form.chunk_count = shape.chunk_count();
    }
    one.send_as(1'000'000 + i, 1, std::move(join));
    if (i % 5'000 == 0) good.round();
  }
  // All but those that one connection may speak for were dropped.
  const std::uint64_t kept = tensorhub::limits::workers_of_connection;
  CHECK(comes_true([&] { return server.statistics().crowded_messages >= joins - kept; }));
  CHECK(server.statistics().workers <= kept + 2);
  for (int i = 0; i < 3; ++i) good.round();
  const std::lock_guard lock{mutex};
  CHECK(std::ranges::any_of(lines, [](const std::string& line) { return contains(line, "speaks for"); }));
  CHECK(lines.size() < 1000);  // the log is no victim either
}

TEST_CASE("a flood of joins over many connections: the server fills up to its bounds, and empties again") {
  tensorhub::reference_server_options how;
  how.catalog.worker_timeout = 3s;
  how.catalog.most = {.workers = 200, .models = 10, .replicas = 100};
  hub::reference_server server{how};
  bystanders good{server.address()};
  {
    std::vector<std::unique_ptr<liar>> crowd;
    for (std::uint64_t c = 0; c < 20; ++c) {
      crowd.push_back(std::make_unique<liar>(server.address(), 5'000 + c));
      const messages::join_request fits = crowd.back()->join_of("x");
      for (std::uint64_t i = 0; i < 100; ++i) {
        messages::join_request join = fits;
        join.replica = "r" + std::to_string(c) + "-" + std::to_string(i);
        if (c % 2 == 0) join.model += "-" + join.replica;
        if (c % 2 == 0) join.form.tensors = {{"w", tensorhub::dtype::f32, {1}}};
        if (c % 2 == 0)
          join.form.layout_digest = tensorhub::layout{join.form.tensors, join.form.chunk_bytes}.digest();
        if (c % 2 == 0) join.form.chunk_count = 1;
        crowd.back()->send_as(1'000'000 + 1'000 * c + i, 1, std::move(join));
      }
    }
    std::string sentence;
    for (int i = 0; i < 100 && sentence.empty(); ++i) {
      const auto reply = crowd.front()->hear<messages::join_reply>();
      if (!reply.result.ok()) sentence = reply.result.sentence;
    }
    CHECK(contains(sentence, "raise the server's bound (in C++: catalog.most."));
    for (int i = 0; i < 3; ++i) good.round();
    const auto seen = server.statistics();
    CHECK(seen.workers <= 200);
    CHECK(seen.models <= 10);
    CHECK(comes_true([&] { return server.statistics().joins_refused.failed() >= 2'000 - 200; }));
  }
  // Those who never beat are dead soon: there is room again.
  CHECK(comes_true([&] { return server.statistics().workers <= 2; }));
  good.publish();
  good.newcomer("rollout-new");
}

TEST_CASE("models of very many shards and layouts of very many tensors are bounded as a whole") {
  tensorhub::reference_server_options how;
  how.catalog.most.layout_bytes = 1u << 20;
  how.catalog.worker_timeout = std::chrono::minutes{5};  // nobody makes room by being silent
  hub::reference_server server{how};
  bystanders good{server.address()};
  const std::size_t before = resident_kib();
  std::size_t refused = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    liar one{server.address(), 7'000 + i};
    messages::join_request join = one.join_of("x");
    join.model = "wide-" + std::to_string(i);
    join.shard = {0, i % 2 == 0 ? tensorhub::limits::shards : 1};
    for (int t = 0; t < (i % 2 == 0 ? 1 : 2'000); ++t)
      join.form.tensors.push_back(
          {"tensor-" + std::string(100, 'x') + std::to_string(t), tensorhub::dtype::f32, {1}});
    const tensorhub::layout shape{join.form.tensors, join.form.chunk_bytes};
    join.form.layout_digest = shape.digest();
    join.form.chunk_count = shape.chunk_count();
    const auto reply = one.ask<messages::join_reply>(std::move(join));
    refused += reply.result.code == errc::limit_exceeded ? 1 : 0;
  }
  CHECK(refused >= 190);
  CHECK(resident_kib() < before + 512 * 1024);
  good.round();
}

TEST_CASE("large answers that are asked for and never read take little of the server's memory") {
  hub::reference_server server;
  bystanders good{server.address()};
  liar one{server.address(), 0xbad, 1};
  messages::join_request join = one.join_of("x");
  join.model = "wide";
  for (int t = 0; t < 20'000; ++t)
    join.form.tensors.push_back(
        {"tensor-" + std::string(100, 'x') + std::to_string(t), tensorhub::dtype::f32, {1}});
  const tensorhub::layout shape{join.form.tensors, join.form.chunk_bytes};
  join.form.layout_digest = shape.digest();
  join.form.chunk_count = shape.chunk_count();
  REQUIRE(one.ask<messages::join_reply>(std::move(join)).result.ok());
  const std::size_t before = resident_kib();
  messages::describe_request describe;
  describe.model = "wide";
  constexpr std::uint64_t questions = 200;  // each answer has more than 2 MB
  const std::uint64_t heard = server.statistics().messages;
  for (std::uint64_t i = 0; i < questions; ++i) one.send_as(one.self(), 1'000 + i, describe);
  CHECK(comes_true([&] { return server.statistics().messages >= heard + questions; }));
  good.round();
  CHECK(resident_kib() < before + 200 * 1024);
  CHECK(server.statistics().unread_answers > 0);
  // Who reads them is answered again.
  for (int i = 0; i < 3; ++i) CHECK(one.hear<messages::describe_reply>().tensors.size() == 20'000);
  CHECK(comes_true([&] {
    one.send_as(one.self(), 5'000, describe);
    return one.hear<messages::describe_reply>().result.ok();
  }));
  good.round();
}

TEST_CASE("a message over the server's bound costs its sender the connection, and never arrives") {
  hub::reference_server server;
  bystanders good{server.address()};
  liar one{server.address()};
  one.send_frame(std::vector<std::byte>(17u << 20, std::byte{7}));
  // Messages of a connection come in their order, so what is answered was sent after the large one.
  for (int i = 0; i < 20; ++i) {
    one.send(messages::list_request{});
    std::this_thread::sleep_for(50ms);
  }
  static_cast<void>(one.hear<messages::list_reply>());
  CHECK(server.statistics().bad_frames == 0);
  for (int i = 0; i < 3; ++i) good.round();
}

TEST_CASE("what a worker can make the server say again and again does not fill the log") {
  std::mutex mutex;
  std::vector<std::string> lines;
  hub::reference_server server{
      {.level = tensorhub::log_level::info, .log = [&](const tensorhub::log_line& line) {
         const std::lock_guard lock{mutex};
         lines.push_back(line.text);
       }}};
  bystanders good{server.address()};
  liar one{server.address()};
  one.join("x");
  messages::join_request join = one.join_of("y");
  join.shard = {5, 1};
  constexpr std::uint64_t times = 20'000;
  const std::uint64_t heard = server.statistics().messages;
  for (std::uint64_t i = 0; i < times; ++i) {
    if (i % 2 == 0)
      one.send_as(0xbad2, i + 1, join);
    else
      one.send_as(one.self(), 1'000 + i, messages::join_reply{});
  }
  CHECK(comes_true([&] { return server.statistics().messages >= heard + times; }));
  good.round();
  const auto has_line = [&](const char* part) {
    const std::lock_guard lock{mutex};
    return std::ranges::any_of(lines, [&](const std::string& line) { return contains(line, part); });
  };
  CHECK(has_line("does not exist"));
  CHECK(has_line("only a server sends"));
  {
    const std::lock_guard lock{mutex};
    CHECK(lines.size() < times / 10);
  }
  CHECK(comes_true([&] {  // how much was not said is said
    one.send_as(0xbad2, 1, join);
    return has_line("were left out");
  }));
}

TEST_CASE("waits without number: so many are open at a time, the others are refused") {
  hub::reference_server server;
  bystanders good{server.address()};
  liar one{server.address()};
  one.join("waiter");
  std::size_t refused = 0;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    messages::wait_request wait;
    wait.selector = tensorhub::at_least(1'000'000 + i);
    wait.timeout_ms = UINT32_MAX;
    one.send(wait);  // says that all earlier answers have arrived, so none is kept for it
    if (i < tensorhub::limits::worker_requests_in_flight) continue;
    refused += one.hear<messages::version_reply>().result.code == errc::limit_exceeded ? 1 : 0;
  }
  CHECK(refused == 20'000 - tensorhub::limits::worker_requests_in_flight);
  for (int i = 0; i < 3; ++i) good.round();
}

TEST_CASE("calls without an end: the second one costs the caller its place, and nobody a source") {
  hub::reference_server server;
  bystanders good{server.address()};
  good.publish();
  for (std::uint64_t i = 0; i < 50; ++i) {
    liar one{server.address(), 8'000 + i};
    one.join("liar-" + std::to_string(i % 5));
    for (std::uint64_t call = 0; call < 20; ++call) {
      messages::update_request update;
      update.operation = {1'000 + 20 * call};
      update.timeout_ms = UINT32_MAX;
      one.send(update);
    }
    CHECK(one.hear<messages::goodbye_push>().reason.code == errc::protocol_mismatch);
    if (i % 10 == 0) good.newcomer("rollout-" + std::to_string(10 + i));
  }
  CHECK(comes_true([&] { return server.statistics().workers_unruly == 50; }));
  good.unpublish();
  for (int i = 0; i < 3; ++i) good.round();
}

TEST_CASE("calls whose readers never read: what they hold is given to those who do") {
  tensorhub::reference_server_options how;
  how.catalog.progress_timeout = 300ms;
  how.catalog.worker_timeout = std::chrono::minutes{5};  // they need not say that they live
  hub::reference_server server{how};
  bystanders good{server.address()};
  good.publish();
  const std::uint32_t credits = tensorhub::nearest_source{}.limits().credits;
  std::vector<std::unique_ptr<liar>> sleepers;
  for (std::uint64_t i = 0; i < credits; ++i) {
    liar& one = *sleepers.emplace_back(std::make_unique<liar>(server.address(), 9'000 + i));
    one.join("sleeper-" + std::to_string(i));
    messages::update_request update;
    update.timeout_ms = 60'000;
    CHECK(one.ask<messages::update_reply>(update).result.ok());
  }
  // They are given other sources too, and say of none that they have done with it: a drain of it is forced.
  good.newcomer("rollout-1", 100ms);
  good.newcomer("rollout-2", 100ms);
  CHECK(server.statistics().sources_taken_back > 0);
  good.unpublish(100ms);
  good.round();
}

TEST_CASE("publications without a neighbour: so many are open at a time, the others are refused") {
  hub::reference_server server;
  bystanders good{server.address()};
  liar one{server.address()};
  messages::join_request join = one.join_of("half");
  join.model = "of two shards";
  join.shard = {0, 2};
  join.form.tensors = {{"x", tensorhub::dtype::f32, {1}}};
  const tensorhub::layout shape{join.form.tensors, join.form.chunk_bytes};
  join.form.layout_digest = shape.digest();
  join.form.chunk_count = shape.chunk_count();
  REQUIRE(one.ask<messages::join_reply>(join).result.ok());
  std::size_t refused = 0;
  for (std::uint64_t i = 0; i < 2'000; ++i) {
    messages::publish_request publish;
    publish.operation = {1'000'000 - i};  // downwards: none of them is an old one
    publish.held.version = {1 + i};
    publish.held.epoch = 1 + i;
    refused += one.ask<messages::status_reply>(publish).result.code == errc::limit_exceeded ? 1 : 0;
  }
  CHECK(refused == 2'000 - tensorhub::limits::open_calls);
  for (int i = 0; i < 3; ++i) good.round();
}

TEST_CASE("a worker that says it holds what it never read: its readers find out and read elsewhere") {
  hub::reference_server server;
  bystanders good{server.address()};
  good.publish();
  liar one{server.address()};
  one.join("liar");
  messages::update_request update;
  update.timeout_ms = 10'000;
  const auto given = one.ask<messages::update_reply>(update);
  REQUIRE(given.result.ok());
  messages::finish_request finish;
  finish.operation = given.operation;
  finish.version = given.version;
  finish.held = messages::reference{given.version, 9, given.sources.front().root, {}};
  one.send(finish);
  messages::heartbeat_request beat;
  beat.chunks = UINT64_MAX;
  one.send(beat);
  std::uint64_t failed = 0;
  for (int i = 0; i < 5; ++i) {
    beat.chunks = UINT64_MAX;
    one.send_as(one.self(), 0, beat);
    failed += good.newcomer("rollout-" + std::to_string(10 + i)).sources_failed.failed();
  }
  CHECK_MESSAGE(failed > 0, "nobody was sent to it: this tests nothing");
  good.unpublish();
  good.round();
}

TEST_CASE("a worker that serves other bytes than it says: its readers find out and read elsewhere") {
  hub::reference_server server;
  bystanders good{server.address()};
  good.publish();
  rollout wrong{who(server.address(), "wrong")};
  CHECK(wrong.worker.update(at_least(good.version()), 60s).version == good.version());
  wrong.memory.fill(1'000'000);  // breaks the contract
  std::uint64_t refused = 0;
  // Which of the sources a reader begins with is chance.
  for (int i = 10; i < 60 && refused == 0; ++i)
    refused += good.newcomer("rollout-" + std::to_string(i)).chunks_refused();
  CHECK_MESSAGE(refused > 0, "nobody read from it: this tests nothing");
  wrong.worker.leave();
  good.unpublish();
  good.round();
}

TEST_CASE("a worker of another shard, at a second place, or in somebody else's: refused") {
  hub::reference_server server;
  bystanders good{server.address()};
  liar one{server.address()};
  messages::join_request join = one.join_of("liar");
  join.shard = {1, 2};
  CHECK(one.ask<messages::join_reply>(join).result.code == errc::layout_mismatch);
  join.shard = {7, 3};
  CHECK(one.ask<messages::join_reply>(join).result.code == errc::invalid_argument);
  join.shard = {0, 1};
  CHECK(one.ask<messages::join_reply>(join).result.ok());
  join.replica = "second";
  CHECK(one.ask<messages::join_reply>(join).result.code == errc::invalid_argument);
  // It says that it reads from everybody: what an earlier server may have given is believed, so much of it.
  join.replica = "liar";
  for (std::uint64_t i = 0; i < 64; ++i) {
    messages::assignment& old = join.before.reading.emplace_back();
    old.lease = {i + 1};
    old.source = {i + 1};
    old.version = {1'000};
  }
  for (int round = 0; round < 100; ++round) {
    for (auto& old : join.before.reading) old.source.value += 1'000;
    CHECK(one.ask<messages::join_reply>(join).result.ok());
  }
  CHECK(server.statistics().leases <= 2 * tensorhub::limits::sources);
  for (int i = 0; i < 3; ++i) good.round();
}

TEST_CASE("old messages again: nothing is done twice") {
  hub::reference_server server;
  bystanders good{server.address()};
  liar one{server.address()};
  one.join("replayer");
  messages::publish_request publish;
  publish.held = {{1'000}, 1, {1, 1}, {}};
  const std::uint64_t sequence = one.send(publish);
  CHECK(one.hear<messages::status_reply>().result.ok());
  messages::unpublish_request take_back;
  take_back.version = {1'000};
  take_back.epoch = 1;
  CHECK(one.ask<messages::drained_reply>(take_back).result.ok());
  // Counters are shown after answers, all at once: with a refusal everything before it is counted.
  const auto published = [&](std::uint64_t refusals) {
    liar other{server.address()};
    messages::join_request join = other.join_of("marker");
    join.shard = {7, 3};
    CHECK(other.ask<messages::join_reply>(join).result.code == errc::invalid_argument);
    CHECK(
        comes_true([&] { return server.statistics().joins_refused.of(errc::invalid_argument) == refusals; }));
    return server.statistics().publishes.of(errc::ok);
  };
  const std::uint64_t before = published(1);
  for (int i = 0; i < 1'000; ++i) one.send_as(one.self(), sequence, publish);
  CHECK(one.ask<messages::list_reply>(messages::list_request{}).result.ok());  // all were seen
  CHECK(published(2) == before);
}

TEST_CASE("the data port: thousands that say nothing, half a hello, requests whose answers are never read") {
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  const std::size_t strangers = std::min<std::size_t>(3'000, files.rlim_cur / 3);
  hub::reference_server server;
  bystanders good{server.address()};
  good.publish();
  tensorhub::worker& source = good.source();
  const std::string address = source.data().address().text;
  constexpr tensorhub::incarnation reader{5};
  const auto greeting = data_stranger::greeting(
      reader.value, source.self().value,
      tensorhub::make_capability(source.data().capability_key(), reader, source.self(), UINT64_MAX));
  const auto without_capability = data_stranger::greeting(reader.value, source.self().value, {});
  const tensorhub::remote_region control = source.data().control();
  wire::read_request wanted;
  std::memcpy(&wanted.key, control.key.bytes.data(), sizeof wanted.key);
  wanted.bytes = control.bytes;
  const std::vector<wire::read_request> requests(60'000, wanted);  // more answers than sockets hold
  const std::size_t before_kib = resident_kib();
  std::vector<data_stranger> sockets;
  std::uint64_t refused = 0;
  std::uint64_t sent_requests = 0;
  for (std::size_t i = 0; i < strangers; ++i) {
    data_stranger& stranger = sockets.emplace_back(address);
    if (i % 3 == 1) stranger.send(&greeting, sizeof greeting / 2);
    if (i % 150 == 2) {  // asks for the whole control block again and again, and takes none of it
      stranger.send(greeting);
      REQUIRE(stranger.hear_one<wire::welcome>().status == wire::welcome_status::accepted);
      sent_requests += stranger.send(requests.data(), requests.size() * sizeof wanted) / sizeof wanted;
    }
    if (i % 30 == 5) {
      stranger.send(without_capability);
      REQUIRE(stranger.hear_one<wire::welcome>().status == wire::welcome_status::no_capability);
      ++refused;
    }
    if (i % 500 == 0) good.newcomer("rollout-a" + std::to_string(i));
  }
  for (int i = 0; i < 3; ++i) good.newcomer("rollout-b" + std::to_string(i));
  CHECK(source.data().refused_connections() == refused);
  const std::uint64_t greedy = (strangers + 147) / 150;
  CHECK(sent_requests >= 10'000 * greedy);
  const std::uint64_t asked_kib = sent_requests * control.bytes / 1024;
  const std::size_t present_kib = std::max(resident_kib(), before_kib);  // memory may have been given back
  const std::size_t grown_kib = present_kib - before_kib;
  MESSAGE(sent_requests << " requests for " << asked_kib << " KiB; grown by " << grown_kib << " KiB");
  CHECK(grown_kib < asked_kib / 8);
}

TEST_CASE("a flood of large messages costs its sender the connection, and is heard a little at a time") {
  hub::reference_server server;
  bystanders good{server.address()};
  std::atomic<bool> is_over = false;
  std::jthread flood{[&] {
    liar one{server.address(), 0xbad, 1000, 1};
    const std::vector<std::byte> garbage((16u << 20) - 4096, std::byte{7});
    while (!is_over) one.send_in_parts(garbage);
  }};
  CHECK(comes_true([&] { return server.statistics().flooding_connections >= 3; }));
  for (int i = 0; i < 3; ++i) good.round();
  // After what is granted at once, a message for each connection.
  CHECK(server.statistics().bad_frames <= 8 + 9 * (server.statistics().flooding_connections + 1));
  is_over = true;
}
