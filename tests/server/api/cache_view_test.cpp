// GET /v1/cache/tree, /v1/cache/events and the page: what is asked of the engine, for whom, and what is said of it.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <latch>
#include <set>
#include <string>
#include <thread>
#include <tuple>

#include "server/api/cache/cache_feed.h"
#include "server/fixture.h"

namespace coppice::testing {
namespace {

using nlohmann::json;

std::vector<kv::Token> bytes(std::string_view text) {
  return {text.begin(), text.end()};
}

/// A stem with a branch, a request that runs on it, and one that ended.
engine::View small_view() {
  engine::View view;
  view.now = 10;
  view.tree.left_out = 3;
  view.tree.nodes.push_back({.serial = 7,
                             .tokens = 64,
                             .head = bytes("You are"),
                             .stored = 32,
                             .holders = 2,
                             .hits = 5,
                             .last_used = 9.5,
                             .left_out = 1});
  view.tree.nodes.push_back(
      {.serial = 9, .parent = 0, .begin = 64, .tokens = 8, .common = 1, .head = bytes("<b>"), .last_used = 4});
  auto report = std::make_shared<engine::CacheReport>();
  *report = {.prompt_tokens = 80,
             .matched_tokens = 64,
             .ended = engine::MatchEnded::kDiffers,
             .before = bytes("is "),
             .asked = bytes("Tuesday"),
             .found = bytes("Monday"),
             .lost_tokens = 15};
  view.requests.push_back({.id = 12,
                           .stage = engine::RequestStage::kDecode,
                           .prompt_tokens = 80,
                           .cached_tokens = 64,
                           .computed_tokens = 81,
                           .completion_tokens = 2,
                           .samples = 1,
                           .seconds = 0.5,
                           .first_token_seconds = 0.25,
                           .stands_on = {9},
                           .report = report});
  view.requests.push_back({.id = 11, .stage = engine::RequestStage::kEnded, .answered = true, .total_seconds = 2});
  return view;
}

class CacheViewTest : public ServerTest {
 protected:
  FakeModel& start_with(const engine::View& view, const server::ServerConfig& c = config(),
                        const engine::Snapshot& snapshot = {}) {
    start_loading(c);
    model_ = std::make_shared<FakeModel>(server_->sink());
    model_->view_ = view;
    model_->snapshot_ = snapshot;
    server_->ready(model_);
    while (client()->get("/health").status != 200) {
    }
    return *model_;
  }
  static server::ServerConfig with_keys(bool isolate) {
    server::ServerConfig c = config();
    c.api.api_keys = {"sk-one", "sk-two"};
    c.api.isolate_keys = isolate;
    return c;
  }
  HttpAnswer get_as(const std::string& key, const std::string& path) {
    return exchange(get_request(path, fmt::format("Authorization: Bearer {}\r\n", key)));
  }
  /// The first frame of the stream.
  json frame(const std::string& fields = "") {
    auto c = client();
    c->send(get_request("/v1/cache/events", fields));
    const std::string text = c->read_until("\n\n\r\n");
    const auto begin = text.find("data: ") + 6;
    return json::parse(text.substr(begin, text.find("\n\n", begin) - begin));
  }
};

TEST_F(CacheViewTest, TreeHasNodesWithTextAndFigures) {
  start_with(small_view());
  const HttpAnswer answer = get("/v1/cache/tree");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.json(), json::parse(R"({"object": "cache.tree", "left_out": 3, "nodes": [
    {"id": 7, "parent": null, "begin": 0, "tokens": 64, "stored": 32, "holders": 2, "hits": 5, "idle_seconds": 0.5, "left_out": 1,
     "text": "You are"},
    {"id": 9, "parent": 7, "begin": 64, "tokens": 8, "stored": 0, "holders": 0, "hits": 0, "idle_seconds": 6, "left_out": 0,
     "text": "<b>", "own_text": "b>"}]})"));
}

TEST_F(CacheViewTest, LimitsAndNamespaceAreTheCallers) {
  FakeModel& model = start_with(small_view());
  EXPECT_EQ(get("/v1/cache/tree?nodes=12&depth=3&text=5&cache_salt=a+b%26").status, 200);
  ASSERT_EQ(model.asked().size(), 1U);
  EXPECT_EQ(model.asked()[0].limits.nodes, 12);
  EXPECT_EQ(model.asked()[0].limits.depth, 3);
  EXPECT_EQ(model.asked()[0].limits.head_tokens, 5);
  EXPECT_EQ(model.asked()[0].ns.salt, "a b&");
}

