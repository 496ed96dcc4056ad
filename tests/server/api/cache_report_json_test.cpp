// What a request is told about the cache when it asks.
#include "server/api/base/cache_report_json.h"

#include <memory>
#include <string>
#include <vector>

#include "server/fixture.h"

namespace coppice::testing {
namespace {

using nlohmann::json;
using sampling::Finish;

class CacheReportTest : public ServerTest {};

engine::CacheReport a_report() {
  return {.prompt_tokens = 9,
          .matched_tokens = 4,
          .ended = engine::MatchEnded::kDiffers,
          .before = std::vector<kv::Token>{'a', 'b'},
          .asked = std::vector<kv::Token>{'c', 'd'},
          .found = std::vector<kv::Token>{'e'},
          .lost_tokens = 4,
          .lost_seconds = 0.25};
}

TEST_F(CacheReportTest, AreToldToThoseWhoAsk) {
  FakeModel& model = start([](const engine::Request& r) {
    auto event = last(r.id, "x", Finish::kStop, {9, 4, 1});
    if (r.cache_report) event.report = std::make_shared<const engine::CacheReport>(a_report());
    return std::vector<std::vector<engine::Event>>{{event}};
  });
  const json want = json::parse(R"({"prompt_tokens": 9, "matched_tokens": 4, "ended": "differs",
    "why": "The cached text goes on differently here.", "text": {"before": "ab", "asked": "cd", "found": "e"},
    "lost_tokens": 4, "lost_seconds": 0.25})");
  EXPECT_EQ(complete(R"(, "cache_report": true)").json()["cache_report"], want);
  EXPECT_TRUE(model.cache_report(0));
  EXPECT_FALSE(complete().json().contains("cache_report"));
  const json two = post("/v1/completions", R"({"prompt": ["a", "b"], "cache_report": true})").json();
  EXPECT_EQ(two["cache_report"], json::array({want, want}));
  const std::string stream = chat(R"(, "cache_report": true, "stream": true)").body;
  EXPECT_NE(stream.find(R"("choices":[],"cache_report":{"prompt_tokens":9)"), std::string::npos) << stream;
}

TEST_F(CacheReportTest, AreToldInEachApi) {
  start([](const engine::Request& r) {
    auto event = last(r.id, "x", Finish::kStop, {9, 4, 1});
    if (!r.pins.empty()) event.ended->pins.push_back({.prefix = engine::PrefixInfo{.id = "prefix_1"}});
    if (r.cache_report) event.report = std::make_shared<const engine::CacheReport>(a_report());
    return std::vector<std::vector<engine::Event>>{{event}};
  });
  const std::string messages = R"({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}])";
  for (const auto& [path, body] : {std::pair<std::string, std::string>{"/v1/responses", R"({"input": "hi")"},
                                   {"/v1/messages", messages},
                                   {"/v1/cache/prefixes", R"({"text": "hi")"},
                                   {"/completion", R"({"prompt": "hi")"}}) {
    const json answer = post(path, body + R"(, "cache_report": true})").json();
    ASSERT_TRUE(answer.contains("cache_report")) << path << answer;
    EXPECT_EQ(answer["cache_report"]["matched_tokens"], 4) << path;
    EXPECT_FALSE(post(path, body + "}").json().contains("cache_report")) << path;
  }
  const std::string stream = R"(, "cache_report": true, "stream": true})";
  const auto of_responses = post("/v1/responses", R"({"input": "hi")" + stream).events();
  EXPECT_EQ(json::parse(of_responses.back())["response"]["cache_report"]["matched_tokens"], 4);
  const auto of_messages = post("/v1/messages", messages + stream).events();
  ASSERT_GE(of_messages.size(), 2U);
  EXPECT_EQ(json::parse(of_messages[of_messages.size() - 2])["cache_report"]["matched_tokens"], 4);
}

TEST_F(CacheReportTest, OnePromptWithoutOneLeavesThoseOfOthers) {
  int n = 0;
  start([&](const engine::Request& r) {
    if (n++ % 3 == 1)
      return std::vector<std::vector<engine::Event>>{{refusal(r.id, engine::Refusal::kTimeout, "late")}};
    auto event = last(r.id, "x", Finish::kStop, {9, 4, 1});
    event.report = std::make_shared<const engine::CacheReport>(a_report());
    return std::vector<std::vector<engine::Event>>{{event}};
  });
  const std::string body = R"({"prompt": ["a", "b", "c"], "cache_report": true)";
  const auto events = post("/v1/completions", body + R"(, "stream": true})").events();
  ASSERT_GE(events.size(), 2U);
  for (const json& answer : {post("/v1/completions", body + "}").json(), json::parse(events[events.size() - 2])}) {
    const json reports = answer["cache_report"];
    ASSERT_EQ(reports.size(), 3U) << answer;
    EXPECT_EQ(reports[0]["matched_tokens"], 4);
    EXPECT_EQ(reports[1], nullptr);
    EXPECT_EQ(reports[2]["matched_tokens"], 4);
  }
}

TEST_F(CacheReportTest, TheOperatorSaysHowMuchTheyTell) {
  auto c = config();
  const auto script = [](const engine::Request& r) {
    auto event = last(r.id, "x", Finish::kStop, {9, 4, 1});
    event.report = std::make_shared<const engine::CacheReport>(a_report());
    return std::vector<std::vector<engine::Event>>{{event}};
  };
  c.api.cache_reports = server::CacheReports::kLengths;
  start(script, c);
  const json text = complete(R"(, "cache_report": true)").json()["cache_report"]["text"];
  EXPECT_EQ(text, json::parse(R"({"before": "ab", "asked": "cd"})")) << "only the client's own text";
  c.api.cache_reports = server::CacheReports::kOff;
  start(script, c);
  const HttpAnswer answer = complete(R"(, "cache_report": true)");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.param(), "cache_report");
  EXPECT_EQ(complete(R"(, "cache_report": false)").status, 200);
}

TEST(CacheReportText, SaysWhereAMediumStands) {
  FakeModel model({});
  kv::Text text = std::vector<kv::Token>{'a', 'b'};
  text.append(kv::Medium{.rows = 3});
  text.append(std::vector<kv::Token>{'c'});
  text.append(kv::Medium{.rows = 2});
  EXPECT_EQ(server::shown_text(model, text), "ab[image, 3 tokens]c[image, 2 tokens]");
  EXPECT_EQ(server::shown_text(model, text.view().subspan(3)), "[image, 3 tokens]c[image, 2 tokens]");
  EXPECT_EQ(server::shown_text(model, {}), "");
}

}  // namespace
}  // namespace coppice::testing
