// What is decided from a provider's properties.

#include <doctest/doctest.h>

#include <optional>
#include <tensorhub/transports/libfabric.hpp>

namespace wire = tensorhub::transports::libfabric_detail;

TEST_CASE("libfabric: deregistration is final where a device itself performs the reads, and nowhere else") {
  using wire::deregistration_is_final;
  for (const std::optional<bool> emulates :
       {std::optional<bool>{}, std::optional{true}, std::optional{false}}) {
    CHECK(deregistration_is_final("verbs", emulates));
    CHECK(deregistration_is_final("verbs;ofi_rxm", emulates));
    CHECK(deregistration_is_final("efa", emulates) == (emulates == false));
    for (const char* const other :
         {"verbs;ofi_rxd", "verbs;ofi_rxm;ofi_hook", "efa;ofi_rxd", "efa-of-another-name", "tcp",
          "tcp;ofi_rxm", "shm", "net", "sockets", "udp;ofi_rxd", ""})
      CHECK_MESSAGE(!deregistration_is_final(other, emulates), other);
  }
}
