// Embeddings over HTTP, from the real engine: OpenAI's form and llama-server's, and what is refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/oracle.h"
#include "server/api/embeddings/embedding_answer.h"
#include "server/base/request_error.h"
#include "server/engine_fixture.h"

namespace coppice::testing {
namespace {

using engine::Pooling;
using nlohmann::json;

constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Of 32-bit floats.
std::vector<float> decoded(const std::string& base64) {
  std::string bytes;
  std::uint32_t bits = 0;
  int n_bits = 0;
  for (const char c : base64) {
    if (c == '=') break;
    bits = bits << 6U | static_cast<std::uint32_t>(kBase64.find(c));
    n_bits += 6;
    if (n_bits < 8) continue;
    n_bits -= 8;
    bytes += static_cast<char>(bits >> static_cast<unsigned>(n_bits) & 0xFFU);
  }
  std::vector<float> x(bytes.size() / sizeof(float));
  std::memcpy(x.data(), bytes.data(), x.size() * sizeof(float));
  return x;
}

TEST(Normalised, ByTheNormAskedFor) {
  using server::normalised;
  const std::vector<float> x = {3, 0, -4};
  EXPECT_EQ(normalised(x, 2), (std::vector<float>{0.6F, 0, -0.8F}));
  EXPECT_EQ(normalised(x, 1), (std::vector<float>{3 / 7.0F, 0, -4 / 7.0F}));
  EXPECT_EQ(normalised(x, -1), x);
  EXPECT_EQ(normalised(x, 0), (std::vector<float>{24570, 0, -32760}));
  EXPECT_NEAR(normalised(x, 16)[2], -1 / std::pow(1 + std::pow(0.75, 16), 1 / 16.0), 1e-6);
  EXPECT_EQ(normalised(std::vector<float>(3), 2), std::vector<float>(3)) << "nothing is divided by zero";
  EXPECT_EQ(normalised(std::vector<float>{1e30F, 0}, 2), (std::vector<float>{1, 0})) << "its square is no float";
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const int p : {-1, 0, 1, 2}) EXPECT_THROW(normalised(std::vector<float>{1, bad, 2}, p), server::RequestError);
  }
}

TEST(Base64, HasAllEndings) {
  EXPECT_EQ(server::base64(std::vector<float>{1}), "AACAPw==");
  EXPECT_EQ(server::base64(std::vector<float>{1, -2}), "AACAPwAAAMA=");
  EXPECT_EQ(server::base64(std::vector<float>{1, -2, 0.5F}), "AACAPwAAAMAAAAA/");
  EXPECT_EQ(decoded("AACAPwAAAMA="), (std::vector<float>{1, -2})) << "the test's own reader";
}

class Embeddings : public EngineServerTest {
 protected:
  void serve(Pooling pooling = Pooling::kLast) {
    pooling_ = pooling;
    start_engine({.num_blocks = 400,
                  .max_batch = 8,
                  .step_tokens = 32,
                  .max_extend = 32,
                  .context_length = 200,
                  .pooling = pooling},
                 [](FakeExecutor&) {});
  }

  /// Of length 1.
  std::vector<float> expected(const Prompt& prompt) const {
    Oracle oracle(make_groups(Groups::kFull));
    std::vector<double> sum(kFakeEmbd);
    std::vector<float> state(kFakeEmbd), embedding;
    for (const kv::Token token : prompt) {
      oracle.feed(token);
      write_hash(mix(oracle.logits_hash(), 1), state);
      for (std::size_t i = 0; i < state.size(); ++i) sum[i] = state[i] + (pooling_ == Pooling::kMean ? sum[i] : 0.0);
    }
    double squares = 0;
    for (const double x : sum) squares += x * x;
    for (const double x : sum) embedding.push_back(static_cast<float>(x / std::sqrt(squares)));
    return embedding;
  }
  static Prompt bytes(const std::string& text) { return {text.begin(), text.end()}; }

  void expect_embedding(const std::vector<float>& got, const Prompt& prompt) const {
    const auto right = expected(prompt);
    ASSERT_EQ(got.size(), right.size());
    for (std::size_t i = 0; i < right.size(); ++i) EXPECT_NEAR(got[i], right[i], 1e-6);
  }

