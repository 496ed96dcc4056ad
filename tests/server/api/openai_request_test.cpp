// Every field of a request: what is taken, what is refused, and by which name.
#include "server/api/openai/openai_request.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/api/parsed.h"

namespace coppice::server {
namespace {

TEST_P(BadFields, AreRefusedByName) {
  expect_refused(Endpoint::kChat, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BadFields,
    ::testing::Values(
        BadField{"{}", "messages", "missing_field"},                                                            //
        BadField{R"({"messages":null})", "messages", "missing_field"},                                          //
        BadField{R"({"messages":"hi"})", "messages", "invalid_type"},                                           //
        BadField{R"({"messages":[]})", "messages"},                                                             //
        BadField{R"({"messages":["hi"]})", "messages[0]", "invalid_type"},                                      //
        BadField{R"({"messages":[{"content":"hi"}]})", "messages[0].role", "missing_field"},                    //
        BadField{R"({"messages":[{"role":7,"content":"hi"}]})", "messages[0].role", "invalid_type"},            //
        BadField{R"({"messages":[{"role":"user"}]})", "messages[0].content", "missing_field"},                  //
        BadField{R"({"messages":[{"role":"user","content":7}]})", "messages[0].content", "invalid_type"},       //
        BadField{R"({"messages":[{"role":"user","content":null}]})", "messages[0].content", "missing_field"},   //
        BadField{R"({"messages":[{"role":"user","content":[7]}]})", "messages[0].content[0]", "invalid_type"},  //
        BadField{R"({"messages":[{"role":"user","content":[{"type":"refusal","refusal":"no"}]}]})",
                 "messages[0].content[0].type", "unsupported_parameter"},
        BadField{R"({"messages":[{"role":"user","content":[{"text":"hi"}]}]})", "messages[0].content[0].type",
                 "missing_field"},
        BadField{R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "messages[0].content[0].text",
                 "missing_field"},
        BadField{R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})",
                 "messages[0].content[0].type", "unsupported_parameter"},
        BadField{R"({"messages":[{"role":"User","content":"4"}]})", "messages[0].role"},
        BadField{R"({"messages":[{"role":"function","content":"4"}]})", "messages[0].role", "unsupported_parameter"},
        BadField{R"({"messages":[{"role":"assistant","content":"","tool_calls":[{}]}]})",
                 "messages[0].tool_calls[0].function", "missing_field"},
        BadField{"{" MESSAGES R"(,"model":7})", "model", "invalid_type"},                      //
        BadField{"{" MESSAGES R"(,"n":0})", "n"},                                              //
        BadField{"{" MESSAGES R"(,"n":9})", "n"},                                              //
        BadField{"{" MESSAGES R"(,"n":1.5})", "n", "invalid_type"},                            //
        BadField{"{" MESSAGES R"(,"n":"2"})", "n", "invalid_type"},                            //
        BadField{"{" MESSAGES R"(,"max_tokens":-2})", "max_tokens"},                           //
        BadField{"{" MESSAGES R"(,"max_tokens":0})", "max_tokens"},                            //
        BadField{"{" MESSAGES R"(,"max_tokens":true})", "max_tokens", "invalid_type"},         //
        BadField{"{" MESSAGES R"(,"max_tokens":18446744073709551615})", "max_tokens"},         //
        BadField{"{" MESSAGES R"(,"max_completion_tokens":-5})", "max_completion_tokens"},     //
        BadField{"{" MESSAGES R"(,"temperature":-0.1})", "temperature"},                       //
        BadField{"{" MESSAGES R"(,"temperature":"hot"})", "temperature", "invalid_type"},      //
        BadField{"{" MESSAGES R"(,"top_p":0})", "top_p"},                                      //
        BadField{"{" MESSAGES R"(,"top_p":1.1})", "top_p"},                                    //
        BadField{"{" MESSAGES R"(,"top_k":-2})", "top_k"},                                     //
        BadField{"{" MESSAGES R"(,"min_p":2})", "min_p"},                                      //
        BadField{"{" MESSAGES R"(,"presence_penalty":2.5})", "presence_penalty"},              //
        BadField{"{" MESSAGES R"(,"frequency_penalty":-2.5})", "frequency_penalty"},           //
        BadField{"{" MESSAGES R"(,"repetition_penalty":0})", "repetition_penalty"},            //
        BadField{"{" MESSAGES R"(,"logit_bias":7})", "logit_bias", "invalid_type"},            //
        BadField{"{" MESSAGES R"(,"logit_bias":[7]})", "logit_bias", "invalid_type"},          //
        BadField{"{" MESSAGES R"(,"logit_bias":[[7]]})", "logit_bias", "invalid_type"},        //
        BadField{"{" MESSAGES R"(,"logit_bias":[[true,7]]})", "logit_bias", "invalid_type"},   //
        BadField{"{" MESSAGES R"(,"logit_bias":[[5,true]]})", "logit_bias", "invalid_type"},   //
        BadField{"{" MESSAGES R"(,"logit_bias":[[100,1]]})", "logit_bias"},                    //
        BadField{"{" MESSAGES R"(,"logit_bias":{"-1":1}})", "logit_bias"},                     //
        BadField{"{" MESSAGES R"(,"logit_bias":{"100":1}})", "logit_bias"},                    //
        BadField{"{" MESSAGES R"(,"logit_bias":{"5":101}})", "logit_bias"},                    //
        BadField{"{" MESSAGES R"(,"logit_bias":{"5":"101"}})", "logit_bias"},                  //
        BadField{"{" MESSAGES R"(,"logit_bias":{"5":"nan"}})", "logit_bias", "invalid_type"},  //
        BadField{"{" MESSAGES R"(,"logit_bias":{"5":""}})", "logit_bias", "invalid_type"},     //
        BadField{"{" MESSAGES R"(,"logit_bias":{"5":"1x"}})", "logit_bias", "invalid_type"},   //
        BadField{"{" MESSAGES R"(,"logit_bias":{"5":"x"}})", "logit_bias", "invalid_type"}));

INSTANTIATE_TEST_SUITE_P(
    MoreFields, BadFields,
    ::testing::Values(BadField{"{" MESSAGES R"(,"seed":"x"})", "seed", "invalid_type"},                 //
                      BadField{"{" MESSAGES R"(,"stop":7})", "stop", "invalid_type"},                   //
                      BadField{"{" MESSAGES R"(,"stop":[7]})", "stop", "invalid_type"},                 //
                      BadField{"{" MESSAGES R"(,"stop":""})", "stop"},                                  //
                      BadField{"{" MESSAGES R"(,"stop":["a",""]})", "stop"},                            //
                      BadField{"{" MESSAGES R"(,"logprobs":2})", "logprobs", "invalid_type"},           //
                      BadField{"{" MESSAGES R"(,"logprobs":true,"top_logprobs":21})", "top_logprobs"},  //
                      BadField{"{" MESSAGES R"(,"top_logprobs":2})", "top_logprobs"},                   //
                      BadField{"{" MESSAGES R"(,"stream":"yes"})", "stream", "invalid_type"},           //
                      BadField{"{" MESSAGES R"(,"stream":true,"stream_options":7})", "stream_options",
                               "invalid_type"},                                                                 //
                      BadField{"{" MESSAGES R"(,"stream_options":{"include_usage":true}})", "stream_options"},  //
                      BadField{"{" MESSAGES R"(,"stream":true,"stream_options":{"include_usage":1}})",
                               "stream_options.include_usage", "invalid_type"},
                      BadField{"{" MESSAGES R"(,"ignore_eos":1})", "ignore_eos", "invalid_type"},                   //
                      BadField{"{" MESSAGES R"(,"cache_salt":1})", "cache_salt", "invalid_type"},                   //
                      BadField{"{" MESSAGES R"(,"user":1})", "user", "invalid_type"},                               //
                      BadField{"{" MESSAGES R"(,"priority":1.5})", "priority", "invalid_type"},                     //
                      BadField{"{" MESSAGES R"(,"priority":2147483648})", "priority"},                              //
                      BadField{"{" MESSAGES R"(,"timeout":0})", "timeout"},                                         //
                      BadField{"{" MESSAGES R"(,"timeout":-1})", "timeout"},                                        //
                      BadField{"{" MESSAGES R"(,"timeout":"1"})", "timeout", "invalid_type"},                       //
                      BadField{"{" MESSAGES R"(,"cache_report":1})", "cache_report", "invalid_type"},               //
                      BadField{"{" MESSAGES R"(,"functions":[{}]})", "functions", "unsupported_parameter"},         //
                      BadField{"{" MESSAGES R"(,"modalities":["audio"]})", "modalities", "unsupported_parameter"},  //
                      BadField{"{" MESSAGES R"(,"best_of":3})", "best_of", "unsupported_parameter"},                //
                      BadField{"[]", "", "invalid_json"}, BadField{"{", "", "invalid_json"},
                      BadField{"", "", "invalid_json"},                              //
                      BadField{"{\"messages\":\"\xff\"}", "", "invalid_json"},       //
                      BadField{R"({"messages":"\ud800"})", "", "invalid_json"},      //
                      BadField{"{" MESSAGES R"(,"n":1e999})", "n", "invalid_type"},  //
                      BadField{"{" MESSAGES R"(,"timeout":1e999})", "timeout"}));

/// The parser has them as doubles.
TEST(Integers, BeyondAll64BitsAreOutOfRange) {
  for (const char* number : {"18446744073709551616", "-9223372036854775809", "1e30"}) {
    try {
      chat(fmt::format(R"(, "priority": {})", number));
      ADD_FAILURE() << number;
    } catch (const RequestError& e) {
      EXPECT_STREQ(e.what(), "'priority': must be between -2147483648 and 2147483647") << number;
    }
  }
}

class BadCompletion : public ::testing::TestWithParam<BadField> {};
TEST_P(BadCompletion, IsRefusedByName) {
  expect_refused(Endpoint::kCompletions, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BadCompletion,
    ::testing::Values(
        BadField{"{}", "prompt", "missing_field"},                                      //
        BadField{R"({"prompt":7})", "prompt", "invalid_type"},                          //
        BadField{R"({"prompt":[]})", "prompt"},                                         //
        BadField{R"({"prompt":[1,"a"]})", "prompt", "invalid_type"},                    //
        BadField{R"({"prompt":["a",1]})", "prompt[1]", "invalid_type"},                 //
        BadField{R"({"prompt":[1,100]})", "prompt"},                                    //
        BadField{R"({"prompt":[-1]})", "prompt"},                                       //
        BadField{R"({"prompt":[1.5]})", "prompt", "invalid_type"},                      //
        BadField{R"({"prompt":[[1],[4294967297]]})", "prompt[1]"},                      //
        BadField{R"({"prompt":"a","logprobs":true})", "logprobs", "invalid_type"},      //
        BadField{R"({"prompt":"a","logprobs":21})", "logprobs"},                        //
        BadField{R"({"prompt":"a","logprobs":-1})", "logprobs"},                        //
        BadField{R"({"prompt":"a","suffix":"z"})", "suffix", "unsupported_parameter"},  //
        BadField{R"({"prompt":"a","suffix":3})", "suffix", "invalid_type"},             //
        BadField{R"({"prompt":"a","echo":"yes"})", "echo", "invalid_type"},             //
        BadField{R"({"prompt":"a","echo":true,"logprobs":1,"stream":true})", "echo", "unsupported_parameter"},
        BadField{R"({"prompt":"a","prompt_logprobs":1,"stream":true})", "prompt_logprobs", "unsupported_parameter"},
        BadField{R"({"prompt":"a","prompt_logprobs":-1})", "prompt_logprobs"},                    //
        BadField{R"({"prompt":"a","prompt_logprobs":21})", "prompt_logprobs"},                    //
        BadField{R"({"prompt":"a","prompt_logprobs":true})", "prompt_logprobs", "invalid_type"},  //
        BadField{R"({"prompt":"a","prompt_logprobs_from":1})", "prompt_logprobs_from"},           //
        BadField{R"({"prompt":"a","echo":true,"prompt_logprobs_from":1})", "prompt_logprobs_from"},
        BadField{R"({"prompt":"a","prompt_logprobs":1,"prompt_logprobs_from":-1})", "prompt_logprobs_from"},
        BadField{R"({"prompt":"a","max_tokens":0})", "max_tokens"},  //
        BadField{R"({"prompt":"a","best_of":2})", "best_of", "unsupported_parameter"}));

TEST(Request, DefaultsAreOpenAis) {
  const GenerationRequest r = chat();
  EXPECT_EQ(r.n, 1);
  EXPECT_FALSE(r.max_tokens);
  EXPECT_EQ(r.prompt_logprobs, -1);
  EXPECT_EQ(r.sampling.temperature, 1);
  EXPECT_EQ(r.sampling.top_p, 1);
  EXPECT_EQ(r.sampling.logprobs, -1);
  EXPECT_FALSE(r.sampling.seed);
  EXPECT_FALSE(r.stream);
  EXPECT_EQ(r.priority, 0);
  EXPECT_FALSE(r.timeout_seconds || r.cache_report);
}

TEST(Request, ReadsEveryField) {
  const GenerationRequest r =
      chat(R"(, "model": "m", "n": 3, "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 40,
    "min_p": 0.05, "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1, "logit_bias": {"5": -100},
    "seed": 42, "stop": ["a", "b"], "logprobs": true, "top_logprobs": 2, "stream": true,
    "stream_options": {"include_usage": true}, "ignore_eos": true, "cache_salt": "tenant", "user": "u",
    "priority": -2147483648, "timeout": 2.5, "cache_report": true,
    "tools": [], "tool_choice": "none", "response_format": {"type": "text"})");
  EXPECT_EQ(r.model, "m");
  EXPECT_EQ(r.n, 3);
  EXPECT_EQ(r.max_tokens, 7);
  EXPECT_FLOAT_EQ(r.sampling.temperature, 0.5);
  EXPECT_FLOAT_EQ(r.sampling.top_p, 0.9F);
  EXPECT_EQ(r.sampling.top_k, 40);
  EXPECT_FLOAT_EQ(r.sampling.min_p, 0.05F);
  EXPECT_EQ(r.sampling.presence_penalty, 1);
  EXPECT_EQ(r.sampling.frequency_penalty, -1);
  EXPECT_FLOAT_EQ(r.sampling.repeat_penalty, 1.1F);
  EXPECT_EQ(r.sampling.logit_bias.at(5), -100);
  EXPECT_EQ(r.sampling.seed, 42U);
  EXPECT_EQ(r.sampling.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(r.sampling.logprobs, 2);
  EXPECT_TRUE(r.sampling.ignore_eos);
  EXPECT_TRUE(r.stream && r.stream_usage);
  EXPECT_EQ(r.cache_salt, "tenant");
  EXPECT_EQ(r.priority, -2147483648);
  EXPECT_EQ(r.timeout_seconds, 2.5);
  EXPECT_TRUE(r.cache_report);
}

TEST(Request, BiasesAreLimited) {
  constexpr RequestLimits kLarge{.n_vocab = 5000};
  const auto body = [](std::size_t n) {
    std::string bias;
    for (std::size_t i = 0; i < n; ++i) bias += fmt::format("{}\"{}\":1", i == 0 ? "" : ",", i);
    return parse_body(fmt::format(R"({{"prompt": "hi", "logit_bias": {{{}}}}})", bias));
  };
  EXPECT_EQ(parse_openai_request(Endpoint::kCompletions, body(1024), kLarge).sampling.logit_bias.size(), 1024U);
  EXPECT_THROW(parse_openai_request(Endpoint::kCompletions, body(1025), kLarge), RequestError);
}

TEST(Request, ThePromptAloneMakesAnAnswer) {
  const auto completions = [](const std::string& fields) {
    const auto body = parse_body(R"({"prompt": "hi", "max_tokens": 0, )" + fields + "}");
    return parse_openai_request(Endpoint::kCompletions, body, {.n_vocab = 256});
  };
  const auto echo = completions(R"("echo": true, "logprobs": 3, "prompt_logprobs_from": 7)");
  EXPECT_EQ(echo.max_tokens, 0);
  EXPECT_TRUE(echo.echo && echo.sampling.logprobs_of_end);
  EXPECT_EQ(echo.sampling.logprobs, 3);
  EXPECT_EQ(echo.prompt_logprobs, -1);
  EXPECT_EQ(echo.logprobs_from, 7);
  EXPECT_EQ(completions(R"("prompt_logprobs": 0)").prompt_logprobs, 0);
  EXPECT_FALSE(completions(R"("prompt_logprobs": 0, "logprobs": 1)").sampling.logprobs_of_end);
  EXPECT_EQ(chat(R"(, "prompt_logprobs": 20, "max_completion_tokens": 0)").prompt_logprobs, 20);
}

TEST(Request, NewerNameOfMaxTokensWins) {
  EXPECT_EQ(chat(R"(, "max_tokens": 7, "max_completion_tokens": 9)").max_tokens, 9);
}

TEST(Request, NullCountsAsAbsentAndUnknownFieldsAreIgnored) {
  const GenerationRequest r = chat(R"(, "n": null, "stop": null, "seed": null, "tools": null, "stream_options": null,
    "logit_bias": null, "response_format": null, "bad_words": null, "allowed_token_ids": null, "user": null, "no_such_field": {"a": [1]})");
  EXPECT_EQ(r.n, 1);
  EXPECT_TRUE(r.sampling.stop.empty());
}

TEST(Request, ContentIsTextOrTextParts) {
  const auto messages = parse_messages(parse_body(R"({"m": [
    {"role": "developer", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "x"}]})")
                                           .at("m"));
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(messages[0].role, "system");
  ASSERT_EQ(messages[1].content.size(), 2U);
  EXPECT_EQ(messages[1].content[0].text + messages[1].content[1].text, "ab");
}

Message message_of(const std::string& json) {
  return parse_messages(parse_body("{\"m\": [" + json + "]}").at("m")).at(0);
}
std::string text_of(const std::string& json) {
  std::string text;
  for (const ContentPart& part : message_of(json).content) text += part.text;
  return text;
}

TEST(Request, ContentMayBeMissingWhereOthersWroteIt) {
  EXPECT_EQ(text_of(R"({"role": "assistant", "content": null})"), "");
  EXPECT_EQ(message_of(R"({"role": "assistant", "content": null, "reasoning_content": "hm"})").reasoning, "hm");
  EXPECT_EQ(text_of(R"({"role": "tool", "tool_call_id": "c", "content": null})"), "");
  EXPECT_EQ(text_of(R"({"role": "tool", "tool_call_id": "c"})"), "");
}

TEST(Request, PartsOfOtherKinds) {
  EXPECT_EQ(text_of(R"({"role": "user", "content": ["a", {"type": "text", "text": "b"}]})"), "ab");
  EXPECT_EQ(text_of(R"({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]})"), "No.");
  const Message thoughtful = message_of(R"({"role": "assistant", "content": [
    {"type": "thinking", "thinking": [{"type": "text", "text": "h"}, "m"]}, {"type": "text", "text": "So."}]})");
  EXPECT_EQ(thoughtful.reasoning, "hm");
  EXPECT_EQ(thoughtful.content.at(0).text, "So.");
  EXPECT_EQ(text_of(R"({"role": "tool", "content": [{"type": "text", "text": "a: "},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]})"),
            "a: [An image was here. It is left out: only text can be read.]");
}

