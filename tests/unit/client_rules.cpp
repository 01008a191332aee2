/// \file client_rules.cpp
/// Rules of a key as text, patterns, and sets of rights.

#include "tensorhub/types/client_rules.hpp"

#include <doctest/doctest.h>

#include <string>
#include <tuple>

#include "tensorhub/error.hpp"
#include "tensorhub/key_files.hpp"

using namespace tensorhub;

namespace {

[[nodiscard]] errc refusal_of(const std::string& text) {
  try {
    static_cast<void>(client_rules_of(text));
  } catch (const error& e) {
    return e.code();
  }
  return errc::ok;
}

}  // namespace

TEST_CASE("client rules: one star of a pattern stands for any characters") {
  for (const auto& [pattern, name, expected] : {std::tuple{"*", "policy", true},
                                                {"*", "", true},
                                                {"policy-*", "policy-a", true},
                                                {"policy-*", "policy-", true},
                                                {"policy-*", "policy", false},
                                                {"policy-*", "my-policy-a", false},
                                                {"*-a", "policy-a", true},
                                                {"*-a", "policy-ab", false},
                                                {"a*a", "a", false},
                                                {"a*a", "aa", true},
                                                {"policy", "policy", true},
                                                {"policy", "policy2", false},
                                                {"", "", true},
                                                {"", "x", false}}) {
    const std::string about = std::string{pattern} + " of " + name;
    CHECK_MESSAGE(fits(pattern, name) == expected, about);
  }
}

TEST_CASE("client rules: a key that may be a replica may be its parts") {
  client_rules rules;
  rules.replicas = {"rollout-0", "trainer-*"};
  CHECK(rules.may_be("rollout-0@stage"));
  CHECK(rules.may_be("rollout-0~12"));
  CHECK(rules.may_be("rollout-0@b~12"));
  CHECK(rules.may_be("trainer-3@snapshot-0"));
  CHECK_FALSE(rules.may_be("rollout-00"));
  CHECK_FALSE(rules.may_be("rollout-1@rollout-0"));
  CHECK_FALSE(rules.may_be("@rollout-0"));
  CHECK_FALSE(rules.may_be(""));
}

TEST_CASE("client rules: their text says what they are") {
  const client_rules full =
      client_rules_of("all the rollouts models=policy-*,value replicas=r-* may=read,serve");
  CHECK(full.name == "all the rollouts");
  CHECK(full.models == std::vector<std::string>{"policy-*", "value"});
  CHECK(full.replicas == std::vector<std::string>{"r-*"});
  REQUIRE(full.may.has_value());
  CHECK(*full.may == (right::read | right::serve));
  CHECK(client_rules_of(to_string(full)) == full);
  CHECK(full.may_speak_of("policy-7"));
  CHECK(full.may_speak_of("value"));
  CHECK_FALSE(full.may_speak_of("values"));
  CHECK_FALSE(full.may_be("trainer-0"));
  CHECK_FALSE(full.has_any_of(right::publish | right::evict));

  const client_rules unnamed = client_rules_of("trainers");
  CHECK(unnamed == client_rules{"trainers"});
  CHECK(to_string(unnamed) == "trainers");
  CHECK(unnamed.has_any_of(right::publish));
  CHECK_FALSE(unnamed.has_any_of(right::look | right::evict));
  CHECK(client_rules_of("") == client_rules{});
  CHECK(client_rules_of("may=none").may == rights{});
  CHECK(to_string(rights{}) == "none");
  CHECK(client_rules::everything().has_any_of(right::evict));
}

TEST_CASE("client rules: a text that may mean something else is refused") {
  for (const char* text : {"x may=", "x may=write", "x may=read,,serve", "x model=policy", "x models=a**b",
                           "x models=", "x replicas=a,,b", "x may=read, serve=yes", "x may=read may=evict",
                           "x models=a may=read may=evict", "x models=a models=*", "x replicas=a replicas=a",
                           "x # once had may=evict"}) {
    CAPTURE(text);
    CHECK(refusal_of(text) == errc::invalid_argument);
  }
  CHECK(refusal_of(std::string(limits::client_name_bytes + 1, 'n')) == errc::limit_exceeded);
  CHECK(refusal_of(std::string(limits::client_name_bytes, 'n')) == errc::ok);
}

TEST_CASE("client rules: a later line of an allow-list does not take back what an earlier one says") {
  const std::string key = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
  const auto read = [](const std::string& text) {
    return key_files_detail::allow_list_in(text, "clients.allow", nullptr);
  };
  CHECK(read(key + " spot may=read\n").at(key).may == rights{right::read});
  try {
    static_cast<void>(read(key + " spot may=read\n# 1 keys\n" + key + "\n"));
    FAIL("the second line gives the key more rights than the first one");
  } catch (const error& e) {
    CHECK(e.code() == errc::invalid_argument);
    CHECK(e.sentence().find("line 3") != std::string::npos);
  }
}