  json embed(const json& body, const std::string& path = "/v1/embeddings") {
    const HttpAnswer answer = post(path, body.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  }

 private:
  Pooling pooling_ = Pooling::kLast;
};

TEST_F(Embeddings, AsOpenAiTellsThem) {
  for (const Pooling pooling : {Pooling::kLast, Pooling::kMean}) {
    serve(pooling);
    const std::vector<std::string> texts = {"The sea is blue.", "a", std::string(150, 'x')};
    const json answer = embed({{"model", "the-alias"}, {"input", texts}, {"user", "me"}, {"dimensions", kFakeEmbd}});
    EXPECT_EQ(answer["object"], "list");
    EXPECT_EQ(answer["model"], "the-alias");
    EXPECT_EQ(answer["usage"]["prompt_tokens"], 16 + 1 + 150);
    EXPECT_EQ(answer["usage"]["total_tokens"], 16 + 1 + 150);
    EXPECT_FALSE(answer["usage"].contains("completion_tokens"));
    ASSERT_EQ(answer["data"].size(), texts.size());
    for (std::size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(answer["data"][i]["object"], "embedding");
      EXPECT_EQ(answer["data"][i]["index"], i);
      expect_embedding(answer["data"][i]["embedding"], bytes(texts[i]));
    }
    stop();
  }
}

TEST_F(Embeddings, Base64HoldsTheSameFloats) {
  serve();
  const json floats = embed({{"input", {"one", "two"}}, {"encoding_format", "float"}});
  const json coded = embed({{"input", {"one", "two"}}, {"encoding_format", "base64"}});
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(decoded(coded["data"][i]["embedding"]), floats["data"][i]["embedding"].get<std::vector<float>>())
        << "the text of a float is the float";
  }
}

TEST_F(Embeddings, TakeAllFormsOfInputs) {
  serve();
  const std::vector<std::pair<json, std::vector<Prompt>>> forms = {
      {"abc", {bytes("abc")}},
      {{1, 2, 3}, {{1, 2, 3}}},
      {{{1, 2}, {3}}, {{1, 2}, {3}}},
      {{"a", {1, 2}}, {bytes("a"), {1, 2}}},
      {{1, "bc", 2}, {{1, 'b', 'c', 2}}},
      {{{"prompt_string", "abc"}}, {bytes("abc")}},
      {{{"content", {{{"type", "text"}, {"text", "ab"}}, {{"type", "text"}, {"text", "c"}}}}}, {bytes("abc")}},
  };
  for (const auto& [input, prompts] : forms) {
    SCOPED_TRACE(input.dump());
    const json answer = embed({{"input", input}});
    ASSERT_EQ(answer["data"].size(), prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i) expect_embedding(answer["data"][i]["embedding"], prompts[i]);
  }
  const json cut = embed({{"input", "0123456789"}, {"truncate_prompt_tokens", 3}});
  expect_embedding(cut["data"][0]["embedding"], bytes("789"));
}

TEST_F(Embeddings, AsLlamaServerTellsThem) {
  serve();
  for (const char* path : {"/embedding", "/embeddings"}) {
    const json answer = embed({{"content", {"abc", "d"}}}, path);
    ASSERT_EQ(answer.size(), 2U);
    EXPECT_EQ(answer[1]["index"], 1);
    ASSERT_EQ(answer[1]["embedding"].size(), 1U) << "a list of a list";
    expect_embedding(answer[0]["embedding"][0], bytes("abc"));
  }
  EXPECT_TRUE(embed({{"content", "abc"}}).is_array()) << "'content' asks for its form";
  const std::vector<float> raw = embed({{"input", "abc"}, {"embd_normalize", -1}}, "/embedding")[0]["embedding"][0];
  Oracle oracle(make_groups(Groups::kFull));
  for (const kv::Token token : bytes("abc")) oracle.feed(token);
  std::vector<float> state(kFakeEmbd);
  write_hash(mix(oracle.logits_hash(), 1), state);
  EXPECT_EQ(raw, state);
}

