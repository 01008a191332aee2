#pragma once
/// \file run_rules.hpp
/// Runs the conformance suite as doctest subcases, one per rule.

#include <doctest/doctest.h>

#include <iostream>
#include <string>

#include "tensorhub/testing/transport_conformance.hpp"

template <tensorhub::transport T>
void run_rules(const tensorhub::testing::conformance_subject<T>& subject,
               const tensorhub::testing::conformance_options& options = {}) {
  for (const auto& rule : tensorhub::testing::transport_rules<T>()) {
    const std::string name{rule.name};
    SUBCASE(name.c_str()) {
      const auto result = tensorhub::testing::check_rule(rule, subject, options);
      for (const std::string& sentence : result.sentences)
        FAIL_CHECK(name << " (promise " << rule.promise << "): " << sentence);
      CHECK_MESSAGE(result.sentences.empty(), name);
      if (!result.skipped.empty())
        std::cout << T::name << ": " << name << " does not apply: " << result.skipped << "\n";
    }
  }
}
