// Tools through templates of many makers, which lie in llama.cpp's sources: what a grammar of calls allows, the reader
// of calls understands, however the text is cut into pieces. COPPICE_SEED=n replays a run.
#include "text/tool_chat.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "grammar/compiler.h"
#include "grammar/matcher.h"
#include "support/sanitized.h"
#include "text/bounded_schemas.h"
#include "text/fixtures.h"
#include "text/grammar_walk.h"
#include "text/read_answer.h"

namespace coppice::text {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::vector<ToolSpec>& tools() {
  static std::vector<ToolSpec> all = {
      {"get_weather", "Weather of a city",
       R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":7}},"required":["city","days"]})"},
      {"add_numbers", "Adds",
       R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"required":["a","b"]})"}};
  for (ToolSpec& tool : all) tool.held = tool.parameters;
  return all;
}

const std::vector<ChatMessage>& question() {
  static const std::vector<ChatMessage> messages = {{.role = "user", .content = "Weather in Paris?"}};
  return messages;
}

/// The file's own where `name` is empty.
std::string source(const std::string& name) {
  if (name.empty()) return "";
  std::ifstream in(std::string(COPPICE_TEMPLATES) + "/" + name);
  EXPECT_TRUE(in) << name;
  return {std::istreambuf_iterator<char>(in), {}};
}

const grammar::Compiler& bytes_compiler() {
  static const grammar::Compiler compiler([] {
    grammar::Words words{.ends = {256}};
    for (int byte = 0; byte < 256; ++byte) words.pieces.emplace_back(1, static_cast<char>(byte));
    words.pieces.emplace_back("");
    return words;
  }());
  return compiler;
}

/// A text that the grammar allows, behind what has begun; empty: it came to no end.
std::string walk(const ToolPrompt& prompt, std::mt19937_64& random) {
  grammar::Matcher matcher(bytes_compiler().compile(source_of(prompt)));
  EXPECT_TRUE(prompt.begun.empty() || matcher.accept_text(prompt.begun)) << prompt.begun;
  std::string text;
  while (text.size() < 4000) {
    if (matcher.whole() && random() % 4 == 0) return text;
    const auto mask = matcher.mask();
    const auto allowed = [&](int token) {
      return (static_cast<unsigned>(mask[static_cast<std::size_t>(token) / 32]) >> (token % 32) & 1U) != 0;
    };
    std::vector<int> letters;
    for (int byte = ' '; byte < 127; ++byte)
      if (byte != '\\' && allowed(byte)) letters.push_back(byte);
    if (letters.empty() && allowed('\n')) letters.push_back('\n');
    if (letters.empty()) return matcher.whole() ? text : "";
    // Strings and numbers should end soon.
    int byte = letters[random() % letters.size()];
    for (const char end : {'"', ',', '}', '<'})
      if (allowed(end) && random() % 3 == 0) byte = end;
    EXPECT_TRUE(matcher.accept(byte));
    text.push_back(static_cast<char>(byte));
  }
  return "";
}

class OfTemplate : public testing::TestWithParam<const char*> {
 protected:
  ChatTemplate chat_{test::vocabulary(), source(GetParam())};
};

struct Thinks {
  const char* name;
  bool thinks;
  ThoughtTags tags;
};

TEST(Thoughts, AreFoundInTheTemplate) {
  const Thinks cases[] = {
      {"Qwen-Qwen3-0.6B.jinja", true, {"<think>", "</think>", false}},
      {"Qwen-Qwen3-0.6B.jinja", false, {}},  // the prompt has closed it
      {"Qwen-QwQ-32B.jinja", true, {"<think>", "</think>", true}},
      {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja", true, {"<think>", "</think>", true}},
      {"meta-llama-Llama-3.3-70B-Instruct.jinja", true, {}},
      {"", true, {}},
  };
  for (const Thinks& c : cases) {
    const ChatTemplate chat(test::vocabulary(), source(c.name));
    const ToolPrompt prompt = chat.render(ToolChat{.messages = question(), .thinks = c.thinks});
    EXPECT_EQ(prompt.thoughts, c.tags) << c.name << ": " << prompt.thoughts.begin << prompt.thoughts.open;
    EXPECT_EQ(prompt.format != nullptr, !c.tags.end.empty()) << c.name;
    if (!prompt.format) continue;
    const Answer all = read_answer(prompt.format, (c.tags.open ? "" : c.tags.begin) + "\nHm.\n</think>\n\nRain.", 3);
    EXPECT_EQ(all.reasoning, "Hm.") << c.name;
    EXPECT_EQ(all.content, "Rain.") << c.name;
  }
}

/// Where all of an answer is marked, the library reads it.
TEST(Thoughts, OfOtherMarksAreRead) {
  const ChatTemplate chat(test::vocabulary(), source("openai-gpt-oss-120b.jinja"));
  const ToolPrompt prompt = chat.render(ToolChat{.messages = question()});
  ASSERT_NE(prompt.format, nullptr);
  const Answer all = read_answer(
      prompt.format, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Rain.", 4);
  EXPECT_EQ(all.reasoning, "Hm.");
  EXPECT_EQ(all.content, "Rain.");
}

TEST_P(OfTemplate, TellsOfTools) {
  const ToolPrompt prompt = chat_.render(ToolChat{.messages = question(), .tools = tools()});
  EXPECT_THAT(prompt.prompt, HasSubstr("get_weather"));
  EXPECT_THAT(prompt.prompt, HasSubstr("add_numbers"));
  EXPECT_NE(prompt.format, nullptr);
  const ToolPrompt mute = chat_.render(ToolChat{.messages = question(), .tools = tools(), .may_call = false});
  EXPECT_THAT(mute.prompt, HasSubstr("get_weather"));
  if (mute.format == nullptr) return;  // one that reads reasoning finds no calls
  EXPECT_TRUE(
      read_answer(mute.format, R"(<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>)", 9).calls.empty());
}

TEST_P(OfTemplate, TellsOfCallsAndResults) {
  std::vector<ChatMessage> messages = question();
  messages.push_back(
      {.role = "assistant", .content = "", .calls = {{"call00001", "get_weather", R"({"city":"Paris","days":1})"}}});
  messages.push_back({.role = "tool", .content = "sunny indeed", .call_id = "call00001"});
  const ToolPrompt prompt = chat_.render(ToolChat{.messages = messages, .tools = tools()});
  EXPECT_THAT(prompt.prompt, HasSubstr("Paris"));
  EXPECT_THAT(prompt.prompt, HasSubstr("sunny indeed"));
}

TEST_P(OfTemplate, WhatTheGrammarAllowsIsRead) {
  std::mt19937_64 random = test::seeded_random();
  const ToolPrompt prompt =
      chat_.render(ToolChat{.messages = question(), .tools = tools(), .must_call = true, .only = "get_weather"});
  ASSERT_FALSE(prompt.grammar.empty());
  int ended = 0;
  for (int i = 0; i < 2000 && ended < 10; ++i) {  // many a walk has no end
    const std::string text = walk(prompt, random);
    if (text.empty()) continue;
    ++ended;
    const Answer whole = read_answer(prompt.format, text, text.size());
    ASSERT_EQ(whole.calls.size(), 1U) << text;
    EXPECT_EQ(whole.calls[0].name, "get_weather") << text;
    const json arguments = json::parse(whole.calls[0].arguments, nullptr, false);
    ASSERT_TRUE(arguments.is_object()) << text << "\n" << whole.calls[0].arguments;
    EXPECT_TRUE(arguments.contains("city") && arguments["days"].is_number_integer()) << text;
    const Answer pieces = read_answer(prompt.format, text, 1 + random() % 7);
    EXPECT_TRUE(whole == pieces) << text << "\nwhole: " << whole.content << "\nin pieces: " << pieces.content << " and "
                                 << pieces.calls.size() << " calls: " << whole.calls[0].arguments << " and "
                                 << (pieces.calls.empty() ? "" : pieces.calls[0].name + pieces.calls[0].arguments);
  }
  EXPECT_EQ(ended, 10);
}

TEST_P(OfTemplate, CallsAreRestrictedToWhatIsAllowed) {
  std::mt19937_64 random = test::seeded_random();
  const std::vector<std::string> allowed = {"add_numbers"};
  ToolChat chat{.messages = question(), .tools = tools(), .must_call = true};
  const ToolPrompt all = chat_.render(chat);
  chat.allowed = allowed;
  const ToolPrompt prompt = chat_.render(chat);
  EXPECT_EQ(prompt.prompt, all.prompt) << "it shares its cache with other turns";
  int ended = 0;
  for (int i = 0; i < 2000 && ended < 3; ++i) {
    const std::string text = walk(prompt, random);
    if (text.empty()) continue;
    ++ended;
    for (const auto& call : read_answer(prompt.format, text, text.size()).calls)
      EXPECT_EQ(call.name, "add_numbers") << text;
  }
  EXPECT_EQ(ended, 3);
}

/// The library's grammar of schemas would let any text be a city here.
TEST_P(OfTemplate, ASchemaThatCanBeHeldIsHeld) {
  std::mt19937_64 random = test::seeded_random();
  const std::string city =
      R"({"type":"object","properties":{"city":{"type":"string","pattern":"^\\d{3}$"}},"required":["city"]})";
  const std::string pair = R"({"type":"object","properties":{"p":{"type":"array","maxItems":1}}})";
  const std::vector<ToolSpec> held = {{"get_weather", "Weather of a city", city, city}, {"pair", "A pair", pair, pair}};
  const ToolPrompt prompt =
      chat_.render(ToolChat{.messages = question(), .tools = held, .must_call = true, .parallel = false});
  int cities = 0;
  for (int i = 0; i < 2000 && cities < 3; ++i) {
    const std::string text = walk(prompt, random);
    const Answer all = read_answer(prompt.format, text, 5);
    if (text.empty() || all.calls.empty() || all.calls[0].name != "get_weather") continue;
    ++cities;
    const json arguments = json::parse(all.calls[0].arguments, nullptr, false);
    ASSERT_TRUE(arguments.is_object()) << text;
    EXPECT_EQ(arguments["city"].get<std::string>().find_first_not_of("0123456789"), std::string::npos) << text;
    EXPECT_EQ(arguments["city"].get<std::string>().size(), 3U) << text;
  }
  EXPECT_EQ(cities, 3);
}

/// Each argument has marks of its own: schemas of values are rules of their own, texts of an enumeration stand as they
/// are.
TEST(HeldSchemas, AreOfEachArgumentWhereTheseAreWrittenOneByOne) {
  const std::string schema =
      R"({"type":"object","properties":{"unit":{"type":"string","enum":["C","F"]},"days":{"type":"integer","maximum":7}}})";
  const std::vector<ToolSpec> held = {{"get_weather", "Weather", schema, schema}};
  const ChatTemplate chat(test::vocabulary(), source("Qwen3-Coder.jinja"));
  const ToolPrompt prompt = chat.render(ToolChat{.messages = question(), .tools = held, .must_call = true});
  ASSERT_EQ(prompt.schemas.size(), 1U);
  EXPECT_EQ(prompt.schemas.begin()->second, R"({"type":"integer","maximum":7})");
  EXPECT_THAT(prompt.grammar, HasSubstr(R"("C" | "F")"));
}

/// Seed-OSS's template compares each property's type, and fails where there is none, or where it is a list.
TEST(Tools, PropertiesWithoutATypeAreTaken) {
  const std::string schema =
      R"({"type":"object","properties":{"any":{},"kind":{"const":"trip"},"n":{"anyOf":[{"type":"integer"},{"type":"null"}]},)"
      R"("to":{"type":["string","null"]},"p":{"description":"no schema"},"x":true},"required":["kind"]})";
  const std::string any = R"({"type":"object","additionalProperties":true})";
  const std::vector<ToolSpec> odd = {{"plan", "Plans", schema, any}, {"now", "The time", R"({"type":"object"})", any}};
  const ChatTemplate chat(test::vocabulary(), source("ByteDance-Seed-OSS.jinja"));
  for (const bool forced : {false, true}) {
    const ToolPrompt prompt = chat.render(ToolChat{.messages = question(), .tools = odd, .must_call = forced});
    EXPECT_THAT(prompt.prompt, HasSubstr("- any (Any)"));
    EXPECT_THAT(prompt.prompt, HasSubstr("- kind (str)"));
    EXPECT_THAT(prompt.prompt, HasSubstr("- n (int)"));
    EXPECT_THAT(prompt.prompt, HasSubstr("- to (str)"));
    EXPECT_NE(prompt.format, nullptr);
  }
}

/// Command R+'s template fails with lists and objects: what they are is told in words.
TEST(Tools, ListsAndObjectsAreTakenWhereTheTemplateFailsWithThem) {
  const std::string schema =
      R"({"type":"object","properties":{"days":{"type":"array","items":{"type":"integer"},"description":"When."},"city":{"type":"string"},)"
      R"("to":{"anyOf":[{"type":"object","properties":{"x":{"type":"boolean"}}},{"type":"null"}]}},"required":["days"]})";
  const std::vector<ToolSpec> held = {{"plan", "Plans", schema, schema}};
  const ChatTemplate chat(test::vocabulary(), source("CohereForAI-c4ai-command-r-plus-tool_use.jinja"));
  for (const bool forced : {false, true}) {
    const ToolPrompt prompt = chat.render(ToolChat{.messages = question(), .tools = held, .must_call = forced});
    EXPECT_THAT(prompt.prompt, HasSubstr(R"(When. JSON schema: {"type":"array")"));
    EXPECT_THAT(prompt.prompt, HasSubstr(R"("x":{"type":"boolean"})"));
    EXPECT_NE(prompt.format, nullptr);
  }
}

/// Strings stand without quotes there: what a schema bounds is held, and a long text may still have any character.
TEST(HeldSchemas, StringsWithoutQuotesAreHeld) {
  const std::string schema =
      R"({"type":"object","properties":{"code":{"type":"string","pattern":"[A-Z]{2}-[0-9]{3}"},)"
      R"("day":{"type":"string","format":"date"},"to":{"type":"string","format":"email"},)"
      R"("title":{"type":"string","minLength":2,"maxLength":5},"text":{"type":"string","minLength":1},)"
      R"("mixed":{"enum":["a",1,null]}},"required":["code","day","to","title","text","mixed"]})";
  const std::vector<ToolSpec> held = {{"plan", "Plans", schema, schema}};
  const ChatTemplate chat(test::vocabulary(), source("Qwen3-Coder.jinja"));
  const ToolPrompt prompt = chat.render(ToolChat{.messages = question(), .tools = held, .must_call = true});
  const auto grammar = bytes_compiler().compile(source_of(prompt));
  std::map<std::string, std::string> good = {{"code", "AB-123"},  {"day", "2026-11-27"},           {"to", "a.b@c.de"},
                                             {"title", "<b>é\""}, {"text", "<a>\n\t</parameter>"}, {"mixed", "a"}};
  const auto takes = [&](const std::string& name, const std::string& value) {
    std::string text = "<tool_call>\n<function=plan>\n";
    for (const char* argument : {"code", "day", "to", "title", "text", "mixed"})
      text += std::string("<parameter=") + argument + ">\n" + (name == argument ? value : good.at(argument)) +
              "\n</parameter>\n";
    text += "</function>\n</tool_call>";
    grammar::Matcher matcher(grammar);
    if (!matcher.accept_text(prompt.begun + text) || !matcher.whole()) return false;
    const Answer all = read_answer(prompt.format, text, 7);
    EXPECT_EQ(all.calls.size(), 1U) << text;
    EXPECT_EQ(json::parse(all.calls.at(0).arguments).at(name), value);
    return true;
  };
  for (const auto& [name, value] : good) EXPECT_TRUE(takes(name, value)) << name;
  const std::pair<const char*, const char*> bad[] = {
      {"code", "AB-12"}, {"code", "AB-123 "}, {"day", "2026-13-01"}, {"day", ""},    {"to", "a.b"},
      {"title", "a"},    {"title", "abcdef"}, {"text", ""},          {"mixed", "1"}, {"mixed", "null"}};
  for (const auto& [name, value] : bad) EXPECT_FALSE(takes(name, value)) << name << ": " << value;
}

/// Of patterns that it can't read the library writes lines of its own to standard error, with the client's words in
/// them.
TEST(Tools, PatternsAreNoneOfTheLibrarysBusiness) {
  const std::string schema =
      R"({"type":"object","properties":{"pattern":{"type":"array","items":{"type":"string","pattern":"^\\d\n$"}}},"required":["pattern"]})";
  const std::vector<ToolSpec> held = {{"find", "Finds", schema, schema}};
  for (const char* name :
       {"Qwen-Qwen3-0.6B.jinja", "Qwen3-Coder.jinja", "google-gemma-2-2b-it.jinja", "openai-gpt-oss-120b.jinja",
        "Kimi-K2-Instruct.jinja", "LFM2-8B-A1B.jinja", "Kimi-K3.jinja"}) {
    const ChatTemplate chat(test::vocabulary(), source(name));
    testing::internal::CaptureStderr();
    const ToolPrompt prompt = chat.render(ToolChat{.messages = question(), .tools = held, .must_call = true});
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << name;
    EXPECT_THAT(prompt.prompt + prompt.grammar, HasSubstr("pattern"));
  }
}

std::string with_properties(int n) {
  json properties = json::object();
  for (int i = 0; i < n; ++i) properties[fmt::format("k{}", i)] = json::object();
  return json{{"type", "object"}, {"properties", std::move(properties)}}.dump();
}

/// The library's own grammar of 3,000 took a minute, and then all of the stack.
TEST(Tools, OfManyPropertiesTakeMoments) {
  const int n = test::kEmulated ? 300 : 3000;  // or the template's time is over
  for (const char* name : {"Qwen-Qwen3-0.6B.jinja", "openai-gpt-oss-120b.jinja", "Kimi-K2-Instruct.jinja",
                           "google-gemma-4-31B-it.jinja", "LFM2-8B-A1B.jinja"}) {
    const ChatTemplate chat(test::vocabulary(), source(name));
    const std::string any = R"({"type":"object","additionalProperties":true})";
    const std::vector<ToolSpec> many = {{"find", "Finds", with_properties(n), any}};
    const std::clock_t begin = std::clock();
    try {
      EXPECT_THAT(chat.render(ToolChat{.messages = question(), .tools = many}).prompt,
                  HasSubstr(fmt::format("k{}", n - 1)))
          << name;
    } catch (const TemplateError& e) {  // the template itself takes too much
      EXPECT_THAT(e.what(), HasSubstr("the template makes too many")) << name;
    }
    const auto seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    EXPECT_LT(seconds, test::kSlow ? 60 : 5) << name;
  }
}

TEST(Tools, OfAThousandPropertiesAreReadOneByOne) {
  const ChatTemplate chat(test::vocabulary(), source("Qwen3-Coder.jinja"));
  const int n = test::kEmulated ? 200 : 1000;  // or the template's time is over
  const std::string schema = with_properties(n);
  const std::vector<ToolSpec> many = {{"find", "Finds", schema, schema}};
  const ToolPrompt prompt = chat.render(ToolChat{.messages = question(), .tools = many});
  const Answer answer = read_answer(
      prompt.format,
      fmt::format("<tool_call>\n<function=find>\n<parameter=k{}>\n1\n</parameter>\n</function>\n</tool_call>", n - 1),
      5);
  ASSERT_EQ(answer.calls.size(), 1U);
  EXPECT_EQ(json::parse(answer.calls[0].arguments), json({{fmt::format("k{}", n - 1), 1}}));
}

TEST(BoundedSchemas, LoseAllButNamesAndThenThese) {
  constexpr int kMost = static_cast<int>(SchemaBounds::kProperties);
  const std::string large =
      json{{"type", "object"}, {"properties", {{"a", {{"enum", std::vector<int>(SchemaBounds::kValues)}}}}}}.dump();
  const std::string small = R"({"type":"object","properties":{"b":{"type":"string"}},"required":["b"]})";
  std::vector<ToolSpec> tools = {{"small", "", small},
                                 {"large", "", large},
                                 {"longest", "", std::string(SchemaBounds::kBytes, ' ') + small},
                                 {"many", "", with_properties(kMost + 10)},
                                 {"late", "", small},
                                 {"none", "", R"({"type":"object"})"}};
  bound_schemas(tools);
  EXPECT_EQ(tools[0].parameters, small);
  EXPECT_EQ(json::parse(tools[1].parameters), json::parse(R"({"type":"object","properties":{"a":{}}})"));
  EXPECT_EQ(json::parse(tools[2].parameters), json::parse(R"({"type":"object","properties":{}})"));
  EXPECT_EQ(json::parse(tools[3].parameters).at("properties").size(), SchemaBounds::kProperties - 2);
  EXPECT_EQ(json::parse(tools[4].parameters), json::parse(R"({"type":"object","properties":{}})"));
  EXPECT_EQ(tools[5].parameters, R"({"type":"object"})");
}

/// What bounds thoughts looks for them at the answer's beginning.
TEST(Tools, NothingStandsBeforeTheThoughtsOfAForcedCall) {
  std::mt19937_64 random = test::seeded_random();
  const std::string text = source("openai-gpt-oss-120b.jinja");
  const ChatTemplate chat(test::vocabulary(), text);
  const ToolPrompt prompt = chat.render(ToolChat{.messages = question(), .tools = tools(), .must_call = true});
  GrammarWalk walker(prompt, text, random);
  EXPECT_NE(walker.walk("<|channel|>analysis<|message|>Hm.<|end|>"), "");
  EXPECT_EQ(walker.walk("<|channel|>commentary<|channel|>"), "");
}

/// Their templates write no thoughts back, and so the library doesn't know of them.
TEST(Tools, ThoughtsThatTheLibraryDoesNotKnowAreRead) {
  const std::string arguments = R"({"city":"Paris","days":1})";
  struct Known {
    std::string name, thoughts, text, call;
  };
  for (const Known& known :
       {Known{"Apertus-8B-Instruct.jinja", "<|inner_prefix|>Hm.<|inner_suffix|>", "Sunny.",
              R"(<|tools_prefix|>[{"get_weather": )" + arguments + "}]<|tools_suffix|>"},
        Known{"upstage-Solar-Open-100B.jinja", "<|think|>Hm.<|end|><|begin|>assistant", "<|content|>Sunny.<|end|>",
              "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>" + arguments +
                  "<|tool_call:end|>"}}) {
    SCOPED_TRACE(known.name);
    const ChatTemplate chat(test::vocabulary(), source(known.name));
    for (const bool with_tools : {false, true}) {
      const ToolPrompt prompt = chat.render(
          ToolChat{.messages = question(), .tools = with_tools ? tools() : std::vector<ToolSpec>(), .thinks = true});
      for (const std::size_t piece : {1UL, 7UL, 1000UL}) {
        const Answer text = read_answer(prompt.format, known.thoughts + known.text, piece);
        EXPECT_EQ(text.reasoning, "Hm.");
        EXPECT_EQ(text.content, "Sunny.");
        if (!with_tools) continue;
        const Answer call = read_answer(prompt.format, known.thoughts + known.call, piece);
        EXPECT_EQ(call.reasoning, "Hm.");
        EXPECT_EQ(call.content, "");
        ASSERT_EQ(call.calls.size(), 1U);
        EXPECT_EQ(json::parse(call.calls[0].arguments), json::parse(arguments));
      }
    }
  }
}

TEST_P(OfTemplate, OtherTextIsContent) {
  const ToolPrompt prompt = chat_.render(ToolChat{.messages = question(), .tools = tools()});
  const Answer plain = read_answer(prompt.format, "It is sunny there.", 3);
  EXPECT_EQ(plain.content, "It is sunny there.");
  EXPECT_TRUE(plain.calls.empty());
}

INSTANTIATE_TEST_SUITE_P(Makers, OfTemplate,
                         testing::Values("", "Qwen-Qwen2.5-7B-Instruct.jinja", "Qwen-Qwen3-0.6B.jinja",
                                         "meta-llama-Llama-3.2-3B-Instruct.jinja",
                                         "mistralai-Mistral-Nemo-Instruct-2407.jinja", "ibm-granite-granite-4.0.jinja",
                                         "HuggingFaceTB-SmolLM3-3B.jinja", "google-gemma-2-2b-it.jinja"),
                         [](const auto& param) {
                           std::string name = *param.param == '\0' ? "TheFiles" : param.param;
                           std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
                           return name;
                         });

}  // namespace
}  // namespace coppice::text
