// OpenAI's Responses API: requests and the events of answers. What its client makes of them:
// tests/e2e/test_responses.py.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/api/base/json_fields.h"
#include "server/api/responses/responses_dialect.h"

namespace coppice::server {
namespace {

using nlohmann::json;
using sampling::Finish;

GenerationRequest responses_request(const std::string& fields) {
  static ResponseStore none(0);
  return parse_responses_request(parse_body("{" + fields + "}"), {.n_vocab = 100, .max_choices = 8}, none);
}

std::string field_of(const std::string& fields) {
  try {
    responses_request(fields);
  } catch (const RequestError& e) {
    return e.field();
  }
  return "taken";
}

TEST(ResponsesRequest, ItemsOfOneTurnAreOneMessage) {
  const auto r = responses_request(R"("instructions": "Be brief.", "input": [
    {"role": "developer", "content": "now"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
    {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{\"x\":1}"},
    {"type": "function_call_output", "call_id": "c1", "output": "1"},
    {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"}])");
  std::vector<std::string> messages;
  for (const Message& message : r.messages) {
    std::string text = message.role + ":";
    for (const ContentPart& part : message.content) text += part.text;
    for (const text::ChatCall& call : message.calls) text += " " + call.id + call.name + call.arguments;
    messages.push_back(text);
  }
  EXPECT_EQ(messages, (std::vector<std::string>{"system:Be brief.", "system:now", "user:ab",
                                                "assistant:so c1f{} c2g{\"x\":1}", "tool:1", "assistant: c3f{}"}));
  EXPECT_EQ(r.messages[3].reasoning, "hm");
  EXPECT_EQ(r.messages[4].call_id, "c1");
}

TEST(ResponsesRequest, TakesOddPartsAndCallsThatWereCutOff) {
  const auto r = responses_request(R"("input": [
    {"role": "user", "content": ["a", {"type": "input_text", "text": "b"}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\": \"cu"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_image", "image_url": "x"}]},
    {"role": "assistant", "content": null}])");
  ASSERT_EQ(r.messages.size(), 4U);
  EXPECT_EQ(r.messages[0].content.size(), 2U);
  EXPECT_EQ(r.messages[1].content.at(0).text, "No.");
  EXPECT_TRUE(r.messages[1].calls.at(0).cut);
  EXPECT_EQ(r.messages[2].content.at(0).text, "[An image was here. It is left out: only text can be read.]");
}

TEST(ResponsesRequest, WhatTheAnswerRepeatsIsKeptAsTextAndCounted) {
  const auto bytes = [](const std::string& fields) { return responses_request(R"("input": "x")" + fields).own_bytes; };
  const std::size_t none = bytes("");
  EXPECT_LT(none, 400U);
  const std::string junk(10'000, 'x');
  for (const std::string& field :
       {R"("instructions": ")" + junk + "\"", R"("text": {"junk": ")" + junk + "\"}",
        R"("reasoning": {"junk": ")" + junk + "\"}",
        R"("tools": [{"type": "function", "name": "f", "parameters": {}, "description": ")" + junk + "\"}]"}) {
    const std::size_t more = bytes(", " + field) - none;
    EXPECT_GE(more + 100, junk.size()) << field.substr(0, 20);
    EXPECT_LT(more, junk.size() + 200) << field.substr(0, 20);
  }
}

TEST(ResponsesRequest, MetadataIsAsSmallAsOpenAis) {
  const auto pairs = [](int n, std::size_t name, std::size_t value) {
    std::string list;
    for (int i = 0; i < n; ++i)
      list += fmt::format(R"({}"{:0>{}}": "{}")", i == 0 ? "" : ",", i, name, std::string(value, 'x'));
    return R"("input": "x", "metadata": {)" + list + "}";
  };
  EXPECT_TRUE(responses_request(pairs(16, 64, 512)).own);
  for (const std::string& bad :
       {pairs(17, 2, 1), pairs(1, 65, 1), pairs(1, 1, 513), std::string(R"("input": "x", "metadata": {"a": 1})"),
        std::string(R"("input": "x", "metadata": ["a"])")})
    EXPECT_EQ(field_of(bad), "metadata") << bad;
  std::string umlauts;
  for (int i = 0; i < 512; ++i) umlauts += "ä";
  EXPECT_TRUE(responses_request(R"("input": "x", "metadata": {"a": ")" + umlauts + "\"}").own) << "characters count";
}

TEST(ResponsesRequest, ReadsToolsEffortAndForm) {
  const std::string tools =
      R"("input": "x", "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}, {"type": "web_search"}])";
  EXPECT_EQ(responses_request(tools).tools.specs.size(), 1U) << "what OpenAI hosts is left out";
  EXPECT_TRUE(responses_request(tools + R"(, "tool_choice": "required")").tools.must_call);
  EXPECT_EQ(responses_request(tools + R"(, "tool_choice": {"type": "function", "name": "f"})").tools.only, "f");
  const Tools allowed =
      responses_request(tools + R"(, "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [
        {"type": "function", "name": "f"}, {"type": "web_search"}]})")
          .tools;
  EXPECT_EQ(allowed.allowed, std::vector<std::string>{"f"});
  EXPECT_TRUE(allowed.must_call);
  EXPECT_FALSE(responses_request(tools + R"(, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
        {"type": "web_search"}]})")
                   .tools.may_call)
      << "what is left runs elsewhere";
  EXPECT_TRUE(responses_request(tools + R"(, "text": {"format": {"type": "json_object"}})").grammar) << "beside calls";
  for (const char* taken : {"auto", "disabled"})
    EXPECT_EQ(field_of(std::string(R"("input": "x", "truncation": ")") + taken + "\""), "taken");
  EXPECT_EQ(field_of(R"("input": "x", "truncation": "all")"), "truncation");
  EXPECT_EQ(responses_request(R"("input": "x", "reasoning": {"effort": "none"})").tools.thinks, false);
  EXPECT_EQ(responses_request(R"("input": "x", "chat_template_kwargs": {"a": [1]})").tools.variables.at("a"), "[1]");
  EXPECT_TRUE(
      responses_request(
          R"("input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}})")
          .grammar);
  EXPECT_FALSE(
      responses_request(tools + R"(, "tool_choice": "required", "text": {"format": {"type": "json_object"}})").grammar)
      << "a forced call leaves no text to have a form";
  EXPECT_EQ(responses_request(R"("input": "x", "max_output_tokens": 7)").max_tokens, 7);
}

