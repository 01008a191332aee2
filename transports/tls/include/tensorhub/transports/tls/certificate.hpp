#pragma once
/// \file certificate.hpp
/// What a certificate says, and what is wrong with it, in words that name it and tell what to do.
///
/// Whatever a peer's certificate contains is bounded and has no control characters before it gets into a
/// sentence.
///
/// Thread safety: free functions; OpenSSL's error queue is each thread's own.

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail {

template <auto Free>
struct freed_by {
  template <typename T>
  void operator()(T* object) const noexcept {
    Free(object);
  }
};
using bio_pointer = std::unique_ptr<BIO, freed_by<::BIO_free_all>>;
using context_pointer = std::unique_ptr<SSL_CTX, freed_by<::SSL_CTX_free>>;
using session_pointer = std::unique_ptr<SSL, freed_by<::SSL_free>>;

/// The newest entry of this thread's error queue, which is emptied.
[[nodiscard]] inline std::string openssl_trouble() {
  const unsigned long code = ::ERR_peek_last_error();
  ::ERR_clear_error();
  const char* const reason = code == 0 ? nullptr : ::ERR_reason_error_string(code);
  return reason == nullptr ? "OpenSSL error " + std::to_string(code) : reason;
}

/// "CN=worker-3,O=example", at most 200 bytes of it.
[[nodiscard]] inline std::string subject_of(const X509* certificate) {
  if (certificate == nullptr) return "(no certificate)";
  const bio_pointer text{::BIO_new(::BIO_s_mem())};
  if (!text) return "(no memory)";
  static_cast<void>(
      ::X509_NAME_print_ex(text.get(), ::X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253));
  std::array<char, 200> out{};
  const int length = ::BIO_read(text.get(), out.data(), static_cast<int>(out.size()));
  return length > 0 ? std::string{out.data(), static_cast<std::size_t>(length)} : "(no subject)";
}

/// "2026-11-21 20:00:00 UTC".
[[nodiscard]] inline std::string text_of(const ASN1_TIME* time) {
  std::tm parts{};
  if (time == nullptr || ::ASN1_TIME_to_tm(time, &parts) != 1) return "an unreadable date";
  std::array<char, 64> out{};
  const std::size_t length = std::strftime(out.data(), out.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return {out.data(), length};
}

[[nodiscard]] inline bool has_expired(const X509* certificate) {
  return ::X509_cmp_current_time(::X509_get0_notAfter(certificate)) < 0;
}

/// One of the names; by DNS names, or the common name of a certificate that has none.
[[nodiscard]] inline bool has_one_of(X509* certificate, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (::X509_check_host(certificate, name.data(), name.size(), 0, nullptr) == 1) return true;
  }
  return false;
}

/// Why a peer's certificate is refused.
[[nodiscard]] inline std::string why_refused(X509_STORE_CTX* verification, const std::string& ca_file) {
  X509* const at = ::X509_STORE_CTX_get_current_cert(verification);
  const int trouble = ::X509_STORE_CTX_get_error(verification);
  const X509* const peer = ::X509_STORE_CTX_get0_cert(verification);
  const std::string whose = "the certificate " + subject_of(peer) + " ";
  // One of those above it may be at fault.
  const std::string text =
      at == peer || at == nullptr ? whose : whose + "(of " + subject_of(at) + ", which) ";
  switch (trouble) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return text + "has expired on " + text_of(::X509_get0_notAfter(at)) + ": renew it";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return text + "is not valid before " + text_of(::X509_get0_notBefore(at)) +
             ": compare the clocks of both machines";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return whose + "is not of an authority in " + ca_file +
             ": both sides need certificates of the same one";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return whose + "has none of the names that are allowed (allowed_names, verify_host)";
    case X509_V_ERR_INVALID_PURPOSE:
      return text + "may not be used for this: its extended key usage needs serverAuth and clientAuth";
    default:
      return text + "is refused: " + ::X509_verify_cert_error_string(trouble);
  }
}

/// What a peer means by an alert, as OpenSSL's reason; empty if that is no alert about a certificate.
[[nodiscard]] inline std::string_view alert_about_certificate(int reason) noexcept {
  switch (reason) {
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      return "it was not shown one";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return "it has expired, by the peer's clock: renew it";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
      return "it was revoked";
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return "it is of an authority that the peer does not know: both sides need certificates of the same "
             "one";
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
      return "it may not be used for this: its extended key usage needs serverAuth and clientAuth";
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
      return "its name is not among those that the peer allows, or its dates or signature are wrong";
    default:
      return {};
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail
