// Tools in OpenAI's requests, and calls in its answers.
#include "server/api/base/tool_fields.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>

#include "server/api/openai/openai_answer.h"
#include "server/api/parsed.h"

namespace coppice::server {
namespace {

using nlohmann::json;
using sampling::Finish;

#define TOOLS \
  R"(,"tools":[{"type":"function","function":{"name":"add","description":"Adds","parameters":{"type":"object"}}},{"type":"function","function":{"name":"now"}}])"

TEST(ToolFields, AreRead) {
  const Tools tools = chat(TOOLS).tools;
  ASSERT_EQ(tools.specs.size(), 2U);
  EXPECT_EQ(tools.specs[0].name, "add");
  EXPECT_EQ(tools.specs[0].description, "Adds");
  EXPECT_EQ(tools.specs[0].parameters, R"({"type":"object"})");
  EXPECT_EQ(tools.specs[1].parameters, R"({"type":"object","properties":{}})") << "it takes nothing";
  EXPECT_TRUE(tools.may_call && !tools.must_call && tools.parallel);
  EXPECT_FALSE(chat(TOOLS R"(,"parallel_tool_calls":false)").tools.parallel);
}

TEST(ToolFields, TheChoiceIsRead) {
  EXPECT_FALSE(chat(TOOLS R"(,"tool_choice":"none")").tools.may_call);
  EXPECT_TRUE(chat(TOOLS R"(,"tool_choice":"required")").tools.must_call);
  const Tools named = chat(TOOLS R"(,"tool_choice":{"type":"function","function":{"name":"now"}})").tools;
  EXPECT_TRUE(named.must_call);
  EXPECT_EQ(named.only, "now");
  EXPECT_FALSE(named.parallel) << "one call of it was asked for";
  EXPECT_EQ(chat(R"(,"tool_choice":"none","tools":[])").tools, Tools());
  EXPECT_EQ(chat(R"(,"tool_choice":"auto")").tools, Tools());
}

TEST(ToolFields, AFormIsTheTextsAndGoesWhereAToolMustBeCalled) {
  const std::string form = TOOLS R"(,"response_format":{"type":"json_object"},"tool_choice":)";
  EXPECT_FALSE(chat(form + R"("required")").grammar);
  EXPECT_FALSE(chat(form + R"({"type":"function","function":{"name":"now"}})").grammar);
  EXPECT_TRUE(chat(form + R"("none")").grammar);
  EXPECT_TRUE(chat(form + R"("auto")").grammar) << "the answer is a call or of the form";
}

TEST(ToolFields, SomeToolsMayBeAllowed) {
  const auto allowed = [](const std::string& mode, const std::string& tools) {
    return chat(TOOLS R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":")" + mode + R"(","tools":[)" +
                tools + "]}}")
        .tools;
  };
  const std::string now = R"({"type":"function","function":{"name":"now"}})";
  const Tools one = allowed("auto", now);
  EXPECT_EQ(one.allowed, std::vector<std::string>{"now"});
  EXPECT_EQ(one.specs.size(), 2U) << "the prompt tells of all";
  EXPECT_TRUE(one.may_call && !one.must_call && one.parallel);
  EXPECT_TRUE(allowed("required", now).must_call);
  EXPECT_THROW(allowed("any", now), RequestError);
  EXPECT_THROW(allowed("auto", ""), RequestError);
  EXPECT_THROW(allowed("auto", R"({"type":"function","function":{"name":"gone"}})"), RequestError);
}

TEST(ToolFields, TheTemplateHearsOfThinking) {
  const Tools tools =
      chat(R"(,"chat_template_kwargs":{"enable_thinking":false,"x":[1]},"reasoning_effort":"low")").tools;
  EXPECT_EQ(tools.thinks, false);
  EXPECT_EQ(tools.variables.at("x"), "[1]");
  EXPECT_EQ(tools.variables.at("reasoning_effort"), R"("low")");
  EXPECT_EQ(chat(R"(,"reasoning_effort":"none")").tools.thinks, false);
  EXPECT_EQ(chat("").tools.thinks, std::nullopt) << "the operator says";
  EXPECT_TRUE(chat(R"(,"reasoning_format":"none")").tools.keep_thoughts);
}

/// 45,000 variables took the worker 8 s.
TEST(ToolFields, VariablesOfTheTemplateAreFewAndNotReserved) {
  const auto variables = [](int n, std::size_t bytes) {
    std::string list;
    for (int i = 0; i < n; ++i)
      list += (i == 0 ? "\"a" : ",\"a") + std::to_string(i) + R"(":")" + std::string(bytes, 'x') + '"';
    return R"(,"chat_template_kwargs":{)" + list + "}";
  };
  EXPECT_EQ(chat(variables(64, 1000)).tools.variables.size(), 64U);
  for (const std::string& bad : {variables(65, 1), variables(1, 65536), variables(60, 1100)})
    expect_refused(Endpoint::kChat, {"{" MESSAGES + bad + "}", "chat_template_kwargs"});
  for (const std::string name : {"messages", "tools", "add_generation_prompt", "bos_token", "range"}) {
    const std::string body = "{" MESSAGES R"(,"chat_template_kwargs":{")" + name + R"(":[]}})";
    expect_refused(Endpoint::kChat, {body, ("chat_template_kwargs." + name).c_str()});
  }
}

class BadTools : public testing::TestWithParam<BadField> {};
TEST_P(BadTools, AreRefusedByName) {
  expect_refused(Endpoint::kChat, GetParam());
}
INSTANTIATE_TEST_SUITE_P(
    All, BadTools,
    testing::Values(
        BadField{"{" MESSAGES R"(,"tools":{}})", "tools", "invalid_type"},
        BadField{"{" MESSAGES R"(,"reasoning_format":"x"})", "reasoning_format", "invalid_value"},
        BadField{"{" MESSAGES R"(,"tools":[{"type":"function"}]})", "tools[0].function", "missing_field"},
        BadField{"{" MESSAGES R"(,"tools":[{"type":"web_search"}]})", "tools[0].type", "unsupported_parameter"},
        BadField{"{" MESSAGES R"(,"tools":[{"type":"function","function":{"name":"a b"}}]})", "tools[0].function.name"},
        BadField{"{" MESSAGES TOOLS R"(,"tool_choice":"maybe"})", "tool_choice"},
        BadField{"{" MESSAGES TOOLS R"(,"tool_choice":{"type":"function","function":{"name":"x"}}})", "tool_choice"},
        BadField{"{" MESSAGES R"(,"tool_choice":"required"})", "tool_choice"},
        BadField{"{" MESSAGES TOOLS R"(,"guided_regex":"a"})", "guided_regex", "unsupported_parameter"},
        BadField{"{" MESSAGES R"(,"tools":[{"function":{"name":"f"}},{"function":{"name":"f"}}]})",
                 "tools[1].function.name"},
        // Only what must be called is held to a grammar.
        BadField{
            "{" MESSAGES
            R"(,"tool_choice":"required","tools":[{"function":{"name":"f","parameters":{"not":{"type":"null"}}}}]})",
            "tools[0].function.parameters", "invalid_json_schema"},
        BadField{"{" MESSAGES
                 R"(,"tools":[{"function":{"name":"f","strict":true,"parameters":{"not":{"type":"null"}}}}]})",
                 "tools[0].function.parameters", "invalid_json_schema"}));

TEST(ToolFields, SchemasThatNoGrammarEnforcesAreTakenWhereNoneHoldsThem) {
  const Tools tools =
      chat(R"(,"tools":[{"function":{"name":"f","parameters":{"not":{"type":"null"}}}},{"function":{"name":"g"}}])")
          .tools;
  ASSERT_EQ(tools.specs.size(), 2U);
  EXPECT_EQ(tools.specs[0].held, R"({"type":"object","additionalProperties":true})");
  EXPECT_NE(tools.specs[1].held, "");
}

/// One of these failed every request that had the tool.
TEST(ToolFields, OddSchemasAreOfferedAsTheyAre) {
  for (const char* schema :
       {R"({"type":"object","properties":null})", R"({"properties":{"a":{"enum":null}}})",
        R"({"properties":{"a":{"type":"any"}}})", R"({"properties":{"a":{"$ref":"https://example.com/a"}}})",
        R"({"properties":{"a":{"type":"array","items":null}}})", R"({"properties":[]})", R"({"type":"function"})",
        R"({"properties":{"a":null}})", R"({"required":"a"})", R"({"anyOf":{}})"}) {
    const std::string tools =
        R"("tools":[{"type":"function","function":{"name":"f","parameters":)" + std::string(schema) + "}}]";
    const Tools taken = chat("," + tools).tools;
    EXPECT_EQ(taken.specs.at(0).held, R"({"type":"object","additionalProperties":true})") << schema;
    EXPECT_EQ(taken.specs.at(0).parameters, schema);
    EXPECT_THROW(chat("," + tools + R"(,"tool_choice":"required")"), RequestError) << schema;
  }
}

/// Whatever stands on top: a call's arguments are an object.
TEST(ToolFields, ArgumentsAreObjectsOfTheSchema) {
  const auto held = [](const std::string& schema, const std::string& choice) {
    return parse_body(
        chat(R"(,"tools":[{"type":"function","function":{"name":"f","parameters":)" + schema + "}}]" + choice)
            .tools.specs.at(0)
            .held);
  };
  const std::string forced = R"(,"tool_choice":"required")", any = R"({"type":"object","additionalProperties":true})";
  const std::string a =
      R"({"type":"object","properties":{"a":{"type":"null"}},"required":["a"],"additionalProperties":false})";
  for (const std::string& choice : {std::string(), forced}) {
    EXPECT_EQ(held("{}", choice), parse_body(any));
    EXPECT_EQ(held("true", choice), held(R"({"type":"object","properties":{}})", choice));
    EXPECT_EQ(held(R"({"properties":{"a":{"type":"null"}},"required":["a"]})", choice), parse_body(a));
    EXPECT_EQ(held(R"({"type":["object","null"],"properties":{"a":{"type":"null"}},"required":["a"]})", choice),
              parse_body(a));
    EXPECT_EQ(held(R"({"$ref":"#/definitions/x","definitions":{"x":)" + a + "}}", choice), parse_body(a));
    EXPECT_EQ(held(R"({"allOf":[{"properties":{"a":{"type":"null"}}},{"required":["a"]}]})", choice), parse_body(a));
    EXPECT_EQ(held(R"({"anyOf":[{"type":"null"},)" + a + "]}", choice), parse_body(a));
    EXPECT_EQ(held(R"({"anyOf":[)" + a + "," + any + "]}", choice), parse_body(R"({"anyOf":[)" + a + "," + any + "]}"));
  }
  for (const char* none :
       {R"({"type":"string"})", R"({"enum":[1]})", R"({"anyOf":[{"type":"null"},{"type":"array"}]})"}) {
    EXPECT_EQ(held(none, ""), parse_body(any)) << none;
    try {
      held(none, forced);
      ADD_FAILURE() << none;
    } catch (const RequestError& e) {
      EXPECT_THAT(e.what(), ::testing::HasSubstr("it allows no object")) << none;
    }
  }
}

TEST(ToolFields, SchemasAreHeldAsFarAsTheyFitIntoAGrammar) {
  const auto tool = [](const std::string& name) {
    return R"({"function":{"name":")" + name + R"(","parameters":{"type":"object","properties":{"x":{"const":")" +
           std::string(40000, 'x') + R"("}}}}})";
  };
  const std::string both = R"(,"tools":[)" + tool("f") + "," + tool("g") + "]";
  const Tools tools = chat(both).tools;
  EXPECT_NE(tools.specs[0].held, R"({"type":"object","additionalProperties":true})");
  EXPECT_EQ(tools.specs[1].held, R"({"type":"object","additionalProperties":true})");
  const Tools named = chat(both + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})").tools;
  EXPECT_NE(named.specs[1].held, "") << "it is the only one in the grammar";
}

