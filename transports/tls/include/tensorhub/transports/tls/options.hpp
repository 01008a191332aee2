#pragma once
/// \file options.hpp
/// Options of the TLS transport: who we are, whom we believe, and those of TCP below it.

#include <cstdint>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/tcp/options.hpp"
#include "tensorhub/types/location.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports {

/// The three files are PEM and must be given. They are read again when one of them has changed, for the next
/// connection: a renewed certificate needs no restart. Files that cannot be used leave the old ones in force
/// (tls_report::last_refusal says so).
struct tls_options {
  /// This process's certificate, then those between it and the authority, if any. Every worker is at both
  /// ends of connections: with an extended key usage, it needs serverAuth and clientAuth.
  std::string certificate_file{};
  std::string key_file{};  ///< its private key, without a pass phrase; readable by this user only
  std::string ca_file{};  ///< authorities whose certificates are believed; best one of your own, for this use

  /// Names that peers may have: the DNS names of their certificate (its common name, if it has none), of
  /// which one must be listed. "*.trainers.example" in a certificate stands for one label. Empty: whoever has
  /// a certificate of the authority.
  std::vector<std::string> allowed_names{};
  /// A source's certificate must also name the host, or the IP address, at which it is reached.
  bool verify_host = false;

  /// Of TLS 1.3, best first.
  std::string ciphersuites = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
  /// A source's answers are encrypted by the kernel instead of by OpenSSL, where the kernel has module `tls`
  /// and OpenSSL was built for it (Debian 12's is not). Off, because it has not been seen working yet.
  bool kernel_tls = false;
  /// A new key after so many bytes of answers: AES-GCM should not encrypt more than about 360 GiB with one.
  std::uint64_t rekey_bytes = 64ull << 30;

  location here{};  ///< a worker fills it; stands in for tcp.here where that is empty
  tcp_options tcp{};
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports
