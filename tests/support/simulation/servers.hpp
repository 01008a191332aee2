#pragma once
/// \file servers.hpp
/// The reference servers of a simulated history. One at a time is authoritative; it can die, and another one
/// can take over before the old one knows.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "support/simulation/control_network.hpp"
#include "support/simulation/event_queue.hpp"
#include "support/simulation/options.hpp"
#include "support/simulation/server.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

class simulated_servers {
 public:
  static constexpr std::size_t count = 2;  ///< addresses

  struct hooks {
    std::function<void(simulated_server&)> started{};  ///< called when a server becomes authoritative
    std::function<void(std::size_t)> stepped{};  ///< called when the server at this address may have output
  };

  /// Borrows all arguments.
  simulated_servers(event_queue& events, control_network& network, simulation_statistics& statistics,
                    catalog_options settings, const simulated_policies& policies, hooks tell)
      : events_{&events},
        network_{&network},
        statistics_{&statistics},
        settings_{std::move(settings)},
        policies_{&policies},
        tell_{std::move(tell)} {}

  /// Null: no server listens there.
  [[nodiscard]] simulated_server* at(std::size_t index) const { return servers_[index].get(); }
  /// Null: there is no server now.
  [[nodiscard]] simulated_server* current() const { return at(current_); }
  [[nodiscard]] std::size_t current_index() const noexcept { return current_; }
  [[nodiscard]] server_epoch epoch() const {
    return current() == nullptr ? server_epoch{} : current()->epoch();
  }
  /// Whether a deposed server still answers.
  [[nodiscard]] bool two() const noexcept {
    return std::ranges::none_of(servers_, [](const auto& server) { return server == nullptr; });
  }

  void start(std::size_t index, std::uint64_t term) {
    const server_epoch epoch{term << server_term_shift | (events_->bits() >> server_term_shift)};
    servers_[index] = policies_->make_server(settings_, epoch);
    term_ = term;
    current_ = index;
    tell_.started(*servers_[index]);
    tick(index);
  }

  /// Ends the process; all its state is lost.
  void kill() {
    if (current() == nullptr) return;
    ++statistics_->server_kills;
    servers_[current_].reset();
    network_->lose_all();
    events_->after(events_->between(std::chrono::milliseconds{1}, std::chrono::milliseconds{600}), [this] {
      if (current() == nullptr) start(current_, term_);
    });
  }

  /// An election: another server takes over, and the old one does not know it yet.
  void take_over() {
    const std::size_t old = current_;
    const std::size_t next = (old + 1) % count;
    if (current() == nullptr || servers_[next] != nullptr) return;
    ++statistics_->takeovers;
    start(next, term_ + 1);
    events_->after(events_->between(duration{0}, std::chrono::milliseconds{300}),
                   [this, old] { servers_[old].reset(); });
  }

 private:
  void tick(std::size_t index) {
    const simulated_server& server = *servers_[index];
    const time_point next = std::max(server.next_deadline(), events_->now() + std::chrono::milliseconds{5});
    events_->schedule(next, [this, index, epoch = server.epoch()] {
      if (servers_[index] == nullptr || servers_[index]->epoch() != epoch) return;
      servers_[index]->advance(events_->now());
      tell_.stepped(index);
      tick(index);
    });
  }

  event_queue* events_;
  control_network* network_;
  simulation_statistics* statistics_;
  catalog_options settings_;
  const simulated_policies* policies_;
  hooks tell_;
  std::array<std::unique_ptr<simulated_server>, count> servers_;
  std::size_t current_ = 0;  ///< the address of the last started server
  std::uint64_t term_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
