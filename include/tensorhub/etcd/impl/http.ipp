#pragma once
/// \file http.ipp
/// Definitions of http.hpp.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>

#include "tensorhub/detail/split_list.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/etcd/gateway.hpp"
#include "tensorhub/etcd/http.hpp"
#include "tensorhub/key_files.hpp"

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
  if (options_.user.empty() != options_.password_file.empty())
    throw error(errc::invalid_argument, "etcd_options: user and password_file belong together");
  if (!options_.user.empty()) password_ = read_password(options_.password_file);
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  curl_.reset(ready == CURLE_OK ? curl_easy_init() : nullptr);
  if (!curl_) throw error(errc::system_failed, "libcurl cannot be started");
  set_token({});
}

TENSORHUB_DECL std::string plain_endpoints(const etcd_options& options) {
  std::string out;
  for (const std::string& each : detail::split_list(options.endpoints)) {
    if (!each.starts_with("http://") || is_local_address("tcp://" + each.substr(7))) continue;
    out += (out.empty() ? "" : ", ") + each;
  }
  return out;
}

TENSORHUB_DECL void etcd_client::set_token(const std::string& token) {
  headers_.reset(curl_slist_append(nullptr, "Content-Type: application/json"));
  if (!headers_ ||
      (!token.empty() && !curl_slist_append(headers_.get(), ("Authorization: " + token).c_str())))
    throw error(errc::system_failed, "libcurl has no memory for a header");
  is_logged_in_ = !token.empty();
}

TENSORHUB_DECL etcd_answer etcd_client::ask(const std::string& election_name, const etcd_request& request,
                                            std::chrono::milliseconds patience) {
  const clock::time_point until = clock::now() + patience;
  const etcd_post what = to_post(election_name, request);
  const std::string endpoint = endpoints_[present_];
  std::string why;
  const bool has_token = is_logged_in_;
  long status = 0;
  if (options_.user.empty() || is_logged_in_ || log_in(until, why)) status = post(what, until, why);
  if (has_token && wants_new_token(status, answer_)) {
    set_token({});
    status = log_in(until, why) ? post(what, until, why) : 0;
  }
  etcd_answer out =
      status == 0 ? etcd_answer{etcd_answers::no_answer{why}} : to_answer(request, status, answer_);
  if (auto* nothing = std::get_if<etcd_answers::no_answer>(&out)) {
    present_ = (present_ + 1) % endpoints_.size();
    nothing->why = endpoint + ": " + nothing->why;
  }
  return out;
}

TENSORHUB_DECL bool etcd_client::log_in(clock::time_point until, std::string& why) {
  etcd_post login = to_login(options_.user, password_);
  const detail::wiped_at_end wiped{login.body};
  const long status = post(login, until, why);
  const std::string token = status == 200 ? token_in(answer_) : std::string{};
  if (token.empty() && status != 0)
    why = "etcd gives the user '" + options_.user + "' no token: " + complaint_in(status, answer_);
  set_token(token);
  return is_logged_in_;
}

TENSORHUB_DECL long etcd_client::post(const etcd_post& what, clock::time_point until, std::string& why) {
  const std::string url = endpoints_[present_] + what.path;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - clock::now()).count();
  CURL* const curl = curl_.get();
  char complaint[CURL_ERROR_SIZE] = {};
  answer_.clear();
  curl_easy_reset(curl);  // keeps the connection
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, complaint);
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
  curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L);  // a time-out does not wait for a resolver that hangs
#endif
  curl_easy_setopt(curl, CURLOPT_PROXY, "");
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(std::max<std::int64_t>(1, left)));
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers_.get());
  curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, static_cast<long>(what.body.size()));
  curl_easy_setopt(curl, CURLOPT_POSTFIELDS, what.body.c_str());
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &etcd_client::take_bytes);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, this);
  if (!options_.ca_file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, options_.ca_file.c_str());
  if (!options_.certificate_file.empty()) {
    curl_easy_setopt(curl, CURLOPT_SSLCERT, options_.certificate_file.c_str());
    curl_easy_setopt(curl, CURLOPT_SSLKEY, options_.key_file.c_str());
  }
  const CURLcode done = curl_easy_perform(curl);
  if (done != CURLE_OK) {
    why = std::string{complaint[0] != '\0' ? complaint : curl_easy_strerror(done)}.substr(0, 200);
    return 0;
  }
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  return status;
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
