/// The conformance suite on broken transports: each fails exactly the rules that name its fault, and every
/// rule is failed by one of them at least.

#include "support/transport_mutants.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "support/child_process.hpp"
#include "tensorhub/testing/memory_transport.hpp"
#include "tensorhub/testing/transport_conformance.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;

namespace {

using conformance_rules::under_thread_sanitizer;
using rule_names = std::set<std::string>;

/// The rules in which a fault may be a data race of the test itself.
const rule_names racing_rules{"no_later_bytes_while_reading", "ordered_reads_look_in_order"};

/// Rules that some mutant has failed so far.
rule_names& failed_by_some() {
  static rule_names names;
  return names;
}

std::string joined(const rule_names& names) {
  std::string text;
  for (const std::string& each : names) text += (text.empty() ? "" : ", ") + each;
  return text.empty() ? "nothing" : text;
}

template <typename Broken>
conformance_subject<Broken> subject_of(fault kind) {
  conformance_subject<Broken> subject;
  subject.make = [kind](incarnation self) {
    typename Broken::options options;
    options.kind = kind;
    options.base.peer_timeout = std::chrono::milliseconds{50};
    return std::make_unique<Broken>(options, self);
  };
  subject.kill = [](Broken& victim) { victim.base().kill(); };
  subject.stall = [](Broken& victim) { victim.base().stall(); };
  return subject;
}

/// Runs all rules on the mutant; requires that the expected ones fail and no other. `deadline` is for the
/// expected rules: a fault that shows as a wait without end should not take the usual one.
template <mutant_claim claim = mutant_claim::none>
void expect_failures(fault kind, const char* what, const rule_names& expected,
                     std::chrono::milliseconds deadline = conformance_options{}.deadline) {
  using broken = mutant<memory_transport, claim>;
  static_assert(transport<broken>);
  const conformance_subject<broken> subject = subject_of<broken>(kind);
  rule_names failed;
  std::string first;
  for (const auto& rule : transport_rules<broken>()) {
    const std::string name{rule.name};
    conformance_options options;
    options.largest_read_bytes = 256u << 10;
    options.concurrent_overwrites = !under_thread_sanitizer;
    if (expected.contains(name)) options.deadline = deadline;
    const transport_rule_result result = check_rule(rule, subject, options);
    if (result.sentences.empty()) continue;
    failed.insert(name);
    if (first.empty() || !expected.contains(name)) first = name + ": " + result.sentences.front();
  }
  rule_names wanted = expected;
  if (under_thread_sanitizer)
    for (const std::string& name : racing_rules) wanted.erase(name);
  std::cout << "mutant " << what << " -> " << joined(failed) << "\n";
  failed_by_some().insert(failed.begin(), failed.end());
  if (failed != wanted) MESSAGE(what << " failed " << joined(failed) << "; " << first);
  CHECK(failed == wanted);
}

void require_every_rule_failed() {
  for (const auto& rule : transport_rules<memory_transport>()) {
    const std::string name{rule.name};
    if (under_thread_sanitizer && racing_rules.contains(name)) continue;
    CHECK_MESSAGE(failed_by_some().contains(name), name << " was failed by no mutant");
  }
}

}  // namespace

#define EXPECT_FAILURES(kind, ...) expect_failures(fault::kind, #kind, __VA_ARGS__)

/// Mutants that mistake who somebody is.
void expect_failures_of_names() {
  EXPECT_FAILURES(any_incarnation,
                  {"other_incarnation_is_refused", "one_process_is_several", "renamed_process_is_another"});
  EXPECT_FAILURES(keeps_its_name, {"renamed_process_is_another"});
  EXPECT_FAILURES(rename_forgets, {"no_later_bytes", "no_later_bytes_while_reading", "cut_off_is_final",
                                   "renamed_process_is_another"});
  EXPECT_FAILURES(never_dismisses, {"one_process_is_several"});
  EXPECT_FAILURES(reads_as_the_first, {"one_process_is_several"});
  EXPECT_FAILURES(connects_to_nobody, {"dead_address_is_refused"});
}

