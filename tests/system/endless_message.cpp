// A member whose message does not end: ZeroMQ keeps its parts, shows them to nobody, and counts them for
// nothing.

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sodium.h>
#include <sys/socket.h>
#include <zmq.h>

#include <array>
#include <cstring>
#include <string>
#include <tensorhub/detail/unique_fd.hpp>
#include <tensorhub/server.hpp>
#include <thread>
#include <vector>

#include "support/calls.hpp"

using namespace std::chrono_literals;
using calls::comes_true;

namespace {

using bytes = std::vector<unsigned char>;

void append(bytes& to, const std::string& text) {
  to.insert(to.end(), text.begin(), text.end());
}
void append(bytes& to, const bytes& more) {
  to.insert(to.end(), more.begin(), more.end());
}
[[nodiscard]] bytes part_of(const bytes& whole, std::size_t from, std::size_t count) {
  REQUIRE(whole.size() >= from + count);
  const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(from);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}
[[nodiscard]] bytes key_in(const std::string& z85) {
  bytes out(32);
  REQUIRE(::zmq_z85_decode(out.data(), z85.c_str()) != nullptr);
  return out;
}

/// Speaks ZMTP 3.0 (ZeroMQ RFC 23) with CURVE (RFC 26) by hand, as no library would.
class raw_member {
 public:
  raw_member(const tensorhub::reference_server<>& server, const tensorhub::curve_key_pair& of_server,
             const tensorhub::curve_key_pair& ours)
      : server_key_{key_in(of_server.public_key)},
        our_key_{key_in(ours.public_key)},
        our_secret_{key_in(ours.secret_key)} {
    const std::string& address = server.address();
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    const timeval patience{20, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    REQUIRE(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
    shake_hands();
  }

  /// False: the connection is gone.
  [[nodiscard]] bool send_part(const bytes& content, bool more) {
    bytes plain{static_cast<unsigned char>(more ? 1 : 0)};
    append(plain, content);
    bytes sealed(plain.size() + crypto_box_MACBYTES);
    const bytes nonce = next_nonce();
    bytes whole_nonce;
    append(whole_nonce, "CurveZMQMESSAGEC");
    append(whole_nonce, nonce);
    ::crypto_box_easy_afternm(sealed.data(), plain.data(), plain.size(), whole_nonce.data(), session_.data());
    bytes frame;
    append(frame, "\7MESSAGE");
    append(frame, nonce);
    append(frame, sealed);
    return send_frame(0, frame);
  }

 private:
  void shake_hands() {
    bytes greeting(64);
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    std::memcpy(greeting.data() + 12, "CURVE", 5);
    REQUIRE(send_all(greeting));
    static_cast<void>(receive(64));
    bytes key(32);
    bytes secret(32);
    ::crypto_box_keypair(key.data(), secret.data());

    bytes hello;
    append(hello, "\5HELLO");
    append(hello, bytes{1, 0});
    append(hello, bytes(72));
    append(hello, key);
    const bytes nonce = next_nonce();
    append(hello, nonce);
    append(hello, seal(bytes(64), "CurveZMQHELLO---", nonce, server_key_, secret));
    REQUIRE(send_frame(4, hello));

    const bytes welcome = receive_frame();
    REQUIRE(welcome.size() == 168);
    bytes whole_nonce;
    append(whole_nonce, "WELCOME-");
    append(whole_nonce, part_of(welcome, 8, 16));
    bytes opened(128);
    REQUIRE(::crypto_box_open_easy(opened.data(), welcome.data() + 24, 144, whole_nonce.data(),
                                   server_key_.data(), secret.data()) == 0);
    const bytes their_key = part_of(opened, 0, 32);
    REQUIRE(::crypto_box_beforenm(session_.data(), their_key.data(), secret.data()) == 0);

    bytes vouched = key;
    append(vouched, server_key_);
    const bytes vouch_nonce(16, 7);
    bytes said = our_key_;
    append(said, vouch_nonce);
    append(said, seal(vouched, "VOUCH---", vouch_nonce, their_key, our_secret_));
    append(said, std::string{"\13Socket-Type\0\0\0\6DEALER", 22});
    bytes initiate;
    append(initiate, "\10INITIATE");
    append(initiate, part_of(opened, 32, 96));
    const bytes second_nonce = next_nonce();
    append(initiate, second_nonce);
    append(initiate, seal(said, "CurveZMQINITIATE", second_nonce, their_key, secret));
    REQUIRE(send_frame(4, initiate));
    const bytes ready = receive_frame();
    REQUIRE(std::string{ready.begin() + 1, ready.begin() + 6} == "READY");
  }

  [[nodiscard]] static bytes seal(const bytes& plain, const std::string& prefix, const bytes& nonce,
                                  const bytes& to, const bytes& from) {
    bytes whole_nonce;
    append(whole_nonce, prefix);
    append(whole_nonce, nonce);
    bytes out(plain.size() + crypto_box_MACBYTES);
    REQUIRE(::crypto_box_easy(out.data(), plain.data(), plain.size(), whole_nonce.data(), to.data(),
                              from.data()) == 0);
    return out;
  }
  [[nodiscard]] bytes next_nonce() {
    bytes out(8);
    ++nonce_;
    for (int i = 0; i < 8; ++i)
      out[static_cast<std::size_t>(i)] = static_cast<unsigned char>(nonce_ >> (56 - 8 * i));
    return out;
  }
  [[nodiscard]] bool send_frame(unsigned char flags, const bytes& content) {
    bytes frame{static_cast<unsigned char>(flags | 2u)};  // with a long size
    for (int i = 0; i < 8; ++i)
      frame.push_back(static_cast<unsigned char>(std::uint64_t{content.size()} >> (56 - 8 * i)));
    append(frame, content);
    return send_all(frame);
  }
  [[nodiscard]] bool send_all(const bytes& all) {
    for (std::size_t sent = 0; sent < all.size();) {
      const ssize_t now = ::send(socket_.get(), all.data() + sent, all.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) return false;
      sent += static_cast<std::size_t>(now);
    }
    return true;
  }
  [[nodiscard]] bytes receive(std::size_t count) {
    bytes out(count);
    REQUIRE(::recv(socket_.get(), out.data(), count, MSG_WAITALL) == static_cast<ssize_t>(count));
    return out;
  }
  [[nodiscard]] bytes receive_frame() {
    const unsigned char flags = receive(1)[0];
    std::size_t size = 0;
    for (const unsigned char each : receive((flags & 2u) != 0 ? 8 : 1)) size = size << 8 | each;
    REQUIRE(size < 1000);
    return receive(size);
  }

  const bytes server_key_, our_key_, our_secret_;
  tensorhub::detail::unique_fd socket_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::array<unsigned char, crypto_box_BEFORENMBYTES> session_{};
  std::uint64_t nonce_ = 0;
};

}  // namespace

TEST_CASE("a member whose message does not end loses its connection, not the server its memory") {
  const auto keys = tensorhub::make_curve_keys();
  const auto ours = tensorhub::make_curve_keys();
  tensorhub::reference_server_options how;
  how.security = tensorhub::server_security{keys, {{ours.public_key, {}}}};
  const tensorhub::reference_server<> server{how};
  raw_member member{server, keys, ours};
  REQUIRE(member.send_part(bytes(100), false));  // it is understood
  CHECK(comes_true([&] { return server.statistics().bad_frames == 1; }));
  const bytes mebibyte(1u << 20);
  int taken = 0;
  while (taken < 1024 && member.send_part(mebibyte, true)) ++taken;
  CHECK(taken < 1024);
  CHECK(comes_true([&] { return server.statistics().flooding_connections == 1; }));
  MESSAGE("the server took " << taken << " MiB");
  CHECK(server.statistics().bad_frames == 1);
  raw_member again{server, keys, ours};
  REQUIRE(again.send_part(bytes(100), false));
  CHECK(comes_true([&] { return server.statistics().bad_frames == 2; }));
}
