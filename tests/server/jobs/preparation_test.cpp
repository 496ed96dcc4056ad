// From a body to what the engine is asked: how much of it there may be, and what stays in memory.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "grammar/matcher.h"
#include "server/api/tokenize.h"
#include "server/base/request_error.h"
#include "server/fake_model.h"
#include "server/prepare.h"

namespace coppice::testing {
namespace {

/// It lives until the reply's end, beside those of all that wait in the queue. No option is lost: answers may need it.
TEST(Prepared, HoldsAllButTheInput) {
  FakeModel model([](std::vector<engine::Event>&&) {});
  const auto held = [&](server::Endpoint endpoint, const std::string& input) {
    return prepare(model, endpoint, "{" + input + R"(, "n": 3, "stop": "end", "temperature": 0.5, "stream": true})");
  };
  const auto chat = held(server::Endpoint::kChat, R"("messages": [{"role": "user", "content": "hi"}])");
  EXPECT_TRUE(chat.terms.stream);
  EXPECT_EQ(chat.terms.n, 3);
  EXPECT_EQ(chat.sampling->params.stop, std::vector<std::string>{"end"});
  EXPECT_EQ(chat.sampling->params.temperature, 0.5F);
  const auto text = held(server::Endpoint::kCompletions, R"("prompt": ["hi", "ho"], "echo": true)");
  EXPECT_EQ(text.echoes, (std::vector<std::string>{"hi", "ho"})) << "not one for each of the 6 choices";
}

TEST(Preparation, WantsAnInput) {
  FakeModel model([](std::vector<engine::Event>&&) {});
  server::GenerationRequest nothing;
  nothing.input_field = "ask";
  EXPECT_THROW(server::Preparation(model, nothing), server::RequestError);
}

TEST(Preparation, TemplatesGetCallsReasoningAndTools) {
  FakeModel model([](std::vector<engine::Event>&&) {});
  const auto step = [&](server::Message message, server::Tools tools = {}) {
    message.role = "assistant";
    message.content = {{"a"}, {"b"}};
    server::GenerationRequest request;
    request.messages = {std::move(message)};
    request.tools = std::move(tools);
    server::Preparation preparation(model, std::move(request));
    preparation.step();
    const auto tokens = preparation.take().requests.at(0).prompt.view().tokens();
    return std::string(tokens.begin(), tokens.end());
  };
  EXPECT_EQ(step({}), "assistant: ab\nassistant: ");
  EXPECT_EQ(step({.calls = {{"1", "f", "{}"}}, .reasoning = "hm"}), "assistant: (hm) f{} ab\nassistant: ");
  EXPECT_EQ(step({}, {.specs = {{"g", "", "{}"}}}), "g\nassistant: ab\nassistant: ");
}

TEST(Preparation, AFormBesideToolsAllowsCallsToo) {
  FakeModel model([](std::vector<engine::Event>&&) {});
  const std::string body = R"({"messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema":
      {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}}})";
  const auto takes = [&](const std::string& more, const std::string& text) {
    const auto prepared = prepare(model, server::Endpoint::kChat, body + more + "}");
    grammar::Matcher matcher(prepared.sampling->params.grammar.grammar);
    return matcher.accept_text(text) && matcher.whole();
  };
  EXPECT_THROW(takes("", ""), server::RequestError) << "nothing marks where a call begins";
  model.calls_ = "root ::= \"<call>\" name\nname ::= \"f\" | \"g\"";
  EXPECT_TRUE(takes("", R"({"a":true})"));
  EXPECT_TRUE(takes("", "<call>f"));
  EXPECT_FALSE(takes("", "I call f"));
  EXPECT_FALSE(takes("", R"({"a":1})"));
  EXPECT_FALSE(takes(R"(, "tool_choice": "none")", "<call>f"));
}

std::string text_of(kv::TextView prompt) {
  const std::vector<kv::Token> tokens = prompt.tokens();
  return {tokens.begin(), tokens.end()};
}

TEST(Preparation, KeepsThePromptsEndIfItMay) {
  FakeModel model([](std::vector<engine::Event>&&) {});  // a context of 100 tokens, of a byte each
  const auto kept = [&](const std::string& prompt, int keep) {
    return prepare(
        model, server::Endpoint::kCompletions,
        R"({"prompt": )" + prompt + R"(, "echo": true, "truncate_prompt_tokens": )" + std::to_string(keep) + "}");
  };
  EXPECT_EQ(text_of(kept(R"("abcdef")", 2).requests[0].prompt), "ef");
  EXPECT_EQ(kept(R"("abcdef")", 2).echoes[0], "ef") << "what the model got";
  EXPECT_EQ(text_of(kept("[97, 98, 99]", 2).requests[0].prompt), "bc");
  EXPECT_EQ(text_of(kept(R"("abc")", 9).requests[0].prompt), "abc");
  const std::string tail(99, 'b');
  EXPECT_EQ(text_of(kept("\"" + std::string(500, 'a') + tail + "\"", -1).requests[0].prompt), tail);
  EXPECT_THROW(kept("\"" + std::string(500, 'a') + "\"", 100), server::RequestError) << "no room for an answer";
  EXPECT_THROW(kept("\"" + std::string(2000, 'a') + "\"", 2), server::RequestError) << "16 contexts at most";
}

TEST(Preparation, TurnsTextsIntoTokens) {
  FakeModel model([](std::vector<engine::Event>&&) {});
  const auto prepared = prepare(model, server::Endpoint::kCompletions, R"({"prompt": "hi",
    "logit_bias": [["ab", 2], [97, 1], ["bc", -0.5], ["c", false]], "bad_words": ["no"]})");
  const sampling::SamplingParams& params = prepared.sampling->params;
  EXPECT_EQ(params.logit_bias.at('a'), 3) << "both count";
  EXPECT_EQ(params.logit_bias.at('b'), 1.5F);
  EXPECT_EQ(params.logit_bias.at('c'), sampling::kNever);
  using Word = std::vector<kv::Token>;
  EXPECT_EQ(params.bad_words, (std::vector<Word>{{' ', 'n', 'o'}, {'n', 'o'}}));
}

TEST(Preparation, HandsOnWhetherTheCacheIsAsked) {
  FakeModel model([](std::vector<engine::Event>&&) {});
  const auto asked = [&](const char* fields) {
    return prepare(model, server::Endpoint::kCompletions, std::string(R"({"prompt": "hi")") + fields + "}")
        .requests.at(0)
        .match_cache;
  };
  EXPECT_TRUE(asked(""));
  EXPECT_FALSE(asked(R"(, "cache_prompt": false)"));
}

/// The thread that compiles may be busy for seconds with another's grammar.
TEST(Preparation, WaitsForACompilationOnlyOnce) {
  FakeModel model([](std::vector<engine::Event>&&) {});
  const auto preparation = [&](bool optional) {
    server::GenerationRequest request;
    request.prompts.emplace_back("hi");
    request.grammar = grammar::Constraint{.source = {.kind = grammar::Kind::kGbnf, .text = R"(root ::= | "once")"},
                                          .after = "so: ",
                                          .begun = "on",
                                          .optional = optional};
    return server::Preparation(model, std::move(request));
  };
  const auto follows = [](server::Preparation& known) {
    EXPECT_FALSE(known.wants_grammar());
    known.step();
    const auto prepared = known.take();
    const sampling::GrammarParams& params = prepared.sampling->params.grammar;
    EXPECT_EQ(params.after + params.begun, "so: on");
    EXPECT_EQ(prepared.requests.at(0).shared.what, params.grammar);
    EXPECT_GT(prepared.requests.at(0).shared.bytes, 1000U);
    return params.grammar;
  };
  auto first = preparation(false);
  ASSERT_TRUE(first.wants_grammar());
  first.compile_grammar();
  const auto grammar = follows(first);
  ASSERT_NE(grammar, nullptr);
  for (const bool optional : {false, true}) {
    auto second = preparation(optional);
    EXPECT_EQ(follows(second), grammar);
  }
}

/// More prompts can never all be let in, so that asking again is of no use.
TEST(Prepared, TakesAsManyPromptsAsHaveRoom) {
  FakeModel model([](std::vector<engine::Event>&&) {});
  model.facts_.max_batch = 2;
  model.facts_.max_waiting = 1;
  const auto taken = [&](const char* prompts) {
    return prepare(model, server::Endpoint::kCompletions, prompts).requests.size();
  };
  EXPECT_EQ(taken(R"({"prompt": ["a", "b", "c"]})"), 3U);
  try {
    taken(R"({"prompt": ["a", "b", "c", "d"]})");
    FAIL();
  } catch (const server::RequestError& e) {
    EXPECT_EQ(e.status(), 400);
    EXPECT_STREQ(e.what(), "'prompt': at most 3 prompts");
  }
  model.facts_.max_waiting = SIZE_MAX;
  EXPECT_EQ(taken(R"({"prompt": ["a", "b", "c", "d"]})"), 4U) << "as --max-queue 18446744073709551615 has it";
}

/// The context bounds what a body's values may take in memory and time, and refuses nothing that fits into it.
TEST(Prepared, TakesWhatFitsTheContextOnly) {
  FakeModel model([](std::vector<engine::Event>&&) {});
  model.facts_.context_length = 2000;
  const auto list = [](std::size_t n, const std::string& what) {
    std::string all = what;
    for (std::size_t i = 1; i < n; ++i) all += "," + what;
    return "[" + all + "]";
  };
  const auto code = [&](server::Endpoint endpoint, const std::string& input) -> std::string {
    try {
      prepare(model, endpoint, "{" + input + "}");
    } catch (const server::RequestError& e) {
      return e.code();
    }
    return "";
  };
  constexpr auto kChat = server::Endpoint::kChat, kCompletions = server::Endpoint::kCompletions;
  const std::string full = list(1999, "7");
  EXPECT_EQ(code(kCompletions, R"("prompt": )" + list(server::kMaxPrompts, full)), "");
  EXPECT_EQ(code(kCompletions, R"("prompt": )" + list(2001, "7")), "context_length_exceeded");
  const std::string message = R"({"name": "n", "role": "user", "content": [{"type": "text", "text": ""}]})";
  EXPECT_EQ(code(kChat, R"("messages": )" + list(2001, message)), "context_length_exceeded") << "and not for its form";
  for (const auto& [endpoint, good] : {std::pair(kChat, R"("messages": [{"role": "user", "content": "hi"}])"),
                                       std::pair(kCompletions, R"("prompt": "hi")")}) {
    EXPECT_EQ(code(endpoint, good), "");
    EXPECT_EQ(code(endpoint, std::string(good) + R"(, "x": )" + list(30000, "{}")), "too_many_values");
    EXPECT_EQ(code(endpoint, std::string(good) + R"(, "x": )" + list(300000, "0")), "too_many_values");
  }
  EXPECT_THROW(server::tokenize_reply(model, R"({"content": "hi", "x": )" + list(30000, "{}") + "}"),
               server::RequestError);
  EXPECT_THROW(server::detokenize_reply(model, R"({"tokens": [1], "x": )" + list(30000, "{}") + "}"),
               server::RequestError);
}

}  // namespace
}  // namespace coppice::testing
