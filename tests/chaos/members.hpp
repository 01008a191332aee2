#pragma once
/// \file members.hpp
/// What the processes of a round do: a server, shards of a trainer, shards of rollouts. Each obeys the
/// driver's lines and answers them; what a worker notices meanwhile it tells at once.
///
///     driver: step V              trainer: shows V; "published V s-of-unpublish s-of-publish"
///     driver: update K V          rollout: at least version V; "got K version whole|WRONG"
///     driver: files | end         all workers: memfd inodes | leave, and end
///     worker: failed K code when sentence | again K replaced when sentence
///     driver: exactly K V         rollout: that version
///     worker: noticed when code who | resumed when noticed-when posted-when seconds-waited-for-cpu source
///     server: serving address | said when line
///     all, at their ends: left 0 what was not given back

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <thread>
#include <vector>

#include "harness.hpp"
#include "left_over.hpp"
#include "support/child_process.hpp"

namespace chaos {

using processes::child_process;

inline constexpr std::uint32_t shards = 2;
// Of a fast machine; to be set before the first round.
inline std::chrono::milliseconds heartbeat_interval{200};
inline std::chrono::milliseconds worker_timeout{1500};
inline std::chrono::milliseconds peer_timeout{1000};
inline std::chrono::milliseconds recovery_grace{1500};
inline std::chrono::milliseconds call_timeout{15'000};
inline double patience_s = 45;  ///< of the driver, with everybody together

struct place {
  std::string replica{};
  std::uint32_t shard = 0;
  bool spot = false;
  bool keeps = false;  ///< a trainer: pins version 1, and has the latest two kept
  [[nodiscard]] std::string name() const { return replica + "/" + std::to_string(shard); }
};

[[nodiscard]] inline std::string time_text(double seconds) {
  char out[40];
  std::snprintf(out, sizeof out, "%.6f", seconds);
  return out;
}

/// A shard's memory: one large tensor and some small ones, every word a function of version, shard and place.
class weights {
 public:
  explicit weights(std::uint64_t bytes) : words_{bytes / 8}, memory_{bytes + small_count * small_words * 8} {}

  void fill(std::uint64_t version, std::uint32_t shard) {
    for (std::uint64_t i = 0; i < all_words(); ++i) data()[i] = word(version, shard, i);
  }
  [[nodiscard]] bool holds(std::uint64_t version, std::uint32_t shard) const {
    for (std::uint64_t i = 0; i < all_words(); ++i)
      if (data()[i] != word(version, shard, i)) return false;
    return true;
  }
  template <typename Worker>
  void add_to(Worker& worker) {
    worker.add("large", data(), {words_}, tensorhub::dtype::u64);
    for (std::uint64_t i = 0; i < small_count; ++i)
      worker.add("small." + std::to_string(i), data() + words_ + i * small_words, {small_words},
                 tensorhub::dtype::u64);
  }

 private:
  static constexpr std::uint64_t small_count = 8;
  static constexpr std::uint64_t small_words = 500;
  [[nodiscard]] std::uint64_t* data() const { return reinterpret_cast<std::uint64_t*>(memory_.data()); }
  [[nodiscard]] std::uint64_t all_words() const noexcept { return words_ + small_count * small_words; }
  [[nodiscard]] static std::uint64_t word(std::uint64_t version, std::uint32_t shard, std::uint64_t at) {
    return (version * 1'000'003 + shard * 101 + at) * 0x9e3779b97f4a7c15ull;
  }
  std::uint64_t words_;
  tensorhub::host_memory::allocation memory_;
};

/// Set by who runs rounds over a transport that must be told where to listen.
template <typename Options>
inline std::function<void(Options&)> adjust = [](Options&) {};

/// `address`: of the server before this one, or with port 0.
template <typename Hub>
void serve_until_end(const processes::channel& line, const std::string& address) {
  tensorhub::reference_server_options how;
  how.address = address;
  how.catalog.heartbeat_interval = heartbeat_interval;
  how.catalog.worker_timeout = worker_timeout;
  how.catalog.group_timeout = std::chrono::milliseconds{5000};
  how.catalog.recovery_grace = recovery_grace;
  how.catalog.log_decisions = true;
  how.level = tensorhub::log_level::debug;
  how.log = [&line](const tensorhub::log_line& said) {
    try {
      line.say("said " + time_text(bench::now_seconds()) + " " + to_text(said).substr(0, 1000));
    } catch (const std::exception&) {  // the driver is gone, and this process soon
    }
  };
  std::optional<typename Hub::reference_server> server;
  for (int attempt = 0; !server; ++attempt) {
    try {
      server.emplace(how);
    } catch (const tensorhub::error&) {
      if (attempt == 100) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds{20});
    }
  }
  line.say("serving " + time_text(bench::now_seconds()) + " " + server->address());
  while (line.hear() != "end") {
  }
}

/// The same, and what it leaves behind.
template <typename Hub>
void serve(const processes::channel& line, const std::string& address) {
  const belongings before;
  serve_until_end<Hub>(line, address);
  line.say("left 0 " + before.left_over());
}

/// What waits for what, a line each.
template <typename Hub>
void ask_stuck(const processes::channel& line, const std::string& server) {
  tensorhub::worker_options how;
  how.server = server;
  how.model = "policy";
  how.replica = "asker";
  typename Hub::subscriber asker{how};
  for (const auto& one : asker.stuck(std::chrono::seconds{1}, std::chrono::seconds{5}).entries) {
    line.say(one.replica + "/" + std::to_string(one.shard) + " for " + std::to_string(one.waited_ms) +
             " ms, version " + to_string(one.version) + ", waits for " + one.peers + ": " + one.advice);
  }
}

/// Replicas that hold a version completely, a line each.
template <typename Hub>
void ask_holders(const processes::channel& line, const std::string& server, std::uint64_t version) {
  tensorhub::worker_options how;
  how.server = server;
  how.model = "policy";
  how.replica = "asker";
  typename Hub::subscriber asker{how};
  for (const auto& model : asker.list("policy")) {
    for (const auto& replica : model.replicas)
      if (replica.version.value == version) line.say(replica.name);
  }
}

/// One shard of a replica. When the server has declared it dead it is made anew, as an application would.
template <typename Hub, typename Worker>
class member {
 public:
  member(const processes::channel& line, place who, std::string server, std::uint64_t bytes)
      : line_{line}, who_{std::move(who)}, server_{std::move(server)}, weights_{bytes} {
    make();
    std::string files;
    for (const auto inode : nameless_files()) files += " " + std::to_string(inode);
    line_.say("ready 0" + files);
  }

  void obey() {
    obey_until_end();
    worker_.reset();
    line_.say("left 0 " + before_.left_over());
  }

 private:
  void obey_until_end() {
    for (;;) {
      std::istringstream order{line_.hear()};
      std::string word;
      std::uint64_t token = 0, version = 0;
      order >> word >> token >> version;
      if (word == "end") return;
      exactly_ = word == "exactly";
      if (word == "files") {
        tell_files();
        continue;
      }
      while (!obeyed(token, version)) {
      }
    }
  }

  /// False: the worker was declared dead. It, or a new one if another process had its place, is to make the
  /// call that its group waits for.
  bool obeyed(std::uint64_t token, std::uint64_t version) {
    try {
      if (!worker_) make();
      if constexpr (std::is_same_v<Worker, typename Hub::publisher>)
        step(token, version);
      else
        update(token, version);
    } catch (const tensorhub::error& e) {
      const std::string when = time_text(bench::now_seconds());
      const bool returns = e.code() == tensorhub::errc::disconnected;
      const bool again = returns || e.code() == tensorhub::errc::replaced;
      if (again && !returns) worker_.reset();
      lost_at_ = 0;
      line_.say((again ? "again " : "failed ") + std::to_string(token) + " " +
                std::string{to_string(e.code())} + " " + when + " " + std::string{e.what()}.substr(0, 1000));
      return !again;
    }
    return true;
  }

