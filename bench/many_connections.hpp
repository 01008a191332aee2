#pragma once
/// \file many_connections.hpp
/// One reference server and thousands of workers on one machine, each with a TCP connection of its own.
///
/// The workers are one ROUTER socket in another process, which connects as often as there are workers: a
/// DEALER for each would need twice as many descriptors. They join at once; the trainer publishes; each
/// worker that is told updates and reports the end at once. No weights move.

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <tensorhub/server.hpp>
#include <tensorhub/service/codec.hpp>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "control_messages.hpp"
#include "harness.hpp"
#include "support/child_process.hpp"

namespace bench {

namespace messages = tensorhub::messages;

/// All workers; number 0 is the trainer.
class connected_fleet {
 public:
  connected_fleet(const std::string& address, std::size_t workers)
      : shape_{tensors_of_all()}, socket_{context_, zmq::socket_type::router}, members_(workers + 1) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::router_mandatory, true);
    socket_.set(zmq::sockopt::rcvtimeo, 60'000);
    connect(address, 0);
    join(0, true);
    work_until([&] { return joined_ == 1; });
    began_ = now_seconds();
    for (std::size_t i = 1; i < members_.size(); ++i) {
      connect(address, i);
      join(i, false);
      work_until([&] { return i + 1 - joined_ < most_arriving; });
    }
    work_until([&] { return joined_ == members_.size(); });
    join_seconds_ = now_seconds() - began_;
  }

  [[nodiscard]] double join_seconds() const { return join_seconds_; }
  /// Of each worker: from the call of publish to the word of the version.
  [[nodiscard]] const std::vector<double>& told_seconds() const { return told_seconds_; }

  /// Until every worker has reported that it holds the version, in seconds.
  double publish() {
    began_ = now_seconds();
    send(0, messages::publish_request{{1}, held_by(1, 0)});
    work_until([&] { return finished_ + 1 == members_.size(); });
    return now_seconds() - began_;
  }

 private:
  /// Of connections without an answer: the kernel and the server's backlog take no more at once.
  static constexpr std::size_t most_arriving = 4096;

  struct member {
    std::uint64_t sequence = 0;
    bool updates = false;
    bool finishes = false;
  };

  [[nodiscard]] static std::string name_of(std::size_t number) { return "c" + std::to_string(number); }
  void connect(const std::string& address, std::size_t number) {
    socket_.set(zmq::sockopt::connect_routing_id, name_of(number));
    socket_.connect(address);
  }
  void join(std::size_t number, bool with_layout) { send(number, join_of(number + 1, shape_, with_layout)); }
  void send(std::size_t number, messages::message body) {
    const tensorhub::request_sequence before{members_[number].sequence};
    const auto frame =
        encoder_.encode({number + 1, {++members_[number].sequence}, before, std::move(body), {}, 0});
    socket_.send(zmq::buffer(name_of(number)), zmq::send_flags::sndmore);
    socket_.send(zmq::const_buffer{frame.data(), frame.size()}, zmq::send_flags::none);
  }