TEST_F(Embeddings, ShareTheCacheWithChats) {
  serve();
  const std::string text(100, 'x');
  EXPECT_EQ(embed({{"input", text}})["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  const json said = json::parse(post("/v1/completions", json({{"prompt", text + "y"}, {"max_tokens", 1}}).dump()).body);
  EXPECT_EQ(said["usage"]["prompt_tokens_details"]["cached_tokens"], 100);
  const json again = embed({{"input", text}, {"cache_report", true}});
  EXPECT_EQ(again["usage"]["prompt_tokens_details"]["cached_tokens"], 99);
  EXPECT_EQ(again["cache_report"]["ended"], "last_token");
  EXPECT_EQ(embed({{"input", text}, {"cache_salt", "s"}})["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST_F(Embeddings, AMeanTakesNothingFromTheCache) {
  serve(Pooling::kMean);
  for (int i = 0; i < 2; ++i) {
    const json answer = embed({{"input", "The sea is blue."}, {"cache_report", true}});
    EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    EXPECT_EQ(answer["cache_report"]["ended"], "pooled");
  }
}

TEST_F(Embeddings, AThousandTextsAtOnce) {
  serve();
  std::vector<std::string> texts;
  for (int i = 0; i < 1024; ++i) texts.push_back(fmt::format("text {}", i));
  const json answer = embed({{"input", texts}});
  ASSERT_EQ(answer["data"].size(), texts.size());
  expect_embedding(answer["data"][1000]["embedding"], bytes("text 1000"));
  texts.push_back("one more");
  EXPECT_EQ(post("/v1/embeddings", json({{"input", texts}}).dump()).param(), "input");
}

TEST_F(Embeddings, WhatIsRefused) {
  serve();
  struct Refused {
    json body;
    std::string param, code;
  };
  const std::string long_text(201, 'x');
  const Refused refused[] = {
      {json::object(), "input", "missing_field"},
      {{{"input", json::array()}}, "input", "invalid_value"},
      {{{"input", ""}}, "input", "invalid_value"},
      {{{"input", {"a", ""}}}, "input", "invalid_value"},
      {{{"input", 5}}, "input", "invalid_type"},
      {{{"input", {1, 1000}}}, "input", "invalid_value"},
      {{{"input", {{"content", "a"}}}}, "input.content", "invalid_type"},
      {{{"input", {{"content", {{{"type", "image_url"}}}}}}}, "input.content[0].type", "unsupported_parameter"},
      {{{"input", long_text}}, "input", "context_length_exceeded"},
      {{{"input", {"a", long_text}}}, "input", "context_length_exceeded"},
      {{{"input", Prompt(201, 7)}}, "input", "context_length_exceeded"},
      {{{"input", "a"}, {"dimensions", 2}}, "dimensions", "unsupported_parameter"},
      {{{"input", "a"}, {"dimensions", 0}}, "dimensions", "invalid_value"},
      {{{"input", "a"}, {"encoding_format", "hex"}}, "encoding_format", "invalid_value"},
      {{{"input", "a"}, {"user", 5}}, "user", "invalid_type"},
      {{{"input", "a"}, {"stream", true}}, "stream", "unsupported_parameter"},
      {{{"input", "a"}, {"normalize", false}}, "normalize", "unsupported_parameter"},
      {{{"input", "a"}, {"embd_normalize", -2}}, "embd_normalize", "invalid_value"},
  };
  for (const auto& [body, param, code] : refused) {
    const HttpAnswer answer = post("/v1/embeddings", body.dump());
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_EQ(answer.param(), param) << body;
    EXPECT_EQ(answer.code(), code) << body;
  }
  EXPECT_EQ(embed({{"input", std::string(200, 'x')}})["usage"]["prompt_tokens"], 200) << "all of the context";
  const json error = json::parse(post("/embedding", json({{"content", long_text}}).dump()).body)["error"];
  EXPECT_EQ(error["type"], "exceed_context_size_error");
  EXPECT_EQ(error["n_ctx"], 200);
}

TEST_F(Embeddings, NothingRanks) {
  serve();
  for (const char* path : {"/v1/rerank", "/rerank", "/v1/reranking", "/reranking"}) {
    const HttpAnswer answer = post(path, R"({"query": "a", "documents": ["b"]})");
    EXPECT_EQ(answer.status, 501) << path;
    EXPECT_EQ(answer.code(), "no_reranking");
  }
}

TEST_F(Embeddings, ThatTheExecutorCantGiveAreRefused) {
  start_loading(config());
  auto model = std::make_shared<FakeModel>(server_->sink());
  server_->ready(model);
  while (client()->get("/health").status != 200) {
  }
  EXPECT_EQ(post("/v1/embeddings", R"({"input": "a"})").status, 501);
  EXPECT_EQ(model->submitted(), 0U);
}

}  // namespace
}  // namespace coppice::testing
