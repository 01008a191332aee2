#pragma once
/// \file round.hpp
/// One round: a server, a trainer of two shards and some rollouts of two shards, each shard in a process of
/// its own, exchange versions without a pause; at a random moment one process gets SIGKILL or SIGSTOP. A
/// killed one is started again after a while, a stopped one goes on; then everybody must come to a version
/// that did not exist before. All that is random follows from the seed; when exactly a signal meets the
/// others does not.
///
/// With retention, version 1 is pinned and the latest two are kept; one rollout is a spot worker. When nobody
/// shows version 1 any more, whose host memory has it is asked, and then comes the signal. In the end two
/// archivists ask for it and for the version before the last. The pinned one may be gone if the victim had it
/// (then that must be said by name); nothing else may be.

#include <poll.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "members.hpp"

namespace chaos {

enum class victim_kind { reader, source, shard, trainer, server };
inline constexpr std::array victim_kinds{victim_kind::reader, victim_kind::source, victim_kind::shard,
                                         victim_kind::trainer, victim_kind::server};
[[nodiscard]] inline std::string to_string(victim_kind kind) {
  return std::array{"reader", "source", "shard", "trainer", "server"}[static_cast<std::size_t>(kind)];
}

struct fault {
  victim_kind kind = victim_kind::reader;
  bool stop = false;       ///< SIGSTOP; else SIGKILL
  double wait_s = 0;       ///< after everybody has the second version
  double further_s = 0;    ///< after the first moment at which there is such a victim
  double absent_s = 0;     ///< until it is started again, or goes on
  std::uint64_t pick = 0;  ///< which one, if there are several

  [[nodiscard]] static fault from(std::uint64_t seed) {
    std::mt19937_64 bits{seed * 0x9e3779b97f4a7c15ull + 1};
    const auto upto = [&bits](double most) { return static_cast<double>(bits() >> 11) * 0x1p-53 * most; };
    fault out;
    out.kind = victim_kinds[seed % victim_kinds.size()];
    out.stop = seed / victim_kinds.size() % 2 == 1;
    out.wait_s = upto(0.5);
    out.further_s = upto(0.05);
    const bool beyond = out.stop && bits() % 2 == 0;  // longer than a worker may be silent
    const double timeout_s = std::chrono::duration<double>(worker_timeout).count();
    out.absent_s = beyond ? timeout_s * 1.2 + upto(0.7) : upto(out.stop ? timeout_s * 0.8 : 0.4);
    out.pick = bits();
    return out;
  }
  /// Row of the table.
  [[nodiscard]] std::string name() const {
    if (!stop) return "kill -9 of a " + to_string(kind);
    const bool beyond = absent_s > std::chrono::duration<double>(worker_timeout).count();
    return "SIGSTOP of a " + to_string(kind) + (beyond ? ", beyond the time-out" : ", short");
  }
};

struct setting {
  std::uint64_t bytes = 32u << 20;  ///< of a shard
  std::size_t rollouts = 3;
  bool retention = false;
  bool calm = true;  ///< the machine is, and so nothing may fail before the signal
};

/// From a reader's detection of a lost source to its next chunk.
struct resumption {
  enum class whose : std::uint8_t {
    holder_there,  ///< somebody had everything, all the time
    holder_back,   ///< nobody had, and then somebody: counted from then
    peers_only,    ///< nobody has: from other readers
  };
  whose kind = whose::holder_there;
  double seconds = 0;
  double until_posted_s = 0;  ///< of that, until the chunk was asked for
  double cpu_wait_s = 0;      ///< that one thread of the reader waited for a processor
};

struct round_result {
  std::uint64_t seed = 0;
  fault what{};
  std::string victim{}, moment{};
  std::vector<std::pair<std::string, double>> noticed{};  ///< by whom, seconds after the signal
  std::vector<resumption> resumed{};
  std::optional<double> next_s{};  ///< from the signal (server: from the new one's start) to an update's end
  double healed_s = 0;             ///< from the victim's return until everybody has a new version
  double stall_s = 0;              ///< the longest unpublish after the signal
  std::map<std::string, std::size_t> outcomes{};
  std::vector<std::string> problems{};
  std::deque<std::string> events{};
};

template <typename Hub>
class round {
 public:
  round(std::uint64_t seed, const setting& how) : how_{how} {
    result_.seed = seed;
    result_.what = fault::from(seed);
  }

