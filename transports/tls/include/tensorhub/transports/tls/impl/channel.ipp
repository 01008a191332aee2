#pragma once
/// \file channel.ipp
/// Definitions of channel.hpp.

#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "tensorhub/error.hpp"
#include "tensorhub/transports/tcp/address.hpp"
#include "tensorhub/transports/tcp/protocol.hpp"
#include "tensorhub/transports/tls/channel.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail {

TENSORHUB_DECL std::string peer_of(int socket) {
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  std::array<char, 64> host{}, port{};
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&peer), length, host.data(), host.size(), port.data(),
                    port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "a peer that is gone";
  return std::string{host.data()} + ":" + port.data();
}

TENSORHUB_DECL tcp_options tls_channel::sockets_of(const options& all) {
  tcp_options out = all.tcp;
  if (out.here == location{}) out.here = all.here;
  return out;
}

TENSORHUB_DECL tls_channel tls_channel::connect(tls_context& common, detail::unique_socket socket,
                                                const std::string& address, tcp_detail::deadline until) {
  tls_channel out{common, std::move(socket)};
  out.begin(session_role::reader);
  if (common.options().verify_host) out.expect_host(address);
  for (;;) {
    ::ERR_clear_error();
    const int done = ::SSL_connect(out.session_.get());
    if (done == 1) break;
    const int need = ::SSL_get_error(out.session_.get(), done);
    if (need != SSL_ERROR_WANT_READ && need != SSL_ERROR_WANT_WRITE)
      throw error(errc::transport_failed, "tls: " + address + " " + out.why_no_connection(need));
    if (!tcp_detail::wait_ready(out.socket(), need == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, until)) {
      throw error(errc::timed_out, "tls: " + address +
                                       " accepted the connection and does not continue the handshake: is "
                                       "it a data port of transport tls?");
    }
  }
  out.note_opened();
  return out;
}

TENSORHUB_DECL std::array<std::byte, 32> tls_channel::binding() const noexcept {
  static constexpr std::string_view label = "EXPORTER-tensorhub-capability";
  std::array<std::byte, 32> out{};
  if (::SSL_export_keying_material(session_.get(), reinterpret_cast<unsigned char*>(out.data()), out.size(),
                                   label.data(), label.size(), nullptr, 0, 0) != 1)
    static_cast<void>(::RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), 32));
  return out;
}

TENSORHUB_DECL handshake_need tls_channel::handshake() noexcept {
  if (phase_ == phase::open) return handshake_need::done;
  try {
    if (phase_ == phase::silent) {
      if (const auto need = look_at_first_byte()) return *need;
    }
    return phase_ == phase::refused ? drain() : go_on();
  } catch (...) {  // no memory, or no session: the reader is refused
    return handshake_need::end;
  }
}

TENSORHUB_DECL ssize_t tls_channel::send(const void* data, std::size_t bytes) noexcept {
  iovec piece{const_cast<void*>(data), bytes};
  return send(std::span{&piece, 1}, 0);
}

TENSORHUB_DECL ssize_t tls_channel::send(std::span<iovec> pieces, int) noexcept {
  ::ERR_clear_error();
  std::size_t encrypted = bio_->batch.plain_bytes();  // by the last call, of the same pieces
  if (!bio_->batch.flush(socket())) return -1;
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  if (bytes - encrypted > record_bytes && !by_kernel_) bio_->batch.open();
  encrypted += encrypt(pieces, encrypted);
  const int why_not_more = errno;
  if (bio_->batch.flush(socket())) errno = why_not_more;
  const std::size_t sent = encrypted - bio_->batch.plain_bytes();
  return sent > 0 || bytes == 0 ? static_cast<ssize_t>(sent) : -1;
}

TENSORHUB_DECL std::size_t tls_channel::encrypt(std::span<const iovec> pieces, std::size_t skipped) noexcept {
  static thread_local std::array<std::byte, record_bytes> record;
  std::size_t used = 0;
  for (const iovec& piece : pieces.first(pieces.size() - 1)) {
    const std::size_t known = std::min(skipped, piece.iov_len);
    std::memcpy(record.data() + used, static_cast<const std::byte*>(piece.iov_base) + known,
                piece.iov_len - known);  // an answer's header: 16 bytes
    used += piece.iov_len - known;
    skipped -= known;
  }
  std::span body{static_cast<const std::byte*>(pieces.back().iov_base), pieces.back().iov_len};
  body = body.subspan(skipped);
  std::size_t total = 0;
  if (used > 0) {
    const std::size_t beginning = std::min(body.size(), record.size() - used);
    if (beginning > 0) std::memcpy(record.data() + used, body.data(), beginning);
    const auto written = write(record.data(), used + beginning);
    if (written < static_cast<ssize_t>(used + beginning))
      return written < 0 ? 0 : static_cast<std::size_t>(written);
    total = used + beginning;
    body = body.subspan(beginning);
  }
  while (!body.empty()) {
    const auto written = write(body.data(), body.size());
    if (written < 0) break;
    total += static_cast<std::size_t>(written);
    body = body.subspan(static_cast<std::size_t>(written));
  }
  return total;
}

TENSORHUB_DECL ssize_t tls_channel::receive(void* into, std::size_t bytes) noexcept {
  iovec piece{into, bytes};
  return receive(std::span{&piece, 1});
}

TENSORHUB_DECL ssize_t tls_channel::receive(std::span<iovec> pieces) noexcept {
  ::ERR_clear_error();
  may_have_more_ = true;
  std::size_t total = 0;
  int messages = 0;
  for (const iovec& piece : pieces) {
    for (std::size_t have = 0; have < piece.iov_len;) {
      if (total >= largest_receive_bytes) return static_cast<ssize_t>(total);
      std::size_t taken = 0;
      if (::SSL_read_ex(session_.get(), static_cast<std::byte*>(piece.iov_base) + have, piece.iov_len - have,
                        &taken) == 1) {
        have += taken;
        total += taken;
        continue;
      }
      const int need = ::SSL_get_error(session_.get(), 0);
      // It has handled a message of the protocol itself, behind which OpenSSL may have records already.
      if (need == SSL_ERROR_WANT_READ && !bio_->was_empty && ++messages <= most_messages) continue;
      if (need == SSL_ERROR_WANT_READ && bio_->was_empty) may_have_more_ = false;
      if (total > 0) return static_cast<ssize_t>(total);  // the next call returns the error again
      if (need == SSL_ERROR_ZERO_RETURN) return 0;
      if (need != SSL_ERROR_WANT_READ) last_trouble_ = ::ERR_peek_last_error();
      errno = need == SSL_ERROR_WANT_READ ? EAGAIN : EPROTO;
      return -1;
    }
  }
  return static_cast<ssize_t>(total);
}

TENSORHUB_DECL std::string tls_channel::why_closed() const {
  const auto alert = alert_about_certificate(ERR_GET_REASON(last_trouble_));
  if (!alert.empty()) return refused_ours(alert);
  const char* const reason = last_trouble_ == 0 ? nullptr : ::ERR_reason_error_string(last_trouble_);
  return "closed the connection instead of greeting" +
         (reason == nullptr ? std::string{} : std::string{" ("} + reason + ")");
}

TENSORHUB_DECL void tls_channel::begin(session_role role) {
  verdict_ = std::make_unique<verdict>();
  session_ = shared_->make_session(socket(), role, *verdict_);
  bio_ = &state_of(::SSL_get_rbio(session_.get()));
  phase_ = phase::shaking;
}

TENSORHUB_DECL void tls_channel::note_opened() noexcept {
  phase_ = phase::open;
  by_kernel_ = BIO_get_ktls_send(::SSL_get_wbio(session_.get()));
  verdict_.reset();  // no certificate is checked after the handshake
  SSL_set_app_data(session_.get(), nullptr);
  shared_->note_opened(by_kernel_);
}

TENSORHUB_DECL void tls_channel::expect_host(const std::string& address) {
  const auto where = tcp_detail::parse_address(address, scheme);
  const std::string host = where ? where->host : std::string{};
  X509_VERIFY_PARAM* const rules = ::SSL_get0_param(session_.get());
  if (::X509_VERIFY_PARAM_set1_ip_asc(rules, host.c_str()) != 1 &&
      ::X509_VERIFY_PARAM_set1_host(rules, host.data(), host.size()) != 1)
    throw error(errc::transport_failed, "tls: " + address + " has no host that a certificate could name");
}

