// Starts everybody, passes on the milestones of the run, and judges it.

#include <signal.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <list>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "episode_channel.hpp"
#include "exchange.hpp"
#include "link.hpp"
#include "policy.hpp"
#include "process.hpp"
#include "roles.hpp"
#include "scoreboard.hpp"

namespace rl_loop {
namespace {

volatile sig_atomic_t interrupted = 0;

class launcher {
 public:
  explicit launcher(const options& given)
      : given_{given}, board_{given.quiet, given.seconds >= 60.0 && given.hidden <= options{}.hidden} {
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = 1; };
    ::sigaction(SIGINT, &action, nullptr);
    ::sigaction(SIGTERM, &action, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
  }

  [[nodiscard]] bool run() {
    start_server();
    listener_ = out_of_the_way(listen_for_episodes(episode_port_));
    start_replica("trainer", "trainer-0");
    listener_ = descriptor{};  // the trainer's now
    for (std::size_t i = 0; i < given_.rollouts; ++i) start_rollout();

    pump(given_.seconds * 0.4, "", [] { return false; });
    board_.note("rollout-" + std::to_string(next_rollout_) + " joins");
    start_rollout();
    given_.kills ? pump_with_kills(given_.seconds * 0.3)
                 : pump(given_.seconds * 0.3, "", [] { return false; });
    board_.note("rollout-0 leaves");
    tell("rollout-0", report{"leave"}, true);
    pump(given_.seconds * 0.3, "", [] { return false; });

    tell("trainer-0", report{"finish"}, true);
    pump(patience_s, "the trainer's last version", [&] { return board_.final_version() != 0; });
    for (const auto& name : rollouts_) {
      tell(name, report{"finish"}.with("version", board_.final_version()), true);
    }
    pump(patience_s, "the rollouts' end", [&] { return ended("rollout"); });
    tell("trainer-0", report{"exit"}, false);
    pump(patience_s, "the trainer's end", [&] { return ended("trainer"); });
    tell("server", report{"exit"}, true);
    pump(patience_s, "the server's end", [&] { return ended("server"); });

    std::vector<std::pair<std::string, bool>> replicas{{"trainer-0", true}};
    for (const auto& name : rollouts_) replicas.emplace_back(name, name != "rollout-0");
    return board_.summarise(replicas, shard_count);
  }

 private:
  static constexpr double patience_s = 90;

  struct member {
    place who;
    std::size_t process;
    link line;
    bool may_end = false;  // it has been told to
    bool closed = false;   // its end of the line
    bool killed = false;   // by us
  };

  /// Kills the server, and later both processes of a rollout that others read from, and starts them again.
  void pump_with_kills(double seconds) {
    const double part = seconds / 5;
    pump(part, "", [] { return false; });
    board_.note("kill -9 of the reference server");
    kill("server");
    pump(std::min(part, 1.0), "", [] { return false; });
    board_.note("a new reference server starts at the same address");
    start("server", {"server", 0}, descriptor{}, -1);
    pump(part, "", [] { return false; });
    const std::string source = rollouts_[std::min<std::size_t>(1, rollouts_.size() - 1)];
    board_.note("kill -9 of both shards of " + source + ", whom others read from");
    kill(source);
    pump(part, "", [] { return false; });
    board_.note(source + " starts again");
    start_replica("rollout", source);
    pump(part, "", [] { return false; });
  }

  void kill(const std::string& replica) {
    for (auto& m : members_) {
      if (m.who.replica != replica || m.killed) continue;
      ::kill(children_[m.process].pid, SIGKILL);
      m.killed = m.closed = true;
    }
  }

  void start_server() {
    start("server", {"server", 0}, descriptor{}, -1);
    pump(30, "the reference server", [&] { return !server_address_.empty(); });
  }

  void start_rollout() {
    rollouts_.push_back("rollout-" + std::to_string(next_rollout_++));
    start_replica("rollout", rollouts_.back());
  }

  /// Two processes, connected to each other.
  void start_replica(const std::string& role, const std::string& name) {
    auto [first, second] = connected_pair(SOCK_STREAM);
    start(role, {name, 0}, std::move(first), role == "trainer" ? listener_.get() : -1);
    start(role, {name, 1}, std::move(second), -1);
  }

