#pragma once
/// \file context.hpp
/// The state that all TLS connections of one transport share: certificates, rules, counters.
///
/// TLS 1.3 and nothing older. Both sides show a certificate of a known authority. No session is ever resumed
/// (no tickets, no cache), so that each connection authenticates its peer again. There is no early data.
///
/// Thread safety: all members may be called from any thread.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "tensorhub/concepts/telling_transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/tls/certificate.hpp"
#include "tensorhub/transports/tls/options.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports {

/// Counters of a transport's TLS connections so far.
struct tls_report {
  std::uint64_t opened_connections = 0;   ///< handshakes that both sides accepted
  std::uint64_t kernel_connections = 0;   ///< of these: the kernel encrypts outgoing bytes
  std::uint64_t refused_connections = 0;  ///< failed handshakes of readers
  std::string last_refusal{};             ///< peer, certificate and reason of the latest refusal
  transport_renewal renewal{};            ///< the latest change of the three files
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports

namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail {

enum class session_role : std::uint8_t { reader, source };

/// The most that a reader takes from its socket by one call: four records.
inline constexpr std::size_t reader_buffer_bytes = 64 * 1024 + 1024;

/// The result of one handshake's checks of the peer.
struct verdict {
  const tls_options* rules = nullptr;
  std::string refusal{};  ///< empty: the certificate is accepted
};

/// OpenSSL's callback for each certificate of the chain.
int judge_certificate(int good, X509_STORE_CTX* verification) noexcept;

class tls_context {
 public:
  /// Throws `transport_failed`, naming the file.
  explicit tls_context(const tls_options& options);
  tls_context(const tls_context&) = delete;
  tls_context& operator=(const tls_context&) = delete;

  [[nodiscard]] const tls_options& options() const noexcept { return options_; }

  /// Opens a new session over a socket; `found` must outlive it. Throws `transport_failed`.
  [[nodiscard]] session_pointer make_session(int socket, session_role role, verdict& found);

  /// This process's own certificate: "CN=worker-3, valid from ... until ...".
  [[nodiscard]] std::string own_certificate() const;

  void note_opened(bool by_kernel) noexcept;
  void note_refused(std::string why) noexcept;
  [[nodiscard]] std::uint64_t refused() const noexcept { return refused_.load(); }
  [[nodiscard]] tls_report report() const;
  [[nodiscard]] transport_refusal refusal_told() const;
  [[nodiscard]] transport_renewal renewal_told() const;

 private:
  struct file_stamp {
    std::int64_t seconds = 0, nanoseconds = 0, bytes = 0;
    std::uint64_t inode = 0;
    bool operator==(const file_stamp&) const = default;
  };
  using stamps = std::array<file_stamp, 3>;

  [[nodiscard]] stamps stamp_of_files() const noexcept;

  /// The files may be read in the middle of their replacement, or while the process has no descriptor left:
  /// the old context then stays until they can be used.
  void reload_if_changed();
  /// Remembers what has become of changed files. `again`: they have not changed since they failed.
  void tell(bool failed, bool again, std::string text);
  static constexpr std::chrono::seconds retry_interval{1};

  [[noreturn]] static void fail(const std::string& what);
  /// Refuses a file that other users may use. One that is not there is refused by OpenSSL.
  static void check_secret(const std::string& file);

  [[nodiscard]] context_pointer make_context() const;

  const tls_options options_;
  mutable std::mutex mutex_;
  stamps stamp_{};  ///< guarded by mutex_, as the next three
  std::chrono::steady_clock::time_point retry_at_ = std::chrono::steady_clock::time_point::max();
  context_pointer context_;
  mutable std::mutex words_mutex_;  ///< never held while a file is read; locked after mutex_
  std::string last_refusal_{};      ///< guarded by words_mutex_, as the next one
  transport_renewal renewal_{};
  std::atomic<std::uint64_t> opened_ = 0;
  std::atomic<std::uint64_t> by_kernel_ = 0;
  std::atomic<std::uint64_t> refused_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/tls/impl/context.ipp"
#endif
