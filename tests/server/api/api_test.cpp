// The routes, over a real socket, with a scripted model.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "server/fixture.h"

namespace coppice::testing {
namespace {

using nlohmann::json;
using sampling::Finish;

class ApiTest : public ServerTest {};

TEST_F(ApiTest, HealthSaysHowFarLoadingIs) {
  start_loading(config());
  server_->set_progress("weights", 0.25);
  HttpAnswer health;
  do {
    health = get("/health");
    EXPECT_EQ(health.status, 503);
  } while (health.json()["stage"] == "starting");
  EXPECT_EQ(health.json(), json::parse(R"({"status": "loading", "stage": "weights", "progress": 0.25})"));
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"}) {
    const HttpAnswer answer = post(path, "{}");
    EXPECT_EQ(answer.status, 503) << path;
    EXPECT_EQ(answer.headers.at("retry-after"), "5");
    EXPECT_NE(answer.body.find("loading"), std::string::npos);
  }
  EXPECT_EQ(get("/v1/cache/stats").status, 503);
  EXPECT_NE(get("/metrics").body.find("coppice_ready 0"), std::string::npos);
  model_ = std::make_shared<FakeModel>(server_->sink());
  server_->ready(model_);
  while (get("/health").status == 503) {
  }
  EXPECT_EQ(get("/health").json(), json::parse(R"({"status": "ok"})"));
}

TEST_F(ApiTest, ChatAnswers) {
  FakeModel& model = start(words({"Hel", "lo"}, 3));
  const HttpAnswer answer = chat(R"(, "n": 2)");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("content-type"), "application/json");
  const json body = answer.json();
  EXPECT_EQ(body["choices"].size(), 2U);
  EXPECT_EQ(body["choices"][1]["message"]["content"], "Hello");
  EXPECT_EQ(body["model"], "the-model");
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(body["usage"]["prompt_tokens"], 20);  // "user: hi\nassistant: "
  EXPECT_EQ(body["usage"]["completion_tokens"], 4);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
  const auto prompt = model.prompt(0);
  EXPECT_EQ(std::string(prompt.begin(), prompt.end()), "user: hi\nassistant: ");
}

TEST_F(ApiTest, SeveralPromptsBecomeChoicesInOrder) {
  start([](const engine::Request& r) {
    const auto tokens = r.prompt.view().tokens();
    const std::string text(tokens.begin(), tokens.end());
    return std::vector{std::vector{piece(r.id, text + "0", 0), piece(r.id, text + "1", 1)},
                       std::vector{last(r.id, "", Finish::kStop, {2, 1, 2}, 0)}};
  });
  const json body = post("/v1/completions", R"({"prompt": ["aa", [98, 98]], "n": 2, "echo": true})").json();
  std::vector<std::string> texts;
  for (const json& choice : body["choices"]) texts.push_back(choice["text"]);
  EXPECT_EQ(texts, (std::vector<std::string>{"aaaa0", "aaaa1", "bbbb0", "bbbb1"}));
  EXPECT_EQ(body["choices"][3]["index"], 3);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(body["usage"]["total_tokens"], 8);
}

TEST_F(ApiTest, ModelMayBeIdAliasOrDefault) {
  start(words({"x"}));
  for (const auto& [name, said] :
       {std::pair{"the-model", "the-model"}, {"the-alias", "the-alias"}, {"default", "the-model"}})
    EXPECT_EQ(chat(fmt::format(R"(, "model": "{}")", name)).json()["model"], said);
  const HttpAnswer answer = chat(R"(, "model": "gpt-4")");
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(answer.code(), "model_not_found");
  EXPECT_EQ(answer.param(), "model");
  for (const HttpAnswer& told : {answer, get("/v1/models/gpt-4")})
    EXPECT_NE(told.body.find("'gpt-4' does not exist; this server has 'the-model'. Started with --alias '*'"),
              std::string::npos)
        << told.body;
}

TEST_F(ApiTest, ModelsListsIdAndAlias) {
  start();
  const json body = get("/v1/models").json();
  EXPECT_EQ(body["object"], "list");
  EXPECT_EQ(body["data"].size(), 2U);
  EXPECT_EQ(body["data"][0]["id"], "the-model");
  EXPECT_EQ(body["data"][0]["max_model_len"], 100);
  EXPECT_EQ(body["data"][1]["id"], "the-alias");
  EXPECT_EQ(get("/v1/models/the-alias").json()["root"], "the-model");
  EXPECT_EQ(get("/v1/models/the%2Dali%61s").json()["root"], "the-model");
  for (const char* none : {"other", "the-alias%", "the-alias%2", "the-ali%zzas", "%ff%00"})
    EXPECT_EQ(get(std::string("/v1/models/") + none).status, 404) << none;
}

TEST_F(ApiTest, ModelsHaveAnthropicsFieldsToo) {
  start();
  const json list = get("/v1/models").json();
  EXPECT_EQ(list["first_id"], "the-model");
  EXPECT_EQ(list["last_id"], "the-alias");
  EXPECT_EQ(list["has_more"], false);
  for (const json& model : {list["data"][1], get("/v1/models/the-alias").json()}) {
    EXPECT_EQ(model["type"], "model");
    EXPECT_EQ(model["object"], "model");
    EXPECT_EQ(model["display_name"], "the-alias");
    EXPECT_EQ(model["lifecycle"], "active");
    EXPECT_EQ(model["max_input_tokens"], 99);
    EXPECT_EQ(model["max_tokens"], 99);
    std::tm utc{};
    const auto created_at = model["created_at"].get<std::string>();
    ASSERT_NE(strptime(created_at.c_str(), "%Y-%m-%dT%H:%M:%SZ", &utc), nullptr) << created_at;
    EXPECT_EQ(timegm(&utc), model["created"].get<std::time_t>());
  }
}

TEST_F(ApiTest, PromptOverTheContextIsRefused) {
  FakeModel& model = start();
  const HttpAnswer answer = post("/v1/completions", fmt::format(R"({{"prompt": "{}"}})", std::string(100, 'a')));
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.code(), "context_length_exceeded");
  EXPECT_EQ(answer.param(), "prompt");
  EXPECT_NE(answer.body.find("This model's maximum context length is 100 tokens. However, your prompt has 100 tokens"),
            std::string::npos)
      << answer.body;
  for (const auto& [path, field] :
       {std::pair{"/v1/completions", "prompt"}, {"/tokenize", "prompt"}, {"/tokenize", "content"}}) {
    const HttpAnswer over = post(path, fmt::format(R"({{"{}": "{}"}})", field, std::string(300, 'a')));
    EXPECT_EQ(over.code(), "context_length_exceeded");
    EXPECT_NE(
        over.body.find(
            "This model's maximum context length is 100 tokens. However, your prompt has 300 tokens. Please reduce"),
        std::string::npos)
        << over.body;
  }
  EXPECT_EQ(post("/v1/completions", R"({"prompt": ""})").param(), "prompt");
  EXPECT_EQ(model.submitted(), 0U);
}

TEST_F(ApiTest, TemplatesReasonReachesTheClient) {
  start();
  const HttpAnswer answer = post("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "alien"}]})");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.param(), "messages");
  EXPECT_NE(answer.body.find("no aliens"), std::string::npos);
}

