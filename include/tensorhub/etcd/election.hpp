#pragma once
/// \file election.hpp
/// One candidate of an election that etcd decides, as a state machine: no socket, no clock, no thread.
///
///     follower --nobody leads--> candidate --its key was written--> leader --lease at risk--> deposed
///        ^------- somebody leads ----'                                                           |
///        ^----------------------------- the owner has stopped serving ---------------------------'
///
/// Two keys in etcd. `leader` hangs on a lease of the one who wrote it and goes with it. `term` stays, and
/// counts the leaders there have been. To win is one transaction: *if* `leader` does not exist *and* `term`
/// is as I have read it, write `leader` with my lease and `term` one higher. So every leader has a term of
/// its own, higher than those of all before it.
///
/// Two guards against two leaders at a time. The first is the lease: a leader stops by its own clock before
/// etcd can have given the lease up, counted from the moment *before* the request that granted or renewed it
/// was sent, less `margin`. An answer that comes after that moment does not help any more; a process that was
/// suspended finds, when it looks at its clock, that it leads no longer. That holds as long as clocks run
/// equally fast to within `margin` per lease, and this one runs on while the process is stopped. The second
/// trusts no clock: the term is in the server's epoch (types/ids.hpp), and workers do not listen to a lower
/// term than they know.
///
/// Protocol of the owner: `advance` at `next_deadline`; hand `take_request` to etcd, and its answer, or
/// `no_answer`, to `receive`; serve while `leads(now)`; when the state is `deposed`, stop serving and say so
/// by `stopped`. At most one request is under way; an answer with another number than that one's is late, and
/// ignored. Thread safety: none; one thread at a time.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct election_options {
  /// Candidates of one name elect one leader. Its keys are "tensorhub/<name>/leader" and ".../term".
  std::string name{};
  std::string address{};                        ///< written into the leader's key, for people
  std::chrono::seconds lease{5};                ///< a dead leader is replaced after it; etcd counts seconds
  std::chrono::milliseconds margin{500};        ///< a leader stops so much before its lease can end
  std::chrono::milliseconds keep_alive{500};    ///< a leader renews its lease so often
  std::chrono::milliseconds poll{200};          ///< the others look so often whether there is a leader
  std::chrono::milliseconds answer_time{1000};  ///< after it a request has failed
  std::uint64_t first_term = 1;  ///< if etcd knows none; higher, if etcd lost its data and nobody here has it
};

enum class election_state : std::uint8_t { follower, candidate, leader, deposed };

[[nodiscard]] constexpr std::string_view to_string(election_state state) noexcept {
  constexpr std::string_view names[] = {"follower", "candidate", "leader", "deposed"};
  return names[static_cast<std::size_t>(state)];
}

/// What etcd is asked.
namespace etcd_requests {
struct look {};  ///< who leads, which term is it
struct grant_lease {
  std::int64_t lease = 0;  ///< its number is ours to choose
  std::int64_t seconds = 0;
};
struct keep_alive {
  std::int64_t lease = 0;
};
struct revoke_lease {  ///< and whatever hangs on it
  std::int64_t lease = 0;
};
/// Becomes the leader, if there is none and the term key's revision is still this one (0: it does not exist).
struct take {
  std::int64_t lease = 0;
  std::int64_t term_revision = 0;
  std::uint64_t term = 0;
  std::string address{};
};
}  // namespace etcd_requests

struct etcd_request {
  std::uint64_t number = 0;
  time_point until{};  ///< later answers are of no use
  std::variant<etcd_requests::look, etcd_requests::grant_lease, etcd_requests::keep_alive,
               etcd_requests::revoke_lease, etcd_requests::take>
      body{};
};

/// What etcd answers.
namespace etcd_answers {
/// Nothing, or nothing sensible. Whether it has done what was asked is unknown.
struct no_answer {
  std::string why{};
};
/// To `look` and `take`.
struct situation {
  bool taken = false;             ///< `take` has been done
  std::int64_t leader_lease = 0;  ///< 0: nobody leads
  std::string leader_address{};
  std::int64_t term_revision = 0;  ///< 0: the key does not exist
  std::optional<std::uint64_t> term{};
};
/// To `grant_lease` and `keep_alive`.
struct lease {
  std::int64_t seconds = 0;  ///< 0: there is no such lease (any more)
};
struct revoked {};
}  // namespace etcd_answers
using etcd_answer = std::variant<etcd_answers::no_answer, etcd_answers::situation, etcd_answers::lease,
                                 etcd_answers::revoked>;