  [[nodiscard]] round_result run() {
    const surroundings before;
    try {
      live();
    } catch (const std::exception& e) {
      problem(e.what());
    }
    server_.reset();
    seats_.clear();
    if (const std::string left = before.left_over(); !left.empty()) problem("left over: " + left);
    return std::move(result_);
  }

 private:
  struct seat {
    place who{};
    bool trainer = false;
    std::unique_ptr<child_process> runs{};  ///< null: killed
    bool ready = false, busy = false, stopped = false, told_files = false;
    bool again = false;                  ///< was declared dead, and makes its call again
    std::uint64_t token = 0, least = 0;  ///< of the last order
    std::uint64_t version = 0;           ///< that it has said it has; of the last order
    double asked = 0;
    std::set<std::uint64_t> files{};
    [[nodiscard]] bool idle() const { return ready && !busy && runs; }
  };
  static constexpr double hold_s = 0.12;  ///< a version is shown for so long at least

  void live() {
    start_server("tcp://127.0.0.1:0");
    pump_until("the server", [&] { return !address_.empty(); });
    seats_.resize((how_.rollouts + 1) * shards);
    for (std::size_t i = 0; i < seats_.size(); ++i) {
      seats_[i].trainer = i < shards;
      seats_[i].who.replica = i < shards ? "trainer" : "rollout-" + std::to_string(i / shards - 1);
      seats_[i].who.shard = static_cast<std::uint32_t>(i % shards);
      seats_[i].who.keeps = how_.retention && i == 0;
      seats_[i].who.spot = how_.retention && i / shards == how_.rollouts;
      start(seats_[i]);
    }
    pump_until("everybody to join",
               [&] { return std::ranges::all_of(seats_, [](const seat& s) { return s.ready; }); });
    driving_ = true;
    pump_until("the second version", [&] { return everybody_has(2); });
    if (how_.retention) settle_pinned();
    pump_for(result_.what.wait_s);
    pump_until("a victim", [&] { return !victims().empty(); });
    pump_for(result_.what.further_s);
    strike();
    pump_for(result_.what.absent_s);
    restore();
    const double back = bench::now_seconds();
    const std::uint64_t wanted = version_ + 1;
    pump_until("everybody to have version " + std::to_string(wanted), [&] { return everybody_has(wanted); });
    result_.healed_s = bench::now_seconds() - back;
    if (how_.retention) {  // the version before the last is then one of after the victim's return
      const std::uint64_t next = version_ + 1;
      pump_until("everybody to have version " + std::to_string(next), [&] { return everybody_has(next); });
    }
    finishing_ = true;
    pump_until("the last orders",
               [&] { return std::ranges::all_of(seats_, [](const seat& s) { return s.idle(); }); });
    driving_ = false;
    look_at_files();
    if (how_.retention) ask_archivists();
    for (auto group = seats_.rbegin(); group != seats_.rend(); ++group) end(*group->runs, group->who.name());
    end(*server_, "server");
  }

  // ---- processes

  [[nodiscard]] std::vector<int> descriptors() const {
    std::vector<int> out;
    if (server_) out.push_back(server_->line().descriptor());
    for (const seat& s : seats_)
      if (s.runs) out.push_back(s.runs->line().descriptor());
    return out;
  }
  void start_server(const std::string& address) {
    server_ = std::make_unique<child_process>(
        [&](const processes::channel& line) { serve<Hub>(line, address); }, descriptors());
    server_ready_ = false;
  }
  void start(seat& s) {
    s.ready = s.busy = s.stopped = s.again = false;
    s.version = 0;
    s.runs = std::make_unique<child_process>(
        [&](const processes::channel& line) {
          if (s.trainer)
            member<Hub, typename Hub::publisher>{line, s.who, address_, how_.bytes}.obey();
          else
            member<Hub, typename Hub::subscriber>{line, s.who, address_, how_.bytes}.obey();
        },
        descriptors());
  }
  void end(child_process& one, const std::string& name) {
    one.line().try_say("end");
    const double until = bench::now_seconds() + 10;
    for (;;) {
      pollfd entry{one.line().descriptor(), POLLIN, 0};
      ::poll(&entry, 1, 100);
      if (entry.revents != 0) {
        const auto line = one.line().try_hear();
        if (!line) break;
        if (line->starts_with("left 0 ") && line->size() > 7)
          problem(name + " does not give back " + line->substr(7));
      }
      if (bench::now_seconds() > until) return problem(name + " does not end");
    }
    if (const std::string how = one.how_it_ended(); how != "ended with status 0") problem(name + " " + how);
  }

