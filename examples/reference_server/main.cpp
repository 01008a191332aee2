// reference_server: the small process that knows who holds which version. One per cluster; it stores no
// weights.
//
//     reference_server --address tcp://0.0.0.0:5570

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <tensorhub/policy/consistency/bounded_staleness.hpp>
#include <tensorhub/policy/consistency/independent.hpp>
#include <tensorhub/policy/scheduler/least_loaded.hpp>
#include <tensorhub/policy/scheduler/round_robin.hpp>
#include <tensorhub/tensorhub.hpp>

namespace {

constexpr std::string_view usage =
    "reference_server [options]\n"
    "  --address A            where workers connect (tcp://127.0.0.1:5570; tcp://0.0.0.0:5570 for other "
    "machines)\n"
    "  --heartbeat-ms N       interval of the workers' heartbeats (500)\n"
    "  --worker-timeout-ms N  silence after which a worker is declared dead (5000)\n"
    "  --group-timeout-ms N   all shards of a replica must call an update within it (30000)\n"
    "  --retain N             version records kept beyond those that somebody holds (16)\n"
    "  --scheduler S          nearest_source (default), least_loaded or round_robin\n"
    "  --consistency C        group_consistent (default) or independent; the workers must use the same\n"
    "  --log-level L          error, warning, info (default) or debug\n"
    "It prints its address, serves until it gets SIGINT or SIGTERM, and needs no files.\n";

[[noreturn]] void refuse(const std::string& sentence) {
  std::fprintf(stderr, "reference_server: %s\n%s", sentence.c_str(), std::string{usage}.c_str());
  std::exit(2);
}

std::uint32_t number(const std::string& name, const std::string& text) {
  std::uint32_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc{} || end != text.data() + text.size() || value == 0 || value > 86'400'000)
    refuse(name + " wants a number from 1 to 86400000, not '" + text + "'");
  return value;
}

struct settings {
  tensorhub::reference_server_options server{.address = "tcp://127.0.0.1:5570"};
  std::string scheduler = "nearest_source";
  std::string consistency = "group_consistent";
};

settings parse(int argc, char** argv) {
  settings out;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help" || name == "-h") {
      std::fputs(std::string{usage}.c_str(), stdout);
      std::exit(0);
    }
    if (i + 1 == argc) refuse("option " + name + " is unknown or has no value");
    const std::string value = argv[++i];
    auto& catalog = out.server.catalog;
    if (name == "--address") {
      out.server.address = value;
    } else if (name == "--heartbeat-ms") {
      catalog.heartbeat_interval = std::chrono::milliseconds{number(name, value)};
    } else if (name == "--worker-timeout-ms") {
      catalog.worker_timeout = std::chrono::milliseconds{number(name, value)};
    } else if (name == "--group-timeout-ms") {
      catalog.group_timeout = std::chrono::milliseconds{number(name, value)};
    } else if (name == "--retain") {
      catalog.retained_versions = number(name, value);
    } else if (name == "--scheduler") {
      out.scheduler = value;
    } else if (name == "--consistency") {
      out.consistency = value;
    } else if (name == "--log-level") {
      const std::map<std::string, tensorhub::log_level> levels{{"error", tensorhub::log_level::error},
                                                               {"warning", tensorhub::log_level::warning},
                                                               {"info", tensorhub::log_level::info},
                                                               {"debug", tensorhub::log_level::debug}};
      const auto level = levels.find(value);
      if (level == levels.end()) refuse("--log-level does not know '" + value + "'");
      out.server.level = level->second;
    } else {
      refuse("unknown option " + name);
    }
  }
  return out;
}

template <typename Scheduler, typename Consistency>
void serve(const settings& given) {
  // Blocked before any thread starts, so that all threads inherit it and only the signalfd sees the signals.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  sigprocmask(SIG_BLOCK, &ends, nullptr);
  tensorhub::reference_server<Scheduler, Consistency> server{given.server};
  std::printf("serving at %s\n", server.address().c_str());
  std::fflush(stdout);
  int received = 0;
  sigwait(&ends, &received);
  const auto seen = server.statistics();
  std::printf("ended by %s: %llu messages, %llu bad frames, %llu workers\n", strsignal(received),
              static_cast<unsigned long long>(seen.messages),
              static_cast<unsigned long long>(seen.bad_frames),
              static_cast<unsigned long long>(seen.workers));
}

template <typename Scheduler>
void serve_with(const settings& given) {
  if (given.consistency == "group_consistent") return serve<Scheduler, tensorhub::group_consistent>(given);
  if (given.consistency == "independent") return serve<Scheduler, tensorhub::independent>(given);
  refuse("--consistency does not know '" + given.consistency + "'");
}

}  // namespace

int main(int argc, char** argv) {
  settings given = parse(argc, argv);
  given.server.log = [](const tensorhub::log_line& line) {
    std::fprintf(stderr, "%s: %s\n", std::string{to_string(line.level)}.c_str(), line.text.c_str());
  };
  try {
    if (given.scheduler == "nearest_source")
      serve_with<tensorhub::nearest_source>(given);
    else if (given.scheduler == "least_loaded")
      serve_with<tensorhub::least_loaded>(given);
    else if (given.scheduler == "round_robin")
      serve_with<tensorhub::round_robin>(given);
    else
      refuse("--scheduler does not know '" + given.scheduler + "'");
  } catch (const tensorhub::error& e) {
    std::fprintf(stderr, "reference_server: %s\n", e.what());
    return 1;
  }
}
