#pragma once
/// \file election.hpp
/// One candidate of an election that etcd decides, as a state machine without socket, clock or thread.
///
///     follower --no leader--> candidate --its key was written--> leader --lease at risk--> deposed
///        ^---- another leads -----'                                                           |
///        ^--------------------------- the owner has stopped serving --------------------------'
///
/// The election has two keys in etcd. `leader` is bound to the lease of its writer and disappears with it.
/// `term` is permanent and counts the leaders. A candidate wins by one transaction: *if* `leader` does not
/// exist *and* `term` has the value that the candidate has read, write `leader` with the candidate's lease
/// and increase `term` by one. So every leader has its own term, which is higher than all earlier ones.
///
/// Two guards prevent two leaders at the same time. The first is the lease: by its own clock, a leader stops
/// before etcd can have ended the lease. The time is counted from the moment *before* the request that
/// granted or renewed the lease was sent, less `margin`. An answer that arrives later has no effect, and a
/// process that was suspended finds by its clock that it no longer leads. This requires that clocks differ
/// by less than `margin` per lease, and that the clock continues while the process is stopped. The second
/// guard needs no clock: the term is part of the server's epoch (types/ids.hpp), and workers ignore servers
/// of a lower term than the highest they know.
///
/// Protocol of the owner: call `advance` at `next_deadline`; send `take_request` to etcd, and pass the
/// answer, or `no_answer`, to `receive`; serve while `leads(now)`; when the state is `deposed`, stop serving
/// and then call `stopped`. At most one request is open; an answer with another number is late and ignored.
/// Thread safety: none; one thread at a time.

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
  /// Candidates with the same name elect one leader. The keys are "tensorhub/<name>/leader" and ".../term".
  std::string name{};
  std::string address{};                        ///< written into the leader's key, for human readers
  std::chrono::seconds lease{5};                ///< time after which a dead leader is replaced; full seconds
  std::chrono::milliseconds margin{500};        ///< a leader stops this long before its lease can end
  std::chrono::milliseconds keep_alive{500};    ///< interval at which a leader renews its lease
  std::chrono::milliseconds poll{200};          ///< interval at which the others check for a leader
  std::chrono::milliseconds answer_time{1000};  ///< after which a request has failed; at most the lease
  /// First term if etcd has none. Set a higher one if etcd has lost its data and no candidate remembers the
  /// term.
  std::uint64_t first_term = 1;
};

enum class election_state : std::uint8_t { follower, candidate, leader, deposed };

[[nodiscard]] constexpr std::string_view to_string(election_state state) noexcept {
  constexpr std::string_view names[] = {"follower", "candidate", "leader", "deposed"};
  return names[static_cast<std::size_t>(state)];
}

/// The requests to etcd.
namespace etcd_requests {
struct look {};  ///< reads the present leader and term
struct grant_lease {
  std::int64_t lease = 0;  ///< its number, chosen by this candidate
  std::int64_t seconds = 0;
};
struct keep_alive {
  std::int64_t lease = 0;
};
struct revoke_lease {  ///< also deletes the keys that are bound to it
  std::int64_t lease = 0;
};
/// Makes this candidate the leader, if there is none and the revision of the term key is unchanged (0:
/// there is no such key).
struct take {
  std::int64_t lease = 0;
  std::int64_t term_revision = 0;
  std::uint64_t term = 0;
  std::string address{};
};
}  // namespace etcd_requests

struct etcd_request {
  std::uint64_t number = 0;
  time_point until{};  ///< answers after this time are ignored
  std::variant<etcd_requests::look, etcd_requests::grant_lease, etcd_requests::keep_alive,
               etcd_requests::revoke_lease, etcd_requests::take>
      body{};
};

/// The answers of etcd.
namespace etcd_answers {
/// No answer, or one that cannot be understood. It is unknown whether etcd has carried out the request.
struct no_answer {
  std::string why{};
};
/// Of a leader's key that another program wrote without a lease: no candidate's lease has this number.
inline constexpr std::int64_t no_lease = -1;
/// Answer to `look` and `take`.
struct situation {
  bool taken = false;             ///< `take` was carried out
  std::int64_t leader_lease = 0;  ///< 0: there is no leader; or `no_lease`
  std::string leader_address{};
  std::int64_t term_revision = 0;  ///< 0: there is no such key
  std::optional<std::uint64_t> term{};
};
/// Answer to `grant_lease` and `keep_alive`.
struct lease {
  std::int64_t seconds = 0;  ///< 0: the lease does not exist (any more)
};
struct revoked {};
}  // namespace etcd_answers
using etcd_answer = std::variant<etcd_answers::no_answer, etcd_answers::situation, etcd_answers::lease,
                                 etcd_answers::revoked>;