  void start(const std::string& role, const place& who, descriptor peer, int listener) {
    auto [ours, theirs] = connected_pair(SOCK_SEQPACKET);
    const std::size_t process =
        children_.start(who.replica + "/" + std::to_string(who.rank),
                        {"rl_loop", "--role", role, "--name", who.replica, "--rank", std::to_string(who.rank),
                         "--server", server_address_.empty() ? "none" : server_address_, "--episode-port",
                         std::to_string(episode_port_ == 0 ? 1 : episode_port_), "--hidden",
                         std::to_string(given_.hidden), "--seed", std::to_string(given_.seed)},
                        {theirs.get(), peer.get(), listener});
    members_.push_back({who, process, link{std::move(ours)}});
  }

  /// To the first shard of a replica, or to both; `ends`: all its processes will end by that.
  void tell(const std::string& replica, const report& command, bool first_only) {
    for (auto& m : members_) {
      if (m.who.replica != replica || m.closed) continue;
      if (command.word() != "finish" || replica != "trainer-0") m.may_end = true;
      if (!first_only || m.who.rank == 0) m.line.say(command);
    }
  }

  [[nodiscard]] bool ended(const std::string& prefix) {
    for (const auto& m : members_) {
      if (m.who.replica.rfind(prefix, 0) == 0 && !(m.closed && children_[m.process].ended)) return false;
    }
    return true;
  }

  /// Listens to everybody until `done`, or for `seconds`. A wait that has a name fails if it is not done by
  /// then. Throws as soon as a process ends that was not told to, or ends badly.
  void pump(double seconds, const std::string& name, const std::function<bool()>& done) {
    const deadline until{std::chrono::milliseconds{static_cast<long>(seconds * 1e3)}};
    while (!done()) {
      if (interrupted != 0) throw std::runtime_error("interrupted");
      if (until.passed()) {
        if (name.empty()) return;
        throw std::runtime_error("waited too long for " + name + who_is_left());
      }
      std::vector<pollfd> lines;
      for (const auto& m : members_) lines.push_back({m.closed ? -1 : m.line.fd(), POLLIN, 0});
      if (::poll(lines.data(), lines.size(), std::min(until.left_ms(), 100)) < 0 && errno != EINTR)
        fail("poll");
      std::size_t i = 0;
      for (auto& m : members_) {
        if (lines[i++].revents != 0) hear(m);
      }
      check_children();
    }
  }

  void hear(member& from) {
    try {
      if (const auto what = from.line.hear()) {
        if (what->word() == "serving") server_address_ = what->text("address");
        board_.hear(from.who, *what);
      }
    } catch (const std::runtime_error&) {
      from.closed = true;  // how its process ended is check_children's question
    }
  }

  void check_children() {
    children_.reap();
    for (const auto& m : members_) {
      const child& process = children_[m.process];
      if (!process.ended || m.killed || (m.may_end && process.succeeded())) continue;
      throw std::runtime_error(process.name + " " + process.ending() +
                               (m.may_end ? "" : " although nobody told it to"));
    }
  }

  [[nodiscard]] std::string who_is_left() {
    std::string names;
    for (const auto& m : members_) {
      if (!children_[m.process].ended)
        names += (names.empty() ? "; still running: " : ", ") + children_[m.process].name;
    }
    return names;
  }

  options given_;
  scoreboard board_;
  children children_;
  std::list<member> members_;
  std::vector<std::string> rollouts_;
  std::size_t next_rollout_ = 0;
  std::string server_address_;
  descriptor listener_;
  std::uint16_t episode_port_ = 0;
};

}  // namespace

bool run_launcher(const options& given) {
  const std::size_t units = policy_shard::units_of(given.hidden, shard_count);
  const double megabytes =
      static_cast<double>(policy_shard::float_count(units) * sizeof(float) * shard_count) * 1e-6;
  std::printf(
      "rl_loop: cart-pole; hidden layer of %zu units over %u shards: %.1f MB per version; %zu rollout\n"
      "replicas of %u processes, one more joins after %.0f s, one leaves after %.0f s; %.0f s in all\n\n",
      given.hidden, shard_count, megabytes, given.rollouts, shard_count, given.seconds * 0.4,
      given.seconds * 0.7, given.seconds);
  std::fflush(stdout);
  return launcher{given}.run();
}

}  // namespace rl_loop
