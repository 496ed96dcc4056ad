// Forced calls through every template in llama.cpp's sources: what the grammar allows is read as one call that satisfies the schema,
// and the template takes it back with its result. COPPICE_SEED=n replays a run, COPPICE_TEMPLATE=name looks at one template.
#include <gmock/gmock.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "grammar/compiler.h"
#include "grammar/matcher.h"
#include "text/fixtures.h"
#include "text/mark_vocabulary.h"
#include "text/read_answer.h"
#include "text/tool_chat.h"

namespace coppice::text {
namespace {

using nlohmann::json;

std::vector<std::string> all_templates() {
  std::vector<std::string> names;
  const char* one = std::getenv("COPPICE_TEMPLATE");
  for (const auto& entry : std::filesystem::directory_iterator(COPPICE_TEMPLATES)) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() == ".jinja" && (one == nullptr || name == one)) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

std::string text_of_template(const std::string& name) {
  std::ifstream in(std::string(COPPICE_TEMPLATES) + "/" + name + ".jinja");
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<ToolSpec> weather_tools() {
  const std::string weather =
      R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":7},)"
      R"("unit":{"type":"string","enum":["C","F"]}},"required":["city","days"],"additionalProperties":false})";
  const std::string now = R"({"type":"object","properties":{}})";
  return {{"get_weather", "Weather of a city", weather, weather}, {"now", "The time", now, now}};
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

/// Bytes, and the marks that the template and the grammar speak of: a walk through bytes alone would never write one.
class Walker {
 public:
  /// `vocabulary`: that the prompt was made for.
  Walker(const ToolPrompt& prompt, const std::string& source, std::mt19937_64& random,
         const Vocabulary& vocabulary = *test::vocabulary())
      : prompt_(prompt), random_(random) {
    for (int byte = 0; byte < 256; ++byte) words_.pieces.emplace_back(1, static_cast<char>(byte));
    words_.pieces.emplace_back("");
    words_.ends = {256};
    std::set<std::string> marks = {"\n</", "Paris"};
    if (source.contains("]<]minimax[>["))
      for (const char* name : {"city", "days", "unit"}) marks.insert(std::string("]<]minimax[>[</") + name + ">");
    static const std::regex literal(R"re("((?:[^"\\\n]|\\.)+)")re"),
        tag(R"(</?[^\s<>{}'"]{1,30}>|<[^\s<>{}'"]{1,30}>|\[/?[A-Z_]+\])");
    for (auto it = std::sregex_iterator(prompt.grammar.begin(), prompt.grammar.end(), literal);
         it != std::sregex_iterator(); ++it) {
      std::string text;
      for (std::size_t i = 0; i < it->str(1).size(); ++i) {
        char c = it->str(1)[i];
        if (c == '\\') c = it->str(1)[++i] == 'n' ? '\n' : it->str(1)[i];
        text += c;
      }
      marks.insert(text);
    }
    for (auto it = std::sregex_iterator(source.begin(), source.end(), tag); it != std::sregex_iterator(); ++it)
      marks.insert(it->str());
    for (const std::string& mark : marks)
      if (mark.size() > 1) words_.pieces.push_back(mark);
    std::map<std::string, kv::Token> tokens;
    for (const auto& [rule, token] : prompt.tokens) {
      tokens[rule] = static_cast<kv::Token>(words_.pieces.size());
      names_[words_.pieces.size()] = vocabulary.piece(token, true);
      words_.pieces.emplace_back("");
    }
    compiler_ = std::make_unique<grammar::Compiler>(words_);
    grammar_ = compiler_->compile(
        {.kind = grammar::Kind::kGbnf, .text = prompt.grammar, .schemas = prompt.schemas, .tokens = tokens});
  }

  /// Empty: it came to no end. Throws where the grammar doesn't go on behind what has begun.
  std::string walk() {
    grammar::Matcher matcher(grammar_);
    if (!prompt_.begun.empty() && !matcher.accept_text(prompt_.begun))
      throw std::runtime_error("begun: " + prompt_.begun);
    std::string text;
    while (text.size() < 3000) {
      if (matcher.whole() && random_() % 2 == 0) return text;
      const auto mask = matcher.mask();
      const auto allowed = [&](std::size_t token) {
        return mask.empty() || (static_cast<unsigned>(mask[token / 32]) >> (token % 32) & 1U) != 0;
      };
      std::vector<std::size_t> letters, marks, ends, named;
      for (std::size_t token = 0; token < words_.pieces.size(); ++token) {
        if (!allowed(token)) continue;
        if (names_.contains(token)) named.push_back(token);
        if (token > 256 && !names_.contains(token)) marks.push_back(token);
        if (token == '\n' || (token >= ' ' && token < 127 && token != '\\')) letters.push_back(token);
        if (token == '"' || token == '}' || token == ',' || token == '\'') ends.push_back(token);
      }
      const auto& some = !named.empty() && (letters.empty() || random_() % 8 != 0)      ? named
                         : !marks.empty() && (letters.size() < 2 || random_() % 3 != 0) ? marks
                         : !ends.empty() && random_() % 2 == 0                          ? ends
                                                                                        : letters;
      if (some.empty()) return matcher.whole() ? text : "";
      const std::size_t token = some[random_() % some.size()];
      EXPECT_TRUE(matcher.accept(static_cast<kv::Token>(token)));
      text += names_.contains(token) ? names_.at(token) : words_.pieces[token];
    }
    return "";
  }

 private:
  const ToolPrompt& prompt_;
  std::mt19937_64& random_;
  grammar::Words words_;
  std::map<std::size_t, std::string> names_;  ///< of words that are control tokens
  std::unique_ptr<grammar::Compiler> compiler_;
  std::shared_ptr<const grammar::Grammar> grammar_;
};

/// What a template can do; each empty where it can.
struct Row {
  std::string forced, history, parallel;
  int ended = 0;
  std::size_t tokens = 0;  ///< that the grammars name
  bool thought = false;
  bool two = false;  ///< there may be two calls in an answer
};

std::string history_fault(const ChatTemplate& chat, const std::vector<ChatCall>& calls) {
  std::vector<ChatMessage> messages = {{.role = "user", .content = "Weather in Paris?"},
                                       {.role = "assistant", .content = "", .calls = calls}};
  for (const ChatCall& call : calls)
    messages.push_back({.role = "tool", .content = "sunny indeed", .call_id = call.id});
  try {
    const auto tools = weather_tools();
    const std::string prompt = chat.render(ToolChat{.messages = messages, .tools = tools}).prompt;
    if (prompt.find("get_weather") == prompt.npos || prompt.find("Paris") == prompt.npos) return "the call is lost";
    return prompt.find("sunny indeed") == prompt.npos ? "the result is lost" : "";
  } catch (const TemplateError& e) {
    return std::string(e.what()).substr(0, 300);
  }
}

/// `marked`: the template's marks are control tokens.
Row look_at(const std::string& name, std::mt19937_64& random, bool marked = false) {
  Row row;
  const std::string source = text_of_template(name);
  const auto vocabulary = marked ? test::mark_vocabulary(test::marks_in(source)) : test::vocabulary();
  const ChatTemplate chat(vocabulary, source);
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "Weather in Paris?"}};
  const auto tools = weather_tools();
  row.history = history_fault(chat, {{"call00001", "get_weather", R"({"city":"Paris","days":1})"}});
  row.parallel =
      history_fault(chat, {{"call00001", "get_weather", R"({"city":"Paris","days":1})"}, {"call00002", "now", "{}"}});
  const ToolPrompt several =
      chat.render(ToolChat{.messages = messages, .tools = tools, .must_call = true, .parallel = true});
  row.two = several.grammar != chat.render(ToolChat{.messages = messages, .tools = tools, .must_call = true}).grammar;
  for (const bool thinks : {true, false}) {
    std::string text;
    try {
      const ToolPrompt prompt = chat.render(
          ToolChat{.messages = messages, .tools = tools, .must_call = true, .only = "get_weather", .thinks = thinks});
      if (prompt.grammar.empty()) return row.forced = "no grammar", row;
      Walker walker(prompt, source, random, *vocabulary);
      row.tokens += prompt.tokens.size();
      int ended = 0;
      // A walk may leave thoughts out: some more until one has them.
      for (int i = 0; i < 200 && ended < (thinks && !row.thought ? 20 : marked ? 3 : 5); ++i) {
        text = walker.walk();
        if (text.empty()) continue;
        ++ended;
        const Answer all = read_answer(prompt.format, text, i % 2 == 0 ? text.size() : 1 + random() % 7);
        row.thought |= !all.reasoning.empty();
        std::string fault;
        if (all.calls.size() != 1)
          fault = std::to_string(all.calls.size()) + " calls, content: " + all.content;
        else if (all.calls[0].name != "get_weather")
          fault = "name " + all.calls[0].name;
        else
          fault = fault_of(json::parse(all.calls[0].arguments, nullptr, false));
        if (!fault.empty()) {
          row.forced = (thinks ? "thinking: " : "not thinking: ") + fault + " <<" + text + ">> " +
                       (all.calls.empty() ? "" : all.calls[0].arguments);
          return row;
        }
      }
      row.ended += ended;
      if (ended < 3) row.forced = "walks that ended: " + std::to_string(ended);
    } catch (const std::exception& e) {
      row.forced = (thinks ? "thinking: " : "not thinking: ") + std::string(e.what()).substr(0, 400);
      return row;
    }
  }
  return row;
}

TEST(AllTemplates, AForcedCallIsOneThatIsReadAndTakenBack) {
  std::mt19937_64 random = test::seeded_random();
  int thinking = 0;
  for (const std::string& name : all_templates()) {
    const Row row = look_at(name, random);
    EXPECT_EQ(row.forced, "") << name;
    EXPECT_EQ(row.history, "") << name;
    EXPECT_TRUE(row.parallel.empty() || !row.two) << name << ": " << row.parallel;
    thinking += row.thought ? 1 : 0;
    std::printf("| %s | %s | %s |\n", name.c_str(), row.two ? "yes" : "one", row.thought ? "yes" : "");
  }
  if (std::getenv("COPPICE_TEMPLATE") == nullptr) EXPECT_GE(thinking, 43);
}

/// A model writes its marks as the tokens that they are.
TEST(AllTemplates, MarksOfACallMayBeTokens) {
  std::mt19937_64 random = test::seeded_random();
  int with_tokens = 0;
  for (const std::string& name : all_templates()) {
    const Row row = look_at(name, random, true);
    EXPECT_EQ(row.forced, "") << name;
    with_tokens += row.tokens > 0 ? 1 : 0;
  }
  if (std::getenv("COPPICE_TEMPLATE") == nullptr) EXPECT_GE(with_tokens, 60);
}

/// Two calls come where the template takes two back, and one where one is asked for.
TEST(AllTemplates, AnAnswerHasAsManyCallsAsAreAskedFor) {
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "Weather in Paris?"}};
  const auto tools = weather_tools();
  std::mt19937_64 random = test::seeded_random();
  for (const std::string& name : all_templates()) {
    const std::string source = text_of_template(name);
    const ChatTemplate chat(test::vocabulary(), source);
    const ToolPrompt prompt =
        chat.render(ToolChat{.messages = messages, .tools = tools, .must_call = true, .parallel = false});
    Walker walker(prompt, source, random);
    for (int i = 0, ended = 0; i < 100 && ended < 3; ++i) {
      const std::string text = walker.walk();
      if (text.empty()) continue;
      ++ended;
      EXPECT_EQ(read_answer(prompt.format, text, 9).calls.size(), 1U) << name << ": " << text;
    }
  }
}

AnswerParts read_all(const std::shared_ptr<const AnswerFormat>& format, const std::string& text, bool held) {
  AnswerReader reader(format, held);
  AnswerParts all = reader.push(text);
  AnswerParts rest = reader.finish();
  all.content += rest.content;
  for (CallPart& call : rest.calls) all.calls.push_back(std::move(call));
  all.cut = rest.cut;
  return all;
}

/// Where no grammar holds a call, what is none is text.
TEST(AnswerReader, PassesOnOnlyArgumentsThatAreJson) {
  const ChatTemplate chat(test::vocabulary(), text_of_template("GLM-4.6"));
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "Weather in Paris?"}};
  const auto tools = weather_tools();
  const ToolPrompt prompt = chat.render(ToolChat{.messages = messages, .tools = tools});
  const std::string begin = "\nLook.<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n";
  const std::string days = "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n";
  const AnswerParts good = read_all(prompt.format, begin + days + "</tool_call>", false);
  ASSERT_EQ(good.calls.size(), 1U);
  EXPECT_EQ(good.calls[0].arguments, R"({"city":"Paris","days":3})");
  for (const std::string& end : {days + " </tool_call>", days, std::string("<arg_key>da")}) {
    const AnswerParts bad = read_all(prompt.format, begin + end, false);
    EXPECT_TRUE(bad.calls.empty()) << end;
    EXPECT_NE(bad.content.find("<arg_value>Paris"), bad.content.npos) << end << ": " << bad.content;
  }
}

/// Where one does, they come as they are written, and it is told that the last one has no end.
TEST(AnswerReader, SaysThatACallWasCut) {
  const ChatTemplate chat(test::vocabulary(), text_of_template("Qwen-Qwen3-0.6B"));
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "Weather in Paris?"}};
  const auto tools = weather_tools();
  const ToolPrompt prompt = chat.render(ToolChat{.messages = messages, .tools = tools, .must_call = true});
  const std::string call =
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}";
  EXPECT_TRUE(read_all(prompt.format, call.substr(0, call.size() - 10), true).cut);
  EXPECT_FALSE(read_all(prompt.format, call + "\n</tool_call>", true).cut);
}

}  // namespace
}  // namespace coppice::text
