#pragma once
/// \file scoreboard.hpp
/// What the launcher makes of its children's reports: lines of progress, the closing summary and the verdict.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "link.hpp"

namespace rl_loop {

/// A shard of a replica: one process.
struct place {
  std::string replica;
  std::uint32_t rank = 0;
  auto operator<=>(const place&) const = default;
};

class scoreboard {
 public:
  scoreboard(bool quiet, bool learning_required) : quiet_{quiet}, learning_required_{learning_required} {}

  void hear(const place& from, const report& what) {
    if (what.word() == "published") {
      published_[{from.rank, what.count("version")}] = what.text("fingerprint");
    } else if (what.word() == "learned") {
      learned(what);
    } else if (what.word() == "update") {
      updated(from, what);
    } else if (what.word() == "kept") {
      stalled(totals_[from], what);
    } else if (what.word() == "left") {
      last_[from] = {what.count("version"), what.text("fingerprint")};
    } else if (what.word() == "trouble") {
      note(from.replica + "/" + std::to_string(from.rank) + " tries again: " + what.text("code"));
    } else if (what.word() == "final") {
      final_version_ = what.count("version");
    }
  }

  void note(const std::string& text) {
    if (!quiet_) std::printf("%7.1f  %s\n", elapsed(), text.c_str());
    std::fflush(stdout);
  }

  [[nodiscard]] std::uint64_t final_version() const { return final_version_; }
  [[nodiscard]] std::size_t versions_learned() const { return returns_.size(); }

  /// Prints the summary. `replicas`: name, and whether it stayed to the end. True: all is as it should be.
  [[nodiscard]] bool summarise(const std::vector<std::pair<std::string, bool>>& replicas,
                               std::uint32_t shards) const {
    bool good = true;
    std::printf("\nsummary after %.1f s: %zu versions learnt from, last version %llu\n", elapsed(),
                returns_.size(), static_cast<unsigned long long>(final_version_));
    std::printf(
        "  replica      last version  updates  stall ms: mean  longest  transfer ms    GB/s  from rollouts  "
        "fingerprint of shard 0, 1\n");
    for (const auto& [name, stayed] : replicas) good &= summarise_replica(name, stayed, shards);
    good &= summarise_updates();
    good &= summarise_learning();
    std::printf("  %s\n", good ? "PASSED: all of the above holds" : "FAILED: see above");
    std::fflush(stdout);
    return good;
  }

 private:
  /// Bytes from each replica.
  using sources_of_bytes = std::map<std::string, double>;
  struct returns {
    double mean;
    double episodes;
  };
  struct total {
    std::size_t updates = 0;
    double bytes = 0;
    double from_rollouts = 0;
    double seconds = 0;  // of updates; the first one waits until there is a version, and is left out
    double longest = 0;  // of all calls, also of those that found nothing newer
    double pull_seconds = 0;
  };

  [[nodiscard]] double elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  }

  void learned(const report& what) {
    returns_.push_back({what.number("mean_return"), what.number("episodes")});
    trainer_stall_s_ += what.number("stall_s");
    if (elapsed() - last_line_s_ < 1.0) return;
    last_line_s_ = elapsed();
    char text[160];
    std::snprintf(text, sizeof text, "version %llu: mean return %.1f, played with versions %.1f behind",
                  static_cast<unsigned long long>(what.count("version")), what.number("mean_return"),
                  what.number("behind"));
    note(text);
  }

  void updated(const place& from, const report& what) {
    const std::uint64_t version = what.count("version");
    claims_.push_back({from, version, what.text("fingerprint")});
    if (what.number("bytes") == 0) return;  // it was held already
    const sources_of_bytes sources = parse_sources(what.text("sources"));
    total& sum = totals_[from];
    sum.bytes += what.number("bytes");
    sum.from_rollouts += from_rollouts(sources);
    sum.pull_seconds += what.number("pull_s");
    if (++sum.updates == 1) return;
    sum.seconds += what.number("seconds");
    stalled(sum, what);
  }

  /// The replica has generated nothing meanwhile.
  static void stalled(total& sum, const report& what) {
    sum.longest = std::max(sum.longest, what.number("seconds"));
  }

  /// "trainer-0/1:4096,rollout-3/1:8192," by replica; who gave nothing is left out.
  [[nodiscard]] static sources_of_bytes parse_sources(std::string text) {
    sources_of_bytes out;
    for (std::size_t comma; (comma = text.find(',')) != std::string::npos; text.erase(0, comma + 1)) {
      const std::string one = text.substr(0, comma);
      const double share = std::strtod(one.substr(one.rfind(':') + 1).c_str(), nullptr);
      if (share > 0) out[one.substr(0, one.rfind('/'))] += share;
    }
    return out;
  }
  [[nodiscard]] static double from_rollouts(const sources_of_bytes& sources) {
    double sum = 0;
    for (const auto& [name, share] : sources) sum += name.rfind("rollout", 0) == 0 ? share : 0;
    return sum;
  }
  [[nodiscard]] static std::string percent(double part, double whole) {
    return std::to_string(static_cast<int>(whole > 0 ? std::round(100 * part / whole) : 0)) + "%";
  }