  // ---- the fault

  /// What may be struck now.
  [[nodiscard]] std::vector<seat*> victims() {
    std::vector<seat*> out;
    std::array<bool, shards> read{};
    for (const seat& s : seats_) read[s.who.shard] |= reads(s);
    for (seat& s : seats_) {
      const bool holds = s.ready && s.version == version_ && !(s.trainer && s.busy);
      bool fits = false;
      switch (result_.what.kind) {
        case victim_kind::reader:
          fits = reads(s);
          break;
        case victim_kind::source:
          fits = holds && read[s.who.shard];
          break;
        case victim_kind::shard:
          fits = !s.trainer;
          break;
        case victim_kind::trainer:
        case victim_kind::server:
          fits = s.trainer;
          break;
      }
      if (fits) out.push_back(&s);
    }
    return out;
  }
  /// A version that it wants is shown by the trainer.
  [[nodiscard]] bool reads(const seat& s) const {
    return !s.trainer && s.busy && s.version < version_ && seats_[0].version == version_ &&
           seats_[1].version == version_;
  }

  void strike() {
    const auto candidates = victims();
    // The moment has passed: any rollout, or a shard of the trainer.
    const bool trainers =
        result_.what.kind == victim_kind::trainer || result_.what.kind == victim_kind::source;
    const std::size_t first = trainers ? 0 : shards;
    const std::size_t count = trainers ? shards : seats_.size() - shards;
    seat* const chosen = candidates.empty() ? &seats_[first + result_.what.pick % count]
                                            : candidates[result_.what.pick % candidates.size()];
    const int signal = result_.what.stop ? SIGSTOP : SIGKILL;
    std::size_t reading = 0;
    for (const seat& s : seats_) reading += reads(s) ? 1 : 0;
    const bool stepping = seats_[0].busy || seats_[1].busy;
    result_.moment = std::string{stepping ? "trainer between versions, " : "trainer shows "} +
                     std::to_string(version_) + ", " + std::to_string(reading) + " shards want it";
    struck_ = bench::now_seconds();
    if (result_.what.kind == victim_kind::server) {
      result_.victim = "server";
      server_->signal(signal);
      note(result_.what.name());
      if (signal == SIGKILL) static_cast<void>(server_->how_it_ended());
      return;
    }
    victim_ = chosen;
    result_.victim = chosen->who.name();
    chosen->runs->signal(signal);
    result_.moment += std::string{"; the victim "} + (reads(*chosen)    ? "reads"
                                                      : !chosen->busy   ? "rests"
                                                      : chosen->trainer ? "changes its weights"
                                                                        : "waits for a version");
    note(result_.what.name() + ": " + result_.victim + "; " + result_.moment);
    if (result_.what.stop) {
      chosen->stopped = true;
      return;
    }
    static_cast<void>(chosen->runs->how_it_ended());
    while (auto line = chosen->runs->line().try_hear()) hear(*chosen, *line);
    dead_files_ = chosen->files;
    chosen->ready = chosen->busy = false;
    chosen->runs.reset();
    look_for_holders(bench::now_seconds());
  }

  void restore() {
    note("the victim comes back");
    const bool server = result_.what.kind == victim_kind::server;
    if (result_.what.stop) {
      (server ? *server_ : *victim_->runs).signal(SIGCONT);
      if (!server) victim_->stopped = false;
    } else if (server) {
      const std::string address = address_;
      start_server(address);
    } else {
      start(*victim_);
    }
    returned_ = bench::now_seconds();
  }

