// Calls through templates of llama.cpp's sources: how many come, and what is read where no grammar holds them or they
// are cut. What each template can do is template_table_test.cpp's.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "text/fixtures.h"
#include "text/grammar_walk.h"
#include "text/read_answer.h"
#include "text/templates.h"
#include "text/tool_chat.h"

namespace coppice::text {
namespace {

/// Two calls come where the template takes two back, and one where one is asked for.
TEST(AllTemplates, AnAnswerHasAsManyCallsAsAreAskedFor) {
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "Weather in Paris?"}};
  const auto tools = weather_tools();
  std::mt19937_64 random = test::seeded_random();
  for (const std::string& name : template_names()) {
    const std::string source = text_of_template(name);
    const ChatTemplate chat(test::vocabulary(), source);
    const ToolPrompt prompt =
        chat.render(ToolChat{.messages = messages, .tools = tools, .must_call = true, .parallel = false});
    GrammarWalk walker(prompt, source, random);
    for (int i = 0, ended = 0; i < 100 && ended < 3; ++i) {
      const std::string text = walker.walk();
      if (text.empty()) continue;
      ++ended;
      EXPECT_EQ(read_answer(prompt.format, text, 9).calls.size(), 1U) << name << ": " << text;
    }
  }
}

/// A model that may choose writes two calls, and no grammar holds them: the first one counts.
TEST(AllTemplates, TheFirstOfTwoCallsIsKeptWhereOneIsAskedFor) {
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "Weather in Paris?"}};
  const auto tools = weather_tools();
  std::mt19937_64 random = test::seeded_random();
  int looked_at = 0;
  for (const std::string& name : template_names()) {
    const std::string source = text_of_template(name);
    const ChatTemplate chat(test::vocabulary(), source);
    const ToolPrompt several = chat.render(
        ToolChat{.messages = messages, .tools = tools, .must_call = true, .parallel = true, .thinks = false});
    const ToolPrompt one = chat.render(ToolChat{.messages = messages, .tools = tools, .thinks = false});
    GrammarWalk walker(several, source, random);
    for (int i = 0; i < 40; ++i) {
      const std::string text = walker.walk();
      const Answer all = read_answer(several.format, text, text.size() + 1);
      if (all.calls.size() < 2) continue;
      ++looked_at;
      AnswerReader reader(one.format, false);
      AnswerParts parts = reader.push(text), rest = reader.finish();
      for (CallPart& call : rest.calls) parts.calls.push_back(std::move(call));
      ASSERT_EQ(parts.calls.size(), 1U) << name << ": " << text << "\ncontent: " << parts.content << rest.content;
      EXPECT_EQ(parts.calls[0].name, all.calls[0].name) << name;
      EXPECT_EQ(parts.calls[0].arguments, all.calls[0].arguments) << name;
      EXPECT_EQ(parts.content + rest.content, all.content) << name;
      break;
    }
  }
  if (all_templates()) EXPECT_GE(looked_at, 40);
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

/// Where the library keeps the mark of a call in thoughts as a part of these, a call behind them is read, and none
/// begins in them.
TEST(AllTemplates, ThoughtsMaySpeakOfCalls) {
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "Weather in Paris?"}};
  const auto tools = weather_tools();
  int skipping = 0;
  for (const std::string& name : template_names()) {
    const ChatTemplate chat(test::vocabulary(), text_of_template(name));
    const ToolPrompt prompt = chat.render(ToolChat{.messages = messages, .tools = tools});
    const ThoughtTags& skipped = prompt.skipped;
    if (skipped.end.empty()) continue;
    ++skipping;
    SCOPED_TRACE(name);
    EXPECT_NE(prompt.from, "");
    EXPECT_TRUE(skipped.end.front() > ' ' && skipped.end.back() > ' ') << "a model may write other blanks";
    const std::string thoughts = "Shall I write " + prompt.from + "? Yes.";
    const Answer all =
        read_answer(prompt.format, (skipped.open ? "" : skipped.begin) + thoughts + skipped.end + "It rains.", 3);
    EXPECT_THAT(all.reasoning,
                testing::AnyOf(thoughts, "Here are my reasoning steps:\n" + thoughts));  // as the prompt begins them
    EXPECT_EQ(all.content, "It rains.");
  }
  if (all_templates()) EXPECT_GT(skipping, 10);
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