  void work_until(const std::function<bool()>& done) {
    zmq::message_t name;
    zmq::message_t frame;
    while (!done()) {
      if (!socket_.recv(name) || !socket_.recv(frame))
        throw std::runtime_error("the server does not answer: " + std::to_string(joined_) + " of " +
                                 std::to_string(members_.size()) + " workers have joined, " +
                                 std::to_string(finished_) + " have the version");
      const auto decoded = decoder_.decode({static_cast<const std::byte*>(frame.data()), frame.size()});
      if (!decoded.ok()) throw std::runtime_error("bad frame from the server");
      take(std::strtoul(name.to_string().c_str() + 1, nullptr, 10), decoded.message.body);
    }
  }
  void take(std::size_t number, const messages::message& body) {
    member& self = members_[number];
    if (const auto* joined = get_if<messages::join_reply>(&body)) {
      if (!joined->result.ok() || (joined->wants_layout && number > 0))
        throw std::runtime_error("not joined: " + joined->result.sentence);
      ++joined_;
    } else if (holds_alternative<messages::version_push>(body)) {
      if (number == 0 || std::exchange(self.updates, true)) return;
      told_seconds_.push_back(now_seconds() - began_);
      send(number, messages::update_request{{1}, tensorhub::latest, 600'000});
    } else if (const auto* reply = get_if<messages::update_reply>(&body)) {
      if (reply->sources.empty()) throw std::runtime_error("no source: " + reply->result.sentence);
      self.finishes = true;
      messages::finish_request finish;
      finish.operation = {1};
      finish.version = reply->version;
      finish.held = held_by(reply->version.value, 1);
      finish.lease = reply->sources.front().lease;
      send(number, std::move(finish));
    } else if (holds_alternative<messages::status_reply>(body)) {
      finished_ += std::exchange(self.finishes, false) ? 1 : 0;
    }
  }

  tensorhub::layout shape_;
  zmq::context_t context_;
  zmq::socket_t socket_;
  tensorhub::encoder encoder_;
  tensorhub::decoder decoder_;
  std::vector<member> members_;
  std::vector<double> told_seconds_;
  double began_ = 0;
  double join_seconds_ = 0;
  std::size_t joined_ = 0;
  std::size_t finished_ = 0;
};

/// Memory of this process that is in use, in MiB.
[[nodiscard]] inline double resident_mib() {
  std::ifstream from{"/proc/self/statm"};
  double pages = 0;
  from >> pages >> pages;
  return pages * static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1 << 20);
}

/// A server that says its address, and then its memory as often as it is asked.
[[nodiscard]] inline std::unique_ptr<processes::child_process> start_patient_server() {
  return std::make_unique<processes::child_process>([](processes::channel& line) {
    tensorhub::reference_server_options how;
    how.catalog.worker_timeout = std::chrono::minutes{10};  // nobody's heart beats
    tensorhub::reference_server<> server{how};
    line.say(server.address());
    for (;;) {
      static_cast<void>(line.hear());
      line.say(std::to_string(resident_mib()));
    }
  });
}

/// Every connection is a descriptor here, and one at the server.
inline void raise_descriptor_limit(std::size_t connections) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const std::size_t wanted = connections + 200;
  limit.rlim_cur = std::max<rlim_t>(limit.rlim_cur, std::min<rlim_t>(wanted, limit.rlim_max));
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < wanted)
    throw std::runtime_error(std::to_string(connections) + " connections need " + std::to_string(wanted) +
                             " descriptors in one process, the limit is " + std::to_string(limit.rlim_cur) +
                             ": raise it with ulimit -Hn");
}

[[nodiscard]] inline figures measure_one(std::size_t connections) {
  const auto server = start_patient_server();
  const std::string address = server->line().hear();
  const auto memory = [&] { return std::strtod(server->ask("memory").c_str(), nullptr); };
  const double before = memory();
  connected_fleet fleet{address, connections};
  const double joined = memory();
  const double all = fleet.publish();
  const double after = memory();
  const auto each = static_cast<double>(connections);
  return {{"join s", fleet.join_seconds()},
          {"all have it s", all},
          {"told p50 s", percentile(fleet.told_seconds(), 0.5)},
          {"told p99 s", percentile(fleet.told_seconds(), 0.99)},
          {"joined MiB", joined},
          {"server MiB", after},
          {"KiB/connection", (after - before) * 1024 / each}};
}

/// The exit status of the program.
inline int measure_connections(const arguments& given, std::size_t connections) {
  raise_descriptor_limit(connections);
  comparison alone{given, "one reference server with many connections",
                   "one process of workers, a TCP connection each; join: from the first connect to the last "
                   "answer; told: from publish to a worker's version_push; all have it: from publish to the "
                   "last worker's finish_request's answer; memory: resident, of the server's process; a new "
                   "server for each of 3 rounds, after a warming one; medians"};
  alone.add(std::to_string(connections) + " connections", [&] { return measure_one(connections); });
  alone.run(given.smoke ? 1 : 3);
  alone.print(
      {"join s", "told p50 s", "told p99 s", "all have it s", "joined MiB", "server MiB", "KiB/connection"});
  alone.write_json(given.json_path);
  return 0;
}

}  // namespace bench
