#pragma once
/// \file run_rules.hpp
/// Runs the conformance suite as doctest subcases, one per rule.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <iostream>
#include <map>
#include <string>

#include "support/sanitizers.hpp"
#include "tensorhub/testing/transport_conformance.hpp"

/// Rules that a transport is known not to keep, each with a reason and a date.
using rule_exclusions = std::map<std::string, std::string>;

template <tensorhub::transport T>
void run_rules(const tensorhub::testing::conformance_subject<T>& subject,
               const tensorhub::testing::conformance_options& options = {},
               const rule_exclusions& exclusions = {}) {
  tensorhub::testing::conformance_options here = options;
  // The thread sanitizer sees by the order of two accesses that they race, whatever comes of it.
  if (TENSORHUB_UNDER_THREAD_SANITIZER) here.rounds = std::min<std::size_t>(here.rounds, 2);
  for (const auto& rule : tensorhub::testing::transport_rules<T>()) {
    const std::string name{rule.name};
    SUBCASE(name.c_str()) {
      if (const auto excluded = exclusions.find(name); excluded != exclusions.end()) {
        std::cout << T::name << ": " << name << " is excluded: " << excluded->second << "\n";
        continue;  // not return: doctest must see that there are further subcases
      }
      const auto result = tensorhub::testing::check_rule(rule, subject, here);
      for (const std::string& sentence : result.sentences)
        FAIL_CHECK(name << " (promise " << rule.promise << "): " << sentence);
      CHECK_MESSAGE(result.sentences.empty(), name);
      if (!result.skipped.empty())
        std::cout << T::name << ": " << name << " does not apply: " << result.skipped << "\n";
    }
  }
}
