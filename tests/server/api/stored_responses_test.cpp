// Responses that the server keeps: who can read them, go on from them and delete them.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/fixture.h"

namespace coppice::testing {
namespace {

using nlohmann::json;

class StoredResponsesTest : public ServerTest {
 protected:
  static server::ServerConfig with_keys() {
    auto c = config();
    c.api.api_keys = {"key-a", "key-b"};
    return c;
  }
  HttpAnswer send(const std::string& method, const std::string& path, const std::string& key = "") {
    return exchange(method + get_request(path, bearer(key)).substr(3));
  }
  HttpAnswer ask(const std::string& fields, const std::string& key = "") {
    return exchange(post_request("/v1/responses", "{" + fields + "}", bearer(key)));
  }
  std::string prompt(std::size_t nth) const {
    const auto tokens = model_->prompt(nth);
    return {tokens.begin(), tokens.end()};
  }
  /// Of the items, in the API's order.
  std::vector<std::string> input_ids(const std::string& id, const std::string& query = "") {
    std::vector<std::string> ids;
    for (const json& item : get("/v1/responses/" + id + "/input_items" + query).json()["data"])
      ids.push_back(item["id"]);
    return ids;
  }
  static std::string bearer(const std::string& key) {
    return key.empty() ? "" : "Authorization: Bearer " + key + "\r\n";
  }
};

TEST_F(StoredResponsesTest, AreToldAgainAndDeleted) {
  start(words({"Hel", "lo"}));
  const json answer = ask(R"("input": "hi", "metadata": {"a": "b"}, "instructions": "Be brief.")").json();
  EXPECT_EQ(answer["store"], true);
  const std::string path = "/v1/responses/" + answer["id"].get<std::string>();
  EXPECT_EQ(get(path).json(), answer);
  EXPECT_EQ(get(path + "/").json(), answer);
  EXPECT_EQ(get(path.substr(3)).json(), answer) << "without /v1";
  EXPECT_EQ(get(path.substr(3) + "/input_items").json()["data"].size(), 1U);
  EXPECT_EQ(get(path + "?stream=true").param(), "stream");
  EXPECT_EQ(exchange("PUT " + path + " HTTP/1.1\r\nHost: x\r\n\r\n").headers.at("allow"), "GET, DELETE");
  EXPECT_EQ(send("DELETE", path).json(), (json{{"id", answer["id"]}, {"object", "response"}, {"deleted", true}}));
  for (const char* method : {"GET", "DELETE"}) {
    const HttpAnswer gone = send(method, path);
    EXPECT_EQ(gone.status, 404);
    EXPECT_EQ(gone.code(), "response_not_found");
  }
  wait_for_figure("coppice_stored_responses 0");
  wait_for_figure("coppice_stored_response_bytes 0");
  wait_for_figure(R"(coppice_http_requests_total{path="/v1/responses/{id}",status="404"} 2)");
}

TEST_F(StoredResponsesTest, GoOnAsIfAllWereSentAgain) {
  start(words({"Hel", "lo"}));
  const json first = ask(R"("input": [{"role": "user", "content": "hi"}], "instructions": "Be brief.")").json();
  const json second = ask(R"("input": "more", "previous_response_id": )" + first["id"].dump()).json();
  EXPECT_EQ(second["previous_response_id"], first["id"]);
  EXPECT_EQ(prompt(1), "user: hi\nassistant: Hello\nuser: more\nassistant: ") << "instructions are not inherited";
  json all = {{"input", json::array({{{"role", "user"}, {"content", "hi"}}})}};
  for (const json& item : first["output"]) all["input"].push_back(item);
  all["input"].push_back({{"role", "user"}, {"content", "more"}});
  for (const json& item : second["output"]) all["input"].push_back(item);
  all["input"].push_back({{"role", "user"}, {"content", "end"}});
  EXPECT_EQ(post("/v1/responses", all.dump()).status, 200);
  ask(R"("input": "end", "previous_response_id": )" + second["id"].dump());
  EXPECT_EQ(prompt(3), prompt(2));
}

TEST_F(StoredResponsesTest, ABranchMayStartAnywhere) {
  start(words({"x"}));
  const std::string first = ask(R"("input": "a")").json()["id"];
  const std::string second = ask(R"("input": "b", "previous_response_id": ")" + first + "\"").json()["id"];
  ask(R"("input": "c", "previous_response_id": ")" + first + "\"");
  EXPECT_EQ(prompt(2), "user: a\nassistant: x\nuser: c\nassistant: ");
  send("DELETE", "/v1/responses/" + first);
  ask(R"("input": "d", "previous_response_id": ")" + second + "\"");
  EXPECT_EQ(prompt(3), "user: a\nassistant: x\nuser: b\nassistant: x\nuser: d\nassistant: ")
      << "a later turn keeps what it stands on";
}

TEST_F(StoredResponsesTest, InputItemsComeInPages) {
  start(words({"x"}));
  const json first =
      ask(R"("input": [{"role": "developer", "content": "d", "id": "msg_mine"}, {"role": "user", "content": "a"}])")
          .json();
  const std::string id = ask(R"("input": "b", "previous_response_id": )" + first["id"].dump()).json()["id"];
  const auto ids = input_ids(id, "?order=asc");
  ASSERT_EQ(ids.size(), 4U);
  EXPECT_EQ(ids[0], "msg_mine");
  EXPECT_EQ(ids[2], first["output"][0]["id"].get<std::string>()) << "with the turns before";
  EXPECT_EQ(input_ids(id), (std::vector<std::string>{ids[3], ids[2], ids[1], ids[0]}));
  EXPECT_EQ(input_ids(id, "?limit=2&after=" + ids[2]), (std::vector<std::string>{ids[1], ids[0]}));
  const json page = get("/v1/responses/" + id + "/input_items?order=asc&limit=3").json();
  EXPECT_EQ(page["object"], "list");
  EXPECT_EQ(page["has_more"], true);
  EXPECT_EQ(page["first_id"], ids[0]);
  EXPECT_EQ(page["last_id"], ids[2]);
  EXPECT_EQ(page["data"][0]["content"], (json::array({{{"type", "input_text"}, {"text", "d"}}})));
  for (const char* bad : {"limit=0", "limit=101", "limit=x", "order=up", "after=nothing"}) {
    const HttpAnswer answer = get("/v1/responses/" + id + "/input_items?" + bad);
    EXPECT_EQ(answer.status, 400) << bad;
    EXPECT_EQ(answer.param() + "=", std::string(bad).substr(0, std::string(bad).find('=') + 1));
  }
}

TEST_F(StoredResponsesTest, ItemsAreReferredTo) {
  start(words({"x"}));
  const json first = ask(R"("input": "a")").json();
  const std::string reference = R"({"type": "item_reference", "id": ")";
  const std::string item = first["output"][0]["id"];
  ask(R"("input": [{"role": "user", "content": "a"}, )" + reference + item +
      R"("}, {"role": "user", "content": "b"}])");
  EXPECT_EQ(prompt(1), "user: a\nassistant: x\nuser: b\nassistant: ");
  for (const std::string& wrong :
       {item + "1", std::string(), std::string("_"), std::string("msg_1"), first["id"].get<std::string>()}) {
    const HttpAnswer answer = ask(R"("input": [)" + reference + wrong + R"("}])");
    EXPECT_EQ(answer.status, 404) << wrong;
    EXPECT_EQ(answer.param(), "input[0].id");
  }
  const std::string twice = reference + item + "\"}";
  EXPECT_EQ(ask(R"("input": [)" + twice + "," + twice + "]").param(), "input[1].id");
}

TEST_F(StoredResponsesTest, NobodyElseReachesThem) {
  start(words({"x"}), with_keys());
  const json salted = ask(R"("input": "a", "cache_salt": "s")", "key-a").json();
  const json plain = ask(R"("input": "a")", "key-a").json();
  const std::string unknown = "resp_00000000000000000000000000000000";
  const auto same_as_unknown = [&](const std::string& method, const std::string& id, const std::string& more,
                                   const std::string& key) {
    const auto answer_to = [&](const std::string& asked) {
      HttpAnswer answer =
          method == "POST" ? ask(R"("input": "b", "previous_response_id": ")" + asked + "\"" + more, key)
          : method == "REFER"
              ? ask(R"("input": [{"type": "item_reference", "id": "msg_)" + asked + "_0\"}]" + more, key)
              : send(method, "/v1/responses/" + asked + more, key);
      for (std::size_t at; (at = answer.body.find(asked)) != std::string::npos;)
        answer.body.replace(at, asked.size(), "ID");
      return fmt::format("{} {}", answer.status, answer.body);
    };
    const std::string answer = answer_to(id);
    EXPECT_EQ(answer, answer_to(unknown)) << method << more << key;
    EXPECT_TRUE(answer.starts_with("404") || (method == "POST" && answer.starts_with("400"))) << answer;
  };
  struct Stranger {
    std::string key, query, field;
    json response;
  };
  for (const Stranger& who :
       {Stranger{"key-b", "", "", plain}, Stranger{"key-b", "?cache_salt=s", R"(, "cache_salt": "s")", salted},
        Stranger{"key-a", "", "", salted}, Stranger{"key-a", "?cache_salt=s", R"(, "cache_salt": "s")", plain}}) {
    const std::string id = who.response["id"];
    same_as_unknown("POST", id, who.field, who.key);
    same_as_unknown("REFER", id, who.field, who.key);
    same_as_unknown("GET", id, who.query, who.key);
    same_as_unknown("GET", id, "/input_items" + who.query, who.key);
    same_as_unknown("DELETE", id, who.query, who.key);
  }
  EXPECT_EQ(send("GET", "/v1/responses/" + plain["id"].get<std::string>()).status, 401);
  const std::string path = "/v1/responses/" + salted["id"].get<std::string>();
  EXPECT_EQ(send("GET", path + "/input_items?cache_salt=s", "key-a").status, 200);
  EXPECT_EQ(send("GET", path + "?cache_salt=s", "key-a").json(), salted);
  EXPECT_EQ(ask(R"("input": "b", "cache_salt": "s", "previous_response_id": )" + salted["id"].dump(), "key-a").status,
            200);
  EXPECT_EQ(send("DELETE", path + "?cache_salt=s", "key-a").status, 200);
  EXPECT_EQ(send("GET", "/v1/responses/" + plain["id"].get<std::string>(), "key-a").json(), plain);
}

