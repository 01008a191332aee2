// One shard of the trainer: publish in place, collect episodes, take the weights back, improve them.

#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "episode_channel.hpp"
#include "exchange.hpp"
#include "fingerprint.hpp"
#include "learner.hpp"
#include "link.hpp"
#include "policy.hpp"
#include "process.hpp"
#include "roles.hpp"
#include "weights_hub.hpp"

namespace rl_loop {
namespace {

constexpr std::size_t batch_steps = 2048;    // episodes are collected until they have so many steps together
constexpr std::size_t largest_batch = 8192;  // more than so many steps are left for the next batch

/// The first shard's part of collecting; returns early, with what there is, when the launcher says "finish".
std::vector<wave> collect(episode_inbox& inbox, link& launcher, bool& finish) {
  std::vector<wave> batch;
  std::size_t steps = 0;
  const deadline until{std::chrono::seconds{60}};
  while (steps < batch_steps && !finish) {
    if (until.passed()) throw std::runtime_error("no rollout has sent enough episodes for a minute");
    inbox.take(batch, std::chrono::milliseconds{20});
    steps = 0;
    for (const auto& w : batch) steps += w.steps();
    finish = launcher.hear().has_value();
  }
  while (steps > largest_batch && batch.size() > 1) {
    steps -= batch.back().steps();
    batch.pop_back();
  }
  return batch;
}

report describe_batch(const std::vector<wave>& batch, std::uint64_t version) {
  double steps = 0, episodes = 0, behind = 0;
  for (const auto& w : batch) {
    steps += static_cast<double>(w.steps());
    episodes += static_cast<double>(w.episodes.size());
    behind += static_cast<double>((version - w.version) * w.episodes.size());
  }
  return report{"learned"}
      .with("version", version)
      .with("episodes", episodes)
      .with("mean_return", steps / episodes)
      .with("behind", behind / episodes);
}

}  // namespace

void run_trainer(const options& given) {
  link launcher{descriptor{link_fd}};
  exchange shards{descriptor{peer_fd}, given.rank};
  episode_inbox inbox{descriptor{shards.first() ? listener_fd : -1}};

  const std::size_t units = policy_shard::units_of(given.hidden, shard_count);
  const std::size_t bytes = policy_shard::float_count(units) * sizeof(float);
  tensorhub::host_memory space;               // memory that other machines get without copying
  const auto memory = space.allocate(bytes);  // (any other memory works too)
  policy_shard policy{reinterpret_cast<float*>(memory.range().data), units};
  policy.initialise(given.seed * 1000 + given.rank);
  learner learning{policy, given.hidden, {}, given.seed};

  hub::publisher trainer{
      {.server = given.server, .model = "policy", .replica = given.name, .shard = {given.rank, shard_count}}};
  for (const auto& tensor : policy.tensors()) {
    trainer.add(tensor.name, tensor.data, tensor.shape, tensorhub::dtype::f32);
  }

  std::uint64_t version = 1;
  for (bool finish = false;; ++version) {
    const auto shown = trainer.publish(version);  // from here the weights do not change ...
    launcher.say(report{"published"}
                     .with("version", version)
                     .with("fingerprint", fingerprint(std::as_bytes(policy.all()))));

    std::vector<wave> batch;
    if (shards.first()) batch = collect(inbox, launcher, finish);
    finish = shards.agree(finish);
    if (finish) break;
    if (!shards.first()) batch.clear();
    batch = decode(shards.agree(encode(batch)));

    const auto hidden = trainer.unpublish();  // ... to here: nobody reads them any more
    const auto started = std::chrono::steady_clock::now();
    learning.improve(batch, [&](std::span<outputs> values) { shards.sum(values); });
    const std::chrono::duration<double> learned = std::chrono::steady_clock::now() - started;
    if (shards.first()) {
      launcher.say(describe_batch(batch, version)
                       .with("stall_s", shown.seconds + hidden.seconds)
                       .with("finished", hidden.finished)
                       .with("moved", hidden.moved)
                       .with("learn_s", learned.count()));
    }
  }

  launcher.say(report{"final"}.with("version", version));
  if (!launcher.hear(std::chrono::seconds{120}))
    throw std::runtime_error("the launcher has forgotten the trainer");
  trainer.leave();
  launcher.say(
      report{"left"}.with("version", version).with("fingerprint", fingerprint(std::as_bytes(policy.all()))));
}

}  // namespace rl_loop
