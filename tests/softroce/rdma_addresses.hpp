#pragma once
// Where the devices of the guest are (see `guest`).

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace softroce_tests {

/// The IPv4 address of each RDMA device, one or two of them; throws outside of the guest, where these tests
/// would prove nothing.
[[nodiscard]] inline std::vector<std::string> rdma_addresses() {
  const char* text = std::getenv("TENSORHUB_TEST_RDMA_ADDRESSES");
  if (text == nullptr || *text == '\0')
    throw std::runtime_error("no RDMA device is named: run this by tests/softroce/guest -- <this program>");
  std::vector<std::string> addresses(1);
  for (; *text != '\0'; ++text) {
    if (*text == ',') {
      addresses.emplace_back();
    } else {
      addresses.back() += *text;
    }
  }
  return addresses;
}

}  // namespace softroce_tests
