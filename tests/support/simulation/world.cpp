/// \file world.cpp
/// Where a history begins, and how it is run. What a history consists of is compiled here,
/// once for all tests.

#include "support/simulation/world.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

simulation::simulation(simulation_options options, simulated_policies policies)
    : options_{options},
      policies_{std::move(policies)},
      events_{options.seed},
      shape_{{{"norm", dtype::f32, {10}},
              {"bias", dtype::u8, {77}},
              {"wq", dtype::bf16, {16, 20}},
              {"wk", dtype::f32, {130}},
              {"gate", dtype::u8, {256}}},
             256},
      network_{events_, options_, statistics_},
      servers_{events_,
               network_,
               statistics_,
               catalog_settings(),
               policies_,
               {[this](simulated_server& server) {
                  rules_.attach(server);
                  retained_.forget_verdicts();
                  operator_.forget();
                  for (const auto& [version, able] : promises_.given_up)  // by the server before
                    if (able.empty()) retained_.excuse(events_.now(), version);
                  promises_.retained.attach(events_.now(), events_.now() + catalog_settings().recovery_grace);
                  grace_.attach(events_.now(), last_.published);
                },
                [this](std::size_t index) { flush_server(index); }}},
      rules_{catalog_settings(), statistics_, [this](violation found) { violate(std::move(found)); }} {
  expect_groups = policies_.consistency.decides_per_group;
  servers_.start(0, 0);
  inform_rules();
  network_.connect(
      {[this](std::size_t server, const messages::envelope& message) { at_server(server, message); },
       [this](std::size_t server, incarnation id, const messages::envelope& message) {
         at_worker(server, id, message);
       }});
  for (std::uint32_t shard = 0; shard < options_.shards; ++shard) {
    spawn({trainer, shard});
    events_.after(network_.delay(), [this, shard] { trainers_.train(shard, version_number{1}, false); });
  }
  for (std::size_t i = 0; i < options_.rollouts; ++i) {
    const std::string replica = "rollout-" + std::to_string(i);
    for (std::uint32_t shard = 0; shard < options_.shards; ++shard) {
      rollouts_.push_back({replica, shard});
      if (events_.chance(options_.late_starters))
        spawn_later({replica, shard}, std::chrono::milliseconds{500});
      else
        spawn({replica, shard});
    }
    events_.after(network_.delay(), [this, replica] { next_round(replica); });
  }
  begin_faults();
}

void simulation::inform_rules() {
  rules_.datacenter_of = [this](incarnation id) {
    const worker_type* worker = find(id);
    return worker == nullptr ? std::string{} : worker->core().options().location.datacenter;
  };
  rules_.may_seed = [this](incarnation id, time_point since) {
    const worker_type* worker = find(id);
    return worker != nullptr && operator_.is_free_since(worker->core().options().replica, since);
  };
  rules_.is_drained = [this](incarnation id, time_point at) { return operator_.is_drained(id, at); };
}

void simulation::begin_faults() {
  repeat(options_.connection_losses_per_second, [this] { network_.lose_one(); });
  repeat(options_.kills_per_second, [this] { kill(rollouts_[events_.below(rollouts_.size())]); });
  repeat(options_.double_joins_per_second, [this] { join_twice(); });
  repeat(options_.server_kills_per_second, [this] {
    if (log) note("the server is killed");
    servers_.kill();
  });
  repeat(options_.takeovers_per_second, [this] {
    if (log) note("another server takes over");
    servers_.take_over();
  });
  repeat(options_.pauses_per_second, [this] { pause_random_worker(); });
  repeat(options_.polite_leavers_per_second, [this] { leavers_.retire_random_replica(); });
  repeat(options_.orders_per_second, [this] { operator_.give_order(); });
}

simulation::~simulation() = default;

void simulation::run() {
  const time_point end = time_point{} + options_.length + grace;
  while (violations_.empty() && !is_at_rest() && events_.step(end)) {
    if (++last_.step % 64 == 0) calls_.check(events_.now(), [this](incarnation id) { return find(id); });
  }
  if (violations_.empty()) check_end();
  statistics_.events = events_.executed();
  if (servers_.current() != nullptr) {
    const catalog_statistics counted = servers_.current()->statistics();
    statistics_.sources = {counted.sources_taken_back, counted.shortages.reported,
                           counted.shortages.exchanged};
  }
  for (const auto& worker : workers_) {
    statistics_.chunks += worker->confirmed_chunks();
    statistics_.origins.relayed += worker->origins().relayed;
    statistics_.origins.ahead += worker->origins().ahead;
    statistics_.origins.here += worker->origins().here;
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
