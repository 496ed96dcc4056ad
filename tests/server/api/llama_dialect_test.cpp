// llama-server's /completion: its prompts, its fields, its answers, its errors.
#include "server/api/llama/llama_dialect.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/api/base/json_fields.h"
#include "server/api/llama/llama_answer.h"
#include "server/fixture.h"

namespace coppice::testing {
namespace {

using nlohmann::json;
using sampling::Finish;
using server::GenerationRequest;
using Tokens = std::vector<kv::Token>;

GenerationRequest parse(const std::string& fields, const server::GenerationDefaults& defaults = {}) {
  const auto body = server::parse_body("{" + fields + "}");
  return server::LlamaDialect().parse(body, {.n_vocab = 100, .max_choices = 8, .defaults = defaults});
}

TEST(LlamaRequest, HasLlamaServersDefaults) {
  const auto r = parse(R"("prompt": "hi")");
  EXPECT_EQ(r.sampling.temperature, 0.8F);
  EXPECT_EQ(r.sampling.top_k, 40);
  EXPECT_EQ(r.sampling.top_p, 0.95F);
  EXPECT_EQ(r.sampling.min_p, 0.05F);
  EXPECT_FALSE(r.max_tokens || r.sampling.seed || r.stream);
  EXPECT_EQ(r.sampling.logprobs, -1);
  EXPECT_EQ(parse(R"("prompt": "hi", "n_predict": -1)", {.max_tokens = 9}).max_tokens, std::nullopt);
  EXPECT_EQ(parse(R"("prompt": "hi", "n_predict": 0)", {.max_tokens = 9}).max_tokens, 0);
}

TEST(LlamaRequest, ReadsItsFields) {
  const auto r = parse(R"("prompt": "hi", "n_predict": 7, "n_probs": 3, "n_cmpl": 2, "stream": true, "seed": 5,
    "cache_prompt": false, "temperature": 0, "id_slot": 3, "n_keep": 5, "timings_per_token": true, "mirostat": 0)");
  EXPECT_EQ(r.max_tokens, 7);
  EXPECT_EQ(r.sampling.logprobs, 3);
  EXPECT_EQ(r.n, 2);
  EXPECT_TRUE(r.stream);
  EXPECT_EQ(r.sampling.seed, 5U);
  EXPECT_FALSE(r.match_cache);
  EXPECT_EQ(parse(R"("prompt": "hi", "seed": 4294967295)").sampling.seed, std::nullopt);
}

TEST(LlamaRequest, TakesAllFormsOfPrompts) {
  const auto prompts = [](const char* prompt) { return parse(fmt::format(R"("prompt": {})", prompt)).prompts; };
  using server::Prompt;
  using server::PromptParts;
  EXPECT_EQ(prompts(R"("a")"), std::vector<Prompt>{"a"});
  EXPECT_EQ(prompts("[1, 2]"), std::vector<Prompt>{Tokens({1, 2})});
  EXPECT_EQ(prompts(R"([1, "a", 2])"), (std::vector<Prompt>{PromptParts{1, "a", 2}}));
  EXPECT_EQ(prompts(R"({"prompt_string": "a"})"), std::vector<Prompt>{"a"});
  EXPECT_EQ(prompts(R"(["a", [1, 2], {"prompt_string": "b"}, ["c", 3]])"),
            (std::vector<Prompt>{"a", Tokens({1, 2}), "b", PromptParts{"c", 3}}));
}

TEST(LlamaRequest, NamesWhatItRefuses) {
  for (const auto& [fields, field, code] :
       {std::tuple{R"("n_predict": 3)", "prompt", "missing_field"},
        {R"("prompt": 3)", "prompt", "invalid_type"},
        {R"("prompt": [])", "prompt", "invalid_value"},
        {R"("prompt": [100])", "prompt", "invalid_value"},
        {R"("prompt": [true, 1])", "prompt", "invalid_type"},
        {R"("prompt": ["a", [1.5]])", "prompt[1]", "invalid_type"},
        {R"("prompt": {"text": "a"})", "prompt.prompt_string", "missing_field"},
        {R"("prompt": {"prompt_string": "a", "multimodal_data": "x"})", "prompt.multimodal_data",
         "unsupported_parameter"},
        {R"("prompt": "a", "response_fields": "content")", "response_fields", "invalid_type"},
        {R"("prompt": "a", "n_predict": -2)", "n_predict", "invalid_value"},
        {R"("prompt": "a", "n_probs": 21)", "n_probs", "invalid_value"},
        {R"("prompt": "a", "dry_multiplier": 1)", "dry_multiplier", "unsupported_parameter"},
        {R"("prompt": "a", "lora": [{"id": 0, "scale": 1}])", "lora", "unsupported_parameter"}}) {
    try {
      parse(fields);
      ADD_FAILURE() << fields;
    } catch (const server::RequestError& e) {
      EXPECT_EQ(e.field(), field) << e.what();
      EXPECT_EQ(e.code(), code) << e.what();
    }
  }
}

server::LlamaAnswer answer_of(const std::string& fields, int n_choices = 1, int n_prompts = 1) {
  const auto r = parse(R"("prompt": "hi", "seed": 1, )" + fields);
  std::vector<std::string> prompts(static_cast<std::size_t>(n_prompts), "<s>hi");
  return {*std::static_pointer_cast<const server::LlamaForm>(r.own),
          r,
          r.sampling,
          server::llama_settings(r, r.sampling, 50),
          {.model = "m", .n_choices = n_choices, .n_prompts = n_prompts, .prompts = std::move(prompts)}};
}

constexpr engine::Usage kUsage{
    .prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 3, .prompt_seconds = 0.5, .decode_seconds = 0.25};

TEST(LlamaAnswer, HasTheWholeShape) {
  auto answer = answer_of(R"("n_predict": 3, "return_tokens": true)");
  answer.delta({.text = "a\n", .tokens = {5, 6}});
  EXPECT_GT(answer.bytes(), 5U);
  answer.delta({.text = "b", .tokens = {7}, .end = {{.finish = Finish::kLength}}, .usage = kUsage});
  const json body = json::parse(answer.end(kUsage, {}));
  EXPECT_EQ(body["content"], "a\nb");
  EXPECT_EQ(body["tokens"], json::array({5, 6, 7}));
  EXPECT_EQ(body["prompt"], "<s>hi");
  EXPECT_EQ(body["model"], "m");
  EXPECT_EQ(body["tokens_predicted"], 3);
  EXPECT_EQ(body["tokens_evaluated"], 10);
  EXPECT_EQ(body["tokens_cached"], 4);
  EXPECT_EQ(body["stop_type"], "limit");
  EXPECT_TRUE(body["stop"] == true && body["has_new_line"] == true && body["truncated"] == false);
  EXPECT_EQ(body["generation_settings"]["n_predict"], 3);
  EXPECT_EQ(body["generation_settings"]["seed"], 1);
  const json& t = body["timings"];
  EXPECT_EQ(t["cache_n"], 4);
  EXPECT_EQ(t["prompt_n"], 6);
  EXPECT_EQ(t["prompt_ms"], 500);
  EXPECT_EQ(t["prompt_per_second"], 12);
  EXPECT_EQ(t["predicted_n"], 3);
  EXPECT_EQ(t["predicted_per_token_ms"], 125) << "the first token comes with the prompt";
  EXPECT_EQ(t["predicted_per_second"], 8);
  EXPECT_FALSE(body.contains("completion_probabilities"));
}

TEST(LlamaAnswer, SettingsShowTheEndTokensThatAreBarred) {
  const server::LlamaDialect dialect;
  const Tokens ends = {7, 9};
  for (const bool ignored : {false, true}) {
    const auto body = server::parse_body(fmt::format(R"({{"prompt": "hi", "ignore_eos": {}}})", ignored));
    const auto r = dialect.parse(body, {.n_vocab = 100, .end_tokens = ends, .max_choices = 8});
    const auto answer = dialect.begin(r, r.sampling, {.model = "m", .prompts = {"hi"}});
    answer->delta({.end = {{.finish = Finish::kLength}}, .usage = kUsage});
    EXPECT_EQ(json::parse(answer->end(kUsage, {}))["generation_settings"]["logit_bias"],
              ignored ? json::parse(R"([{"token": 7, "bias": null}, {"token": 9, "bias": null}])") : json::array());
  }
}

TEST(LlamaAnswer, SaysWhyItStopped) {
  const auto stopped = [](server::Delta last) {
    auto answer = answer_of(R"("stop": "END")");
    last.usage = kUsage;
    answer.delta(std::move(last));
    return json::parse(answer.end(kUsage, {}));
  };
  const json word = stopped({.end = {{.finish = Finish::kStop, .stop = "END"}}});
  EXPECT_EQ(word["stop_type"], "word");
  EXPECT_EQ(word["stopping_word"], "END");
  EXPECT_EQ(stopped({.end = {{.finish = Finish::kStop}}})["stop_type"], "eos");
  const json full = stopped({.tokens = {1}, .end = {{.finish = Finish::kLength}}});
  EXPECT_TRUE(full["stop_type"] == "limit" && full["truncated"] == true) << "nobody wanted so few tokens";
}

TEST(LlamaAnswer, SeveralPromptsAreAList) {
  auto answer = answer_of(R"("n_cmpl": 2)", 4, 2);
  for (const int choice : {1, 0, 3, 2}) {
    server::Delta delta{.choice = choice, .text = std::to_string(choice), .end = {{.finish = Finish::kStop}}};
    if (choice % 2 == 0) delta.usage = kUsage;
    answer.delta(std::move(delta));
  }
  const json body = json::parse(answer.end(kUsage, {}));
  ASSERT_EQ(body.size(), 4U);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(body[i]["index"], i);
    EXPECT_EQ(body[i]["content"], std::to_string(i));
    EXPECT_EQ(body[i]["tokens_evaluated"], 10);
  }
}

TEST(LlamaAnswer, FieldsMayBeChosen) {
  auto answer = answer_of(R"("response_fields": ["content", "generation_settings/n_predict", "no/such", "stop/x"])");
  answer.delta({.text = "a", .end = {{.finish = Finish::kStop}}, .usage = kUsage});
  EXPECT_EQ(json::parse(answer.end(kUsage, {})),
            json::parse(R"({"content": "a", "generation_settings/n_predict": -1})"));
}

TEST(LlamaAnswer, ProbabilitiesHaveIdsAndBytes) {
  auto answer = answer_of(R"("n_probs": 1)");
  answer.delta(
      {.text = "\xc3\xa9",
       .tokens = {1},
       .logprobs = {{{.token = 1, .bytes = "\xc3\xa9", .logprob = -1}, {{.token = 2, .bytes = "x", .logprob = -0.5F}}}},
       .end = {{.finish = Finish::kStop}},
       .usage = kUsage});
  EXPECT_EQ(json::parse(answer.end(kUsage, {}))["completion_probabilities"], json::parse(R"([
    {"id": 1, "token": "é", "bytes": [195, 169], "logprob": -1.0,
     "top_logprobs": [{"id": 2, "token": "x", "bytes": [120], "logprob": -0.5}]}])"));
}

TEST(LlamaAnswer, ProbabilitiesOfWhatIsDrawnHaveAnotherName) {
  auto answer = answer_of(R"("n_probs": 1, "post_sampling_probs": true)");
  answer.delta({.text = "x",
                .tokens = {1},
                .logprobs = {{{.token = 1, .bytes = "x", .logprob = 0}, {{.token = 1, .bytes = "x", .logprob = 0}}}},
                .end = {{.finish = Finish::kStop}},
                .usage = kUsage});
  const json body = json::parse(answer.end(kUsage, {}));
  EXPECT_EQ(body["completion_probabilities"], json::parse(R"([
    {"id": 1, "token": "x", "bytes": [120], "prob": 1.0,
     "top_probs": [{"id": 1, "token": "x", "bytes": [120], "prob": 1.0}]}])"));
  EXPECT_EQ(body["generation_settings"]["post_sampling_probs"], true);
}

TEST(LlamaAnswer, AStreamTellsHowFarThePromptIs) {
  const engine::Progress half{.computed = 6, .usage = {.prompt_tokens = 10, .cached_tokens = 4, .prompt_seconds = 0.5}};
  auto plain = answer_of(R"("stream": true)");
  EXPECT_EQ(plain.delta({.progress = {half}}), "") << "nobody asked";
  auto answer = answer_of(R"("stream": true, "return_progress": true, "timings_per_token": true)");
  std::string event = answer.delta({.progress = {half}});
  const json first = json::parse(event.substr(event.find('{')));
  EXPECT_EQ(first["prompt_progress"], json::parse(R"({"total": 10, "cache": 4, "processed": 6, "time_ms": 500.0})"));
  EXPECT_EQ(first["timings"]["prompt_n"], 2);
  EXPECT_EQ(first["timings"]["prompt_ms"], 500);
  EXPECT_EQ(first["timings"]["predicted_n"], 0);
  EXPECT_EQ(first["stop"], false);
  event = answer.delta({.text = "a", .tokens = {1, 2}, .so_far = kUsage});
  EXPECT_EQ(json::parse(event.substr(event.find('{')))["timings"]["predicted_n"], 2) << "the choice's own";
}

class LlamaServerTest : public ServerTest {};

TEST_F(LlamaServerTest, AnswersAtBothPaths) {
  FakeModel& model = start(words({"Hel", "lo"}, 3));
  for (const char* path : {"/completion", "/completions", "/completion/"}) {
    const HttpAnswer answer = post(path, R"({"prompt": "hi", "n_predict": 5})");
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.json()["content"], "Hello");
    EXPECT_EQ(answer.json()["prompt"], "hi");
    EXPECT_EQ(answer.json()["tokens_cached"], 3);
  }
  EXPECT_EQ(model.max_tokens(0), 5);
  EXPECT_TRUE(post("/v1/completions", R"({"prompt": "hi"})").json().contains("choices")) << "that one is OpenAI's";
}

TEST_F(LlamaServerTest, Streams) {
  start(words({"Hel", "lo"}));
  const auto events = post("/completion", R"({"prompt": "hi", "stream": true})").events();
  ASSERT_GE(events.size(), 2U);
  std::string text;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const json event = json::parse(events[i]);
    EXPECT_EQ(event["stop"], false);
    EXPECT_FALSE(event["tokens"].empty());
    text += event["content"];
  }
  EXPECT_EQ(text, "Hello");
  const json end = json::parse(events.back());
  EXPECT_TRUE(end["stop"] == true && end["content"] == "" && end.contains("timings")) << end;
}

TEST_F(LlamaServerTest, WordsItsErrors) {
  start(words({"x"}));
  const HttpAnswer bad = post("/completion", R"({"prompt": 7})");
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(bad.json()["error"]["code"], 400);
  EXPECT_EQ(bad.json()["error"]["type"], "invalid_request_error");
  const json over = post("/completion", R"({"prompt": ")" + std::string(100, 'a') + R"("})").json()["error"];
  EXPECT_EQ(over["type"], "exceed_context_size_error");
  EXPECT_EQ(over["n_prompt_tokens"], 100);
  EXPECT_EQ(over["n_ctx"], 100);
  EXPECT_NE(over["message"].get<std::string>().find("exceeds the available context size"), std::string::npos);
}

TEST_F(LlamaServerTest, ThePromptIsTakenInParts) {
  FakeModel& model = start(words({"x"}));
  EXPECT_EQ(post("/completion", R"({"prompt": [65, "bc", 68, "e"]})").status, 200);
  const auto prompt = model.prompt(0);
  EXPECT_EQ(std::string(prompt.begin(), prompt.end()), "AbcDe");
  EXPECT_EQ(post("/completion", R"({"prompt": [65, ")" + std::string(99, 'a') + R"(", 68]})").status, 400);
}

}  // namespace
}  // namespace coppice::testing
