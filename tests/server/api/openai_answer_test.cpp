// The shapes of responses: bodies, chunks, both kinds of logprobs, usage.
#include "server/api/openai/openai_answer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace coppice::server {
namespace {

using nlohmann::json;
using sampling::Finish;
using sampling::LogprobEntry;
using sampling::PromptToken;
using sampling::TokenLogprob;

constexpr Endpoint kChat = Endpoint::kChat, kText = Endpoint::kCompletions;

AnswerHead head(int n_choices, int n_prompts, std::vector<std::string> echoes) {
  return {.id = "an-id",
          .created = 1234,
          .model = "m",
          .fingerprint = "b1",
          .n_choices = n_choices,
          .n_prompts = n_prompts,
          .echoes = std::move(echoes)};
}

AnswerHead head(int n_choices, std::vector<std::string> echoes = {}) {
  const int n_prompts = std::max(1, static_cast<int>(echoes.size()));
  return head(n_choices, n_prompts, std::move(echoes));
}

/// As another library reads what ours writes.
json as_read(const Json& written) {
  return json::parse(dump(written));
}

LogprobEntry entry(std::string bytes, float logprob, std::vector<TokenLogprob> top = {}) {
  return {TokenLogprob{1, std::move(bytes), logprob}, std::move(top)};
}

std::vector<json> parse_events(const std::string& text) {
  std::vector<json> events;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find("\n\n", at);
    EXPECT_EQ(text.substr(at, 6), "data: ");
    EXPECT_NE(end, std::string::npos);
    const std::string data = text.substr(at + 6, end - at - 6);
    EXPECT_EQ(data.find('\n'), std::string::npos);
    events.push_back(data == "[DONE]" ? json("[DONE]") : json::parse(data));
    at = end + 2;
  }
  return events;
}

TEST(OpenAiBody, ChatHasTheWholeShape) {
  OpenAiBody body(kChat, head(2), false);
  body.delta({.choice = 1, .text = "b"});
  body.delta({.choice = 0, .text = "a", .end = {{.finish = Finish::kStop, .reasoning_tokens = 2}}});
  body.delta({.choice = 1, .text = "c", .end = {{.finish = Finish::kLength, .reasoning_tokens = 3}}});
  EXPECT_EQ(json::parse(body.end({10, 4, 3}, {})), json::parse(R"({
    "id": "an-id", "object": "chat.completion", "created": 1234, "model": "m",
    "system_fingerprint": "b1", "choices": [
      {"index": 0, "message": {"role": "assistant", "content": "a", "refusal": null}, "logprobs": null,
       "finish_reason": "stop"},
      {"index": 1, "message": {"role": "assistant", "content": "bc", "refusal": null}, "logprobs": null,
       "finish_reason": "length"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13,
              "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 5}}})"));
}

/// A stop string or max_tokens in a call's JSON: there is no call to run.
TEST(OpenAiAnswer, ACutCallIsNoReasonToEnd) {
  for (const auto& [finish, reason] : {std::pair{Finish::kStop, "stop"}, std::pair{Finish::kLength, "length"}}) {
    const Delta cut{.calls = {{.index = 0, .id = "t", .name = "add", .arguments = R"({"a": "cu)"}},
                    .end = {{.finish = finish, .stop = "t", .cut_call = true}}};
    OpenAiBody body(kChat, head(1), false);
    body.delta(Delta(cut));
    const json whole = json::parse(body.end({}, {}));
    EXPECT_EQ(whole["choices"][0]["finish_reason"], reason);
    EXPECT_EQ(whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], R"({"a": "cu)");
    OpenAiStream stream(kChat, head(1), false, false);
    EXPECT_EQ(parse_events(stream.delta(Delta(cut))).back()["choices"][0]["finish_reason"], reason);
  }
}

TEST(OpenAiBody, CompletionsHaveTextAndEcho) {
  OpenAiBody body(kText, head(4, {"hello \"you\"", "bye"}), false);
  for (int choice = 0; choice < 4; ++choice)
    body.delta({.choice = choice, .text = "\n", .end = {{.finish = Finish::kStop}}});
  const json parsed = json::parse(body.end({1, 0, 1}, {}));
  EXPECT_EQ(parsed["object"], "text_completion");
  EXPECT_EQ(parsed["choices"][0], json::parse(R"({"index": 0, "text": "hello \"you\"\n", "logprobs": null,
                                                   "finish_reason": "stop"})"));
  for (const auto& [choice, text] : {std::pair{1, "hello \"you\"\n"}, {2, "bye\n"}, {3, "bye\n"}})
    EXPECT_EQ(parsed["choices"][choice]["text"], text);
}

TEST(OpenAiBody, LogprobsAreThoseOfAllDeltas) {
  const std::vector<LogprobEntry> all = {entry("\xc3\xa9", -1, {{7, "x", -0.5F}}), entry("\"", -2), entry("!", -3)};
  for (const Endpoint endpoint : {kChat, kText}) {
    OpenAiBody body(endpoint, head(2), true);
    body.delta({.choice = 0, .text = "é", .logprobs = {all[0]}});
    body.delta({.choice = 0, .text = "\"!", .logprobs = {all[1], all[2]}, .end = {{.finish = Finish::kStop}}});
    const json choices = json::parse(body.end({}, {}))["choices"];
    std::int64_t offset = 0, none = 0;
    const bool chat = endpoint == kChat;
    EXPECT_EQ(choices[0]["logprobs"], as_read(chat ? chat_logprobs(all) : completion_logprobs(all, offset)));
    EXPECT_EQ(choices[1]["logprobs"], as_read(chat ? chat_logprobs({}) : completion_logprobs({}, none)));
  }
}

TEST(OpenAiBody, KnowsItsBytes) {
  OpenAiBody body(kText, head(2, {"123"}), true);
  EXPECT_EQ(body.bytes(), 6U);
  body.delta({.choice = 1, .text = "\n", .logprobs = std::vector<LogprobEntry>(1000, entry("a", -1))});
  const std::size_t bytes = body.bytes();
  const std::string text = body.end({}, {});
  EXPECT_LT(bytes, text.size());
  EXPECT_GT(bytes + 500, text.size());
  EXPECT_EQ(body.bytes(), 0U) << "its parts are gone: a slow reader's answer is held once";
}

PromptToken scored(kv::Token id, std::string bytes, float logprob, std::int32_t rank,
                   std::vector<TokenLogprob> top = {}) {
  return {{TokenLogprob{id, std::move(bytes), logprob}, std::move(top)}, rank};
}

// What lm-eval's local-completions and OpenAI's clients read: one entry for each token of prompt and answer.
TEST(OpenAiBody, EchoHasThePromptsLogprobs) {
  OpenAiBody body(kText, head(4, 2, {"héllo", "x"}), true, {.in_echo = 1});
  body.delta({.choice = 0, .prompt = {scored(1, "<s>", 0, 0), scored(5, "h", 0, 0)}});
  body.delta({.choice = 0,
              .prompt = {scored(6, "\xc3", -1, 2, {{9, "a", -0.5F}, {6, "\xc3", -1}}), scored(7, "\xa9llo", -2, 1)}});
  body.delta({.choice = 2, .prompt = {scored(8, "x", 0, 0)}});
  for (int choice = 0; choice < 4; ++choice)
    body.delta({.choice = choice, .text = "!", .logprobs = {entry("!", -3)}, .end = {{.finish = Finish::kLength}}});
  const std::size_t bytes = body.bytes();
  const std::string text = body.end({}, {});
  EXPECT_LT(bytes, text.size());
  EXPECT_GT(bytes + 800, text.size());
  const json choices = json::parse(text)["choices"];
  for (const int choice : {0, 1}) {
    EXPECT_EQ(choices[choice]["text"], "héllo!");
    EXPECT_EQ(choices[choice]["logprobs"], json::parse(R"({
      "tokens": ["<s>", "h", "bytes:\\xc3", "bytes:\\xa9\\x6c\\x6c\\x6f", "!"],
      "token_logprobs": [null, null, -1.0, -2.0, -3.0],
      "top_logprobs": [null, null, {"a": -0.5, "bytes:\\xc3": -1.0}, {"bytes:\\xa9\\x6c\\x6c\\x6f": -2.0}, {"!": -3.0}],
      "text_offset": [0, 0, 1, 1, 5]})"));
    EXPECT_FALSE(choices[choice].contains("prompt_logprobs"));
  }
  EXPECT_EQ(choices[3]["logprobs"]["tokens"], json::array({"x", "!"}));
  EXPECT_EQ(choices[3]["logprobs"]["text_offset"], json::array({0, 1}));
}

TEST(OpenAiBody, PromptLogprobsHaveVllmsShape) {
  const std::vector<PromptToken> tokens = {scored(1, "a", 0, 0),
                                           scored(6, "b", -2.5F, 7, {{9, "c", -0.5F}, {4, "\xc3", -1.5F}}),
                                           scored(9, "c", -0.25F, 1, {{9, "c", -0.25F}, {6, "b", -3}})};
  const json list = json::parse(R"([null,
    {"6": {"logprob": -2.5, "rank": 7, "decoded_token": "b"}, "9": {"logprob": -0.5, "rank": 1, "decoded_token": "c"},
     "4": {"logprob": -1.5, "rank": 2, "decoded_token": "\ufffd"}},
    {"9": {"logprob": -0.25, "rank": 1, "decoded_token": "c"}, "6": {"logprob": -3.0, "rank": 2, "decoded_token": "b"}}])");
  for (const Endpoint endpoint : {kChat, kText}) {
    OpenAiBody body(endpoint, head(2), false, {.in_list = 2});
    body.delta({.choice = 0, .prompt = {tokens[0], tokens[1]}});
    body.delta({.choice = 0, .text = "a", .prompt = {tokens[2]}, .end = {{.finish = Finish::kStop}}});
    body.delta({.choice = 1, .text = "b", .end = {{.finish = Finish::kStop}}});
    const json answer = json::parse(body.end({}, {}));
    const bool chat = endpoint == kChat;
    if (chat) EXPECT_EQ(answer["prompt_logprobs"], list);
    for (const json& choice : answer["choices"]) {
      EXPECT_EQ(choice.contains("prompt_logprobs"), !chat);
      if (!chat) EXPECT_EQ(choice["prompt_logprobs"], list);
      EXPECT_TRUE(choice["logprobs"].is_null());
    }
  }
}

// Each of the two fields has as many alternatives as it asked for.
TEST(OpenAiBody, BothFieldsAtOnce) {
  OpenAiBody body(kText, head(1, 1, {"ab"}), true, {.in_echo = 0, .in_list = 1});
  body.delta({.choice = 0, .prompt = {scored(1, "a", 0, 0), scored(2, "b", -1, 2, {{3, "c", -0.5F}, {2, "b", -1}})}});
  const json choice = json::parse(body.end({}, {}))["choices"][0];
  EXPECT_EQ(choice["logprobs"]["top_logprobs"], json::parse(R"([null, {"b": -1.0}])"));
  EXPECT_EQ(choice["prompt_logprobs"][1].size(), 2U);
}

TEST(TokenPlaces, FindsTokensInTheText) {
  const auto places = [](std::string text, const std::vector<std::string>& tokens) {
    TokenPlaces in(std::move(text));
    std::vector<std::int64_t> all;
    for (const auto& token : tokens) all.push_back(in.next(token));
    return all;
  };
  using Places = std::vector<std::int64_t>;
  EXPECT_EQ(places("The sky", {"The", " sky"}), (Places{0, 3}));
  EXPECT_EQ(places("The sky", {"<s>", "The", " sky"}), (Places{0, 0, 3})) << "a beginning that the text doesn't have";
  EXPECT_EQ(places("<s>The sky", {"<s>", "The", " sky"}), (Places{0, 3, 6}));
  EXPECT_EQ(places("The sky", {"<s>", " The", " sky"}), (Places{0, 0, 3})) << "a space put before the text";
  EXPECT_EQ(places("\xc3\xa9t\xc3\xa9", {"\xc3", "\xa9", "t", "\xc3\xa9"}), (Places{0, 0, 1, 2}));
  EXPECT_EQ(places("", {"<s>"}), (Places{0}));
}

TEST(Logprobs, ChatShape) {
  const std::vector<LogprobEntry> entries = {
      entry("\xc3\xa9", -0.5F, {{1, "\xc3\xa9", -0.5F}, {2, "\xe2\x82", -1.5F}})};
  EXPECT_EQ(as_read(chat_logprobs(entries)), json::parse(R"({"content": [
    {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": [
      {"token": "é", "logprob": -0.5, "bytes": [195, 169]},
      {"token": "�", "logprob": -1.5, "bytes": [226, 130]}]}], "refusal": null})"));
}

TEST(Logprobs, CompletionShapeCountsOffsetsInCharacters) {
  // "é", then the two halves of "ü", then "!": offsets 0, 1, 1, 2.
  const std::vector<LogprobEntry> entries = {entry("\xc3\xa9", -1, {{7, "x", -0.5F}}), entry("\xc3", -2),
                                             entry("\xbc", -3), entry("!", -4, {{8, "!", -4}})};
  std::int64_t offset = 0;
  EXPECT_EQ(as_read(completion_logprobs(entries, offset)), json::parse(R"({
    "tokens": ["é", "bytes:\\xc3", "bytes:\\xbc", "!"],
    "token_logprobs": [-1.0, -2.0, -3.0, -4.0],
    "top_logprobs": [{"x": -0.5, "é": -1.0}, {"bytes:\\xc3": -2.0}, {"bytes:\\xbc": -3.0}, {"!": -4.0}],
    "text_offset": [0, 1, 1, 2]})"));
  EXPECT_EQ(offset, 3);
}

TEST(Logprobs, InfinityIsANumber) {
  const std::vector<LogprobEntry> entries = {entry("a", -std::numeric_limits<float>::infinity())};
  EXPECT_EQ(as_read(chat_logprobs(entries))["content"][0]["logprob"], -9999.0);
}

