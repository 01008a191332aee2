#pragma once
/// \file policy_conformance.hpp
/// Conformance suites for policies: the requirements of concepts/ that a compiler cannot check.
///
///     for (const rule_result& result : check_scheduler<my_scheduler>())
///       CHECK_MESSAGE(result.ok(), to_string(result));
///
/// A suite is a list of rules. Each rule is a function that returns the violations that it found, as
/// sentences. Any test framework can therefore run a suite, and a test can show that a wrong policy (a
/// mutant) fails the rule for its fault. All inputs are fixed or made from fixed seeds.

#include "tensorhub/testing/policy_conformance/consistency.hpp"
#include "tensorhub/testing/policy_conformance/integrity.hpp"
#include "tensorhub/testing/policy_conformance/rule.hpp"
#include "tensorhub/testing/policy_conformance/scheduler.hpp"
