#pragma once
/// \file options.hpp
/// Options of the TLS transport: this process's certificate, the trusted authorities, and the options of TCP.

#include <cstdint>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/tcp/options.hpp"
#include "tensorhub/types/location.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports {

/// The three files are PEM and required. When one of them has changed, the next connection reads them again:
/// a renewed certificate needs no restart, and the worker's log says what is in use. As long as the new files
/// cannot be used, the old ones stay in use, and the log warns once, with the reason (tls_report::renewal).
struct tls_options {
  /// This process's certificate, followed by intermediate ones, if any. Every worker is a reader and a
  /// source: a certificate with an extended key usage needs serverAuth and clientAuth.
  std::string certificate_file{};
  std::string key_file{};  ///< its private key, without a pass phrase; readable by this user only
  std::string ca_file{};   ///< trusted authorities; preferably one of your own, made for this purpose

  /// Names that peers may have: one of the DNS names of a peer's certificate (its common name, if it has
  /// none) must be listed. "*.trainers.example" in a certificate matches one label. Empty: every certificate
  /// of the authority is accepted.
  std::vector<std::string> allowed_names{};
  /// A source's certificate must also name the host, or the IP address, of the source's address.
  bool verify_host = false;

  /// Of TLS 1.3, best first.
  std::string ciphersuites = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
  /// The kernel encrypts a source's answers instead of OpenSSL, if the kernel has module `tls` and OpenSSL
  /// was built with support for it (Debian 12's is not). Off by default, because it is untested.
  bool kernel_tls = false;
  /// A source changes its key after so many bytes of answers: AES-GCM should not encrypt more than about 360
  /// GiB with one key.
  std::uint64_t rekey_bytes = 64ull << 30;

  location here{};  ///< set by a worker; used if tcp.here is empty
  tcp_options tcp{};
  bool operator==(const tls_options&) const = default;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports
