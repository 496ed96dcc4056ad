// Log-probabilities of prompts over HTTP, from the real engine: the requests of lm-eval's local-completions, and vLLM's
// field.
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/oracle.h"
#include "server/engine_fixture.h"
#include "server/jobs/job.h"
#include "support/fake_generation.h"

namespace coppice::testing {
namespace {

using nlohmann::json;

class PromptLogprobs : public EngineServerTest {
 protected:
  void start_serving(std::size_t max_answer_bytes = std::size_t{1} << 24) {
    server::ServerConfig c = config();
    c.api.max_answer_bytes = max_answer_bytes;
    start_engine(
        {.num_blocks = 200, .max_batch = 8, .step_tokens = 16, .max_extend = 32, .context_length = 200},
        [](FakeExecutor&) {}, c);
  }

  /// Of each token of the prompt; nobody foretells the first.
  std::vector<float> expected(const Prompt& prompt) const {
    Oracle oracle(make_groups(Groups::kFull));
    std::vector<float> all = {0};
    for (std::size_t i = 1; i < prompt.size(); ++i) {
      oracle.feed(prompt[i - 1]);
      all.push_back(fake_logprob(oracle.logits_hash(), prompt[i]));
    }
    return all;
  }

  json complete(const json& body) {
    const HttpAnswer answer = post("/v1/completions", body.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  }

  Prompt random_prompt(std::size_t n) { return testing::random_prompt(random_, n, 200); }

 private:
  std::mt19937_64 random_{1};
};

// Token arrays, several at once, one token more, and all but that one are read from the context's length on.
TEST_F(PromptLogprobs, AsLmEvalReadsThem) {
  start_serving();
  const std::vector<Prompt> prompts = {random_prompt(50), random_prompt(1), random_prompt(37)};
  const json answer = complete(
      {{"prompt", prompts}, {"temperature", 0}, {"max_tokens", 1}, {"logprobs", 1}, {"seed", 1234}, {"echo", true}});
  ASSERT_EQ(answer["choices"].size(), 3U);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const json& lists = answer["choices"][i]["logprobs"];
    const auto wanted = expected(prompts[i]);
    // The fake model's samples have no entries of their own.
    for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
      ASSERT_EQ(lists[list].size(), prompts[i].size()) << list;
    EXPECT_TRUE(lists["token_logprobs"][0].is_null() && lists["top_logprobs"][0].is_null());
    for (std::size_t t = 1; t < wanted.size(); ++t) {
      EXPECT_EQ(lists["token_logprobs"][t], wanted[t]);
      EXPECT_EQ(lists["top_logprobs"][t].size(), 2U);
      EXPECT_EQ(lists["top_logprobs"][t][fake_text(prompts[i][t])], wanted[t]);
    }
  }
}

TEST_F(PromptLogprobs, AsVllmTellsThem) {
  start_serving();
  const Prompt prompt = random_prompt(45);
  const auto wanted = expected(prompt);
  const json answer = complete({{"prompt", prompt}, {"max_tokens", 2}, {"prompt_logprobs", 0}, {"n", 3}});
  for (const json& choice : answer["choices"]) {
    EXPECT_TRUE(choice["logprobs"].is_null());
    ASSERT_EQ(choice["prompt_logprobs"].size(), prompt.size());
    EXPECT_TRUE(choice["prompt_logprobs"][0].is_null());
    for (std::size_t t = 1; t < wanted.size(); ++t) {
      ASSERT_EQ(choice["prompt_logprobs"][t].size(), 1U);
      EXPECT_EQ(choice["prompt_logprobs"][t][std::to_string(prompt[t])]["logprob"], wanted[t]);
    }
  }
  const json chat =
      json::parse(post("/v1/chat/completions",
                       R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 0, "prompt_logprobs": 1})")
                      .body);
  const std::string rendered = "user: hi\nassistant: ";
  const auto of_chat = expected({rendered.begin(), rendered.end()});
  ASSERT_EQ(chat["prompt_logprobs"].size(), rendered.size());
  EXPECT_EQ(chat["prompt_logprobs"][5][std::to_string(rendered[5])]["logprob"], of_chat[5]);
  EXPECT_EQ(chat["choices"][0]["message"]["content"], "");
  EXPECT_EQ(chat["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(chat["usage"]["completion_tokens"], 0);
}

TEST_F(PromptLogprobs, APromptMayFillTheContextIfNoAnswerIsWanted) {
  start_serving();
  const Prompt prompt = random_prompt(200);
  const auto body = [&](int max_tokens, const Prompt& of) {
    return json{{"prompt", of}, {"max_tokens", max_tokens}, {"prompt_logprobs", 0}}.dump();
  };
  const json answer = complete(json::parse(body(0, prompt)));
  EXPECT_EQ(answer["choices"][0]["prompt_logprobs"].size(), 200U);
  EXPECT_EQ(post("/v1/completions", body(1, prompt)).code(), "context_length_exceeded");
  EXPECT_EQ(post("/v1/completions", body(0, prompt + Prompt{7})).code(), "context_length_exceeded");
}

TEST_F(PromptLogprobs, ContinuationsShareTheirPrompt) {
  start_serving();
  const Prompt context = random_prompt(83);
  std::vector<Prompt> prompts;
  for (int i = 0; i < 8; ++i) prompts.push_back(context + random_prompt(9));
  const json answer = complete({{"prompt", prompts},
                                {"max_tokens", 0},
                                {"logprobs", 0},
                                {"echo", true},
                                {"prompt_logprobs_from", context.size()}});
  EXPECT_GE(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 7 * 80);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const json& logprobs = answer["choices"][i]["logprobs"]["token_logprobs"];
    const auto wanted = expected(prompts[i]);
    ASSERT_EQ(logprobs.size(), wanted.size());
    EXPECT_TRUE(logprobs[context.size() - 1].is_null());
    for (std::size_t t = context.size(); t < wanted.size(); ++t) EXPECT_EQ(logprobs[t], wanted[t]);
  }
}

TEST_F(PromptLogprobs, AreBoundedAsAnswersAre) {
  start_serving(5000);
  const HttpAnswer answer =
      post("/v1/completions",
           json({{"prompt", random_prompt(100)}, {"max_tokens", 5}, {"logprobs", 5}, {"echo", true}, {"n", 4}}).dump());
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.code(), "answer_too_large");
}

// A list that ends early would be taken for a shorter prompt's: no timeout may yield one, even beside a whole answer.
TEST(PromptLogprobsInTime, AllOrAnError) {
  boost::asio::io_context io;
  server::EventHub hub(io);
  FakeModel model(hub.sink());
  for (const bool scored : {false, true}) {
    server::Job job(hub, model, io.get_executor(), 1000, "prompt");
    for (const engine::RequestId id : {1, 2}) {
      engine::Request request{.id = id};
      request.samples.resize(1);
      if (scored) request.scoring.emplace();
      job.submit(std::move(request));
    }
    engine::Event token = piece(1, "text");
    piece_of(token).token = 7;
    job.on_event(std::move(token));
    engine::Event late = refusal(2, engine::Refusal::kTimeout, "late");
    job.on_event(std::move(late));
    EXPECT_EQ(job.error().has_value(), scored);
    if (scored) EXPECT_EQ(job.error()->code(), "deadline_exceeded");
  }
}

}  // namespace
}  // namespace coppice::testing