  [[nodiscard]] std::string published(std::uint32_t rank, std::uint64_t version) const {
    const auto found = published_.find({rank, version});
    return found == published_.end() ? "none" : found->second;
  }

  [[nodiscard]] bool summarise_replica(const std::string& name, bool stayed, std::uint32_t shards) const {
    bool good = true;
    std::uint64_t version = 0;
    total sum;
    std::string prints;
    for (std::uint32_t rank = 0; rank < shards; ++rank) {
      const auto last = last_.find({name, rank});
      if (last == last_.end()) {
        prints += " missing";
        good = false;
        continue;
      }
      if (rank != 0 && version != last->second.first) good = false;  // shards of one replica differ
      version = last->second.first;
      const bool same = last->second.second == published(rank, version);
      prints += " " + last->second.second + (same ? " =" : " DIFFERS");
      good &= same;
      if (const auto found = totals_.find({name, rank}); found != totals_.end()) {
        sum.updates = found->second.updates;  // a group operation: the same count in every shard
        sum.bytes += found->second.bytes;
        sum.from_rollouts += found->second.from_rollouts;
        sum.seconds = std::max(sum.seconds, found->second.seconds);
        sum.longest = std::max(sum.longest, found->second.longest);
        sum.pull_seconds = std::max(sum.pull_seconds, found->second.pull_seconds);
      }
    }
    const bool rollout = name.rfind("rollout", 0) == 0;
    if (stayed && version != final_version_) good = false;
    if (rollout && sum.updates == 0) good = false;
    if (rollout) {
      const double updates = std::max<double>(1.0, static_cast<double>(sum.updates));
      std::printf("  %-12s %12llu %8zu %15.1f %8.1f %12.1f %7.2f %14s %s%s\n", name.c_str(),
                  static_cast<unsigned long long>(version), sum.updates,
                  1e3 * sum.seconds / std::max(1.0, updates - 1), 1e3 * sum.longest,
                  1e3 * sum.pull_seconds / updates,
                  sum.pull_seconds > 0 ? sum.bytes / sum.pull_seconds * 1e-9 : 0.0,
                  percent(sum.from_rollouts, sum.bytes).c_str(), prints.c_str(),
                  stayed ? "" : "  (left before the end)");
    } else {
      std::printf("  %-12s %12llu        -               -        -            -       -              - %s\n",
                  name.c_str(), static_cast<unsigned long long>(version), prints.c_str());
    }
    if (!good) std::printf("  %s: WRONG: version or bytes are not the trainer's\n", name.c_str());
    return good;
  }

  [[nodiscard]] bool summarise_updates() const {
    const auto wrong = std::ranges::count_if(
        claims_, [this](const claim& c) { return c.fingerprint != published(c.from.rank, c.version); });
    std::printf("  %zu updates compared with what the trainer published: %td differ\n", claims_.size(),
                wrong);
    std::printf("  trainer stalled %.1f ms per version in publish and unpublish\n",
                1e3 * trainer_stall_s_ / std::max<double>(1.0, static_cast<double>(returns_.size())));
    return wrong == 0 && !claims_.empty();
  }

  /// Learning is judged by what it consists of, versions, so that a slow machine does not make it fail.
  [[nodiscard]] bool summarise_learning() const {
    constexpr std::size_t enough_versions = 30, ends = 4;
    const auto mean = [](auto from, auto to) {
      double sum = 0, episodes = 0;
      for (; from != to; ++from) {
        sum += from->mean * from->episodes;
        episodes += from->episodes;
      }
      return episodes > 0 ? sum / episodes : 0.0;
    };
    const auto count = static_cast<std::ptrdiff_t>(std::min(returns_.size(), ends));
    const double first = returns_.empty() ? 0.0 : returns_.front().mean;
    const double last = mean(returns_.end() - count, returns_.end());
    const bool risen = last >= 100.0 && last >= 3.0 * first;
    std::printf("  mean return: %.1f with the first version, %.1f over the last %td", first, last, count);
    if (returns_.size() >= enough_versions || learning_required_) {
      std::printf(": %s\n", risen ? "clearly risen" : "NOT clearly risen");
      return risen;
    }
    std::printf(" (not judged: %zu versions are too few to learn in)\n", returns_.size());
    return true;
  }

  struct claim {
    place from;
    std::uint64_t version;
    std::string fingerprint;
  };

  bool quiet_;
  bool learning_required_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::string> published_;  // (rank, version): fingerprint
  std::map<place, std::pair<std::uint64_t, std::string>> last_;               // version and fingerprint
  std::map<place, total> totals_;
  std::vector<claim> claims_;
  std::vector<returns> returns_;
  double trainer_stall_s_ = 0;
  std::uint64_t final_version_ = 0;
  double last_line_s_ = -1.0;
};

}  // namespace rl_loop