TEST(ResponsesRequest, NamesWhatIsWrong) {
  EXPECT_EQ(field_of(R"("model": "m")"), "input");
  EXPECT_EQ(field_of(R"("input": "x", "previous_response_id": "r")"), "previous_response_id");
  EXPECT_EQ(field_of(R"("input": "x", "background": true)"), "background");
  EXPECT_EQ(field_of(R"("input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": 7}])"),
            "input[0].arguments");
  EXPECT_EQ(field_of(R"("input": "x", "store": true, "include": [], "background": false, "prompt_cache_key": "k")"),
            "taken");
  for (const char* other : {"mirostat", "n", "max_tokens", "response_format", "messages"})
    EXPECT_EQ(field_of(std::string(R"("input": "x", ")") + other +
                       (std::string(other) == "messages"          ? R"(": [{"role": "user"}])"
                        : std::string(other) == "response_format" ? R"(": {"type": "json_object"})"
                                                                  : R"(": 2)")),
              other);
}

std::vector<std::string> kinds_of(const std::string& events) {
  std::vector<std::string> kinds;
  for (std::size_t at = 0; at < events.size(); at = events.find("\n\n", at) + 2) {
    const std::size_t data = events.find("\ndata: ", at), end = events.find("\n\n", at);
    const json e = json::parse(events.substr(data + 7, end - data - 7));
    EXPECT_EQ(e["sequence_number"], kinds.size());
    const std::string type = e["type"];
    kinds.push_back(type.substr(std::string("response.").size()) +
                    (e.contains("output_index") ? std::to_string(e["output_index"].get<int>()) : ""));
  }
  return kinds;
}

TEST(ResponsesAnswer, AStreamOpensAndClosesEachItem) {
  ResponsesAnswer answer({.id = "resp_1", .model = "m"}, true, {});
  std::string events = answer.delta({.text = "so", .reasoning = "hm"});
  events += answer.delta({.calls = {{.index = 0, .id = "c", .name = "f", .arguments = ""},
                                    {.index = 0, .id = {}, .name = {}, .arguments = "{}"}},
                          .end = {{.finish = Finish::kStop}}});
  events += answer.end({.prompt_tokens = 10, .cached_tokens = 3, .completion_tokens = 4}, {});
  EXPECT_EQ(kinds_of(events),
            (std::vector<std::string>{"created", "in_progress", "output_item.added0", "content_part.added0",
                                      "reasoning_text.delta0", "reasoning_text.done0", "content_part.done0",
                                      "output_item.done0", "output_item.added1", "content_part.added1",
                                      "output_text.delta1", "output_text.done1", "content_part.done1",
                                      "output_item.done1", "output_item.added2", "function_call_arguments.delta2",
                                      "function_call_arguments.done2", "output_item.done2", "completed"}));
}

