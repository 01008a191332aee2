#pragma once
/// \file election.ipp
/// Definitions of election.hpp.

#include <algorithm>

#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/etcd/election.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL election_options validated(election_options options) {
  const auto refuse = [](const std::string& sentence) {
    throw error(errc::invalid_argument, "election_options::" + sentence);
  };
  if (options.name.empty() || options.name.size() > 200) refuse("name wants 1 to 200 characters");
  if (options.lease < std::chrono::seconds{2} || options.lease > std::chrono::hours{1})
    refuse("lease: 2 s to 1 h (etcd keeps no shorter ones)");
  const std::chrono::milliseconds half = std::chrono::milliseconds{options.lease} / 2;
  if (options.margin < std::chrono::milliseconds{0} || options.margin > half)
    refuse("margin: at most half of the lease");
  if (options.keep_alive < std::chrono::milliseconds{1} || options.keep_alive > half)
    refuse("keep_alive: at most half of the lease");
  if (options.poll < std::chrono::milliseconds{1}) refuse("poll: at least 1 ms");
  if (options.answer_time < std::chrono::milliseconds{1}) refuse("answer_time: at least 1 ms");
  options.poll = detail::bounded(options.poll);
  // What is answered after the lease is of no use, and the next endpoint is asked after it.
  options.answer_time = std::min<std::chrono::milliseconds>(options.answer_time, options.lease);
  if (options.first_term == 0 || options.first_term > server_term_max)
    refuse("first_term: 1 to " + std::to_string(server_term_max));
  return options;
}

TENSORHUB_DECL void election::advance(time_point now) {
  if (state_ == election_state::leader && now >= leads_until_) {
    depose("its lease may have ended: etcd has not confirmed it in time" +
           (trouble_.why.empty() ? std::string{} : " (" + trouble_.why + ")"));
  }
  if (pending_ && now >= pending_->until) fail(now, "no answer in time");
}

TENSORHUB_DECL std::optional<etcd_request> election::take_request(time_point now) {
  advance(now);
  if (pending_ || now < next_request_ || state_ == election_state::deposed) return std::nullopt;
  etcd_request out;
  out.number = ++count_;
  out.until = now + options_.answer_time;
  if (state_ == election_state::leader) {
    out.until = std::min(out.until, leads_until_);
    if (look_next_)
      out.body = etcd_requests::look{};
    else
      out.body = etcd_requests::keep_alive{lease_};
  } else if (abandoned_ != 0) {
    out.body = etcd_requests::revoke_lease{abandoned_};
  } else if (state_ == election_state::candidate && lease_ == 0) {
    asked_lease_ = new_lease();
    out.body = etcd_requests::grant_lease{asked_lease_, options_.lease.count()};
  } else if (state_ == election_state::candidate) {
    out.body = etcd_requests::take{lease_, term_revision_, next_term_, options_.address};
  } else {
    out.body = etcd_requests::look{};
  }
  pending_ = pending{out.number, now, out.until, out.body};
  return out;
}

TENSORHUB_DECL void election::receive(time_point now, std::uint64_t number, const etcd_answer& answer) {
  // A failure is a failure also after its time; its reason says more than "no answer in time".
  const auto* const failure = std::get_if<etcd_answers::no_answer>(&answer);
  if (failure && pending_ && pending_->number == number) fail(now, failure->why);
  advance(now);
  if (!pending_ || pending_->number != number) return;  // late
  std::visit([&](const auto& body) { this->on(now, body); }, answer);
}

TENSORHUB_DECL void election::stopped(time_point now) {
  if (state_ != election_state::deposed) return;
  state_ = election_state::follower;
  next_request_ = now;
}

TENSORHUB_DECL void election::resign(time_point now, const std::string& why) {
  if (state_ != election_state::leader) return;
  rests_until_ = now + options_.lease;
  depose(why);
}

TENSORHUB_DECL time_point election::next_deadline() const noexcept {
  if (state_ == election_state::deposed) return time_point::never();  // until `stopped`
  time_point next = pending_ ? pending_->until : next_request_;
  if (state_ == election_state::leader) next = std::min(next, leads_until_);
  return next;
}

TENSORHUB_DECL std::int64_t election::new_lease() noexcept {
  random_ += 0x9e3779b97f4a7c15ull;
  std::uint64_t mixed = (random_ ^ random_ >> 30) * 0xbf58476d1ce4e5b9ull;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>((mixed ^ mixed >> 31) >> 1));
}

TENSORHUB_DECL void election::depose(const std::string& why) {
  state_ = election_state::deposed;
  leads_until_ = time_point{INT64_MIN};
  abandon();
  pending_.reset();
  say(log_level::error, "this server is no leader any more (term " + std::to_string(term_) + "): " + why);
}

TENSORHUB_DECL void election::abandon() {
  if (lease_ != 0) abandoned_ = lease_;
  lease_ = 0;
}

TENSORHUB_DECL void election::follow(time_point now) {
  abandon();
  state_ = election_state::follower;
  next_request_ = abandoned_ != 0 ? now : now + options_.poll;
}

TENSORHUB_DECL void election::set_trouble(time_point now, const std::string& why) {
  if (why.empty() && !std::exchange(trouble_.said, {}).empty()) say(log_level::info, "etcd answers again");
  trouble_.why = why;
  trouble_.is_answered = why.empty();
  if (why == trouble_.said || now < trouble_.next) return;
  say(log_level::warning, "a request to etcd failed: " + why);
  trouble_.said = why;
  trouble_.next = now + options_.lease;
}

