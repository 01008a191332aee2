/// \file capabilities.cpp
/// Transports that ask their readers for a capability: who is let in, who is not, and who notices.

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <tensorhub/concepts/guarded_transport.hpp>
#include <tensorhub/concepts/telling_transport.hpp>
#include <tensorhub/testing/memory_transport.hpp>
#include <tensorhub/transfer/first_of.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <tensorhub/types/capability.hpp>
#include <vector>
#include "support/archetypes/transport.hpp"
#include "support/gated.hpp"
#ifdef TENSORHUB_HAS_LIBFABRIC
#include <tensorhub/transports/libfabric.hpp>
#endif
#ifdef TENSORHUB_HAS_TLS
#include <tensorhub/transports/tls.hpp>
#endif
#ifdef TENSORHUB_HAS_VERBS
#include <tensorhub/transports/verbs.hpp>
#endif

#include "capability_checks.hpp"

using namespace tensorhub;
using namespace std::chrono_literals;
using namespace capability_checks;

namespace {

/// The transport's row of the table in transports/README.md, as the code has it.
template <transport T>
std::string row_of() {
  constexpr transport_capabilities can = T::capabilities;
  std::string text = "\n| " + std::string{T::name} + " |";
  for (const bool each : {can.crosses_hosts, can.crosses_datacenters, can.survives_access_errors,
                          can.uses_backing_file, can.sends_by_reference, can.reads_device_memory,
                          can.revokes_cheaply, can.encrypts, guarded_transport<T>})
    text += each ? " yes |" : " no |";
  return text + "\n";
}

}  // namespace

TEST_CASE("transports/README.md has the capabilities of each transport that is built") {
  std::ifstream file{TENSORHUB_SOURCE_DIR "/transports/README.md"};
  const std::string page{std::istreambuf_iterator<char>{file}, {}};
  const auto check_row = [&](const std::string& row) {
    CHECK_MESSAGE(page.find(row) != std::string::npos, "should be: " << row);
  };
  check_row(row_of<transports::same_host>());
  check_row(row_of<transports::tcp>());
#ifdef TENSORHUB_HAS_TLS
  check_row(row_of<transports::tls>());
#endif
#ifdef TENSORHUB_HAS_LIBFABRIC
  check_row(row_of<transports::libfabric>());
#endif
#ifdef TENSORHUB_HAS_VERBS
  check_row(row_of<transports::verbs>());
#endif
}

TEST_CASE("capabilities: memory transport") {
  check_guard<testing::memory_transport>();
}

TEST_CASE("capabilities: tcp") {
  check_guard<transports::tcp>();
}

TEST_CASE("capabilities: same_host") {
  check_guard<transports::same_host>();
}

TEST_CASE("capabilities: first_of passes them on, decorators too") {
  check_guard<first_of<transports::tcp>>();
  check_guard<first_of<transports::same_host, transports::tcp>>();
  check_guard<testing::gated<transports::tcp>>();
}

#ifdef TENSORHUB_HAS_LIBFABRIC
TEST_CASE("capabilities: libfabric") {
  check_guard<transports::libfabric>();
}
#endif

TEST_CASE("capabilities: a connection from before they were asked for ends") {
  transports::tcp source{{}, source_id};
  std::string text(64, 'w');
  const memory_range range{reinterpret_cast<std::byte*>(text.data()), text.size()};
  const auto regions = source.register_memory(std::span{&range, 1}, region_access::remote_read);
  const remote_region region = source.describe(regions.front());
  reading<transports::tcp> early{reader_id};
  auto present = early.through.connect(early.on, source.address(), source_id, 5s);
  REQUIRE(early.reads(present, region, text));
  const std::string key = random_capability_key();
  source.require_capability(std::as_bytes(std::span{key}));
  CHECK(!early.reads(present, region, text));
}

TEST_CASE("capabilities: a transport without them is one too") {
  static_assert(!guarded_transport<testing::transport_archetype>);
  static_assert(guarded_transport<first_of<testing::transport_archetype, transports::tcp>>);
  static_assert(!guarded_transport<first_of<testing::transport_archetype>>);
#ifdef TENSORHUB_HAS_TLS
  static_assert(telling_transport<first_of<transports::tcp, transports::tls>>);
#endif
  static_assert(!telling_transport<first_of<transports::tcp>>);
  static_assert(shortage_telling_transport<first_of<testing::transport_archetype, transports::tcp>>);
  static_assert(shortage_telling_transport<testing::gated<transports::tcp>>);
  static_assert(!shortage_telling_transport<first_of<testing::transport_archetype>>);
}
