// Anthropic's Messages API: requests and the shapes of answers. What its client makes of them:
// tests/e2e/test_anthropic.py.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/api/anthropic/anthropic_dialect.h"
#include "server/api/base/json_fields.h"
#include "server/api/parsed.h"

namespace coppice::server {
namespace {

using nlohmann::json;
using sampling::Finish;

GenerationRequest anthropic_request(const std::string& more) {
  return parse_anthropic_request(
      parse_body(R"({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}])" + more + "}"), kLimits);
}

std::string text_of(const Message& message) {
  std::string text;
  for (const ContentPart& part : message.content) text += part.text;
  return text;
}

TEST(AnthropicRequest, ReadsTurnsOfTools) {
  const auto r = parse_anthropic_request(parse_body(R"({"max_tokens": 9,
    "system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "A"}, {"type": "text", "text": "B"}],
    "messages": [
      {"role": "user", "content": [{"type": "text", "text": "add"}]},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "so"}, {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "2", "is_error": true}, {"type": "text", "text": "and?"}]},
      {"role": "system", "content": "soon"}, {"role": "user", "content": "now"}]})"),
                                         kLimits);
  std::vector<std::string> roles;
  for (const Message& message : r.messages) roles.push_back(message.role + ": " + text_of(message));
  EXPECT_EQ(roles, (std::vector<std::string>{"system: A\n\nB", "user: add", "assistant: so", "tool: Error: 2",
                                             "user: and?", "system: soon", "user: now"}));
  EXPECT_EQ(r.messages[2].reasoning, "hm");
  EXPECT_EQ(r.messages[2].calls.at(0).arguments, R"({"a":1})");
  EXPECT_EQ(r.messages[3].call_id, "t1");
}

TEST(AnthropicRequest, TakesWhatIsNoTextInAResultAndCallsThatWereCutOff) {
  const auto r = parse_anthropic_request(parse_body(R"({"max_tokens": 9, "messages": [
      {"role": "user", "content": ["a", {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": "{\"a\": \"cu"},
        {"type": "tool_use", "id": "t2", "name": "f", "input": []}, {"type": "tool_use", "id": "t3", "name": "f", "input": null}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}, {"type": "document"}]}]},
      {"role": "assistant", "content": null}, {"role": "user", "content": "c"}]})"),
                                         kLimits);
  EXPECT_EQ(text_of(r.messages[0]), "ab");
  EXPECT_TRUE(r.messages[1].calls.at(0).cut);
  EXPECT_EQ(r.messages[1].calls.at(0).arguments, R"({"a": "cu)");
  EXPECT_EQ(r.messages[1].calls.at(1).arguments, "{}");
  EXPECT_EQ(r.messages[1].calls.at(2).arguments, "{}");
  EXPECT_EQ(text_of(r.messages[2]),
            "[An image was here. It is left out: only text can be read.]"
            "[Something that is no text was here. It is left out.]");
  EXPECT_EQ(text_of(r.messages[3]), "");
}

TEST(AnthropicRequest, ReadsToolsAndTheirChoice) {
  const std::string tools =
      R"(, "tools": [{"name": "a", "input_schema": {"type": "object"}}, {"type": "web_search_20250305", "name": "web_search"}])";
  EXPECT_EQ(anthropic_request(tools).tools.specs.size(), 1U) << "what Anthropic hosts is left out";
  EXPECT_TRUE(anthropic_request(tools + R"(, "tool_choice": {"type": "any"})").tools.must_call);
  EXPECT_FALSE(anthropic_request(tools + R"(, "tool_choice": {"type": "none"})").tools.may_call);
  EXPECT_FALSE(anthropic_request(tools + R"(, "tool_choice": {"type": "auto", "disable_parallel_tool_use": true})")
                   .tools.parallel);
  EXPECT_EQ(anthropic_request(tools + R"(, "tool_choice": {"type": "tool", "name": "a"})").tools.only, "a");
  EXPECT_EQ(anthropic_request(R"(, "thinking": {"type": "disabled"})").tools.thinks, false);
  EXPECT_EQ(anthropic_request(R"(, "chat_template_kwargs": {"enable_thinking": false})").tools.thinks, false);
}