TENSORHUB_DECL void election::fail(time_point now, const std::string& why) {
  const bool revoking = std::holds_alternative<etcd_requests::revoke_lease>(pending_->body);
  pending_.reset();
  next_request_ = now + options_.poll;
  set_trouble(now, why.empty() ? "no answer" : why);
  if (revoking) abandoned_ = 0;  // the lease ends by itself
  // etcd may have carried out the request. `look` will show it; a lease that is not renewed ends.
  if (state_ == election_state::candidate) state_ = election_state::follower;
}

TENSORHUB_DECL time_point election::safe_end(std::int64_t seconds) const noexcept {
  const std::int64_t bounded = std::clamp<std::int64_t>(seconds, 0, 86'400);
  return pending_->sent + (std::chrono::seconds{bounded} - options_.margin);
}

TENSORHUB_DECL void election::on(time_point now, const etcd_answers::lease& answer) {
  const bool grants = std::holds_alternative<etcd_requests::grant_lease>(pending_->body);
  const bool renews = std::holds_alternative<etcd_requests::keep_alive>(pending_->body);
  if (!grants && !renews) return fail(now, "an answer to another question");
  if (answer.seconds <= 0 && grants) return fail(now, "etcd has granted no lease");
  if (answer.seconds <= 0) return depose("etcd has given its lease up");
  const time_point end = safe_end(answer.seconds);
  pending_.reset();
  set_trouble(now, {});
  if (grants) {
    lease_ = asked_lease_;
    leads_until_ = end;
    next_request_ = now;
  } else {
    leads_until_ = std::max(leads_until_, end);
    look_next_ = true;
    next_request_ = now;
  }
}

TENSORHUB_DECL void election::on(time_point now, const etcd_answers::revoked&) {
  if (!std::holds_alternative<etcd_requests::revoke_lease>(pending_->body))
    return fail(now, "an answer to another question");
  pending_.reset();
  abandoned_ = 0;
  next_request_ = std::max(now + options_.poll, rests_until_);
}

TENSORHUB_DECL void election::on(time_point now, const etcd_answers::situation& answer) {
  const bool took = std::holds_alternative<etcd_requests::take>(pending_->body);
  if (!took && !std::holds_alternative<etcd_requests::look>(pending_->body))
    return fail(now, "an answer to another question");
  const std::uint64_t asked_term = took ? std::get<etcd_requests::take>(pending_->body).term : 0;
  pending_.reset();
  set_trouble(now, {});
  highest_term_ = std::max(highest_term_, answer.term.value_or(0));
  if (took && answer.taken) return lead(now, asked_term);
  leader_address_ = answer.leader_address;
  if (state_ == election_state::leader) {
    if (answer.leader_lease != lease_) return depose("its key in etcd is gone");
    look_next_ = false;
    next_request_ = now + options_.keep_alive;
    return;
  }
  // An earlier `take` succeeded, but its answer was lost. Its term is there still, or another program has
  // written one, in which nobody may lead: it may have had a leader.
  if (lease_ != 0 && answer.leader_lease == lease_ && answer.term == next_term_) return lead(now, next_term_);
  if (answer.leader_lease == etcd_answers::no_lease) {
    say_hopeless("the key tensorhub/" + options_.name + "/leader has no lease, so it never ends by itself: " +
                 "another program wrote it; delete it (etcdctl del tensorhub/" + options_.name + "/leader)");
  }
  if (answer.leader_lease != 0) return follow(now);
  campaign(now, answer);
}

TENSORHUB_DECL void election::say_hopeless(const std::string& why) {
  if (std::exchange(hopeless_, why) != why) say(log_level::error, why);
}

TENSORHUB_DECL void election::campaign(time_point now, const etcd_answers::situation& seen) {
  const bool nonsense = seen.term_revision != 0 && !seen.term;
  if (nonsense || highest_term_ >= server_term_max) {
    const std::string way_out =
        "stop the servers and the workers of this election, delete its key (etcdctl del tensorhub/" +
        options_.name + "/term), and start them again";
    say_hopeless((nonsense ? "its term key in etcd holds no number: another program writes to it; "
                           : "no term is left after " + std::to_string(highest_term_) + ": ") +
                 way_out);
    return follow(now);
  }
  if (now < rests_until_) return follow(now);
  hopeless_.clear();
  state_ = election_state::candidate;
  term_revision_ = seen.term_revision;
  next_term_ = std::max({options_.first_term, seen.term.value_or(0) + 1, highest_term_ + 1});
  if (now >= leads_until_) abandon();  // the lease of an earlier attempt is too old
  next_request_ = now;
}

TENSORHUB_DECL void election::lead(time_point now, std::uint64_t term) {
  term_ = term;
  highest_term_ = std::max(highest_term_, term);
  leader_address_ = options_.address;
  if (now >= leads_until_) {  // too late: the lease may have ended since
    say(log_level::warning, "term " + std::to_string(term) + " was won too late to be used");
    return follow(now);
  }
  state_ = election_state::leader;
  look_next_ = false;
  next_request_ = now;
  say(log_level::info, "this server leads, in term " + std::to_string(term));
}

}  // namespace tensorhub::inline TENSORHUB_MODE
