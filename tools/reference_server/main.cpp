// reference_server: the small process that knows who holds which version. One per cluster; it stores no
// weights.
//
//     reference_server --address tcp://10.0.0.1:5570 --keys F/server.secret --allow F/clients.allow

#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tensorhub/key_files.hpp>
#include <tensorhub/policy/consistency/bounded_staleness.hpp>
#include <tensorhub/policy/consistency/independent.hpp>
#include <tensorhub/policy/scheduler/least_loaded.hpp>
#include <tensorhub/server.hpp>
#include <tensorhub/service/log_queue.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/types/plain_text.hpp>
#include <utility>
#include <vector>

#include "ask.hpp"
#if REFERENCE_SERVER_HAS_ETCD
#include <tensorhub/etcd.hpp>
#endif
#if REFERENCE_SERVER_HAS_PROMETHEUS
#include <tensorhub/prometheus.hpp>
#endif

namespace {

constexpr std::string_view usage =
    "reference_server [options]\n"
    "  --address A            where workers connect (tcp://127.0.0.1:5570; tcp://0.0.0.0:5570 for other "
    "machines,\n"
    "                         with --keys or --insecure)\n"
    "  --heartbeat-ms N       interval of the workers' heartbeats (500; at most a third of "
    "--worker-timeout-ms)\n"
    "  --worker-timeout-ms N  silence after which a worker is declared dead (5000)\n"
    "  --group-timeout-ms N   all shards of a replica must call an update within it (30000)\n"
    "  --late-shard-timeout-ms N  the same, while a holder waits to let go of the version (2000)\n"
    "  --recovery-grace-ms N  time after its start during which the server waits for the workers of an "
    "earlier "
    "one\n"
    "                         before it lets go of a version, or says that there is none (5000)\n"
    "  --retain N             records (numbers and digests, no weights) kept of versions that nobody holds "
    "(16)\n"
    "  --scheduler S          nearest_source (default) or least_loaded\n"
    "  --consistency C        group_consistent (default) or independent; the workers must use the same\n"
    "  --integrity I          refuses workers with another integrity policy than this (any);\n"
    "                         blake3_128 where sources may lie\n"
    "  --log-level L          error, warning, info (default) or debug\n"
    "  --log-format F         text (default), or json: an object per line\n"
    "  --metrics HOST:PORT    counters for Prometheus at http://HOST:PORT/metrics\n"
    "  --etcd URL,URL         with --election: one of several servers, of which the one that etcd elects "
    "serves\n"
    "  --election NAME        the same for all of them; --address has to be given, and differs\n"
    "  --lease-s N            a leader that has died is replaced after so many seconds, 2 to 3600 (5)\n"
    "  --etcd-ca F, --etcd-certificate F, --etcd-key F  PEM files for an etcd at https://\n"
    "  --etcd-user NAME, --etcd-password F  a user of etcd, and a file of mode 0600 with its password\n"
    "  --ask list|stuck ADDRESS [MODEL], --ask why ADDRESS MODEL REPLICA [SHARD]\n"
    "                         asks a running server, and ends (the first option): which replicas hold what;\n"
    "                         what waits for what (status 3 if something does); how sources were chosen\n"
    "  --ask retain|pin|release|roll-back ADDRESS MODEL NUMBER, --ask evict|drain|resume ADDRESS MODEL "
    "REPLICA\n"
    "                         gives a running server an order, and ends. If the server has keys:\n"
    "                         --keys F, or --keys F/NAME.secret, beside which server.public must lie\n"
    "  --make-keys F          makes the folder F with a key pair of a server, one of each --client (else of "
    "one "
    "named\n"
    "                         client), and a list that allows those; then ends\n"
    "  --client \"NAME RULES\"  with --make-keys, once for each role: \"trainer "
    "may=publish,serve,retain,replace\"\n"
    "  --keys F/server.secret with --allow: only clients with a key on the list are let in (CURVE)\n"
    "  --allow F/clients.allow  a public key, a name and rules per line (models=, replicas=, may=); read "
    "again at\n"
    "                         SIGHUP\n"
    "  --insecure             other machines may connect, and nobody needs a key: who reaches the port can "
    "read "
    "and\n"
    "                         replace every model\n"
    "It prints its address, serves until it gets SIGINT or SIGTERM, and without keys needs no files. Each "
    "process\n"
    "with workers takes a descriptor of it: as many can connect as ulimit -Hn allows, less about 20.\n";

[[noreturn]] void refuse(const std::string& sentence) {
  std::fprintf(stderr, "reference_server: %s\nreference_server --help lists all options\n", sentence.c_str());
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
  bool log_json = false;
  bool has_address = false;  ///< it was given
  std::string metrics{};
  std::string keys{};
  std::string allow{};
  bool is_allow_counted = false;  ///< the list's last line says how many keys it has
  bool insecure = false;
  std::map<std::string, std::string> etcd{};  ///< options of the election, by name
  std::uint32_t lease_s = 5;
};

[[noreturn]] void make_keys(const std::string& name, std::vector<tensorhub::client_rules> clients) {
  const std::filesystem::path folder = name;
  if (clients.empty()) clients.emplace_back("client");
  tensorhub::write_curve_keys(folder, "server", tensorhub::make_curve_keys());
  tensorhub::client_allow_list allowed;
  std::string secrets;
  for (tensorhub::client_rules& each : clients) {
    const tensorhub::curve_key_pair keys = tensorhub::make_curve_keys();
    tensorhub::write_curve_keys(folder, each.name, keys);
    secrets += (secrets.empty() ? "" : ", ") + each.name + ".secret";
    allowed.emplace(keys.public_key, std::move(each));
  }
  tensorhub::write_allow_list(folder / "clients.allow", allowed);
  std::printf(
      "%s: server.secret and clients.allow are for the server (--keys, --allow); server.public is for all "
      "workers, and of %s each for its own (tensorhub::read_public_key, read_curve_keys)\n",
      name.c_str(), secrets.c_str());
  std::exit(0);
}

struct counted_list {
  tensorhub::client_allow_list keys{};
  bool is_counted = false;  ///< its last line says how many there are
};

/// A list that was cut off while it was being written has lost its last line. Throws `invalid_argument`.
void check_whole(const counted_list& wanted, const counted_list& present, const std::string& file) {
  if (wanted.is_counted) return;
  const auto gone = std::ranges::count_if(
      present.keys, [&](const auto& entry) { return !wanted.keys.contains(entry.first); });
  if (!present.is_counted && 2 * static_cast<std::size_t>(gone) <= present.keys.size()) return;
  throw tensorhub::error(
      tensorhub::errc::invalid_argument,
      "'" + file + "' would revoke " + std::to_string(gone) + " of " + std::to_string(present.keys.size()) +
          " keys, and does not say that it is whole" + (present.is_counted ? ", as it did before" : "") +
          ": end it with the line '# " + std::to_string(wanted.keys.size()) + " keys'");
}

/// The server's list becomes what the file says now; a file that is wrong changes nothing. Told in the log.
template <typename Server>
void read_list_again(Server& server, const settings& given, counted_list& present) {
  const auto say = [&](const tensorhub::log_line& line) {
    if (line.level <= given.server.level) given.server.log(line);
  };
  try {
    counted_list wanted;
    wanted.keys = tensorhub::read_allow_list(given.allow, &wanted.is_counted);
    check_whole(wanted, present, given.allow);
    for (const auto& [key, rules] : present.keys) {
      if (!wanted.keys.contains(key)) server.revoke(key);
    }
    for (const auto& [key, rules] : wanted.keys) server.allow(key, rules);
    present = std::move(wanted);
    say({tensorhub::log_level::info, "allowed now: " + std::to_string(present.keys.size()) + " keys", {}});
  } catch (const tensorhub::error& e) {
    tensorhub::log_line line{
        tensorhub::log_level::error, std::string{"the allow-list stays as it is: "} + e.what(), {}};
    line.about.code = e.code();
    say(line);
  }
}

tensorhub::client_rules client_named(const std::string& text) {
  tensorhub::client_rules out = tensorhub::client_rules_of(text);
  if (out.name.empty() || out.name.find_first_of(" /") != std::string::npos)
    refuse("--client needs a name without spaces or '/' (a file gets it), and rules after it, not '" + text +
           "'");
  return out;
}

/// The option of this name if its value is taken as it is; null: another one, or none.
std::string* text_option(settings& of, const std::string& name) {
  if (name == "--address") return &of.server.address;
  if (name == "--scheduler") return &of.scheduler;
  if (name == "--consistency") return &of.consistency;
  if (name == "--integrity") return &of.server.catalog.integrity;
  if (name == "--metrics") return &of.metrics;
  if (name == "--keys") return &of.keys;
  if (name == "--allow") return &of.allow;
  return nullptr;
}

/// The option of this name if its value is a time in milliseconds; null: another one, or none.
std::chrono::milliseconds* time_option(tensorhub::catalog_options& of, const std::string& name) {
  if (name == "--heartbeat-ms") return &of.heartbeat_interval;
  if (name == "--worker-timeout-ms") return &of.worker_timeout;
  if (name == "--group-timeout-ms") return &of.group_timeout;
  if (name == "--late-shard-timeout-ms") return &of.late_shard_timeout;
  if (name == "--recovery-grace-ms") return &of.recovery_grace;
  return nullptr;
}

/// The program holds the keys of everything: they go into no core dump, and no other process of this user
/// reads its memory.
void keep_secrets() {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::prctl(PR_SET_DUMPABLE, 0);
}

tensorhub::any_scheduler scheduler_named(const std::string& name) {
  if (name == "nearest_source") return tensorhub::nearest_source{};
  if (name == "least_loaded") return tensorhub::least_loaded{};
  refuse("--scheduler does not know '" + name + "'");
}
tensorhub::any_consistency consistency_named(const std::string& name) {
  if (name == "group_consistent") return tensorhub::group_consistent{};
  if (name == "independent") return tensorhub::independent{};
  refuse("--consistency does not know '" + name + "'");
}

/// Checks what belongs together, and reads the files of keys.
void complete(settings& out) {
  // At once: with etcd a server starts only when it is elected.
  static_cast<void>(scheduler_named(out.scheduler));
  static_cast<void>(consistency_named(out.consistency));
  if (out.etcd.contains("--etcd") != out.etcd.contains("--election"))
    refuse("--etcd and --election belong together");
  if (!out.etcd.empty() && !out.has_address)
    refuse(
        "--election wants the --address of this server, at which workers reach it if it leads: another "
        "one than those of the other servers");
#if !REFERENCE_SERVER_HAS_ETCD
  if (!out.etcd.empty()) refuse("--etcd: this program was built without libcurl and nlohmann-json");
#endif
  if (out.keys.empty() != out.allow.empty()) refuse("--keys and --allow belong together");
  if (!out.keys.empty()) {
    if (out.insecure) refuse("give either --insecure or --keys, not both");
    keep_secrets();
    out.server.security = {tensorhub::read_curve_keys(out.keys),
                           tensorhub::read_allow_list(out.allow, &out.is_allow_counted)};
  } else if (!out.insecure && !tensorhub::is_local_address(out.server.address)) {
    refuse("other machines reach " + out.server.address +
           ", and without keys each of their processes could read and replace every model: make keys "
           "(--make-keys F), and start it with --keys F/server.secret --allow F/clients.allow; or say "
           "--insecure, in a network where every process is trusted");
  }
}

settings parse(int argc, char** argv) {
  settings out;
  std::vector<tensorhub::client_rules> clients;
  std::optional<std::string> folder_of_keys;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help" || name == "-h") {
      std::fputs(std::string{usage}.c_str(), stdout);
      std::exit(0);
    }
    if (name == "--insecure") out.insecure = true;
    if (name == "--insecure") continue;
    if (i + 1 == argc) refuse("option " + name + " is unknown or has no value");
    const std::string value = argv[++i];
    auto& catalog = out.server.catalog;
    out.has_address = out.has_address || name == "--address";
    if (name == "--make-keys") {
      folder_of_keys = value;
    } else if (name == "--client") {
      clients.push_back(client_named(value));
    } else if (std::string* const text = text_option(out, name)) {
      *text = value;
    } else if (std::chrono::milliseconds* const time = time_option(catalog, name)) {
      *time = std::chrono::milliseconds{number(name, value)};
    } else if (name == "--retain") {
      catalog.retained_versions = number(name, value);
    } else if (name == "--log-format") {
      if (value != "text" && value != "json") refuse("--log-format does not know '" + value + "'");
      out.log_json = value == "json";
    } else if (name == "--lease-s") {
      out.lease_s = number(name, value);
    } else if (name == "--etcd" || name == "--election" || name == "--etcd-ca" ||
               name == "--etcd-certificate" || name == "--etcd-key" || name == "--etcd-user" ||
               name == "--etcd-password") {
      out.etcd[name] = value;
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
  if (folder_of_keys) make_keys(*folder_of_keys, std::move(clients));
  if (!clients.empty()) refuse("--client says for whom --make-keys makes keys, and --make-keys is not there");
  complete(out);
  return out;
}

/// Each connection takes a descriptor, and many systems give a process 1024 unless it asks for more.
void raise_descriptors() {
  rlimit most{};
  if (::getrlimit(RLIMIT_NOFILE, &most) != 0) return;
  most.rlim_cur = most.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &most);
}

