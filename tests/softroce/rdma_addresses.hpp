#pragma once
// Where the devices of the guest are (see `guest`).

#include <chrono>
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

/// For the conformance suite. Where a permission ends in the middle of a read, Soft-RoCE often answers
/// nothing at all (adapters send a NAK), and the peer time-out ends the read; with the default of 5 s one
/// rule would wait for a minute.
inline constexpr std::chrono::milliseconds suite_peer_timeout{2000};

}  // namespace softroce_tests
