#pragma once
/// \file certificate.ipp
/// Definitions of certificate.hpp.

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "tensorhub/transports/tls/certificate.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail {

TENSORHUB_DECL std::string openssl_trouble() {
  const unsigned long code = ::ERR_peek_last_error();
  int failed = 0;  // `errno` of the last call of the system that has failed
  for (unsigned long each = ::ERR_get_error(); each != 0; each = ::ERR_get_error())
    if (ERR_SYSTEM_ERROR(each)) failed = ERR_GET_REASON(each);
  const int said = ERR_GET_REASON(code);
  const bool says_system = ERR_SYSTEM_ERROR(code) || said == ERR_R_SYS_LIB || said == ERR_R_BIO_LIB;
  if (says_system && failed != 0) return std::strerror(failed);  // OpenSSL says "system lib", or "BIO lib"
  const char* const reason = code == 0 ? nullptr : ::ERR_reason_error_string(code);
  return reason == nullptr ? "OpenSSL error " + std::to_string(code) : reason;
}

TENSORHUB_DECL std::string subject_of(const X509* certificate) {
  if (certificate == nullptr) return "(no certificate)";
  const bio_pointer text{::BIO_new(::BIO_s_mem())};
  if (!text) return "(no memory)";
  static_cast<void>(
      ::X509_NAME_print_ex(text.get(), ::X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253));
  std::array<char, 200> out{};
  const int length = ::BIO_read(text.get(), out.data(), static_cast<int>(out.size()));
  return length > 0 ? std::string{out.data(), static_cast<std::size_t>(length)} : "(no subject)";
}

TENSORHUB_DECL std::string text_of(const ASN1_TIME* time) {
  std::tm parts{};
  if (time == nullptr || ::ASN1_TIME_to_tm(time, &parts) != 1) return "an unreadable date";
  std::array<char, 64> out{};
  const std::size_t length = std::strftime(out.data(), out.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return {out.data(), length};
}

TENSORHUB_DECL std::string described(const X509* certificate) {
  return subject_of(certificate) + ", valid from " + text_of(::X509_get0_notBefore(certificate)) + " until " +
         text_of(::X509_get0_notAfter(certificate));
}

TENSORHUB_DECL std::string why_untimely(const X509* certificate) {
  if (::X509_cmp_current_time(::X509_get0_notAfter(certificate)) < 0)
    return "expired on " + text_of(::X509_get0_notAfter(certificate)) + ": renew it";
  if (::X509_cmp_current_time(::X509_get0_notBefore(certificate)) > 0)
    return "is not valid before " + text_of(::X509_get0_notBefore(certificate)) +
           ": set the clock of this machine, or of the one that has made it";
  return {};
}

TENSORHUB_DECL bool has_one_of(X509* certificate, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (::X509_check_host(certificate, name.data(), name.size(), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS,
                          nullptr) == 1)
      return true;
  }
  return false;
}

TENSORHUB_DECL std::string why_refused(X509_STORE_CTX* verification, const std::string& ca_file) {
  X509* const at = ::X509_STORE_CTX_get_current_cert(verification);
  const int trouble = ::X509_STORE_CTX_get_error(verification);
  const X509* const peer = ::X509_STORE_CTX_get0_cert(verification);
  const std::string whose = "the certificate " + subject_of(peer) + " ";
  // The fault may be in one of the certificates above it.
  const std::string text =
      at == peer || at == nullptr ? whose : whose + "(of " + subject_of(at) + ", which) ";
  switch (trouble) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return text + "expired on " + text_of(::X509_get0_notAfter(at)) + ": renew it";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return text + "is not valid before " + text_of(::X509_get0_notBefore(at)) +
             ": compare the clocks of both machines";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return whose + "is not signed by an authority in " + ca_file +
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

TENSORHUB_DECL std::string_view alert_about_certificate(int reason) noexcept {
  switch (reason) {
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      return "it was not shown one";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return "it has expired, by the peer's clock: renew it";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
      return "it was revoked";
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return "it is not signed by an authority that the peer knows: both sides need certificates of the same "
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