  // ---- orders

  void drive() {
    if (!driving_) return;
    drive_trainer();
    for (std::size_t i = 0; i < how_.rollouts; ++i)
      drive_rollout(seats_[(i + 1) * shards], seats_[(i + 1) * shards + 1]);
  }

  void drive_trainer() {
    const double now = bench::now_seconds();
    const bool shown = std::all_of(seats_.begin(), seats_.begin() + shards,
                                   [&](const seat& s) { return s.idle() && s.version == version_; });
    if (shown && shown_since_ == 0) shown_since_ = now;
    const bool wanted = !finishing_ || std::ranges::any_of(seats_, [](const seat& s) { return s.busy; });
    if (shown && wanted && now - shown_since_ > hold_s) {
      ++version_;
      shown_since_ = 0;
    }
    for (std::size_t i = 0; i < shards; ++i) {
      seat& s = seats_[i];
      if (s.idle() && s.version != version_ && now - s.asked > 0.02) order(s, "step", ++tokens_, version_);
    }
  }

  void drive_rollout(seat& first, seat& second) {
    if (!first.idle() || !second.idle()) {
      repeat_with(first, second);
      return repeat_with(second, first);
    }
    const bool together = first.token == second.token && first.version > 0 && second.version > 0;
    if (together && first.version != second.version)
      problem(first.who.replica + ": its shards got versions " + std::to_string(first.version) + " and " +
              std::to_string(second.version) + " by the same call");
    if (finishing_ && together && first.version == second.version && first.version > 0) return;
    std::uint64_t& reached = reached_[first.who.replica];
    const double now = bench::now_seconds();
    if (now - std::max(first.asked, second.asked) < 0.005) return;
    // Who has lost what it had asks for that again: others hold it.
    const std::uint64_t least = together ? reached + 1 : std::max<std::uint64_t>(reached, 1);
    ++tokens_;
    order(first, "update", tokens_, least);
    order(second, "update", tokens_, least);
  }

  /// Whose call has failed makes it again beside the one who had to; alone that would wait for its group.
  void repeat_with(seat& alone, seat& other) {
    if (!alone.idle() || !other.busy || !other.again || alone.token != other.token || alone.version != 0)
      return;
    order(alone, "update", other.token, other.least);
  }

  void order(seat& s, const std::string& word, std::uint64_t token, std::uint64_t version) {
    s.busy = true;
    s.again = false;
    s.token = token;
    s.least = version;
    s.asked = bench::now_seconds();
    s.runs->line().try_say(word + " " + std::to_string(token) + " " + std::to_string(version));
    if (s.trainer) look_for_holders(s.asked);
  }

  // ---- answers

  void hear(seat& s, const std::string& line) {
    std::istringstream in{line};
    std::string word;
    std::uint64_t token = 0;
    in >> word >> token;
    if (word == "ready") {
      s.ready = true;
      for (std::uint64_t inode = 0; in >> inode;) s.files.insert(inode);
    } else if (word == "published") {
      double when = 0, hidden = 0;
      in >> s.version >> when >> hidden;
      s.busy = false;
      look_for_holders(when);
      if (struck_ != 0) result_.stall_s = std::max(result_.stall_s, hidden);
      note(s.who.name() + " " + line);
    } else if (word == "got") {
      hear_got(s, in);
      note(s.who.name() + " " + line);
    } else if (word == "failed" || word == "again") {
      hear_failed(s, in, line, word == "again");
    } else if (word == "noticed") {
      double when = 0;
      std::string code;
      in >> when >> code;
      note(s.who.name() + " " + line);
      if (struck_ != 0 && code == "source_lost")
        result_.noticed.emplace_back(s.who.name() + " lost its source", when - struck_);
    } else if (word == "resumed") {
      double when = 0, lost = 0, posted = 0, waited = 0;
      std::string from;
      in >> when >> lost >> posted >> waited >> from;
      if (struck_ != 0 && lost >= struck_)
        result_.resumed.push_back(judged(s.who.shard, lost, when, posted, waited));
      note(s.who.name() + " resumed after " + time_text(when - lost) + ": a chunk of " + from +
           ", asked for " + time_text(posted - lost) +
           " after the loss; one thread waited for a processor for " + time_text(waited));
    } else if (word == "files") {
      std::set<std::uint64_t> files;
      for (std::uint64_t inode = 0; in >> inode;) files.insert(inode);
      for (const auto inode : files) {
        if (dead_files_.contains(inode)) ++kept_files_[s.who.name()];
      }
      s.told_files = true;
    }
  }

