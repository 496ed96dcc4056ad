// Which beginnings of a prompt a request pins, and how that is told. On a model whose tokens are bytes, so that a
// beginning can be read. What the cache makes of it: tests/engine/prefixes_test.cpp; all of it together:
// tests/e2e/test_pins.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/api/anthropic/anthropic_dialect.h"
#include "server/api/anthropic/cache_control.h"
#include "server/api/cache/prefix_dialect.h"
#include "server/fake_model.h"
#include "server/prepare.h"

namespace coppice::testing {
namespace {

using server::AnthropicDialect;
using server::PrefixDialect;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::Pair;

/// What stays cached, and for how long.
std::vector<std::pair<std::string, int>> pins_of(const server::Dialect& dialect, const std::string& body) {
  FakeModel model({});
  const server::Prepared prepared = prepare(model, dialect, body);
  EXPECT_EQ(prepared.requests.size(), 1U);
  const engine::Request& request = prepared.requests.front();
  const auto tokens = request.prompt.view().tokens();
  const std::string prompt(tokens.begin(), tokens.end());
  std::vector<std::pair<std::string, int>> pins;
  for (const engine::PinWish& wish : request.pins)
    pins.emplace_back(prompt.substr(0, static_cast<std::size_t>(wish.tokens)), wish.ttl.count());
  return pins;
}

std::vector<std::pair<std::string, int>> marked(const std::string& fields) {
  return pins_of(AnthropicDialect(), R"({"max_tokens": 1, )" + fields + "}");
}

const std::string kMark = R"("cache_control": {"type": "ephemeral"})";
const std::string kLongMark = R"("cache_control": {"type": "ephemeral", "ttl": "1h"})";

TEST(PinMarks, EndWhereTheirBlocksEnd) {
  EXPECT_THAT(marked(R"("system": [{"type": "text", "text": "one"}, {"type": "text", "text": "two", )" + kLongMark +
                     R"(}, {"type": "text", "text": "three"}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "four", )" +
                     kMark + R"(}, {"type": "text", "text": "five"}]}])"),
              ElementsAre(Pair("system: one\n\ntwo\n", 3600), Pair("system: one\n\ntwo\n\nthree\nuser: four", 300)));
}

TEST(PinMarks, OfCallsAndTheirResults) {
  EXPECT_THAT(
      marked(R"("messages": [{"role": "user", "content": "add"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "a", "input": {}, )" +
             kMark + R"(},
                                      {"type": "tool_use", "id": "2", "name": "b", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "x", )" +
             kLongMark + R"(},
                                 {"type": "tool_result", "tool_use_id": "2", "content": "y"}, {"type": "text", "text": "so?"}]}])"),
      ElementsAre(Pair("user: add\nassistant: a{} ", 300), Pair("user: add\nassistant: a{} b{} \ntool: x\n", 3600)));
}

