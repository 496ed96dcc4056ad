#include "text/chat_template.h"

#include <gmock/gmock.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "port/turn.h"
#include "text/fixtures.h"
#include "text/tool_chat.h"

namespace coppice::text {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<ChatMessage> messages_of(const nlohmann::json& c) {
  std::vector<ChatMessage> messages;
  for (const auto& m : c["messages"]) messages.push_back({m["role"], m["content"]});
  return messages;
}

nlohmann::json prompts() {
  std::ifstream in = test::open_fixture("chat_prompts.json");
  return nlohmann::json::parse(in);
}

// Prompts from the jinja2 package (tests/fixtures/make_chat_prompts.py).
TEST(ChatTemplate, RendersAsJinja2Does) {
  const ChatTemplate chat(test::vocabulary());
  const nlohmann::json cases = prompts();
  ASSERT_GE(cases.size(), 10U);
  for (const auto& c : cases) {
    EXPECT_EQ(chat.render(messages_of(c), c["add_generation_prompt"] ? TurnEnd::kOpenTurn : TurnEnd::kClosed),
              c["prompt"].get<std::string>());
  }
}

TEST(ChatTemplate, ManyThreadsAtOnce) {
  const ChatTemplate chat(test::vocabulary());
  const nlohmann::json cases = prompts();
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (const auto& c : cases) {
        wrong[t] += chat.render(messages_of(c), c["add_generation_prompt"] ? TurnEnd::kOpenTurn : TurnEnd::kClosed) !=
                    c["prompt"].get<std::string>();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

/// Between two steps of its own, a long one lets a short one render.
class WaitsForAnother final : public port::Turn {
 public:
  explicit WaitsForAnother(const ChatTemplate& chat) : chat_(chat) { port::set_turn(this); }
  ~WaitsForAnother() override { port::set_turn(nullptr); }
  void between_steps() noexcept override {
    if (std::exchange(asked_, true)) return;
    other_ = std::jthread([this] {
      const std::vector<ChatMessage> short_one = {{"user", "hi"}};
      std::string prompt = chat_.render(short_one, TurnEnd::kClosed);
      const std::scoped_lock lock(mutex_);
      made_ = std::move(prompt);
      changed_.notify_all();
    });
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [this] { return !made_.empty(); });
    got = made_;
  }
  std::string got;

 private:
  const ChatTemplate& chat_;
  bool asked_ = false;
  std::mutex mutex_;  // no future: ThreadSanitizer doesn't see what its standard library waits for
  std::condition_variable changed_;
  std::string made_;
  std::jthread other_;
};

TEST(ChatTemplate, ALongRenderHoldsUpNoneAtOnce) {
  const ChatTemplate chat(test::vocabulary());
  const std::vector<ChatMessage> messages(10000, {"user", "word"}), short_one = {{"user", "hi"}};
  const std::string alone = chat.render(messages, TurnEnd::kClosed);
  WaitsForAnother turn(chat);
  EXPECT_EQ(chat.render(messages, TurnEnd::kClosed), alone);
  EXPECT_THAT(turn.got, testing::HasSubstr("hi"));
  EXPECT_EQ(turn.got, chat.render(short_one, TurnEnd::kClosed));
}

TEST(ChatTemplate, WhereItIsAssumedItsEndStopsAnswers) {
  const auto without = std::make_shared<const Vocabulary>(std::string(COPPICE_VOCABULARIES) + "/ggml-vocab-gpt-2.gguf");
  const std::vector<ChatMessage> messages = {{"user", "hi"}};
  const ToolChat chat{.messages = messages, .end = TurnEnd::kOpenTurn};
  EXPECT_THAT(ChatTemplate(without).render(chat).stops, testing::ElementsAre("<|im_end|>"));
  EXPECT_THAT(ChatTemplate(without, "{{ messages[0].content }}").render(chat).stops, testing::IsEmpty());
  EXPECT_THAT(ChatTemplate(test::vocabulary()).render(chat).stops, testing::IsEmpty());
}

TEST(ChatTemplate, AnOverrideTakesThePlaceOfTheFiles) {
  const ChatTemplate chat(test::vocabulary(), "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}");
  const std::vector<ChatMessage> messages = {{"user", "hi"}, {"assistant", "ho"}};
  EXPECT_EQ(chat.render(messages, TurnEnd::kOpenTurn), "[user: hi][assistant: ho]");
}

TEST(ChatTemplate, WhatAChatDoesNotSayTheOperatorDoes) {
  const std::string source = "{{ enable_thinking }} {{ tone }} {{ messages[0].content }}";
  const ChatTemplate chat(test::vocabulary(), source, {.thinks = false, .variables = {{"tone", R"("dry")"}}});
  const std::vector<ChatMessage> messages = {{"user", "hi"}};
  EXPECT_EQ(chat.render(messages, TurnEnd::kClosed), "False dry hi");
  const ToolChat own = {.messages = messages, .thinks = true, .variables = {{"tone", R"("warm")"}}};
  EXPECT_EQ(chat.render(own).prompt, "True warm hi");
}

TEST(ChatTemplate, TheLastMessageMayGoOn) {
  const std::string source =
      "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
      "{% if add_generation_prompt %}[assistant: {% endif %}";
  const ChatTemplate chat(test::vocabulary(), source);
  const std::vector<ChatMessage> messages = {{"user", "hi"}, {"assistant", "Well, "}};
  EXPECT_EQ(chat.render(messages, TurnEnd::kContinue), "[user: hi][assistant: Well, ");
  EXPECT_EQ(chat.source(), source);
}

TEST(ChatTemplate, TheTemplatesOwnErrorReachesTheCaller) {
  const ChatTemplate chat(test::vocabulary(),
                          "{% for m in messages %}{% if m.role != 'user' and m.role != 'assistant' %}"
                          "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}"
                          "{{ m.content }}{% endfor %}");
  const std::vector<ChatMessage> good = {{"user", "hi"}};
  const std::vector<ChatMessage> bad = {{"wizard", "hi"}};
  EXPECT_EQ(chat.render(good, TurnEnd::kClosed), "hi");
  try {
    chat.render(bad, TurnEnd::kClosed);
    FAIL() << "rendered";
  } catch (const TemplateError& e) {
    EXPECT_STREQ(e.what(), "Only user and assistant roles are supported!");
  }
}

TEST(ChatTemplate, AFaultOfTheTemplateSaysWhere) {
  const ChatTemplate chat(test::vocabulary(),
                          "{% for m in messages %}{{ m.content }}{% endfor %}\n{{ messages | nothing }}");
  try {
    chat.render(std::vector<ChatMessage>{{"user", "hi"}}, TurnEnd::kClosed);
    FAIL() << "rendered";
  } catch (const TemplateError& e) {
    EXPECT_THAT(e.what(), HasSubstr("nothing"));
    EXPECT_THAT(e.what(), HasSubstr("(line 2, column"));
    EXPECT_THAT(e.what(), Not(HasSubstr("\n")));
  }
}

TEST(ChatTemplate, ABrokenTemplateSaysWhy) {
  try {
    const ChatTemplate chat(test::vocabulary(), "{% for m in messages %}{{ m.content }}{% endif %}");
    FAIL() << "parsed";
  } catch (const TemplateError& e) {
    EXPECT_THAT(e.what(), HasSubstr("endif"));
  }
}

}  // namespace
}  // namespace coppice::text
