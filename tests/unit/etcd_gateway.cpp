/// \file etcd_gateway.cpp
/// The JSON for etcd's gateway and back. What etcd 3.4 answers here was taken from a running one.

#include <doctest/doctest.h>

#include <string>
#include <variant>

#include "tensorhub/etcd/gateway.hpp"

using namespace tensorhub;

namespace {

using nlohmann::json;

etcd_request asking(decltype(etcd_request::body) body) {
  return {1, time_point::never(), std::move(body)};
}
template <typename Answer>
Answer answer_to(const etcd_request& request, const std::string& body, long status = 200) {
  const etcd_answer answer = to_answer(request, status, body);
  REQUIRE(std::holds_alternative<Answer>(answer));
  return std::get<Answer>(answer);
}
std::string coded(const std::string& text) {
  return etcd_detail::to_base64(text);
}

const etcd_request look = asking(etcd_requests::look{});
const etcd_request take = asking(etcd_requests::take{77, 5, 9, "tcp://a:1"});
const etcd_request grant = asking(etcd_requests::grant_lease{77, 5});
const etcd_request renew = asking(etcd_requests::keep_alive{77});
const etcd_request give_back = asking(etcd_requests::revoke_lease{77});

}  // namespace

TEST_CASE("etcd gateway: requests are what etcd's API wants") {
  CHECK(coded("tensorhub/x/leader") == "dGVuc29yaHViL3gvbGVhZGVy");
  CHECK(etcd_detail::from_base64("dGVuc29yaHViL3gvbGVhZGVy") == "tensorhub/x/leader");
  CHECK(etcd_detail::from_base64("?").empty());

  CHECK(to_post("x", look).path == "/v3/kv/txn");
  const json reads = json::parse(to_post("x", look).body);
  CHECK(reads.size() == 1);
  REQUIRE(reads["success"].size() == 2);
  CHECK(reads["success"][0]["request_range"]["key"] == coded("tensorhub/x/leader"));
  CHECK(reads["success"][1]["request_range"]["key"] == coded("tensorhub/x/term"));

  CHECK(to_post("x", take).path == "/v3/kv/txn");
  const json taking = json::parse(to_post("x", take).body);
  REQUIRE(taking["compare"].size() == 2);
  CHECK(taking["compare"][0]["target"] == "CREATE");
  CHECK(taking["compare"][0]["create_revision"] == "0");
  CHECK(taking["compare"][1]["mod_revision"] == "5");
  REQUIRE(taking["success"].size() == 2);
  CHECK(taking["success"][0]["request_put"]["lease"] == "77");
  CHECK(taking["success"][0]["request_put"]["value"] == coded("tcp://a:1"));
  CHECK(taking["success"][1]["request_put"]["value"] == coded("9"));
  CHECK_FALSE(taking["success"][1]["request_put"].contains("lease"));
  CHECK(taking["failure"] == reads["success"]);

  CHECK(to_post("x", grant).path == "/v3/lease/grant");
  CHECK(json::parse(to_post("x", grant).body) == json{{"ID", "77"}, {"TTL", "5"}});
  CHECK(to_post("x", renew).path == "/v3/lease/keepalive");
  CHECK(json::parse(to_post("x", renew).body) == json{{"ID", "77"}});
  CHECK(to_post("x", give_back).path == "/v3/lease/revoke");
}

