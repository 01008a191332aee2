#pragma once
/// \file consistency.hpp
/// Rules for every consistency policy, over all small views: versions up to 4, in each combination that a
/// catalog can show.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "tensorhub/concepts/consistency.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/policy_conformance/rule.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// One question to a policy: a selector and a view.
struct consistency_case {
  version_selector selector{};
  version_view view{};
};

[[nodiscard]] inline std::string to_string(const consistency_case& question) {
  return to_string(question.selector) + " (available up to " + to_string(question.view.latest_available) +
         ", ever " + to_string(question.view.latest_ever) + ", held " + to_string(question.view.held) +
         (question.view.wanted_available ? ", it is available)" : ")");
}

[[nodiscard]] inline std::string to_string(const version_decision& decision) {
  static constexpr const char* kinds[] = {"take", "keep", "wait", "refuse"};
  const auto kind = static_cast<std::size_t>(decision.kind);
  return std::string{kind < std::size(kinds) ? kinds[kind] : "unknown"} + " " + to_string(decision.version) +
         " " + std::string{tensorhub::to_string(decision.reason)};
}

/// All cases. An available or held version was complete once, so it is at most `latest_ever`.
[[nodiscard]] inline std::vector<consistency_case> all_consistency_cases() {
  constexpr std::uint64_t top = 4;
  using kind = version_selector::kind_type;
  std::vector<consistency_case> cases;
  for (std::uint64_t ever = 0; ever <= top; ++ever) {
    for (std::uint64_t available = 0; available <= ever; ++available) {
      for (std::uint64_t held = 0; held <= ever; ++held) {
        const version_view view{available, ever, held, false};
        cases.push_back({latest, view});
        for (std::uint64_t wanted = 0; wanted <= top + 1; ++wanted) {
          cases.push_back({{kind::at_least, wanted}, view});
          if (wanted == 0) continue;  // no selector asks for exactly "no version"
          // The latest available version is available, and no higher one is; a lower one may be.
          if (wanted >= available) {
            cases.push_back({{kind::exactly, wanted}, {available, ever, held, wanted == available}});
          } else {
            cases.push_back({{kind::exactly, wanted}, {available, ever, held, false}});
            cases.push_back({{kind::exactly, wanted}, {available, ever, held, true}});
          }
        }
      }
    }
  }
  return cases;
}

/// `Make` makes a policy; two policies that it makes must behave alike.
template <consistency C, typename Make>
struct consistency_rules {
  using kind = version_decision::kind_type;
  using selector_kind = version_selector::kind_type;

  /// "Pure": a repeated question has the same answer, in another order, from another object, or after others.
  static violations pure(const Make& make) {
    violations seen;
    const C policy = make();
    const std::vector<consistency_case> cases = all_consistency_cases();
    std::vector<version_decision> answers;
    for (const consistency_case& question : cases)
      answers.push_back(policy.decide(question.selector, question.view));
    const C other = make();
    for (std::size_t i = cases.size(); i-- > 0;) {
      const consistency_case elsewhere = cases[i];
      for (const C* either : {&policy, &other}) {
        const version_decision again = either->decide(elsewhere.selector, elsewhere.view);
        seen.require(same(again, answers[i]), to_string(elsewhere) + ": " + to_string(answers[i]) +
                                                  ", and when question again " + to_string(again));
      }
    }
    return seen;
  }

  /// "`take` names an available version": one that the view calls available.
  static violations takes_what_is_available(const Make& make) {
    return each(make, [](const consistency_case& question, const version_decision& decision) {
      if (decision.kind != kind::take) return true;
      if (!decision.version) return false;
      const bool wanted = question.selector.kind == selector_kind::exactly &&
                          question.view.wanted_available && decision.version == question.selector.version;
      return wanted || decision.version == question.view.latest_available;
    });
  }

  /// "A version that is held is never taken again."
  static violations never_takes_what_is_held(const Make& make) {
    return each(make, [](const consistency_case& question, const version_decision& decision) {
      return decision.kind != kind::take || decision.version != question.view.held;
    });
  }

  /// `keep` concerns the held version: the decision names that version, and there is one.
  static violations keeps_what_is_held(const Make& make) {
    return each(make, [](const consistency_case& question, const version_decision& decision) {
      return decision.kind != kind::keep || (question.view.held && decision.version == question.view.held);
    });
  }

  /// "`exactly(v)` yields v or nothing."
  static violations exactly_is_exact(const Make& make) {
    return each(make, [](const consistency_case& question, const version_decision& decision) {
      const bool yields = decision.kind == kind::take || decision.kind == kind::keep;
      return question.selector.kind != selector_kind::exactly || !yields ||
             decision.version == question.selector.version;
    });
  }

  /// `at_least(v)` never yields less than v.
  static violations at_least_is_a_bound(const Make& make) {
    return each(make, [](const consistency_case& question, const version_decision& decision) {
      const bool yields = decision.kind == kind::take || decision.kind == kind::keep;
      return question.selector.kind != selector_kind::at_least || !yields ||
             decision.version >= question.selector.version;
    });
  }

  /// The behaviour "if it is not there" (types/version_number.hpp): only an `exactly` of a past version is
  /// refused, as `unavailable`; all other selectors wait.
  static violations waits_or_refuses_as_the_selector_says(const Make& make) {
    return each(make, [](const consistency_case& question, const version_decision& decision) {
      const auto& [selector, view] = question;
      if (selector.kind != selector_kind::exactly) {
        const version_number best = view.held > view.latest_available ? view.held : view.latest_available;
        const bool there = best && best >= selector.version;
        return decision.kind != kind::refuse && (there || decision.kind == kind::wait);
      }
      const bool past =
          !view.wanted_available && selector.version != view.held && selector.version <= view.latest_ever;
      if (past) return decision.kind == kind::refuse && decision.reason == errc::unavailable;
      return decision.kind != kind::refuse;
    });
  }

  /// A policy waits only if no available or held version satisfies the selector.
  static violations does_not_wait_for_what_is_there(const Make& make) {
    return each(make, [](const consistency_case& question, const version_decision& decision) {
      const auto& [selector, view] = question;
      bool there = view.wanted_available || (view.held && selector.version == view.held);
      if (selector.kind != selector_kind::exactly) {
        const version_number best = view.held > view.latest_available ? view.held : view.latest_available;
        there = best && best >= selector.version;
      }
      return !there || decision.kind != kind::wait;
    });
  }

  /// Only a refusal has a reason, and every refusal has one: the user reads it as a sentence.
  static violations a_refusal_says_why(const Make& make) {
    return each(make, [](const consistency_case&, const version_decision& decision) {
      return (decision.kind == kind::refuse) == (decision.reason != errc::ok);
    });
  }

 private:
  static bool same(const version_decision& a, const version_decision& b) {
    return a.kind == b.kind && a.version == b.version && a.reason == b.reason;
  }
  /// A fresh policy per case: the rule `pure` finds impure ones.
  template <typename Holds>
  static violations each(const Make& make, const Holds& holds) {
    violations seen;
    for (const consistency_case& question : all_consistency_cases()) {
      const C policy = make();
      const version_decision decision = policy.decide(question.selector, question.view);
      if (!holds(question, decision)) seen.add(to_string(question) + ": " + to_string(decision));
    }
    return seen;
  }
};

/// Runs all rules.
template <consistency C, typename Make>
[[nodiscard]] std::vector<rule_result> check_consistency(const Make& make) {
  using rules = consistency_rules<C, Make>;
  std::vector<rule_result> results;
  results.push_back({"pure", rules::pure(make)});
  results.push_back({"takes_what_is_available", rules::takes_what_is_available(make)});
  results.push_back({"never_takes_what_is_held", rules::never_takes_what_is_held(make)});
  results.push_back({"keeps_what_is_held", rules::keeps_what_is_held(make)});
  results.push_back({"exactly_is_exact", rules::exactly_is_exact(make)});
  results.push_back({"at_least_is_a_bound", rules::at_least_is_a_bound(make)});
  results.push_back(
      {"waits_or_refuses_as_the_selector_says", rules::waits_or_refuses_as_the_selector_says(make)});
  results.push_back({"does_not_wait_for_what_is_there", rules::does_not_wait_for_what_is_there(make)});
  results.push_back({"a_refusal_says_why", rules::a_refusal_says_why(make)});
  return results;
}
template <consistency C>
[[nodiscard]] std::vector<rule_result> check_consistency() {
  return check_consistency<C>([] { return C{typename C::options{}}; });
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