TEST(OpenAiStream, ChatOpensEachChoiceWithItsRole) {
  OpenAiStream stream(kChat, head(2), false, true);
  auto events = parse_events(stream.delta({.choice = 1, .text = "a"}));
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0], json::parse(R"({"id": "an-id", "object": "chat.completion.chunk", "created": 1234,
    "model": "m", "system_fingerprint": "b1",
    "choices": [{"index": 1, "delta": {"role": "assistant", "content": null}, "logprobs": null,
    "finish_reason": null}], "usage": null})"));
  EXPECT_EQ(events[1]["choices"][0]["delta"], json::parse(R"({"content": "a"})"));
  events = parse_events(stream.delta({.choice = 1, .text = "b", .end = {{.finish = Finish::kStop}}}));
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0]["choices"][0]["delta"], json::parse(R"({"content": "b"})"));
  EXPECT_EQ(events[1]["choices"][0]["delta"], json::object());
  EXPECT_EQ(events[1]["choices"][0]["finish_reason"], "stop");
  events = parse_events(stream.end({5, 2, 2}, {}));
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0]["choices"], json::array());
  EXPECT_EQ(events[0]["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(events[1], "[DONE]");
}

TEST(OpenAiStream, WithoutUsageNobodyHearsOfIt) {
  OpenAiStream stream(kText, head(1), false, false);
  for (const json& e : parse_events(stream.delta({.choice = 0, .text = "a", .end = {{.finish = Finish::kLength}}}))) {
    EXPECT_FALSE(e.contains("usage"));
    EXPECT_EQ(e["object"], "text_completion");
  }
  EXPECT_EQ(stream.end({}, {}), "data: [DONE]\n\n");
}

TEST(OpenAiStream, TellsProgressAndTimingsToWhoAsks) {
  const engine::Usage usage{
      .prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 3, .prompt_seconds = 0.5, .decode_seconds = 0.25};
  const engine::Progress half{.computed = 6, .usage = {.prompt_tokens = 10, .cached_tokens = 4, .prompt_seconds = 0.5}};
  OpenAiStream stream(kChat, head(1), false, false, {.progress = true, .timings = true});
  auto events =
      parse_events(stream.delta({.progress = {half}}) + stream.delta({.text = "a", .so_far = usage}) +
                   stream.delta({.end = {{.finish = Finish::kStop}}, .usage = usage}) + stream.end(usage, {}));
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_FALSE(events[0].contains("timings"));
  EXPECT_EQ(events[1]["prompt_progress"],
            json::parse(R"({"total": 10, "cache": 4, "processed": 6, "time_ms": 500.0})"));
  EXPECT_EQ(events[1]["timings"]["prompt_n"], 2);
  EXPECT_EQ(events[2]["timings"]["predicted_n"], 3);
  EXPECT_EQ(events[2]["timings"]["cache_n"], 4);
  EXPECT_EQ(events[4]["choices"], json::array());
  EXPECT_EQ(events[4]["timings"]["predicted_ms"], 250);

  OpenAiStream plain(kChat, head(1), false, false);
  for (const json& event :
       parse_events(plain.delta({.text = "a", .progress = {half}, .so_far = usage}) +
                    plain.delta({.end = {{.finish = Finish::kStop}}, .usage = usage}) + plain.end(usage, {})))
    EXPECT_FALSE(event.is_object() && (event.contains("timings") || event.contains("prompt_progress"))) << event;

  OpenAiBody body(kText, head(1), false, {}, {.timings = true});
  body.delta({.text = "a", .end = {{.finish = Finish::kStop}}, .usage = usage});
  EXPECT_EQ(json::parse(body.end(usage, {}))["timings"]["prompt_n"], 6);
}

TEST(OpenAiStream, EchoComesFirstAndOnce) {
  OpenAiStream stream(kText, head(2, {"p"}), false, false);
  const auto first = parse_events(stream.delta({.choice = 0, .text = "a"}));
  ASSERT_EQ(first.size(), 2U);
  EXPECT_EQ(first[0]["choices"][0]["text"], "p");
  EXPECT_EQ(parse_events(stream.delta({.choice = 0, .text = "b"})).size(), 1U);
}

TEST(OpenAiStream, OffsetsGoOnFromChunkToChunk) {
  OpenAiStream stream(kText, head(1), true, false);
  stream.delta({.choice = 0, .text = "ab", .logprobs = {entry("ab", -1)}});
  const auto next = parse_events(stream.delta({.choice = 0, .text = "c", .logprobs = {entry("c", -1)}}));
  EXPECT_EQ(next[0]["choices"][0]["logprobs"]["text_offset"], json::array({2}));
}

TEST(OpenAiError, HasTheWholeShape) {
  const auto shape = [](const RequestError& error) { return json::parse(openai_error(error))["error"]; };
  EXPECT_EQ(shape(RequestError::bad_field("n", "no")), json::parse(R"({"message": "'n': no", "type":
    "invalid_request_error", "param": "n", "code": "invalid_value"})"));
  EXPECT_EQ(shape(RequestError::server_error(500, "x")), json::parse(R"({"message": "x", "type": "server_error",
    "param": null, "code": null})"));
  EXPECT_EQ(shape(RequestError::unavailable("x"))["type"], "unavailable_error");
  EXPECT_EQ(shape(RequestError::queue_full("x"))["type"], "rate_limit_error");
}

TEST(Dump, KeepsNumbers) {
  const double logprob = -0.6931471805599453, tiny = 5e-324;
  EXPECT_EQ(as_read(JsonArray{logprob, tiny, 1e15, 1e14, 123456789012345680.0, -1.5e300, 0.1F, INT64_MIN, UINT64_MAX}),
            json::array({logprob, tiny, 1e15, 1e14, 123456789012345680.0, -1.5e300, 0.1F, INT64_MIN, UINT64_MAX}));
}

TEST(Dump, WritesNumbersAsPeopleDo) {
  EXPECT_EQ(dump(JsonArray{0.0, -1.0, 0.25, -12.5, 1e300, 7, nullptr, true}),
            "[0.0,-1.0,0.25,-12.5,1e+300,7,null,true]");
  EXPECT_EQ(dump(JsonObject{{"a\"", JsonArray()}, {"b", JsonObject()}}), R"({"a\"":[],"b":{}})");
}

TEST(Dump, SurvivesBrokenText) {
  EXPECT_EQ(dump(JsonObject{{"a", "\xff"}}), "{\"a\":\"\xef\xbf\xbd\"}");
}

}  // namespace
}  // namespace coppice::server
