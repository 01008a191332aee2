#pragma once
/// \file cluster.hpp
/// A reference server, trainers and rollouts, each in a process of its own: what bench_fan_out and
/// bench_two_datacenters measure. The process that makes a cluster has no threads and only gives orders.
/// `cluster` is over loopback TCP; a `basic_cluster` over any transport, with options for each process.
///
/// Every process speaks with two reference servers, one per scheduler that is compared, about the same
/// memory. Only one of the two knows of a version at any time: `drop` and `publish` take it from the other.

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <thread>
#include <vector>

#include "baselines/one_to_many.hpp"
#include "harness.hpp"
#include "support/child_process.hpp"

namespace bench {

template <typename Transport>
using mesh_hub = tensorhub::hub<Transport>;
template <typename Transport>
using star_hub = tensorhub::hub<Transport, baselines::one_to_many>;
enum class scheme : std::size_t { mesh, star };

struct process_settings {
  std::string replica{};
  std::string datacenter{};  ///< the server of the star is not told: no seeds there
  std::uint64_t bytes = 0;
  bool traced = false;
  std::size_t far_window_chunks = tensorhub::worker_options{}.far_window_chunks;
  bool own_host = false;  ///< as far as the schedulers know
};

/// How a process reaches the others.
template <typename Transport>
using options_of = std::function<typename Transport::options(const process_settings&)>;

/// Bytes from each source, by "replica/shard".
using bytes_from = std::map<std::string, std::uint64_t>;

/// How one reader's update went.
struct reading {
  double ended = 0;    ///< by the clock that all processes share
  double lost = 0;     ///< when it noticed that a source was gone; zero: it did not
  double pause_s = 0;  ///< the longest time without a new chunk in the second half; if traced
  bytes_from sources{};
  std::string failure{};  ///< empty: it has the version
};

/// One chunk's way into a reader.
struct chunk_record {
  std::uint64_t chunk = 0;
  std::int64_t posted_ns = 0;
  std::int64_t arrived_ns = 0;
  std::string source{};
};

namespace cluster_detail {

inline constexpr std::chrono::seconds patience{120};
inline constexpr std::size_t records_per_line = 40;

[[nodiscard]] inline std::string to_text(const bytes_from& sources) {
  std::ostringstream out;
  for (const auto& [name, bytes] : sources) out << " " << name << " " << bytes;
  return out.str();
}
[[nodiscard]] inline bytes_from sources_from_text(std::istream& in) {
  bytes_from out;
  std::string name;
  for (std::uint64_t bytes = 0; in >> name >> bytes;) out[name] += bytes;
  return out;
}

/// A shard's memory, and who the process is.
struct owner {
  owner(const process_settings& given, const std::array<std::string, 2>& servers)
      : settings{given}, addresses{servers}, memory{given.bytes} {}

  [[nodiscard]] tensorhub::worker_options who(std::size_t which) const {
    tensorhub::worker_options out;
    out.server = addresses[which];
    out.model = "policy";
    out.replica = settings.replica;
    out.far_window_chunks = settings.far_window_chunks;
    if (which == static_cast<std::size_t>(scheme::mesh)) out.location.datacenter = settings.datacenter;
    if (settings.own_host) out.location.host = settings.replica;
    return out;
  }
  template <typename Worker>
  void add_to(Worker& worker) {
    worker.add("weights", memory.data(), {settings.bytes}, tensorhub::dtype::u8);
    worker.join();
  }
  [[nodiscard]] std::string digest() const {
    const XXH128_hash_t value = ::XXH3_128bits(memory.data(), settings.bytes);
    return std::to_string(value.high64) + " " + std::to_string(value.low64);
  }
  [[nodiscard]] std::string common_answer(const std::string& word) const {
    if (word == "cpu") return std::to_string(cpu_seconds());
    if (word == "digest") return digest();
    throw std::runtime_error("unknown order " + word);
  }

  process_settings settings;
  std::array<std::string, 2> addresses;
  tensorhub::host_memory::allocation memory;
};

inline void serve(processes::channel& line) {
  tensorhub::reference_server_options how;
  how.catalog.worker_timeout = std::chrono::milliseconds{1500};
  tensorhub::reference_server<tensorhub::nearest_source> mesh{how};
  tensorhub::reference_server<baselines::one_to_many> star{how};
  line.say(mesh.address() + " " + star.address());
  for (;;) {
    static_cast<void>(line.hear());
    line.say(std::to_string(cpu_seconds()));
  }
}

template <typename Transport>
class trainer {
 public:
  trainer(const process_settings& given, const std::array<std::string, 2>& servers,
          const options_of<Transport>& through)
      : own_{given, servers}, mesh_{own_.who(0), through(given)}, star_{own_.who(1), through(given)} {
    std::uint64_t state = 0;
    for (std::uint64_t at = 0; at + sizeof state <= given.bytes; at += sizeof state) {
      state = (at + 1) * 0x9e3779b97f4a7c15ull;
      std::memcpy(own_.memory.data() + at, &state, sizeof state);
    }
    own_.add_to(mesh_);
    own_.add_to(star_);
  }
  void obey(processes::channel& line) {
    line.say("ready");
    for (;;) {
      std::istringstream order{line.hear()};
      std::string word;
      std::size_t which = 0;
      std::uint64_t version = 0;
      order >> word >> which >> version;
      if (word != "publish") {
        line.say(own_.common_answer(word));
        continue;
      }
      mesh_.unpublish();
      star_.unpublish();
      change_pages({own_.memory.data(), own_.settings.bytes}, version);
      which == 0 ? mesh_.publish(version) : star_.publish(version);
      line.say("published");
    }
  }