/// Mutants whose `wait` does not end when it should.
void expect_failures_of_waits() {
  EXPECT_FAILURES(ignores_wake, {"wake_ends_wait"}, std::chrono::milliseconds{1000});
  EXPECT_FAILURES(deaf_while_reading, {"wait_ends_with_a_completion", "silent_peer_ends_reads"},
                  std::chrono::milliseconds{1000});
  EXPECT_FAILURES(sleeps_through, {"wait_ends_with_a_completion", "wake_ends_wait", "silent_peer_ends_reads"},
                  std::chrono::milliseconds{1000});
}

/// Mutants whose reads do not complete once.
void expect_failures_of_completions() {
  EXPECT_FAILURES(
      drops_completions,
      {"closed_endpoint_spares_others", "lost_source_spares_others", "many_reads_complete_once",
       "errors_complete_once", "poll_respects_the_span", "queues_of_two_threads", "dead_peer_ends_reads",
       "silent_peer_ends_reads", "closed_endpoint_cancels", "out_of_bounds_is_denied",
       "changed_description_is_denied", "forged_key_is_denied", "stale_key_is_denied", "no_later_bytes",
       "no_later_bytes_while_reading", "cut_off_is_final", "wait_ends_with_a_completion"});
  EXPECT_FAILURES(
      doubles_completions,
      {"closed_endpoint_spares_others", "lost_source_spares_others", "many_reads_complete_once",
       "errors_complete_once", "poll_respects_the_span", "queues_of_two_threads", "dead_peer_ends_reads",
       "silent_peer_ends_reads", "closed_endpoint_cancels", "no_later_bytes", "no_later_bytes_while_reading",
       "cut_off_is_final", "wait_ends_with_a_completion"});
  EXPECT_FAILURES(
      drops_errors,
      {"closed_endpoint_spares_others", "lost_source_spares_others", "errors_complete_once",
       "misfit_is_local_error", "dead_peer_ends_reads", "silent_peer_ends_reads", "closed_endpoint_cancels",
       "out_of_bounds_is_denied", "changed_description_is_denied", "forged_key_is_denied",
       "foreign_key_is_denied", "stale_key_is_denied", "deregistered_is_denied", "local_region_is_denied",
       "endpoint_after_access_errors", "no_later_bytes", "no_later_bytes_while_reading", "cut_off_is_final"});
  EXPECT_FAILURES(drops_peer_lost,
                  {"lost_source_spares_others", "dead_peer_ends_reads", "silent_peer_ends_reads",
                   "no_later_bytes", "no_later_bytes_while_reading", "cut_off_is_final"});
  EXPECT_FAILURES(loses_overflow, {"poll_respects_the_span"});
}

