/// \file etcd_election_random.cpp
/// Three candidates and a model of etcd in virtual time: messages are lost, doubled and late, candidates are
/// suspended, clocks run differently, etcd restarts. Never do two lead at a time; each leader's term is
/// higher than all before; when the faults end there is a leader, and it stays. Planted mistakes are seen.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tensorhub/etcd/election.hpp"

using namespace tensorhub;
using namespace std::chrono_literals;

namespace {

enum class planted {
  nothing,
  no_margin,        ///< and clocks that differ
  late_answers,     ///< are taken for the pending one's
  no_clock,         ///< who has been a leader believes that it is, until an event tells it otherwise
  no_term_compare,  ///< the transaction looks at the leader's key only
};

/// What the election needs of etcd.
struct model_etcd {
  planted mistake = planted::nothing;
  bool up = true;
  std::map<std::int64_t, std::pair<std::int64_t, duration>> leases;  ///< end, and length
  std::int64_t leader_lease = 0;
  std::string leader_address;
  std::int64_t revision = 1;
  std::int64_t term_revision = 0;
  std::uint64_t term = 0;

  void expire(std::int64_t now) {
    std::erase_if(leases, [&](const auto& entry) {
      const bool over = entry.second.first <= now;
      if (over && entry.first == leader_lease) leader_lease = 0;
      return over;
    });
  }
  /// As a member that becomes etcd's own leader does: everybody gets the whole time once more.
  void restart(std::int64_t now) {
    for (auto& [id, lease] : leases) lease.first = now + lease.second.count();
  }
  [[nodiscard]] etcd_answers::situation situation() const {
    etcd_answers::situation out;
    out.leader_lease = leader_lease;
    out.leader_address = leader_lease != 0 ? leader_address : "";
    out.term_revision = term_revision;
    if (term_revision != 0) out.term = term;
    return out;
  }
  etcd_answer handle(std::int64_t now, const etcd_request& request) {
    expire(now);
    using namespace etcd_requests;
    if (const auto* grant = std::get_if<grant_lease>(&request.body)) {
      if (leases.contains(grant->lease)) return etcd_answers::no_answer{"lease exists"};
      const duration length = std::chrono::seconds{grant->seconds};
      leases[grant->lease] = {now + length.count(), length};
      return etcd_answers::lease{grant->seconds};
    }
    if (const auto* renewal = std::get_if<keep_alive>(&request.body)) {
      const auto found = leases.find(renewal->lease);
      if (found == leases.end()) return etcd_answers::lease{0};
      found->second.first = now + found->second.second.count();
      return etcd_answers::lease{
          std::chrono::duration_cast<std::chrono::seconds>(found->second.second).count()};
    }
    if (const auto* revocation = std::get_if<revoke_lease>(&request.body)) {
      leases.erase(revocation->lease);
      if (leader_lease == revocation->lease) leader_lease = 0;
      return etcd_answers::revoked{};
    }
    const auto* wanted = std::get_if<take>(&request.body);
    if (wanted == nullptr) return situation();
    const bool same = wanted->term_revision == term_revision || mistake == planted::no_term_compare;
    if (leader_lease != 0 || !same) return situation();
    if (!leases.contains(wanted->lease)) return etcd_answers::no_answer{"requested lease not found"};
    leader_lease = wanted->lease;
    leader_address = wanted->address;
    term = wanted->term;
    term_revision = ++revision;
    etcd_answers::situation done = situation();
    done.taken = true;
    return done;
  }
};

struct candidate {
  election core;
  double rate = 1;           ///< of its clock
  std::int64_t offset = 0;   ///< of its clock
  std::int64_t asleep = 0;   ///< until then (true time)
  bool led = false;          ///< at the last look
  bool stopping = false;     ///< its owner will say that it has stopped
  std::uint64_t asking = 0;  ///< number of the request that it has made last
};

/// One history. Time is true time in nanoseconds; each candidate sees it through its own clock.
class history {
 public:
  history(std::uint64_t seed, planted mistake) : random_{seed}, mistake_{mistake} {
    etcd_.mistake = mistake;
    for (int i = 0; i < 3; ++i) {
      election_options options;
      options.name = "x";
      options.address = std::to_string(i);
      options.lease = 5s;
      options.margin = mistake == planted::no_margin ? 0ms : 500ms;
      candidates_.push_back({election{options, random_()}});
      candidate& one = candidates_.back();
      const double spread = mistake == planted::no_margin ? 0.1 : 0.02;  // 0.02 of 5 s: within the margin
      one.rate = 1 + spread * (uniform() - 0.5);
      one.offset = static_cast<std::int64_t>(uniform() * 1e12);
    }
  }

