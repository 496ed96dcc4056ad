// Budgets of thoughts, through every template in llama.cpp's sources: a model that would think without end stops where
// the budget is used up, and the answer, form or call follows. COPPICE_SEED=n replays a run, COPPICE_TEMPLATE=name
// looks at one template.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "server/base/request_error.h"
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
  /// `answer`: what it writes behind its thoughts where no grammar holds it.
  Thinker(const TemplateModel& model, const server::Prepared& prepared, std::string answer, std::mt19937_64& random)
      : vocabulary_(model.vocabulary()),
        params_(prepared.sampling->params),
        answer_(std::move(answer)),
        random_(random) {
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
    for (const std::string& wish : {begin, answer_}) {
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
  std::string answer_;
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

constexpr const char* kForm = R"(, "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema":
  {"type": "object", "properties": {"c": {"enum": ["red"]}}, "required": ["c"], "additionalProperties": false}}})";

struct Kind {
  const char* name;
  std::string fields;
  const char* begun = "";  ///< the assistant's message that goes on

  const char* answer() const { return fields.contains("response_format") || fields.contains("required") ? "" : "Hi"; }
};

std::vector<Kind> kinds() {
  const std::string tools = std::string(R"(, "tools": [)") + kTool + "]";
  return {{"plain", ""},
          {"schema", kForm},
          {"form or call", kForm + tools + R"(, "parallel_tool_calls": false)"},
          {"continued", kForm + std::string(R"(, "continue_final_message": true, "add_generation_prompt": false)"),
           R"(, {"role": "assistant", "content": "", "reasoning_content": "Let me think of"})"},
          {"regex", R"(, "structured_outputs": {"regex": "(yes|no){2}"})"},
          {"forced", tools + R"(, "tool_choice": "required", "parallel_tool_calls": false)"},
          {"auto", tools}};
}

std::string fault_of(const std::string& kind, const text::Answer& answer) {
  std::string content = answer.content;
  const bool calls = kind == "forced" || (kind == "form or call" && !answer.calls.empty());
  const bool form = kind == "schema" || kind == "continued" || kind == "form or call";
  if (form && !calls && json::parse(content, nullptr, false) != json{{"c", "red"}}) return "no form: " + content;
  if (kind == "regex" && content != "yesyes" && content != "yesno" && content != "nono" && content != "noyes")
    return "no form: " + content;
  if (kind == "plain" && content.find("Hi") == content.npos) return "no answer: " + content;
  if (!calls) return "";
  if (answer.calls.size() != 1) return std::to_string(answer.calls.size()) + " calls";
  const json arguments = json::parse(answer.calls[0].arguments, nullptr, false);
  return arguments.is_object() && arguments.contains("city") ? "" : "no arguments: " + answer.calls[0].arguments;
}

std::string asked(const Kind& kind, int budget) {
  return std::string(R"({"messages": [{"role": "user", "content": "Weather in Paris?"})") + kind.begun +
         R"(], "temperature": 0)" + kind.fields + R"(, "reasoning_budget_tokens": )" + std::to_string(budget) + "}";
}

TEST(Thoughts, EndWhereTheirBudgetIsUsedUp) {
  std::mt19937_64 random = test::seeded_random();
  std::map<std::string, int> thinking;
  for (const std::string& name : text::template_names()) {
    const std::string source = text::text_of_template(name);
    const std::vector<text::ChatMessage> question = {{.role = "user", .content = "Weather in Paris?"}};
    const std::vector<text::ToolSpec> tools = {
        {"get_weather", "Weather",
         R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},)"
         R"("required":["city","days"]})"}};
    auto marks = test::marks_in(source);
    // The vocabulary of that model has it, and so its <|end|> doesn't end answers.
    if (marks.contains("<|calls|>")) marks.insert("<|flush|>");
    auto words = test::words_of(text::ChatTemplate(test::mark_vocabulary(marks), source)
                                    .render(text::ToolChat{.messages = question, .tools = tools, .must_call = true})
                                    .grammar);
    if (source.find("]<]minimax[>[") != source.npos) words.insert("]<]minimax[>[</city>");
    TemplateModel model(test::mark_vocabulary(marks, words), source);
    for (const Kind& kind : kinds()) {
      for (const int budget : {0, 9}) {
        SCOPED_TRACE(name + " " + kind.name + " " + std::to_string(budget));
        server::Prepared prepared;
        try {
          prepared = prepare(model, server::Endpoint::kChat, asked(kind, budget));
        } catch (const server::RequestError& e) {
          ADD_FAILURE() << e.what();
          continue;
        }
        if (prepared.sampling->params.thoughts.budget < 0) continue;
        Thinker thinker(model, prepared, kind.answer(), random);
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
  if (!text::all_templates()) return;
  for (const Kind& kind : kinds()) EXPECT_GE(thinking[kind.name], kind.begun[0] != '\0' ? 25 : 40) << kind.name;
}

/// Of a model that would only think again, where a call has no mark of its own.
TEST(Thoughts, AreFollowedByAnAnswerOrACall) {
  std::mt19937_64 random = test::seeded_random();
  for (const auto& [name, between, calls, text] :
       {std::tuple("openai-gpt-oss-120b", "<|end|><|start|>assistant",
                   std::vector<std::string>{"<|channel|>commentary to=functions.get_weather",
                                            " to=functions.get_weather<|channel|>commentary"},
                   "<|channel|>final<|message|>"),
        std::tuple("muse-glimmer", "<|eom|><|start|>assistant", std::vector<std::string>{" to=get_weather<|message|>"},
                   " to=user<|message|>")}) {
    SCOPED_TRACE(name);
    const std::string source = text::text_of_template(name);
    TemplateModel model(test::mark_vocabulary(test::marks_in(source)), source);
    const Kind kind = kinds().back();
    ASSERT_STREQ(kind.name, "auto");
    int n_calls = 0, n_answers = 0;
    for (int i = 0; i < 40; ++i) {
      const server::Prepared prepared = prepare(model, server::Endpoint::kChat, asked(kind, i % 2));
      Thinker thinker(model, prepared, kind.answer(), random);
      const std::string told = std::regex_replace(thinker.write(300), std::regex("\xe2\x96\x81"), " ");
      const std::size_t at = told.find(between);
      ASSERT_NE(at, told.npos) << told;
      const std::string behind = told.substr(at + std::string(between).size());
      const bool call = std::ranges::any_of(calls, [&](const std::string& begin) { return behind.starts_with(begin); });
      n_calls += call ? 1 : 0;
      n_answers += behind.starts_with(text) ? 1 : 0;
      EXPECT_TRUE(call || behind.starts_with(text)) << told;
    }
    EXPECT_GT(n_calls, 0);
    EXPECT_GT(n_answers, 0);
  }
}

}  // namespace
}  // namespace coppice::testing