 private:
  owner own_;
  typename mesh_hub<Transport>::publisher mesh_;
  typename star_hub<Transport>::publisher star_;
};

template <typename Transport>
class reader {
 public:
  reader(const process_settings& given, const std::array<std::string, 2>& servers,
         const options_of<Transport>& through)
      : own_{given, servers}, mesh_{options(0), through(given)}, star_{options(1), through(given)} {
    std::memset(own_.memory.data(), 1, given.bytes);
    own_.add_to(mesh_);
    own_.add_to(star_);
  }
  void obey(processes::channel& line) {
    line.say("ready");
    for (;;) {
      std::istringstream order{line.hear()};
      std::string word;
      order >> word;
      if (word == "update") {
        line.say(update(line, order));
      } else if (word == "drop") {
        mesh_.unpublish();
        star_.unpublish();
        line.say("dropped");
      } else if (word == "records") {
        tell_records(line);
      } else {
        line.say(own_.common_answer(word));
      }
    }
  }

 private:
  [[nodiscard]] tensorhub::worker_options options(std::size_t which) {
    tensorhub::worker_options out = own_.who(which);
    out.spot = true;
    if (own_.settings.traced) out.trace = [this](const tensorhub::chunk_event& seen) { record(seen); };
    return out;
  }
  void record(const tensorhub::chunk_event& seen) {
    const std::lock_guard lock{mutex_};
    records_.push_back(
        {seen.chunk, seen.posted.nanoseconds, seen.arrived.nanoseconds, std::string{seen.source}});
  }
  /// Before the answer, when it is watched: "half", with the bytes from each source, in the middle.
  [[nodiscard]] std::string update(processes::channel& line, std::istringstream& order) {
    std::size_t which = 0;
    std::uint64_t version = 0;
    bool watched = false;
    order >> which >> version >> watched;
    records_.clear();
    const auto wanted = tensorhub::exactly(version);
    double lost = 0;
    tensorhub::update_report done;
    try {
      if (!watched) {
        done = which == 0 ? mesh_.update(wanted, patience) : star_.update(wanted, patience);
      } else {
        auto running =
            which == 0 ? mesh_.update_async(wanted, patience) : star_.update_async(wanted, patience);
        for (bool said = false; !running.done(); std::this_thread::sleep_for(std::chrono::milliseconds{1})) {
          const auto at = running.progress();
          bytes_from sources;
          for (const auto& source : at.sources) {
            sources[source.name] += source.bytes;
            if (source.lost && lost == 0) lost = now_seconds();
          }
          if (!said && at.bytes * 2 >= at.total_bytes) {
            line.say("half" + to_text(sources));
            said = true;
          }
        }
        done = running.wait(patience);
      }
    } catch (const tensorhub::error& e) {
      return "failed " + std::to_string(now_seconds()) + " " + e.what();
    }
    std::ostringstream out;
    out.precision(12);
    bytes_from sources;
    for (std::size_t i = 0; i < done.sources.size(); ++i) sources[done.sources[i]] += done.source_bytes[i];
    out << "done " << now_seconds() << " " << lost << " " << longest_pause() << to_text(sources);
    return out.str();
  }
  [[nodiscard]] double longest_pause() {
    const std::lock_guard lock{mutex_};
    std::vector<std::int64_t> arrivals;
    for (const chunk_record& one : records_) arrivals.push_back(one.arrived_ns);
    std::ranges::sort(arrivals);
    std::int64_t longest = 0;
    for (std::size_t i = arrivals.size() / 2 + 1; i < arrivals.size(); ++i)
      longest = std::max(longest, arrivals[i] - arrivals[i - 1]);
    return static_cast<double>(longest) * 1e-9;
  }
  /// Some per line, and an empty one at the end.
  void tell_records(processes::channel& line) {
    const std::lock_guard lock{mutex_};
    for (std::size_t begin = 0; begin < records_.size(); begin += records_per_line) {
      std::ostringstream out;
      for (std::size_t i = begin; i < std::min(records_.size(), begin + records_per_line); ++i) {
        const chunk_record& one = records_[i];
        out << one.chunk << " " << one.posted_ns << " " << one.arrived_ns << " " << one.source << " ";
      }
      line.say(out.str());
    }
    line.say("end");
  }