  /// What is wrong; empty: nothing.
  std::string run() {
    for (std::size_t i = 0; i < candidates_.size(); ++i) at(0, [this, i] { wake(i); });
    at(0, [this] { trouble(); });
    const std::int64_t quiet = 120'000'000'000;
    const std::int64_t end = quiet + 60'000'000'000;
    const std::int64_t settled = quiet + 30'000'000'000;
    std::uint64_t last_term = 0;
    while (!events_.empty() && events_.top().at < end && wrong_.empty()) {
      event next = events_.top();
      events_.pop();
      now_ = next.at;
      quiet_ = now_ >= quiet;
      next.run();
      look();
      if (now_ >= settled) {
        if (terms_.empty()) return "nobody has ever led";
        if (last_term == 0) last_term = terms_.back();
        if (last_term != terms_.back()) return "the leader has changed without a fault";
      }
    }
    if (!wrong_.empty()) return wrong_;
    if (std::none_of(candidates_.begin(), candidates_.end(), [](const candidate& c) { return c.led; }))
      return "nobody leads in the end";
    return {};
  }
  [[nodiscard]] std::size_t leaders() const { return terms_.size(); }

 private:
  struct event {
    std::int64_t at = 0;
    std::uint64_t order = 0;
    std::function<void()> run{};
    bool operator<(const event& other) const { return at != other.at ? at > other.at : order > other.order; }
  };

  double uniform() { return std::uniform_real_distribution<>{}(random_); }
  bool chance(double of) { return !quiet_ && uniform() < of; }
  std::int64_t between(double from_s, double to_s) {
    return static_cast<std::int64_t>((from_s + uniform() * (to_s - from_s)) * 1e9);
  }
  void at(std::int64_t when, std::function<void()> run) { events_.push({when, ++order_, std::move(run)}); }
  [[nodiscard]] time_point local(const candidate& one) const {
    return {one.offset + static_cast<std::int64_t>(static_cast<double>(now_) * one.rate)};
  }

  /// Who leads now? A process that is suspended does nothing, whatever it believes.
  void look() {
    int leading = 0;
    for (candidate& one : candidates_) {
      if (one.asleep > now_) continue;
      const bool leads = mistake_ == planted::no_clock ? one.core.state() == election_state::leader
                                                       : one.core.leads(local(one));
      leading += leads ? 1 : 0;
      if (leads && !one.led) {
        if (!terms_.empty() && one.core.term() <= terms_.back() &&
            !(one.core.term() == terms_.back() && last_leader_ == &one))
          wrong_ = "term " + std::to_string(one.core.term()) + " after " + std::to_string(terms_.back());
        terms_.push_back(one.core.term());
        last_leader_ = &one;
      }
      one.led = leads;
    }
    if (leading > 1) wrong_ = "two lead";
  }

  /// Runs the candidate's events after it has woken up, as far as it is asleep.
  void when_awake(std::size_t i, std::function<void()> run) {
    if (candidates_[i].asleep <= now_) return run();
    at(candidates_[i].asleep, [this, i, run = std::move(run)] { when_awake(i, run); });
  }