/// Of a server, or of one that leads now and then; until a signal of `ends` ends it. SIGHUP is in it only if
/// there is a list to read again.
template <typename Server>
void run(Server& server, const settings& given, const sigset_t& ends, const char* what_it_does) {
#if REFERENCE_SERVER_HAS_PROMETHEUS
  std::optional<tensorhub::prometheus_exporter> metrics;
  if (!given.metrics.empty())
    metrics.emplace(tensorhub::prometheus_options{.address = given.metrics}).watch(server);
#else
  if (!given.metrics.empty())
    std::fprintf(stderr,
                 "reference_server: --metrics is left out: this program was built without prometheus-cpp\n");
#endif
  std::printf("%s at %s\n", what_it_does, server.address().c_str());
#if REFERENCE_SERVER_HAS_PROMETHEUS
  if (metrics) std::printf("metrics at http://%s/metrics\n", metrics->address().c_str());
#endif
  std::fflush(stdout);
  int received = 0;
  counted_list allowed;
  if (given.server.security) allowed = {given.server.security->allowed_clients, given.is_allow_counted};
  for (sigwait(&ends, &received); received == SIGHUP; sigwait(&ends, &received))
    read_list_again(server, given, allowed);
  sigset_t deadly = ends;
  sigdelset(&deadly, SIGHUP);
  sigprocmask(SIG_UNBLOCK, &deadly, nullptr);  // a second signal ends the program if its log is never read
  const auto seen = server.statistics();
  std::printf("ended by %s: %llu messages, %llu bad frames, %llu workers\n", strsignal(received),
              static_cast<unsigned long long>(seen.messages),
              static_cast<unsigned long long>(seen.bad_frames),
              static_cast<unsigned long long>(seen.workers));
}