  owner own_;
  std::mutex mutex_;
  std::vector<chunk_record> records_;
  typename mesh_hub<Transport>::subscriber mesh_;
  typename star_hub<Transport>::subscriber star_;
};

}  // namespace cluster_detail

template <typename Transport>
class basic_cluster {
 public:
  basic_cluster(
      const std::vector<process_settings>& trainers, const std::vector<process_settings>& readers,
      const options_of<Transport>& through =
          [](const process_settings&) { return typename Transport::options{}; })
      : server_{cluster_detail::serve}, reader_settings_{readers} {
    std::istringstream said{server_.line().hear()};
    std::array<std::string, 2> servers;
    said >> servers[0] >> servers[1];
    for (const auto& settings : trainers)
      start<cluster_detail::trainer<Transport>>(trainers_, settings, servers, through);
    for (const auto& settings : readers)
      start<cluster_detail::reader<Transport>>(readers_, settings, servers, through);
    for (const auto* group : {&trainers_, &readers_})
      for (const auto& one : *group) static_cast<void>(one->line().hear());
  }

  [[nodiscard]] std::size_t size() const { return readers_.size(); }
  [[nodiscard]] const processes::child_process& trainer(std::size_t i) const { return *trainers_[i]; }
  [[nodiscard]] const processes::child_process& reader(std::size_t i) const { return *readers_[i]; }

  /// All readers let go of what they hold, then all trainers have a new version.
  void publish(scheme which) {
    which_ = which;
    ++version_;
    for (const auto& one : readers_) static_cast<void>(one->ask("drop"));
    for (const auto& one : trainers_)
      static_cast<void>(one->ask("publish " + std::to_string(static_cast<std::size_t>(which)) + " " +
                                 std::to_string(version_)));
  }
  /// All readers begin. Returns when; their answers must be heard.
  double begin_update(bool watched = false) const {
    const double started = now_seconds();
    for (const auto& one : readers_)
      one->line().say("update " + std::to_string(static_cast<std::size_t>(which_)) + " " +
                      std::to_string(version_) + " " + (watched ? "1" : "0"));
    return started;
  }
  /// What a reader has, and from whom, in the middle of a watched update; nothing within this time: none.
  /// An update that ends before it was told of the middle is an error.
  [[nodiscard]] std::optional<bytes_from> half_of(std::size_t i, int patience_ms) const {
    if (!readers_[i]->line().ready(std::chrono::milliseconds{patience_ms})) return std::nullopt;
    std::istringstream said{readers_[i]->line().hear()};
    std::string word;
    said >> word;
    if (word != "half") throw std::runtime_error("an update ended too early: " + said.str());
    return cluster_detail::sources_from_text(said);
  }
  [[nodiscard]] reading end_of(std::size_t i) const {
    for (;;) {
      std::istringstream said{readers_[i]->line().hear()};
      std::string word;
      said >> word;
      if (word == "half") continue;
      reading out;
      said >> out.ended;
      if (word != "done") {
        std::getline(said, out.failure);
        std::fprintf(stderr, "%s:%s\n", reader_settings_[i].replica.c_str(), out.failure.c_str());
        return out;
      }
      said >> out.lost >> out.pause_s;
      out.sources = cluster_detail::sources_from_text(said);
      return out;
    }
  }
  /// How many readers' memories are the trainer's, byte by byte; `but` has been killed.
  [[nodiscard]] double right_digests(std::optional<std::size_t> but = std::nullopt) const {
    const std::string expected = trainers_.front()->ask("digest");
    double right = 0;
    for (std::size_t i = 0; i < readers_.size(); ++i)
      if (i != but && readers_[i]->ask("digest") == expected) ++right;
    return right;
  }
  [[nodiscard]] double cpu() const {
    double sum = cpu_of(server_);
    for (const auto* group : {&trainers_, &readers_})
      for (const auto& one : *group) sum += cpu_of(*one);
    return sum;
  }
  /// Of a traced reader's last update.
  [[nodiscard]] std::vector<chunk_record> records_of(std::size_t i) const {
    std::vector<chunk_record> out;
    const processes::channel line = readers_[i]->line();
    line.say("records");
    for (std::string text = line.hear(); text != "end"; text = line.hear()) {
      std::istringstream in{text};
      for (chunk_record one; in >> one.chunk >> one.posted_ns >> one.arrived_ns >> one.source;)
        out.push_back(one);
    }
    return out;
  }

 private:
  template <typename Role>
  static void start(std::vector<std::unique_ptr<processes::child_process>>& group,
                    const process_settings& settings, const std::array<std::string, 2>& servers,
                    const options_of<Transport>& through) {
    group.push_back(std::make_unique<processes::child_process>([&](processes::channel& line) {
      Role{settings, servers, through}.obey(line);
    }));
  }

  processes::child_process server_;
  std::vector<process_settings> reader_settings_;
  std::vector<std::unique_ptr<processes::child_process>> trainers_;
  std::vector<std::unique_ptr<processes::child_process>> readers_;
  scheme which_ = scheme::mesh;
  std::uint64_t version_ = 0;
};
using cluster = basic_cluster<tensorhub::transports::tcp>;

/// Of the sources whose names begin so.
[[nodiscard]] inline double bytes_of(const bytes_from& sources, const std::string& beginning) {
  double sum = 0;
  for (const auto& [name, bytes] : sources)
    if (name.rfind(beginning, 0) == 0) sum += static_cast<double>(bytes);
  return sum;
}

}  // namespace bench