TEST(AnthropicRequest, AnAnswerThatHasBegunGoesOn) {
  const auto r = parse_anthropic_request(
      parse_body(
          R"({"max_tokens": 1, "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "We"}]})"),
      kLimits);
  EXPECT_EQ(r.turn_end, text::TurnEnd::kContinue);
}

TEST(AnthropicRequest, IgnoresWhatAgentsSendByDefault) {
  EXPECT_EQ(
      anthropic_request(
          R"(, "metadata": {"user_id": "u"}, "context_management": {"edits": []}, "output_config": {"effort": "low"}, "service_tier": "auto",
    "stop_sequences": ["x"], "stream": true)")
          .sampling.stop,
      std::vector<std::string>{"x"});
  const std::string form = R"(, "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}})";
  EXPECT_TRUE(anthropic_request(form).grammar);
  EXPECT_FALSE(anthropic_request(form + R"(, "tools": [{"name": "a"}], "tool_choice": {"type": "any"})").grammar)
      << "a forced call leaves no text to have a form";
}

TEST(AnthropicRequest, NamesWhatIsWrong) {
  const auto field = [](const std::string& body) -> std::string {
    try {
      parse_anthropic_request(parse_body(body), kLimits);
    } catch (const RequestError& e) {
      return e.field();
    }
    return "taken";
  };
  const std::string messages = R"("messages": [{"role": "user", "content": "hi"}])";
  EXPECT_EQ(field("{" + messages + "}"), "max_tokens");
  EXPECT_EQ(field(R"({"max_tokens": 1})"), "messages");
  EXPECT_EQ(field(R"({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image"}]}]})"),
            "messages[0].content[0].type");
  EXPECT_EQ(field(R"({"max_tokens": 1, "messages": [{"role": "bot", "content": "x"}]})"), "messages[0].role");
  EXPECT_EQ(field("{\"max_tokens\": 1, " + messages + R"(, "tools": [{"name": "a b"}]})"), "tools[0].name");
  EXPECT_EQ(field("{\"max_tokens\": 1, " + messages +
                  R"(, "tools": [{"name": "a"}], "tool_choice": {"type": "tool", "name": "b"}})"),
            "tool_choice.name");
  const auto beside = [&](const char* more) { return field("{\"max_tokens\": 1, " + messages + ", " + more + "}"); };
  EXPECT_EQ(beside(R"("stop_sequences": [""])"), "stop_sequences");
  EXPECT_EQ(beside(R"("stop_sequences": [1])"), "stop_sequences");
  EXPECT_EQ(beside(R"("mirostat": 2)"), "mirostat") << "what this server doesn't have isn't left out in silence";
  EXPECT_EQ(beside(R"("n": 2)"), "n");
  EXPECT_EQ(beside(R"("response_format": {"type": "json_object"})"), "response_format");
  EXPECT_EQ(beside(R"("mirostat": 0, "n": 1, "logprobs": false)"), "taken") << "they are off";
}

AnswerHead anthropic_head() {
  return {.id = "msg_1", .created = 1, .model = "m", .fingerprint = "b", .prompt_tokens = 10};
}

