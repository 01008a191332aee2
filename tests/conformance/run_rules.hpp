#pragma once
/// \file run_rules.hpp
/// Runs the conformance suite as doctest subcases, one per rule.

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <string>

#include "tensorhub/testing/transport_conformance.hpp"

/// Notes an outcome for the table of ./tests/conformance/table, if that asked for it.
inline void note_outcome(const std::string& rule, const std::string& outcome) {
  const char* const path = std::getenv("TENSORHUB_CONFORMANCE_OUTCOMES");
  if (path == nullptr) return;
  std::ofstream{path, std::ios::app} << doctest::getContextOptions()->currentTest->m_name << "\t" << rule
                                     << "\t" << outcome << "\n";
}

/// Rules that a transport is known not to keep, each with a reason and a date.
using rule_exclusions = std::map<std::string, std::string>;

template <tensorhub::transport T>
void run_rules(const tensorhub::testing::conformance_subject<T>& subject,
               const tensorhub::testing::conformance_options& options = {},
               const rule_exclusions& exclusions = {}) {
  for (const auto& rule : tensorhub::testing::transport_rules<T>()) {
    const std::string name{rule.name};
    SUBCASE(name.c_str()) {
      if (const auto excluded = exclusions.find(name); excluded != exclusions.end()) {
        note_outcome(name, "excluded");
        std::cout << T::name << ": " << name << " is excluded: " << excluded->second << "\n";
        continue;  // not return: doctest must see that there are further subcases
      }
      const auto result = tensorhub::testing::check_rule(rule, subject, options);
      for (const std::string& sentence : result.sentences)
        FAIL_CHECK(name << " (promise " << rule.promise << "): " << sentence);
      CHECK_MESSAGE(result.sentences.empty(), name);
      note_outcome(name, !result.sentences.empty() ? "BROKEN"
                         : result.skipped.empty()  ? "kept"
                                                   : "does not apply");
      if (!result.skipped.empty())
        std::cout << T::name << ": " << name << " does not apply: " << result.skipped << "\n";
    }
  }
}
