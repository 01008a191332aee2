#pragma once
/// \file http.hpp
/// The connection to etcd: POST requests by libcurl, one at a time, in the caller's thread.
///
/// Several endpoints must be members of the same etcd cluster: after a failure the next one is tried.
/// Proxies are not used, whatever the environment says, and redirections are not followed. An answer may
/// have at most 1 MiB.
/// With https, etcd must present a certificate for its name from `ca_file` (or the system's authorities);
/// `certificate_file` and `key_file` identify this client if etcd requires it (its option
/// --client-cert-auth).
/// User names and passwords are not supported.
///
/// Thread safety: one thread at a time.

#include <curl/curl.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct etcd_options {
  std::string endpoints = "http://127.0.0.1:2379";  ///< separated by commas: members of one cluster
  std::string ca_file{};                            ///< PEM; empty: the system's authorities
  std::string certificate_file{};                   ///< PEM; empty: no client certificate
  std::string key_file{};                           ///< PEM; the key of the certificate
};

class etcd_client {
 public:
  /// Does not connect yet. Throws `invalid_argument` for an invalid endpoint.
  explicit etcd_client(etcd_options how);

  /// Blocks until an answer arrives or `patience` has passed.
  [[nodiscard]] etcd_answer ask(const std::string& election_name, const etcd_request& request,
                                std::chrono::milliseconds patience);

 private:
  struct free_curl {
    void operator()(CURL* curl) const noexcept { curl_easy_cleanup(curl); }
    void operator()(curl_slist* list) const noexcept { curl_slist_free_all(list); }
  };
  static constexpr std::size_t answer_limit = 1u << 20;

  static std::size_t take_bytes(char* bytes, std::size_t size, std::size_t count, void* self) noexcept;

  etcd_options options_;
  std::vector<std::string> endpoints_;
  std::size_t present_ = 0;
  std::unique_ptr<CURL, free_curl> curl_;
  std::unique_ptr<curl_slist, free_curl> headers_;
  std::string answer_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/etcd/impl/http.ipp"
#endif
