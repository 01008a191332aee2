#pragma once
/// \file broken_servers.hpp
/// Catalogs with a planted bug each, which random histories (planted.cpp) and the exhaustive search
/// (exhaustive.cpp) find.

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/simulation/server.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// Lets the keys live that an earlier server's readers have.
class server_that_revokes_nothing : public simulated_server {
 public:
  using simulated_server::simulated_server;
  [[nodiscard]] std::vector<outgoing> take_output() override {
    auto output = catalog::take_output();
    for (outgoing& out : output) {
      if (auto* drained = get_if<messages::drained_reply>(&out.message.body)) drained->revoke = false;
    }
    return output;
  }
};

/// Counts a lease from the moment at which its reader is first heard after it was told of it: an unpublish
/// does not wait for those that have only been assigned.
class server_that_counts_at_the_start : public simulated_server {
 public:
  using simulated_server::simulated_server;
  void receive(time_point now, const messages::envelope& message) override {
    for_each_lease([&](const auto& lease) {
      if (lease.reader.value == message.sender) started_.insert(lease.id);
    });
    pass(now, message);
    const auto* unpublish = get_if<messages::unpublish_request>(&message.body);
    const incarnation source{message.sender};
    const auto* record = record_of(source);
    if (unpublish == nullptr || record == nullptr || !record->drain) return;
    bool waits = false;
    catalog::for_each_lease(
        [&](const auto& lease) { waits = waits || (lease.source == source && started_.contains(lease.id)); });
    if (!waits) early_.push_back({source, {epoch().value, message.sequence, {}, messages::drained_reply{}}});
  }
  [[nodiscard]] std::vector<outgoing> take_output() override {
    auto output = catalog::take_output();
    for (outgoing& out : std::exchange(early_, {})) output.push_back(std::move(out));
    return output;
  }
  [[nodiscard]] bool counts(const catalog_detail::lease_state& lease) const override {
    return started_.contains(lease.id) || !lease.reader || !record_of(lease.source) ||
           !record_of(lease.source)->drain;
  }

 private:
  std::set<lease_id> started_;
  std::vector<outgoing> early_;
};

/// Says yes to everybody who asks for retention, and does nothing.
class server_that_retains_nothing : public simulated_server {
 public:
  using simulated_server::simulated_server;
  void receive(time_point now, const messages::envelope& received) override {
    messages::envelope message = received;
    if (auto* change = get_if<messages::retain_request>(&message.body)) *change = {};
    pass(now, message);
  }
};

/// Keeps one version less than it was asked to.
class server_that_retains_one_less : public simulated_server {
 public:
  using simulated_server::simulated_server;
  void receive(time_point now, const messages::envelope& received) override {
    messages::envelope message = received;
    auto* change = get_if<messages::retain_request>(&message.body);
    if (change != nullptr && change->keep_latest) change->keep_latest = *change->keep_latest - 1;
    pass(now, message);
  }
};

/// Asks nobody else when one process has no room for a retained version, and says that the version is lost.
class server_that_gives_versions_up : public simulated_server {
 public:
  using simulated_server::simulated_server;
  void receive(time_point now, const messages::envelope& message) override {
    const auto* refusal = get_if<messages::offload_failed_request>(&message.body);
    const auto* model = record_of_model("policy");
    if (refusal != nullptr && model != nullptr) {
      auto& handovers = const_cast<catalog_detail::model_state*>(model)->handovers;
      const auto handover = handovers.find(refusal->version);
      for (const auto& [name, replica] : model->replicas)
        if (handover != handovers.end()) handover->second.failed.insert(name);
    }
    pass(now, message);
  }
};

/// Says yes to an operator that drains a replica, and does nothing.
class server_that_drains_nobody : public simulated_server {
 public:
  using simulated_server::simulated_server;
  void receive(time_point now, const messages::envelope& received) override {
    messages::envelope message = received;
    auto* order = get_if<messages::manage_request>(&message.body);
    if (order != nullptr && order->kind == messages::manage_kind::drain)
      order->kind = messages::manage_kind::resume;
    pass(now, message);
  }
};

/// Says yes to a trainer that goes back, and does nothing.
class server_that_rolls_nothing_back : public simulated_server {
 public:
  using simulated_server::simulated_server;
  void receive(time_point now, const messages::envelope& received) override {
    messages::envelope message = received;
    if (auto* change = get_if<messages::retain_request>(&message.body)) change->roll_back_to.reset();
    pass(now, message);
  }
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