/// What stands beside each other in the key of what is shared must not run into each other: numbers and a salt, the
/// key's salt and the request's.
TEST_F(CacheViewTest, NumbersAndSaltsNeverRunIntoEachOther) {
  FakeModel& model = start_with(small_view());
  model.keeps_questions_ = true;
  const std::vector<std::string> queries = {
      "?nodes=9&depth=5&text=1&cache_salt=5tenant-secret", "?nodes=9&depth=5&text=15&cache_salt=tenant-secret",
      "?nodes=9&depth=51&text=5&cache_salt=tenant-secret", "?nodes=9&depth=5&text=15&cache_salt=5tenant-secret",
      "?nodes=95&depth=1&text=5&cache_salt=tenant-secret"};
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (const char* path : {"/v1/cache/events", "/v1/cache/tree"}) {
    for (const std::string& query : queries) {
      const std::size_t n = model.asked().size();
      clients.push_back(client());
      clients.back()->send(get_request(path + query));
      // The tree's question is that of the feed with the same query, which waits for its answer.
      const auto end = std::chrono::steady_clock::now() + kLongestWait;
      while (path == std::string("/v1/cache/events") && model.asked().size() == n &&
             std::chrono::steady_clock::now() < end)
        std::this_thread::yield();
    }
  }
  wait_for_figure(fmt::format("coppice_connections {}", clients.size() + 1));
  std::set<std::tuple<std::string, int, int, int>> asked;
  for (const engine::Question& q : model.asked())
    asked.emplace(q.ns.salt, q.limits.head_tokens, q.limits.depth, q.limits.nodes);
  EXPECT_EQ(model.asked().size(), queries.size());
  EXPECT_EQ(asked.size(), queries.size()) << "each has one of its own";
}

TEST_F(CacheViewTest, ABadFieldIsNamed) {
  FakeModel& model = start_with(small_view());
  for (const auto& [query, name] : {std::pair{"nodes=0", "nodes"},
                                    {"nodes=4097", "nodes"},
                                    {"nodes=", "nodes"},
                                    {"nodes=1x", "nodes"},
                                    {"depth=-1", "depth"},
                                    {"text=513", "text"},
                                    {"nodes=4096&text=17", "text"}}) {
    const HttpAnswer answer = get(std::string("/v1/cache/tree?") + query);
    EXPECT_EQ(answer.status, 400) << query;
    EXPECT_EQ(answer.param(), name) << query;
  }
  EXPECT_EQ(get("/v1/cache/tree?cache_salt=" + std::string(257, 'x')).param(), "cache_salt");
  EXPECT_TRUE(model.asked().empty());
}

TEST_F(CacheViewTest, EachKeySeesItsOwnWhereKeysAreKeptApart) {
  FakeModel& model = start({}, with_keys(true));
  EXPECT_EQ(get("/v1/cache/tree").status, 401);
  EXPECT_EQ(get("/v1/cache/events").status, 401);
  for (const char* key : {"sk-one", "sk-two"}) EXPECT_EQ(get_as(key, "/v1/cache/tree?cache_salt=s").status, 200);
  frame("Authorization: Bearer sk-two\r\n");
  ASSERT_EQ(model.asked().size(), 3U);
  const std::string one = model.asked()[0].ns.salt, two = model.asked()[1].ns.salt;
  EXPECT_NE(one, two);
  EXPECT_TRUE(one.ends_with("s") && one.size() > 16);
  EXPECT_EQ(model.asked()[2].ns.salt, two.substr(0, two.size() - 1));
  // It is the namespace that the key's requests are in.
  auto c = client();
  c->send(
      post_request("/v1/completions", R"({"prompt": "hi", "cache_salt": "s"})", "Authorization: Bearer sk-one\r\n"));
  model.wait_submitted(0);
  EXPECT_EQ(model.salt(0), one);
}

TEST_F(CacheViewTest, TextsAreForThoseWhoMaySeeThem) {
  for (const auto how : {server::CacheReports::kLengths, server::CacheReports::kOff}) {
    server::ServerConfig c = config();
    c.api.cache_reports = how;
    start_with(small_view(), c);
    for (const json& nodes : {get("/v1/cache/tree").json()["nodes"], frame()["tree"]["nodes"]}) {
      ASSERT_EQ(nodes.size(), 2U);
      for (const json& node : nodes) EXPECT_FALSE(node.contains("text") || node.contains("own_text"));
    }
    const json report = frame()["requests"][0].value("report", json());
    EXPECT_EQ(report.is_null(), how == server::CacheReports::kOff);
    EXPECT_FALSE(report.is_object() && report.contains("text")) << "who watches need not be who asked";
  }
}

TEST_F(CacheViewTest, FramesTellAllThatThePageShows) {
  engine::Snapshot figures;
  figures.cache = {.block_size = 32,
                   .total = 10,
                   .free = 4,
                   .in_use = 5,
                   .cached = 1,
                   .spared = 3,
                   .bytes_budget = 10'240,
                   .reused = 20};
  figures.cached_tokens = 100;
  figures.saved_seconds = 1.5;
  start_with(small_view(), config(), figures);
  const json seen = frame();
  EXPECT_EQ(seen["model"], "the-model");
  EXPECT_EQ(seen["saved"], json::parse(R"({"tokens": 100, "seconds": 1.5, "bytes": 20480})"));
  EXPECT_EQ(seen["blocks"]["spared"], 3);
  EXPECT_EQ(seen["block_bytes"], 1024);
  EXPECT_EQ(seen["tree"]["nodes"].size(), 2U);
  const json& request = seen["requests"][0];
  EXPECT_EQ(request["stage"], "decode");
  EXPECT_EQ(request["nodes"], json::parse("[9]"));
  EXPECT_EQ(request["first_token_seconds"], 0.25);
  EXPECT_EQ(request["report"]["ended"], "differs");
  EXPECT_EQ(request["report"]["text"], json::parse(R"({"before": "is ", "asked": "Tuesday", "found": "Monday"})"));
  EXPECT_EQ(seen["requests"][1]["stage"], "ended");
}

TEST_F(CacheViewTest, PagesOfANamespaceShareOneQuestion) {
  FakeModel& model = start_with(small_view());
  std::vector<std::unique_ptr<HttpClient>> pages;
  for (int i = 0; i < 10; ++i) {
    pages.push_back(client());
    pages.back()->send(get_request("/v1/cache/events"));
    pages.back()->read_until("\n\n\r\n");
  }
  EXPECT_EQ(model.asked().size(), 1U) << "nothing has happened since the first";
}

/// What the JSON of a view takes, however long, holds neither the connections nor others' prompts.
TEST_F(CacheViewTest, NobodyElseWaitsForTheJsonOfAView) {
  start_loading(config());
  model_ = std::make_shared<FakeModel>(server_->sink(), words({"hi"}));
  model_->view_ = small_view();
  std::latch all_tried(1);
  std::atomic<int> held = 0;
  model_->on_detokenize_ = [&] {
    ++held;
    all_tried.wait();
  };
  server_->ready(model_);
  while (client()->get("/health").status != 200) {
  }
  auto page = client(), tree = client();
  page->send(get_request("/v1/cache/events"));
  tree->send(get_request("/v1/cache/tree"));
  while (held == 0) std::this_thread::yield();
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(complete().status, 200);
  all_tried.count_down();
  EXPECT_EQ(tree->receive().status, 200);
  page->read_until("\n\n\r\n");
}