TENSORHUB_DECL std::optional<handshake_need> tls_channel::look_at_first_byte() {
  unsigned char first = 0;
  const auto seen = ::recv(socket(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (seen < 0 && (errno == EAGAIN || errno == EINTR)) return handshake_need::input;
  if (seen <= 0) return handshake_need::end;
  if (first == handshake_record) {
    begin(session_role::source);
    return std::nullopt;
  }
  tcp_detail::hello greeting;
  greeting.magic = 0;
  static_cast<void>(::recv(socket(), &greeting, sizeof greeting, MSG_DONTWAIT));
  if (greeting.magic != tcp_detail::hello_magic) {
    refuse("does not begin with a TLS handshake");
    return drain();
  }
  tcp_detail::welcome answer;
  answer.status = tcp_detail::welcome_status::needs_tls;
  static_cast<void>(::send(socket(), &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT));
  refuse("is not encrypted: the peer uses transport tcp and must use tls");
  return drain();
}

TENSORHUB_DECL handshake_need tls_channel::go_on() {
  ::ERR_clear_error();
  const int done = ::SSL_accept(session_.get());
  if (done == 1) {
    note_opened();
    return handshake_need::done;
  }
  const int need = ::SSL_get_error(session_.get(), done);
  if (need == SSL_ERROR_WANT_READ) return handshake_need::input;
  if (need == SSL_ERROR_WANT_WRITE) return handshake_need::output;
  if (need == SSL_ERROR_SYSCALL)
    return handshake_need::end;  // the peer closed the connection during the handshake
  refuse(why_refused_reader());
  return drain();
}

TENSORHUB_DECL void tls_channel::refuse(const std::string& why) {
  shared_->note_refused(peer_of(socket()) + ": " + why);
  phase_ = phase::refused;
  session_.reset();
  ::shutdown(socket(), SHUT_WR);
}

TENSORHUB_DECL handshake_need tls_channel::drain() noexcept {
  std::array<std::byte, 4096> thrown_away;
  while (drained_bytes_ < most_drained_bytes) {
    const auto taken = ::recv(socket(), thrown_away.data(), thrown_away.size(), MSG_DONTWAIT);
    if (taken < 0 && (errno == EAGAIN || errno == EINTR)) return handshake_need::input;
    if (taken <= 0) break;
    drained_bytes_ += static_cast<std::size_t>(taken);
  }
  return handshake_need::end;
}

TENSORHUB_DECL std::string tls_channel::why_refused_reader() const {
  if (!verdict_->refusal.empty()) return verdict_->refusal;
  const int reason = ERR_GET_REASON(::ERR_peek_last_error());
  if (const auto alert = alert_about_certificate(reason); !alert.empty()) return refused_ours(alert);
  if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) return "shows no certificate";
  if (reason == SSL_R_UNSUPPORTED_PROTOCOL) return "does not speak TLS 1.3";
  return "no TLS handshake: " + openssl_trouble();
}

TENSORHUB_DECL std::string tls_channel::why_no_connection(int need) const {
  if (!verdict_->refusal.empty()) return "is not trusted: " + verdict_->refusal;
  const unsigned long code = ::ERR_peek_last_error();
  if (const auto alert = alert_about_certificate(ERR_GET_REASON(code)); !alert.empty())
    return refused_ours(alert);
  if (code == 0 || need == SSL_ERROR_SYSCALL || ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING)
    return "closed the connection in the TLS handshake: is it a data port of transport tls? (It closes "
           "connections beyond its max_connections, or half of ulimit -n, too.)";
  return "does not agree on TLS 1.3 (" + openssl_trouble() + "): is it a data port of transport tls?";
}

TENSORHUB_DECL std::string tls_channel::refused_ours(std::string_view why) const {
  return "refuses this process's certificate (" + shared_->own_certificate() + "): " + std::string{why};
}

TENSORHUB_DECL ssize_t tls_channel::write(const void* data, std::size_t bytes) noexcept {
  if (sent_bytes_ >= shared_->options().rekey_bytes && !by_kernel_ &&
      ::SSL_key_update(session_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1)
    sent_bytes_ = 0;
  std::size_t written = 0;
  if (::SSL_write_ex(session_.get(), data, bytes, &written) != 1) {
    errno = ::SSL_get_error(session_.get(), 0) == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
    return -1;
  }
  sent_bytes_ += written;
  bio_->batch.count(written);
  return static_cast<ssize_t>(written);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail
