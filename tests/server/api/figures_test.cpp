// The figures that the server tells: /v1/cache/stats and /metrics.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "server/fixture.h"

namespace coppice::testing {
namespace {

using nlohmann::json;

class FiguresTest : public ServerTest {};

TEST_F(FiguresTest, CacheStatsHaveEveryField) {
  start_loading(config());
  model_ = std::make_shared<FakeModel>(server_->sink());
  engine::Snapshot& s = model_->snapshot_;
  s.cache.block_size = 32;
  s.cache.total = 10, s.cache.free = 5, s.cache.in_use = 3, s.cache.cached = 2, s.cache.shared = 1,
  s.cache.max_refs = 8, s.cache.pinned = 6, s.cache.pins = 7;
  s.cache.bytes_budget = 1000, s.cache.bytes_in_use = 300, s.cache.bytes_peak = 400;
  s.cache.cow_forks = 11, s.cache.evictions = 12, s.preemptions = 13;
  s.prompt_tokens = 20, s.cached_tokens = 21, s.computed_tokens = 22, s.generated_tokens = 23;
  server_->ready(model_);
  while (get("/health").status != 200) {
  }
  const json stats = get("/v1/cache/stats").json();
  const json want = json::parse(R"({"block_size": 32,
    "blocks": {"total": 10, "free": 5, "in_use": 3, "cached": 2, "shared": 1, "max_refs": 8, "pinned": 6}, "pinned_prefixes": 7,
    "bytes": {"budget": 1000, "in_use": 300, "peak": 400},
    "tokens": {"prompt": 20, "cached": 21, "computed": 22, "generated": 23},
    "cow_forks": 11, "evictions": 12, "preemptions": 13, "model": "the-model", "attention": "none",
    "kv_format": "f16", "share": true})");
  json merged = stats;
  merged.merge_patch(want);
  EXPECT_EQ(merged, stats) << stats.dump(2);
}

TEST_F(FiguresTest, MetricsOfADevice) {
  start(words({"a"}));
  EXPECT_EQ(get("/metrics").body.find("coppice_device"), std::string::npos) << "the CPU has none";
  model_->snapshot_.device = {
      .memory_bytes = 1000, .memory_used = 600, .forward_seconds = 7, .sampling_seconds = 2, .gap_seconds = 0.5};
  const std::string body = get("/metrics").body;
  for (const char* line :
       {"coppice_device_memory_bytes 1000", "coppice_device_memory_used_bytes 600",
        "coppice_device_seconds_total{phase=\"forward\"} 7", "coppice_device_seconds_total{phase=\"sampling\"} 2",
        "coppice_device_seconds_total{phase=\"gap\"} 0.5"}) {
    EXPECT_NE(body.find(line), std::string::npos) << line << "\n" << body;
  }
}

TEST_F(FiguresTest, MetricsOfEachTier) {
  start(words({"a"}));
  EXPECT_EQ(get("/metrics").body.find("tier="), std::string::npos) << "there is none";
  EXPECT_EQ(get("/v1/cache/stats").json()["stores"], json::object());
  model_->snapshot_.places = {
      {.kind = tier::StoreKind::kDisk, .on = true, .max_bytes = 50, .load_misses = 3, .load_seconds = 0.5},
      {.kind = tier::StoreKind::kRedis, .off_because = "is away", .loads = 2, .dropped = 4}};
  model_->snapshot_.tiers.unbuffered = 6;
  const std::string body = get("/metrics").body;
  for (const char* line :
       {"coppice_kv_store_on{tier=\"disk\"} 1", "coppice_kv_store_on{tier=\"redis\"} 0",
        "coppice_kv_store_pieces_total{tier=\"disk\",event=\"missed\"} 3",
        "coppice_kv_store_pieces_total{tier=\"disk\",event=\"read\"} 0",
        "coppice_kv_store_pieces_total{tier=\"redis\",event=\"read\"} 2",
        "coppice_kv_store_pieces_total{tier=\"redis\",event=\"dropped\"} 4",
        "coppice_kv_store_read_seconds_total{tier=\"disk\"} 0.5", "coppice_kv_store_unbuffered_total 6"}) {
    EXPECT_NE(body.find(line), std::string::npos) << line << "\n" << body;
  }
  const json stores = get("/v1/cache/stats").json()["stores"];
  EXPECT_EQ(stores["disk"]["on"], true);
  EXPECT_EQ(stores["disk"]["max_bytes"], 50);
  EXPECT_EQ(stores["redis"]["on"], false);
  EXPECT_EQ(stores["redis"]["off_because"], "is away");
}

TEST_F(FiguresTest, MetricsOfThreads) {
  start(words({"a"}));
  EXPECT_EQ(get("/metrics").body.find("coppice_threads"), std::string::npos) << "a GPU's executor has none";
  model_->snapshot_.threads = {.most = 16, .free = 12, .used = 8};
  const std::string body = get("/metrics").body;
  for (const char* line :
       {"coppice_threads{of=\"all\"} 16", "coppice_threads{of=\"free\"} 12", "coppice_threads{of=\"used\"} 8"}) {
    EXPECT_NE(body.find(line), std::string::npos) << line << "\n" << body;
  }
}

TEST_F(FiguresTest, MetricsCountRequestsAndShowTheEngine) {
  start(words({"a", "b"}));
  model_->snapshot_.cached_tokens = 77;
  model_->snapshot_.cache.total = 8, model_->snapshot_.cache.in_use = 2;
  model_->snapshot_.queue_seconds.add(0.03);
  model_->snapshot_.queue_seconds.add(1000);
  complete();
  chat(R"(, "n": -1)");
  get("/nowhere");
  const HttpAnswer answer = get("/metrics");
  EXPECT_TRUE(answer.headers.at("content-type").starts_with("text/plain"));
  for (const char* line : {"coppice_http_requests_total{path=\"/v1/completions\",status=\"200\"} 1",
                           "coppice_http_requests_total{path=\"/v1/chat/completions\",status=\"400\"} 1",
                           "coppice_http_requests_total{path=\"other\",status=\"404\"} 1",
                           "coppice_prefix_cache_hits_total 77",
                           "coppice_time_to_first_token_seconds_count 1",
                           "coppice_ready 1",
                           "coppice_num_requests_preparing 0",
                           "coppice_request_preparation_time_seconds_count 2",
                           "# TYPE coppice_kv_blocks gauge",
                           "coppice_kv_cache_usage_perc 0.25",
                           "vllm:kv_cache_usage_perc{model_name=\"the-model\"} 0.25",
                           "vllm:num_requests_running{model_name=\"the-model\"}",
                           "vllm:num_requests_waiting{model_name=\"the-model\"}",
                           "# TYPE vllm:num_requests_waiting gauge",
                           "coppice_kv_blocks_pinned 0",
                           "coppice_pinned_prefixes 0",
                           "coppice_kv_states_in_use 0",
                           "coppice_kv_states_cached 0",
                           "coppice_kv_state_blocks 0",
                           "# TYPE coppice_request_queue_time_seconds histogram",
                           "coppice_request_queue_time_seconds_bucket{le=\"0.025\"} 0",
                           "coppice_request_queue_time_seconds_bucket{le=\"0.05\"} 1",
                           "coppice_request_queue_time_seconds_bucket{le=\"+Inf\"} 2",
                           "coppice_request_queue_time_seconds_count 2",
                           "coppice_request_queue_time_seconds_sum 1000.03",
                           "coppice_requests_rejected_total{reason=\"invalid\"} 1",
                           "# TYPE coppice_num_preemptions_total counter",
                           "# TYPE coppice_inter_token_latency_seconds histogram"})
    EXPECT_NE(answer.body.find(line), std::string::npos) << line << "\n" << answer.body;
}

class RejectionsTest : public FiguresTest {
 protected:
  double rejected(const std::string& reason) {
    const std::string body = exchange(get_request("/metrics", kKey)).body;
    const std::string line = "coppice_requests_rejected_total{reason=\"" + reason + "\"} ";
    const std::size_t at = body.find(line);
    return at == std::string::npos ? -1 : std::stod(body.substr(at + line.size()));
  }
  static inline const std::string kKey = "Authorization: Bearer sk-1\r\n";
};

TEST_F(RejectionsTest, AreCountedByReason) {
  start_loading(config());
  EXPECT_EQ(complete().status, 503);
  EXPECT_EQ(rejected("unavailable"), 1);
  model_ = std::make_shared<FakeModel>(server_->sink(), words({"x"}));
  server_->ready(model_);
  while (get("/health").status != 200) {
  }
  const auto complete_with = [&](const std::string& prompt) {
    return post("/v1/completions", R"({"prompt": ")" + prompt + R"("})").status;
  };
  EXPECT_EQ(complete_with("hi"), 200);
  EXPECT_EQ(complete_with(std::string(100, 'a')), 400);
  EXPECT_EQ(rejected("too_long"), 1);
  EXPECT_EQ(chat(R"(, "n": -1)").status, 400);
  EXPECT_EQ(complete(R"(, "model": "nobody's")").status, 404);
  EXPECT_EQ(get("/nowhere").status, 404);
  EXPECT_EQ(post("/tokenize", "{}").status, 400) << "asks for no token";
  EXPECT_EQ(rejected("invalid"), 2);
  for (const char* none : {"too_many_samples", "queue_full", "shutdown", "failed", "timeout", "too_heavy",
                           "unauthorized", "too_large", "too_slow"})
    EXPECT_EQ(rejected(none), 0) << none;
  EXPECT_EQ(rejected("unavailable"), 1);
}

/// However many prompts it has, each a request to the engine.
TEST_F(RejectionsTest, CountAnHttpRequestOnce) {
  engine::Refusal why = engine::Refusal::kQueueFull;
  int begun = 0;  // of each request's prompts, those that the engine takes
  start([&](const engine::Request& request) -> std::vector<std::vector<engine::Event>> {
    if (begun-- > 0) return {{piece(request.id, "x")}};
    return {{refusal(request.id, why, "no")}};
  });
  for (const char* form : {"", R"(, "stream": true)"}) {
    begun = 0;
    const std::string body = fmt::format(R"({{"prompt": ["a", "b", "c"], "n": 2{}}})", form);
    EXPECT_EQ(post("/v1/completions", body).status, 429);
  }
  EXPECT_EQ(rejected("queue_full"), 2);
  begun = 1;
  EXPECT_EQ(post("/v1/completions", R"({"prompt": ["a", "b", "c"]})").status, 429)
      << "what has begun is of no use alone";
  EXPECT_EQ(rejected("queue_full"), 3);
  begun = 0;
  why = engine::Refusal::kTimeout;
  EXPECT_EQ(post("/v1/completions", R"({"prompt": ["a", "b", "c"]})").status, 504);
  EXPECT_EQ(rejected("timeout"), 1);
  EXPECT_EQ(rejected("queue_full"), 3);
}

TEST_F(RejectionsTest, OfRequestsWithoutABodyToo) {
  const auto path = std::filesystem::path(::testing::TempDir()) / ("rejections-" + std::to_string(::getpid()));
  std::ofstream(path) << "sk-1\n";
  auto c = config();
  c.api.api_keys_file = path;
  c.http.max_body_bytes = 1000;
  c.http.header_seconds = 0.3;
  c.drain_seconds = 30;
  FakeModel& model = start({}, c);
  EXPECT_EQ(complete().status, 401);
  EXPECT_EQ(rejected("unauthorized"), 1);
  EXPECT_EQ(exchange(post_request("/v1/completions", std::string(1001, ' '), kKey)).status, 413);
  EXPECT_EQ(rejected("too_large"), 1);
  auto slow = client();
  slow->send("GET /hea");
  EXPECT_EQ(slow->receive().status, 408);
  EXPECT_EQ(rejected("too_slow"), 1);

  auto running = client();
  running->send(post_request("/v1/completions", R"({"prompt": "hi"})", kKey));
  const auto id = model.wait_submitted(0);
  server_->drain();
  while (get("/health").status == 200) {
  }
  EXPECT_EQ(exchange(post_request("/v1/completions", "{}", kKey)).status, 503);
  EXPECT_EQ(rejected("shutdown"), 1);
  EXPECT_EQ(rejected("unavailable"), 0);
  model.emit({last(id, "", sampling::Finish::kStop, {})});
  EXPECT_EQ(running->receive().status, 200);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace coppice::testing
