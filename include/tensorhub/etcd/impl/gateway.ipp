#pragma once
/// \file gateway.ipp
/// Definitions of gateway.hpp.

#include <utility>
#include <variant>

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/etcd/gateway.hpp"

namespace tensorhub::inline TENSORHUB_MODE::etcd_detail {

TENSORHUB_DECL std::string to_base64(std::string_view text) {
  constexpr int variant = sodium_base64_VARIANT_ORIGINAL;
  std::string out(sodium_base64_encoded_len(text.size(), variant), '\0');
  sodium_bin2base64(out.data(), out.size(), reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                    variant);
  out.pop_back();  // removes the terminating zero
  return out;
}

TENSORHUB_DECL std::string from_base64(std::string_view text) {
  std::string out(text.size(), '\0');
  std::size_t bytes = 0;
  if (sodium_base642bin(reinterpret_cast<unsigned char*>(out.data()), out.size(), text.data(), text.size(),
                        nullptr, &bytes, nullptr, sodium_base64_VARIANT_ORIGINAL) != 0)
    return {};
  out.resize(bytes);
  return out;
}

TENSORHUB_DECL const json& member(const json& object, const char* name) {
  static const json none;
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

TENSORHUB_DECL std::string text_of(const json& object, const char* name) {
  const json& value = member(object, name);
  return value.is_string() ? value.get<std::string>() : std::string{};
}

TENSORHUB_DECL std::int64_t number_of(const json& object, const char* name) {
  const json& value = member(object, name);
  if (value.is_number_integer()) return value.get<std::int64_t>();
  return value.is_string() ? number_in<std::int64_t>(value.get<std::string>()).value_or(0) : 0;
}

TENSORHUB_DECL const json& entry_of(const json& answer, std::size_t i) {
  static const json none;
  const json& responses = member(answer, "responses");
  if (!responses.is_array() || responses.size() <= i) return none;
  const json& entries = member(member(responses[i], "response_range"), "kvs");
  return entries.is_array() && !entries.empty() ? entries[0] : none;
}

TENSORHUB_DECL etcd_answer situation_in(const json& answer, bool taking) {
  etcd_answers::situation out;
  const json& succeeded = member(answer, "succeeded");
  const bool done = succeeded.is_boolean() && succeeded.get<bool>();
  out.taken = taking && done;
  if (out.taken) return out;
  const json& responses = member(answer, "responses");
  if (!responses.is_array() || responses.size() != 2)
    return etcd_answers::no_answer{"etcd has answered a transaction without what it has read"};
  const json& leader = entry_of(answer, 0);
  if (leader.is_object()) {
    const std::int64_t lease = number_of(leader, "lease");
    out.leader_lease = lease == 0 ? etcd_answers::no_lease : lease;
    out.leader_address = from_base64(text_of(leader, "value")).substr(0, 1024);
  }
  const json& term = entry_of(answer, 1);
  if (term.is_object()) {
    out.term_revision = number_of(term, "mod_revision");
    out.term = number_in<std::uint64_t>(from_base64(text_of(term, "value")));
    if (out.term && *out.term > server_term_max) out.term.reset();
  }
  return out;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::etcd_detail

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL etcd_post to_post(const std::string& name, const etcd_request& request) {
  using namespace etcd_detail;
  const auto lease = [](std::int64_t id) { return json{{"ID", std::to_string(id)}}; };
  const auto put = [](const std::string& key, const std::string& value, std::int64_t under) {
    json body{{"key", to_base64(key)}, {"value", to_base64(value)}};
    if (under != 0) body["lease"] = std::to_string(under);
    return json{{"request_put", body}};
  };
  struct writer {
    const std::string& name;
    const decltype(lease)& lease_of;
    const decltype(put)& put_of;

    etcd_post operator()(const etcd_requests::look&) const {
      return {"/v3/kv/txn", json{{"success", read_both(name)}}.dump()};
    }
    etcd_post operator()(const etcd_requests::grant_lease& grant) const {
      json body = lease_of(grant.lease);
      body["TTL"] = std::to_string(grant.seconds);
      return {"/v3/lease/grant", body.dump()};
    }
    etcd_post operator()(const etcd_requests::keep_alive& renewal) const {
      return {"/v3/lease/keepalive", lease_of(renewal.lease).dump()};
    }
    etcd_post operator()(const etcd_requests::revoke_lease& revocation) const {
      return {"/v3/lease/revoke", lease_of(revocation.lease).dump()};
    }
    etcd_post operator()(const etcd_requests::take& take) const {
      const std::string leader = leader_key(name);
      const std::string term = term_key(name);
      json body;
      body["compare"] = json::array({json{{"key", to_base64(leader)},
                                          {"target", "CREATE"},
                                          {"result", "EQUAL"},
                                          {"create_revision", "0"}},
                                     json{{"key", to_base64(term)},
                                          {"target", "MOD"},
                                          {"result", "EQUAL"},
                                          {"mod_revision", std::to_string(take.term_revision)}}});
      body["success"] =
          json::array({put_of(leader, take.address, take.lease), put_of(term, std::to_string(take.term), 0)});
      body["failure"] = read_both(name);
      return {"/v3/kv/txn", body.dump()};
    }
  };
  return std::visit(writer{name, lease, put}, request.body);
}

TENSORHUB_DECL etcd_post to_login(const std::string& user, const std::string& password) {
  // The password is written by hand: the JSON library would leave copies of it in memory.
  std::string body = R"({"name":)" + etcd_detail::json(user).dump() + R"(,"password":")";
  body.reserve(body.size() + 6 * password.size() + 2);
  for (const char each : password) {
    if (each == '"' || each == '\\') body += '\\';
    if (static_cast<unsigned char>(each) < 0x20)
      body.append("\\u00").append(1, each < 0x10 ? '0' : '1').append(1, "0123456789abcdef"[each & 15]);
    else
      body += each;
  }
  body += "\"}";
  return {"/v3/auth/authenticate", std::move(body)};
}

TENSORHUB_DECL std::string token_in(std::string_view answer) {
  const std::string token = etcd_detail::text_of(etcd_detail::json::parse(answer, nullptr, false), "token");
  // It becomes part of a header.
  const bool is_plain = detail::all_of(token, [](char each) { return each > ' ' && each < 0x7f; });
  return is_plain && token.size() <= 4096 ? token : std::string{};
}

TENSORHUB_DECL std::string complaint_in(long status, std::string_view body) {
  const etcd_detail::json answer = etcd_detail::json::parse(body, nullptr, false);
  std::string why = etcd_detail::text_of(answer, "message");
  if (why.empty()) why = etcd_detail::text_of(answer, "error");
  if (why.empty()) why = "what answers is no etcd of version 3.4 or newer";
  return why.substr(0, 200) + " (HTTP " + std::to_string(status) + ")";
}

TENSORHUB_DECL bool wants_new_token(long status, std::string_view body) {
  return status == 401 || (status == 400 && body.find("revision of auth store is old") != body.npos);
}

TENSORHUB_DECL etcd_answer to_answer(const etcd_request& request, long status, std::string_view body) {
  using namespace etcd_detail;
  const json answer = json::parse(body, nullptr, false);
  if (status != 200 || !answer.is_object()) {
    // A lease that etcd does not know has already ended.
    if (std::holds_alternative<etcd_requests::revoke_lease>(request.body) && number_of(answer, "code") == 5)
      return etcd_answers::revoked{};
    return etcd_answers::no_answer{complaint_in(status, body)};
  }
  if (std::holds_alternative<etcd_requests::revoke_lease>(request.body)) return etcd_answers::revoked{};
  if (std::holds_alternative<etcd_requests::take>(request.body)) return situation_in(answer, true);
  if (std::holds_alternative<etcd_requests::look>(request.body)) return situation_in(answer, false);
  const auto seconds_of = [](const json& lease, std::int64_t id) -> etcd_answer {
    if (number_of(lease, "ID") != id) return etcd_answers::no_answer{"etcd has answered for another lease"};
    return etcd_answers::lease{number_of(lease, "TTL")};
  };
  if (const auto* grant = std::get_if<etcd_requests::grant_lease>(&request.body))
    return seconds_of(answer, grant->lease);
  const auto* renewal = std::get_if<etcd_requests::keep_alive>(&request.body);
  const json& result = member(answer, "result");
  if (!result.is_object()) {
    const std::string why = text_of(member(answer, "error"), "message");
    return etcd_answers::no_answer{why.empty() ? "etcd has answered nothing about a lease"
                                               : why.substr(0, 200)};
  }
  return seconds_of(result, renewal->lease);
}

}  // namespace tensorhub::inline TENSORHUB_MODE