TEST(ResponsesAnswer, TellsProgressAndTimingsToWhoAsks) {
  const engine::Usage usage{.prompt_tokens = 10, .completion_tokens = 1, .prompt_seconds = 0.5};
  ResponsesAnswer answer({.id = "resp_1", .model = "m"}, true, {}, R"("instructions":"Be brief.")", {},
                         {.progress = true, .timings = true});
  std::string events = answer.delta({.progress = {{.computed = 6, .usage = usage}}});
  EXPECT_EQ(kinds_of(events), (std::vector<std::string>{"created", "in_progress", "in_progress"}));
  EXPECT_EQ(events.find("Be brief."), events.find(R"("instructions")") + 16);
  EXPECT_LT(events.rfind("Be brief."), events.find("prompt_progress")) << "there may be many of these";
  EXPECT_NE(events.find(R"("prompt_progress":{"total":10,"cache":0,"processed":6)"), std::string::npos) << events;
  events = answer.delta({.text = "so", .so_far = usage, .end = {{.finish = Finish::kStop}}, .usage = usage});
  const std::size_t delta = events.find("output_text.delta");
  EXPECT_NE(events.find(R"("timings":{)", delta), std::string::npos) << events;
  EXPECT_NE(answer.end(usage, {}).find(R"("timings":{)"), std::string::npos);
}

TEST(ResponsesAnswer, ABodyHasItsItemsAndItsEnd) {
  ResponsesAnswer answer({.id = "resp_1", .model = "m"}, false, {});
  EXPECT_EQ(answer.delta({.text = "a"}), "");
  answer.delta({.text = "b", .end = {{.finish = Finish::kLength}}});
  const json body = json::parse(answer.end({.prompt_tokens = 10, .cached_tokens = 3, .completion_tokens = 4}, {}));
  EXPECT_EQ(body["status"], "incomplete");
  EXPECT_EQ(body["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(body["output"][0]["content"][0]["text"], "ab");
  EXPECT_EQ(body["output"][0]["status"], "incomplete") << "it was cut";
  EXPECT_EQ(body["usage"]["input_tokens_details"]["cached_tokens"], 3);
}

TEST(ResponsesAnswer, OnlyTheCutItemIsIncomplete) {
  for (const bool stream : {false, true}) {
    ResponsesAnswer answer({.id = "resp_1", .model = "m"}, stream, {});
    std::string events = answer.delta({.text = "so", .reasoning = "hm"});
    events += answer.delta({.calls = {{.index = 0, .id = "c", .name = "f", .arguments = "{\"a"}},
                            .end = {{.finish = Finish::kLength, .reasoning_tokens = 7}}});
    events += answer.end({.prompt_tokens = 10, .completion_tokens = 9}, {});
    const std::size_t last = stream ? events.rfind("data: ") + 6 : 0;
    json body = json::parse(events.substr(last));
    if (stream) {
      const std::size_t done = events.rfind("event: response.output_item.done");
      EXPECT_NE(events.find(R"("status":"incomplete")", done), std::string::npos);
      body = body["response"];
    }
    EXPECT_EQ(body["output"][0]["status"], "completed");
    EXPECT_EQ(body["output"][1]["status"], "completed");
    EXPECT_EQ(body["output"][2]["status"], "incomplete");
    EXPECT_EQ(body["usage"]["output_tokens_details"]["reasoning_tokens"], 7);
  }
}

TEST(ResponsesAnswer, AFailedStreamsLastItemIsIncomplete) {
  ResponsesAnswer answer({.id = "resp_1", .model = "m"}, true, {});
  answer.delta({.text = "so"});
  const std::string event = answer.error(RequestError(500, "broken"));
  EXPECT_EQ(json::parse(event.substr(event.find("data: ") + 6))["response"]["output"][0]["status"], "incomplete");
}

}  // namespace
}  // namespace coppice::server
