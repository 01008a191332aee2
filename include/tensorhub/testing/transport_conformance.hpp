#pragma once
/// \file transport_conformance.hpp
/// The conformance suite for transports: each promise of concepts/transport.hpp is a rule that can fail.
///
///     using namespace tensorhub::testing;
///     const conformance_subject<my_transport> subject;      // how to make, kill and stop a process of it
///     for (const auto& rule : transport_rules<my_transport>()) {
///       const transport_rule_result result = check_rule(rule, subject);
///       for (const std::string& sentence : result.sentences) ...; // empty: the rule holds
///     }
///
/// Or call `check_transport(subject)` for all rules at once. No test framework is needed; with one, make each
/// rule a test case (tests/conformance/memory_transport.cpp). Mutants check the suite itself: they are broken
/// transports, each of which must fail the rule for its fault.
///
/// The rules cannot check what other processes of the system see (all processes of the suite are objects in
/// one process), performance, and bytes that a device writes later than the traffic for which the rules wait.
///
/// Thread safety: rules start threads of their own if they need them; one rule at a time per subject.

#include <array>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/conformance/fixture.hpp"
#include "tensorhub/testing/conformance/key_rules.hpp"
#include "tensorhub/testing/conformance/peer_rules.hpp"
#include "tensorhub/testing/conformance/queue_rules.hpp"
#include "tensorhub/testing/conformance/read_rules.hpp"
#include "tensorhub/testing/conformance/source_rules.hpp"
#include "tensorhub/testing/conformance/watchdog.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// One rule. `promise` is the number in the concept's header; 0: the rule is from the requirement table.
template <transport T>
struct transport_rule {
  std::string_view name;
  int promise = 0;
  std::vector<std::string> (*check)(conformance_fixture<T>&) = nullptr;
};

/// All rules, in the order of the concept's promises.
template <transport T>
[[nodiscard]] const auto& transport_rules() noexcept {
  namespace rules = conformance_rules;
  static const std::array all{
      transport_rule<T>{"every_size_arrives", 2, rules::every_size_arrives<T>},
      transport_rule<T>{"reads_at_the_limit", 0, rules::reads_at_the_limit<T>},
      transport_rule<T>{"many_reads_complete_once", 1, rules::many_reads_complete_once<T>},
      transport_rule<T>{"errors_complete_once", 1, rules::errors_complete_once<T>},
      transport_rule<T>{"ordered_reads_look_in_order", 0, rules::ordered_reads_look_in_order<T>},
      transport_rule<T>{"poll_respects_the_span", 1, rules::poll_respects_the_span<T>},
      transport_rule<T>{"wait_ends_with_a_completion", 0, rules::wait_ends_with_a_completion<T>},
      transport_rule<T>{"wake_ends_wait", 0, rules::wake_ends_wait<T>},
      transport_rule<T>{"queues_of_two_threads", 0, rules::queues_of_two_threads<T>},
      transport_rule<T>{"misfit_is_local_error", 0, rules::misfit_is_local_error<T>},
      transport_rule<T>{"dead_peer_ends_reads", 1, rules::dead_peer_ends_reads<T>},
      transport_rule<T>{"silent_peer_ends_reads", 1, rules::silent_peer_ends_reads<T>},
      transport_rule<T>{"closed_endpoint_cancels", 1, rules::closed_endpoint_cancels<T>},
      transport_rule<T>{"closed_endpoint_spares_others", 1, rules::closed_endpoint_spares_others<T>},
      transport_rule<T>{"lost_source_spares_others", 1, rules::lost_source_spares_others<T>},
      transport_rule<T>{"closed_queue_writes_nothing", 1, rules::closed_queue_writes_nothing<T>},
      transport_rule<T>{"out_of_bounds_is_denied", 3, rules::out_of_bounds_is_denied<T>},
      transport_rule<T>{"changed_description_is_denied", 3, rules::changed_description_is_denied<T>},
      transport_rule<T>{"forged_key_is_denied", 3, rules::forged_key_is_denied<T>},
      transport_rule<T>{"keys_are_not_counted", 3, rules::keys_are_not_counted<T>},
      transport_rule<T>{"foreign_key_is_denied", 3, rules::foreign_key_is_denied<T>},
      transport_rule<T>{"stale_key_is_denied", 3, rules::stale_key_is_denied<T>},
      transport_rule<T>{"deregistered_is_denied", 3, rules::deregistered_is_denied<T>},
      transport_rule<T>{"local_region_is_denied", 3, rules::local_region_is_denied<T>},
      transport_rule<T>{"endpoint_after_access_errors", 3, rules::endpoint_after_access_errors<T>},
      transport_rule<T>{"queue_full_posts_nothing", 4, rules::queue_full_posts_nothing<T>},
      transport_rule<T>{"no_later_bytes", 5, rules::no_later_bytes<T>},
      transport_rule<T>{"no_later_bytes_while_reading", 5, rules::no_later_bytes_while_reading<T>},
      transport_rule<T>{"cut_off_is_final", 5, rules::cut_off_is_final<T>},
      transport_rule<T>{"registration_is_all_or_nothing", 6, rules::registration_is_all_or_nothing<T>},
      transport_rule<T>{"registered_bytes_add_up", 0, rules::registered_bytes_add_up<T>},
      transport_rule<T>{"other_incarnation_is_refused", 7, rules::other_incarnation_is_refused<T>},
      transport_rule<T>{"one_process_is_several", 0, rules::one_process_is_several<T>},
      transport_rule<T>{"renamed_process_is_another", 0, rules::renamed_process_is_another<T>},
      transport_rule<T>{"dead_address_is_refused", 0, rules::dead_address_is_refused<T>},
  };
  return all;
}

/// The findings of a rule: none if the transport keeps it. `skipped` says why the rule does not apply, if so.
struct transport_rule_result {
  std::vector<std::string> sentences;
  std::string skipped;
};

/// Runs one rule. An unexpected exception of the transport, of any type, is a finding and is not rethrown. If
/// the transport does not come back from a call, the process is aborted (`conformance_options::overtime`).
template <transport T>
[[nodiscard]] transport_rule_result check_rule(const transport_rule<T>& rule,
                                               const conformance_subject<T>& subject,
                                               const conformance_options& options = {}) {
  const rule_watchdog watching{T::name, rule.name, options.deadline + options.overtime};
  conformance_fixture<T> fixture{subject, options};
  transport_rule_result result;
  try {
    result.sentences = rule.check(fixture);
  } catch (const std::exception& thrown) {
    result.sentences.push_back(std::string{"thrown: "} + thrown.what());
  } catch (...) {
    result.sentences.emplace_back(thrown_otherwise);
  }
  result.skipped = fixture.skipped();
  return result;
}

struct violation {
  std::string_view rule;
  int promise = 0;
  std::string sentence;
};

/// Runs all rules. Empty: the transport keeps those that apply to the subject (`check_rule` says which do
/// not).
template <transport T>
[[nodiscard]] std::vector<violation> check_transport(const conformance_subject<T>& subject = {},
                                                     const conformance_options& options = {}) {
  std::vector<violation> violations;
  for (const transport_rule<T>& rule : transport_rules<T>()) {
    for (std::string& sentence : check_rule(rule, subject, options).sentences)
      violations.push_back({rule.name, rule.promise, std::move(sentence)});
  }
  return violations;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