// Other tools than "custom" run elsewhere, and are not in the prompt.
TEST(PinMarks, OfTools) {
  EXPECT_THAT(marked(R"("messages": [{"role": "user", "content": "hi"}],
    "tools": [{"name": "a", "input_schema": {}}, {"type": "web_search", "name": "w"}, {"name": "b", "input_schema": {}, )" +
                     kMark + R"(}, {"name": "c", "input_schema": {}}])"),
              ElementsAre(Pair("a\nb\n", 300)));
  EXPECT_THAT(marked(R"("messages": [{"role": "user", "content": "hi"}], "system": "Help.",
    "tools": [{"name": "a", "input_schema": {}, )" +
                     kMark + "}]"),
              ElementsAre(Pair("a\nsystem: Help.\nuser: ", 300)));
}

TEST(PinMarks, OfTheRequest) {
  EXPECT_THAT(marked(R"("messages": [{"role": "user", "content": "hi"}], )" + kMark),
              ElementsAre(Pair("user: hi\n", 300)));
}

// Left out, with nothing in its place: the mark is where it would be.
TEST(PinMarks, OfBlocksThatAreLeftOut) {
  const std::string billing = R"({"type": "text", "text": "x-anthropic-billing-header: 1", )" + kMark + "}";
  const std::string turns = R"(, "messages": [{"role": "user", "content": "hi"}])";
  EXPECT_THAT(marked(R"("system": [)" + billing + "]" + turns), ElementsAre(Pair("user: ", 300)));
  EXPECT_THAT(
      marked(
          R"("messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": [{"type": "text", "text": "", )" +
          kMark + R"(}]}, {"role": "user", "content": "so?"}])"),
      ElementsAre(Pair("user: hi\n", 300)));
}

// A part of a chat that the template refuses by itself.
TEST(PinMarks, WhatTheTemplateRefusesStaysUnpinned) {
  EXPECT_THAT(marked(R"("messages": [{"role": "user", "content": [{"type": "text", "text": "alien", )" + kMark +
                     R"(}, {"type": "text", "text": "s"}]}])"),
              ElementsAre(Pair("", 300)));
}

std::vector<engine::PinOutcome> outcomes(const std::vector<std::pair<int, int>>& tokens_and_ttls) {
  std::vector<engine::PinOutcome> pins;
  for (const auto& [tokens, ttl] : tokens_and_ttls) {
    engine::PinOutcome& pin = pins.emplace_back();
    pin.asked_ttl = seconds(ttl);
    if (tokens > 0) pin.prefix = engine::PrefixInfo{.tokens = tokens + 3, .pinned_tokens = tokens};
  }
  return pins;
}

std::pair<int, int> created(const std::vector<std::pair<int, int>>& pins, int cached) {
  const auto sum = server::cache_creation(outcomes(pins), cached);
  EXPECT_EQ(sum.tokens(), sum.five_minutes + sum.one_hour);
  return {sum.five_minutes, sum.one_hour};
}

TEST(CacheCreation, IsWhatWasNotFoundUpToTheLastPin) {
  EXPECT_THAT(created({}, 50), Pair(0, 0));
  EXPECT_THAT(created({{64, 300}}, 0), Pair(64, 0));
  EXPECT_THAT(created({{64, 300}}, 40), Pair(24, 0));
  EXPECT_THAT(created({{64, 300}}, 70), Pair(0, 0));
  EXPECT_THAT(created({{64, 3600}, {96, 300}}, 0), Pair(32, 64));
  EXPECT_THAT(created({{64, 3600}, {96, 300}}, 80), Pair(16, 0));
  EXPECT_THAT(created({{64, 300}, {96, 3600}}, 32), Pair(32, 32));
  EXPECT_THAT(created({{64, 3600}, {0, 300}}, 0), Pair(0, 64)) << "the second was refused";
}

TEST(PinnedPrefix, IsWhatAllChatsHaveInCommonThatBeginSo) {
  EXPECT_THAT(pins_of(PrefixDialect(), R"({"messages": [{"role": "system", "content": "Help."}]})"),
              ElementsAre(Pair("system: Help.\nuser: ", 3600)));
  EXPECT_THAT(pins_of(PrefixDialect(), R"({"messages": [{"role": "user", "content": "hi"}], "ttl": 7,
    "tools": [{"type": "function", "function": {"name": "a"}}]})"),
              ElementsAre(Pair("a\nuser: hi\nassistant: ", 7)));
  EXPECT_THAT(pins_of(PrefixDialect(), R"({"text": "Once"})"), ElementsAre(Pair("Once", 3600)));
}

TEST(PinnedPrefix, DrawsNoTokenAndIsAnObject) {
  FakeModel model({});
  const server::Prepared prepared =
      prepare(model, PrefixDialect(), R"({"text": "Once", "name": "n", "cache_salt": "s"})");
  const engine::Request& request = prepared.requests.front();
  EXPECT_EQ(request.max_tokens, 0);
  EXPECT_EQ(request.ns.salt, "s");
  EXPECT_TRUE(request.pins.at(0).object);
  EXPECT_EQ(request.pins.at(0).name, "n");
}

TEST(PinnedPrefix, ARefusalIsAnError) {
  using engine::PinRefusal;
  for (const auto& [why, status] : {std::pair(PinRefusal::kTooShort, 400), std::pair(PinRefusal::kOwnersShare, 409),
                                    std::pair(PinRefusal::kShare, 409), std::pair(PinRefusal::kPromised, 409),
                                    std::pair(PinRefusal::kTooMany, 409), std::pair(PinRefusal::kNoMemory, 503)}) {
    server::PrefixBody body({});
    try {
      body.end({.pins = {{.refusal = why, .needed = 4711, .most = 42}}}, {});
      ADD_FAILURE() << "no error";
    } catch (const server::RequestError& e) {
      EXPECT_EQ(e.status(), status);
      const bool figures = why == PinRefusal::kOwnersShare || why == PinRefusal::kShare || why == PinRefusal::kPromised;
      EXPECT_EQ(std::string(e.what()).contains("4711"), figures) << e.what();
    }
  }
}

}  // namespace
}  // namespace coppice::testing