  /// The owner's loop.
  void wake(std::size_t i) {
    candidate& one = candidates_[i];
    if (one.asleep > now_) return at(one.asleep, [this, i] { wake(i); });
    // Just awake: before it has done anything, others must not see it lead without right.
    look();
    one.core.advance(local(one));
    settle(i);
    if (const auto request = one.core.take_request(local(one))) {
      one.asking = request->number;
      send(i, *request);
    }
    static_cast<void>(one.core.take_log());
    const time_point next = one.core.next_deadline();
    const double wait_s = next == time_point::never() ? 1.0 : to_seconds(next - local(one)) / one.rate;
    at(now_ + std::clamp<std::int64_t>(static_cast<std::int64_t>(wait_s * 1e9), 1'000'000, 1'000'000'000),
       [this, i] { wake(i); });
  }
  void settle(std::size_t i) {
    candidate& one = candidates_[i];
    if (one.core.state() != election_state::deposed || one.stopping) return;
    one.stopping = true;
    at(now_ + between(0, 0.3), [this, i] {
      when_awake(i, [this, i] {
        candidates_[i].stopping = false;
        candidates_[i].core.stopped(local(candidates_[i]));
      });
    });
  }

  std::int64_t delay() {
    if (chance(0.05)) return between(0, 8);
    return between(0.0005, 0.05);
  }
  void send(std::size_t i, const etcd_request& request) {
    for (int copies = chance(0.03) ? 2 : 1; copies > 0; --copies) {
      if (chance(loss_)) continue;
      at(now_ + delay(), [this, i, request] {
        if (!etcd_.up) return;
        const etcd_answer answer = etcd_.handle(now_, request);
        for (int answers = chance(0.03) ? 2 : 1; answers > 0; --answers) {
          if (chance(loss_)) continue;
          at(now_ + delay(), [this, i, answer, number = request.number] {
            when_awake(i, [this, i, answer, number] { deliver(i, answer, number); });
          });
        }
      });
    }
  }
  void deliver(std::size_t i, const etcd_answer& answer, std::uint64_t number) {
    candidate& one = candidates_[i];
    if (mistake_ == planted::late_answers) number = one.asking;
    one.core.receive(local(one), number, answer);
    settle(i);
    if (one.core.state() == election_state::leader && chance(0.01))
      one.core.resign(local(one), "its address is taken");
    settle(i);
    static_cast<void>(one.core.take_log());
    if (const auto request = one.core.take_request(local(one))) {
      one.asking = request->number;
      send(i, *request);
    }
  }

  /// Now and then something happens.
  void trouble() {
    if (quiet_) {
      etcd_.up = true;
      return;
    }
    const double kind = uniform();
    if (kind < 0.4) {
      candidate& one = candidates_[random_() % candidates_.size()];
      one.asleep = now_ + between(0.05, 15);
    } else if (kind < 0.5) {
      etcd_.up = false;
      at(now_ + between(0.1, 12), [this] {
        if (!etcd_.up) etcd_.restart(now_);
        etcd_.up = true;
      });
    } else if (kind < 0.6) {
      etcd_.restart(now_);
    } else {
      loss_ = uniform() < 0.5 ? 0.02 : uniform() * 0.7;
    }
    at(now_ + between(0.2, 8), [this] { trouble(); });
  }

  std::mt19937_64 random_;
  planted mistake_;
  model_etcd etcd_;
  std::vector<candidate> candidates_;
  std::priority_queue<event> events_;
  std::uint64_t order_ = 0;
  std::int64_t now_ = 0;
  bool quiet_ = false;
  double loss_ = 0.02;
  std::string wrong_;
  std::vector<std::uint64_t> terms_;
  const candidate* last_leader_ = nullptr;
};

}  // namespace

TEST_CASE("election, random: never two leaders, terms go up, and in the end there is one") {
  std::size_t leaders = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    history one{seed, planted::nothing};
    const std::string wrong = one.run();
    REQUIRE_MESSAGE(wrong.empty(), "seed ", seed, ": ", wrong);
    leaders += one.leaders();
  }
  CHECK(leaders > 2000);  // leadership did change hands
  MESSAGE("400 histories, " << leaders << " leaderships");
}

TEST_CASE("election, random: planted mistakes are seen") {
  struct expectation {
    planted mistake;
    const char* words;
  };
  for (const expectation& each :
       {expectation{planted::no_margin, "two lead"}, expectation{planted::late_answers, "two lead"},
        expectation{planted::no_clock, "two lead"}, expectation{planted::no_term_compare, "term"}}) {
    std::string wrong;
    std::uint64_t seed = 1;
    for (; seed <= 20'000 && wrong.empty(); ++seed) wrong = history{seed, each.mistake}.run();
    const int number = static_cast<int>(each.mistake);
    CHECK_MESSAGE(wrong.find(each.words) != std::string::npos, "mistake ", number, ": ", wrong);
    MESSAGE("mistake " << number << " is seen in history " << seed - 1 << ": " << wrong);
  }
}