/// Mutants whose reads bring other bytes than they should, or elsewhere.
void expect_failures_of_bytes() {
  expect_failures<mutant_claim::limited>(fault::cut_at_limit, "cut_at_limit",
                                         {"every_size_arrives", "reads_at_the_limit"});
  EXPECT_FAILURES(completes_early, {"closed_endpoint_spares_others",
                                    "lost_source_spares_others",
                                    "every_size_arrives",
                                    "many_reads_complete_once",
                                    "errors_complete_once",
                                    "misfit_is_local_error",
                                    "dead_peer_ends_reads",
                                    "silent_peer_ends_reads",
                                    "closed_endpoint_cancels",
                                    "out_of_bounds_is_denied",
                                    "changed_description_is_denied",
                                    "forged_key_is_denied",
                                    "foreign_key_is_denied",
                                    "stale_key_is_denied",
                                    "deregistered_is_denied",
                                    "local_region_is_denied",
                                    "endpoint_after_access_errors",
                                    "queue_full_posts_nothing",
                                    "no_later_bytes",
                                    "no_later_bytes_while_reading",
                                    "ordered_reads_look_in_order",
                                    "cut_off_is_final"});
  EXPECT_FAILURES(tears, {"closed_endpoint_spares_others", "lost_source_spares_others", "every_size_arrives",
                          "many_reads_complete_once", "errors_complete_once", "queues_of_two_threads",
                          "misfit_is_local_error", "silent_peer_ends_reads", "out_of_bounds_is_denied",
                          "changed_description_is_denied", "forged_key_is_denied", "foreign_key_is_denied",
                          "stale_key_is_denied", "deregistered_is_denied", "local_region_is_denied",
                          "queue_full_posts_nothing", "no_later_bytes", "no_later_bytes_while_reading",
                          "ordered_reads_look_in_order"});
  EXPECT_FAILURES(writes_beside,
                  {"closed_endpoint_spares_others", "lost_source_spares_others", "every_size_arrives",
                   "errors_complete_once", "queues_of_two_threads", "closed_endpoint_cancels",
                   "queue_full_posts_nothing", "no_later_bytes", "no_later_bytes_while_reading"});
  EXPECT_FAILURES(misses_target_bounds, {"misfit_is_local_error"});
}

/// Mutants that do not keep to who may read what.
void expect_failures_of_access() {
  EXPECT_FAILURES(ignores_keys, {"forged_key_is_denied", "foreign_key_is_denied", "stale_key_is_denied",
                                 "deregistered_is_denied", "endpoint_after_access_errors", "no_later_bytes",
                                 "no_later_bytes_while_reading"});
  EXPECT_FAILURES(ignores_bounds, {"out_of_bounds_is_denied", "changed_description_is_denied",
                                   "foreign_key_is_denied", "endpoint_after_access_errors"});
  EXPECT_FAILURES(reads_local_regions, {"local_region_is_denied"});
  EXPECT_FAILURES(breaks_on_denial, {"endpoint_after_access_errors"});
  EXPECT_FAILURES(leaks_count, {"registered_bytes_add_up"});
  EXPECT_FAILURES(leaks_access, {"deregistered_is_denied", "no_later_bytes", "no_later_bytes_while_reading"});
  EXPECT_FAILURES(revoke_does_nothing, {"keys_are_not_counted", "stale_key_is_denied", "no_later_bytes",
                                        "no_later_bytes_while_reading"});
  EXPECT_FAILURES(revoke_keeps_old,
                  {"stale_key_is_denied", "no_later_bytes", "no_later_bytes_while_reading"});
  expect_failures<mutant_claim::sends_by_reference>(
      fault::revoke_does_nothing, "revoke_does_nothing, by reference",
      {"keys_are_not_counted", "stale_key_is_denied", "no_later_bytes", "no_later_bytes_while_reading"});
  EXPECT_FAILURES(ignores_cut_off, {"no_later_bytes", "no_later_bytes_while_reading", "cut_off_is_final",
                                    "one_process_is_several", "renamed_process_is_another"});
  EXPECT_FAILURES(cuts_off_new_only, {"no_later_bytes", "no_later_bytes_while_reading", "cut_off_is_final"});
}

/// Mutants that mistake one read for another.
void expect_failures_of_ids() {
  EXPECT_FAILURES(truncates_ids, {"changed_description_is_denied",
                                  "closed_endpoint_cancels",
                                  "closed_endpoint_spares_others",
                                  "closed_queue_writes_nothing",
                                  "cut_off_is_final",
                                  "dead_peer_ends_reads",
                                  "deregistered_is_denied",
                                  "endpoint_after_access_errors",
                                  "errors_complete_once",
                                  "every_size_arrives",
                                  "foreign_key_is_denied",
                                  "forged_key_is_denied",
                                  "local_region_is_denied",
                                  "lost_source_spares_others",
                                  "many_reads_complete_once",
                                  "misfit_is_local_error",
                                  "no_later_bytes",
                                  "no_later_bytes_while_reading",
                                  "out_of_bounds_is_denied",
                                  "poll_respects_the_span",
                                  "queue_full_posts_nothing",
                                  "queues_of_two_threads",
                                  "silent_peer_ends_reads",
                                  "stale_key_is_denied"});
  EXPECT_FAILURES(
      mixes_top_bits,
      {"closed_endpoint_cancels", "closed_endpoint_spares_others", "cut_off_is_final", "dead_peer_ends_reads",
       "errors_complete_once", "lost_source_spares_others", "many_reads_complete_once", "no_later_bytes",
       "no_later_bytes_while_reading", "poll_respects_the_span", "queue_full_posts_nothing",
       "queues_of_two_threads", "silent_peer_ends_reads"});
}

