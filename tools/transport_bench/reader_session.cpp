// The reader's side: the sweep.

#include <tensorhub/detail/random_id.hpp>
#include <tensorhub/error.hpp>

#include "messages.hpp"
#include "session.hpp"

namespace transport_bench {

namespace {

channel::deadline in_seconds(double seconds) {
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                std::chrono::duration<double>(seconds));
}

/// One transport of the sweep, as far as it runs here.
struct contender {
  const contender_choice* choice = nullptr;
  source_description source{};
  std::unique_ptr<bench_reader> reader{};
  std::vector<latency_samples> latencies{};  // of the row that is being measured
  result_row row{};
};

class sweep {
 public:
  sweep(channel& control, const settings& how)
      : control_{control}, how_{how}, target_{how.memory, how.regions, how.region_bytes} {}

  results run() {
    found_.date = utc_date();
    found_.program = program_facts();
    found_.reader = machine_facts(control_.local_host());
    meet_source();
    const double first_touch = target_.touch();
    found_.reader_touch = {first_touch, target_.touch()};
    clear_target(target_);
    print_head(how_, found_);
    for (const std::uint64_t streams : how_.streams) {
      make_readers(streams);
      for (const std::uint64_t threads : how_.threads) {
        connect_all(streams, threads);
        for (const std::uint64_t depth : how_.depths) {
          for (const std::uint64_t size : how_.sizes) {
            measure(streams, threads, depth, size);
            if (found_.validation.wrong) return finish();
          }
        }
        for (auto& each : contenders_) each.reader->disconnect();
      }
    }
    return finish();
  }

 private:
  results finish() {
    for (auto& each : contenders_) each.reader.reset();
    control_.send(json{{"type", "done"}}.dump(), in_seconds(how_.timeout_seconds));
    static_cast<void>(receive_message(control_, "bye", in_seconds(how_.timeout_seconds)));
    for (const auto& each : contenders_) found_.labels.push_back(each.choice->label);
    found_.fits = fit_all(found_.rows);
    return std::move(found_);
  }

  [[nodiscard]] double allowance() const { return allowance_seconds(target_.bytes()); }

  /// The hello and its answer.
  void meet_source() {
    json labels = json::array();
    for (const auto& each : how_.contenders) labels.push_back(each.label);
    const bool corrupt_source = how_.corrupt == corruption::source;
    const double round =
        std::max(how_.iterations > 0 ? max_round_seconds : how_.round_seconds(), how_.warm_up_seconds);
    control_.send(
        json{{"type", "hello"},
             {"version", tensorhub_version()},
             {"transports", labels},
             {"regions", how_.regions},
             {"region_bytes", how_.region_bytes},
             {"memory", how_.memory == memory_choice::plain ? "plain" : "file"},
             {"seed", how_.seed},
             {"corrupt_offset", corrupt_source ? static_cast<std::int64_t>(how_.sizes.front() / 2) : -1},
             {"silence_seconds", 2 * round + 4 * how_.timeout_seconds + 2 * allowance()}}
            .dump(),
        in_seconds(how_.timeout_seconds));
    try {
      read_ready(receive_message(control_, "ready", in_seconds(how_.timeout_seconds + allowance())));
    } catch (const json::exception&) {
      throw channel_error(control_.peer() + " sent an answer that is not understood");
    }
    if (contenders_.empty()) throw channel_error("no transport is left to measure");
  }

  void read_ready(const json& ready) {
    const json& transports = ready.at("transports");
    if (!transports.is_array() || transports.size() != how_.contenders.size())
      throw channel_error(control_.peer() + " answered for other transports than it was asked for");
    for (const auto& [name, value] : ready.at("environment").items())
      found_.source.emplace_back(name, value.get<std::string>());
    found_.source_touch = {ready.at("first_touch_seconds").get<double>(),
                           ready.at("second_touch_seconds").get<double>()};
    for (std::size_t i = 0; i < transports.size(); ++i) {
      const contender_choice& choice = how_.contenders[i];
      if (transports[i].contains("error")) {
        leave_out(choice.label, "at the source: " + transports[i].at("error").get<std::string>());
        continue;
      }
      contender one;
      one.choice = &choice;
      one.source.address.text = transports[i].at("address").get<std::string>();
      one.source.self.value = transports[i].at("incarnation").get<std::uint64_t>();
      one.source.create_seconds = transports[i].at("create_seconds").get<double>();
      one.source.register_seconds = transports[i].at("register_seconds").get<double>();
      for (const json& region : transports[i].at("regions"))
        one.source.regions.push_back(region_from(region));
      if (one.source.regions.size() != how_.regions)
        throw channel_error(control_.peer() + " has another number of regions than it was asked for");
      contenders_.push_back(std::move(one));
    }
  }

