#pragma once
/// \file arrival_budget.hpp
/// From which networks a secured reference server accepts new connections for now. A handshake costs the
/// server some hundred microseconds before the client has shown its key, and a refused client can connect
/// again at once.
///
/// Each network has up to `most_credits` and earns `credits_per_second`. A connection takes one credit, and
/// gives it back when it has shown a key of the allow-list; one that fails takes `failure_cost` more. A
/// network without credits is blocked until it has earned `credits_to_reopen`, in 4 s. So a fleet behind one
/// address may arrive at once, and strangers get, after the first second, 64 connections a second at most for
/// each network that they have.
///
/// A pure state machine: no clock, no socket. Thread safety: none.

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tensorhub/concepts/clock.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/listen_filter.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

class arrival_budget {
 public:
  static constexpr double most_credits = 1024;
  static constexpr double credits_per_second = 64;
  static constexpr double failure_cost = 7;
  /// Taken for a connection that the server closed because it sent too much.
  static constexpr double offence_cost = 32;
  static constexpr double credits_to_reopen = 256;
  /// A network's account is forgotten when it is full again. Further networks have none until then.
  static constexpr std::size_t most_networks = 65'536;

  void arrived(const ip_network& from, time_point now) { charge(from, 1, now); }
  void proved(const ip_network& from, time_point now);
  void failed(const ip_network& from, time_point now) { charge(from, failure_cost, now); }
  void offended(const ip_network& from, time_point now) { charge(from, offence_cost, now); }

  /// Unblocks the networks that have earned enough. True: `blocked` has changed since the last call.
  bool refresh(time_point now);
  /// At most `most_filtered_networks`, the longest blocked first. One more unblocks the first of them.
  [[nodiscard]] const std::vector<ip_network>& blocked() const noexcept { return blocked_; }
  /// How often a network was blocked.
  [[nodiscard]] std::uint64_t times_blocked() const noexcept { return times_blocked_; }

 private:
  struct account {
    double credits = most_credits;
    time_point as_of{};
    void refill(time_point now) noexcept;
  };

  void charge(const ip_network& from, double cost, time_point now);
  [[nodiscard]] account* account_of(const ip_network& from, time_point now);

  std::unordered_map<ip_network, account, ip_network::hash> accounts_;
  std::vector<ip_network> blocked_;
  std::uint64_t times_blocked_ = 0;
  std::size_t prune_at_ = 1024;
  time_point prune_from_{};  ///< a table that is full is not searched for every connection
  bool has_changed_ = false;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/arrival_budget.ipp"
#endif