TEST_F(ApiTest, RefusalsHaveTheirStatus) {
  struct Case {
    engine::Refusal why;
    int status;
    const char* code;
    const char* chat_param;
    const char* completion_param;
  };
  for (const auto& [why, status, code, chat_param, completion_param] :
       {Case{engine::Refusal::kTooLong, 400, "context_length_exceeded", "messages", "prompt"},
        Case{engine::Refusal::kTooManySamples, 400, "invalid_value", "n", "n"},
        Case{engine::Refusal::kTooHeavy, 400, "too_heavy", "messages", "prompt"},
        Case{engine::Refusal::kUnsatisfiable, 400, "unsatisfiable", "", ""},
        Case{engine::Refusal::kQueueFull, 429, "queue_full", "", ""},
        Case{engine::Refusal::kShutdown, 503, "unavailable", "", ""},
        Case{engine::Refusal::kTimeout, 504, "deadline_exceeded", "", ""},
        Case{engine::Refusal::kNoMemory, 503, "unavailable", "", ""},
        Case{engine::Refusal::kFailed, 500, "model_failed", "", ""}}) {
    start([cause = why](const engine::Request& r) {
      return std::vector<std::vector<engine::Event>>{{refusal(r.id, cause, "figures")}};
    });
    for (const char* stream : {"false", "true"}) {
      const HttpAnswer answer = chat(fmt::format(R"(, "stream": {})", stream));
      EXPECT_EQ(answer.status, status);
      EXPECT_EQ(answer.code(), code);
      EXPECT_EQ(answer.param(), chat_param);
      EXPECT_EQ(answer.headers.contains("retry-after"), status == 429 || status == 503);
    }
    EXPECT_EQ(complete().param(), completion_param);
  }
}

TEST_F(ApiTest, OnePromptRefusedCancelsTheOthers) {
  FakeModel& model = start();
  auto c = client();
  c->send(post_request("/v1/completions", R"({"prompt": ["a", "b"]})"));
  const auto first = model.wait_submitted(0), second = model.wait_submitted(1);
  model.emit({refusal(second, engine::Refusal::kTooLong, "too long")});
  EXPECT_EQ(c->receive().status, 400);
  EXPECT_TRUE(model.wait_cancelled(first));
}

TEST_F(ApiTest, AnAnswerThatBreaksOffIsAnError) {
  FakeModel& model = start();
  for (const auto& [finish, status] :
       {std::pair{Finish::kCancelled, 503}, {Finish::kError, 500}, {Finish::kUnsatisfiable, 400}}) {
    auto c = client();
    const auto before = model.submitted();
    c->send(post_request("/v1/completions", R"({"prompt": "a"})"));
    const auto id = model.wait_submitted(before);
    model.emit({piece(id, "some text")});
    model.emit({last(id, "", finish, {})});
    EXPECT_EQ(c->receive().status, status);
  }
}

TEST_F(ApiTest, ATimeoutAfterTheFirstTokenKeepsTheText) {
  start([](const engine::Request& r) {
    return std::vector<std::vector<engine::Event>>{
        {piece(r.id, "some "), last(r.id, "text", Finish::kTimeout, {2, 0, 2})}};
  });
  const json body = complete(R"(, "timeout": 0.5)").json();
  EXPECT_EQ(body["choices"][0]["text"], "some text");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
}

/// Of all events, in order.
json streamed_choices(const HttpAnswer& answer) {
  json all = json::array();
  const auto events = answer.events();
  EXPECT_EQ(events.back(), "[DONE]");
  for (const std::string& data : events)
    if (data != "[DONE]")
      for (const json& choice : json::parse(data)["choices"]) all.push_back(choice);
  return all;
}

