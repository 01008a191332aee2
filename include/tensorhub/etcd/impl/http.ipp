#pragma once
/// \file http.ipp
/// Definitions of http.hpp.

#include <utility>

#include "tensorhub/error.hpp"
#include "tensorhub/etcd/gateway.hpp"
#include "tensorhub/etcd/http.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL etcd_client::etcd_client(etcd_options how) : options_{std::move(how)} {
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

TENSORHUB_DECL etcd_answer etcd_client::ask(const std::string& election_name, const etcd_request& request,
                                            std::chrono::milliseconds patience) {
  const etcd_post post = to_post(election_name, request);
  const std::string& endpoint = endpoints_[present_];
  const std::string url = endpoint + post.path;
  CURL* const curl = curl_.get();
  char complaint[CURL_ERROR_SIZE] = {};
  answer_.clear();
  curl_easy_reset(curl);  // keeps the connection
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, complaint);
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_PROXY, "");
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(std::max<std::int64_t>(1, patience.count())));
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

TENSORHUB_DECL std::size_t etcd_client::take_bytes(char* bytes, std::size_t size, std::size_t count,
                                                   void* self) noexcept {
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

}  // namespace tensorhub::inline TENSORHUB_MODE
