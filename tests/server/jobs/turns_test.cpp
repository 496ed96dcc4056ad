// Whose body has its turn on the worker when: over real sockets, with a model whose tokenizer waits for the test.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/fixture.h"
#include "server/jobs/work_queue.h"

namespace coppice::testing {
namespace {

constexpr std::size_t kLarge = 50'000;  // bytes of a text

class TurnsTest : public ServerTest {
 protected:
  /// The first text that is tokenized waits for release().
  FakeModel& start_held() {
    server::ServerConfig one_thread = config();
    one_thread.preparing_threads = 1;
    start_loading(one_thread);
    model_ = std::make_shared<FakeModel>(server_->sink(), words({"x"}));
    model_->facts_.context_length = 100'000;
    model_->on_text_ = [this] {
      ++texts_;
      std::call_once(once_, [this] { released_.get_future().wait_for(kLongestWait); });
    };
    server_->ready(model_);
    while (get("/health").status != 200) {
    }
    return *model_;
  }
  void release() { released_.set_value(); }

  HttpClient& send(const std::string& path, const std::string& body) {
    clients_.push_back(client());
    clients_.back()->send(post_request(path, body));
    return *clients_.back();
  }
  HttpClient& send(char letter, std::size_t bytes) {
    return send("/v1/completions", fmt::format(R"({{"prompt": "{}"}})", std::string(bytes, letter)));
  }
  /// Until so many wait for the worker, or are on it.
  void wait_for_preparing(std::size_t n) {
    ASSERT_NO_FATAL_FAILURE(wait_for_figure(fmt::format("coppice_num_requests_preparing {}", n)));
  }
  void expect_all_answered() {
    for (auto& c : clients_) EXPECT_EQ(c->receive().status, 200);
  }
  /// The first letters of the prompts, in the order in which the engine got them.
  std::string order() const {
    std::string letters;
    for (std::size_t i = 0; i < model_->submitted(); ++i) letters += static_cast<char>(model_->prompt(i).front());
    return letters;
  }

  std::vector<std::unique_ptr<HttpClient>> clients_;
  std::atomic<int> texts_ = 0;

 private:
  std::once_flag once_;
  std::promise<void> released_;
};

TEST_F(TurnsTest, SmallBodyPassesLargeOnes) {
  start_held();
  send('b', 10);
  wait_for_preparing(1);
  for (int i = 0; i < 20; ++i) send('L', kLarge);
  wait_for_preparing(21);
  send('s', 10);
  wait_for_preparing(22);
  release();
  expect_all_answered();
  EXPECT_EQ(order(), "bs" + std::string(20, 'L'));
  wait_for_preparing(0);
}

TEST_F(TurnsTest, LargeBodyIsNotPassedForEver) {
  constexpr std::size_t kSmall = 100;
  start_held();
  send('b', 10);
  wait_for_preparing(1);
  send('L', kLarge);
  wait_for_preparing(2);
  for (std::size_t i = 0; i < kSmall; ++i) send('s', 10);
  wait_for_preparing(kSmall + 2);
  release();
  expect_all_answered();
  // Each needs a turn to be parsed, and one to be tokenized.
  EXPECT_EQ(order().find('L'), 1U + server::WorkQueue::kMostPasses);
}

TEST_F(TurnsTest, BodyOfManyPromptsGivesWayBetweenThem) {
  start_held();
  std::string prompts;
  for (int i = 0; i < 8; ++i) prompts += fmt::format(R"({}"{}")", i == 0 ? "" : ", ", std::string(kLarge, 'L'));
  send("/v1/completions", R"({"prompt": [)" + prompts + "]}");
  while (texts_ == 0) std::this_thread::yield();
  send('s', 10);
  wait_for_preparing(2);
  release();
  expect_all_answered();
  EXPECT_EQ(order(), "s" + std::string(8, 'L'));
}

TEST_F(TurnsTest, WhoIsOutOfTimeIsNotParsed) {
  auto c = config();
  c.api.request_seconds = 1e-9;
  FakeModel& model = start(words({"x"}), c, [this] { ++texts_; });
  for (const char* path : {"/v1/completions", "/tokenize"}) {
    const HttpAnswer answer = post(path, "no JSON");
    EXPECT_EQ(answer.status, 504) << answer.body;
    EXPECT_EQ(answer.code(), "deadline_exceeded");
  }
  EXPECT_EQ(chat().status, 504);
  EXPECT_EQ(texts_, 0);
  EXPECT_EQ(model.submitted(), 0U);
  EXPECT_NE(get("/metrics").body.find("coppice_requests_rejected_total{reason=\"timeout\"} 2\n"), std::string::npos);
}

TEST_F(TurnsTest, ARequestsOwnTimeCountsWhileItIsPrepared) {
  FakeModel& model = start_held();
  send('b', 10);
  wait_for_preparing(1);
  const std::string prompts = fmt::format(R"(["{0}", "{0}"])", std::string(kLarge, 'L'));
  HttpClient& late = send("/v1/completions", R"({"timeout": 1e-6, "prompt": )" + prompts + "}");
  wait_for_preparing(2);
  release();
  const HttpAnswer answer = late.receive();
  EXPECT_EQ(answer.status, 504) << answer.body;
  EXPECT_EQ(answer.code(), "deadline_exceeded");
  EXPECT_NE(answer.body.find("before its prompt was ready"), std::string::npos) << answer.body;
  EXPECT_EQ(clients_.front()->receive().status, 200);
  EXPECT_EQ(model.submitted(), 1U);
}

}  // namespace
}  // namespace coppice::testing
