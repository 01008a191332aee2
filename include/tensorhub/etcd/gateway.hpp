#pragma once
/// \file gateway.hpp
/// Converts the requests of the election to JSON for etcd's HTTP gateway (API v3, etcd 3.4 and newer), and
/// its answers back.
///
/// | request      | POST to               | body                                                            |
/// |--------------|-----------------------|-----------------------------------------------------------------|
/// | look         | /v3/kv/txn            | reads both keys in a transaction: linearizable, one revision    |
/// | take         | /v3/kv/txn            | compare both keys; put both; else read both                     |
/// | grant_lease  | /v3/lease/grant       | {"ID": ..., "TTL": seconds}                                     |
/// | keep_alive   | /v3/lease/keepalive   | {"ID": ...}; one round of the stream in gRPC                    |
/// | revoke_lease | /v3/lease/revoke      | {"ID": ...}                                                     |
/// | a token      | /v3/auth/authenticate | {"name": ..., "password": ...}                                  |
///
/// Keys and values are encoded as base64, 64-bit numbers as text; fields that are zero are left out. Source:
/// etcd's api/etcdserverpb/rpc.proto and its page "gRPC gateway". Pure functions; no sockets. An answer that
/// cannot be understood becomes `no_answer` with a sentence; no function throws because of an answer.

#include <sodium.h>

#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/etcd/election.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// The path and body of one POST.
struct etcd_post {
  std::string path{};
  std::string body{};
};

namespace etcd_detail {

using json = nlohmann::json;

[[nodiscard]] inline std::string leader_key(const std::string& name) {
  return "tensorhub/" + name + "/leader";
}
[[nodiscard]] inline std::string term_key(const std::string& name) {
  return "tensorhub/" + name + "/term";
}

[[nodiscard]] std::string to_base64(std::string_view text);
/// Decodes base64; empty if the text is not valid base64.
[[nodiscard]] std::string from_base64(std::string_view text);

template <typename Number>
[[nodiscard]] std::optional<Number> number_in(std::string_view text) {
  Number value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || failed != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Member `name` of an object; null if there is none.
[[nodiscard]] const json& member(const json& object, const char* name);
[[nodiscard]] std::string text_of(const json& object, const char* name);
/// 64-bit numbers are texts in protobuf's JSON, and absent when they are zero.
[[nodiscard]] std::int64_t number_of(const json& object, const char* name);

[[nodiscard]] inline json read_of(const std::string& key) {
  return {{"request_range", {{"key", to_base64(key)}}}};
}
[[nodiscard]] inline json read_both(const std::string& name) {
  return json::array({read_of(leader_key(name)), read_of(term_key(name))});
}

/// The first entry that the i-th read of a transaction has found; null if it has found none.
[[nodiscard]] const json& entry_of(const json& answer, std::size_t i);

[[nodiscard]] etcd_answer situation_in(const json& answer, bool taking);

}  // namespace etcd_detail

/// The request for the election `name`.
[[nodiscard]] etcd_post to_post(const std::string& name, const etcd_request& request);

/// The request for a token, which the answer to it has; empty: it has none.
[[nodiscard]] etcd_post to_login(const std::string& user, const std::string& password);
[[nodiscard]] std::string token_in(std::string_view answer);

/// What etcd says that it has not done; of an answer whose status is not 200, or that is no JSON.
[[nodiscard]] std::string complaint_in(long status, std::string_view body);

/// Whether etcd refuses the request because of its token: that is too old, or the rights have changed since.
[[nodiscard]] bool wants_new_token(long status, std::string_view body);

/// The answer of etcd to this request. `status`: of the HTTP response.
[[nodiscard]] etcd_answer to_answer(const etcd_request& request, long status, std::string_view body);

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/etcd/impl/gateway.ipp"
#endif
