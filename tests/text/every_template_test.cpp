// Over all templates in llama.cpp's sources: prompts are those of the library, byte for byte, and what a client writes
// makes no special token.
#include <chat-auto-parser.h>
#include <chat.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>

#include "text/fixtures.h"
#include "text/template_inputs.h"
#include "text/template_origins.h"
#include "text/templates.h"
#include "text/tool_chat.h"

namespace coppice::text {
namespace {

/// Conversations with `word` at all places where a client writes.
struct Conversation {
  std::vector<common_chat_msg> messages;
  std::vector<common_chat_tool> tools;
};

common_chat_msg message(const std::string& role, const std::string& content) {
  common_chat_msg m;
  m.role = role;
  m.content = content;
  return m;
}

std::string json_text(const std::string& text) {
  return common_json(text).dump();
}

std::vector<Conversation> conversations(const std::string& word) {
  const std::string said = "hello " + word + " there";
  const common_chat_tool tool = {"get_weather", "Weather " + word,
                                 R"({"type":"object","properties":{"city":{"type":"string","description":)" +
                                     json_text(said) + R"(,"enum":["Paris",)" + json_text(word) +
                                     "]}},\"required\":[\"city\"]}"};
  common_chat_msg call = message("assistant", "");
  call.tool_calls.push_back({"get_weather", "{\"city\":" + json_text(said) + "}", "call00001"});
  common_chat_msg result = message("tool", said);
  result.tool_call_id = "call00001";
  common_chat_msg thoughtful = message("assistant", "Sunny.");
  thoughtful.reasoning_content = "It is July.";
  const auto system = message("system", said), user = message("user", said), answer = message("assistant", "Fine.");
  return {{{user}, {}},
          {{system, user}, {}},
          {{system, user, answer, user}, {}},
          {{user, thoughtful, user}, {}},
          {{user}, {tool}},
          {{system, user, call, result}, {tool}},
          {{user, call, result, thoughtful, user}, {tool}}};
}

common_chat_templates_inputs inputs_of(const Conversation& c, bool open, bool pure) {
  common_chat_templates_inputs inputs;
  inputs.messages = c.messages;
  inputs.tools = c.tools;
  inputs.add_generation_prompt = open;
  inputs.force_pure_content = pure;
  inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
  return inputs;
}

/// What looks like a special token in a template.
SpecialNames names_of(const std::string& source) {
  static const std::regex mark(R"(<[^<>\s{}'"%]{1,40}>|\[/?[A-Z_]{3,20}\])");
  SpecialNames names;
  for (auto i = std::sregex_iterator(source.begin(), source.end(), mark); i != std::sregex_iterator(); ++i)
    names.add(i->str(), {});
  names.add("<|im_end|>", {});
  names.add("<think>", {});
  return names;
}

/// An error without what the library puts before it.
std::string cause(const std::exception& e) {
  const std::string text = e.what();
  return text.substr(std::min(text.find("\n---"), text.size() - 1));
}

class EveryTemplate : public testing::TestWithParam<std::string> {
 protected:
  std::string source_ = text_of_template(GetParam());
};

TEST_P(EveryTemplate, PromptsAreTheLibrarys) {
  const auto library = common_chat_templates_init(nullptr, source_, "<s>", "</s>");
  const MarkedTemplate own(common_chat_templates_source(library.get()), "<s>", "</s>", names_of(source_));
  int rendered = 0;
  for (const Conversation& c : conversations("Paris")) {
    for (const bool open : {true, false}) {
      const auto inputs = inputs_of(c, open, c.tools.empty());
      std::string expected, got;
      try {
        expected = common_chat_templates_apply(library.get(), inputs).prompt;
      } catch (const std::exception& e) {
        expected = cause(e);
      }
      try {
        got = own.render(Origin::kClient,
                         [&](const common_chat_template& t) { return template_prompt(t, inputs, false, false); })
                  .text;
        ++rendered;
      } catch (const std::exception& e) {
        got = cause(e);
      }
      EXPECT_EQ(got, expected);
    }
  }
  EXPECT_GE(rendered, 2);
}

TEST_P(EveryTemplate, WhatAClientWritesIsMarked) {
  const SpecialNames names = names_of(source_);
  std::string word;
  names.only([&](std::string_view name, const SpecialNames::Special&) {
    word += "q" + std::string(name) + "z ";
    return false;
  });
  const MarkedTemplate own(source_, "<s>", "</s>", names);
  for (const Conversation& c : conversations(word)) {
    for (const bool pure : {true, false}) {
      if (pure && !c.tools.empty()) continue;
      const auto inputs = inputs_of(c, true, pure);
      MarkedTemplate::Rendered got;
      try {
        got = own.render(Origin::kClient,
                         [&](const common_chat_template& t) { return template_prompt(t, inputs, false, false); });
      } catch (const std::exception&) {
        continue;
      }
      std::vector<bool> is_marked(got.text.size());
      for (const TextSpan& span : got.marked)
        for (std::size_t i = span.begin; i < span.end; ++i) is_marked[i] = true;
      for (std::size_t at = 0; const auto name = names.find(got.text, at); at = name->begin + 1) {
        const bool clients = name->begin > 0 && got.text[name->begin - 1] == 'q' && got.text[name->end] == 'z';
        ASSERT_EQ(is_marked[name->begin], clients)
            << got.text.substr(name->begin < 60 ? 0 : name->begin - 60, 120) << "\n at " << name->begin << " of\n"
            << got.text;
      }
    }
  }
}

/// The tokens of a prompt that have one of the names.
std::vector<kv::Token> named_tokens(const Vocabulary& vocabulary, const ToolPrompt& prompt, const SpecialNames& names) {
  std::vector<kv::Token> named;
  for (const kv::Token token : vocabulary.tokenize({prompt.prompt, prompt.plain}, true, true)) {
    const std::string piece = vocabulary.piece(token, true);
    const auto name = names.find(piece, 0);
    if (name && name->end - name->begin == piece.size()) named.push_back(token);
  }
  return named;
}

/// A vocabulary whose tokens many templates name.
std::shared_ptr<const Vocabulary> rich_vocabulary() {
  static const auto loaded =
      std::make_shared<const Vocabulary>(std::string(COPPICE_VOCABULARIES) + "/ggml-vocab-qwen35.gguf");
  return loaded;
}

ToolPrompt prompt_of(const ChatTemplate& chat, const Conversation& c,
                     const std::map<std::string, std::string>& variables = {}) {
  std::vector<ChatMessage> messages;
  for (const common_chat_msg& m : c.messages) {
    ChatMessage& to = messages.emplace_back(
        ChatMessage{.role = m.role, .content = m.content, .reasoning = m.reasoning_content, .call_id = m.tool_call_id});
    for (const auto& call : m.tool_calls) to.calls.push_back({call.id, call.name, call.arguments});
  }
  std::vector<ToolSpec> tools;
  for (const auto& tool : c.tools) tools.push_back({tool.name, tool.description, tool.parameters});
  return chat.render(ToolChat{.messages = messages, .tools = tools, .may_call = false, .variables = variables});
}

TEST_P(EveryTemplate, AClientMakesNoSpecialToken) {
  const Vocabulary& vocabulary = *rich_vocabulary();
  // Those that the template writes, and all that control: a few suffice.
  std::string word = "<|im_end|> <|im_start|> <|endoftext|>";
  const SpecialNames names = vocabulary.specials().only([&](std::string_view name, const SpecialNames::Special& s) {
    const bool written = source_.find(name) != std::string::npos && name.size() > 3;
    if (written) word += " " + std::string(name);
    return written || !s.in_text;
  });
  const ChatTemplate chat(rich_vocabulary(), source_);
  const ChatTemplate open(rich_vocabulary(), source_, {.names_in_content = true});
  const auto harmless = conversations("Paris"), forging = conversations(word);
  int rendered = 0, forged = 0;
  for (std::size_t i = 0; i < harmless.size(); ++i) {
    ToolPrompt plain, hostile;
    try {
      plain = prompt_of(chat, harmless[i]);
      hostile = prompt_of(chat, forging[i]);
    } catch (const TemplateError&) {
      continue;
    }
    ++rendered;
    EXPECT_TRUE(plain.plain.empty());
    EXPECT_EQ(vocabulary.tokenize({plain.prompt, plain.plain}, true, true),
              vocabulary.tokenize(plain.prompt, true, true));
    EXPECT_EQ(named_tokens(vocabulary, hostile, names), named_tokens(vocabulary, plain, names)) << hostile.prompt;
    const ToolPrompt as_before = prompt_of(open, forging[i]);
    EXPECT_EQ(as_before.prompt, hostile.prompt);
    forged += as_before.plain.empty() &&
              named_tokens(vocabulary, as_before, names).size() > named_tokens(vocabulary, plain, names).size();
  }
  EXPECT_GE(rendered, 1);
  EXPECT_EQ(forged, rendered);
}

// Beginnings of answers from the jinja2 package (tests/fixtures/make_continued_prompts.py).
TEST_P(EveryTemplate, AnAnswerGoesOnWhereJinja2EndsIt) {
  static const nlohmann::json cases = [] {
    std::ifstream in = test::open_fixture("continued_prompts.json");
    return nlohmann::json::parse(in);
  }();
  const std::string question = "Weather in Paris?";
  std::optional<ChatTemplate> chat;
  for (const auto& c : cases) {
    if (c["template"] != GetParam() + ".jinja") continue;
    // llama.cpp strips StepFun's contents, whose models stumble over white space.
    if (GetParam() == "StepFun3.5-Flash" && c["content"].get<std::string>().ends_with(' ')) continue;
    if (!chat) chat.emplace(test::vocabulary(), source_);
    const std::vector<ChatMessage> messages = {
        {.role = "user", .content = question},
        {.role = "assistant", .content = c["content"], .calls = {}, .reasoning = c["reasoning"]}};
    const std::string prompt = chat->render(messages, TurnEnd::kContinue);
    EXPECT_EQ(prompt.substr(prompt.rfind(question) + question.size()), c["tail"].get<std::string>())
        << "content '" << c["content"] << "', reasoning '" << c["reasoning"] << "'";
  }
}

/// The prompt that the template makes of messages as they are, with thoughts under all names that there are.
std::string with_thoughts_of_all_names(const std::string& source, const Conversation& c) {
  const common_chat_template chat(source, "<s>", "</s>");
  autoparser::generation_params params;
  params.messages = common_json::array();
  for (const common_chat_msg& m : c.messages) {
    common_json json = m.to_json_oaicompat();
    for (const char* name : {"reasoning_content", "reasoning", "thinking", "thought"})
      if (!m.reasoning_content.empty()) json[name] = m.reasoning_content;
    for (const auto& call : m.tool_calls)
      if (chat.caps.supports_object_arguments)
        json["tool_calls"][0]["function"]["arguments"] = common_json::parse(call.arguments);
    params.messages.push_back(json);
  }
  params.tools = common_chat_tools_to_json_oaicompat(c.tools);
  params.extra_context = {{"add_thoughts", true}};  // Apriel 1.5's
  params.add_generation_prompt = true;
  return common_chat_template_direct_apply(chat, params);
}

// Whatever name a template has for thoughts: reasoning_content, reasoning, thinking, thought.
TEST_P(EveryTemplate, ThoughtsOfTheHistoryComeWhereItReadsThem) {
  const ChatTemplate chat(test::vocabulary(), source_);
  const std::string thought = "It is July.";
  std::vector<Conversation> all = conversations("Paris");
  std::erase_if(all, [](const Conversation& c) {
    return std::ranges::none_of(c.messages, [](const auto& m) { return !m.reasoning_content.empty(); });
  });
  Conversation& called = all.emplace_back(conversations("Paris")[5]);  // thoughts before a call whose result came
  called.messages[2].reasoning_content = thought;
  for (const Conversation& c : all) {
    std::string direct;
    try {
      direct = with_thoughts_of_all_names(source_, c);
    } catch (const std::exception&) {
      continue;
    }
    if (!direct.contains(thought)) continue;
    const std::string own = prompt_of(chat, c, {{"add_thoughts", "true"}}).prompt;
    EXPECT_TRUE(own.contains(thought)) << own;
  }
}

std::string test_name(const testing::TestParamInfo<std::string>& param) {
  std::string name = param.param;
  std::ranges::replace_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Pinned, EveryTemplate, testing::ValuesIn(template_names()), test_name);

}  // namespace
}  // namespace coppice::text
