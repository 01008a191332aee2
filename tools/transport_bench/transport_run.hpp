#pragma once
/// \file transport_run.hpp
/// Both sides of a measurement over any transport. One .cpp per transport instantiates it (`make_kind`).
///
/// A transport takes part with a traits class:
///
///     struct my_traits {
///       using transport = tensorhub::transports::mine;
///       static constexpr std::string_view summary = "what it is, in a line";
///       static constexpr std::string_view streams_are = "connections per endpoint";   // or empty
///       static option_table<transport::options> table();                             // for --set
///       static void prepare(transport::options&, const party_settings&);   // host, streams, time-out
///     };
///
/// `prepare` runs first and the user's options win over it.

#include <array>
#include <atomic>
#include <latch>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>

#include "contender.hpp"
#include "tensorhub/concepts/transport.hpp"

namespace transport_bench {

using clock = std::chrono::steady_clock;

[[nodiscard]] inline double seconds_between(clock::time_point begin, clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

template <typename Traits>
[[nodiscard]] typename Traits::transport::options options_of(const party_settings& settings) {
  return Traits::table().make(settings.options, [&](auto& options) { Traits::prepare(options, settings); });
}

template <typename Traits>
class source_of final : public bench_source {
 public:
  using transport = typename Traits::transport;
  static_assert(tensorhub::transport<transport>);

  explicit source_of(const party_settings& settings) : self_{settings.self} {
    const auto started = clock::now();
    through_.emplace(options_of<Traits>(settings), settings.self);
    create_seconds_ = seconds_between(started, clock::now());
  }

  source_description expose(std::span<const tensorhub::memory_range> ranges) override {
    const auto started = clock::now();
    regions_ = through_->register_memory(ranges, tensorhub::region_access::remote_read);
    source_description out{
        through_->address(), self_, {}, create_seconds_, seconds_between(started, clock::now())};
    for (const auto& region : regions_) out.regions.push_back(through_->describe(region));
    return out;
  }

 private:
  tensorhub::incarnation self_;
  double create_seconds_ = 0;
  std::optional<transport> through_;
  std::vector<typename transport::memory_region> regions_;  // go before the transport
};

template <typename Traits>
class reader_of final : public bench_reader {
 public:
  using transport = typename Traits::transport;

  explicit reader_of(const party_settings& settings)
      : through_{std::make_unique<transport>(options_of<Traits>(settings), settings.self)} {}

  double register_targets(std::span<const tensorhub::memory_range> ranges) override {
    const auto started = clock::now();
    targets_ = through_->register_memory(ranges, tensorhub::region_access::local_write);
    return seconds_between(started, clock::now());
  }

  std::vector<double> connect(const source_description& source, std::size_t threads, std::size_t depth,
                              std::chrono::nanoseconds timeout) override {
    source_ = source;
    std::vector<double> seconds;
    for (std::size_t i = 0; i < threads; ++i) {
      const auto started = clock::now();
      auto queue = through_->make_queue(depth);
      auto endpoint = through_->connect(queue, source.address, source.self, timeout);
      seconds.push_back(seconds_between(started, clock::now()));
      lanes_.push_back(std::make_unique<lane>(std::move(queue), std::move(endpoint)));
    }
    return seconds;
  }
  void disconnect() noexcept override { lanes_.clear(); }

  round_figures run(const round_plan& plan) override {
    std::latch everybody{static_cast<std::ptrdiff_t>(lanes_.size())};
    failed_ = false;
    round_figures out;
    std::vector<lane_result> results(lanes_.size());
    {
      std::vector<std::jthread> helpers;
      for (std::size_t i = 1; i < lanes_.size(); ++i) {
        helpers.emplace_back([&, i] {
          everybody.arrive_and_wait();
          results[i] = run_lane(i, plan);
        });
      }
      everybody.arrive_and_wait();
      results[0] = run_lane(0, plan);
    }
    if (failed_) throw std::runtime_error(failure_);
    clock::time_point begin = results[0].begin;
    clock::time_point end = results[0].end;
    for (lane_result& each : results) {
      begin = std::min(begin, each.begin);
      end = std::max(end, each.end);
      out.reads += each.latencies.count();
      out.latencies.push_back(std::move(each.latencies));
    }
    out.bytes = out.reads * plan.size;
    out.seconds = seconds_between(begin, end);
    return out;
  }

  void restart_walk() override {
    for (auto& each : lanes_) each->walked = 0;
  }
  std::vector<std::uint64_t> walked() const override {
    std::vector<std::uint64_t> out;
    for (const auto& each : lanes_) out.push_back(each->walked);
    return out;
  }

 private:
  /// One thread's part. The endpoint goes before its queue.
  struct lane {
    lane(typename transport::queue&& q, typename transport::endpoint&& e)
        : queue{std::move(q)}, endpoint{std::move(e)} {}
    typename transport::queue queue;
    typename transport::endpoint endpoint;
    std::uint64_t walked = 0;
  };
  struct lane_result {
    clock::time_point begin{};
    clock::time_point end{};
    latency_samples latencies{};
  };

  /// Stops all threads of the round; the first sentence is the one that is told.
  void fail(const std::string& sentence) {
    const std::lock_guard lock{failure_mutex_};
    if (!failed_) failure_ = sentence;
    failed_ = true;
  }

  lane_result run_lane(std::size_t index, const round_plan& plan) {
    lane& own = *lanes_[index];
    const std::uint64_t places_per_region = targets_.front().range().bytes / plan.size;
    const std::uint64_t places = places_per_region * targets_.size();
    const auto limit =
        std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(plan.seconds));
    const auto patience =
        std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(plan.silence_seconds));
    std::vector<clock::time_point> posted(plan.depth);  // by request id; an id is free again once completed
    std::vector<std::size_t> free(plan.depth);
    for (std::size_t i = 0; i < plan.depth; ++i) free[i] = plan.depth - 1 - i;
    std::vector<bool> busy(plan.depth, false);
    std::array<tensorhub::completion, 64> completions;
    lane_result out;
    out.begin = clock::now();
    out.end = out.begin;
    clock::time_point now = out.begin;
    std::uint64_t started = 0;
    bool stopping = false;
    while (!failed_.load(std::memory_order_relaxed)) {
      while (!stopping && !free.empty()) {
        const std::uint64_t place = (own.walked * lanes_.size() + index) % places;
        const std::uint64_t region = place / places_per_region;
        const std::uint64_t offset = place % places_per_region * plan.size;
        const std::size_t id = free.back();
        posted[id] = clock::now();
        if (own.queue.post_read(own.endpoint, targets_[region], offset,
                                {&source_.regions[region], offset, plan.size},
                                id) == tensorhub::post_result::queue_full)
          break;
        free.pop_back();
        busy[id] = true;
        ++own.walked;
        ++started;
        now = posted[id];
        stopping = plan.reads_per_thread > 0 ? started >= plan.reads_per_thread : now - out.begin >= limit;
      }
      if (free.size() == plan.depth && stopping) break;
      const std::size_t count = own.queue.poll(completions);
      if (count > 0) {
        out.end = clock::now();
        for (std::size_t i = 0; i < count; ++i) {
          const std::uint64_t id = completions[i].id;
          if (completions[i].status != tensorhub::completion_status::ok) {
            fail("a read of " + size_text(plan.size) + " by " + std::string{transport::name} + " from " +
                 source_.address.text + " ended with '" + std::string{to_string(completions[i].status)} +
                 "'");
            return out;
          }
          if (id >= plan.depth || !busy[id]) {
            fail(std::string{transport::name} + " completed a read that was not outstanding");
            return out;
          }
          busy[id] = false;
          free.push_back(static_cast<std::size_t>(id));
          out.latencies.add(seconds_between(posted[id], out.end));
        }
        continue;
      }
      if (!plan.busy_poll) own.queue.wait(std::chrono::milliseconds{100});
      const auto idle_at = clock::now();
      if (seconds_between(out.begin, idle_at) > plan.limit_seconds) {
        fail("a round of reads took longer than " + std::to_string(static_cast<long>(plan.limit_seconds)) +
             " s: ask for fewer --iterations, or more --rounds");
        return out;
      }
      if (idle_at - std::max(out.end, now) > patience) {
        fail("no read of " + size_text(plan.size) + " from " + source_.address.text + " by " +
             std::string{transport::name} + " completed within " +
             std::to_string(static_cast<long>(plan.silence_seconds)) + " s");
        return out;
      }
    }
    return out;
  }

  std::unique_ptr<transport> through_;
  std::vector<typename transport::memory_region> targets_;
  source_description source_;
  std::vector<std::unique_ptr<lane>> lanes_;  // go before the regions that they read into
  std::atomic<bool> failed_ = false;
  std::mutex failure_mutex_;
  std::string failure_;
};

template <typename Traits>
[[nodiscard]] transport_kind make_kind() {
  transport_kind out;
  out.name = Traits::transport::name;
  out.built = true;
  out.streams_are = Traits::streams_are;
  out.summary = Traits::summary;
  out.options = Traits::table().help();
  out.make_source = [](const party_settings& settings) -> std::unique_ptr<bench_source> {
    return std::make_unique<source_of<Traits>>(settings);
  };
  out.make_reader = [](const party_settings& settings) -> std::unique_ptr<bench_reader> {
    return std::make_unique<reader_of<Traits>>(settings);
  };
  out.check = [](const option_values& values) {
    static_cast<void>(Traits::table().make(values, [](auto&) {}));
  };
  return out;
}

}  // namespace transport_bench