  [[nodiscard]] resumption judged(std::uint32_t shard, double lost, double when, double posted,
                                  double waited) const {
    const double since = holder_since_[shard];
    if (since == 0) return {resumption::whose::peers_only, when - lost, posted - lost, waited};
    if (since <= lost) return {resumption::whose::holder_there, when - lost, posted - lost, waited};
    const double begun = std::min(since, when);
    return {resumption::whose::holder_back, when - begun, posted - begun, waited};
  }
  /// Since when there is always somebody who has all of a shard of the version that is shown.
  void look_for_holders(double when) {
    std::array<bool, shards> there{};
    for (const seat& s : seats_)
      there[s.who.shard] |= s.runs && s.ready && s.version == version_ && !(s.trainer && s.busy);
    for (std::size_t i = 0; i < shards; ++i) {
      if (!there[i]) holder_since_[i] = 0;
      if (there[i] && holder_since_[i] == 0) holder_since_[i] = when;
    }
  }

  void hear_failed(seat& s, std::istringstream& in, const std::string& line, bool again) {
    std::string code;
    double when = 0;
    in >> code >> when;
    s.busy = s.again = again;
    s.version = 0;
    look_for_holders(when);
    note(s.who.name() + " " + line);
    if (struck_ != 0) count(code);
    static const std::set<std::string> known{"unavailable", "source_lost",  "group_failed", "torn",
                                             "replaced",    "disconnected", "cancelled"};
    // On a calm machine everything comes back long before a call's deadline.
    const bool too_late = code == "timed_out" && !how_.calm;
    if ((!known.contains(code) && !too_late) || (how_.calm && struck_ == 0))
      problem(s.who.name() + " failed: " + line);
    if (line.find("replica " + s.who.replica) == std::string::npos)
      problem(s.who.name() + " got an error that does not name it: " + line);
    if (struck_ != 0) result_.noticed.emplace_back(s.who.name() + " " + code, when - struck_);
  }

  void hear_got(seat& s, std::istringstream& in) {
    std::uint64_t version = 0;
    double when = 0;
    std::string bytes;
    in >> version >> when >> bytes;
    s.busy = false;
    s.version = version;
    look_for_holders(when);
    if (bytes != "whole")
      problem(s.who.name() + " got version " + std::to_string(version) + " with mixed bytes");
    std::uint64_t& reached = reached_[s.who.replica];
    if (version < reached) problem(s.who.name() + " was given an older version than before");
    reached = std::max(reached, version);
    if (struck_ == 0) return;
    count(bytes);
    const bool server = result_.what.kind == victim_kind::server;
    const double since = server ? server_back_ : struck_;
    if (!result_.next_s && since != 0 && when > since &&
        (victim_ == nullptr || s.who.replica != victim_->who.replica))
      result_.next_s = when - since;
  }

  void hear_server(const std::string& line) {
    std::istringstream in{line};
    std::string word;
    double when = 0;
    in >> word >> when;
    if (word == "serving") {
      in >> address_;
      server_ready_ = true;
      if (struck_ != 0) server_back_ = when;
      note("server " + line);
      return;
    }
    note("server " + line);
    if (line.find("the retained version") != std::string::npos &&
        line.find(" is lost: ") != std::string::npos)
      problem("a retained version was let go: " + line);
    if (victim_ == nullptr) return;
    const bool about = line.find("/" + victim_->who.name() + "/") != std::string::npos;
    for (const char* const verdict : {"cannot be reached", "was silent", "was replaced"}) {
      if (about && line.find(verdict) != std::string::npos)
        result_.noticed.emplace_back(std::string{"server: "} + verdict, when - struck_);
    }
  }