/// The library looks for a field among all of its object.
TEST(ToolFields, ObjectsOfTooManyFieldsAreRefused) {
  const auto tools = [](int n_tools, int n_fields) {
    json list = json::array();
    for (int t = 0; t < n_tools; ++t) {
      json properties = json::object();
      for (int i = 0; i < n_fields; ++i) properties[fmt::format("k{}", i)] = true;
      list.push_back({{"type", "function"},
                      {"function",
                       {{"name", fmt::format("f{}", t)},
                        {"parameters", {{"type", "object"}, {"properties", std::move(properties)}}}}}});
    }
    return R"(,"tools":)" + list.dump();
  };
  const auto read = [&](int n_tools, int n_fields) {
    const std::string body = "{" MESSAGES + tools(n_tools, n_fields) + "}";
    return parse_openai_request(Endpoint::kChat, parse_body(body, json_limits(8192, 1)), kLimits);
  };
  EXPECT_EQ(read(1, 4000).tools.specs.size(), 1U);
  EXPECT_EQ(read(10, 1000).tools.specs.size(), 10U);
  for (const auto& [n_tools, n_fields] : {std::pair(1, 4200), std::pair(20, 1000)}) {
    try {
      read(n_tools, n_fields);
      ADD_FAILURE() << n_tools;
    } catch (const RequestError& e) {
      EXPECT_EQ(e.status(), 400);
      EXPECT_NE(std::string(e.what()).find("at most 16777216"), std::string::npos) << e.what();
    }
  }
}

