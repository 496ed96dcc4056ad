// The whole server under random load, with all its threads: clients on sockets, the network, the worker, the engine;
// the fake executor, which now and then fails. Requests share beginnings and a pool that is too small for them; some
// clients leave in the middle. Fit for TSan.
//
// What each client does follows from the seed, how the threads meet does not. An operation is an HTTP request of a
// client. There are 2,400 (COPPICE_OPERATIONS: another number, in rounds of a fresh server), half of them with each set
// of groups, and each hard transition must be met once in a thousand.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/engine_fixture.h"

namespace coppice::testing {
namespace {

constexpr int kClients = 8;
constexpr int kRequestsEach = 150;

struct Counts {
  std::atomic<int> right = 0, failed = 0, late = 0, left = 0;
};

class Client {
 public:
  Client(std::uint16_t port, const EngineOnFakes& model, const std::vector<Prompt>& shared, std::uint64_t seed,
         Counts& counts)
      : port_(port), model_(model), shared_(shared), random_(seed), counts_(counts) {}

  void run() {
    try {
      for (int i = 0; i < kRequestsEach && !::testing::Test::HasFailure(); ++i) {
        if (!http_ || pick(0, 4) == 0) http_.emplace(port_);
        const int dice = pick(0, 9);
        dice < 3 ? whole() : dice < 7 ? stream() : leave();
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  nlohmann::json draw(bool stream, int max_tokens) {
    const Prompt& beginning = shared_[static_cast<std::size_t>(pick(0, static_cast<int>(shared_.size()) - 1))];
    prompt_.assign(beginning.begin(), beginning.begin() + pick(0, static_cast<int>(beginning.size())));
    prompt_ = prompt_ + random_prompt(random_, static_cast<std::size_t>(pick(1, 20)));
    max_tokens_ = max_tokens;
    seed_ = static_cast<std::uint64_t>(pick(0, 1'000'000));
    nlohmann::json body = {{"prompt", prompt_}, {"max_tokens", max_tokens}, {"seed", seed_}, {"stream", stream}};
    if (pick(0, 3) == 0) body["cache_salt"] = "other";
    if (pick(0, 1) == 0) body["priority"] = pick(-2, 2);
    if (pick(0, 3) == 0) body["cache_report"] = true;
    timed_ = pick(0, 9) == 0;
    if (timed_) body["timeout"] = 0.001 * pick(1, 20);
    return body;
  }

  std::string right_text(std::uint64_t sample = 0) const {
    return model_.expected_text(prompt_, seed_ + sample, max_tokens_);
  }

  // Ended early by a timeout, it may be cut.
  void check_text(const std::string& text, const nlohmann::json& finish_reason, std::uint64_t sample = 0) {
    const std::string right = right_text(sample);
    EXPECT_EQ(finish_reason, "length");
    EXPECT_EQ(text, timed_ ? right.substr(0, text.size()) : right);
    ++counts_.right;
  }

  void check_refused(int status, const std::string& code) {
    EXPECT_TRUE((status == 500 && code == "model_failed") || (timed_ && status == 504 && code == "deadline_exceeded"))
        << status << " " << code;
    ++(status == 500 ? counts_.failed : counts_.late);
  }

  void whole() {
    auto body = draw(false, pick(1, 48));
    if (pick(0, 3) == 0) body["n"] = 2;
    const HttpAnswer answer = http_->post("/v1/completions", body.dump());
    if (answer.status != 200) {
      check_refused(answer.status, answer.code());
    } else {
      const auto parsed = answer.json();
      for (std::uint64_t i = 0; i < parsed["choices"].size(); ++i)
        check_text(parsed["choices"][i]["text"], parsed["choices"][i]["finish_reason"], i);
    }
    if (answer.headers.contains("connection") && answer.headers.at("connection") == "close") http_.reset();
  }

  void stream() {
    http_->send(post_request("/v1/completions", draw(true, pick(1, 48)).dump()));
    const HttpAnswer answer = http_->receive();
    if (answer.headers.contains("connection") && answer.headers.at("connection") == "close") http_.reset();
    if (answer.status != 200) return check_refused(answer.status, answer.code());
    std::string text;
    nlohmann::json finish_reason;
    const auto events = answer.events();
    for (const std::string& data : events) {
      if (data == "[DONE]") return check_text(text, finish_reason);
      const auto event = nlohmann::json::parse(data);
      if (event.contains("error")) {
        EXPECT_EQ(event["error"]["code"], "model_failed");
        EXPECT_EQ(&data, &events.back());
        EXPECT_EQ(text, right_text().substr(0, text.size()));
        ++counts_.failed;
        http_.reset();
        return;
      }
      for (const auto& choice : event["choices"]) {
        text += choice["text"].get<std::string>();
        finish_reason = choice["finish_reason"];
      }
    }
    ADD_FAILURE() << "a stream without an end: " << answer.body;
  }

  void leave() {
    const std::string request = post_request("/v1/completions", draw(pick(0, 2) > 0, 80).dump());
    if (pick(0, 3) == 0) {
      http_->send(
          std::string_view(request).substr(0, static_cast<std::size_t>(pick(1, static_cast<int>(request.size())))));
    } else {
      http_->send(request);
      if (pick(0, 2) > 0) http_->read_some();
    }
    http_.reset();
    ++counts_.left;
  }

  std::uint16_t port_;
  const EngineOnFakes& model_;
  const std::vector<Prompt>& shared_;
  std::mt19937_64 random_;
  Counts& counts_;
  std::optional<HttpClient> http_;
  // Of the request in hand.
  Prompt prompt_;
  int max_tokens_ = 0;
  std::uint64_t seed_ = 0;
  bool timed_ = false;
};

class ServerThreads : public EngineServerTest, public ::testing::WithParamInterface<Groups> {
 protected:
  void start_failing_now_and_then(std::uint64_t seed) {
    start_engine({.groups = GetParam(),
                  .num_blocks = GetParam() == Groups::kFull ? 28 : 36,  // little more than the largest request takes
                  .max_batch = 8,
                  .step_tokens = 32,
                  .max_extend = 32,
                  .context_length = 200,
                  .growth_room = false,
                  .check_every = 1},
                 [&](FakeExecutor& executor) {
                   executor.during_forward([&executor, random = std::mt19937_64(seed)]() mutable {
                     if (random() % 50 == 0) executor.fail_at(static_cast<int>(executor.steps().size()));
                     // A model takes its time: so requests meet, and who leaves does so in the middle.
                     std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
                   });
                 });
  }

  void watch(const std::atomic<bool>& watching) {
    try {
      HttpClient http(server_->port());
      while (watching && !HasFailure()) {
        const auto figures = model_->snapshot();
        EXPECT_EQ(figures.cache.total, figures.cache.free + figures.cache.cached + figures.cache.in_use);
        EXPECT_EQ(http.get("/metrics").status, 200);
        EXPECT_EQ(http.get("/health").status, 200);
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }

  std::int64_t open() const {
    const auto f = model_->snapshot();
    return f.requests_submitted - f.requests_finished - f.requests_cancelled - f.requests_timed_out -
           f.requests_refused - f.requests_failed;
  }

  /// A server's life.
  void round(std::uint64_t seed, Transitions& met) {
    start_failing_now_and_then(seed);
    std::mt19937_64 random(seed);
    const std::vector<Prompt> shared = {random_prompt(random, 70), random_prompt(random, 70),
                                        random_prompt(random, 30)};
    Counts counts;
    std::atomic<bool> watching = true;
    std::thread watcher([&] { watch(watching); });
    std::vector<std::thread> clients;
    for (std::uint64_t c = 0; c < kClients; ++c)
      clients.emplace_back([&, c] { Client(server_->port(), *model_, shared, seed + c, counts).run(); });
    for (auto& client : clients) client.join();
    watching = false;
    watcher.join();

    wait_for([&] { return open() == 0; });
    EXPECT_EQ(open(), 0);
    const auto figures = model_->snapshot();
    EXPECT_EQ(figures.cache.in_use, 0);
    EXPECT_EQ(figures.cache.reserved, 0);
    EXPECT_EQ(figures.integrity_findings, 0);
    stop();
    met["right answers"] += counts.right;
    met["answers that failed with their step"] += counts.failed;
    met["too late"] += counts.late;
    met["clients that left"] += counts.left;
    met["steps that failed"] +=
        std::ranges::count_if(model_->executor().steps(), [](const auto& step) { return step.failed; });
    met["preempted"] += figures.preemptions;
    met["resumed"] += figures.resumptions;
    met["blocks evicted"] += figures.cache.evictions;
    met["blocks forked"] += figures.cache.cow_forks;
    met["tokens found in the tree"] += figures.cached_tokens;
    met["cancelled"] += figures.requests_cancelled;
    met["timed out"] += figures.requests_timed_out;
    met["admitted ahead of an earlier one"] += figures.passes;
    met["cache checked"] += figures.integrity_checks;
  }
};

TEST_P(ServerThreads, EveryoneGetsWhatIsTheirs) {
  const auto seed = test_seed(20240604);
  const std::int64_t wanted = operations_wanted(2 * kClients * kRequestsEach) / 2;
  std::int64_t operations = 0;
  Transitions met;
  const auto least = [&] { return (operations + 999) / 1000; };
  // How the threads fall into step decides what a round meets: a machine may need more of them.
  for (std::uint64_t i = 0;
       (operations < wanted || (!all_met(met, least()) && operations < 20 * wanted)) && !HasFailure(); ++i) {
    SCOPED_TRACE("round " + std::to_string(i));
    round(seed + 1000 * i, met);
    operations += kClients * kRequestsEach;
  }
  std::cout << operations << " operations\n";
  expect_met(met, least());
}

INSTANTIATE_TEST_SUITE_P(Groups, ServerThreads, ::testing::Values(Groups::kFull, Groups::kFullAndSliding), name_of);

}  // namespace
}  // namespace coppice::testing