/// Checks the options. Throws `invalid_argument` and names the option.
[[nodiscard]] election_options validated(election_options options);

class election {
 public:
  /// `seed`: a random number, from which the numbers of this candidate's leases are derived.
  election(election_options options, std::uint64_t seed) : options_{std::move(options)}, random_{seed} {}

  [[nodiscard]] election_state state() const noexcept { return state_; }
  /// Whether the owner may serve at this moment. Call with a fresh `now` each time.
  [[nodiscard]] bool leads(time_point now) const noexcept {
    return state_ == election_state::leader && now < leads_until_;
  }
  /// The time until which this candidate leads unless the lease is renewed. Pre-condition: `state()` is
  /// leader.
  [[nodiscard]] time_point leads_until() const noexcept { return leads_until_; }
  /// The present term of this candidate as the leader, or its last one.
  [[nodiscard]] std::uint64_t term() const noexcept { return term_; }
  /// The leader that etcd named last; empty: none.
  [[nodiscard]] const std::string& leader_address() const noexcept { return leader_address_; }
  /// The lease of this candidate. If it is not zero, etcd may hold a key bound to it: revoke the lease when
  /// the owner ends.
  [[nodiscard]] std::int64_t lease() const noexcept { return lease_; }

  /// Whether etcd has answered the latest request that has ended; false before the first one.
  [[nodiscard]] bool etcd_answers() const noexcept { return trouble_.is_answered; }

  void advance(time_point now);

  /// The request to send to etcd now, if there is one.
  [[nodiscard]] std::optional<etcd_request> take_request(time_point now);

  void receive(time_point now, std::uint64_t number, const etcd_answer& answer);

  /// Reports that the owner has stopped serving, so that it may be a candidate again.
  void stopped(time_point now);

  /// The owner cannot serve (for example because its address is taken): returns the leadership, and does not
  /// campaign for the duration of a lease.
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

  /// A positive random number (splitmix64).
  [[nodiscard]] std::int64_t new_lease() noexcept;

  /// Ends the leadership: from this moment on the owner must not serve.
  void depose(const std::string& why);
  /// Gives the lease up: it is revoked later, or ends by itself.
  void abandon();
  void follow(time_point now);
  /// Empty: etcd answers. Logs the first reason, and another one at most once in the time of a lease.
  void set_trouble(time_point now, const std::string& why);

  void fail(time_point now, const std::string& why);

  /// The time until which a lease granted or renewed by the pending request lasts at least.
  [[nodiscard]] time_point safe_end(std::int64_t seconds) const noexcept;

  void on(time_point now, const etcd_answers::no_answer& answer) { fail(now, answer.why); }

  void on(time_point now, const etcd_answers::lease& answer);

  void on(time_point now, const etcd_answers::revoked&);

  void on(time_point now, const etcd_answers::situation& answer);

  void campaign(time_point now, const etcd_answers::situation& seen);

  /// No candidate can lead before an operator has done what `why` says: logged once, until that changes.
  void say_hopeless(const std::string& why);

  void lead(time_point now, std::uint64_t term);

  election_options options_;
  std::uint64_t random_;
  election_state state_ = election_state::follower;
  std::uint64_t count_ = 0;  ///< requests so far
  std::optional<pending> pending_{};
  time_point next_request_{};
  time_point rests_until_{};
  std::int64_t lease_ = 0;        ///< this candidate's lease; 0: none
  std::int64_t asked_lease_ = 0;  ///< the lease that the pending request asks for
  std::int64_t abandoned_ = 0;    ///< the lease that is to be revoked
  time_point leads_until_{INT64_MIN};
  bool look_next_ = false;  ///< a leader alternates between renewing its lease and checking its key
  std::int64_t term_revision_ = 0;
  std::uint64_t next_term_ = 0;
  std::uint64_t term_ = 0;
  std::uint64_t highest_term_ = 0;  ///< highest ever seen, also if etcd loses its data
  std::string leader_address_{};
  struct trouble {
    std::string why{};   ///< the latest request failed; empty: it did not
    std::string said{};  ///< the reason that was logged last since etcd answered; empty: none
    time_point next{};   ///< no other is logged before: an etcd may answer some requests, and fail the others
    bool is_answered = false;  ///< the latest request that has ended
  };
  trouble trouble_{};
  std::string hopeless_{};  ///< what was logged that an operator has to do; empty: nothing
  std::vector<log_line> log_{};
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/etcd/impl/election.ipp"
#endif
