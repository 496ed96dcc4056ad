#include "text/chat_history.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <set>

#include "text/fixtures.h"
#include "text/templates.h"

namespace coppice::text {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ChatMessage user(const std::string& content) {
  return {.role = "user", .content = content};
}
ChatMessage result(const std::string& id, const std::string& content) {
  return {.role = "tool", .content = content, .call_id = id};
}
ChatMessage calls(std::vector<ChatCall> made) {
  return {.role = "assistant", .content = "", .calls = std::move(made)};
}

const std::vector<ToolSpec>& tools() {
  static const std::vector<ToolSpec> all = {{"w", "Weather", R"({"type":"object","properties":{}})"}};
  return all;
}

ChatTemplate chat_of(const std::string& name) {
  std::ifstream in(std::string(COPPICE_TEMPLATES) + "/" + name);
  return ChatTemplate(test::vocabulary(), {std::istreambuf_iterator<char>(in), {}});
}

TEST(CallIds, AreMappedByTheirTextAlone) {
  const std::vector<ChatMessage> turn = {user("?"), calls({{"call_abc", "w", "{}"}, {"a1B2c3D4e", "w", "{}"}}),
                                         result("call_abc", "sun"), result("a1B2c3D4e", "rain")};
  const auto once = fitted(turn, {.ids = CallIds::kNine});
  const std::string id = once[1].calls[0].id;
  EXPECT_EQ(id.size(), 9U);
  EXPECT_EQ(id.find_first_not_of("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"), std::string::npos);
  EXPECT_EQ(once[1].calls[1].id, "a1B2c3D4e");
  EXPECT_EQ(once[2].call_id, id);
  EXPECT_EQ(once[3].call_id, "a1B2c3D4e");
  auto longer = turn;
  longer.insert(longer.begin(), {user("before"), calls({{"call_other", "w", "{}"}}), result("call_other", "snow")});
  EXPECT_EQ(fitted(longer, {.ids = CallIds::kNine})[4].calls[0].id, id);
  EXPECT_EQ(fitted(turn, {})[1].calls[0].id, "call_abc");
}

/// The second id is the one that the first is given.
TEST(CallIds, TwoNeverBecomeOne) {
  const std::string first = fitted(std::vector{calls({{"x", "w", "{}"}})}, {.ids = CallIds::kNine})[0].calls[0].id;
  const auto both = fitted(std::vector{calls({{"x", "w", "{}"}, {first, "w", "{}"}, {"", "w", "{}"}, {"", "w", "{}"}}),
                                       result("", "1"), result("", "2")},
                           {.ids = CallIds::kNine});
  std::set<std::string> ids;
  for (const ChatCall& call : both[0].calls) ids.insert(call.id);
  EXPECT_EQ(ids.size(), 4U);
  EXPECT_EQ(both[0].calls[0].id, first);
  EXPECT_EQ(both[1].call_id, both[0].calls[2].id);
  EXPECT_EQ(both[2].call_id, both[0].calls[3].id);
}

TEST(CallIds, HaveTheFormThatTheTemplateTakes) {
  const struct {
    const char* name;
    CallIds form;
  } cases[] = {{"mistralai-Mistral-Nemo-Instruct-2407.jinja", CallIds::kNine},
               {"Mistral-Small-3.2-24B-Instruct-2506.jinja", CallIds::kNine},
               {"Kimi-K2-Instruct.jinja", CallIds::kFunction},
               {"Qwen-Qwen3-0.6B.jinja", CallIds::kAny},
               {"google-gemma-2-2b-it.jinja", CallIds::kAny}};
  for (const auto& c : cases) {
    const ChatTemplate chat = chat_of(c.name);
    const std::vector<ChatMessage> messages = {user("?"), calls({{"call_0_with_any_id", "w", "{}"}}),
                                               result("call_0_with_any_id", "sun")};
    const ToolPrompt prompt = chat.render(ToolChat{.messages = messages, .tools = tools()});
    EXPECT_EQ(prompt.call_ids, c.form) << c.name;
    EXPECT_EQ(prompt.calls_before, 1U) << c.name;
    EXPECT_THAT(prompt.prompt, HasSubstr("sun")) << c.name;
  }
  EXPECT_EQ(call_id(CallIds::kNine, "call_x", "w", 3).size(), 9U);
  EXPECT_EQ(call_id(CallIds::kFunction, "call_x", "w", 3), "functions.w:3");
  EXPECT_EQ(call_id(CallIds::kAny, "call_x", "w", 3), "call_x");
}

TEST(CutCalls, AreTextWhereTheTemplateNeedsAnObject) {
  const std::vector<ChatMessage> messages = {user("?"),
                                             calls({{"c1", "w", R"({"a": "cu)", true}, {"c2", "w", R"({"a":1})"}}),
                                             result("c1", "failed"), user("Go on")};
  const auto all = fitted(messages, {.objects = true});
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[1].content, R"({"name": "w", "arguments": {"a": "cu)");
  ASSERT_EQ(all[1].calls.size(), 1U);
  EXPECT_EQ(all[2].role, "user");
  EXPECT_EQ(all[2].content, "<tool_response name=\"w\">\nfailed\n</tool_response>\nGo on");
  EXPECT_EQ(fitted(messages, {})[1].calls.size(), 2U);
}

class EveryHistory : public testing::TestWithParam<const char*> {};

/// Such a call ended a conversation for good.
TEST_P(EveryHistory, WithACutCallIsRendered) {
  const ChatTemplate chat = chat_of(GetParam());
  const std::vector<ChatMessage> messages = {user("?"), calls({{"c1", "w", R"({"a": "cu)", true}}), user("Go on")};
  EXPECT_THAT(chat.render(ToolChat{.messages = messages, .tools = tools()}).prompt, HasSubstr("cu"));
}
INSTANTIATE_TEST_SUITE_P(Some, EveryHistory,
                         testing::Values("Qwen-Qwen3-0.6B.jinja", "Qwen3-Coder.jinja", "GLM-4.6.jinja",
                                         "meta-llama-Llama-3.2-3B-Instruct.jinja", "openai-gpt-oss-120b.jinja",
                                         "google-gemma-2-2b-it.jinja", "google-gemma-4-31B-it.jinja",
                                         "deepseek-ai-DeepSeek-V3.1.jinja"));

/// The user speaks behind a tool's result, or twice, and the template wants roles in turn.
class EveryTurn : public testing::TestWithParam<const char*> {};
TEST_P(EveryTurn, IsRendered) {
  const ChatTemplate chat = chat_of(GetParam());
  const std::vector<ChatMessage> messages = {user("one"),
                                             calls({{"c1", "w", "{}"}}),
                                             result("c1", "sun"),
                                             user("two"),
                                             user("three"),
                                             {.role = "assistant", .content = "four"},
                                             {.role = "assistant", .content = "five"},
                                             user("six")};
  const std::string prompt = chat.render(ToolChat{.messages = messages, .tools = tools()}).prompt;
  std::size_t at = 0;
  for (const char* text : {"one", "sun", "two", "three", "four", "five", "six"}) {
    at = prompt.find(text, at);
    ASSERT_NE(at, prompt.npos) << text << " in " << prompt;
  }
}
INSTANTIATE_TEST_SUITE_P(Strict, EveryTurn,
                         testing::Values("google-gemma-2-2b-it.jinja", "mistralai-Mistral-Nemo-Instruct-2407.jinja",
                                         "Mistral-Small-3.2-24B-Instruct-2506.jinja",
                                         "mistralai-Ministral-3-14B-Reasoning-2512.jinja", "Qwen-Qwen3-0.6B.jinja"));

/// Only where the template asks for it is anything changed.
TEST(Turns, AreJoinedByRole) {
  const auto all = in_turns({user("a"), user("b"), calls({{"c", "w", "{}"}}), result("c", "d"), user("e")});
  ASSERT_EQ(all.size(), 5U);
  EXPECT_EQ(all[0].content, "a\n\nb");
  EXPECT_EQ(all[3].role, "assistant");
  EXPECT_EQ(all[4].content, "e");
}

/// Codex sends instructions and a developer's message, Claude Code system messages between turns: Qwen 3.5's template,
/// among others, refused all of their requests.
class EverySystem : public testing::TestWithParam<std::string> {};
TEST_P(EverySystem, MessageIsRendered) {
  const ChatTemplate chat = chat_of(GetParam() + ".jinja");
  const std::vector<ChatMessage> messages = {
      {.role = "system", .content = "alpha"},    {.role = "developer", .content = "bravo"}, user("charlie"),
      {.role = "assistant", .content = "delta"}, {.role = "system", .content = "echo"},     user("foxtrot")};
  for (const bool with_tools : {false, true}) {
    const ToolChat asked{.messages = messages, .tools = with_tools ? tools() : std::span<const ToolSpec>()};
    const std::string prompt = chat.render(asked).prompt;
    std::size_t at = 0;
    for (const char* text : {"alpha", "bravo", "charlie", "delta", "echo", "foxtrot"})
      EXPECT_THAT(prompt, HasSubstr(text));
    for (const char* text : {"charlie", "delta", "foxtrot"}) {  // some collect all of the system's
      at = prompt.find(text, at);
      ASSERT_NE(at, prompt.npos) << text << " in " << prompt;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, EverySystem, testing::ValuesIn(template_names()), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

/// Llama 3.1 to 3.3's templates refused it for good, and gpt-oss's forgot all calls but the first.
class SeveralCalls : public testing::TestWithParam<const char*> {};
TEST_P(SeveralCalls, ComeBackOneATurn) {
  const ChatTemplate chat = chat_of(GetParam());
  const std::vector<ChatMessage> messages = {
      user("?"), calls({{"c1", "w", R"({"a":"alpha"})"}, {"c2", "w", R"({"a":"charlie"})"}}), result("c2", "delta"),
      result("c1", "bravo"), user("echo")};
  const std::string prompt = chat.render(ToolChat{.messages = messages, .tools = tools()}).prompt;
  std::size_t at = 0;
  for (const char* text : {"alpha", "bravo", "charlie", "delta", "echo"}) {
    at = prompt.find(text, at);
    ASSERT_NE(at, prompt.npos) << text << " in " << prompt;
  }
}
INSTANTIATE_TEST_SUITE_P(One, SeveralCalls,
                         testing::Values("meta-llama-Llama-3.1-8B-Instruct.jinja",
                                         "meta-llama-Llama-3.2-3B-Instruct.jinja",
                                         "meta-llama-Llama-3.3-70B-Instruct.jinja", "openai-gpt-oss-120b.jinja",
                                         "GigaChat3-10B-A1.8B.jinja"));

TEST(OneCallATurn, LeavesWhatNothingAnswers) {
  const auto all = with_one_call_a_turn(
      {calls({{"c1", "w", "{}"}, {"c2", "v", "{}"}}), result("x", "a"), result("c2", "b"), user("d")});
  ASSERT_EQ(all.size(), 5U);
  EXPECT_EQ(all[0].calls[0].id, "c1");
  EXPECT_EQ(all[1].calls[0].id, "c2");
  EXPECT_EQ(all[2].content, "b");
  EXPECT_EQ(all[3].content, "a");
}

TEST(Systems, GoWhereTheTemplateTakesThem) {
  const std::vector<ChatMessage> messages = {{.role = "system", .content = "a"},
                                             {.role = "developer", .content = "b"},
                                             user("c"),
                                             {.role = "system", .content = "d"}};
  EXPECT_EQ(with_system_in_place(messages, {}).size(), 4U) << "as they are";
  const auto all = with_system_in_place(messages, {.several = false, .later = false});
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].role, "system");
  EXPECT_EQ(all[0].content, "a\n\nb");
  EXPECT_EQ(all[2].role, "user");
  EXPECT_EQ(all[2].content, "<system>\nd\n</system>");
}

/// The library reads it as JSON here: such a result ended the process.
TEST(Results, OfManyLevelsAreText) {
  const ChatTemplate chat = chat_of("google-gemma-4-31B-it-interleaved.jinja");
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const std::vector<ChatMessage> messages = {user("?"), calls({{"c1", "w", "{}"}}), result("c1", deep)};
  EXPECT_THAT(chat.render(ToolChat{.messages = messages, .tools = tools()}).prompt, HasSubstr(deep));
}

TEST(PlainForm, ResultsSayWhoseTheyAre) {
  const std::vector<ChatMessage> one = {user("?"), calls({{"c1", "w", "{}"}}), result("c1", "sun")};
  EXPECT_EQ(in_plain_form(one, {}).back().content, "<tool_response name=\"w\">\nsun\n</tool_response>");
  const std::vector<ChatMessage> two = {user("?"), calls({{"c1", "w", "{}"}, {"c2", "v", "{}"}}), result("c2", "rain"),
                                        result("c1", "sun")};
  EXPECT_EQ(in_plain_form(two, {}).back().content,
            "<tool_response call=\"2\" name=\"v\">\nrain\n</tool_response>\n"
            "<tool_response call=\"1\" name=\"w\">\nsun\n</tool_response>");
  const std::vector<ChatMessage> nameless = {user("?"), calls({{"", "w", "{}"}, {"", "v", "{}"}}), result("", "sun"),
                                             result("", "rain")};
  EXPECT_THAT(in_plain_form(nameless, {}).back().content, HasSubstr("name=\"v\">\nrain"));
}

}  // namespace
}  // namespace coppice::text
