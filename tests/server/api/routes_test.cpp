// Paths that other servers have, and what they tell of this one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "server/fixture.h"

namespace coppice::testing {
namespace {

using nlohmann::json;

const std::string kMessages = R"({"messages": [{"role": "user", "content": "hi"}])";

class RoutesTest : public ServerTest {};

TEST_F(RoutesTest, NeedNoVersionAndMayEndWithASlash) {
  start(words({"x"}));
  for (const char* path : {"/chat/completions", "/chat/completions/", "/v1/chat/completions/"})
    EXPECT_EQ(post(path, kMessages + "}").json()["object"], "chat.completion") << path;
  for (const char* path : {"/models", "/models/", "/v1/models", "/v1/models/"})
    EXPECT_EQ(get(path).json()["data"][0]["id"], "the-model") << path;
  for (const char* path : {"/v1/models/the-model", "/v1/models/the-model/"})
    EXPECT_EQ(get(path).json()["max_model_len"], 100) << path;
  EXPECT_EQ(get("/health/").status, 200);
  EXPECT_EQ(post("/tokenize/", R"({"content": "a"})").status, 200);
  EXPECT_EQ(get("/").status, 200);
  EXPECT_EQ(get("/page/page.css/").status, 200);
  EXPECT_EQ(get("//").status, 404);
  EXPECT_EQ(post("/v1/chat/completions//", kMessages + "}").status, 404);
}

TEST_F(RoutesTest, ProbesTellAliveFromReady) {
  start_loading(config());
  EXPECT_EQ(get("/livez").status, 200) << "to be killed while it loads helps nobody";
  EXPECT_EQ(get("/readyz").status, 503);
  EXPECT_EQ(get("/readyz").json(), get("/health").json());
  model_ = std::make_shared<FakeModel>(server_->sink());
  server_->ready(model_);
  while (get("/readyz").status != 200) {
  }
  EXPECT_EQ(get("/livez").status, 200);
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(RoutesTest, PropsTellWhatClientsMustKnow) {
  server::ServerConfig c = config();
  c.api.model_path = "/models/the.gguf";
  c.api.defaults.seed = 42;
  start_loading(c);
  EXPECT_EQ(get("/props").status, 503);
  model_ = std::make_shared<FakeModel>(server_->sink());
  model_->facts_.chat_template = "{{ messages }}";
  model_->facts_.eos = "</s>";
  server_->ready(model_);
  while (get("/health").status != 200) {
  }
  const json props = get("/props").json();
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 100);
  EXPECT_EQ(props["default_generation_settings"]["params"]["seed"], 42);
  EXPECT_EQ(props["default_generation_settings"]["params"]["top_k"], 40);
  EXPECT_EQ(props["total_slots"], 4);
  EXPECT_EQ(props["model_path"], "/models/the.gguf");
  EXPECT_EQ(props["chat_template"], "{{ messages }}");
  EXPECT_EQ(props["eos_token"], "</s>");
}

TEST_F(RoutesTest, SlotsAreRunningSequences) {
  start_loading(config());
  model_ = std::make_shared<FakeModel>(server_->sink());
  model_->snapshot_.running_sequences = 2;
  server_->ready(model_);
  while (get("/health").status != 200) {
  }
  const json slots = get("/slots").json();
  ASSERT_EQ(slots.size(), 4U);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(slots[i]["id"], i);
    EXPECT_EQ(slots[i]["is_processing"], i < 2);
    EXPECT_EQ(slots[i]["n_ctx"], 100);
  }
}

TEST_F(RoutesTest, SlotsCanBeSwitchedOff) {
  server::ServerConfig c = config();
  c.api.serves_slots = false;
  start({}, c);
  EXPECT_EQ(get("/slots").status, 501);
}

TEST_F(RoutesTest, TemplatesAreAppliedAndCounted) {
  start();
  EXPECT_EQ(post("/apply-template", kMessages + "}").json()["prompt"], "user: hi\nassistant: ");
  const std::string prefill =
      R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}],
    "continue_final_message": true})";
  EXPECT_EQ(post("/apply-template", prefill).json()["prompt"], "user: hi\nassistant: ho");
  EXPECT_EQ(post("/v1/chat/completions/input_tokens", kMessages + "}").json()["input_tokens"], 20);
  EXPECT_EQ(post("/apply-template", "{}").param(), "messages");
  EXPECT_EQ(post("/apply-template", kMessages + R"(, "tools": [{"type": "function", "function": {"name": "f"}}]})")
                .json()["prompt"],
            "f\nuser: hi\nassistant: ");
  EXPECT_EQ(post("/tokenize", prefill).json()["count"], 22);
}

