#pragma once
/// \file http.hpp
/// The connection to etcd: POST requests by libcurl, one at a time, in the caller's thread.
///
/// Several endpoints must be members of the same etcd cluster: after a failure the next one is tried.
/// Proxies are not used, whatever the environment says, and redirections are not followed. An answer may
/// have at most 1 MiB.
/// With https, etcd must present a certificate for its name from `ca_file` (or the system's authorities);
/// `certificate_file` and `key_file` identify this client if etcd requires it (its option
/// --client-cert-auth). With `user`, every request carries a token that etcd gives for the password; it is
/// asked for again when etcd takes it no more. Without https the password crosses the network in the clear.
///
/// The user needs a role that may read and write the keys of the election, and no other right:
///
///     etcdctl role add tensorhub
///     etcdctl role grant-permission tensorhub --prefix=true readwrite tensorhub/
///     etcdctl user add tensorhub
///     etcdctl user grant-role tensorhub tensorhub
///
/// Thread safety: one thread at a time.

#include <curl/curl.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/wipe.hpp"
#include "tensorhub/etcd/election.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct etcd_post;  // etcd/gateway.hpp

struct etcd_options {
  std::string endpoints = "http://127.0.0.1:2379";  ///< separated by commas: members of one cluster
  std::string ca_file{};                            ///< PEM; empty: the system's authorities
  std::string certificate_file{};                   ///< PEM; empty: no client certificate
  std::string key_file{};                           ///< PEM; the key of the certificate
  std::string user{};                               ///< empty: etcd asks for no password
  std::string password_file{};                      ///< its first line; mode 0600
};

/// The endpoints that other machines see in the clear, separated by commas; empty: there are none.
[[nodiscard]] std::string plain_endpoints(const etcd_options& options);

class etcd_client {
 public:
  /// Does not connect yet. Throws `invalid_argument` for an invalid endpoint, or as `read_password` does.
  explicit etcd_client(etcd_options how);
  ~etcd_client() { detail::wipe(password_); }
  etcd_client(const etcd_client&) = delete;
  etcd_client& operator=(const etcd_client&) = delete;

  /// Blocks until an answer arrives or `patience` has passed.
  [[nodiscard]] etcd_answer ask(const std::string& election_name, const etcd_request& request,
                                std::chrono::milliseconds patience);

 private:
  using clock = std::chrono::steady_clock;
  struct free_curl {
    void operator()(CURL* curl) const noexcept { curl_easy_cleanup(curl); }
    void operator()(curl_slist* list) const noexcept { curl_slist_free_all(list); }
  };
  static constexpr std::size_t answer_limit = 1u << 20;

  /// Leaves etcd's answer in `answer_`. Returns its HTTP status; zero: there is none, for the reason `why`.
  [[nodiscard]] long post(const etcd_post& what, clock::time_point until, std::string& why);

  /// Gets a token for the password. False: etcd gives none, for the reason `why`.
  [[nodiscard]] bool log_in(clock::time_point until, std::string& why);

  /// The headers of a request, with the token if there is one.
  void set_token(const std::string& token);

  static std::size_t take_bytes(char* bytes, std::size_t size, std::size_t count, void* self) noexcept;

  etcd_options options_;
  std::vector<std::string> endpoints_;
  std::size_t present_ = 0;
  std::unique_ptr<CURL, free_curl> curl_;
  std::unique_ptr<curl_slist, free_curl> headers_;
  bool is_logged_in_ = false;
  std::string password_;
  std::string answer_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/etcd/impl/http.ipp"
#endif
