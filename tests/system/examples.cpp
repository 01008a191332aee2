// The example programs, as a user runs them.

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <tensorhub/key_files.hpp>
#include <tensorhub/types/plain_text.hpp>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "blake3_hub.hpp"
#include "support/child_process.hpp"
#include "tensorhub/service/codec.hpp"

#ifdef TENSORHUB_RL_LOOP

using namespace processes;
using namespace system_tests;

namespace {

/// A folder of the test's own, removed with it.
struct scratch_folder {
  std::filesystem::path path;
  scratch_folder() {
    std::string name =
        (std::filesystem::temp_directory_path() / ("tensorhub-" + std::string(6, 'X'))).string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~scratch_folder() { std::filesystem::remove_all(path); }
};

/// Where a reference server says that it serves.
std::string address_of(child_process& server) {
  const std::string said = server.output_line();
  return said.substr(said.rfind(' ') + 1);
}

/// The rest of a line that the program says after others; the line of its log, if its errors are read.
std::string line_with(child_process& program, const std::string& text) {
  for (int i = 0; i < 1000; ++i) {
    const std::string line = program.output_line();
    if (contains(line, text)) return line;
  }
  return "(it was not said)";
}

/// A program whose standard error is read with its standard output.
std::vector<std::string> with_errors(std::vector<std::string> command) {
  command.insert(command.begin(), {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1"});
  return command;
}

std::string content(const std::filesystem::path& path) {
  std::ifstream in{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

/// Many small tensors and few large ones, one without bytes, one without dimensions, one of odd length.
void write_safetensors(const std::filesystem::path& path) {
  std::ostringstream header;
  std::uint64_t offset = 0;
  header << "{\"__metadata__\":{\"format\":\"pt\"}";
  const auto add = [&](const std::string& name, const std::string& type, const std::string& shape,
                       std::uint64_t bytes) {
    header << ",\"" << name << "\":{\"dtype\":\"" << type << "\",\"shape\":[" << shape
           << "],\"data_offsets\":[" << offset << "," << offset + bytes << "]}";
    offset += bytes;
  };
  for (std::uint64_t i = 0; i < 400; ++i)
    add("layers." + std::to_string(i) + ".norm", "F32", std::to_string(i + 1), (i + 1) * 4);
  add("empty", "F32", "0,4", 0);
  add("scalar", "F64", "", 8);
  add("odd", "U8", "1000003", 1'000'003);
  for (int i = 0; i < 3; ++i) add("large." + std::to_string(i), "BF16", "2048,1024", 4u << 20);
  add("of a newer type", "F4", "77", 77);
  header << "}";
  const std::string text = header.str();
  const std::uint64_t length = text.size();
  std::mt19937_64 random{5};
  std::string data(offset, '\0');
  for (char& c : data) c = static_cast<char>(random());
  std::ofstream out{path, std::ios::binary};
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out << text << data;
}

}  // namespace

TEST_CASE("serve_file: a model file arrives identical, also from another puller") {
  const scratch_folder folder;
  const std::string file = folder.path / "model.safetensors";
  write_safetensors(file);
  child_process publisher{{TENSORHUB_SERVE_FILE, "publish", file, "--listen", "tcp://127.0.0.1:*"}};
  const std::string said = publisher.output_line();
  const std::string address = said.substr(said.rfind(' ') + 1);
  REQUIRE_MESSAGE(contains(said, "serving 407 tensors"), said);
  child_process first{{TENSORHUB_SERVE_FILE, "pull", folder.path / "first", "--server", address, "--hold"}};
  CHECK(contains(first.output_line(), "from publisher/0"));
  child_process second{{TENSORHUB_SERVE_FILE, "pull", folder.path / "second", "--server", address}};
  CHECK(contains(second.output_line(), "version 1"));
  CHECK(second.wait() == 0);
  first.signal(SIGTERM);
  CHECK(first.wait() == 0);
  publisher.signal(SIGTERM);
  CHECK(publisher.wait() == 0);
  CHECK(content(file) == content(folder.path / "first"));
  CHECK(content(file) == content(folder.path / "second"));
}

TEST_CASE("serve_file: the commands that the README shows") {
  const scratch_folder folder;
  write_safetensors(folder.path / "model.safetensors");
  std::vector<std::vector<std::string>> commands;
  std::istringstream readme{content(std::string{TENSORHUB_SOURCE_DIR} + "/README.md")};
  for (std::string line; std::getline(readme, line);) {
    const std::size_t at = line.find("./examples/run serve_file");
    if (at != 4) continue;  // no command, but a sentence
    std::vector<std::string>& command = commands.emplace_back(1, TENSORHUB_SERVE_FILE);
    std::istringstream rest{
        line.substr(0, line.find('#')).substr(at + std::strlen("./examples/run serve_file"))};
    for (std::string word; rest >> word;) {
      if (word.starts_with("/path/of")) word.replace(0, std::strlen("/path/of"), folder.path.string());
      command.push_back(word);
    }
  }
  REQUIRE(commands.size() == 2);
  // Not at the README's port, which somebody may use: the default, and the one that it names, are the same.
  REQUIRE(commands[1].back() == "tcp://127.0.0.1:5570");
  child_process help{{TENSORHUB_SERVE_FILE, "--help"}};
  std::string usage;
  for (int line = 0; line < 4; ++line) usage += help.output_line();
  CHECK_MESSAGE(contains(usage,
                         "--listen A       publish: be the reference server, at A (default "
                         "tcp://127.0.0.1:5570 without"),
                usage);
  commands[0].insert(commands[0].end(), {"--listen", "tcp://127.0.0.1:*"});
  child_process publisher{commands[0]};
  const std::string said = publisher.output_line();
  CHECK_MESSAGE(contains(said, "serving 407 tensors"), said);
  commands[1].back() = said.substr(said.rfind(' ') + 1);
  child_process puller{commands[1]};
  CHECK(contains(puller.output_line(), "from publisher/0"));
  CHECK(puller.wait() == 0);
  publisher.signal(SIGTERM);
  CHECK(publisher.wait() == 0);
  CHECK(content(folder.path / "model.safetensors") == content(folder.path / "copy.safetensors"));
}

TEST_CASE(
    "serve_file: another server, model, version, replica and interface than by default, and a time-out") {
  const scratch_folder folder;
  const std::string file = folder.path / "model.safetensors";
  write_safetensors(file);
  hub::reference_server server{
      {.catalog = {.recovery_grace = 10min}}};              // later it would say that there is none
  const auto listens_at = [](const std::string& address) {  // as the kernel writes 127.0.0.N
    std::ifstream sockets{"/proc/net/tcp"};
    for (std::string line; std::getline(sockets, line);)
      if (contains(line, " " + address + ":") && contains(line, " 00000000:0000 0A ")) return true;
    return false;
  };
  child_process publisher{{TENSORHUB_SERVE_FILE, "publish", file, "--server", server.address(), "--model",
                           "m", "--version", "7", "--replica", "first", "--host", "127.0.0.77"}};
  const std::string said = publisher.output_line();
  CHECK_MESSAGE(contains(said, "as version 7 of model 'm' at " + server.address()), said);
  CHECK(listens_at("4D00007F"));
  child_process puller{{TENSORHUB_SERVE_FILE, "pull", folder.path / "copy", "--server", server.address(),
                        "--model", "m", "--replica", "second", "--host", "127.0.0.78", "--hold"}};
  CHECK(contains(puller.output_line(), "version 7 of model 'm'"));
  CHECK(listens_at("4E00007F"));
  CHECK(content(file) == content(folder.path / "copy"));
  hub::subscriber asks{who(server.address(), "-")};
  const auto models = asks.list("m");
  REQUIRE(models.size() == 1);
  CHECK(models[0].latest == tensorhub::version_number{7});
  REQUIRE(models[0].replicas.size() == 2);
  CHECK(models[0].replicas[0].name == "first");
  CHECK(models[0].replicas[1].name == "second");
  child_process nothing{with_errors({TENSORHUB_SERVE_FILE, "pull", folder.path / "none", "--server",
                                     server.address(), "--model", "other", "--timeout-s", "1"})};
  const std::string why = nothing.output_line();
  CHECK_MESSAGE(contains(why, "the deadline passed"), why);
  CHECK(nothing.wait() == 1);
}

TEST_CASE("serve_file: a file system without space for the file is an error") {
  const std::string mounted = "mount -t tmpfs -o size=1m tmpfs /mnt && exec \"$0\" \"$@\" 2>&1";
  const auto on_small_file_system = [&](std::vector<std::string> command) {
    command.insert(command.begin(), {"/usr/bin/unshare", "-rm", "/bin/sh", "-c", mounted});
    return command;
  };
  if (child_process{on_small_file_system({"/bin/true"})}.wait() != 0) {
    std::cout << "SKIPPED: system.examples: a full file system: this user may not mount one" << std::endl;
    return;
  }
  const scratch_folder folder;
  const std::string file = folder.path / "model.safetensors";
  write_safetensors(file);
  child_process publisher{{TENSORHUB_SERVE_FILE, "publish", file, "--listen", "tcp://127.0.0.1:*"}};
  child_process puller{
      on_small_file_system({TENSORHUB_SERVE_FILE, "pull", "/mnt/copy", "--server", address_of(publisher)})};
  CHECK(puller.wait() == 1);
  CHECK(contains(puller.output_line(), "cannot extend '/mnt/copy': No space left on device"));
}

TEST_CASE("serve_file: what is no model file is refused") {
  const scratch_folder folder;
  const std::string file = folder.path / "noise";
  std::ofstream{file} << "\xff\xff\xff\xff\xff\xff\xff\xff{}";
  child_process noise{{TENSORHUB_SERVE_FILE, "publish", file, "--listen", "tcp://127.0.0.1:*"}};
  CHECK(noise.wait() == 1);
  child_process missing{
      {TENSORHUB_SERVE_FILE, "publish", folder.path / "nothing", "--listen", "tcp://127.0.0.1:*"}};
  CHECK(missing.wait() == 1);
}

TEST_CASE("reference_server: serves, and ends when it is asked to") {
  child_process program{{TENSORHUB_REFERENCE_SERVER, "--address", "tcp://127.0.0.1:*", "--heartbeat-ms",
                         "200", "--retain", "3", "--log-level", "warning"}};
  const std::string said = program.output_line();
  REQUIRE(contains(said, "serving at tcp://127.0.0.1:"));
  const std::string address = said.substr(said.rfind(' ') + 1);
  trainer source{who(address, "trainer-0")};
  rollout reader{who(address, "rollout-0")};
  source.publish(1);
  CHECK(reader.worker.update().version == 1);
  CHECK(reader.memory.holds(1));
  program.signal(SIGTERM);
  CHECK(program.wait() == 0);
}

TEST_CASE("reference_server: by nohup, and without a list to read again, it outlives its terminal") {
  child_process program{{"/bin/sh", "-c", "trap '' HUP; exec \"$0\" \"$@\"", TENSORHUB_REFERENCE_SERVER,
                         "--address", "tcp://127.0.0.1:*", "--log-level", "error"}};
  const std::string address = address_of(program);
  program.signal(SIGHUP);
  std::this_thread::sleep_for(300ms);
  rollout reader{who(address, "rollout-0"), 1000};
  reader.worker.join();
  program.signal(SIGTERM);
  CHECK(program.wait() == 0);
}

TEST_CASE("reference_server: answers what an operator asks it") {
  child_process program{
      {TENSORHUB_REFERENCE_SERVER, "--address", "tcp://127.0.0.1:*", "--log-level", "error"}};
  const std::string said = program.output_line();
  const std::string address = said.substr(said.rfind(' ') + 1);
  trainer source{who(address, "trainer-0")};
  rollout reader{who(address, "rollout-0")};
  source.publish(3);
  reader.worker.update(3, 20s);
  CHECK(comes_true([&] {  // the server hears of an update a moment after it
    child_process list{{TENSORHUB_REFERENCE_SERVER, "--ask", "list", address}};
    CHECK(contains(list.output_line(), "model policy: 1 shards"));
    const std::string line = list.output_line();
    CHECK(list.wait() == 0);
    return contains(line, "replica rollout-0: 1 of 1 shards joined, version 3");
  }));
  child_process why{{TENSORHUB_REFERENCE_SERVER, "--ask", "why", address, "policy", "rollout-0", "0"}};
  CHECK(contains(why.output_line(), "rollout-0/0, version 3, upstream: trainer-0/0"));
  CHECK(why.wait() == 0);
  child_process quiet{{TENSORHUB_REFERENCE_SERVER, "--ask", "stuck", address, "policy"}};
  CHECK(quiet.output_line() == "nothing is stuck");
  CHECK(quiet.wait() == 0);
  const auto waiting = reader.worker.update_async(4, 60s);  // never comes; cancelled at the end
  for (int status = 0; status != 3;) {                      // it is told of when it has waited for a second
    child_process stuck{{TENSORHUB_REFERENCE_SERVER, "--ask", "stuck", address}};
    const std::string first = stuck.output_line();
    status = stuck.wait();
    CHECK((status == 0 || status == 3));
    if (status == 3) CHECK(contains(first, "no version: policy/rollout-0/0, version 4"));
  }
  child_process nonsense{{TENSORHUB_REFERENCE_SERVER, "--ask", "what", address}};
  CHECK(nonsense.wait() == 2);
}

TEST_CASE("reference_server: what it prints of a server's answers does not speak to the terminal") {
  const std::string name = "x\n\x1b]0;title\x07";
  zmq::context_t context;
  zmq::socket_t liar{context, zmq::socket_type::router};
  liar.set(zmq::sockopt::linger, 0);
  liar.set(zmq::sockopt::rcvtimeo, 100);
  liar.bind("tcp://127.0.0.1:*");
  const std::string address = liar.get(zmq::sockopt::last_endpoint);
  std::jthread answering{[&](const std::stop_token& stop) {
    tensorhub::encoder encoder;
    tensorhub::decoder decoder;
    zmq::message_t from;
    zmq::message_t frame;
    while (!stop.stop_requested()) {
      if (!liar.recv(from) || !liar.recv(frame)) continue;
      const auto asked = decoder.decode({static_cast<const std::byte*>(frame.data()), frame.size()});
      tensorhub::messages::envelope answer{1, asked.message.sequence, {}, {}, {}, asked.message.sender};
      if (get_if<tensorhub::messages::list_request>(&asked.message.body)) {
        answer.body = tensorhub::messages::list_reply{{}, {{.name = name, .replicas = {{.name = name}}}}};
      } else if (get_if<tensorhub::messages::why_request>(&asked.message.body)) {
        tensorhub::messages::why_reply reply;
        reply.result = {errc::not_found, "no replica " + name};
        answer.body = reply;
      } else {
        continue;
      }
      const auto bytes = encoder.encode(answer);
      liar.send(from, zmq::send_flags::sndmore);
      liar.send(zmq::const_buffer{bytes.data(), bytes.size()}, zmq::send_flags::none);
    }
  }};
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"list", address}, {"why", address, "policy", "rollout-0"}}) {
    std::vector<std::string> command{TENSORHUB_REFERENCE_SERVER, "--ask"};
    command.insert(command.end(), words.begin(), words.end());
    child_process program{with_errors(command)};
    const std::string said = program.output_line();
    program.wait();
    CHECK_MESSAGE(contains(said, "x\\x0a\\x1b]0;title\\x07"), said);
    CHECK(tensorhub::is_plain_text(said));
  }
}

TEST_CASE("reference_server: listens to other machines with keys, or if it is told to do without") {
  for (const char* address : {"tcp://0.0.0.0:*", "tcp://*:*", "tcp://[::]:*"}) {
    child_process program{with_errors({TENSORHUB_REFERENCE_SERVER, "--address", address})};
    const std::string said = program.output_line();
    if (contains(said, "serving")) program.signal(SIGTERM);
    CHECK_MESSAGE((contains(said, "--keys") && contains(said, "--insecure")), said);
    CHECK(program.wait() == 2);
  }
  child_process trusting{
      {TENSORHUB_REFERENCE_SERVER, "--address", "tcp://0.0.0.0:*", "--insecure", "--log-level", "error"}};
  CHECK(contains(trusting.output_line(), "serving at tcp://0.0.0.0:"));
  trusting.signal(SIGTERM);
  CHECK(trusting.wait() == 0);
}

TEST_CASE("reference_server: takes the descriptors it may have, and puts its secrets into no core dump") {
  const scratch_folder folder;
  const std::string keys = folder.path / "keys";
  child_process making{{TENSORHUB_REFERENCE_SERVER, "--make-keys", keys}};
  REQUIRE(making.wait() == 0);
  child_process program{
      {"/bin/sh", "-c", "ulimit -Sn 64; ulimit -Hn 4096; ulimit -Sc unlimited; exec \"$0\" \"$@\"",
       TENSORHUB_REFERENCE_SERVER, "--address", "tcp://127.0.0.1:*", "--keys", keys + "/server.secret",
       "--allow", keys + "/clients.allow", "--log-level", "error"}};
  CHECK(contains(program.output_line(), "serving at"));
  const std::string limits = content("/proc/" + std::to_string(program.id()) + "/limits");
  const auto soft_limit = [&](const std::string& name) {
    std::istringstream line{limits.substr(limits.find(name) + name.size())};
    std::string soft;
    line >> soft;
    return soft;
  };
  CHECK(soft_limit("Max open files") == "4096");
  CHECK(soft_limit("Max core file size") == "0");
  program.signal(SIGTERM);
  CHECK(program.wait() == 0);
}

TEST_CASE("reference_server: its scheduler and its consistency are those that it is told") {
  child_process program{{TENSORHUB_REFERENCE_SERVER, "--address", "tcp://127.0.0.1:*", "--log-level", "error",
                         "--scheduler", "least_loaded"}};
  const std::string address = address_of(program);
  trainer source{who(address, "trainer-0"), 1000};
  rollout reader{who(address, "rollout-0"), 1000};
  source.publish(1);
  CHECK(reader.worker.update(1, 20s).version == 1);
  const std::string why = reader.worker.why();
  CHECK_MESSAGE((contains(why, "least loaded") && !contains(why, "nearest")), why);
  child_process other{{TENSORHUB_REFERENCE_SERVER, "--address", "tcp://127.0.0.1:*", "--log-level", "error",
                       "--consistency", "independent"}};
  trainer stranger{who(address_of(other), "trainer-0"), 1000};
  std::string sentence;
  CHECK(code_of([&] { stranger.worker.join(); }, &sentence) == errc::policy_mismatch);
  CHECK_MESSAGE(contains(sentence, "independent"), sentence);
}

TEST_CASE("reference_server: its workers have the digests that it is told") {
  child_process program{{TENSORHUB_REFERENCE_SERVER, "--address", "tcp://127.0.0.1:*", "--log-level", "error",
                         "--integrity", "blake3_128"}};
  const std::string address = address_of(program);
  trainer stranger{who(address, "trainer-0"), 1000};
  std::string sentence;
  CHECK(code_of([&] { stranger.worker.join(); }, &sentence) == errc::policy_mismatch);
  CHECK_MESSAGE(contains(sentence, "the server asks for 'blake3_128'"), sentence);
  member<blake3_hub::publisher> known{who(address, "trainer-0"), 1000};
  CHECK(code_of([&] { known.worker.join(); }, &sentence) == errc::ok);
}

TEST_CASE("reference_server: --group-timeout-ms and --retain") {
  child_process program{{TENSORHUB_REFERENCE_SERVER, "--address", "tcp://127.0.0.1:*", "--log-level", "error",
                         "--group-timeout-ms", "200", "--retain", "1"}};
  const std::string address = address_of(program);
  trainer source{who(address, "trainer-0"), 1000};
  for (std::uint64_t version = 1; version <= 3; ++version) {
    source.worker.unpublish();
    source.publish(version);
  }
  std::string sentence;
  trainer other{who(address, "trainer-1"), 1000};
  other.memory.fill(4);
  CHECK(code_of([&] { other.worker.publish(1); }, &sentence) == errc::version_conflict);
  CHECK_MESSAGE(contains(sentence, "goes backwards"), sentence);  // its record is gone
  auto of_two = who(address, "trainer-0", {0, 2});
  of_two.model = "sharded";
  trainer half{of_two, 1000};
  half.publish(1);
  of_two.shard.index = 1;
  trainer rest{of_two, 1000};
  rest.memory.fill(1, 1);
  rest.worker.publish(1);
  of_two.replica = "rollout-0";
  rollout absent{of_two, 1000};
  absent.worker.join();
  of_two.shard.index = 0;
  rollout reader{of_two, 1000};
  CHECK(code_of([&] { reader.worker.update(latest, 20s); }) == errc::torn);  // by default it waits for 30 s
}

TEST_CASE("reference_server: --worker-timeout-ms, told by --log-format json") {
  child_process program{
      with_errors({TENSORHUB_REFERENCE_SERVER, "--address", "tcp://127.0.0.1:*", "--heartbeat-ms", "200",
                   "--worker-timeout-ms", "800", "--log-format", "json"})};
  const std::string address = address_of(program);
  child_process stopped{[&] {
    trainer source{who(address, "trainer-0"), 1000};
    source.worker.join();
    std::cout << "joined" << std::endl;
    for (;;) ::pause();
    return 0;
  }};
  REQUIRE(stopped.output_line() == "joined");
  stopped.signal(SIGSTOP);
  for (;;) {
    const auto line = nlohmann::json::parse(program.output_line());
    CHECK(line.at("time").get<std::string>().ends_with("Z"));
    if (contains(line.at("text").get<std::string>(), "was silent for too long")) break;
  }
}

TEST_CASE("reference_server: a list that cannot be used is told as the rest of the log, as json too") {
  const scratch_folder folder;
  const auto keys = folder.path / "keys";
  CHECK(child_process{{TENSORHUB_REFERENCE_SERVER, "--make-keys", keys}}.wait() == 0);
  child_process program{
      with_errors({TENSORHUB_REFERENCE_SERVER, "--address", "tcp://127.0.0.1:*", "--keys",
                   keys / "server.secret", "--allow", keys / "clients.allow", "--log-format", "json"})};
  static_cast<void>(line_with(program, "serving at"));
  std::ofstream{keys / "clients.allow"} << "nonsense\n";
  program.signal(SIGHUP);
  const std::string said = line_with(program, "the allow-list stays as it is");
  const auto line = nlohmann::json::parse(said, nullptr, false);
  REQUIRE_MESSAGE(line.is_object(), said);
  CHECK(line.at("level") == "error");
  CHECK(line.at("time").get<std::string>().ends_with("Z"));
}

TEST_CASE("reference_server: --recovery-grace-ms: so long it does not say that a model is not there") {
  for (const bool is_short : {true, false}) {
    CAPTURE(is_short);
    child_process program{{TENSORHUB_REFERENCE_SERVER, "--address", "tcp://127.0.0.1:*", "--log-level",
                           "error", "--recovery-grace-ms", is_short ? "1" : "600000"}};
    const std::string address = address_of(program);
    child_process pin{with_errors({TENSORHUB_REFERENCE_SERVER, "--ask", "pin", address, "none", "1"})};
    const std::string said = pin.output_line();
    CHECK_MESSAGE(contains(said, "no worker of a model 'none' has joined") == is_short, said);
    pin.wait();
  }
}

TEST_CASE("reference_server: goes on when nobody reads its log any more") {
  child_process program{{"/bin/bash", "-c", "exec \"$0\" \"$@\" 2> >(exec 0<&-)", TENSORHUB_REFERENCE_SERVER,
                         "--address", "tcp://127.0.0.1:*"}};
  const std::string address = address_of(program);
  for (int i = 0; i < 3; ++i) {  // each join is a line
    trainer source{who(address, "trainer-" + std::to_string(i)), 1000};
    source.worker.join();
    std::this_thread::sleep_for(100ms);
  }
  program.signal(SIGTERM);
  CHECK(program.wait() == 0);
}

TEST_CASE("reference_server: options that make no sense end it with status 2") {
  for (const std::vector<std::string>& options : {std::vector<std::string>{"--worker-timeout-ms", "soon"},
                                                  {"--scheduler", "dice"},
                                                  {"--consistency", "none"},
                                                  {"--client", "spot may=read"},
                                                  {"--etcd", "http://127.0.0.1:1", "--election", "policy",
                                                   "--address", "tcp://127.0.0.1:*", "--scheduler", "dice"},
                                                  {"--etcd", "http://127.0.0.1:1", "--election", "policy"},
                                                  {"--recovery-grace-ms", "soon"},
                                                  {"--nonsense", "1"}}) {
    std::vector<std::string> command{TENSORHUB_REFERENCE_SERVER};
    command.insert(command.end(), options.begin(), options.end());
    child_process program{command};
    CHECK(program.wait() == 2);
  }
}

TEST_CASE("reference_server: makes keys, lets in who is on the list, and reads the list again") {
  const scratch_folder folder;
  const auto keys = folder.path / "keys";
  child_process maker{{TENSORHUB_REFERENCE_SERVER, "--make-keys", keys}};
  CHECK(maker.wait() == 0);
  child_process again{{TENSORHUB_REFERENCE_SERVER, "--make-keys", keys}};
  CHECK(again.wait() == 1);
  child_process for_roles{{TENSORHUB_REFERENCE_SERVER, "--make-keys", folder.path / "roles", "--client",
                           "spot may=read", "--client", "trainer may=publish,serve"}};
  CHECK(for_roles.wait() == 0);
  std::size_t roles = 0;
  for (const auto& [key, rules] : tensorhub::read_allow_list(folder.path / "roles" / "clients.allow")) {
    ++roles;
    CHECK(rules.may == (rules.name == "spot" ? tensorhub::rights{tensorhub::right::read}
                                             : tensorhub::right::publish | tensorhub::right::serve));
  }
  CHECK(roles == 2);
  child_process half{{TENSORHUB_REFERENCE_SERVER, "--keys", keys / "server.secret"}};
  CHECK(half.wait() == 2);
  child_process program{with_errors({TENSORHUB_REFERENCE_SERVER, "--address", "tcp://127.0.0.1:*", "--keys",
                                     keys / "server.secret", "--allow", keys / "clients.allow"})};
  const std::string said = line_with(program, "serving at");  // its log may come first
  auto options = who(said.substr(said.rfind(' ') + 1), "rollout-0");
  options.security = tensorhub::client_security{tensorhub::read_public_key(keys / "server.public"),
                                                tensorhub::read_curve_keys(keys / "client.secret"), true};
  {
    rollout allowed{options, 100};
    allowed.worker.join();
    child_process list{{TENSORHUB_REFERENCE_SERVER, "--ask", "list", options.server, "--keys", keys}};
    CHECK(contains(list.output_line(), "model policy: 1 shards"));
    CHECK(list.wait() == 0);
  }
  const auto second = tensorhub::make_curve_keys();
  std::ofstream{keys / "clients.allow"} << second.public_key << " second\n# 1 keys\n";
  program.signal(SIGHUP);
  CHECK(line_with(program, "allowed now").ends_with("Z info: allowed now: 1 keys"));
  rollout removed{options, 100};
  CHECK(code_of([&] { removed.worker.join(); }) == errc::refused);
  options.security->keys = second;
  rollout added{options, 100};
  added.worker.join();
  std::ofstream{keys / "clients.allow"} << "nonsense\n";
  program.signal(SIGHUP);
  CHECK(contains(line_with(program, "stays as it is"), "Z error: "));
  // All keys are in it, and a part of a line; the number of keys, which it had, is not there yet.
  const auto third = tensorhub::make_curve_keys();
  std::ofstream{keys / "clients.allow"} << second.public_key << " second\n" << third.public_key << " sp";
  program.signal(SIGHUP);
  CHECK(contains(line_with(program, "stays as it is"), "does not say that it is whole, as it did before"));
  program.signal(SIGTERM);
  CHECK(program.wait() == 0);
}

TEST_CASE("rl_loop: every replica ends with the trainer's bytes") {
  child_process loop{{TENSORHUB_RL_LOOP, "--seconds", "8", "--rollouts", "2", "--hidden", "2048", "--quiet"}};
  CHECK(loop.wait(std::chrono::seconds{200}) == 0);
}

TEST_CASE("rl_loop lives through a killed server and a killed source") {
  child_process loop{
      {TENSORHUB_RL_LOOP, "--seconds", "12", "--rollouts", "2", "--hidden", "2048", "--kills", "--quiet"}};
  CHECK(loop.wait(std::chrono::seconds{240}) == 0);
}

#endif