  /// Memory of the killed process must be let go by its readers; same_host looks once a second.
  void look_at_files() {
    const double until = bench::now_seconds() + 5;
    do {
      kept_files_.clear();
      for (seat& s : seats_) {
        s.told_files = false;
        s.runs->line().try_say("files 0 0");
      }
      pump_until("who has which files",
                 [&] { return std::ranges::all_of(seats_, [](const seat& s) { return s.told_files; }); });
      if (!kept_files_.empty()) pump_for(0.2);
    } while (!kept_files_.empty() && bench::now_seconds() < until);
    for (const auto& [name, count] : kept_files_)
      problem(name + " still has " + std::to_string(count) + " memory files of the killed process");
  }

  // ---- retention

  /// Until only host memory has version 1; whose, is noted.
  void settle_pinned() {
    const std::uint64_t gone_on = version_ + 2;
    pump_until("everybody to go on", [&] { return everybody_has(std::max<std::uint64_t>(4, gone_on)); });
    const child_process asker{[&](const processes::channel& line) { ask_holders<Hub>(line, address_, 1); },
                              descriptors()};
    for (bool more = true; more;) {
      pump_for(0.005);
      while (auto line = asker.line().try_hear()) {
        pinned_by_.insert(line->substr(0, line->find('~')));
        note("version 1 is held by " + *line);
      }
      pollfd entry{asker.line().descriptor(), 0, 0};
      ::poll(&entry, 1, 0);
      more = (entry.revents & POLLHUP) == 0;
    }
    if (pinned_by_.empty()) problem("nobody holds the pinned version 1, and nothing has happened yet");
  }

  /// Two more rollouts: one for what is pinned, one for the version before the last.
  void ask_archivists() {
    const bool harmed = victim_ != nullptr && pinned_by_.contains(victim_->who.replica);
    archive("archivist-0", 1, harmed && pinned_by_.size() == 1);
    archive("archivist-1", version_ - 1, false);
  }
  void archive(const std::string& name, std::uint64_t version, bool may_be_gone) {
    std::deque<seat> pair(shards);
    std::vector<int> strangers = descriptors();
    for (std::uint32_t i = 0; i < shards; ++i) {
      pair[i].who = {name, i, true, false};  // spot: nobody is to rely on it
      pair[i].runs = std::make_unique<child_process>(
          [&](const processes::channel& line) {
            member<Hub, typename Hub::subscriber>{line, pair[i].who, address_, how_.bytes}.obey();
          },
          strangers);
      strangers.push_back(pair[i].runs->line().descriptor());
      pair[i].runs->line().try_say("exactly 1 " + std::to_string(version));
    }
    std::vector<std::string> codes;
    for (seat& s : pair) codes.push_back(archived(s));
    // A shard that calls when its replica's call has just failed waits for the others to repeat theirs, in
    // vain.
    const bool is_refused = may_be_gone && std::ranges::count(codes, "unavailable") > 0;
    const bool pinned = version == 1;
    for (std::uint32_t i = 0; i < shards; ++i) {
      const std::string& code = codes[i];
      count((pinned ? "pinned_" : "kept_") + (code.empty() ? std::string{"HANG"} : code));
      if (code == "whole" || (is_refused && (code == "unavailable" || code == "torn"))) continue;
      problem(pair[i].who.name() + ": version " + std::to_string(version) + (pinned ? ", pinned" : ", kept") +
              (may_be_gone ? ", of which the victim had the only copy" : "") + ": " +
              (code.empty() ? "HANG" : code));
    }
    for (seat& s : pair) end(*s.runs, s.who.name());
  }

  /// How an archivist's update has ended: "whole", or an error code; empty: it has not.
  [[nodiscard]] std::string archived(seat& s) {
    const double until = bench::now_seconds() + patience_s;
    while (bench::now_seconds() < until) {
      pump();  // the others, so that nobody is kept waiting
      while (auto line = s.runs->line().try_hear()) {
        if (!line->starts_with("got ") && !line->starts_with("failed ")) continue;
        note(s.who.name() + " " + *line);
        std::istringstream in{*line};
        std::string word, token, third, when, bytes;
        in >> word >> token >> third >> when >> bytes;
        return word == "failed" ? third : bytes;
      }
    }
    return {};
  }

