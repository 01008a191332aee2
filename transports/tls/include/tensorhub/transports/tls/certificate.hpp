#pragma once
/// \file certificate.hpp
/// Describes certificates and their faults, in sentences that name the certificate and the remedy.
///
/// Text from a peer's certificate is limited in length, and its control characters are removed, before it
/// becomes part of a sentence.
///
/// Thread safety: free functions; each thread has its own OpenSSL error queue.

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

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
[[nodiscard]] std::string openssl_trouble();

/// "CN=worker-3,O=example", at most 200 bytes.
[[nodiscard]] std::string subject_of(const X509* certificate);

/// "2026-11-21 20:00:00 UTC".
[[nodiscard]] std::string text_of(const ASN1_TIME* time);

/// "CN=worker-3, valid from 2026-11-21 20:00:00 UTC until 2026-12-21 20:00:00 UTC".
[[nodiscard]] std::string described(const X509* certificate);

/// Why this machine's clock does not let the process use its own certificate, in words that follow its name;
/// empty: it may be used now.
[[nodiscard]] std::string why_untimely(const X509* certificate);

/// Whether the certificate has one of the names: among its DNS names, or, without DNS names, as its common
/// name.
[[nodiscard]] bool has_one_of(X509* certificate, const std::vector<std::string>& names);

/// Why a peer's certificate is refused.
[[nodiscard]] std::string why_refused(X509_STORE_CTX* verification, const std::string& ca_file);

/// The meaning of a peer's alert, given as OpenSSL's reason; empty if the alert is not about a certificate.
[[nodiscard]] std::string_view alert_about_certificate(int reason) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/tls/impl/certificate.ipp"
#endif