TEST(AnthropicAnswer, ABodyHasAllKindsOfBlocks) {
  AnthropicBody body(anthropic_head());
  body.delta({.text = "so", .reasoning = "hm"});
  body.delta({.calls = {{.index = 0, .id = "t", .name = "add", .arguments = "{\"a\""},
                        {.index = 0, .id = {}, .name = {}, .arguments = ":1}"}},
              .end = {{.finish = Finish::kStop}}});
  EXPECT_EQ(json::parse(body.end({.prompt_tokens = 10, .cached_tokens = 3, .completion_tokens = 4}, {})),
            json::parse(R"({"id": "msg_1", "type": "message", "role": "assistant", "model": "m",
    "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "so"},
                {"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}}],
    "stop_reason": "tool_use", "stop_sequence": null,
    "usage": {"input_tokens": 7, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3,
              "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}, "output_tokens": 4}})"));
}

TEST(AnthropicAnswer, AStreamOpensAndClosesEachBlock) {
  AnthropicStream stream(anthropic_head());
  std::string events = stream.delta({.text = "s", .reasoning = "hm"});
  events += stream.delta({.text = "o"});
  events += stream.delta({.calls = {{.index = 0, .id = "t", .name = "add", .arguments = "{}"},
                                    {.index = 1, .id = "u", .name = "now", .arguments = ""}},
                          .end = {{.finish = Finish::kStop}}});
  events += stream.end({.prompt_tokens = 10, .cached_tokens = 3, .completion_tokens = 4}, {});
  std::vector<std::string> kinds;
  for (std::size_t at = 0; at < events.size(); at = events.find("\n\n", at) + 2) {
    const std::size_t data = events.find("\ndata: ", at), end = events.find("\n\n", at);
    const json e = json::parse(events.substr(data + 7, end - data - 7));
    EXPECT_EQ(events.substr(at + 7, data - at - 7), e["type"].get<std::string>());
    std::string kind =
        e["type"].get<std::string>() + (e.contains("index") ? std::to_string(e["index"].get<int>()) : "");
    if (e.contains("content_block")) kind += e["content_block"]["type"].get<std::string>();
    kinds.push_back(kind);
  }
  EXPECT_EQ(kinds,
            (std::vector<std::string>{"message_start", "content_block_start0thinking", "content_block_delta0",
                                      "content_block_stop0", "content_block_start1text", "content_block_delta1",
                                      "content_block_delta1", "content_block_stop1", "content_block_start2tool_use",
                                      "content_block_delta2", "content_block_stop2", "content_block_start3tool_use",
                                      "content_block_stop3", "message_delta", "message_stop"}));
}

/// A call that max_tokens or a stop string cut: text, so that nobody runs it.
TEST(AnthropicAnswer, ACutCallIsText) {
  for (const bool stopped : {false, true}) {
    AnthropicBody body(anthropic_head());
    body.delta({.calls = {{.index = 0, .id = "t", .name = "now", .arguments = "{}"},
                          {.index = 1, .id = "u", .name = "add", .arguments = R"({"a": "cu)"}}});
    body.delta(
        {.end = {{.finish = stopped ? Finish::kStop : Finish::kLength, .stop = stopped ? "t" : "", .cut_call = true}}});
    const json message = json::parse(body.end({.prompt_tokens = 10, .cached_tokens = 3, .completion_tokens = 4}, {}));
    EXPECT_EQ(message["stop_reason"], stopped ? "stop_sequence" : "max_tokens");
    EXPECT_EQ(message["stop_sequence"], stopped ? json("t") : json());
    EXPECT_EQ(message["content"][0]["type"], "tool_use");
    EXPECT_EQ(message["content"][1], (json{{"type", "text"}, {"text", R"(add {"a": "cu)"}}));
  }
}

/// A stream has begun the call before it is cut. Its JSON comes as far as it was written, as Anthropic's own does.
TEST(AnthropicAnswer, AStreamEndsInACutCall) {
  for (const bool stopped : {false, true}) {
    AnthropicStream stream(anthropic_head());
    std::string events = stream.delta({.calls = {{.index = 0, .id = "u", .name = "add", .arguments = R"({"a": "cu)"}}});
    events += stream.delta(
        {.end = {{.finish = stopped ? Finish::kStop : Finish::kLength, .stop = stopped ? "t" : "", .cut_call = true}}});
    events += stream.end({.prompt_tokens = 10, .cached_tokens = 3, .completion_tokens = 4}, {});
    EXPECT_NE(events.find(R"("partial_json":"{\"a\": \"cu")"), events.npos) << events;
    EXPECT_NE(events.find("content_block_stop"), events.npos);
    EXPECT_NE(events.find(stopped ? R"("stop_reason":"stop_sequence","stop_sequence":"t")"
                                  : R"("stop_reason":"max_tokens","stop_sequence":null)"),
              events.npos)
        << events;
  }
}

TEST(AnthropicAnswer, ErrorsHaveItsNames) {
  const auto type = [](int status) {
    return json::parse(anthropic_error(RequestError(status, "no")))["error"]["type"].get<std::string>();
  };
  EXPECT_EQ(type(400), "invalid_request_error");
  EXPECT_EQ(type(401), "authentication_error");
  EXPECT_EQ(type(429), "rate_limit_error");
  EXPECT_EQ(type(503), "overloaded_error");
  EXPECT_EQ(type(500), "api_error");
}

}  // namespace
}  // namespace coppice::server