  void make() {
    tensorhub::worker_options how;
    how.server = server_;
    how.model = "policy";
    how.replica = who_.replica;
    how.location.host = who_.replica;  // or readers would not read from each other
    how.shard = {who_.shard, shards};
    how.spot = who_.spot;
    how.join_timeout = call_timeout;
    how.drain_timeout = call_timeout;
    how.request_retry = std::chrono::milliseconds{300};
    how.connect_timeout = peer_timeout;
    how.log = [this](const tensorhub::log_line& said) { noticed(said); };
    how.trace = [this](const tensorhub::chunk_event& seen) { arrived(seen); };
    typename Worker::transport_options through;
    through.peer_timeout = peer_timeout;
    adjust<typename Worker::transport_options>(through);
    worker_.emplace(std::move(how), std::move(through));
    weights_.add_to(*worker_);
    worker_->join();
  }

  void step(std::uint64_t token, std::uint64_t version) {
    double hidden = 0, shown = 0;
    if (worker_->held_version().value != version) {
      hidden = worker_->unpublish(call_timeout).seconds;
      weights_.fill(version, who_.shard);
      shown = worker_->publish(version, call_timeout).seconds;
      if (who_.keeps && version == 1) {
        worker_->retain(2);
        worker_->pin(1);
      }
    }
    line_.say("published " + std::to_string(token) + " " + std::to_string(version) + " " +
              time_text(bench::now_seconds()) + " " + time_text(hidden) + " " + time_text(shown));
  }

  void update(std::uint64_t token, std::uint64_t version) {
    const auto wanted = exactly_ ? tensorhub::exactly(version) : tensorhub::at_least(version);
    const auto done = worker_->update(wanted, call_timeout);
    const double when = bench::now_seconds();
    lost_at_ = 0;
    const bool whole = weights_.holds(done.version.value, who_.shard);
    line_.say("got " + std::to_string(token) + " " + std::to_string(done.version.value) + " " +
              time_text(when) + " " + (whole ? "whole" : "WRONG") + " " + time_text(done.seconds));
  }

  void tell_files() {
    std::string out = "files 0";
    for (const auto inode : nameless_files()) out += " " + std::to_string(inode);
    line_.say(out + " descriptors " + std::to_string(names_in("/proc/self/fd").size()));
  }

  void noticed(const tensorhub::log_line& said) {
    const double when = bench::now_seconds();
    // A copy that this process keeps for others logs here too.
    if (said.about.replica == who_.replica && said.text.starts_with("gave up a source")) {
      const std::lock_guard lock{mutex_};
      if (lost_at_ == 0) {
        waited_before_ = waits_for_cpu();
        lost_at_ = when;
      }
    }
    tell("noticed 0 " + time_text(when) + " " + std::string{to_string(said.about.code)} + " " + said.text);
  }
  void arrived(const tensorhub::chunk_event& seen) {
    if (lost_at_.load(std::memory_order_relaxed) == 0 || seen.status != tensorhub::completion_status::ok)
      return;
    const std::lock_guard lock{mutex_};
    const double lost = lost_at_.exchange(0);
    if (lost == 0) return;
    const double now = bench::now_seconds();
    const double posted = now - std::chrono::duration<double>(seen.arrived - seen.posted).count();
    tell("resumed 0 " + time_text(now) + " " + time_text(lost) + " " + time_text(posted) + " " +
         time_text(longest_wait_since(waited_before_)) + " " + std::string{seen.source});
  }
  void tell(const std::string& text) const {
    try {
      line_.say(text.substr(0, 2000));
    } catch (const std::exception&) {  // the driver is gone, and this process soon
    }
  }

  processes::channel line_;
  place who_;
  std::string server_;
  weights weights_;
  belongings before_{};
  bool exactly_ = false;
  std::mutex mutex_;
  std::map<std::string, double> waited_before_;
  std::atomic<double> lost_at_ = 0;  ///< a source has been given up, and no chunk has come since
  std::optional<Worker> worker_;
};

}  // namespace chaos