TEST(ToolFields, MessagesCallAndAnswer) {
  const auto messages = parse_messages(parse_body(R"({"m": [
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": null, "reasoning_content": "easy", "tool_calls": [
      {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 2}"}},
      {"id": "c2", "function": {"name": "now", "arguments": {}}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "4"}]})")
                                           .at("m"));
  ASSERT_EQ(messages.size(), 3U);
  ASSERT_EQ(messages[1].calls.size(), 2U);
  EXPECT_EQ(messages[1].calls[0].name, "add");
  EXPECT_EQ(messages[1].calls[0].arguments, "{\"a\": 2}");
  EXPECT_EQ(messages[1].calls[1].arguments, "{}");
  EXPECT_EQ(messages[1].reasoning, "easy");
  EXPECT_EQ(messages[2].call_id, "c1");
}

/// Of a call whose arguments are this JSON.
text::ChatCall call_with(const std::string& arguments) {
  return parse_messages(
             parse_body(
                 R"({"m": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "add", "arguments": )" +
                 arguments + "}}]}]}")
                 .at("m"))
      .at(0)
      .calls.at(0);
}

TEST(ToolFields, CallsThatWereCutOffAreTaken) {
  for (const char* none : {R"("")", R"(" \n")", "null", R"("null")", "[]", R"("[]")", "{}", R"("{}")"}) {
    EXPECT_EQ(call_with(none).arguments, "{}") << none;
    EXPECT_FALSE(call_with(none).cut) << none;
  }
  for (const char* cut : {R"("{\"a\": \"cu")", R"("plain words")", R"("[1]")", R"("7")"})
    EXPECT_TRUE(call_with(cut).cut) << cut;
  EXPECT_EQ(call_with(R"("{\"a\": \"cu")").arguments, R"({"a": "cu)");
  EXPECT_THROW(call_with("7"), RequestError);
  EXPECT_THROW(call_with("[1]"), RequestError);
}

/// Infinity became `inf`, which is no JSON: answers that repeat a request couldn't be read, and templates refused it.
TEST(ToolFields, NumbersTooLargeForADoubleBecomeTheLargestOne) {
  const std::string most = R"({"a":[1.7976931348623157e+308,-1.7976931348623157e+308]})";
  EXPECT_EQ(call_with(R"({"a": [1e999, -1e999]})").arguments, most);
  const text::ChatCall call = call_with(R"("{\"a\": [1e999, -1e999]}")");
  EXPECT_EQ(call.arguments, most);
  EXPECT_FALSE(call.cut);
  EXPECT_EQ(call_with(R"("{\"a\":  1e30}")").arguments, R"({"a":  1e30})") << "as it came";
  EXPECT_EQ(chat(R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"a":[1e999,-1e999]}}}])")
                .tools.specs[0]
                .parameters,
            most);
  EXPECT_EQ(chat(R"(,"chat_template_kwargs":{"x":{"a":[1e999,-1e999]}})").tools.variables.at("x"), most);
}

AnswerHead tools_head() {
  return {.id = "an-id", .created = 1, .model = "m", .fingerprint = "b1"};
}

TEST(ToolCalls, AreInABody) {
  OpenAiBody body(Endpoint::kChat, tools_head(), false);
  body.delta({.reasoning = "h\"m", .calls = {{.index = 0, .id = "i0", .name = "add", .arguments = "{\"a\":"}}});
  body.delta({.calls = {{.index = 0, .id = {}, .name = {}, .arguments = "1}"},
                        {.index = 1, .id = "i1", .name = "now", .arguments = "{}"}},
              .end = {{.finish = Finish::kStop}}});
  const json choice = json::parse(body.end({1, 2, 0}, {}))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"],
            json::parse(R"({"role": "assistant", "content": null, "reasoning_content": "h\"m", "refusal": null,
    "tool_calls": [{"id": "i0", "type": "function", "function": {"name": "add", "arguments": "{\"a\":1}"}},
                   {"id": "i1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]})"));
}

TEST(ToolCalls, AreInAStream) {
  OpenAiStream stream(Endpoint::kChat, tools_head(), false, false);
  std::string events = stream.delta({.calls = {{.index = 0, .id = "i0", .name = "add", .arguments = ""}}});
  events += stream.delta(
      {.calls = {{.index = 0, .id = {}, .name = {}, .arguments = "{}"}}, .end = {{.finish = Finish::kStop}}});
  std::vector<json> deltas;
  std::string finish;
  for (std::size_t at = 0; at < events.size(); at = events.find("\n\n", at) + 2) {
    const json choice = json::parse(events.substr(at + 6, events.find("\n\n", at) - at - 6))["choices"][0];
    if (choice["delta"].contains("tool_calls")) deltas.push_back(choice["delta"]["tool_calls"]);
    if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
  }
  ASSERT_EQ(deltas.size(), 2U);
  EXPECT_EQ(
      deltas[0],
      json::parse(R"([{"index": 0, "id": "i0", "type": "function", "function": {"name": "add", "arguments": ""}}])"));
  EXPECT_EQ(deltas[1], json::parse(R"([{"index": 0, "function": {"arguments": "{}"}}])"));
  EXPECT_EQ(finish, "tool_calls");
}

}  // namespace
}  // namespace coppice::server