TEST_CASE("etcd gateway: answers are understood") {
  const std::string nobody =
      R"({"header":{"revision":"1"},"succeeded":true,"responses":[)"
      R"({"response_range":{"header":{"revision":"1"}}},{"response_range":{"header":{"revision":"1"}}}]})";
  const auto empty = answer_to<etcd_answers::situation>(look, nobody);
  CHECK_FALSE(empty.taken);
  CHECK(empty.leader_lease == 0);
  CHECK(empty.term_revision == 0);
  CHECK_FALSE(empty.term);

  const std::string somebody =
      R"({"responses":[{"response_range":{"kvs":[{"key":"eA==","create_revision":"3","mod_revision":"3",)"
      R"("version":"1","value":")" +
      coded("tcp://b:2") +
      R"(","lease":"7587882202229184016"}],"count":"1"}},)"
      R"({"response_range":{"kvs":[{"key":"eQ==","create_revision":"2","mod_revision":"3","value":")" +
      coded("41") + R"("}],"count":"1"}}]})";
  for (const etcd_request& request : {look, take}) {
    const auto held = answer_to<etcd_answers::situation>(request, somebody);
    CHECK_FALSE(held.taken);
    CHECK(held.leader_lease == 7587882202229184016);
    CHECK(held.leader_address == "tcp://b:2");
    CHECK(held.term_revision == 3);
    CHECK(held.term == 41);
  }
  const std::string done = R"({"succeeded":true,"responses":[{"response_put":{}},{"response_put":{}}]})";
  CHECK(answer_to<etcd_answers::situation>(take, done).taken);
  CHECK(answer_to<etcd_answers::lease>(grant, R"({"ID":"77","TTL":"5"})").seconds == 5);
  CHECK(answer_to<etcd_answers::lease>(renew, R"({"result":{"ID":"77","TTL":"5"}})").seconds == 5);
  CHECK(answer_to<etcd_answers::lease>(renew, R"({"result":{"ID":"77"}})").seconds == 0);  // it has ended
  answer_to<etcd_answers::revoked>(give_back, R"({"header":{}})");
  answer_to<etcd_answers::revoked>(give_back, R"({"error":"not found","code":5,"message":"not found"})", 404);
}

TEST_CASE("etcd gateway: what is no answer is none, with a sentence") {
  const std::string refusal =
      R"({"error":"etcdserver: no leader","code":14,"message":"etcdserver: no leader"})";
  for (const etcd_request& request : {look, take, grant, renew, give_back}) {
    CHECK(answer_to<etcd_answers::no_answer>(request, refusal, 503).why.find("no leader") !=
          std::string::npos);
    for (const char* const garbage : {"", "<html>", "[", "null", "7", "[]"}) {
      CHECK_FALSE(answer_to<etcd_answers::no_answer>(request, garbage).why.empty());
    }
  }
  const std::string short_one = R"({"succeeded":true,"responses":[{}]})";
  answer_to<etcd_answers::no_answer>(look, short_one);
  answer_to<etcd_answers::no_answer>(take, R"({"responses":7})");
  answer_to<etcd_answers::no_answer>(grant, R"({"ID":"78","TTL":"5"})");  // another lease
  answer_to<etcd_answers::no_answer>(renew, R"({"result":{"ID":"78","TTL":"5"}})");
  answer_to<etcd_answers::no_answer>(renew, R"({"error":{"message":"broken"}})");

  // Keys that somebody else has written: a leader without a lease leads; a term that is no number is none.
  const std::string foreign = R"({"responses":[{"response_range":{"kvs":[{"value":5}]}},)"
                              R"({"response_range":{"kvs":[{"mod_revision":"3","value":")" +
                              coded("16777216") + R"("}]}}]})";
  const auto seen = answer_to<etcd_answers::situation>(look, foreign);
  CHECK(seen.leader_lease == -1);
  CHECK(seen.term_revision == 3);
  CHECK_FALSE(seen.term);
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += '[';
  answer_to<etcd_answers::no_answer>(look, deep);
}

TEST_CASE("etcd gateway: an answer of a million open brackets is none") {
  for (const char each : {'[', '{'}) answer_to<etcd_answers::no_answer>(look, std::string(1u << 20, each));
}

TEST_CASE("etcd gateway: a login says user and password, whatever they consist of") {
  std::string password = "a \"secret\" \\ \xc3\xa4 \x7f/";
  for (char each = 1; each < ' '; ++each) password += each;
  const etcd_post login = to_login("ser\"vers", password);
  CHECK(login.path == "/v3/auth/authenticate");
  const auto said = etcd_detail::json::parse(login.body);
  CHECK(said.size() == 2);
  CHECK(said.at("name") == "ser\"vers");
  CHECK(said.at("password") == password);
  CHECK(etcd_detail::json::parse(to_login("", "").body).at("password") == "");
}
