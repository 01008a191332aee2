/// \file tls.cpp
/// A hub whose weights travel under TLS: everywhere, or to other datacenters only; and a worker whose
/// certificate nobody believes.

#include <doctest/doctest.h>

#include <tensorhub/server.hpp>
#include <tensorhub/transports/tls.hpp>

#include "../conformance/tls_certificates.hpp"
#include "hub.hpp"

using namespace system_tests;
using tensorhub::transports::tls;

namespace {

using tls_hub = tensorhub::hub<tls>;

/// TCP that stays in its datacenter, so that the next of a list goes to the others.
class near_tcp : public tensorhub::transports::tcp {
 public:
  using tcp::tcp;
  static constexpr std::string_view name = "near_tcp";
  static constexpr tensorhub::transport_capabilities capabilities = [] {
    tensorhub::transport_capabilities all = tcp::capabilities;
    all.crosses_datacenters = false;
    return all;
  }();
};
using near_or_tls = tensorhub::first_of<near_tcp, tls>;
using wide_hub = tensorhub::hub<near_or_tls>;

}  // namespace

TEST_CASE("tls: a hub under TLS, and a reader whose certificate is of another authority") {
  const tls_tests::authority ours{"ours"};
  const tls_tests::authority theirs{"theirs"};
  tls_hub::reference_server server;
  member<tls_hub::publisher> source{who(server.address(), "trainer-0"), 300'001,
                                    ours.options({.name = "trainer-0"})};
  source.publish(1);

  member<tls_hub::subscriber> reader{who(server.address(), "rollout-0"), 300'001,
                                     ours.options({.name = "rollout-0"})};
  const auto report = reader.worker.update();
  CHECK(reader.memory.holds(1));
  CHECK(report.paths == std::vector<std::string>{"tls"});

  tls::options forged = theirs.options({.name = "rollout-1"});
  forged.ca_file = ours.file();
  member<tls_hub::subscriber> stranger{who(server.address(), "rollout-1"), 300'001, forged};
  std::string sentence;
  CHECK(code_of([&] { static_cast<void>(stranger.worker.update(latest, 3s)); }, &sentence) ==
        errc::unavailable);
  CHECK_MESSAGE(contains(sentence, "refuses this process's certificate (CN=rollout-1"), sentence);
  CHECK(!stranger.memory.holds(1));

  member<tls_hub::subscriber> other{who(server.address(), "rollout-2"), 300'001, ours.options()};
  CHECK(other.worker.update().version == 1);
  CHECK(other.memory.holds(1));
}

TEST_CASE("tls: in the clear within a datacenter, under TLS between datacenters") {
  const tls_tests::authority ours;
  wide_hub::reference_server server;
  const auto at = [&](const char* replica, const char* datacenter) {
    auto out = who(server.address(), replica);
    out.location.datacenter = datacenter;
    return out;
  };
  const auto through = [&] { return near_or_tls::with(ours.options()); };
  member<wide_hub::publisher> source{at("trainer-0", "eu-1"), 300'001, through()};
  source.publish(1);

  member<wide_hub::subscriber> far{at("rollout-far", "us-1"), 300'001, through()};
  const auto by_far = far.worker.update();
  CHECK(far.memory.holds(1));
  REQUIRE(by_far.paths.size() == 1);
  CHECK_MESSAGE(by_far.paths.front().starts_with("tls ("), by_far.paths.front());
  far.worker.leave();

  member<wide_hub::subscriber> near{at("rollout-near", "eu-1"), 300'001, through()};
  const auto by_near = near.worker.update();
  CHECK(near.memory.holds(1));
  CHECK(by_near.paths == std::vector<std::string>{"near_tcp"});
}

TEST_CASE("tls: a seed keeps what its trainer has taken back, with one certificate for all that it holds") {
  const tls_tests::authority ours;
  tls_hub::reference_server server;
  member<tls_hub::publisher> source{who(server.address(), "trainer-0"), 300'001,
                                    ours.options({.name = "trainer-0"})};
  tls_hub::seeder seed{who(server.address(), "seed"), ours.options({.name = "seed"})};
  member<tls_hub::subscriber> reader{who(server.address(), "rollout-0"), 300'001,
                                     ours.options({.name = "rollout-0"})};
  for (std::uint64_t version = 1; version <= 2; ++version) {
    CAPTURE(version);
    source.publish(version);
    CHECK(seed.wait(version, 20s) == version);
    source.worker.unpublish();
    source.memory.fill(1000);
    const auto report = reader.worker.update(exactly(version), 20s);
    CHECK(report.sources == std::vector<std::string>{"seed/0"});
    CHECK(report.paths == std::vector<std::string>{"tls"});
    CHECK(reader.memory.holds(version));
  }
}

TEST_CASE("tls: a worker's log says whom it refuses, and whether a renewed certificate is in use") {
  const tls_tests::authority ours{"ours"};
  const tls_tests::authority theirs{"theirs"};
  tls::options through = ours.options();
  const tls_tests::identity first = ours.issue({.name = "first"}, "renewed");
  through.certificate_file = first.certificate_file;
  through.key_file = first.key_file;
  tls_hub::reference_server server;
  said_lines said;
  auto of_source = who(server.address(), "trainer-0");
  of_source.log = [write = said.writer()](const tensorhub::log_line& line) {
    write({line.level, std::string{to_string(line.level)} + ": " + line.text, {}});
  };
  const auto says = [&](const char* what) { return comes_true([&] { return contains(said.text(), what); }); };
  member<tls_hub::publisher> source{of_source, 300'001, through};
  source.publish(1);
  const auto is_read_by = [&](const char* replica, const tls::options& how) {
    member<tls_hub::subscriber> reader{who(server.address(), replica), 300'001, how};
    return code_of([&] { static_cast<void>(reader.worker.update(latest, 3s)); }) == errc::ok;
  };
  CHECK(is_read_by("rollout-0", ours.options()));

  static_cast<void>(ours.issue({.name = "late", .valid_from_s = -7200, .valid_until_s = -3600}, "renewed"));
  CHECK(is_read_by("rollout-1", ours.options()));  // the old one is good
  CHECK(says("warning: tls: the certificate CN=late in"));
  CHECK(is_read_by("rollout-2", ours.options()));
  CHECK_FALSE(contains(said.text().substr(said.text().find("CN=late in") + 1), "CN=late in"));

  static_cast<void>(ours.issue({.name = "second"}, "renewed"));
  CHECK(is_read_by("rollout-3", ours.options()));
  CHECK(says("info: tls: the changed files are used from now on: CN=second"));

  tls::options forged = theirs.options({.name = "stranger"});
  forged.ca_file = ours.file();
  CHECK_FALSE(is_read_by("rollout-4", forged));
  CHECK(says("CN=stranger is not signed by an authority in"));
}