TEST_F(CacheViewTest, WhoAsksTheSameSharesAnAnswerAndWhoLeavesTakesTheQuestionAlong) {
  FakeModel& model = start_with(small_view());
  model.keeps_questions_ = true;
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(client()), clients.back()->send(get_request("/v1/cache/tree"));
  clients.push_back(client());
  clients.back()->send(get_request("/v1/cache/tree?nodes=3"));
  const auto end = std::chrono::steady_clock::now() + kLongestWait;
  while (model.asked().size() < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  wait_for_figure("coppice_connections 22");
  ASSERT_EQ(model.asked().size(), 2U);
  constexpr std::size_t kShared = 0, kOther = 1;
  clients.pop_back();
  while (model.still_asked(kOther) && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_FALSE(model.still_asked(kOther));
  clients.erase(clients.begin());
  wait_for_figure("coppice_connections 20");
  EXPECT_TRUE(model.still_asked(kShared)) << "others wait for it";
  model.answer(kShared, small_view());
  for (auto& c : clients) EXPECT_EQ(c->receive().status, 200);
  EXPECT_EQ(model.asked().size(), 2U);
}

TEST_F(CacheViewTest, EachKeyMayLookInSoManyWays) {
  using server::CacheFeed;
  start({}, with_keys(true));
  const std::string one = "Authorization: Bearer sk-one\r\n", two = "Authorization: Bearer sk-two\r\n";
  std::vector<std::unique_ptr<HttpClient>> pages;
  const auto open = [&](const std::string& query, const std::string& key) {
    auto page = client();
    page->send(get_request("/v1/cache/events" + query, key));
    const std::string head = page->read_until("\r\n");
    if (head.starts_with("HTTP/1.1 200")) pages.push_back(std::move(page));
    return head.substr(9, 3);
  };
  const auto nth = [](std::size_t n) { return fmt::format("?nodes={}", n + 1); };
  for (std::size_t i = 0; i < CacheFeed::kFrames.of_key; ++i) EXPECT_EQ(open(nth(i), one), "200");
  EXPECT_EQ(open(nth(CacheFeed::kFrames.of_key), one), "429");
  while (pages.size() < CacheFeed::kLookers.of_key) ASSERT_EQ(open(nth(0), one), "200") << "it is there already";
  EXPECT_EQ(open(nth(0), one), "429");
  for (const char* path : {"/v1/cache/tree", "/v1/cache/prefixes", "/v1/cache/prefixes/prefix_1"})
    EXPECT_EQ(exchange(get_request(path, one)).status, 429) << path;
  EXPECT_EQ(open("", two), "200") << "another key doesn't notice";
  EXPECT_EQ(get_as("sk-two", "/v1/cache/tree").status, 200);
  pages.clear();
  const auto end = std::chrono::steady_clock::now() + kLongestWait;
  while (open("?nodes=99", one) != "200" && std::chrono::steady_clock::now() < end) {
  }
  EXPECT_EQ(pages.size(), 1U) << "they gave their room back";
}

/// A token may have many bytes.
TEST_F(CacheViewTest, TextsOfAllNodesHaveABound) {
  engine::View view;
  for (std::uint64_t i = 0; i < 100; ++i)
    view.tree.nodes.push_back({.serial = i, .tokens = 1, .head = std::vector<kv::Token>(50'000, 'x')});
  start_with(view);
  const HttpAnswer answer = get("/v1/cache/tree?nodes=100&text=1");
  EXPECT_LT(answer.body.size(), std::size_t{2} << 20);
  EXPECT_TRUE(answer.json()["nodes"][0].contains("text"));
  EXPECT_FALSE(answer.json()["nodes"][99].contains("text"));
}

TEST_F(CacheViewTest, FramesSayHowFarLoadingIs) {
  start_loading(config());
  auto c = client();
  c->send(get_request("/v1/cache/events"));
  EXPECT_NE(c->read_until("\n\n\r\n").find(R"(data: {"loading":{"stage":"starting","progress":0)"), std::string::npos);
  model_ = std::make_shared<FakeModel>(server_->sink());
  model_->view_ = small_view();
  server_->ready(model_);
  EXPECT_NE(c->read_until("\"the-model\"").find("data: "), std::string::npos);
}

TEST_F(CacheViewTest, FramesEndWhenTheServerDrains) {
  server::ServerConfig c = config();
  c.drain_seconds = 60;
  start_with(small_view(), c);
  auto page = client();
  page->send(get_request("/v1/cache/events"));
  page->read_until("\n\n\r\n");
  server_->drain();
  page->read_until("0\r\n\r\n");
  server_->join();  // it did not wait for the page
}

TEST_F(CacheViewTest, ThePageIsOpenToAllAndHeldToItsPolicy) {
  start({}, with_keys(false));
  const HttpAnswer page = get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_NE(page.headers.at("content-security-policy").find("default-src 'none'; script-src 'self'"),
            std::string::npos);
  EXPECT_EQ(page.headers.at("x-content-type-options"), "nosniff");
  // All that it asks for is there, and nothing of it is elsewhere.
  std::string rest = page.body;
  int files = 0;
  for (const std::string mark : {"src=\"", "href=\""}) {
    for (auto at = rest.find(mark); at != std::string::npos; at = rest.find(mark, at + 1)) {
      const auto begin = at + mark.size();
      const std::string path = rest.substr(begin, rest.find('"', begin) - begin);
      if (path.starts_with('#')) continue;
      EXPECT_TRUE(path.starts_with("/page/")) << path;
      EXPECT_EQ(get(path).status, 200) << path;
      ++files;
    }
  }
  EXPECT_GE(files, 4);
  EXPECT_EQ(get("/page/nothing.js").status, 401) << "as every path that isn't the page's";
}

}  // namespace
}  // namespace coppice::testing
