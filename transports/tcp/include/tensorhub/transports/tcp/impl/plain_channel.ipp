#pragma once
/// \file plain_channel.ipp
/// Definitions of plain_channel.hpp.

#include "tensorhub/transports/tcp/plain_channel.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

TENSORHUB_DECL ssize_t plain_channel::send(std::span<iovec> pieces, int more) noexcept {
  const msghdr message = message_of(pieces);
  return ::sendmsg(socket(), &message, MSG_NOSIGNAL | MSG_DONTWAIT | more);
}

TENSORHUB_DECL ssize_t plain_channel::receive(std::span<iovec> pieces) noexcept {
  msghdr message = message_of(pieces);
  return ::recvmsg(socket(), &message, MSG_DONTWAIT);
}

TENSORHUB_DECL void plain_channel::expect(std::uint64_t bytes) noexcept {
  const std::uint64_t wanted = bytes / 2 >= wake_bytes_ ? wake_bytes_ : 1;
  if (wanted == low_water_) return;
  low_water_ = wanted;
  set_option(socket(), SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(wanted));
}

TENSORHUB_DECL msghdr plain_channel::message_of(std::span<iovec> pieces) noexcept {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  return message;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail
