#pragma once
/// \file etcd.ipp
/// Definitions of etcd.hpp.

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <string>

#include "tensorhub/detail/exception_text.hpp"
#include "tensorhub/detail/random_id.hpp"
#include "tensorhub/detail/started_thread.hpp"
#include "tensorhub/etcd.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL time_point boot_clock::now() const noexcept {
  timespec at{};
  ::clock_gettime(CLOCK_BOOTTIME, &at);
  return {static_cast<std::int64_t>(at.tv_sec) * 1'000'000'000 + at.tv_nsec};
}

TENSORHUB_DECL standby_candidate::standby_candidate(options how, server_maker make_server)
    : options_{checked(std::move(how))},
      make_server_{std::move(make_server)},
      etcd_{options_.etcd},
      core_{options_.election, detail::random_id<server_epoch>().value} {
  thread_ = detail::started_thread("the election", [this](const std::stop_token& stop) { run(stop); });
}

TENSORHUB_DECL reference_server_statistics standby_candidate::statistics() const {
  const std::lock_guard lock{mutex_};
  return server_ ? server_->statistics() : reference_server_statistics{};
}

TENSORHUB_DECL std::vector<model_versions> standby_candidate::versions() const {
  const std::lock_guard lock{mutex_};
  return server_ ? server_->versions() : std::vector<model_versions>{};
}

TENSORHUB_DECL void standby_candidate::allow(const std::string& key, const client_rules& rules) {
  const std::lock_guard lock{mutex_};
  check_allowable(options_.server.security.has_value(), key);
  options_.server.security->allowed_clients.insert_or_assign(key, rules);
  if (server_) server_->allow(key, rules);
}

TENSORHUB_DECL bool standby_candidate::revoke(const std::string& key) {
  const std::lock_guard lock{mutex_};
  if (!options_.server.security) return false;
  const bool known = options_.server.security->allowed_clients.erase(key) > 0;
  if (server_) server_->revoke(key);
  return known;
}

TENSORHUB_DECL standby_candidate::options standby_candidate::checked(options how) {
  const std::string& address = how.server.address;
  if (address.empty() || address.ends_with(":0") || address.ends_with('*')) {
    throw error(errc::invalid_argument,
                "standby_server_options::server.address '" + address +
                    "' needs a port of its own: the workers have to know it before this one leads");
  }
  if (how.server.security) validate(*how.server.security);
  if (how.election.address.empty()) how.election.address = address;
  how.election = validated(std::move(how.election));
  if (how.server.log) {
    how.server.log = [log = never_throwing(std::move(how.server.log)),
                      one = std::make_shared<std::mutex>()](const log_line& line) {
      const std::lock_guard lock{*one};
      log(line);
    };
  }
  return how;
}

TENSORHUB_DECL void standby_candidate::run(const std::stop_token& stop) {
  static constexpr std::chrono::milliseconds pause_after_failure{10};
  warn_of_plain_endpoints();
  while (!stop.stop_requested()) {
    try {
      core_.advance(clock_.now());
      settle();
      if (const auto request = core_.take_request(clock_.now())) {
        ask(*request);
        settle();
        continue;
      }
      sleep_until(stop, core_.next_deadline());
    } catch (...) {  // no memory, no thread: the fence ends the term if this goes on
      say_failure();
      sleep_until(stop, clock_.now() + pause_after_failure);
    }
  }
  stop_server();
  give_back_lease();
}

TENSORHUB_DECL void standby_candidate::warn_of_plain_endpoints() const noexcept {
  try {
    const std::string plain = plain_endpoints(options_.etcd);
    if (plain.empty()) return;
    say({log_level::warning,
         "etcd is asked in the clear at " + plain +
             ": whoever is on that network can end this server, or lead in its place; use https://",
         {}});
  } catch (...) {
    say_failure();
  }
}

TENSORHUB_DECL void standby_candidate::say_failure() const noexcept {
  try {
    say({log_level::error, "the election's thread has failed, and goes on: " + detail::exception_text(), {}});
  } catch (...) {  // no memory even for the words
  }
}

TENSORHUB_DECL void standby_candidate::give_back_lease() noexcept {
  const std::int64_t lease = core_.lease();
  if (lease == 0) return;
  try {
    const etcd_request last{0, {}, etcd_requests::revoke_lease{lease}};
    static_cast<void>(etcd_.ask(options_.election.name, last, options_.election.answer_time));
  } catch (...) {  // no memory: etcd ends the lease by itself
  }
}

TENSORHUB_DECL void standby_candidate::ask(const etcd_request& request) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(request.until - clock_.now());
  const etcd_answer answer = etcd_.ask(options_.election.name, request, left);
  core_.receive(clock_.now(), request.number, answer);
}

TENSORHUB_DECL void standby_candidate::settle() {
  if (core_.state() == election_state::leader) {
    fence_->set(core_.leads_until());
    if (!server_) start_server();
    if (server_ && server_->hangs_for() > 2 * options_.election.lease) {
      core_.resign(clock_.now(), "its server does not run any more: it hangs, perhaps in its log");
      fence_->set({INT64_MIN});
    }
  }
  if (core_.state() != election_state::leader && server_) stop_server();
  core_.stopped(clock_.now());
  etcd_answers_ = core_.etcd_answers();
  for (const log_line& line : core_.take_log()) say(line);
}

TENSORHUB_DECL void standby_candidate::start_server() {
  term_ = core_.term();
  const std::lock_guard lock{mutex_};
  reference_server_options how = options_.server;
  how.term = core_.term();
  how.may_serve = [fence = fence_] { return fence->open(); };
  try {
    server_ = make_server_(std::move(how));
  } catch (const error& e) {
    core_.resign(clock_.now(), e.sentence());
    fence_->set({INT64_MIN});
  } catch (...) {  // no memory, or what a policy's constructor throws
    core_.resign(clock_.now(), detail::exception_text());
    fence_->set({INT64_MIN});
  }
}

TENSORHUB_DECL void standby_candidate::stop_server() {
  fence_->set({INT64_MIN});
  std::unique_ptr<catalog_server> last;
  const std::lock_guard lock{mutex_};
  last = std::move(server_);  // the server is destroyed after the mutex is released
}

TENSORHUB_DECL void standby_candidate::sleep_until(const std::stop_token& stop, time_point until) {
  const auto longest = std::chrono::milliseconds{1000};
  const duration left = std::clamp<duration>(until - clock_.now(), duration{0}, longest);
  std::unique_lock lock{sleep_mutex_};
  wake_.wait_for(lock, stop, left, [] { return false; });
}

TENSORHUB_DECL void standby_candidate::say(const log_line& line) const {
  if (options_.server.log && line.level <= options_.server.level) options_.server.log(line);
}

}  // namespace tensorhub::inline TENSORHUB_MODE
