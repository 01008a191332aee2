/// verbs asks for capabilities, in the connection manager's private data, on a real device.

#include <doctest/doctest.h>

#include <tensorhub/transports/verbs.hpp>

#include "capability_checks.hpp"
#include "rdma_addresses.hpp"

TEST_CASE("verbs: capabilities") {
  tensorhub::transports::verbs::options options;
  options.listen_addresses = {softroce_tests::rdma_addresses().front()};
  capability_checks::check_guard<tensorhub::transports::verbs>(options);
}
