#pragma once
/// \file control_network.hpp
/// The simulated connections between the workers and the server.
///
/// Messages of one connection arrive in order, with seeded delays. A connection can break: messages in flight
/// are lost, except that a server may still read from the old connection after the new one is open. *Reports*
/// are the messages whose loss or delay leaves server and worker with different views: finish_request,
/// cut_off_done_request, and the pushes that are sent once. Reports can be lost (their connection breaks with
/// them) or stalled (with all messages behind them).

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <utility>
#include <variant>

#include "support/simulation/event_queue.hpp"
#include "support/simulation/options.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/envelope.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

class control_network {
 public:
  struct ends {
    std::function<void(std::size_t server, const messages::envelope&)> server{};
    std::function<void(std::size_t server, incarnation, const messages::envelope&)> worker{};
  };

  /// Borrows all arguments.
  control_network(event_queue& events, const simulation_options& options, simulation_statistics& statistics)
      : events_{&events}, options_{&options}, statistics_{&statistics} {}

  void connect(ends to) { to_ = std::move(to); }

  void to_server(incarnation from, std::size_t server, messages::envelope message) {
    send(
        from, true, [this, server, message] { to_.server(server, message); }, is_report(message.body));
  }
  void to_worker(std::size_t server, incarnation id, messages::envelope message) {
    send(
        id, false, [this, server, id, message] { to_.worker(server, id, message); }, is_report(message.body));
  }

  /// Breaks one random connection.
  void lose_one() {
    if (connections_.empty()) return;
    auto connection = connections_.begin();
    std::advance(connection, static_cast<std::ptrdiff_t>(events_->below(connections_.size())));
    lose(connection->second);
  }

  /// Breaks the connection of one worker.
  void lose(incarnation worker) { lose(connections_[worker]); }
  void lose_all() {
    for (auto& [worker, connection] : connections_) lose(connection);
  }

  /// A random delay of a message, in one direction.
  [[nodiscard]] duration delay() {
    return events_->between(std::chrono::microseconds{30}, std::chrono::microseconds{900});
  }

 private:
  struct connection_state {
    std::uint64_t generation = 0;
    time_point to_server{};
    time_point to_worker{};
  };

  [[nodiscard]] static bool is_report(const messages::message& body) {
    return holds_alternative<messages::finish_request>(body) ||
           holds_alternative<messages::cut_off_done_request>(body) ||
           holds_alternative<messages::cut_off_push>(body) ||
           holds_alternative<messages::reassign_push>(body) || holds_alternative<messages::abort_push>(body);
  }
  [[nodiscard]] bool faulty() const { return events_->now() <= time_point{} + options_->length; }

  void lose(connection_state& connection) {
    ++connection.generation;
    connection.to_server = connection.to_worker = events_->now();
    ++statistics_->lost_connections;
  }

  template <typename Arrive>
  void send(incarnation peer, bool to_server, Arrive arrive, bool report) {
    connection_state& connection = connections_[peer];
    duration travel = delay();
    if (faulty() && report) {
      if (events_->chance(options_->lost_reports)) return lose(connection);
      if (events_->chance(options_->stalled_reports))
        travel += events_->between(std::chrono::milliseconds{1}, std::chrono::milliseconds{250});
    }
    if (faulty() && events_->chance(options_->stale_messages)) {
      ++statistics_->stale_messages;
      events_->after(events_->between(std::chrono::milliseconds{1}, std::chrono::milliseconds{300}),
                     [arrive] { arrive(); });
    }
    time_point& last = to_server ? connection.to_server : connection.to_worker;
    last = std::max(last, events_->now() + travel);
    events_->schedule(last, [this, peer, to_server, arrive, generation = connection.generation] {
      if (connections_[peer].generation == generation) return arrive();
      const bool still_read = to_server && options_->stale_messages > 0 && events_->chance(0.2);
      if (!still_read) return;
      ++statistics_->stale_messages;
      events_->after(events_->between(duration{0}, std::chrono::milliseconds{20}), [arrive] { arrive(); });
    });
  }

  event_queue* events_;
  const simulation_options* options_;
  simulation_statistics* statistics_;
  ends to_;
  std::map<incarnation, connection_state> connections_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
