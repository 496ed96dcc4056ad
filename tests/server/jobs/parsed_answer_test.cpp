// The ids that calls get which a model writes, with its templates.
#include "server/jobs/parsed_answer.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/fixtures.h"
#include "text/grammar_walk.h"
#include "text/templates.h"
#include "text/tool_chat.h"

namespace coppice::server {
namespace {

using testing::ElementsAre;

/// Keeps the ids of its calls.
class IdsOnly final : public Answer {
 public:
  explicit IdsOnly(std::vector<std::string>& ids) : ids_(ids) {}
  std::string delta(Delta&& delta) override {
    for (const CallDelta& call : delta.calls)
      if (!call.id.empty()) ids_.push_back(call.id);
    return "";
  }
  std::string end(const engine::Usage&, CacheReportList) override { return ""; }
  std::string error(const RequestError&) override { return ""; }
  std::size_t bytes() const override { return 0; }

 private:
  std::vector<std::string>& ids_;
};

/// Of the calls in `text`, an answer of a chat with two calls before.
std::vector<std::string> ids_of(const std::string& name, const std::string& text) {
  const text::ChatTemplate chat(test::vocabulary(), text::text_of_template(name));
  const std::vector<text::ChatMessage> messages = {{.role = "user", .content = "Weather in Paris?"}};
  const auto tools = text::weather_tools();
  const text::ToolPrompt prompt =
      chat.render(text::ToolChat{.messages = messages, .tools = tools, .must_call = true, .parallel = true});
  std::vector<std::string> ids;
  ParsedAnswer answer(std::make_unique<IdsOnly>(ids), prompt.format, 1,
                      {.form = prompt.call_ids, .before = 2, .name = "x"}, true);
  for (const char c : text) answer.delta({.text = std::string(1, c)});
  answer.delta({.end = {{.finish = sampling::Finish::kStop}}});
  return ids;
}

std::string mistrals(const std::string& id) {
  return "[TOOL_CALLS]get_weather[CALL_ID]" + id + R"([ARGS]{"city":"Paris","days":1})";
}

TEST(CallIds, AreTheModelsOwnUnlessAnotherCallHasThem) {
  const std::string name = "Mistral-Small-3.2-24B-Instruct-2506", kept = "a1b2c3d4e", other = "a1b2c3d4f";
  EXPECT_THAT(ids_of(name, mistrals(kept) + mistrals(other)), ElementsAre(kept, other));
  const std::vector<std::string> ids = ids_of(name, mistrals(kept) + mistrals(kept) + mistrals(kept));
  ASSERT_EQ(ids.size(), 3U);
  EXPECT_EQ(ids[0], kept);
  EXPECT_NE(ids[1], kept);
  EXPECT_NE(ids[2], kept);
  EXPECT_NE(ids[1], ids[2]);
  EXPECT_EQ(ids[1].size(), 9U) << ids[1];
}

std::string kimis(const std::string& id) {
  return "<|tool_call_begin|>" + id + R"(<|tool_call_argument_begin|>{"city":"Paris","days":1}<|tool_call_end|>)";
}

TEST(CallIds, ThatCountGoOnBehindThoseThatAreTaken) {
  const auto of = [](const std::string& calls) {
    return ids_of("Kimi-K2-Instruct", "<|tool_calls_section_begin|>" + calls + "<|tool_calls_section_end|>");
  };
  const std::string second = "functions.get_weather:3";
  EXPECT_THAT(of(kimis("functions.get_weather:2") + kimis(second)), ElementsAre("functions.get_weather:2", second));
  EXPECT_THAT(of(kimis(second) + kimis(second)), ElementsAre(second, "functions.get_weather:4"));
}

}  // namespace
}  // namespace coppice::server