TEST_F(RoutesTest, CountsAreToldOfWhatIsLongerThanTheContext) {
  start();  // 100 tokens
  const std::string text(300, 'a');
  const std::string messages = R"({"messages": [{"role": "user", "content": ")" + text + R"("}])";
  EXPECT_EQ(post("/v1/messages/count_tokens", messages + "}").json()["input_tokens"], 318);
  EXPECT_EQ(post("/v1/chat/completions/input_tokens", messages + "}").json()["input_tokens"], 318);
  const std::string input = R"({"input": ")" + text + R"(", "instructions": "Be brief.")";
  const json count = post("/v1/responses/input_tokens", input + "}").json();
  EXPECT_EQ(count["object"], "response.input_tokens");
  EXPECT_EQ(count["input_tokens"], 318 + std::string("system: Be brief.\n").size());
  EXPECT_EQ(get("/v1/responses/input_tokens").code(), "response_not_found") << "as ever";
}

TEST_F(RoutesTest, ErrorsAreInTheWordsOfTheNearestApi) {
  server::ServerConfig c = config();
  c.api.api_keys = {"secret"};
  start({}, c);
  const auto type = [&](const std::string& path) {
    return exchange(post_request(path, "{", "Authorization: Bearer secret\r\n")).json().value("type", "");
  };
  EXPECT_EQ(type("/v1/messages/count_tokens"), "error") << "Anthropic's";
  EXPECT_EQ(type("/v1/messages/batches"), "error");
  EXPECT_EQ(type("/v1/responses/input_tokens"), "");
  EXPECT_EQ(type("/v1/nothing"), "");
  EXPECT_EQ(post("/v1/messages/count_tokens", "{}").json()["error"]["type"], "authentication_error");
}

TEST_F(RoutesTest, AFullContextIsSaidInTheWordsOfEachApi) {
  start();
  const std::string text(300, 'a');
  const std::string messages = R"({"max_tokens": 9, "messages": [{"role": "user", "content": ")" + text + R"("}]})";
  const auto said = [&](const char* path, const std::string& body) {
    return post(path, body).json()["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(said("/v1/messages", messages), "prompt is too long: 318 tokens > 99 maximum");
  for (const auto& [path, body] : {std::pair{"/v1/chat/completions", messages},
                                   {"/v1/completions", R"({"prompt": ")" + text + std::string(18, 'a') + R"("})"}}) {
    const std::string message = said(path, body);
    EXPECT_TRUE(
        message.starts_with("This model's maximum context length is 100 tokens. However, your prompt has 318 tokens."))
        << message;
  }
  EXPECT_EQ(said("/v1/messages",
                 R"({"max_tokens": 9, "messages": [{"role": "user", "content": ")" + std::string(82, 'a') + R"("}]})"),
            "prompt is too long: 100 tokens > 99 maximum")
      << "the answer needs one";
  EXPECT_EQ(said("/v1/messages", R"({"max_tokens": 9, "messages": [{"role": "user", "content": ")" +
                                     std::string(5000, 'a') + R"("}]})"),
            "prompt is too long: 401 tokens > 99 maximum")
      << "at least: no more of it is read";
}

TEST_F(RoutesTest, TellsOfItselfAsVllmDoes) {
  server::ServerConfig c = config();
  c.api.version = "1.2.3";
  start_loading(c);
  model_ = std::make_shared<FakeModel>(server_->sink());
  model_->facts_.chat_template = "{{ messages }}";
  model_->facts_.bos = "<s>";
  model_->facts_.eos = "</s>";
  model_->facts_.adds_bos = true;
  server_->ready(model_);
  while (get("/v1/health").status != 200) {
  }
  EXPECT_EQ(get("/v1/health").json(), get("/health").json());
  EXPECT_EQ(get("/version").json(), json::parse(R"({"version": "1.2.3"})"));
  EXPECT_EQ(get("/tokenizer_info").json(), json::parse(R"({"tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "add_bos_token": true, "add_eos_token": false,
    "vocab_size": 256, "model_max_length": 100, "clean_up_tokenization_spaces": false,
    "chat_template": "{{ messages }}"})"));
}

/// A router that knows what is cached by tokens asks for a request's.
TEST_F(RoutesTest, RendersRequestsAsTokens) {
  start();
  const std::string chat = R"({"model": "the-model", "messages": [{"role": "user", "content": "hi"}]})";
  const json rendered = post("/v1/chat/completions/render", chat).json();
  EXPECT_EQ(rendered["token_ids"], post("/tokenize", chat).json()["tokens"]);
  EXPECT_FALSE(rendered["token_ids"].empty());
  EXPECT_EQ(rendered["model"], "the-model");
  EXPECT_FALSE(rendered["request_id"].get<std::string>().empty());

  const json prompts = post("/v1/completions/render", R"({"prompt": ["one", "two"]})").json();
  ASSERT_EQ(prompts.size(), 2U);
  EXPECT_EQ(prompts[0]["token_ids"], post("/tokenize", R"({"prompt": "one"})").json()["tokens"]);
  EXPECT_EQ(prompts[1]["token_ids"], post("/tokenize", R"({"prompt": "two"})").json()["tokens"]);
  EXPECT_EQ(post("/v1/completions/render", R"({"prompt": [5, 6, 7]})").json()[0]["token_ids"], json({5, 6, 7}));
  EXPECT_EQ(post("/v1/completions/render", "{}").status, 400);
  EXPECT_EQ(post("/v1/chat/completions/render", "{}").status, 400);
}

TEST_F(RoutesTest, SglangsRouterLearnsWhichModelThisIs) {
  start();
  for (const char* path : {"/get_model_info", "/model_info"}) {
    const json info = get(path).json();
    EXPECT_EQ(info["model_path"], "the-model");
    EXPECT_EQ(info["is_generation"], true);
  }
  for (const char* path : {"/get_server_info", "/server_info"}) {
    const json info = get(path).json();
    for (const char* field : {"model_id", "model_path", "served_model_name"})
      EXPECT_EQ(info[field], "the-model") << field;
    EXPECT_EQ(info["max_running_requests"], 4);
    EXPECT_EQ(info["dp_size"], 1);
  }
}

TEST_F(RoutesTest, AVerboseServerTellsThePrompt) {
  server::ServerConfig c = config();
  c.api.verbose = true;
  start(words({"x"}), c);
  EXPECT_EQ(post("/v1/chat/completions", kMessages + "}").json()["__verbose"]["prompt"], "user: hi\nassistant: ");
}

TEST_F(RoutesTest, ResponsesAreThereWithoutTheVersion) {
  start(words({"x"}));
  EXPECT_EQ(post("/responses", R"({"input": "hi"})").json()["object"], "response");
}

TEST_F(RoutesTest, PiecesOfCharactersAreBytes) {
  start();
  const json tokens = post("/tokenize", R"({"content": "aé", "with_pieces": true})").json()["tokens"];
  EXPECT_EQ(tokens,
            json::parse(R"([{"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}])"));
}

TEST_F(RoutesTest, NamesAreTheOperators) {
  server::ServerConfig c = config();
  c.api.names = {.id = "gpt", .alias = "", .more = {"other"}, .unlisted = "file", .any = false};
  start(words({"x"}), c);
  const json listed = get("/v1/models").json()["data"];
  ASSERT_EQ(listed.size(), 2U);
  EXPECT_EQ(listed[1]["id"], "other");
  const auto answered = [&](const std::string& name) { return complete(R"(, "model": ")" + name + R"(")"); };
  EXPECT_EQ(answered("other").json()["model"], "other");
  EXPECT_EQ(answered("file").json()["model"], "gpt");
  EXPECT_EQ(answered("stranger").status, 404);
}

TEST_F(RoutesTest, AnyNameWillDoIfTheOperatorSaysSo) {
  server::ServerConfig c = config();
  c.api.names.any = true;
  start(words({"x"}), c);
  EXPECT_EQ(complete(R"(, "model": "gpt-4o")").json()["model"], "the-model");
}

TEST_F(RoutesTest, FingerprintsTellServersApart) {
  const auto of = [&](const std::string& version) {
    server::ServerConfig c = config();
    c.api.version = version;
    start(words({"x"}), c);
    const std::string name = complete().json()["system_fingerprint"];
    EXPECT_EQ(chat().json()["system_fingerprint"], name);
    EXPECT_EQ(json::parse(chat(R"(, "stream": true)").events()[0])["system_fingerprint"], name);
    server_.reset();
    return name;
  };
  EXPECT_EQ(of("1"), of("1"));
  EXPECT_NE(of("1"), of("2"));
}

TEST_F(RoutesTest, VerboseAnswersShowThePrompt) {
  start(words({"x"}));
  EXPECT_EQ(chat(R"(, "verbose": true)").json()["__verbose"]["prompt"], "user: hi\nassistant: ");
  EXPECT_FALSE(chat().json().contains("__verbose"));
}

TEST_F(RoutesTest, AWrongBaseUrlIsNoticed) {
  start();
  const auto message = [&](const std::string& path) {
    return post(path, "{}").json()["error"]["message"].get<std::string>();
  };
  for (const auto& [path, hint] : {std::pair{"/v1/v1/chat/completions", "adds /v1 to its base URL by itself"},
                                   {"/v1/v1/messages", "adds /v1 to its base URL by itself"},
                                   {"/v1", "the base URL for OpenAI's clients"},
                                   {"/v1/", "the base URL for OpenAI's clients"},
                                   {"/messages", "There is /v1/messages: the client's base URL should end with /v1"}})
    EXPECT_NE(message(path).find(hint), std::string::npos) << path << message(path);
  EXPECT_EQ(message("/nothing"), "There is nothing at /nothing.");
}

TEST_F(RoutesTest, AKeyWithoutBearerIsSaidToBeSo) {
  server::ServerConfig c = config();
  c.api.api_keys = {"secret"};
  start({}, c);
  const auto message = [&](const std::string& field) {
    const HttpAnswer answer = exchange(get_request("/v1/models", "Authorization: " + field + "\r\n"));
    EXPECT_EQ(answer.status, 401);
    EXPECT_EQ(answer.body.find("secret"), std::string::npos);
    return answer.json()["error"]["message"].get<std::string>();
  };
  for (const char* field : {"secret", "Basic secret", "Token secret"})
    EXPECT_NE(message(field).find("must have the word Bearer before the key"), std::string::npos) << field;
  EXPECT_EQ(message("Bearer other"), "Incorrect API key provided.");
}

TEST_F(RoutesTest, AnthropicsClientsHaveAnotherFieldForTheKey) {
  server::ServerConfig c = config();
  c.api.api_keys = {"secret", "other"};
  start(words({"x"}), c);
  EXPECT_EQ(exchange(get_request("/v1/models", "X-Api-Key: other\r\n")).status, 200);
  EXPECT_EQ(exchange(get_request("/v1/models", "Authorization: Bearer secret\r\n")).status, 200);
  EXPECT_EQ(exchange(get_request("/v1/models", "X-Api-Key: none\r\n")).status, 401);
  EXPECT_EQ(exchange(get_request("/v1/models")).status, 401);
}

}  // namespace
}  // namespace coppice::testing