void serve(const settings& given) {
  // Blocked before any thread starts, so that all threads inherit it and only sigwait sees the signals.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  if (!given.allow.empty()) sigaddset(&ends, SIGHUP);  // else it is the caller's, such as nohup's
  sigprocmask(SIG_BLOCK, &ends, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // who reads the log, or the address, may end first
  const auto make_server = [&given](tensorhub::reference_server_options options) {
    return std::make_unique<tensorhub::catalog_server>(std::move(options), scheduler_named(given.scheduler),
                                                       consistency_named(given.consistency));
  };
#if REFERENCE_SERVER_HAS_ETCD
  if (!given.etcd.empty()) {
    auto etcd = given.etcd;
    tensorhub::standby_server_options options;
    options.server = given.server;
    options.etcd = {etcd["--etcd"],     etcd["--etcd-ca"],   etcd["--etcd-certificate"],
                    etcd["--etcd-key"], etcd["--etcd-user"], etcd["--etcd-password"]};
    options.election.name = etcd["--election"];
    options.election.lease = std::chrono::seconds{given.lease_s};
    tensorhub::standby_candidate server{options, make_server};
    return run(server, given, ends, "candidate");
  }
#endif
  const auto server = make_server(given.server);
  run(*server, given, ends, "serving");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc > 1 && std::string_view{argv[1]} == "--ask") return ask({argv + 2, argv + argc});
  settings given = parse(argc, argv);
  // Written in a thread of its own: whoever reads the log may stand still, and the server does not.
  given.server.log = tensorhub::queued([json = given.log_json](const tensorhub::log_line& line) {
    const std::string shown =
        json ? to_json(line)
             : time_text(line) + " " + std::string{to_string(line.level)} + ": " + to_text(line);
    std::fprintf(stderr, "%s\n", shown.c_str());
  });
  raise_descriptors();
  serve(given);
} catch (const tensorhub::error& e) {
  std::fprintf(stderr, "reference_server: %s\n", tensorhub::escaped_text(e.what()).c_str());
  return 1;
}