/// One of several prompts had no token by then: its text is empty, and those of the others stay.
TEST_F(ApiTest, ATimeoutOfOnePromptKeepsTheTextsOfOthers) {
  int n = 0;
  start([&](const engine::Request& r) {
    if (n++ % 3 == 1)
      return std::vector<std::vector<engine::Event>>{{refusal(r.id, engine::Refusal::kTimeout, "late")}};
    auto first = last(r.id, "text", Finish::kTimeout, {2, 0, 2});
    first.ended.reset();
    return std::vector<std::vector<engine::Event>>{
        {piece(r.id, "some ", 0), piece(r.id, "some ", 1), first, last(r.id, "text", Finish::kTimeout, {2, 0, 4}, 1)}};
  });
  for (const char* form : {"", R"(, "stream": true)"}) {
    SCOPED_TRACE(form);
    const auto answer =
        post("/v1/completions", fmt::format(R"({{"prompt": ["a", "b", "c"], "n": 2, "timeout": 0.5{}}})", form));
    EXPECT_EQ(answer.status, 200);
    std::vector<std::string> texts(6);
    std::vector<json> finishes(6, json::array());
    for (const json& choice : *form == 0 ? answer.json()["choices"] : streamed_choices(answer)) {
      texts.at(choice["index"]) += choice["text"];
      if (!choice["finish_reason"].is_null()) finishes.at(choice["index"]).push_back(choice["finish_reason"]);
    }
    EXPECT_EQ(texts, (std::vector<std::string>{"some text", "some text", "", "", "some text", "some text"}));
    EXPECT_EQ(finishes, std::vector<json>(6, json::array({"length"}))) << "each choice ends once";
  }
}

TEST_F(ApiTest, AFullQueueSaysWhenToComeBack) {
  start([](const engine::Request& r) {
    auto event = refusal(r.id, engine::Refusal::kQueueFull, "full");
    std::get<engine::Refused>(event.news).retry_seconds = 6.2;
    return std::vector<std::vector<engine::Event>>{{event}};
  });
  EXPECT_EQ(complete().headers.at("retry-after"), "7");
}

TEST_F(ApiTest, PriorityAndTimeoutReachTheEngine) {
  auto c = config();
  c.api.request_seconds = 100;
  FakeModel& model = start(words({"x"}), c);
  const auto before = engine::Clock::now();
  complete(R"(, "priority": -3, "timeout": 20)");
  complete(R"(, "timeout": 500)");
  complete();
  const auto after = engine::Clock::now();
  EXPECT_EQ(model.priority(0), -3);
  EXPECT_EQ(model.priority(1), 0);
  const auto within = [&](std::size_t nth, int seconds) {
    const auto deadline = model.deadline(nth).value_or(before);
    return deadline >= before + std::chrono::seconds(seconds) && deadline <= after + std::chrono::seconds(seconds);
  };
  EXPECT_TRUE(within(0, 20));
  EXPECT_TRUE(within(1, 100)) << "the operator's limit is the earlier";
  EXPECT_TRUE(within(2, 100));
}