  static std::string tensorhub_version() {
    for (const auto& [name, value] : program_facts())
      if (name == "version") return value;
    return {};
  }

  /// With --all, what does not run here is a line of the report; else it ends the program.
  void leave_out(const std::string& label, const std::string& reason) {
    if (!how_.all) throw channel_error(label + " cannot run, " + reason);
    found_.left_out.emplace_back(label, reason);
  }

  /// `work` returns nothing; a contender for which it throws is left out.
  template <typename Work>
  void for_each_contender(const Work& work) {
    for (auto at = contenders_.begin(); at != contenders_.end();) {
      try {
        work(*at);
        ++at;
      } catch (const tensorhub::error& e) {
        const std::string label = at->choice->label;
        at = contenders_.erase(at);
        leave_out(label, "at the reader: " + e.sentence());
      }
    }
    if (contenders_.empty()) throw channel_error("no transport is left to measure");
  }

  /// Reader transports of so many streams; registers the target.
  void make_readers(std::uint64_t streams) {
    for_each_contender([&](contender& one) {
      one.reader.reset();
      party_settings own;
      own.options = one.choice->options;
      own.host = control_.local_host();
      own.peer_timeout = std::chrono::milliseconds{static_cast<std::int64_t>(how_.timeout_seconds * 1000)};
      own.streams = one.choice->kind->streams_are.empty() ? 1 : streams;
      own.self = tensorhub::detail::random_id<tensorhub::incarnation>();
      one.reader = one.choice->kind->make_reader(own);
      setup_row costs;
      costs.label = one.choice->label;
      costs.streams = streams;
      costs.source_create_seconds = one.source.create_seconds;
      costs.source_register_seconds = one.source.register_seconds;
      costs.reader_register_seconds = one.reader->register_targets(target_.ranges());
      found_.setup.push_back(costs);
    });
  }

  [[nodiscard]] setup_row& setup_of(const contender& one, std::uint64_t streams) {
    for (auto& each : found_.setup)
      if (each.label == one.choice->label && each.streams == streams) return each;
    throw std::logic_error("no set-up row");
  }

  void connect_all(std::uint64_t streams, std::uint64_t threads) {
    const std::chrono::nanoseconds patience{static_cast<std::int64_t>(how_.timeout_seconds * 1e9)};
    for_each_contender([&](contender& one) {
      const auto seconds = one.reader->connect(one.source, threads, how_.depths.back(), patience);
      setup_row& costs = setup_of(one, streams);
      const bool first = costs.first_connect_seconds == 0;
      if (first) costs.first_connect_seconds = seconds.front();
      costs.later_connects.insert(costs.later_connects.end(), seconds.begin() + (first ? 1 : 0),
                                  seconds.end());
      round_plan plan = plan_of(1, how_.sizes.front());
      plan.reads_per_thread = 1;
      const round_figures reads = one.reader->run(plan);
      if (first) {
        const auto latency = latency_samples::merge(std::span{reads.latencies}.first(1));
        costs.first_read_seconds = latency.average;
      }
    });
  }

  [[nodiscard]] round_plan plan_of(std::uint64_t depth, std::uint64_t size) const {
    round_plan plan;
    plan.size = size;
    plan.depth = depth;
    plan.busy_poll = how_.busy_poll;
    plan.seconds = how_.round_seconds();
    plan.reads_per_thread =
        how_.iterations == 0 ? 0 : std::max<std::uint64_t>(1, how_.iterations / how_.rounds);
    plan.silence_seconds = how_.timeout_seconds + 5;
    plan.limit_seconds = max_round_seconds;
    return plan;
  }

