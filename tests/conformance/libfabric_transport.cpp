/// The conformance suite on the libfabric transport, through the providers that every machine has.

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <tensorhub/transports/libfabric.hpp>
#include <thread>
#include <vector>

#include "run_rules.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;
using tensorhub::transports::libfabric;
using namespace std::chrono_literals;

namespace {

conformance_subject<libfabric> subject_with(const libfabric::options& options) {
  conformance_subject<libfabric> subject;
  subject.make = [options](incarnation self) { return std::make_unique<libfabric>(options, self); };
  return subject;
}

/// A dead peer of an addressed endpoint is known by its silence: the suite should not wait long for it.
constexpr std::chrono::milliseconds short_silence{1000};
const conformance_options with_silences{.deadline = std::chrono::seconds{60}, .rounds = 4};

/// Seen with libfabric 1.17.0. The process tests (libfabric_process.cpp) show the same with real processes.
const rule_exclusions of_shm{
    {"dead_peer_ends_reads",
     "2026-11-21: within one process, provider shm crashes when it reads from an endpoint that was closed"},
    {"lost_source_spares_others", "2026-11-29: the same"},
    {"dead_address_is_refused",
     "2026-11-21: within one process, provider shm crashes when it connects to an endpoint that was closed"}};

}  // namespace

TEST_CASE("libfabric: every rule, provider tcp, connected endpoints") {
  run_rules(subject_with({}));
}

TEST_CASE("libfabric: every rule, provider tcp, small pieces, one at a time, regions in parts") {
  libfabric::options options;
  options.piece_bytes = 10'000;
  options.pieces_in_flight = 1;
  options.largest_registration_bytes = 65'536;
  run_rules(subject_with(options));
}

TEST_CASE("libfabric: every rule, provider tcp;ofi_rxm, addressed endpoints") {
  libfabric::options options;
  options.provider = "tcp;ofi_rxm";
  options.peer_timeout = short_silence;
  run_rules(subject_with(options), with_silences);
}

TEST_CASE("libfabric: every rule, provider shm, addressed endpoints") {
  libfabric::options options;
  options.provider = "shm";
  options.peer_timeout = short_silence;
  run_rules(subject_with(options), with_silences, of_shm);
}

TEST_CASE("libfabric: at max_connections a reader is refused, until the oldest connection may make room") {
  struct scene {
    explicit scene(const char* provider)
        : source{{.provider = provider, .max_connections = 2}, incarnation{1}},
          reader{{.provider = provider}, incarnation{2}} {}
    [[nodiscard]] std::string why_refused() {
      try {
        endpoints.push_back(reader.connect(queue, source.address(), incarnation{1}, 20s));
        return "";
      } catch (const error& e) {
        return e.sentence();
      }
    }
    libfabric source, reader;
    libfabric::queue queue = reader.make_queue(4);
    std::vector<libfabric::endpoint> endpoints{};
  };
  for (const char* provider : {"tcp", "tcp;ofi_rxm"}) {
    CAPTURE(provider);
    scene each{provider};
    const auto begun = std::chrono::steady_clock::now();
    CHECK(each.why_refused() == "");
    CHECK(each.why_refused() == "");
    std::string sentence = each.why_refused();
    if (std::chrono::steady_clock::now() - begun > 10s) continue;  // too slow a machine to say more
    CHECK_MESSAGE(sentence.find("its option max_connections") != std::string::npos, sentence);
    CHECK(each.endpoints.front().usable());
    if (std::string_view{provider} != "tcp") continue;  // addressed readers keep their places
    while (sentence != "" && std::chrono::steady_clock::now() - begun < 60s) {
      std::this_thread::sleep_for(500ms);
      sentence = each.why_refused();
    }
    CHECK(sentence == "");
    CHECK(each.why_refused() != "");  // the next oldest one has its time, too
  }
}

TEST_CASE("libfabric: advertised_host is what peers connect to, and what a reader tells of itself") {
  for (const char* provider : {"tcp", "tcp;ofi_rxm"}) {
    CAPTURE(provider);
    const libfabric source{{.provider = provider, .listen_host = "0.0.0.0", .advertised_host = "127.0.0.2"},
                           incarnation{1}};
    CHECK(source.address().text.find("7f000002") != std::string::npos);  // a socket address, in hexadecimal
    libfabric near{{.provider = provider}, incarnation{2}};
    libfabric everywhere{{.provider = provider, .listen_host = "0.0.0.0", .advertised_host = "127.0.0.3"},
                         incarnation{3}};
    for (libfabric* reader : {&near, &everywhere}) {
      auto queue = reader->make_queue(1);
      const auto endpoint =
          reader->connect(queue, source.address(), incarnation{1}, std::chrono::seconds{20});
      CHECK(endpoint.usable());
    }
  }
}

// transports/libfabric/README.md says what it has found.
TEST_CASE("libfabric: every rule by the provider that TENSORHUB_LIBFABRIC_PROVIDER names" * doctest::skip()) {
  const char* const provider = std::getenv("TENSORHUB_LIBFABRIC_PROVIDER");
  if (provider == nullptr) return;
  libfabric::options options;
  options.provider = provider;
  options.peer_timeout = short_silence;
  run_rules(subject_with(options), with_silences);
}
