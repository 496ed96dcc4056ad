// Budgets of thoughts, through every template in llama.cpp's sources: a model that would think without end stops where
// the budget is used up, and the answer, form or call follows. COPPICE_SEED=n replays a run, COPPICE_TEMPLATE=name looks
// at one template.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "server/prepare.h"
#include "server/template_model.h"
#include "text/fixtures.h"
#include "text/mark_vocabulary.h"
#include "text/read_answer.h"
#include "text/templates.h"
#include "text/tool_chat.h"

namespace coppice::testing {
namespace {

using nlohmann::json;

/// Begins to think whenever it may, never ends it by itself, and then writes what the grammar has, or "Hi".
class Thinker {
 public:
  Thinker(const TemplateModel& model, const server::Prepared& prepared, std::mt19937_64& random)
      : vocabulary_(model.vocabulary()), params_(prepared.sampling->params), random_(random) {
    generation_ = std::move(sampling::make_generations(model.shared_vocabulary(), prepared.sampling, 1, {}).front());
  }

  /// Its text; empty: it came to no end in so many tokens.
  std::string write(int most) {
    const auto& thoughts = params_.thoughts;
    std::string text;
    for (int n = 0; n < most; ++n) {
      std::vector<float> logits(static_cast<std::size_t>(vocabulary_.size()));
      const std::string behind = wished(text);
      for (kv::Token token = 0; token < vocabulary_.size(); ++token)
        logits[static_cast<std::size_t>(token)] = liking(token, behind);
      const sampling::Piece piece = generation_->next(logits);
      const std::string bytes = vocabulary_.piece(piece.token, true);
      text += bytes;
      told_ += piece.text;
      if (!thinks_ && may_begin(text) && text.ends_with(bare(thoughts.begin))) thinks_ = true;
      if (thinks_ && text.ends_with(thoughts.end)) {
        thinks_ = false;
        ++ended_;
      }
      if (piece.finish) return told_;
    }
    told_.clear();
    return text;
  }

  int ended() const { return ended_; }  ///< times that thoughts were ended
  bool thinks() const { return thinks_; }
  std::string told() const { return told_; }

 private:
  static std::string bare(const std::string& text) {
    return text.substr(std::min(text.find_first_not_of(' '), text.size()));
  }

  /// What it wants to write next: the mark by which thoughts begin, then an answer.
  std::string wished(const std::string& text) const {
    const std::string& begin = params_.thoughts.begin;
    if (thinks_) return "";
    const std::string hi = params_.grammar.grammar && params_.grammar.after.empty() ? "" : "Hi";
    for (const std::string& wish : {begin, hi}) {
      if (wish == begin && !may_begin(text)) continue;
      std::size_t n = std::min(wish.size(), text.size());
      while (!text.ends_with(wish.substr(0, n))) --n;
      if (n < wish.size()) return wish.substr(n);
      if (wish != begin) return "";
    }
    return "";
  }

  /// Before the answer, and once more where a call may follow.
  bool may_begin(const std::string& text) const {
    const auto& thoughts = params_.thoughts;
    if (thoughts.open) return false;
    return ended_ == 0 ? text.size() <= thoughts.begin.size()
                       : ended_ == 1 && thoughts.close.size() < thoughts.last.size();
  }

  float liking(kv::Token token, const std::string& wish) {
    const std::string name = vocabulary_.piece(token, true);
    const bool control = vocabulary_.piece(token).empty();
    const float noise = std::uniform_real_distribution<float>(0, 1)(random_);
    if (vocabulary_.is_end(token)) return thinks_ ? -1e6F : wish.empty() ? 200.0F : 5.0F;
    if (!wish.empty() && wish.starts_with(name)) return 300.0F + static_cast<float>(name.size());
    if (thinks_)
      return name.size() == 1 && std::isalpha(static_cast<unsigned char>(name[0])) != 0 ? noise : noise - 1e6F;
    if (control) return 100 + noise;
    if (name.size() > 1) return 30 + 40 * noise;
    if (name == "\"" || name == "}" || name == "]") return 40 + 40 * noise;
    return name[0] > ' ' && name[0] < 127 && name != "\\" ? 40 * noise : noise - 50;
  }

  const text::Vocabulary& vocabulary_;
  const sampling::SamplingParams& params_;
  std::mt19937_64& random_;
  std::unique_ptr<sampling::Generation> generation_;
  bool thinks_ = params_.thoughts.open;
  int ended_ = 0;
  std::string told_;
};

constexpr const char* kTool =
    R"({"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters":
  {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
   "required": ["city", "days"], "additionalProperties": false}}})";

struct Kind {
  const char* name;
  std::string fields;
};

std::vector<Kind> kinds() {
  const std::string tools = std::string(R"(, "tools": [)") + kTool + "]";
  return {{"plain", ""},
          {"schema", R"(, "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema":
             {"type": "object", "properties": {"c": {"enum": ["red"]}}, "required": ["c"], "additionalProperties": false}}})"},
          {"regex", R"(, "structured_outputs": {"regex": "(yes|no){2}"})"},
          {"forced", tools + R"(, "tool_choice": "required", "parallel_tool_calls": false)"},
          {"auto", tools}};
}

std::string fault_of(const std::string& kind, const text::Answer& answer) {
  std::string content = answer.content;
  if (kind == "schema" && json::parse(content, nullptr, false) != json{{"c", "red"}}) return "no form: " + content;
  if (kind == "regex" && content != "yesyes" && content != "yesno" && content != "nono" && content != "noyes")
    return "no form: " + content;
  if (kind == "plain" && content.find("Hi") == content.npos) return "no answer: " + content;
  if (kind != "forced") return "";
  if (answer.calls.size() != 1) return std::to_string(answer.calls.size()) + " calls";
  const json arguments = json::parse(answer.calls[0].arguments, nullptr, false);
  return arguments.is_object() && arguments.contains("city") ? "" : "no arguments: " + answer.calls[0].arguments;
}

TEST(Thoughts, EndWhereTheirBudgetIsUsedUp) {
  std::mt19937_64 random = test::seeded_random();
  std::map<std::string, int> thinking;
  for (const std::string& name : text::template_names()) {
    const std::string source = text::text_of_template(name);
    const std::string asked = R"("messages": [{"role": "user", "content": "Weather in Paris?"}], "temperature": 0)";
    const std::vector<text::ChatMessage> question = {{.role = "user", .content = "Weather in Paris?"}};
    const std::vector<text::ToolSpec> tools = {
        {"get_weather", "Weather",
         R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},)"
         R"("required":["city","days"]})"}};
    const auto marks = test::marks_in(source);
    auto words = test::words_of(text::ChatTemplate(test::mark_vocabulary(marks), source)
                                    .render(text::ToolChat{.messages = question, .tools = tools, .must_call = true})
                                    .grammar);
    if (source.find("]<]minimax[>[") != source.npos) words.insert("]<]minimax[>[</city>");
    TemplateModel model(test::mark_vocabulary(marks, words), source);
    for (const Kind& kind : kinds()) {
      for (const int budget : {0, 9}) {
        SCOPED_TRACE(name + " " + kind.name + " " + std::to_string(budget));
        const server::Prepared prepared =
            prepare(model, server::Endpoint::kChat,
                    "{" + asked + kind.fields + R"(, "reasoning_budget_tokens": )" + std::to_string(budget) + "}");
        if (prepared.sampling->params.thoughts.budget < 0) continue;
        Thinker thinker(model, prepared, random);
        const std::string text = thinker.write(1500);
        EXPECT_NE(thinker.told(), "") << "no end: " << text;
        const text::Answer answer = prepared.format
                                        ? text::read_answer(prepared.format, thinker.told(), 5)
                                        : text::Answer{.content = thinker.told(), .reasoning = {}, .calls = {}};
        EXPECT_FALSE(thinker.thinks());
        // What the prompt has begun of them may count as thoughts.
        std::string thoughts = answer.reasoning;
        for (const std::string& begun : {std::string("Here are my reasoning steps:"), std::string("\n")})
          if (thoughts.starts_with(begun)) thoughts.erase(0, begun.size());
        EXPECT_LE(thoughts.size(), static_cast<std::size_t>(budget)) << text;
        EXPECT_EQ(fault_of(kind.name, answer), "") << text;
        thinking[kind.name] += budget > 0 && !thoughts.empty() ? 1 : 0;
      }
    }
  }
  for (const auto& [kind, n] : thinking) std::printf("%s: %d templates think\n", kind.c_str(), n);
  if (std::getenv("COPPICE_TEMPLATE") != nullptr) return;
  for (const Kind& kind : kinds()) EXPECT_GE(thinking[kind.name], 40) << kind.name;
}

}  // namespace
}  // namespace coppice::testing