  [[nodiscard]] double source_cpu() {
    control_.send(json{{"type", "cpu"}}.dump(), in_seconds(how_.timeout_seconds));
    const json answer = receive_message(control_, "cpu", in_seconds(how_.timeout_seconds));
    const auto seconds = answer.find("seconds");
    if (seconds == answer.end() || !seconds->is_number())
      throw channel_error(control_.peer() + " did not tell its CPU time");
    return seconds->get<double>();
  }

  [[nodiscard]] round_figures run_reads(contender& one, const round_plan& plan) {
    try {
      return one.reader->run(plan);
    } catch (const std::runtime_error& e) {
      // A source that is killed closes the control connection, too, once the kernel has its memory back.
      const bool has_ended = control_.speaks_within(std::chrono::milliseconds{1000});
      throw channel_error(e.what() + (has_ended ? "; " + control_.peer() + " has ended or was killed" : ""));
    }
  }

  /// One row for each contender. They take turns within a round, and every round begins with another one.
  void measure(std::uint64_t streams, std::uint64_t threads, std::uint64_t depth, std::uint64_t size) {
    for (auto& one : contenders_) {
      one.row = {};
      one.row.label = one.choice->label;
      one.row.streams = streams;
      one.row.threads = threads;
      one.row.depth = depth;
      one.row.size = size;
      one.latencies.clear();
      if (how_.warm_up_seconds > 0) {
        round_plan plan = plan_of(depth, size);
        plan.seconds = how_.warm_up_seconds;
        plan.reads_per_thread = 0;
        static_cast<void>(run_reads(one, plan));
      }
      one.reader->restart_walk();
    }
    for (std::uint64_t round = 0; round < how_.rounds; ++round) {
      for (std::size_t i = 0; i < contenders_.size(); ++i) {
        run_round(contenders_[(i + round) % contenders_.size()], plan_of(depth, size));
        if (found_.validation.wrong) return;
      }
    }
    for (auto& one : contenders_) {
      one.row.latency = latency_samples::merge(one.latencies);
      found_.rows.push_back(std::move(one.row));
    }
  }

  void run_round(contender& one, const round_plan& plan) {
    if (how_.validate) {
      clear_target(target_);
      one.reader->restart_walk();
    }
    const double source_before = source_cpu();
    const double reader_before = cpu_seconds();
    round_figures seen = run_reads(one, plan);
    one.row.reader_cpu_seconds += cpu_seconds() - reader_before;
    one.row.source_cpu_seconds += source_cpu() - source_before;
    one.row.reads += seen.reads;
    one.row.seconds += seen.seconds;
    one.row.bytes_per_second.push_back(static_cast<double>(seen.bytes) / seen.seconds);
    for (auto& each : seen.latencies) one.latencies.push_back(std::move(each));
    if (how_.validate) validate(one, plan);
  }

  void validate(contender& one, const round_plan& plan) {
    if (how_.corrupt == corruption::target) target_.ranges().front().data[plan.size / 2] ^= std::byte{0x10};
    target_check check{target_, how_.seed, plan.size};
    check.mark(one.reader->walked());
    const wrong_bytes wrong = check.run();
    ++found_.validation.rounds;
    found_.validation.places += check.checked_places();
    if (wrong.count == 0) return;
    found_.validation.wrong = wrong;
    found_.validation.wrong_where =
        one.choice->label + ", reads of " + size_text(plan.size) + ", depth " + std::to_string(plan.depth);
  }

  channel& control_;
  const settings& how_;
  results found_;
  arena target_;
  std::vector<contender> contenders_;  // go before the memory that they have registered
};

}  // namespace

results run_sweep(channel& control, const settings& how) {
  const std::uint64_t sides = how.part == role::both ? 2 : 1;
  const std::uint64_t needed = sides * how.regions * how.region_bytes;
  const std::uint64_t available = available_memory_bytes();
  try {
    if (available > 0 && needed > available) {
      throw channel_error("the regions take " + std::to_string(needed >> 20) + " MiB, and " +
                          std::to_string(available >> 20) + " MiB are available: make --region smaller");
    }
    return sweep{control, how}.run();
  } catch (const std::exception& e) {
    try {
      control.send(json{{"type", "gave_up"}, {"sentence", e.what()}}.dump(), in_seconds(1));
    } catch (const channel_error&) {  // the first sentence is the one to tell
    }
    throw;
  }
}

}  // namespace transport_bench