TEST_F(StoredResponsesTest, StreamsAreStoredWhenTheyEnd) {
  FakeModel& model = start();
  auto c = client();
  c->send(post_request("/v1/responses", R"({"input": "a", "stream": true})"));
  const auto id = model.wait_submitted(0);
  model.emit({piece(id, "Hel")});
  c->read_until("\"Hel\"");
  wait_for_figure("coppice_stored_responses 0");
  model.emit({last(id, "lo", sampling::Finish::kLength, {})});
  c->read_until("event: response.incomplete\ndata: ");
  const json end = json::parse(c->read_until("\n\n"))["response"];
  EXPECT_EQ(end["store"], true);
  EXPECT_EQ(end["output"][0]["content"][0]["text"], "Hello");
  EXPECT_EQ(get("/v1/responses/" + end["id"].get<std::string>()).json(), end);
}

TEST_F(StoredResponsesTest, WhatIsCancelledOrFailsIsNot) {
  FakeModel& model = start();
  const auto begin = [&](std::size_t nth) {
    auto c = client();
    c->send(post_request("/v1/responses", R"({"input": "a", "stream": true})"));
    const auto id = model.wait_submitted(nth);
    model.emit({piece(id, "Hel")});
    c->read_until("\"Hel\"");
    return std::pair(std::move(c), id);
  };
  auto [left, cancelled] = begin(0);
  left->close();
  EXPECT_TRUE(model.wait_cancelled(cancelled));
  auto [stays, failed] = begin(1);
  model.emit({last(failed, "lo", sampling::Finish::kError, {})});
  stays->read_until("response.failed");
  wait_for_figure("coppice_stored_response_bytes 0");
  wait_for_figure("coppice_stored_responses 0");
}

TEST_F(StoredResponsesTest, OnlyIfTheClientWantsIt) {
  start(words({"x"}));
  const json answer = ask(R"("input": "a", "store": false)").json();
  EXPECT_EQ(answer["store"], false);
  EXPECT_EQ(get("/v1/responses/" + answer["id"].get<std::string>()).status, 404);
}

TEST_F(StoredResponsesTest, OnlyIfTheOperatorWantsIt) {
  auto c = config();
  c.api.response_store_bytes = 0;
  start(words({"x"}), c);
  const json answer = ask(R"("input": "a", "store": true)").json();
  EXPECT_EQ(answer["store"], false);
  EXPECT_EQ(get("/v1/responses/" + answer["id"].get<std::string>()).status, 404);
  EXPECT_EQ(ask(R"("input": "a", "previous_response_id": )" + answer["id"].dump()).code(), "unsupported_parameter");
}

TEST_F(StoredResponsesTest, TheAnswerSaysIfThereIsNoRoom) {
  auto c = config();
  c.api.response_store_bytes = 4000;
  start(words({"x"}), c);
  EXPECT_EQ(ask(R"("input": "a")").json()["store"], true);
  const std::string large = R"("input": "a", "text": {"verbosity": ")" + std::string(5000, 'v') + "\"}";
  EXPECT_EQ(ask(large).json()["store"], false);
  EXPECT_EQ(
      ask(R"("input": [{"role": "user", "content": "a", "id": ")" + std::string(5000, 'i') + "\"}]").json()["store"],
      false);
}

}  // namespace
}  // namespace coppice::testing