/// Mutants whose endpoints on one queue depend on one another.
void expect_failures_of_neighbours() {
  EXPECT_FAILURES(closes_neighbours, {"closed_endpoint_spares_others"});
  EXPECT_FAILURES(cuts_off_neighbours, {"closed_endpoint_spares_others"});
  EXPECT_FAILURES(loses_neighbours, {"lost_source_spares_others"});
}

/// Mutants that throw what no transport should throw.
void expect_failures_by_throws() {
  EXPECT_FAILURES(throws_a_number, {"registration_is_all_or_nothing"});
  EXPECT_FAILURES(throws_in_threads, {"queues_of_two_threads"});
}

TEST_CASE("mutants that conform fail nothing") {
  EXPECT_FAILURES(none, {});
  expect_failures<mutant_claim::limited>(fault::none, "none, limited", {});
  expect_failures<mutant_claim::sends_by_reference>(fault::none, "none, by reference", {});
}

TEST_CASE("every mutant fails the rules that name its fault, and every rule is failed by a mutant") {
  expect_failures_of_completions();
  expect_failures_of_bytes();
  expect_failures_of_waits();
  EXPECT_FAILURES(mixes_queues, {"queues_of_two_threads"});
  expect_failures_of_access();
  EXPECT_FAILURES(swaps_reads, {"ordered_reads_look_in_order"});
  EXPECT_FAILURES(posts_when_full, {"queue_full_posts_nothing"});
  EXPECT_FAILURES(no_rollback, {"registration_is_all_or_nothing"});
  expect_failures_of_names();
  expect_failures_of_ids();
  expect_failures_of_neighbours();
  expect_failures_by_throws();
  EXPECT_FAILURES(counts_keys, {"keys_are_not_counted"});
  EXPECT_FAILURES(forgets_cancelled, {"closed_endpoint_spares_others", "closed_endpoint_cancels"});
  EXPECT_FAILURES(writes_after_cancel, {"closed_endpoint_cancels"});
  EXPECT_FAILURES(writes_after_queue, {"closed_queue_writes_nothing"});
  require_every_rule_failed();
}

TEST_CASE("a transport that does not come back from a wait ends the process, which says in which rule") {
  using broken = mutant<memory_transport>;
  processes::child_process child{[] {
    const rlimit none{};  // no core file
    ::setrlimit(RLIMIT_CORE, &none);
    ::signal(SIGABRT, SIG_DFL);
    ::dup2(STDOUT_FILENO, STDERR_FILENO);
    conformance_options options;
    options.deadline = options.overtime = std::chrono::milliseconds{100};
    for (const auto& rule : transport_rules<broken>()) {
      if (rule.name == "misfit_is_local_error")
        static_cast<void>(check_rule(rule, subject_of<broken>(fault::waits_for_ever), options));
    }
    return 0;
  }};
  const std::string line = child.output_line();
  CHECK_MESSAGE(line.find("'misfit_is_local_error'") != std::string::npos, line);
  CHECK_MESSAGE(line.find("'mutant'") != std::string::npos, line);
  CHECK(child.how_it_ended() == "killed by signal " + std::to_string(SIGABRT));
}
