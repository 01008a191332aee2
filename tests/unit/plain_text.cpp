/// \file plain_text.cpp
/// Text that others have chosen: what is plain, how the rest is shown, and which names are refused, at the
/// user's own options and at the server's door.

#include "tensorhub/types/plain_text.hpp"

#include <doctest/doctest.h>

#include <string>
#include <tuple>

#include "catalog_driver.hpp"
#include "tensorhub/options.hpp"

using namespace catalog_test;

namespace {

/// Each would do something to a log or a terminal.
const std::string bad_names[] = {"x\nerror: forged",
                                 "\x1b[2J",
                                 "x\r",
                                 std::string{"x\0y", 3},
                                 "\x7f",
                                 "\xc2\x9b"
                                 "31m",
                                 "\x9b"
                                 "31m",
                                 "\xed\xa0\x80",
                                 "\xc3"};
const std::string good_names[] = {
    "policy",  "rollout 7",        "Modell \xc3\xa4", "\xe6\xa8\xa1\xe5\x9e\x8b",
    "a\"b\\c", "\xf0\x9f\x98\x80", "\xc2\xa0"};

}  // namespace

TEST_CASE("plain text: control characters and what is not UTF-8 are not plain, and are shown as bytes") {
  for (const std::string& name : bad_names) {
    CAPTURE(escaped_text(name));
    CHECK_FALSE(is_plain_text(name));
    CHECK(is_plain_text(escaped_text(name)));
  }
  for (const std::string& name : good_names) {
    CHECK(is_plain_text(name));
    CHECK(escaped_text(name) == name);
  }
  CHECK(is_plain_text(""));
  CHECK(escaped_text("a\x1b[2J\n\xc2\x9b\xff") == "a\\x1b[2J\\x0a\\xc2\\x9b\\xff");
}

TEST_CASE("plain text: a worker whose names are not plain is refused by the catalog, with a plain sentence") {
  driver<> server;
  std::uint64_t next = 1;
  const auto refusal_of = [&](const auto& change) {
    messages::join_request join = server.join_message("rollout");
    change(join);
    return server.ask<messages::join_reply>({next++}, join).result;
  };
  for (const std::string& name : bad_names) {
    CAPTURE(escaped_text(name));
    const messages::status found[] = {refusal_of([&](auto& join) { join.model = name; }),
                                      refusal_of([&](auto& join) { join.replica = name; }),
                                      refusal_of([&](auto& join) { join.location.datacenter = name; }),
                                      refusal_of([&](auto& join) { join.location.rack = name; }),
                                      refusal_of([&](auto& join) { join.location.host = name; }),
                                      refusal_of([&](auto& join) { join.location.device = name; }),
                                      refusal_of([&](auto& join) { join.form.transport = name; }),
                                      refusal_of([&](auto& join) { join.form.integrity = name; }),
                                      refusal_of([&](auto& join) { join.form.consistency = name; })};
    for (const messages::status& each : found) {
      CHECK(each.code == errc::invalid_argument);
      CHECK(is_plain_text(each.sentence));
    }
  }
  CHECK(server.core.statistics().workers == 0);
  for (const std::string& name : good_names) CHECK(refusal_of([&](auto& join) { join.replica = name; }).ok());
}

TEST_CASE("plain text: a user learns of such a name from the own options") {
  const auto refusal_of = [](const auto& change) {
    worker_options options{.server = "tcp://127.0.0.1:1", .model = "policy", .replica = "rollout"};
    change(options);
    try {
      static_cast<void>(validated(options));
    } catch (const error& e) {
      CHECK(is_plain_text(e.what()));
      return e.code();
    }
    return errc::ok;
  };
  for (const std::string& name : bad_names) {
    CAPTURE(escaped_text(name));
    CHECK(refusal_of([&](worker_options& to) { to.model = name; }) == errc::invalid_argument);
    CHECK(refusal_of([&](worker_options& to) { to.replica = name; }) == errc::invalid_argument);
    CHECK(refusal_of([&](worker_options& to) { to.location.host = name; }) == errc::invalid_argument);
    CHECK(refusal_of([&](worker_options& to) { to.location.rack = name; }) == errc::invalid_argument);
  }
  for (const std::string& name : good_names)
    CHECK(refusal_of([&](worker_options& to) { to.model = name; }) == errc::ok);
}
