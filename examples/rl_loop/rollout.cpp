// One shard of a rollout replica: hold a version, play with it, take the next one as soon as there is one.

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "episode_channel.hpp"
#include "exchange.hpp"
#include "fingerprint.hpp"
#include "link.hpp"
#include "player.hpp"
#include "policy.hpp"
#include "process.hpp"
#include "roles.hpp"
#include "weights_hub.hpp"

namespace rl_loop {
namespace {

constexpr std::size_t environments = 8;

/// What both shards do next; the first one decides.
struct orders {
  bool update = false;      // take the latest version that can be read now, if it is newer
  std::uint64_t least = 0;  // or wait for this one or a later one; zero: do not wait
  bool play = false;
  bool stop = false;
};

/// Both shards of a replica make the same calls, so both repeat one that has failed in either: a source may
/// have died, or an answer was lost on its way to one of them. The shard that had succeeded holds the version
/// already, so its second call returns at once.
tensorhub::update_report update(hub::subscriber& rollout, std::uint64_t least, exchange& shards,
                                link& launcher) {
  constexpr int attempts = 10;
  std::optional<tensorhub::update_report> done;
  for (int attempt = 1;; ++attempt) {
    std::exception_ptr failure;
    try {
      auto report = rollout.update(least == 0 ? tensorhub::latest : tensorhub::at_least(least));
      if (!done || !report.kept) done = std::move(report);
    } catch (const tensorhub::error& e) {
      if (e.code() == tensorhub::errc::replaced) throw;
      failure = std::current_exception();
      launcher.say(report{"trouble"}.with("code", to_string(e.code())));
    }
    if (shards.both(failure == nullptr)) return *done;
    if (attempt == attempts && failure) std::rethrow_exception(failure);
    std::this_thread::sleep_for(std::chrono::milliseconds{100});
  }
}

report describe_update(const tensorhub::update_report& done, std::uint64_t fingerprint_of_bytes) {
  std::string sources;
  for (std::size_t i = 0; i < done.sources.size(); ++i)  // who was read, and how much of it
    sources += done.sources[i] + ":" + std::to_string(done.source_bytes[i]) + ",";
  return report{"update"}
      .with("version", done.version.value)
      .with("sources", sources)
      .with("bytes", done.bytes)
      .with("seconds", done.seconds)
      .with("pull_s", done.pull_seconds)
      .with("fingerprint", fingerprint_of_bytes);
}

}  // namespace

void run_rollout(const options& given) {
  link launcher{descriptor{link_fd}};
  exchange shards{descriptor{peer_fd}, given.rank};
  std::optional<episode_outbox> outbox;
  if (shards.first()) outbox.emplace(given.episode_port);

  const std::size_t units = policy_shard::units_of(given.hidden, shard_count);
  const std::size_t bytes = policy_shard::float_count(units) * sizeof(float);
  tensorhub::host_memory space;
  const auto memory = space.allocate(bytes);
  policy_shard policy{reinterpret_cast<float*>(memory.range().data), units};
  player playing{policy, given.seed + std::hash<std::string>{}(given.name), environments};

  hub::subscriber rollout{{.server = given.server,
                           .model = "policy",
                           .replica = given.name,
                           .shard = {given.rank, shard_count},
                           .spot = true}};
  for (const auto& tensor : policy.tensors()) {
    rollout.add(tensor.name, tensor.data, tensor.shape, tensorhub::dtype::f32);
  }

  for (std::uint64_t held = 0;;) {
    orders next;
    if (shards.first()) {
      // At the start: whatever there is, once there is any. Later the newer version may be hidden again,
      // because the trainer works on the next one: then what is held is kept, and played with.
      next.update = held == 0 || rollout.newer().has_value();
      if (const auto command = launcher.hear()) {
        next.stop = true;
        next.least = command->count("version");  // "finish" names the last version, "leave" names none
        next.update = next.least != 0;
      }
      next.play = !next.stop && outbox->ready(std::chrono::milliseconds{5});
    }
    next = shards.agree(next);

    if (next.update) {
      const auto done = update(rollout, next.least, shards, launcher);  // in place
      held = done.version.value;  // from here this process is a source itself
      launcher.say(done.kept ? report{"kept"}.with("seconds", done.seconds)
                             : describe_update(done, fingerprint(std::as_bytes(policy.all()))));
    }
    if (next.stop) {
      launcher.say(
          report{"left"}.with("version", held).with("fingerprint", fingerprint(std::as_bytes(policy.all()))));
      rollout.leave();  // readers of this replica finish or are moved first
      return;
    }
    if (next.play) {
      const wave played = playing.play(held, shards);
      if (shards.first()) outbox->send(played);
    }
  }
}

}  // namespace rl_loop
