// The measuring tool tools/transport_bench: its arithmetic, and the program as a user runs it.

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <tensorhub/detail/unique_fd.hpp>

#include "support/child_process.hpp"

#include "transport_bench/memory.hpp"
#include "transport_bench/parse.hpp"
#include "transport_bench/statistics.hpp"

using namespace processes;
namespace tool = transport_bench;

namespace {

using json = nlohmann::json;
using words = std::vector<std::string>;

struct scratch {
  std::filesystem::path path;
  scratch() {
    std::string name =
        (std::filesystem::temp_directory_path() / ("tensorhub-" + std::string(6, 'X'))).string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~scratch() { std::filesystem::remove_all(path); }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  [[nodiscard]] std::string file(const char* name) const { return (path / name).string(); }
};

std::string content(const std::string& path) {
  std::ifstream in{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

/// The program with these words; errors are lines of its output, too.
words command(const words& arguments) {
  words out{"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1", TENSORHUB_TRANSPORT_BENCH};
  out.insert(out.end(), arguments.begin(), arguments.end());
  return out;
}

/// Everything it says until it ends.
std::string all_output(child_process& program) {
  std::string out;
  try {
    for (;;) out += program.output_line(std::chrono::seconds{120}) + "\n";
  } catch (const std::runtime_error&) {  // no more lines
  }
  return out;
}

struct outcome {
  int status = -1;
  std::string text;
};
outcome run(const words& arguments) {
  child_process program{command(arguments)};
  outcome out;
  out.text = all_output(program);
  out.status = program.wait();
  INFO(out.text);
  return out;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Rows that cost next to nothing.
words tiny(const words& arguments) {
  words out = arguments;
  for (const char* word :
       {"--sizes", "4K,64K", "--region", "1M", "--iterations", "20", "--rounds", "2", "--warm-up", "0"})
    out.emplace_back(word);
  return out;
}

/// A listening source and where it listens.
struct source_program {
  child_process program;
  std::string address;
  explicit source_program(const std::string& transports, const words& more = {})
      : program{command([&] {
          words out{transports, "--listen", "127.0.0.1:0"};
          out.insert(out.end(), more.begin(), more.end());
          return out;
        }())} {
    const std::string said = program.output_line();
    REQUIRE_MESSAGE(has(said, "listening at 127.0.0.1:"), said);
    address = said.substr(said.rfind(' ') + 1);
  }
};

/// A plain TCP connection to 127.0.0.1, for a stranger.
tensorhub::detail::unique_fd connect_to(const std::string& address) {
  tensorhub::detail::unique_fd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  REQUIRE(::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  return socket;
}

}  // namespace

TEST_CASE("transport_bench: sizes, ranges, times and addresses") {
  CHECK(tool::parse_size("4096", 1, 1u << 20, "x") == 4096);
  CHECK(tool::parse_size("4K", 1, 1u << 20, "x") == 4096);
  CHECK(tool::parse_size("4KiB", 1, 1u << 20, "x") == 4096);
  CHECK(tool::parse_size("3m", 1, 1u << 30, "x") == 3u << 20);
  CHECK(tool::parse_size("2G", 1, 1ull << 40, "x") == 2ull << 30);
  for (const char* bad :
       {"", "K", "4X", "-1", "4 K", "4KB", "1.5M", "18446744073709551616", "99999999999T", "0", "2M"})
    CHECK_THROWS_AS(static_cast<void>(tool::parse_size(bad, 1, 1u << 20, "x")), tool::usage_error);
  using list = std::vector<std::uint64_t>;
  CHECK(tool::parse_list("64K,4K,4096", 1, 1u << 20, "x") == list{4096, 65536});
  CHECK(tool::parse_list("4K..16K", 1, 1u << 20, "x") == list{4096, 8192, 16384});
  CHECK(tool::parse_list("1..20*4,3", 1, 1u << 20, "x") == list{1, 3, 4, 16});
  CHECK(tool::parse_list("1T..8388608T", 1, UINT64_MAX, "x").size() == 24);  // no overflow at the upper end
  for (const char* bad : {"", ",", "4K,", "8K..4K", "4K..", "..4K", "1..8*1", "1..8*"})
    CHECK_THROWS_AS(static_cast<void>(tool::parse_list(bad, 1, 1u << 20, "x")), tool::usage_error);
  for (const std::uint64_t bytes : {1ull, 1000ull, 4096ull, 1ull << 20, 3ull << 30, 1025ull << 10})
    CHECK(tool::parse_size(tool::size_text(bytes), 1, UINT64_MAX, "x") == bytes);
  CHECK(tool::parse_seconds("200ms", 0, 10, "x") == doctest::Approx(0.2));
  CHECK(tool::parse_seconds("2", 0, 10, "x") == 2);
  for (const char* bad : {"", "s", "-1", "11", "2m", "nan", "1e99"})
    CHECK_THROWS_AS(static_cast<void>(tool::parse_seconds(bad, 0, 10, "x")), tool::usage_error);
  const auto where = [](const char* text) {
    const auto parsed = tool::parse_host_and_port(text, 5580);
    return parsed.host + "|" + std::to_string(parsed.port);
  };
  CHECK(where("") == "|5580");
  CHECK(where("7000") == "|7000");
  CHECK(where(":7000") == "|7000");
  CHECK(where("node") == "node|5580");
  CHECK(where("10.0.0.1:7") == "10.0.0.1|7");
  CHECK(where("[::1]:7") == "::1|7");
  CHECK(where("[::1]") == "::1|5580");
  for (const char* bad : {"node:", "node:x", "node:70000", "::1", "[::1", "[::1]7", "[::1]:"})
    CHECK_THROWS_AS(static_cast<void>(tool::parse_host_and_port(bad, 5580)), tool::usage_error);
}

TEST_CASE("transport_bench: percentiles and latencies") {
  const std::vector<double> ten{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  CHECK(tool::percentile_of_sorted(ten, 0.5) == 5);
  CHECK(tool::percentile_of_sorted(ten, 0.9) == 9);
  CHECK(tool::percentile_of_sorted(ten, 0.91) == 10);
  CHECK(tool::percentile_of_sorted(ten, 0.999) == 10);
  CHECK(tool::percentile_of_sorted(ten, 0) == 1);
  CHECK(tool::percentile_of_sorted({}, 0.5) == 0);
  CHECK(tool::median({3, 1, 2}) == 2);
  CHECK(tool::median({4, 1, 2, 3}) == 2.5);

  std::vector<tool::latency_samples> parts(2);
  for (std::size_t i = 1; i <= 1000; ++i) parts[i % 2].add(static_cast<double>(i));
  auto seen = tool::latency_samples::merge(parts);
  CHECK(seen.count == 1000);
  CHECK(seen.least == 1);
  CHECK(seen.most == 1000);
  CHECK(seen.average == doctest::Approx(500.5));
  CHECK(seen.deviation == doctest::Approx(288.819436));  // sqrt(n (n + 1) / 12)
  CHECK(seen.p50 == 500);
  CHECK(seen.p99 == 990);
  CHECK(seen.p999 == 999);

  // More than are kept: extremes and average stay exact, percentiles come from a fair part.
  std::vector<tool::latency_samples> many(2);
  const std::uint64_t count = 3 * tool::latency_samples::max_kept;
  for (std::uint64_t i = 1; i <= count; ++i) many[0].add(static_cast<double>(i));
  many[1].add(0.5);
  seen = tool::latency_samples::merge(many);
  CHECK(seen.count == count + 1);
  CHECK(seen.least == 0.5);
  CHECK(seen.most == static_cast<double>(count));
  CHECK(seen.p50 == doctest::Approx(static_cast<double>(count) / 2).epsilon(0.001));
  CHECK(seen.p99 == doctest::Approx(static_cast<double>(count) * 0.99).epsilon(0.001));
}

TEST_CASE("transport_bench: the fit finds the cost per read and the bandwidth that the data was made with") {
  const double a = 7e-6;
  const double bandwidth = 3.2e9;
  std::mt19937_64 random{4};
  std::uniform_real_distribution<double> noise{-0.03, 0.03};
  std::vector<tool::cost_point> exact, noisy;
  for (double size = 4096; size < 1e8; size *= 4) {
    const double reads = 1000 + size / 1e5;
    const double seconds = a * reads + reads * size / bandwidth;
    exact.push_back({reads, reads * size, seconds});
    noisy.push_back({reads, reads * size, seconds * (1 + noise(random))});
  }
  auto fit = tool::fit_cost(exact);
  REQUIRE(fit);
  CHECK(fit->seconds_per_read == doctest::Approx(a).epsilon(1e-6));
  CHECK(fit->bytes_per_second == doctest::Approx(bandwidth).epsilon(1e-6));
  CHECK(fit->relative_residual < 1e-6);
  CHECK(fit->half_bandwidth_bytes() == doctest::Approx(a * bandwidth).epsilon(1e-6));
  fit = tool::fit_cost(noisy);
  REQUIRE(fit);
  CHECK(fit->seconds_per_read == doctest::Approx(a).epsilon(0.06));
  CHECK(fit->bytes_per_second == doctest::Approx(bandwidth).epsilon(0.06));
  CHECK(fit->relative_residual > 0.003);
  CHECK(fit->relative_residual < 0.03);

  CHECK_FALSE(tool::fit_cost({}));
  CHECK_FALSE(tool::fit_cost(std::vector{exact[0], exact[0]}));  // one size says nothing about two unknowns
  // Large reads that are slower per byte than small ones: no negative cost comes out.
  fit = tool::fit_cost(std::vector<tool::cost_point>{{1, 1e3, 1e-6}, {1, 1e6, 2e-3}});
  REQUIRE(fit);
  CHECK(fit->seconds_per_read == 0);
  CHECK(fit->bytes_per_second > 0);
}

TEST_CASE("transport_bench: the check of the target finds what is wrong, missing or too much") {
  const std::uint64_t seed = 9;
  const std::uint64_t size = 100;
  const tool::arena source{tool::memory_choice::plain, 2, 4096};
  const tool::arena target{tool::memory_choice::file, 2, 4096};
  tool::fill_pattern(source, seed);
  const auto byte = [&](std::uint64_t region, std::uint64_t offset) -> std::byte& {
    return target.ranges()[region].data[offset];
  };
  // Two threads read 3 and 2 places: numbers 0, 2, 4 and 1, 3.
  const auto prepare = [&] {
    tool::clear_target(target);
    std::memcpy(target.ranges()[0].data, source.ranges()[0].data, 5 * size);
  };
  const auto check = [&] {
    tool::target_check out{target, seed, size};
    out.mark({3, 2});
    CHECK(out.checked_places() == 5);
    return out.run();
  };
  prepare();
  CHECK(check().count == 0);
  for (const std::uint64_t offset : {0u, 7u, 99u, 100u, 499u}) {
    prepare();
    byte(0, offset) ^= std::byte{1};
    const auto wrong = check();
    CHECK(wrong.count == 1);
    CHECK(wrong.region == 0);
    CHECK(wrong.offset == offset);
    CHECK(wrong.found == (wrong.expected ^ std::byte{1}));
  }
  prepare();
  byte(0, 500) = std::byte{0};  // nobody read there
  CHECK(check().count == 1);
  prepare();
  byte(1, 4095) = std::byte{0};  // behind the last place
  CHECK(check().count == 1);
  prepare();
  std::memset(&byte(0, 200), 0xA5, size);  // a read that completed and delivered nothing
  CHECK(check().count > 90);
  prepare();
  std::memcpy(&byte(0, 200), source.ranges()[1].data + 200, size);  // the other region's bytes
  CHECK(check().count > 90);
  tool::clear_target(target);
  tool::fill_pattern(target, seed + 1);  // an earlier run's bytes
  CHECK(check().count > 400);
}

TEST_CASE("transport_bench: validated runs pass, each transport and all options of the sweep") {
  for (const char* memory : {"file", "plain"}) {
    for (const char* transport : {"tcp", "same_host"}) {
      const outcome seen =
          run({transport,  "--validate", "--sizes",   "1,4K,100001", "--region", "1000003",      "--regions",
               "3",        "--depths",   "1,5",       "--threads",   "1,3",      "--iterations", "40",
               "--rounds", "2",          "--warm-up", "1ms",         "--memory", memory});
      INFO(seen.text);
      CHECK(seen.status == 0);
      CHECK(has(seen.text, "every byte as it must be"));
    }
  }
  const outcome streams = run(tiny({"tcp", "--validate", "--streams", "1,3", "--set", "io_threads=3"}));
  INFO(streams.text);
  CHECK(streams.status == 0);
}

TEST_CASE("transport_bench: a flipped byte is caught, at the source and in what was received") {
  for (const char* transport : {"tcp", "same_host"}) {
    for (const char* where : {"source", "target"}) {
      const scratch folder;
      const outcome seen = run(tiny({transport, "--corrupt", where, "--json", folder.file("out.json")}));
      INFO(seen.text);
      CHECK(seen.status == 3);
      CHECK(has(seen.text, "WRONG BYTES"));
      CHECK(has(seen.text, "1 byte; the first in region 0 at offset 2048"));
      CHECK(has(seen.text, "CAUGHT"));
      const json found = json::parse(content(folder.file("out.json")));
      CHECK(found["validation"]["passed"] == false);
      CHECK(found["validation"]["wrong"]["offset"] == 2048);
    }
  }
}

TEST_CASE("transport_bench: the JSON holds every row") {
  const scratch folder;
  const outcome seen = run(tiny({"tcp,same_host", "--depths", "1,4", "--json", folder.file("out.json")}));
  INFO(seen.text);
  REQUIRE(seen.status == 0);
  for (const char* section : {"method: ", "reader: cpu ", "source: cpu ", "== before the first byte",
                              "== bandwidth", "== latency", "== cost model", "== comparison"})
    CHECK_MESSAGE(has(seen.text, section), section);

  const json found = json::parse(content(folder.file("out.json")));
  CHECK(found["tool"] == "transport_bench");
  CHECK(found["settings"]["sizes_bytes"] == json{4096, 65536});
  CHECK(found["validation"]["on"] == false);
  for (const char* side : {"reader", "source"})
    for (const char* fact : {"cpu", "cores", "memory", "kernel", "network"})
      CHECK_MESSAGE(!found["environment"][side].at(fact).get<std::string>().empty(), fact);
  REQUIRE(found["rows"].size() == 8);
  std::set<std::string> rows;
  for (const json& row : found["rows"]) {
    rows.insert(row["transport"].get<std::string>() + row["depth"].dump() + "/" + row["size_bytes"].dump());
    CHECK(row["reads"] == 20);
    CHECK(row["seconds"].get<double>() > 0);
    CHECK(row["round_bytes_per_second"].size() == 2);
    CHECK(row["peak_bytes_per_second"].get<double>() >= row["median_bytes_per_second"].get<double>());
    for (const char* side : {"reader_cpu_seconds_per_gigabyte", "source_cpu_seconds_per_gigabyte"}) {
      const bool source_is_idle = row["transport"] == "same_host" && std::string{side}.starts_with("source");
      CHECK_MESSAGE(row[side].get<double>() >= (source_is_idle ? 0 : 0.01), side);
      CHECK_MESSAGE(row[side].get<double>() < 1000, side);
    }
    const json& latency = row["latency_seconds"];
    CHECK(latency["count"] == 20);
    CHECK(latency["min"].get<double>() > 0);
    CHECK(latency["min"] <= latency["typical"]);
    CHECK(latency["p50"] <= latency["p99"]);
    CHECK(latency["p99"] <= latency["p99_9"]);
    CHECK(latency["p99_9"] <= latency["max"]);
    CHECK(latency["stdev"].get<double>() > 0);
    CHECK(latency["stdev"].get<double>() <= latency["max"].get<double>());
  }
  CHECK(rows.size() == 8);
  REQUIRE(found["setup"].size() == 2);
  for (const json& row : found["setup"])
    for (const char* cost : {"source_register_seconds", "reader_register_seconds", "first_connect_seconds",
                             "first_read_seconds"})
      CHECK_MESSAGE(row[cost].get<double>() > 0, cost);
  CHECK(found["touch"]["reader"]["first_seconds"].get<double>() > 0);
  CHECK(found["fits"].size() == 4);
  REQUIRE(found["comparison"].size() == 4);
  for (const json& row : found["comparison"]) {
    CHECK(row["ratios"]["tcp"] == 1.0);
    CHECK(row["ratios"]["same_host"].get<double>() > 0);
  }
}

TEST_CASE("transport_bench: two commands, one for each side") {
  source_program source{"tcp,same_host"};
  const outcome seen = run(tiny({"tcp", "--connect", source.address, "--validate"}));
  INFO(seen.text);
  CHECK(seen.status == 0);
  CHECK(has(seen.text, "every byte as it must be"));
  CHECK(has(source.program.output_line(), "is done"));
  CHECK(source.program.wait() == 0);
}

TEST_CASE("transport_bench: --forever serves one reader after the other, also after one that failed") {
  source_program source{"tcp", {"--forever"}};
  for (const int expected : {0, 1, 0}) {
    const outcome seen = run(tiny({expected == 0 ? "tcp" : "same_host", "--connect", source.address}));
    INFO(seen.text);
    CHECK(seen.status == expected);
  }
}

TEST_CASE("transport_bench: another transport than the source serves is refused on both sides") {
  source_program source{"tcp"};
  const outcome seen = run(tiny({"same_host", "--connect", source.address}));
  CHECK(seen.status == 1);
  CHECK_MESSAGE(has(seen.text, "serves tcp, the reader asks for same_host"), seen.text);
  CHECK(has(source.program.output_line(), "serves tcp, the reader asks for same_host"));
  CHECK(source.program.wait() == 1);
}

TEST_CASE("transport_bench: listens on the loopback interface, and makes no more memory than it was told") {
  child_process by_default{command({"tcp", "--listen", ":0"})};
  const std::string said = by_default.output_line();
  CHECK_MESSAGE(has(said, "listening at 127.0.0.1:"), said);
  by_default.signal(SIGTERM);
  source_program source{"tcp", {"--most", "1M"}};
  const outcome seen = run({"tcp", "--connect", source.address, "--region", "2M", "--sizes", "4K"});
  CHECK(seen.status == 1);
  CHECK_MESSAGE(has(seen.text, "this side gives 1 MiB"), seen.text);
  source_program plain{"tcp"};
  const auto greedy = connect_to(plain.address);
  const std::string wish =
      "{\"type\":\"hello\",\"transports\":[\"tcp\"],\"regions\":5,\"region_bytes\":1073741824,"
      "\"memory\":\"plain\",\"seed\":1,\"corrupt_offset\":-1,\"silence_seconds\":1}";
  std::string frame{"THTB\1\0\0\0", 8};
  const auto length = static_cast<std::uint32_t>(wish.size());
  frame.append(reinterpret_cast<const char*>(&length), 4);
  frame += wish;
  CHECK(::send(greedy.get(), frame.data(), frame.size(), MSG_NOSIGNAL) > 0);
  CHECK(has(plain.program.output_line(), "this side gives 4096 MiB"));
}

TEST_CASE("transport_bench: strangers and other protocol versions are told apart and refused") {
  {
    source_program source{"tcp"};
    const auto stranger = connect_to(source.address);
    const std::string request = "GET / HTTP/1.1\r\n\r\n";
    CHECK(::send(stranger.get(), request.data(), request.size(), MSG_NOSIGNAL) > 0);
    CHECK(has(source.program.output_line(), "is no transport_bench"));
    CHECK(source.program.wait() == 1);
  }
  {
    source_program source{"tcp"};
    const auto newer = connect_to(source.address);
    const unsigned char frame[12]{'T', 'H', 'T', 'B', 99, 0, 0, 0, 2, 0, 0, 0};
    CHECK(::send(newer.get(), frame, sizeof frame, MSG_NOSIGNAL) == sizeof frame);
    CHECK(has(source.program.output_line(), "speaks control protocol 99, this side speaks 1"));
    CHECK(source.program.wait() == 1);
  }
  for (const char* text : {"{}", "[1]", "no json", "{\"type\":\"hello\"}", "{\"type\":7}",
                           "{\"type\":\"hello\",\"transports\":[\"tcp\"],\"regions\":1,\"region_bytes\":"
                           "18446744073709551615,\"memory\":\"file\",\"seed\":1,\"corrupt_offset\":-1,"
                           "\"silence_seconds\":1}"}) {
    source_program source{"tcp"};
    const auto peer = connect_to(source.address);
    std::string frame{"THTB\1\0\0\0", 8};
    const auto length = static_cast<std::uint32_t>(std::strlen(text));
    frame.append(reinterpret_cast<const char*>(&length), 4);
    frame += text;
    CHECK(::send(peer.get(), frame.data(), frame.size(), MSG_NOSIGNAL) > 0);
    CHECK(has(source.program.output_line(), "transport_bench: "));
    CHECK(source.program.wait() == 1);
  }
  source_program source{"tcp"};
  const auto endless = connect_to(source.address);
  const unsigned char frame[12]{'T', 'H', 'T', 'B', 1, 0, 0, 0, 255, 255, 255, 255};
  CHECK(::send(endless.get(), frame, sizeof frame, MSG_NOSIGNAL) == sizeof frame);
  CHECK(has(source.program.output_line(), "too long"));
  CHECK(source.program.wait() == 1);
}

TEST_CASE("transport_bench: a silent peer and an absent one end in a sentence within the time-out") {
  source_program source{"tcp", {"--timeout", "300ms"}};
  const auto silent = connect_to(source.address);
  CHECK(has(source.program.output_line(), "did not answer in time"));
  CHECK(source.program.wait() == 1);
  // Nobody listens there any more.
  const outcome seen = run({"tcp", "--connect", source.address, "--timeout", "300ms"});
  CHECK(seen.status == 1);
  CHECK_MESSAGE(has(seen.text, "no source can be reached at " + source.address), seen.text);
  source_program lonely{"tcp", {"--wait", "200ms"}};
  CHECK(has(lonely.program.output_line(), "no reader came"));
  CHECK(lonely.program.wait() == 1);
}

TEST_CASE("transport_bench: a peer that is killed or stopped in the middle of a run ends it with an error") {
  for (const char* transport : {"tcp", "same_host"}) {
    for (const int signal : {SIGKILL, SIGSTOP}) {
      CAPTURE(std::string{transport});
      CAPTURE(signal);
      source_program source{transport};
      child_process reader{command({transport, "--connect", source.address, "--duration", "600", "--rounds",
                                    "1000", "--region", "16M", "--timeout", "1"})};
      while (!has(reader.output_line(), "transport: ")) {  // it has met the source; reads begin
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{300});
      source.program.signal(signal);
      const std::string said = all_output(reader);
      CHECK(reader.wait() == 1);
      if (signal == SIGKILL)
        CHECK_MESSAGE(has(said, "has ended or was killed"), said);
      else  // the reads of same_host need nothing of a stopped source: it is missed by the control connection
        CHECK_MESSAGE((has(said, "peer lost") || has(said, "did not answer in time")), said);
    }
    source_program source{transport};
    child_process reader{
        command({transport, "--connect", source.address, "--duration", "600", "--region", "16M"})};
    while (!has(reader.output_line(), "transport: ")) {
    }
    reader.signal(SIGKILL);
    CHECK(has(source.program.output_line(), "has closed the control connection"));
    CHECK(source.program.wait() == 1);
  }
}

TEST_CASE("transport_bench: what makes no sense is an error that says what would") {
  struct mistake {
    words arguments;
    const char* sentence;
  };
  for (const mistake& each : std::vector<mistake>{
           {{}, "name a transport"},
           {{"carrier_pigeon"}, "this program has: tcp"},
           {{"tcp", "--nonsense"}, "there is no option --nonsense; there are: --listen"},
           {{"tcp", "--sizes"}, "--sizes needs a value"},
           {{"tcp", "--sizes", "0"}, "--sizes: 0 is not between 1 and 1T"},
           {{"tcp", "--sizes", "2M", "--region", "1M"}, "make --region larger"},
           {{"tcp", "--depths", "5000"}, "not between 1 and 4K"},
           {{"tcp", "--region", "1T", "--regions", "2"}, "all regions together"},
           {{"tcp", "--region", "512G", "--regions", "2"}, "are available: make --region smaller"},
           {{"tcp", "--validate=yes"}, "--validate takes no value"},
           {{"tcp", "--corrupt", "moon"}, "write source or target"},
           {{"tcp", "--memory", "paper"}, "write file or plain"},
           {{"tcp", "--set", "color=red"}, "there are: tcp.listen_host"},
           {{"tcp", "--set", "same_host.files=map"}, "none of the chosen transports"},
           {{"tcp", "--set", "io_threads=many"}, "option io_threads"},
           {{"tcp", "--set", "send_from_file=maybe"}, "automatic|always|never"},
           {{"tcp", "--provider", "shm"}, "none of the chosen transports has an option 'provider'"},
           {{"tcp,tcp"}, "named twice"},
           {{"tcp", "same_host"}, "only one transport or list"},
           {{"tcp:shm"}, "only libfabric has providers"},
           {{"same_host", "--streams", "2"}, "has no streams"},
           {{"tcp", "--listen", "127.0.0.1:0", "--sizes", "4K"}, "--sizes belongs to the reader"},
           {{"tcp", "--listen", ":0", "--connect", "127.0.0.1:1"}, "one of them, once"},
           {{"tcp", "--forever"}, "--forever goes with --listen"},
           {{"tcp", "--timeout", "soon"}, "--timeout"}}) {
    const outcome seen = run(each.arguments);
    CHECK_MESSAGE((seen.status == 2 || has(seen.text, "available")), seen.text);
    CHECK_MESSAGE(has(seen.text, each.sentence), seen.text);
    CHECK(std::ranges::count(seen.text, '\n') == 1);  // a sentence, no usage page
  }
  const outcome unwritable = run(tiny({"tcp", "--json", "/nonexistent/folder/out.json"}));
  CHECK(unwritable.status == 1);
  CHECK(has(unwritable.text, "cannot write /nonexistent/folder/out.json"));
}

TEST_CASE("transport_bench: the help names every option, --list every option of every transport") {
  const outcome help = run({"--help"});
  CHECK(help.status == 0);
  const outcome unknown = run({"tcp", "--?"});
  std::istringstream names{unknown.text.substr(unknown.text.find("there are:") + 10)};
  std::size_t count = 0;
  for (std::string name; names >> name; ++count) CHECK_MESSAGE(has(help.text, name), name);
  CHECK(count > 25);
  std::istringstream lines{help.text};
  for (std::string line; std::getline(lines, line);) CHECK_MESSAGE(line.size() <= 118, line);
  const outcome list = run({"--list"});
  CHECK(list.status == 0);
  CHECK(has(list.text, "io_threads="));
  CHECK(has(list.text, "copy_threads="));
}