TEST_F(ApiTest, UnknownPathsAndWrongMethods) {
  start();
  const HttpAnswer lost = get("/v1/nothing");
  EXPECT_EQ(lost.status, 404);
  EXPECT_EQ(lost.code(), "not_found");
  const HttpAnswer wrong = get("/v1/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  EXPECT_EQ(post("/health", "").headers.at("allow"), "GET");
  const auto direct = client();
  direct->send("DELETE /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(direct->receive().headers.at("allow"), "POST");
  EXPECT_EQ(get("/health?verbose=1").status, 200);
}

TEST_F(ApiTest, BadBodiesAreRefusedAndTheServerLivesOn) {
  start(words({"x"}));
  const std::string deep(1000, '[');
  for (const std::string& body : {std::string(), std::string("{"), deep, std::string("{\"prompt\": \"\xff\"}"),
                                  std::string("\0\0", 2), std::string("nul"), std::string("[1]")}) {
    const HttpAnswer answer = post("/v1/completions", body);
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.code(), "invalid_json");
  }
  EXPECT_EQ(complete().status, 200);
}

TEST_F(ApiTest, SaltReachesTheEngine) {
  FakeModel& model = start(words({"x"}));
  complete(R"(, "cache_salt": "tenant")");
  EXPECT_EQ(model.salt(0), "tenant");
}

/// A proxy's word goes before its clients'.
TEST_F(ApiTest, AHeaderThatTheOperatorNamesIsTheSalt) {
  server::ServerConfig c = config();
  c.http.salt_field = "X-Tenant";
  FakeModel& model = start(words({"x"}), c);
  const auto send = [&](const std::string& path, const std::string& body) {
    return exchange(post_request(path, body, "x-tenant: alice\r\n"));
  };
  EXPECT_EQ(send("/v1/completions", R"({"prompt": "hi", "cache_salt": "body"})").status, 200);
  EXPECT_EQ(model.salt(0), "alice");
  const std::string messages = R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4})";
  std::size_t n = 1;
  for (const char* path : {"/v1/chat/completions", "/v1/messages"}) {
    EXPECT_EQ(send(path, messages).status, 200) << path;
    EXPECT_EQ(model.salt(n++), "alice") << path;
  }
  EXPECT_EQ(send("/v1/responses", R"({"input": "hi"})").status, 200);
  EXPECT_EQ(model.salt(n++), "alice");
  EXPECT_EQ(exchange(post_request("/v1/completions", R"({"prompt": "hi", "cache_salt": "body"})")).status, 200);
  EXPECT_EQ(model.salt(n++), "body") << "without the header nothing changes";

  for (const std::string& fields :
       {std::string("X-Tenant:\r\n"), std::string("X-Tenant:  \r\n"), std::string("X-Tenant: a b\r\n"),
        std::string("X-Tenant: \xc3\xa4\r\n"), std::string("X-Tenant: a\r\nX-Tenant: a\r\n"),
        fmt::format("X-Tenant: {}\r\n", std::string(257, 'a'))}) {
    const HttpAnswer answer = exchange(post_request("/v1/completions", R"({"prompt": "hi"})", fields));
    EXPECT_EQ(answer.status, 400) << fields;
    EXPECT_EQ(answer.code(), "bad_salt_header") << fields;
  }
  EXPECT_EQ(model.submitted(), n);
}

TEST_F(ApiTest, SaltIsAtMost256Bytes) {
  FakeModel& model = start(words({"x"}));
  EXPECT_EQ(complete(fmt::format(R"(, "cache_salt": "{}")", std::string(256, 'a'))).status, 200);
  const HttpAnswer answer = complete(fmt::format(R"(, "cache_salt": "{}")", std::string(257, 'a')));
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.param(), "cache_salt");
  EXPECT_EQ(model.submitted(), 1U);
}

TEST_F(ApiTest, TextThatCannotFitIsNeitherRenderedNorTokenized) {
  std::atomic<int> texts = 0;
  FakeModel& model = start(words({"x"}), config(), [&] { ++texts; });
  const std::string big(100 * server::kMaxTokenBytes + 1, 'a');  // the context holds 100 tokens
  const std::string big_chat = fmt::format(R"({{"messages": [{{"role": "user", "content": "{}"}}]}})", big);
  std::string many = R"({"messages": [{"role": "user", "content": ""})";
  for (int i = 0; i < 100; ++i) many += R"(, {"role": "user", "content": ""})";
  many += "]}";
  for (const auto& [path, body, param] :
       std::vector<std::array<std::string, 3>>{{"/v1/completions", fmt::format(R"({{"prompt": "{}"}})", big), "prompt"},
                                               {"/v1/chat/completions", big_chat, "messages"},
                                               {"/v1/chat/completions", many, "messages"},
                                               {"/tokenize", big_chat, "messages"},
                                               {"/tokenize", many, "messages"},
                                               {"/tokenize", fmt::format(R"({{"content": "{}"}})", big), "content"},
                                               {"/tokenize", fmt::format(R"({{"prompt": "{}"}})", big), "prompt"}}) {
    const HttpAnswer answer = post(path, body);
    EXPECT_EQ(answer.status, 400) << path;
    EXPECT_EQ(answer.code(), "context_length_exceeded") << path;
    EXPECT_EQ(answer.param(), param) << path;
  }
  EXPECT_EQ(texts, 0);
  EXPECT_EQ(model.submitted(), 0U);
  const std::string longest = fmt::format(R"({{"prompt": "{}"}})", big.substr(1));
  EXPECT_NE(post("/v1/completions", longest).body.find("at least 401 tokens"), std::string::npos)
      << "a text of the longest tokens might fill the context";
}

