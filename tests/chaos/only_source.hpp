#pragma once
/// \file only_source.hpp
/// The only complete source is killed in the middle: how long until its readers are told so, by name.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "members.hpp"

namespace chaos {

/// Seconds from the signal until each shard's error. Throws if a shard got the version, or says nothing.
template <typename Hub>
[[nodiscard]] std::vector<double> kill_only_source(std::size_t readers, std::uint64_t bytes) {
  const auto expect = [](const child_process& from, const std::string& wanted) {
    for (const double until = bench::now_seconds() + 30; bench::now_seconds() < until;) {
      pollfd entry{from.line().descriptor(), POLLIN, 0};
      if (::poll(&entry, 1, 100) <= 0) continue;
      const auto line = from.line().try_hear();
      if (!line) break;
      if (line->starts_with("got")) throw std::runtime_error("the update ended before the kill: more --mib");
      if (line->starts_with(wanted)) return *line;
    }
    throw std::runtime_error("HANG: nobody said '" + wanted + "'");
  };
  std::vector<int> strangers;
  std::vector<std::unique_ptr<child_process>> all;
  const auto start = [&](const std::function<void(const processes::channel&)>& body) -> child_process& {
    all.push_back(std::make_unique<child_process>(body, strangers));
    strangers.push_back(all.back()->line().descriptor());
    return *all.back();
  };
  const child_process& server =
      start([](const processes::channel& line) { serve<Hub>(line, "tcp://127.0.0.1:0"); });
  std::istringstream said{expect(server, "serving")};
  std::string word, when, address;
  said >> word >> when >> address;
  for (std::uint32_t shard = 0; shard < shards; ++shard) {
    start([&](const processes::channel& line) {
      member<Hub, typename Hub::publisher>{line, {"trainer", shard}, address, bytes}.obey();
    });
  }
  for (std::size_t i = 0; i < readers * shards; ++i) {
    start([&](const processes::channel& line) {
      member<Hub, typename Hub::subscriber>{
          line,
          {"rollout-" + std::to_string(i / shards), static_cast<std::uint32_t>(i % shards)},
          address,
          bytes}
          .obey();
    });
  }
  for (std::size_t i = 1; i < all.size(); ++i) static_cast<void>(expect(*all[i], "ready"));
  for (std::size_t i = 1; i <= shards; ++i) all[i]->line().try_say("step 1 1");
  for (std::size_t i = 1; i <= shards; ++i) static_cast<void>(expect(*all[i], "published"));
  for (std::size_t i = 1 + shards; i < all.size(); ++i) all[i]->line().try_say("update 1 1");
  std::this_thread::sleep_for(std::chrono::milliseconds{40});
  const double struck = bench::now_seconds();
  for (std::size_t i = 1; i <= shards; ++i) all[i]->signal(SIGKILL);
  std::vector<double> out;
  for (std::size_t i = 1 + shards; i < all.size(); ++i) {
    std::istringstream failed{expect(*all[i], "failed")};
    std::string code, sentence;
    std::uint64_t token = 0;
    double at = 0;
    failed >> word >> token >> code >> at;
    std::getline(failed, sentence);
    if (out.empty()) std::printf("  %s:%s\n", code.c_str(), sentence.c_str());
    out.push_back(at - struck);
  }
  return out;
}

/// One line per number of readers.
template <typename Hub>
void measure_only_source(std::uint64_t rounds, std::uint64_t bytes) {
  for (const std::size_t readers : {1u, 4u}) {
    std::vector<double> seconds;
    for (std::uint64_t i = 0; i < rounds; ++i) {
      for (const double each : kill_only_source<Hub>(readers, bytes)) seconds.push_back(each);
    }
    std::printf(
        "only complete source killed, %zu readers of 2 shards, %zu errors: p50 %.0f ms, p90 %.0f ms, max "
        "%.0f ms\n",
        readers, seconds.size(), bench::percentile(seconds, 0.5) * 1e3, bench::percentile(seconds, 0.9) * 1e3,
        bench::percentile(seconds, 1.0) * 1e3);
    std::fflush(stdout);
  }
}

}  // namespace chaos
