/// \file tls_first_bytes.cpp
/// The source's handshake of TLS, in steps, with a stranger who says anything: nobody without a certificate
/// is let in, who is refused is listened to for a while at most, and a reader of tcp is told that it needs
/// TLS.
///
/// Input: who it is, then a row of steps; each sends bytes of its own or of a handshake, right or spoilt.

#include <array>
#include <vector>

#include "conformance/tls_certificates.hpp"
#include "input.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/transports/tls/channel.hpp"

namespace {

using namespace tensorhub;
using namespace tensorhub::transports::tls_detail;

/// What all inputs share: the source, and readers with and without a certificate.
struct parties {
  tls_tests::authority authority;
  transports::tls_options options = authority.options();
  tls_context source{options};
  SSL_CTX* stranger = ::SSL_CTX_new(::TLS_client_method());
  SSL_CTX* reader = ::SSL_CTX_new(::TLS_client_method());

  parties() {
    ::SSL_CTX_use_certificate_file(reader, options.certificate_file.c_str(), SSL_FILETYPE_PEM);
    ::SSL_CTX_use_PrivateKey_file(reader, options.key_file.c_str(), SSL_FILETYPE_PEM);
  }
  ~parties() {
    ::SSL_CTX_free(stranger);
    ::SSL_CTX_free(reader);
  }
  [[nodiscard]] static parties& instance() {
    static parties all;
    return all;
  }
};

class scene {
 public:
  explicit scene(fuzz::input& in) : has_certificate_{in.once_in(4)} {
    std::array<int, 2> ends{};
    fuzz::require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0, "a socket pair");
    other_ = tensorhub::detail::unique_fd{ends[0]};
    source_.emplace(
        tls_channel::accept(parties::instance().source, tensorhub::detail::unique_socket{ends[1]}));
    session_ = ::SSL_new(has_certificate_ ? parties::instance().reader : parties::instance().stranger);
    ::SSL_set_bio(session_, ::BIO_new(::BIO_s_mem()), ::BIO_new(::BIO_s_mem()));
    ::SSL_set_connect_state(session_);
  }
  ~scene() { ::SSL_free(session_); }
  scene(const scene&) = delete;
  scene& operator=(const scene&) = delete;

  void step(fuzz::input& in) {
    switch (in.below(8)) {
      case 0:
        return send(in.text(255));
      case 1: {
        if (!in.once_in(4)) return;
        transports::tcp_detail::hello greeting;
        is_tcp_ = !said_anything_;
        return send({reinterpret_cast<const char*>(&greeting), sizeof greeting});
      }
      case 2:
        return source_goes_on();
      default:
        return handshake(in);
    }
  }

  void finish() {
    for (int turns = 0; turns < 8 && is_open_; ++turns) {
      source_goes_on();
      if (!is_spoilt_) pump({});
    }
    source_goes_on();
    if (!is_spoilt_ && has_certificate_) fuzz::require(is_done_, "who has a certificate is let in");
    if (is_tcp_) check_told();
    ::shutdown(other_.get(), SHUT_WR);
    for (int turns = 0; turns < 4 && is_open_; ++turns) source_goes_on();
    fuzz::require(!is_open_ || is_done_, "who hangs up is given up");
  }

 private:
  void send(std::string_view bytes) {
    if (bytes.empty()) return;
    is_spoilt_ = true;
    write(bytes);
  }
  void write(std::string_view bytes) {
    if (!bytes.empty()) said_anything_ = true;
    static_cast<void>(::send(other_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }

  /// The next bytes of a real handshake, perhaps with one of them changed, or cut off.
  void handshake(fuzz::input& in) {
    const std::size_t kind = in.below(8);
    if (kind != 0) return pump({});
    is_spoilt_ = true;
    pump(in.take<std::uint32_t>());
  }
  void pump(std::optional<std::uint32_t> spoil) {
    if (is_tcp_) return;  // it does not take the answer for a part of a handshake
    std::array<char, 16'384> buffer{};
    const auto came = ::recv(other_.get(), buffer.data(), buffer.size(), 0);
    if (came > 0) ::BIO_write(::SSL_get_rbio(session_), buffer.data(), static_cast<int>(came));
    ::ERR_clear_error();
    static_cast<void>(::SSL_do_handshake(session_));
    const int made = ::BIO_read(::SSL_get_wbio(session_), buffer.data(), static_cast<int>(buffer.size()));
    if (made <= 0) return;
    auto length = static_cast<std::size_t>(made);
    if (spoil && *spoil % 2 == 0) buffer[*spoil / 512 % length] ^= static_cast<char>(1 + *spoil / 2 % 255);
    if (spoil && *spoil % 2 == 1) length = *spoil / 2 % length;
    write({buffer.data(), length});
  }

  void source_goes_on() {
    if (!is_open_ || is_done_) return;
    const handshake_need need = source_->handshake();
    is_open_ = need != handshake_need::end;
    is_done_ = need == handshake_need::done;
    fuzz::require(!is_done_ || has_certificate_, "nobody without a certificate is let in");
  }

  void check_told() {
    transports::tcp_detail::welcome told;
    const auto came = ::recv(other_.get(), &told, sizeof told, 0);
    fuzz::require(came == sizeof told && told.status == transports::tcp_detail::welcome_status::needs_tls,
                  "a reader of tcp is told that it needs TLS");
  }

  bool has_certificate_;
  tensorhub::detail::unique_fd other_;
  std::optional<tls_channel> source_;
  SSL* session_ = nullptr;
  bool is_open_ = true;
  bool is_done_ = false;
  bool is_spoilt_ = false;
  bool is_tcp_ = false;
  bool said_anything_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  fuzz::input in{data, bytes};
  scene made{in};
  for (int steps = 0; steps < 48 && !in.empty(); ++steps) made.step(in);
  made.finish();
  return 0;
}
