#pragma once
/// \file policy_conformance.hpp
/// Conformance suites for policies: what the requirement tables of concepts/ say beyond what a compiler sees.
///
///     for (const rule_result& result : check_scheduler<my_scheduler>())
///       CHECK_MESSAGE(result.ok(), to_string(result));
///
/// A suite is a list of rules. Each rule is a function of its own that returns what it saw violated, in
/// sentences, so that a suite can be run by any test framework, and a lying policy (a mutant) can be shown to
/// be caught by the rule that forbids the lie. All inputs are fixed or made from fixed seeds.

#include "tensorhub/testing/policy_conformance/consistency.hpp"
#include "tensorhub/testing/policy_conformance/integrity.hpp"
#include "tensorhub/testing/policy_conformance/rule.hpp"
#include "tensorhub/testing/policy_conformance/scheduler.hpp"
