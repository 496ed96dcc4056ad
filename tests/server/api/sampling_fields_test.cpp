// Fields that OpenAI doesn't have, of vLLM and llama-server: what is taken, what is refused, and by which name.
#include "server/api/base/sampling_fields.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/api/parsed.h"

namespace coppice::server {
namespace {

#define LAST_USER R"({"messages":[{"role":"user","content":"hi"}],)"
#define LAST_ASSISTANT R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}],)"

/// Nothing that changes the answer is ignored.
INSTANTIATE_TEST_SUITE_P(
    ThatChangeTheAnswer, BadFields,
    ::testing::Values(
        BadField{"{" MESSAGES R"(,"min_tokens":-1})", "min_tokens"},                             //
        BadField{"{" MESSAGES R"(,"min_tokens":5,"max_tokens":4})", "min_tokens"},               //
        BadField{"{" MESSAGES R"(,"stop_token_ids":[100]})", "stop_token_ids"},                  //
        BadField{"{" MESSAGES R"(,"stop_token_ids":["a"]})", "stop_token_ids", "invalid_type"},  //
        BadField{"{" MESSAGES R"(,"allowed_token_ids":[]})", "allowed_token_ids"},               //
        BadField{"{" MESSAGES R"(,"allowed_token_ids":[-1]})", "allowed_token_ids"},             //
        BadField{"{" MESSAGES R"(,"bad_words":"a"})", "bad_words", "invalid_type"},              //
        BadField{"{" MESSAGES R"(,"bad_words":[1]})", "bad_words", "invalid_type"},              //
        BadField{"{" MESSAGES R"(,"bad_words":["a"," "]})", "bad_words"},                        //
        BadField{"{" MESSAGES R"(,"truncate_prompt_tokens":0})", "truncate_prompt_tokens"},      //
        BadField{"{" MESSAGES R"(,"truncate_prompt_tokens":-2})", "truncate_prompt_tokens"},     //
        BadField{"{" MESSAGES R"(,"cache_prompt":1})", "cache_prompt", "invalid_type"},          //
        BadField{LAST_USER R"("continue_final_message":true})", "continue_final_message"},       //
        BadField{LAST_ASSISTANT R"("continue_final_message":true,"add_generation_prompt":true})",
                 "continue_final_message"},
        BadField{
            R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"id":"a","type":"function",)"
            R"("function":{"name":"f","arguments":"{}"}}]}],"continue_final_message":true})",
            "continue_final_message"},
        BadField{LAST_ASSISTANT
                 R"("continue_final_message":true,"tools":[{"type":"function","function":{"name":"f"}}]})",
                 "continue_final_message", "unsupported_parameter"},
        BadField{R"({"messages":[{"role":"assistant","content":"ho"}],"continue_final_message":true})",
                 "continue_final_message"},
        BadField{"{" MESSAGES R"(,"echo":true})", "echo", "unsupported_parameter"},                              //
        BadField{"{" MESSAGES R"(,"add_special_tokens":true})", "add_special_tokens", "unsupported_parameter"},  //
        BadField{"{" MESSAGES R"(,"repeat_penalty":1.1,"repeat_last_n":64})", "repeat_last_n", "unsupported_parameter"},
        BadField{"{" MESSAGES R"(,"samplers":["dry","top_k"]})", "samplers", "unsupported_parameter"}));

/// Each with a value that is off, and one that isn't.
TEST(Unbuilt, IsRefusedUnlessItIsOff) {
  struct Field {
    const char* name;
    const char* off;
    const char* on;
  };
  for (const auto& [name, off, on] : {Field{"mirostat", "0", "2"},
                                      {"dry_multiplier", "0.0", "0.8"},
                                      {"xtc_probability", "0", "0.5"},
                                      {"typical_p", "1.0", "0.9"},
                                      {"tfs_z", "1", "0.5"},
                                      {"top_n_sigma", "-1", "1.5"},
                                      {"dynatemp_range", "0", "0.5"},
                                      {"adaptive_target", "-1", "0.5"},
                                      {"min_keep", "0", "3"},
                                      {"n_indent", "0", "2"},
                                      {"t_max_predict_ms", "-1", "100"},
                                      {"lora", "[]", R"([{"id": 0, "scale": 1}])"},
                                      {"post_sampling_probs", "false", "true"},
                                      {"use_beam_search", "false", "true"},
                                      {"length_penalty", "1", "2"},
                                      {"include_stop_str_in_output", "false", "true"},
                                      {"logits_processors", "[]", R"(["a"])"},
                                      {"return_tokens_as_token_ids", "false", "true"},
                                      {"return_token_ids", "false", "true"},
                                      {"kv_transfer_params", "{}", R"({"a": 1})"},
                                      {"vllm_xargs", "{}", R"({"a": 1})"},
                                      {"repetition_detection", "{}", R"({"max_pattern_size": 8})"},
                                      {"chat_template", R"("")", R"("{{ x }}")"},
                                      {"mm_processor_kwargs", "{}", R"({"x": 1})"},
                                      {"documents", "[]", "[{}]"},
                                      {"web_search_options", "{}", R"({"a": 1})"},
                                      {"n_probs", "0", "3"}}) {
    EXPECT_NO_THROW(chat(fmt::format(R"(, "{}": {})", name, off))) << name;
    EXPECT_NO_THROW(chat(fmt::format(R"(, "{}": null)", name))) << name;
    try {
      chat(fmt::format(R"(, "{}": {})", name, on));
      ADD_FAILURE() << name;
    } catch (const RequestError& e) {
      EXPECT_EQ(e.field(), name);
      EXPECT_EQ(e.code(), "unsupported_parameter");
    }
  }
}

TEST(SamplingFields, ReadsWhatOtherServersHave) {
  const GenerationRequest r = chat(R"(, "min_tokens": 3, "stop_token_ids": [4, 5], "allowed_token_ids": [6],
    "bad_words": ["no", " never"], "truncate_prompt_tokens": 9, "cache_prompt": false, "skip_special_tokens": false,
    "max_tokens": -1, "seed": -1, "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
    "repeat_last_n": 64, "verbose": true)");
  EXPECT_EQ(r.sampling.min_tokens, 3);
  EXPECT_EQ(r.sampling.stop_tokens, (std::vector<kv::Token>{4, 5}));
  EXPECT_EQ(r.sampling.allowed_tokens, std::vector<kv::Token>{6});
  EXPECT_EQ(r.bad_words, (std::vector<std::string>{"no", " never"}));
  EXPECT_EQ(r.keep_last, 9);
  EXPECT_EQ(chat(R"(, "truncate_prompt_tokens": -1)").keep_last, 0) << "what the context holds";
  EXPECT_FALSE(r.match_cache);
  EXPECT_TRUE(chat().match_cache);
  EXPECT_TRUE(r.sampling.show_special && r.prompt_text);
  EXPECT_FALSE(r.max_tokens || r.sampling.seed);
  EXPECT_EQ(complete(R"(, "n_predict": 7)").max_tokens, 7);
  EXPECT_EQ(complete(R"(, "n_predict": -1)").max_tokens, std::nullopt);
  EXPECT_FALSE(complete(R"(, "add_special_tokens": false)").add_special);
}

/// Each is tokenized: 1,000 of 12,000 blanks took the worker 13 s.
TEST(SamplingFields, TextsThatStandForTokensAreShort) {
  const auto many = [](std::size_t n, std::size_t bytes, const char* more) {
    std::string list;
    for (std::size_t i = 0; i < n; ++i)
      list +=
          (i == 0 ? "" : ",") + fmt::format(fmt::runtime(more), std::string(bytes - 5, ' ') + fmt::format("x{:04}", i));
    return list;
  };
  const auto expect_refusal = [](const char* field, const std::string& more) {
    expect_refused(Endpoint::kChat, {"{" MESSAGES + more + "}", field});
  };
  constexpr const char *kPair = R"(["{}", 1])", *kEntry = R"("{}":1)", *kWord = R"("{}")";
  for (const auto& [n, bytes] : {std::pair<std::size_t, std::size_t>{1, 4097}, {17, 4096}, {700, 100}}) {
    expect_refusal("logit_bias", R"(, "logit_bias": [)" + many(n, bytes, kPair) + "]");
    expect_refusal("logit_bias", R"(, "logit_bias": {)" + many(n, bytes, kEntry) + "}");
    if (n < 512) expect_refusal("bad_words", R"(, "bad_words": [)" + many(n, bytes, kWord) + "]");
  }
  EXPECT_EQ(chat(R"(, "logit_bias": [)" + many(16, 4096, kPair) + "]").text_bias.size(), 16U);
  EXPECT_EQ(chat(R"(, "bad_words": [)" + many(16, 4096, kWord) + "]").bad_words.size(), 16U);
}

TEST(SamplingFields, BiasesMayBeTextsAndPairs) {
  const auto pairs = chat(R"(, "logit_bias": [[5, 1.5], ["7", -2], ["text", false], [6, false]])");
  EXPECT_EQ(pairs.sampling.logit_bias.at(5), 1.5F);
  EXPECT_EQ(pairs.sampling.logit_bias.at(7), -2);
  EXPECT_EQ(pairs.sampling.logit_bias.at(6), sampling::kNever);
  ASSERT_EQ(pairs.text_bias.size(), 1U);
  EXPECT_EQ(pairs.text_bias[0], (std::pair<std::string, float>{"text", sampling::kNever}));
  const auto object = chat(R"(, "logit_bias": {" sea": 3, "5": false})");
  EXPECT_EQ(object.sampling.logit_bias.at(5), sampling::kNever);
  EXPECT_EQ(object.text_bias[0].first, " sea");
  const auto texts = chat(R"(, "logit_bias": {"5": "-2.5", "6": "1e1"})");
  EXPECT_EQ(texts.sampling.logit_bias.at(5), -2.5F);
  EXPECT_EQ(texts.sampling.logit_bias.at(6), 10);
}

TEST(SamplingFields, TheTurnEndsAsItIsTold) {
  const auto end = [](const char* body) {
    return parse_openai_request(Endpoint::kChat, parse_body(body), kLimits).turn_end;
  };
  EXPECT_EQ(end(LAST_USER R"("continue_final_message":false})"), text::TurnEnd::kOpenTurn);
  EXPECT_EQ(end(LAST_USER R"("add_generation_prompt":false})"), text::TurnEnd::kClosed);
  EXPECT_EQ(end(LAST_ASSISTANT R"("continue_final_message":true,"add_generation_prompt":false})"),
            text::TurnEnd::kContinue);
  EXPECT_EQ(end(LAST_ASSISTANT R"("continue_final_message":true})"), text::TurnEnd::kContinue);
  EXPECT_EQ(end(LAST_ASSISTANT R"("continue_final_message":true,"chat_template_kwargs":{"enable_thinking":false}})"),
            text::TurnEnd::kContinue);
  EXPECT_EQ(
      end(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning_content":"c"}],)"
          R"("continue_final_message":true})"),
      text::TurnEnd::kContinue);
  EXPECT_EQ(end(LAST_ASSISTANT R"("n":1})"), text::TurnEnd::kOpenTurn);
}

TEST(SamplingFields, TheOperatorMayLetTheAssistantsLastMessageGoOn) {
  RequestLimits limits = kLimits;
  limits.continues_assistant = true;
  const auto end = [&](const char* body) {
    return parse_openai_request(Endpoint::kChat, parse_body(body), limits).turn_end;
  };
  EXPECT_EQ(end(LAST_ASSISTANT R"("n":1})"), text::TurnEnd::kContinue);
  EXPECT_EQ(end(LAST_USER R"("n":1})"), text::TurnEnd::kOpenTurn);
  EXPECT_EQ(end(LAST_ASSISTANT R"("continue_final_message":false})"), text::TurnEnd::kOpenTurn);
  EXPECT_EQ(end(LAST_ASSISTANT R"("add_generation_prompt":true})"), text::TurnEnd::kOpenTurn);
  EXPECT_EQ(end(LAST_ASSISTANT R"("add_generation_prompt":false})"), text::TurnEnd::kClosed);
  const char* two = R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
                    R"({"role":"assistant","content":"c"}])";
  EXPECT_EQ(end((std::string(two) + R"(,"continue_final_message":false})").c_str()), text::TurnEnd::kOpenTurn);
  EXPECT_THROW(end((std::string(two) + "}").c_str()), RequestError);
}

TEST(SamplingFields, TheOperatorsDefaultsHoldForWhoSaysNothing) {
  RequestLimits limits = kLimits;
  limits.defaults = {.temperature = 0.5F,
                     .top_p = 0.75F,
                     .min_p = 0.25F,
                     .repeat_penalty = 1.5F,
                     .presence_penalty = 0.5F,
                     .frequency_penalty = -0.5F,
                     .top_k = 7,
                     .seed = 42,
                     .max_tokens = 12};
  const auto of = [&](const char* body) {
    return parse_openai_request(Endpoint::kCompletions, parse_body(body), limits);
  };
  const auto r = of(R"({"prompt": "hi"})");
  EXPECT_EQ(r.sampling.temperature, 0.5F);
  EXPECT_EQ(r.sampling.top_p, 0.75F);
  EXPECT_EQ(r.sampling.min_p, 0.25F);
  EXPECT_EQ(r.sampling.repeat_penalty, 1.5F);
  EXPECT_EQ(r.sampling.presence_penalty, 0.5F);
  EXPECT_EQ(r.sampling.frequency_penalty, -0.5F);
  EXPECT_EQ(r.sampling.top_k, 7);
  EXPECT_EQ(r.sampling.seed, 42U);
  EXPECT_EQ(r.max_tokens, 12);
  const auto own = of(R"({"prompt": "hi", "temperature": 1, "top_k": 0, "max_tokens": 3, "seed": 1})");
  EXPECT_EQ(own.sampling.temperature, 1);
  EXPECT_EQ(own.sampling.top_k, 0);
  EXPECT_EQ(own.sampling.seed, 1U);
  EXPECT_EQ(own.max_tokens, 3);
  EXPECT_EQ(of(R"({"prompt": "hi", "max_tokens": -1})").max_tokens, std::nullopt) << "said: no limit";
}

TEST(SamplingFields, WholeNumbersMayHaveAPoint) {
  const GenerationRequest r = complete(R"(, "n": 2.0, "max_tokens": 7e0, "seed": 1e3, "stop_token_ids": [4.0])");
  EXPECT_EQ(r.n, 2);
  EXPECT_EQ(r.max_tokens, 7);
  EXPECT_EQ(r.sampling.seed, 1000U);
  EXPECT_EQ(r.sampling.stop_tokens, std::vector<kv::Token>{4});
  for (const char* wrong : {R"(, "n": 1.5)", R"(, "seed": 1e19)", R"(, "stop_token_ids": [0.5])"})
    EXPECT_THROW(complete(wrong), RequestError) << wrong;
}

}  // namespace
}  // namespace coppice::server
