/// \file address.cpp
/// Addresses and keys that peers send as text and bytes: those of tcp, of first_of, and the hello of
/// same_host.
///
/// Input: which of them, then its bytes.

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>

#include "input.hpp"
#include "tensorhub/detail/local_socket.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/transfer/first_of/address.hpp"
#include "tensorhub/transports/same_host/protocol.hpp"
#include "tensorhub/transports/tcp/address.hpp"

namespace {

using namespace tensorhub;

void tcp_address(fuzz::input& in) {
  using namespace transports::tcp_detail;
  const auto parsed = parse_address(in.rest());
  if (!parsed) return;
  fuzz::require(!parsed->port.empty(), "an address has a port");
  fuzz::require(parsed->datacenter.empty() || is_label(parsed->datacenter), "a label is one");
  static_cast<void>(path_to(*parsed, "here"));
  const auto again = parse_address(make_address(*parsed));
  if (parsed->host.find_first_of("[]:?") != std::string::npos) return;  // odd, but told to nobody
  fuzz::require(again.has_value() && again->host == parsed->host && again->port == parsed->port &&
                    again->datacenter == parsed->datacenter,
                "an address is written as it was read");
}

void first_of_address(fuzz::input& in) {
  constexpr std::size_t members = 3;
  const auto place = first_of_detail::decode(in.rest(), members);
  if (!place) return;
  fuzz::require(place->members.size() <= members, "each member has one address at most");
  const auto again = first_of_detail::decode(first_of_detail::encode(*place), members);
  fuzz::require(again.has_value() && *again == *place, "a place is written as it was read");
}

void first_of_key(fuzz::input& in) {
  remote_region whole;
  whole.base = in.take<std::uint64_t>();
  whole.bytes = in.take<std::uint64_t>();
  const bool is_summed = in.once_in(2);
  whole.key.used_bytes = in.byte();
  const auto raw = in.bytes(whole.key.bytes.size());
  if (!raw.empty()) std::memcpy(whole.key.bytes.data(), raw.data(), raw.size());
  const bool fits = whole.key.used_bytes <= whole.key.bytes.size();
  if (is_summed && fits && whole.key.used_bytes >= first_of_detail::key_check_bytes) {
    const std::uint64_t sum =
        first_of_detail::key_checksum(whole.key.view().subspan(first_of_detail::key_check_bytes));
    std::memcpy(whole.key.bytes.data(), &sum, sizeof sum);
  }
  for (std::size_t index = 0; index < 4; ++index) {
    remote_region part;
    if (!first_of_detail::find_key(whole, index, part)) continue;
    fuzz::require(part.bytes == whole.bytes && part.key.used_bytes <= part.key.bytes.size(),
                  "a member's key is part of the whole key");
    fuzz::require(first_of_detail::same_description(part, part), "a region is itself");
  }
}

void send_with_files(int socket, std::string& packet, std::size_t files) {
  iovec piece{packet.data(), packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (files != 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(files * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(files * sizeof(int));
    const std::array<int, 8> numbers{};
    std::memcpy(CMSG_DATA(header), numbers.data(), files * sizeof(int));
  }
  static_cast<void>(::sendmsg(socket, &message, MSG_NOSIGNAL));
}

/// The number that the next open file will have.
[[nodiscard]] int next_descriptor() {
  const detail::unique_fd probe{::dup(0)};
  return probe.get();
}

/// A packet of any length, with any number of files, in the place of a hello.
void same_host_hello(fuzz::input& in) {
  std::array<int, 2> ends{};
  fuzz::require(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends.data()) == 0, "a socket pair");
  const detail::unique_fd reader{ends[0]};
  const detail::unique_fd source{ends[1]};
  const std::size_t files = in.below(8);
  std::string packet{in.rest()};
  const int before = next_descriptor();
  {
    send_with_files(reader.get(), packet, files);
    transports::same_host_detail::hello greeting;
    detail::unique_fd file;
    const auto outcome = detail::local::receive_packet(source.get(), greeting, file);
    if (outcome == detail::local::packet_outcome::taken)
      fuzz::require(
          packet.size() == sizeof greeting && std::memcmp(&greeting, packet.data(), sizeof greeting) == 0,
          "only a packet of a hello's length is one");
  }
  fuzz::require(next_descriptor() == before, "files that a peer sends are closed");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  fuzz::input in{data, bytes};
  switch (in.below(4)) {
    case 0:
      tcp_address(in);
      break;
    case 1:
      first_of_address(in);
      break;
    case 2:
      first_of_key(in);
      break;
    default:
      same_host_hello(in);
  }
  return 0;
}
