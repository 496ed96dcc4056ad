// Random texts that the grammar of a call allows.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "grammar/compiler.h"
#include "grammar/matcher.h"
#include "text/fixtures.h"
#include "text/mark_vocabulary.h"
#include "text/tool_chat.h"

namespace coppice::text {

/// What holds the calls.
inline grammar::Source source_of(const ToolPrompt& prompt) {
  grammar::Source source{
      .text = prompt.grammar, .schemas = prompt.schemas, .tokens = prompt.tokens, .spaced = prompt.spaced};
  for (const auto& [rule, text] : prompt.bare) source.bare[rule] = {text.schema, text.pattern, text.ends};
  return source;
}

inline std::vector<ToolSpec> weather_tools() {
  const std::string weather =
      R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":7},)"
      R"("unit":{"type":"string","enum":["C","F"]}},"required":["city","days"],"additionalProperties":false})";
  const std::string now = R"({"type":"object","properties":{}})";
  return {{"get_weather", "Weather of a city", weather, weather}, {"now", "The time", now, now}};
}

/// Bytes, and the marks that the template and the grammar speak of: a walk through bytes alone would never write one.
class GrammarWalk {
 public:
  /// `vocabulary`: that the prompt was made for. `arguments`: their names.
  GrammarWalk(const ToolPrompt& prompt, const std::string& source, std::mt19937_64& random,
              const Vocabulary& vocabulary = *test::vocabulary(),
              const std::vector<std::string>& arguments = {"city", "days", "unit"})
      : prompt_(prompt), random_(random) {
    for (int byte = 0; byte < 256; ++byte) words_.pieces.emplace_back(1, static_cast<char>(byte));
    words_.pieces.emplace_back("");
    words_.ends = {256};
    std::set<std::string> marks = {"\n</", "Paris"};
    // Marks that templates put together.
    if (source.contains("]<]minimax[>["))
      for (const std::string& name : arguments) marks.insert("]<]minimax[>[</" + name + ">");
    if (source.contains("\uff5cDSML\uff5c")) marks.insert("</\uff5cDSML\uff5cparameter>");
    static const std::regex tag(R"(</?[^\s<>{}'"]{1,30}>|<[^\s<>{}'"]{1,30}>|\[/?[A-Z_]+\])");
    marks.merge(test::words_of(prompt.grammar));
    for (auto it = std::sregex_iterator(source.begin(), source.end(), tag); it != std::sregex_iterator(); ++it)
      marks.insert(it->str());
    for (const std::string& mark : marks)
      if (mark.size() > 1) words_.pieces.push_back(mark);
    grammar::Source text = source_of(prompt);
    for (auto& [rule, token] : text.tokens) {
      names_[words_.pieces.size()] = vocabulary.piece(token, true);
      token = static_cast<kv::Token>(words_.pieces.size());
      words_.pieces.emplace_back("");
    }
    compiler_ = std::make_unique<grammar::Compiler>(words_);
    grammar_ = compiler_->compile(text);
  }

  /// Empty: it came to no end, or `beginning` isn't allowed. Throws where the grammar doesn't go on behind what has
  /// begun.
  std::string walk(const std::string& beginning = {}) {
    grammar::Matcher matcher(grammar_);
    if (!prompt_.begun.empty() && !matcher.accept_text(prompt_.begun))
      throw std::runtime_error("begun: " + prompt_.begun);
    const bool ahead = !beginning.empty() && !prompt_.ahead.end.empty();
    if (!beginning.empty() && !ahead && !matcher.accept_text(beginning)) return "";
    std::string text = beginning + (ahead ? prompt_.ahead.end : "");
    while (text.size() < 3000) {
      if (matcher.whole() && random_() % 2 == 0) return text;
      const auto mask = matcher.mask();
      const auto allowed = [&](std::size_t token) {
        return mask.empty() || (static_cast<unsigned>(mask[token / 32]) >> (token % 32) & 1U) != 0;
      };
      std::vector<std::size_t> letters, marks, ends, named, others;
      for (std::size_t token = 0; token < words_.pieces.size(); ++token) {
        if (!allowed(token)) continue;
        if (names_.contains(token)) named.push_back(token);
        if (token > 256 && !names_.contains(token)) marks.push_back(token);
        if (token >= 128 && token < 256) others.push_back(token);
        if (token == '\n' || (token >= ' ' && token < 127 && token != '\\')) letters.push_back(token);
        if (token == '"' || token == '}' || token == ',' || token == '\'') ends.push_back(token);
      }
      const auto& some = !named.empty() && (letters.empty() || random_() % 8 != 0)      ? named
                         : !marks.empty() && (letters.size() < 2 || random_() % 3 != 0) ? marks
                         : !ends.empty() && random_() % 2 == 0                          ? ends
                         : !letters.empty()                                             ? letters
                                                                                        : others;
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

}  // namespace coppice::text
