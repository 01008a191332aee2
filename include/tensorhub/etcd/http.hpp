#pragma once
/// \file http.hpp
/// Where etcd is, and how it is asked: POST by libcurl, one at a time, in the caller's thread.
///
/// Several endpoints are members of one etcd: after a failure the next one is asked. No proxy is used,
/// whatever the environment says, and no redirection followed. An answer may have 1 MiB. With https, etcd
/// must show a certificate of `ca_file` (or of the system's authorities) for its name; `certificate_file` and
/// `key_file` are ours, where etcd wants one (its option --client-cert-auth). User names and passwords are
/// not supported.
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
  std::string endpoints = "http://127.0.0.1:2379";  ///< several with commas between: one etcd's members
  std::string ca_file{};                            ///< PEM; empty: the system's
  std::string certificate_file{};                   ///< PEM; empty: none is shown
  std::string key_file{};                           ///< PEM, of the certificate
};

class etcd_client {
 public:
  /// Connects to nobody yet. Throws `invalid_argument` for what cannot be an endpoint.
  explicit etcd_client(etcd_options how);

  /// Blocks until there is an answer, or `patience` is over.
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