TEST(Request, TakesAllFourFormsOfPrompt) {
  const auto prompts = [](const char* prompt) {
    return parse_openai_request(Endpoint::kCompletions, parse_body(fmt::format(R"({{"prompt": {}}})", prompt)), kLimits)
        .prompts;
  };
  using Tokens = std::vector<kv::Token>;
  EXPECT_EQ(prompts(R"("a")"), (std::vector<Prompt>{"a"}));
  EXPECT_EQ(prompts(R"(["a", "b"])"), (std::vector<Prompt>{"a", "b"}));
  EXPECT_EQ(prompts("[1, 2]"), (std::vector<Prompt>{Tokens{1, 2}}));
  EXPECT_EQ(prompts("[[1, 2], [3]]"), (std::vector<Prompt>{Tokens{1, 2}, Tokens{3}}));
}

TEST(Request, CompletionsCountTheirLogprobs) {
  EXPECT_EQ(complete(R"(, "logprobs": 0)").sampling.logprobs, 0);
  EXPECT_EQ(complete(R"(, "logprobs": 5)").sampling.logprobs, 5);
  EXPECT_EQ(complete().sampling.logprobs, -1);
}

TEST(Request, PromptsAreLimited) {
  const auto with_prompts = [&](int n_prompts) {
    std::string prompts = "\"a\"";
    for (int i = 1; i < n_prompts; ++i) prompts += ",\"a\"";
    const std::string body = fmt::format(R"({{"prompt":[{}]}})", prompts);
    return parse_openai_request(Endpoint::kCompletions, parse_body(body), kLimits).prompts.size();
  };
  EXPECT_EQ(with_prompts(kMaxPrompts), std::size_t{kMaxPrompts});
  EXPECT_THROW(with_prompts(kMaxPrompts + 1), RequestError);
  std::string tokens = "[1";
  for (int i = 0; i < 2 * kMaxPrompts; ++i) tokens += ",1";
  EXPECT_EQ(
      parse_openai_request(Endpoint::kCompletions, parse_body(R"({"prompt":)" + tokens + "]}"), kLimits).prompts.size(),
      1U)
      << "one prompt";
}

}  // namespace
}  // namespace coppice::server
