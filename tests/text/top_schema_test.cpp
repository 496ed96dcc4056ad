// What stands at the top of a tool's schema: alternatives, references, allOf, nothing. Forced calls of every template
// of llama.cpp's sources are held to it. COPPICE_SEED=n replays a run, COPPICE_TEMPLATE=name looks at one template.
#include <gmock/gmock.h>

#include <boost/json/parse.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "grammar/schema/json_schema.h"
#include "text/fixtures.h"
#include "text/grammar_walk.h"
#include "text/read_answer.h"
#include "text/templates.h"
#include "text/tool_chat.h"

namespace coppice::text {
namespace {

using nlohmann::json;

struct TopSchema {
  const char *name, *schema;
  std::function<bool(const json&)> validates;
};

bool is_count(const json& call) {
  return call.size() == 1 && call.contains("n") && call["n"].is_number_integer() && call["n"] >= 3 && call["n"] <= 5;
}

bool is_place(const json& call) {
  return call.contains("to") && (call["to"] == "home" || call["to"] == "work") &&
         (call.size() == 1 || (call.size() == 2 && call.contains("by") && call["by"] == "bus"));
}

#define COUNT R"({"type":"object","properties":{"n":{"type":"integer","minimum":3,"maximum":5}},"required":["n"]})"
#define PLACE R"({"properties":{"to":{"enum":["home","work"]},"by":{"const":"bus"}},"required":["to"]})"

const std::vector<TopSchema>& top_schemas() {
  static const std::vector<TopSchema> all = {
      {"a reference", R"({"$ref":"#/$defs/count","$defs":{"count":)" COUNT "}}", is_count},
      {"alternatives", R"({"anyOf":[)" COUNT "," PLACE R"(,{"type":"null"}]})",
       [](const json& call) { return is_count(call) || is_place(call); }},
      {"alternatives by reference",
       R"({"oneOf":[{"$ref":"#/definitions/c"},{"$ref":"#/definitions/p"}],"definitions":{"c":)" COUNT R"(,"p":)" PLACE
       "}}",
       [](const json& call) { return is_count(call) || is_place(call); }},
      {"alternatives with another value of one name",
       R"({"type":"object","anyOf":[{"properties":{"kind":{"const":"id"},"key":{"type":"integer"}},"required":["kind","key"]},)"
       R"({"properties":{"kind":{"const":"name"},"key":{"enum":["a","b"]}},"required":["kind","key"]}]})",
       [](const json& call) {
         return call.size() == 2 && call.contains("key") && call.contains("kind") &&
                ((call["kind"] == "id" && call["key"].is_number()) ||
                 (call["kind"] == "name" && (call["key"] == "a" || call["key"] == "b")));
       }},
      {"all of two", R"({"allOf":[{"properties":{"n":{"minimum":3}}},)" COUNT "]}", is_count},
      {"no type", R"({"properties":{"n":{"type":"integer","minimum":3,"maximum":5}},"required":["n"]})", is_count},
      {"a required name without a schema", R"({"type":"object","required":["n"],"additionalProperties":{"enum":[4]}})",
       [](const json& call) {
         return call.contains("n") && std::ranges::all_of(call, [](const json& value) { return value == 4; });
       }},
      {"nothing", "{}", [](const json&) { return true; }},
      {"one object", R"({"const":{"n":4}})", is_count},
      {"values that are no strings",
       R"({"properties":{"a":{"anyOf":[{"type":"integer"},{"type":"null"}]},"b":{"$ref":"#/$defs/b"},"c":{"const":7}},)"
       R"("required":["a","b","c"],"$defs":{"b":{"type":"array","items":{"type":"boolean"},"maxItems":2}}})",
       [](const json& call) {
         return call.size() == 3 && (call["a"].is_null() || call["a"].is_number()) && call["b"].is_array() &&
                call["b"].size() <= 2 && call["c"] == 7;
       }},
      {"two of three",
       R"({"properties":{"n":{"type":"boolean"},"to":{"type":"boolean"},"by":{"type":"boolean"}},"minProperties":2,"maxProperties":2})",
       [](const json& call) { return call.size() == 2; }},
      {"at most three of seven, one required",
       R"({"properties":{"n":{"type":"boolean"},"to":{"type":"boolean"},"by":{"type":"boolean"},"a":{"type":"boolean"},)"
       R"("b":{"type":"boolean"},"c":{"type":"boolean"},"key":{"type":"boolean"}},"required":["b"],"minProperties":2,"maxProperties":3})",
       [](const json& call) { return call.contains("b") && call.size() >= 2 && call.size() <= 3; }},
      {"two of three in an object",
       R"({"properties":{"a":{"type":"object","properties":{"n":{"type":"boolean"},"to":{"type":"boolean"},"by":{"type":"boolean"}},)"
       R"("minProperties":2,"maxProperties":2}},"required":["a"]})",
       [](const json& call) { return call.contains("a") && call["a"].is_object() && call["a"].size() == 2; }},
  };
  return all;
}

/// Empty: a number of random walks are calls of the schema.
std::string fault_of(const ChatTemplate& chat, const std::string& source, const TopSchema& top,
                     std::mt19937_64& random) {
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "Go."}};
  const std::vector<ToolSpec> tools = {
      {"go", "Goes", top.schema, grammar::enforceable_arguments(boost::json::parse(top.schema))}};
  const ToolPrompt prompt =
      chat.render(ToolChat{.messages = messages, .tools = tools, .must_call = true, .only = "go", .thinks = false});
  if (!prompt.prompt.contains("go")) return "the tool is not told of";
  GrammarWalk walker(prompt, source, random, *test::vocabulary(), {"n", "to", "by", "kind", "key", "a", "b", "c"});
  int ended = 0;
  for (int i = 0; i < 300 && ended < 8; ++i) {
    const std::string text = walker.walk();
    if (text.empty()) continue;
    ++ended;
    const Answer all = read_answer(prompt.format, text, text.size());
    if (all.calls.size() != 1) return "no call: " + text;
    json call;  // of what this library can hold
    if (!boost::json::parse(all.calls[0].arguments).is_object()) return "no object: " + text;
    if (call = json::parse(all.calls[0].arguments, nullptr, false); call.is_discarded()) continue;
    if (!top.validates(call)) return text + " is read as " + all.calls[0].arguments;
  }
  return ended < 3 ? "walks that ended: " + std::to_string(ended) : "";
}

/// More arguments than bits: each once, the required ones always.
TEST(TopSchemas, ManyArgumentsAreHeld) {
  json schema = {{"type", "object"}, {"properties", json::object()}, {"additionalProperties", false}};
  for (int i = 0; i < 150; ++i) schema["properties"]["a" + std::to_string(i)] = {{"type", "boolean"}};
  // Alternatives, so that the library's parser asks for none.
  schema["anyOf"] = {{{"required", {"a70", "a149"}}}};
  const TopSchema many{"many", "", [](const json& call) { return call.contains("a70") && call.contains("a149"); }};
  const std::string text = schema.dump();
  std::mt19937_64 random = test::seeded_random();
  for (const std::string name : {"Qwen3-Coder", "GLM-4.6", "LFM2-8B-A1B", "google-gemma-4-31B-it"}) {
    const std::string source = text_of_template(name);
    const ChatTemplate chat(test::vocabulary(), source);
    TopSchema one = many;
    one.schema = text.c_str();
    const std::string fault = fault_of(chat, source, one, random);
    EXPECT_TRUE(fault.empty()) << name << ": " << fault;
  }
}

TEST(TopSchemas, AreHeldByEveryTemplate) {
  std::mt19937_64 random = test::seeded_random();
  for (const std::string& name : template_names()) {
    const std::string source = text_of_template(name);
    const ChatTemplate chat(test::vocabulary(), source);
    for (const TopSchema& top : top_schemas()) {
      std::string fault;
      try {
        fault = fault_of(chat, source, top, random);
      } catch (const std::exception& e) {
        fault = e.what();
      }
      EXPECT_TRUE(fault.empty()) << name << ", " << top.name << ": " << fault;
    }
  }
}

}  // namespace
}  // namespace coppice::text
