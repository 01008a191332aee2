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
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/etcd/gateway.hpp"

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
  explicit etcd_client(etcd_options how) : options_{std::move(how)} {
    std::string one;
    for (const char each : options_.endpoints + ",") {
      if (each == ' ') continue;
      if (each != ',') {
        one += each;
        continue;
      }
      while (one.ends_with('/')) one.pop_back();
      if (!one.starts_with("http://") && !one.starts_with("https://")) {
        throw error(errc::invalid_argument,
                    "etcd_options::endpoints: '" + one + "' does not look like http://host:2379");
      }
      endpoints_.push_back(std::exchange(one, {}));
    }
    if (options_.certificate_file.empty() != options_.key_file.empty())
      throw error(errc::invalid_argument, "etcd_options: certificate_file and key_file belong together");
    static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
    curl_.reset(ready == CURLE_OK ? curl_easy_init() : nullptr);
    headers_.reset(curl_slist_append(nullptr, "Content-Type: application/json"));
    if (!curl_ || !headers_) throw error(errc::system_failed, "libcurl cannot be started");
  }

  /// Blocks until there is an answer, or `patience` is over.
  [[nodiscard]] etcd_answer ask(const std::string& election_name, const etcd_request& request,
                                std::chrono::milliseconds patience) {
    const etcd_post post = to_post(election_name, request);
    const std::string& endpoint = endpoints_[present_];
    const std::string url = endpoint + post.path;
    CURL* const curl = curl_.get();
    char complaint[CURL_ERROR_SIZE] = {};
    answer_.clear();
    curl_easy_reset(curl);  // the connection stays
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, complaint);
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS,
                     static_cast<long>(std::max<std::int64_t>(1, patience.count())));
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers_.get());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, static_cast<long>(post.body.size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, post.body.c_str());
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &etcd_client::take_bytes);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, this);
    if (!options_.ca_file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, options_.ca_file.c_str());
    if (!options_.certificate_file.empty()) {
      curl_easy_setopt(curl, CURLOPT_SSLCERT, options_.certificate_file.c_str());
      curl_easy_setopt(curl, CURLOPT_SSLKEY, options_.key_file.c_str());
    }
    const CURLcode done = curl_easy_perform(curl);
    if (done != CURLE_OK) {
      present_ = (present_ + 1) % endpoints_.size();
      const std::string why = complaint[0] != '\0' ? complaint : curl_easy_strerror(done);
      return etcd_answers::no_answer{endpoint + ": " + why.substr(0, 200)};
    }
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    etcd_answer out = to_answer(request, status, answer_);
    if (auto* nothing = std::get_if<etcd_answers::no_answer>(&out)) {
      present_ = (present_ + 1) % endpoints_.size();
      nothing->why = endpoint + ": " + nothing->why;
    }
    return out;
  }

 private:
  struct free_curl {
    void operator()(CURL* curl) const noexcept { curl_easy_cleanup(curl); }
    void operator()(curl_slist* list) const noexcept { curl_slist_free_all(list); }
  };
  static constexpr std::size_t answer_limit = 1u << 20;

  static std::size_t take_bytes(char* bytes, std::size_t size, std::size_t count, void* self) noexcept {
    std::string& answer = static_cast<etcd_client*>(self)->answer_;
    const std::size_t all = size * count;
    if (answer.size() + all > answer_limit) return 0;  // ends the transfer
    try {
      answer.append(bytes, all);
    } catch (...) {
      return 0;
    }
    return all;
  }

  etcd_options options_;
  std::vector<std::string> endpoints_;
  std::size_t present_ = 0;
  std::unique_ptr<CURL, free_curl> curl_;
  std::unique_ptr<curl_slist, free_curl> headers_;
  std::string answer_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
