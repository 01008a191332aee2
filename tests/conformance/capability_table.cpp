// The capability table of transports/README.md says what the code says.

#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <tensorhub/concepts/guarded_transport.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#ifdef TENSORHUB_HAS_LIBFABRIC
#include <tensorhub/transports/libfabric.hpp>
#endif
#ifdef TENSORHUB_HAS_TLS
#include <tensorhub/transports/tls.hpp>
#endif
#ifdef TENSORHUB_HAS_VERBS
#include <tensorhub/transports/verbs.hpp>
#endif

using namespace tensorhub::transports;

namespace {

template <tensorhub::transport T>
std::string row() {
  constexpr tensorhub::transport_capabilities can = T::capabilities;
  std::string text = "| " + std::string{T::name} + " |";
  for (const bool each :
       {can.crosses_hosts, can.crosses_datacenters, can.survives_access_errors, can.uses_backing_file,
        can.sends_by_reference, can.reads_device_memory, tensorhub::guarded_transport<T>})
    text += each ? " yes |" : " no |";
  return text;
}

template <tensorhub::transport T>
void check_row(const std::string& page) {
  CHECK_MESSAGE(page.find("\n" + row<T>() + "\n") != std::string::npos, "should be: " << row<T>());
}

}  // namespace

TEST_CASE("transports/README.md has the capabilities of each transport") {
  std::ifstream file{TENSORHUB_SOURCE_DIR "/transports/README.md"};
  std::stringstream page;
  page << file.rdbuf();
  REQUIRE(page.str().size() > 1000);
  check_row<same_host>(page.str());
  check_row<tcp>(page.str());
#ifdef TENSORHUB_HAS_TLS
  check_row<tls>(page.str());
#else
  MESSAGE("tls is not built: its row is not compared");
#endif
#ifdef TENSORHUB_HAS_LIBFABRIC
  check_row<libfabric>(page.str());
#else
  MESSAGE("libfabric is not built: its row is not compared");
#endif
#ifdef TENSORHUB_HAS_VERBS
  check_row<verbs>(page.str());
#else
  MESSAGE("verbs is not built: its row is not compared");
#endif
}
