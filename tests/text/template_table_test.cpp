// What coppice does with every template in llama.cpp's sources: docs/templates.md is made of this. What a grammar
// allows is read as one call, which is held to its schema; the template takes it back with its result; an answer goes
// on where Jinja2 ends it. COPPICE_SEED=n replays a run, COPPICE_TEMPLATE=name looks at one template,
// COPPICE_REWRITE_DOCS=1 writes the table anew.
#include <gmock/gmock.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "grammar/schema/json_schema.h"
#include "text/fixtures.h"
#include "text/grammar_walk.h"
#include "text/mark_vocabulary.h"
#include "text/read_answer.h"
#include "text/templates.h"
#include "text/tool_chat.h"

namespace coppice::text {
namespace {

using nlohmann::json;

const std::vector<ChatMessage>& question_of_table() {
  static const std::vector<ChatMessage> messages = {{.role = "user", .content = "Weather in Paris?"}};
  return messages;
}

/// What the schema of get_weather says.
std::string fault_of(const json& arguments) {
  if (!arguments.is_object()) return "no object";
  for (const auto& [name, value] : arguments.items()) {
    if (name == "city"   ? !value.is_string()
        : name == "days" ? !value.is_number_integer() || value < 1 || value > 7
                         : name != "unit" || (value != "C" && value != "F"))
      return name;
  }
  return !arguments.contains("city") ? "no city" : !arguments.contains("days") ? "no days" : "";
}

// --- forced calls ---

struct Forced {
  std::string fault;
  bool thinks = false;     ///< thoughts may come first
  bool two = false;        ///< there may be two calls in an answer
  std::size_t tokens = 0;  ///< that the grammars name
};

std::string fault_of_answer(const Answer& all) {
  if (all.calls.size() != 1) return std::to_string(all.calls.size()) + " calls, content: " + all.content;
  if (!all.content.empty() && all.content.find_first_not_of(" \t\r\n") == all.content.npos)
    return "blanks beside the call: '" + all.content + "'";
  if (all.calls[0].name != "get_weather") return "name " + all.calls[0].name;
  return fault_of(json::parse(all.calls[0].arguments, nullptr, false));
}

/// A model's vocabulary and template.
struct Model {
  explicit Model(const std::string& name, bool marked = false)
      : source(text_of_template(name)),
        vocabulary(marked ? test::mark_vocabulary(test::marks_in(source)) : test::vocabulary()),
        chat(vocabulary, source) {}
  std::string source;
  std::shared_ptr<const Vocabulary> vocabulary;
  ChatTemplate chat;
};

/// How an answer begins that thinks. Empty: in marks that only the library knows. None: no answer does.
std::optional<std::string> first_thoughts(const Model& model) {
  const ToolPrompt prompt = model.chat.render(ToolChat{.messages = question_of_table(), .thinks = true});
  if (!prompt.format) return {};
  if (prompt.thoughts.end.empty()) return "";
  return (prompt.thoughts.open ? "" : prompt.thoughts.begin) + "Hm,";
}

/// Of `n` random walks; with `thinks`, which is set where an answer may, more until one does.
std::string fault_of_walks(const Model& model, int n, bool asked, std::mt19937_64& random, Forced& to) {
  const auto tools = weather_tools();
  const ToolPrompt prompt = model.chat.render(ToolChat{
      .messages = question_of_table(), .tools = tools, .must_call = true, .only = "get_weather", .thinks = asked});
  if (prompt.grammar.empty()) return "no grammar";
  to.tokens += prompt.tokens.size();
  GrammarWalk walker(prompt, model.source, random, *model.vocabulary);
  std::optional<std::string> thoughts = asked ? first_thoughts(model) : std::nullopt;
  if (thoughts && !prompt.ahead.end.empty()) thoughts = prompt.ahead.begin + "Hm,";
  int ended = 0;
  for (int i = 0; i < 200 && ended < (thoughts && !to.thinks ? (thoughts->empty() ? 60 : 8) : n); ++i) {
    const std::string text = walker.walk(i % 2 == 0 ? "" : thoughts.value_or(""));
    if (text.empty()) continue;
    ++ended;
    const Answer all = read_answer(prompt.format, text, i % 2 == 0 ? text.size() : 1 + random() % 7);
    to.thinks |= !all.reasoning.empty();
    if (const std::string fault = fault_of_answer(all); !fault.empty())
      return fault + " <<" + text + ">> " + (all.calls.empty() ? "" : all.calls[0].arguments);
  }
  return ended < 3 ? "walks that ended: " + std::to_string(ended) : "";
}

Forced forced_calls(const Model& model, int n, std::mt19937_64& random) {
  Forced found;
  const auto tools = weather_tools();
  ToolChat asked{.messages = question_of_table(), .tools = tools, .must_call = true};
  const std::string one = model.chat.render(asked).grammar;
  asked.parallel = true;
  found.two = model.chat.render(asked).grammar != one;
  for (const bool thinks : {true, false}) {
    if (!found.fault.empty()) break;
    try {
      found.fault = fault_of_walks(model, n, thinks, random, found);
    } catch (const std::exception& e) {
      found.fault = std::string(e.what()).substr(0, 400);
    }
    if (!found.fault.empty()) found.fault.insert(0, thinks ? "thinking: " : "not thinking: ");
  }
  return found;
}

// --- schemas ---

bool is_text_like(const json& value, const char* pattern) {
  return value.is_string() && std::regex_match(value.get<std::string>(), std::regex(pattern));
}

/// In characters; -1: it is no string.
long length_of(const json& value) {
  if (!value.is_string()) return -1;
  return std::ranges::count_if(value.get_ref<const std::string&>(), [](char c) { return (c & 0xc0) != 0x80; });
}

/// A keyword, the schema of an argument with it, and what validates.
struct Keyword {
  const char *name, *schema;
  std::function<bool(const json&)> validates;
};

const std::vector<Keyword>& keywords() {
  static const std::vector<Keyword> all = {
      {"enumerations", R"({"type":"string","enum":["metric","us","h\u00e9h\u00e9"]})",
       [](const json& v) { return v == "metric" || v == "us" || v == "h\u00e9h\u00e9"; }},
      {"constants", R"({"const":"trip"})", [](const json& v) { return v == "trip"; }},
      {"patterns", R"re({"type":"string","pattern":"^[A-Z]{2}-[0-9]{3}$"})re",
       [](const json& v) { return is_text_like(v, "[A-Z]{2}-[0-9]{3}"); }},
      {"lengths", R"({"type":"string","minLength":7,"maxLength":8})",
       [](const json& v) { return length_of(v) == 7 || length_of(v) == 8; }},
      {"least lengths", R"({"type":"string","minLength":40})", [](const json& v) { return length_of(v) >= 40; }},
      {"formats", R"({"type":"string","format":"date"})",
       [](const json& v) { return is_text_like(v, "[0-9]{4}-[01][0-9]-[0-3][0-9]"); }},
      {"choices of types", R"({"anyOf":[{"type":"string","enum":["all","none"]},{"type":"null"}]})",
       [](const json& v) { return v == "all" || v == "none" || v.is_null(); }},
      {"integers", R"({"type":"integer","minimum":41,"maximum":43})",
       [](const json& v) { return v.is_number_integer() && v >= 41 && v <= 43; }},
      {"numbers", R"({"type":"number","minimum":0.25,"maximum":0.5})",
       [](const json& v) { return v.is_number() && v >= 0.25 && v <= 0.5; }},
      {"lists", R"({"type":"array","items":{"type":"string","enum":["a","b"]},"minItems":1,"maxItems":2})",
       [](const json& v) {
         return v.is_array() && !v.empty() && v.size() <= 2 &&
                std::ranges::all_of(v, [](const json& one) { return one == "a" || one == "b"; });
       }},
      {"objects",
       R"re({"type":"object","properties":{"name":{"type":"string","pattern":"^[a-c]{3}$"},"n":{"type":"integer","maximum":9}},)re"
       R"re("required":["name"],"additionalProperties":false})re",
       [](const json& v) {
         if (!v.is_object() || !v.contains("name") || !is_text_like(v["name"], "[a-c]{3}")) return false;
         return v.size() == 1 || (v.size() == 2 && v.contains("n") && v["n"].is_number_integer() && v["n"] <= 9);
       }},
  };
  return all;
}

std::string argument_of(std::size_t keyword) {
  return "a" + std::to_string(keyword);
}

/// A tool with one argument for each of the first keywords, all required.
ToolSpec strict_tool(std::size_t n) {
  json schema = {{"type", "object"}, {"properties", json::object()}, {"additionalProperties", false}};
  for (std::size_t i = 0; i < n; ++i) {
    schema["properties"][argument_of(i)] = json::parse(keywords()[i].schema);
    schema["required"].push_back(argument_of(i));
  }
  return {"plan", "Plans", schema.dump(), grammar::enforceable_schema(boost::json::parse(schema.dump()))};
}

/// Which of the first `n` keywords are broken in random walks. Throws what says that calls are not read.
std::vector<bool> broken_keywords(const Model& model, std::size_t n, std::mt19937_64& random) {
  const std::vector<ToolSpec> tools = {strict_tool(n)};
  const ToolPrompt prompt = model.chat.render(
      ToolChat{.messages = question_of_table(), .tools = tools, .must_call = true, .only = "plan", .thinks = false});
  std::vector<std::string> arguments;
  for (std::size_t i = 0; i < n; ++i) arguments.push_back(argument_of(i));
  GrammarWalk walker(prompt, model.source, random, *model.vocabulary, arguments);
  std::vector<bool> broken(n);
  int ended = 0;
  for (int i = 0; i < 200 && ended < 8; ++i) {
    const std::string text = walker.walk();
    if (text.empty()) continue;
    ++ended;
    const Answer all = read_answer(prompt.format, text, text.size());
    const json call = all.calls.empty() ? json() : json::parse(all.calls[0].arguments, nullptr, false);
    if (!call.is_object() || call.size() != n) throw std::runtime_error("<<" + text + ">> " + call.dump());
    for (std::size_t k = 0; k < n; ++k) broken[k] = broken[k] || !keywords()[k].validates(call[argument_of(k)]);
    if (std::getenv("COPPICE_TEMPLATE") != nullptr) std::printf("%s\n%s\n", text.c_str(), call.dump().c_str());
  }
  if (ended < 3) throw std::runtime_error("walks that ended: " + std::to_string(ended));
  return broken;
}

/// "all", or what calls are not held to.
std::string schema_held(const Model& model, std::mt19937_64& random) {
  constexpr std::size_t kNested = 2;
  std::string refused;
  std::vector<bool> broken;
  try {
    broken = broken_keywords(model, keywords().size(), random);
  } catch (const TemplateError&) {
    broken = broken_keywords(model, keywords().size() - kNested, random);
    refused = "; the template fails with lists and objects";
  }
  std::string held = "all";
  for (std::size_t k = 0; k < broken.size(); ++k)
    if (broken[k]) held += (held == "all" ? " but " : ", ") + std::string(keywords()[k].name);
  return held + refused;
}

// --- histories ---

struct History {
  std::string fault, form;
};

std::string history_fault(const ChatTemplate& chat, const std::vector<ChatCall>& calls, ToolPrompt& rendered) {
  std::vector<ChatMessage> messages = question_of_table();
  messages.push_back({.role = "assistant", .content = "", .calls = calls});
  for (const ChatCall& call : calls)
    messages.push_back({.role = "tool", .content = "sunny indeed", .call_id = call.id});
  try {
    const auto tools = weather_tools();
    rendered = chat.render(ToolChat{.messages = messages, .tools = tools});
    const std::string& prompt = rendered.prompt;
    if (prompt.find("get_weather") == prompt.npos || prompt.find("Par") == prompt.npos) return "the call is lost";
    return prompt.find("sunny indeed") == prompt.npos ? "the result is lost" : "";
  } catch (const TemplateError& e) {
    return std::string(e.what()).substr(0, 300);
  }
}

/// A call, and one that was cut off, each with its result.
History history(const Model& model) {
  History found;
  ToolPrompt whole, cut;
  found.fault = history_fault(model.chat, {{"call_0123456789", "get_weather", R"({"city":"Paris","days":1})"}}, whole);
  if (found.fault.empty())
    found.fault = history_fault(
        model.chat, {{.id = "call00001", .name = "get_weather", .arguments = R"({"city":"Par)", .cut = true}}, cut);
  const bool plain = whole.prompt.find("You can call functions. To call one, write") != whole.prompt.npos;
  found.form = plain || !model.source.contains("tool_calls") ? "as text" : "as calls";
  if (whole.call_ids == CallIds::kNine) found.form += ", ids of nine letters";
  if (whole.call_ids == CallIds::kFunction) found.form += ", ids with names";
  return found;
}

std::string parallel_fault(const ChatTemplate& chat) {
  ToolPrompt rendered;
  return history_fault(chat, {{"call00001", "get_weather", R"({"city":"Paris","days":1})"}, {"call00002", "now", "{}"}},
                       rendered);
}

// --- answers that go on, thoughts ---

/// How an answer begins that goes on, beside what the jinja2 package makes of it (every_template_test.cpp).
std::string continued(const ChatTemplate& chat, const std::string& name) {
  static const json cases = [] {
    std::ifstream in = test::open_fixture("continued_prompts.json");
    return json::parse(in);
  }();
  const std::string question = question_of_table()[0].content;
  const auto tail = [&](const std::string& content, const std::string& reasoning) {
    const std::vector<ChatMessage> messages = {
        question_of_table()[0], {.role = "assistant", .content = content, .calls = {}, .reasoning = reasoning}};
    const std::string prompt = chat.render(messages, TurnEnd::kContinue);
    return prompt.substr(prompt.rfind(question) + question.size());
  };
  int compared = 0, blanks = 0;
  for (const json& c : cases) {
    if (c["template"] != name + ".jinja") continue;
    ++compared;
    const std::string expected = c["tail"].get<std::string>();
    const std::string got = tail(c["content"].get<std::string>(), c["reasoning"].get<std::string>());
    if (got == expected) continue;
    if (got != expected.substr(0, expected.find_last_not_of(' ') + 1)) return "no: " + got;
    ++blanks;
  }
  if (compared == 0) return tail("Well, it is", "").ends_with("Well, it is") ? "behind the text" : "no";
  return blanks > 0 ? "as Jinja2, without its last blanks" : "as Jinja2";
}

std::string thinking(const ChatTemplate& chat, bool before_calls) {
  const ToolPrompt thinks = chat.render(ToolChat{.messages = question_of_table(), .thinks = true}),
                   not_thinks = chat.render(ToolChat{.messages = question_of_table(), .thinks = false});
  if (!thinks.format) return "no";
  std::string text = "in marks";
  if (!thinks.thoughts.end.empty()) {
    text = "`" + thinks.thoughts.begin + "`" + (thinks.thoughts.open ? ", opened" : "");
    if (!not_thinks.format) text += ", can be off";
  }
  return before_calls ? text : text + ", not before forced calls";
}

// --- the table ---

constexpr const char* kHead = "| parallel | history | continue | thinking | templates |\n|---|---|---|---|---|\n";

std::string documented(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(TemplateTable, IsTheDocumentedOne) {
  std::mt19937_64 random = test::seeded_random();
  std::vector<std::pair<std::string, std::string>> rows;  // what they say, and of which templates
  for (const std::string& name : template_names()) {
    SCOPED_TRACE(name);
    const Model model(name);
    const Forced forced = forced_calls(model, 5, random);
    EXPECT_EQ(forced.fault, "");
    const History past = history(model);
    EXPECT_EQ(past.fault, "");
    const std::string two = parallel_fault(model.chat);
    EXPECT_TRUE(two.empty() || !forced.two) << two;
    std::string held = "nothing";
    EXPECT_NO_THROW(held = schema_held(model, random));
    EXPECT_EQ(held, "all");
    const std::string goes_on = continued(model.chat, name);
    EXPECT_FALSE(goes_on.starts_with("no")) << goes_on;
    const std::string cells = std::string("| ") + (forced.two ? "yes" : "one") + " | " + past.form + " | " + goes_on +
                              " | " + thinking(model.chat, forced.thinks) + " | ";
    const auto row = std::ranges::find(rows, cells, &std::pair<std::string, std::string>::first);
    if (row == rows.end()) {
      rows.emplace_back(cells, name);
    } else {
      row->second += ", " + name;
    }
  }
  std::string table = kHead;
  for (const auto& [cells, names] : rows) table += cells + names + " |\n";
  if (!all_templates()) {
    std::printf("%s", table.c_str());
    return;
  }
  const std::string path = std::string(COPPICE_DOCS) + "/templates.md", text = documented(path);
  const std::size_t begin = text.find(kHead);
  ASSERT_NE(begin, text.npos) << "docs/templates.md has no table";
  const std::size_t last = text.rfind("|\n");
  ASSERT_TRUE(last != text.npos && last > begin);
  const std::size_t end = last + 2;
  const std::string known = text.substr(begin, end - begin);
  if (std::getenv("COPPICE_REWRITE_DOCS") != nullptr) {
    ASSERT_FALSE(HasFailure());
    std::ofstream(path) << text.substr(0, begin) << table << text.substr(end);
    return;
  }
  EXPECT_EQ(table, known) << "docs/templates.md says otherwise. If the change is meant:\n"
                             "COPPICE_REWRITE_DOCS=1 ctest --test-dir build -R '^text_test_'";
}

/// A model writes its marks as the tokens that they are.
TEST(TemplateTable, MarksOfACallMayBeTokens) {
  std::mt19937_64 random = test::seeded_random();
  int with_tokens = 0;
  for (const std::string& name : template_names()) {
    const Forced forced = forced_calls(Model(name, true), 3, random);
    EXPECT_EQ(forced.fault, "") << name;
    with_tokens += forced.tokens > 0 ? 1 : 0;
  }
  if (all_templates()) EXPECT_GE(with_tokens, 60);
}

}  // namespace
}  // namespace coppice::text