  // ---- the loop

  void pump() {
    std::vector<pollfd> entries{{server_ ? server_->line().descriptor() : -1, POLLIN, 0}};
    for (const seat& s : seats_) entries.push_back({s.runs ? s.runs->line().descriptor() : -1, POLLIN, 0});
    ::poll(entries.data(), entries.size(), 2);
    if (entries[0].revents != 0) {
      if (const auto line = server_->line().try_hear())
        hear_server(*line);
      else if (result_.what.stop || result_.victim != "server" || returned_ != 0)
        throw std::runtime_error("the server " + server_->how_it_ended() + " by itself");
    }
    for (std::size_t i = 0; i < seats_.size(); ++i) {
      if (entries[i + 1].revents == 0) continue;
      if (const auto line = seats_[i].runs->line().try_hear())
        hear(seats_[i], *line);
      else
        throw std::runtime_error(seats_[i].who.name() + " " + seats_[i].runs->how_it_ended() + " by itself");
    }
    drive();
  }
  void pump_for(double seconds) {
    const double until = bench::now_seconds() + seconds;
    while (bench::now_seconds() < until) pump();
  }
  template <typename Done>
  void pump_until(const std::string& what, Done&& done) {
    const double began = bench::now_seconds();
    const double until = began + patience_s;
    bool asked = false;
    while (!done()) {
      pump();
      const double now = bench::now_seconds();
      if (now > began + 6 && !std::exchange(asked, true)) ask_what_is_stuck();
      if (now < until) continue;
      std::string waiting;
      for (const seat& s : seats_)
        if (s.busy) waiting += " " + s.who.name() + "(" + std::to_string(s.version) + ")";
      throw std::runtime_error("HANG: waited " + std::to_string(patience_s) + " s for " + what +
                               "; still busy:" + waiting);
    }
  }
  /// Of the server, by one more process: into the events.
  void ask_what_is_stuck() {
    const child_process asker{[&](const processes::channel& line) { ask_stuck<Hub>(line, address_); },
                              descriptors()};
    const double until = bench::now_seconds() + 10;
    while (bench::now_seconds() < until) {
      pollfd entry{asker.line().descriptor(), POLLIN, 0};
      if (::poll(&entry, 1, 100) <= 0) continue;
      const auto line = asker.line().try_hear();
      if (!line) return;
      note("stuck: " + *line);
    }
  }
  [[nodiscard]] bool everybody_has(std::uint64_t version) const {
    return std::ranges::all_of(seats_, [&](const seat& s) { return s.version >= version; });
  }

  void count(const std::string& outcome) { ++result_.outcomes[outcome]; }
  void problem(const std::string& text) {
    result_.problems.push_back(text);
    note("PROBLEM: " + text);
  }
  void note(const std::string& text) {
    char when[32];
    const double now = bench::now_seconds();
    std::snprintf(when, sizeof when, "%+9.3f ", struck_ == 0 ? now - began_ - 1000 : now - struck_);
    result_.events.push_back(when + text);
    constexpr std::size_t most = 3000, first = 2000;  // what happened around the signal is wanted most
    if (result_.events.size() > most) result_.events.erase(result_.events.begin() + first);
  }

  setting how_;
  round_result result_{};
  std::unique_ptr<child_process> server_;
  std::deque<seat> seats_;
  std::string address_;
  bool server_ready_ = false;
  bool driving_ = false, finishing_ = false;
  std::uint64_t version_ = 1, tokens_ = 0;
  double began_ = bench::now_seconds(), shown_since_ = 0;
  double struck_ = 0, returned_ = 0, server_back_ = 0;
  seat* victim_ = nullptr;
  std::array<double, shards> holder_since_{};  ///< zero: nobody has everything
  std::map<std::string, std::uint64_t> reached_;
  std::set<std::string> pinned_by_;  ///< replicas whose processes have version 1 in host memory
  std::set<std::uint64_t> dead_files_;
  std::map<std::string, std::size_t> kept_files_;
};

}  // namespace chaos