/// Throws `invalid_argument`, with the option's name.
[[nodiscard]] election_options validated(election_options options);

class election {
 public:
  /// `seed`: random; the numbers of this candidate's leases come from it.
  election(election_options options, std::uint64_t seed) : options_{std::move(options)}, random_{seed} {}

  [[nodiscard]] election_state state() const noexcept { return state_; }
  /// May the owner serve at this moment? Ask with a fresh `now`, whatever has been told before.
  [[nodiscard]] bool leads(time_point now) const noexcept {
    return state_ == election_state::leader && now < leads_until_;
  }
  /// Until then, unless the lease is renewed. Pre-condition: `state()` is leader.
  [[nodiscard]] time_point leads_until() const noexcept { return leads_until_; }
  /// Of this leader; after its end, of the last time that it led.
  [[nodiscard]] std::uint64_t term() const noexcept { return term_; }
  /// Whom etcd has named last; empty: nobody.
  [[nodiscard]] const std::string& leader_address() const noexcept { return leader_address_; }
  /// Not zero: etcd may keep a key of ours alive; revoke it when the owner ends.
  [[nodiscard]] std::int64_t lease() const noexcept { return lease_; }

  void advance(time_point now);

  /// What to ask etcd now, if anything.
  [[nodiscard]] std::optional<etcd_request> take_request(time_point now);

  void receive(time_point now, std::uint64_t number, const etcd_answer& answer);

  /// The owner has stopped serving: it may be a candidate again.
  void stopped(time_point now);

  /// The owner cannot serve (its address is taken, say): gives the leadership back, and leaves it to the
  /// others for a lease's time.
  void resign(time_point now, const std::string& why);

  [[nodiscard]] time_point next_deadline() const noexcept;

  [[nodiscard]] std::vector<log_line> take_log() { return std::exchange(log_, {}); }

 private:
  struct pending {
    std::uint64_t number = 0;
    time_point sent{};
    time_point until{};
    decltype(etcd_request::body) body{};
  };

  [[nodiscard]] std::string name() const { return "election '" + options_.name + "': "; }
  void say(log_level level, const std::string& text) { log_.push_back({level, name() + text, {}}); }

  /// By splitmix64; positive.
  [[nodiscard]] std::int64_t new_lease() noexcept;

  /// From this moment on the owner must not serve.
  void depose(const std::string& why);
  /// The lease is not wanted any more: it is revoked when there is time, or ends.
  void abandon();
  void follow(time_point now);
  void set_trouble(const std::string& why);

  void fail(time_point now, const std::string& why);

  /// A lease that was granted or renewed by the pending request lasts at least until then.
  [[nodiscard]] time_point safe_end(std::int64_t seconds) const noexcept;

  void on(time_point now, const etcd_answers::no_answer& answer) { fail(now, answer.why); }

  void on(time_point now, const etcd_answers::lease& answer);

  void on(time_point now, const etcd_answers::revoked&);

  void on(time_point now, const etcd_answers::situation& answer);

  void campaign(time_point now, const etcd_answers::situation& seen);

  void lead(time_point now, std::uint64_t term);

  election_options options_;
  std::uint64_t random_;
  election_state state_ = election_state::follower;
  std::uint64_t count_ = 0;  ///< requests so far
  std::optional<pending> pending_{};
  time_point next_request_{};
  time_point rests_until_{};
  std::int64_t lease_ = 0;        ///< ours; 0: none
  std::int64_t asked_lease_ = 0;  ///< that the pending request asks for
  std::int64_t abandoned_ = 0;    ///< to be revoked
  time_point leads_until_{INT64_MIN};
  bool look_next_ = false;  ///< a leader renews its lease and looks for its key in turn
  std::int64_t term_revision_ = 0;
  std::uint64_t next_term_ = 0;
  std::uint64_t term_ = 0;
  std::uint64_t highest_term_ = 0;  ///< ever seen: an etcd that has lost its data does not lead us back
  std::string leader_address_{};
  std::string trouble_{};  ///< why etcd does not answer; empty: it does
  bool hopeless_ = false;  ///< that no term is left has been said
  std::vector<log_line> log_{};
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/etcd/impl/election.ipp"
#endif