TEST_F(ApiTest, SlowChatTemplateHoldsUpNobodyElse) {
  std::promise<void> begun, release;
  std::once_flag once;
  start(words({"x"}), config(), [&] {
    std::call_once(once, [&] {
      begun.set_value();
      release.get_future().wait_for(kLongestWait);
    });
  });
  auto waiting = client();
  waiting->send(post_request("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "hi"}]})"));
  begun.get_future().wait();
  EXPECT_NO_THROW(EXPECT_EQ(get("/health").status, 200));
  release.set_value();
  EXPECT_EQ(waiting->receive().status, 200);
}

TEST_F(ApiTest, WholeAnswerHasNoSlowReader) {
  auto c = config();
  c.api.max_pending_bytes = 100;
  start(words({std::string(1000, 'a')}), c);
  EXPECT_EQ(complete().status, 200);
}

TEST_F(ApiTest, TokenizeSpeaksBothDialects) {
  start();
  EXPECT_EQ(post("/tokenize", R"({"content": "ab"})").json(),
            json::parse(R"({"tokens": [97, 98], "count": 2, "max_model_len": 100})"));
  EXPECT_EQ(post("/tokenize", R"({"prompt": "ab", "return_token_strs": true})").json()["token_strs"],
            json::array({"a", "b"}));
  EXPECT_EQ(post("/tokenize", R"({"content": "a", "with_pieces": true})").json()["tokens"][0],
            json::parse(R"({"id": 97, "piece": "a"})"));
  EXPECT_EQ(post("/tokenize", R"({"messages": [{"role": "user", "content": "x"}]})").json()["count"], 19);
  EXPECT_EQ(post("/tokenize", "{}").param(), "content");
  EXPECT_EQ(post("/detokenize", R"({"tokens": [97, 98]})").json(), json::parse(R"({"content": "ab", "prompt": "ab"})"));
  EXPECT_EQ(post("/detokenize", R"({"tokens": [256]})").param(), "tokens");
  EXPECT_EQ(post("/detokenize", R"({"tokens": "a"})").param(), "tokens");
  EXPECT_EQ(post("/detokenize", "{}").param(), "tokens");
}

TEST_F(ApiTest, MoreTokensThanTheContextAreNotCounted) {
  start();  // a context of 100 tokens, of a byte each, though they might be longer
  const auto tokens = [](int n) {
    std::string list;
    for (int i = 0; i < n; ++i) list += i == 0 ? "97" : ",97";
    return fmt::format(R"({{"tokens": [{}]}})", list);
  };
  const auto text = [](int n) { return std::string(static_cast<std::size_t>(n), 'a'); };
  EXPECT_EQ(post("/detokenize", tokens(100)).status, 200);
  EXPECT_EQ(post("/tokenize", fmt::format(R"({{"content": "{}"}})", text(100))).status, 200);
  for (const auto& [path, body, param] :
       {std::tuple{"/detokenize", tokens(101), "tokens"},
        {"/tokenize", fmt::format(R"({{"content": "{}"}})", text(101)), "content"},
        {"/tokenize", fmt::format(R"({{"prompt": "{}"}})", text(101)), "prompt"},
        {"/tokenize", fmt::format(R"({{"messages": [{{"role": "user", "content": "{}"}}]}})", text(101)),
         "messages"}}) {
    const HttpAnswer answer = post(path, body);
    EXPECT_EQ(answer.status, 400) << path;
    EXPECT_EQ(answer.code(), "context_length_exceeded") << path;
    EXPECT_EQ(answer.param(), param) << path;
  }
}

}  // namespace
}  // namespace coppice::testing
