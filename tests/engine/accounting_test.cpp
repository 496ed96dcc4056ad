// What clients can make the engine hold is counted when it comes in: each counter at its limit, and clients that try to
// pass it. The number of waiting requests is batching_test's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/harness.h"
#include "engine/mailbox.h"

namespace coppice::testing {
namespace {

using engine::Refusal;

Prompt tokens(std::size_t n) {
  return Prompt(n, 7);
}

std::size_t weight(const Submission& submission) {
  return engine::weight(make_request(0, submission));
}

/// Of a request with one sample, apart from its prompt.
const std::size_t kNoPrompt = weight({});

TEST(Accounting, PromptsTogetherFillTheirLimitAndNoMore) {
  const std::size_t limit = 100 + 2 * kNoPrompt;
  Harness h({.max_weight = limit});
  const auto first = h.submit({.prompt = tokens(60), .max_tokens = 3});
  const auto second = h.submit({.prompt = tokens(40), .max_tokens = 3});
  const auto third = h.submit({.prompt = tokens(1), .max_tokens = 3});
  h.step();
  EXPECT_FALSE(h.result(first).done || h.result(second).done);
  EXPECT_EQ(h.result(third).refusal, Refusal::kQueueFull);
  EXPECT_THAT(h.result(third).message, ::testing::HasSubstr(std::to_string(limit) + " tokens"));
  EXPECT_EQ(h.result(third).usage.prompt_tokens, 1);
  EXPECT_GE(h.result(third).retry_seconds, 1);
  const auto larger = h.submit({.prompt = tokens(101), .max_tokens = 3});
  h.finish();
  EXPECT_EQ(h.result(larger).refusal, Refusal::kQueueFull);
  EXPECT_EQ(h.snapshot().requests_refused, 2);
  EXPECT_EQ(h.snapshot().requests_submitted, 4);
}

TEST(Accounting, WhatTheAnswerRepeatsWeighs) {
  engine::Request request = make_request(1, {});
  request.held_bytes = 4000;
  EXPECT_EQ(engine::weight(request), kNoPrompt + 1000);
}

// "The queue is full, ask again" would be a lie: it never gets in, not into an empty queue either.
TEST(Accounting, WhoIsTooHeavyAloneIsRefusedForGood) {
  const std::size_t limit = 100 + kNoPrompt;
  Harness h({.max_weight = limit});
  const auto fits = h.submit({.prompt = tokens(100), .max_tokens = 1});
  const auto waits = h.submit({.prompt = tokens(1), .max_tokens = 1});
  const auto prompt = h.submit({.prompt = tokens(101), .max_tokens = 1});
  const auto samples = h.submit({.prompt = tokens(1), .max_tokens = 1, .n = 2});
  const auto scored = h.submit({.prompt = tokens(50), .max_tokens = 1, .scored_from = 1});
  h.finish();
  EXPECT_FALSE(h.result(fits).refusal);
  EXPECT_EQ(h.result(waits).refusal, Refusal::kQueueFull);
  for (const auto id : {prompt, samples, scored}) {
    EXPECT_EQ(h.result(id).refusal, Refusal::kTooHeavy);
    EXPECT_THAT(h.result(id).message, ::testing::HasSubstr("together may have " + std::to_string(limit)));
    EXPECT_EQ(h.result(id).retry_seconds, 0);
  }
}

// Else thousands of requests could wait during one long step, each with all the samples that it may have.
TEST(Accounting, SamplesCountHoweverShortTheirPrompt) {
  const Submission small{.prompt = tokens(1), .max_tokens = 1, .n = 8};
  Harness h({.max_weight = 10 * 8 * engine::kSampleWeight + 1000});
  std::vector<engine::RequestId> ids(11);
  for (auto& id : ids) id = h.submit(small);
  h.run();
  for (const auto id : ids) {
    EXPECT_EQ(h.result(id).refusal, id == ids.back() ? std::optional(Refusal::kQueueFull) : std::nullopt);
  }
}

// Not when the engine's thread comes to it: a step may take seconds.
TEST(Accounting, PromptsCountFromTheMomentTheyCome) {
  Harness h({.max_weight = 100 + 2 * kNoPrompt});
  const auto first = h.submit({.prompt = tokens(60), .max_tokens = 1});
  engine::RequestId late = 0;
  h.executor().during_forward([&] {
    if (late == 0) late = h.submit({.prompt = tokens(60), .max_tokens = 1});
  });
  h.step();
  EXPECT_TRUE(h.result(first).done);
  h.finish();
  EXPECT_EQ(h.result(late).refusal, Refusal::kQueueFull);
}

// However a request ends, another one of the same weight gets in, and nothing more does.
TEST(Accounting, EveryEndGivesTheWeightBack) {
  using End = std::function<void(Harness&, engine::RequestId)>;
  const Submission patient{.prompt = tokens(100), .max_tokens = 50};
  const auto with = [&](auto change) {
    Submission changed = patient;
    change(changed);
    return changed;
  };
  const End nothing = [](Harness&, engine::RequestId) {};
  const std::vector<std::tuple<std::string, Submission, End>> ends = {
      {"finished", with([](auto& s) { s.max_tokens = 2; }), nothing},
      {"cancelled", patient, [](Harness& h, engine::RequestId id) { h.cancel(id); }},
      {"failed", with([](auto& s) { s.throw_at = 3; }), nothing},
      {"failed step", patient,
       [](Harness& h, engine::RequestId) { h.executor().fail_at(static_cast<int>(h.executor().steps().size())); }},
      {"refused", with([](auto& s) { s.n = 40; }), nothing},
      {"timed out", with([](auto& s) { s.deadline = engine::Clock::time_point{}; }), nothing},
  };
  for (const auto& [name, submission, end] : ends) {
    SCOPED_TRACE(name);
    const std::size_t limit = weight(submission);
    Harness h({.max_weight = limit});
    const auto id = h.submit(submission);
    for (int i = 0; i < 4; ++i) h.step();
    end(h, id);
    h.run();
    ASSERT_TRUE(h.result(id).done);
    const auto next = h.submit({.prompt = tokens(limit - kNoPrompt), .max_tokens = 1});
    const auto over = h.submit({.prompt = tokens(1), .max_tokens = 1});
    h.finish();
    EXPECT_FALSE(h.result(next).refusal);
    EXPECT_EQ(h.result(over).refusal, Refusal::kQueueFull);
  }
}

TEST(Accounting, ManyClientsCannotPassTheLimitTogether) {
  constexpr int kClients = 4, kRequestsEach = 500;
  constexpr std::size_t kLimit = 100'000;
  engine::Mailbox mailbox(kLimit);
  {
    std::vector<std::jthread> clients;
    for (int c = 0; c < kClients; ++c) {
      clients.emplace_back([&, c] {
        std::mt19937_64 random(static_cast<std::uint64_t>(c));
        for (int i = 0; i < kRequestsEach; ++i) {
          const auto id = static_cast<engine::RequestId>(c * kRequestsEach + i);
          mailbox.push(make_request(id, {.prompt = tokens(1 + random() % 20)}));
        }
      });
    }
  }
  engine::Commands commands;
  mailbox.drain(commands);
  EXPECT_EQ(commands.requests.size(), std::size_t{kClients * kRequestsEach});
  EXPECT_EQ(mailbox.submitted(), kClients * kRequestsEach);
  std::size_t held = 0;
  for (const auto& request : commands.requests) {
    const engine::OpenRequest& open = request.mapped();
    EXPECT_EQ(open.charge, open.request.prompt.empty() ? 0 : engine::weight(open.request));
    held += open.charge;
  }
  EXPECT_LE(held, kLimit);
  EXPECT_GT(held + kNoPrompt + 5, kLimit) << "and small ones fill what large ones leave";
}

/// Eight who ask about one picture hold its rows once; a key pays for them each time.
TEST(Accounting, APicturesRowsCountOnce) {
  const auto rows = [] { return std::make_shared<const std::vector<float>>(10'000); };
  const auto one = rows(), other = rows();
  // A request's own: the medium's five symbols, some tokens, and what any request takes.
  const std::size_t own = kNoPrompt + 5;
  std::optional<engine::Mailbox> mailbox(std::in_place, 8 * own + 10'000 + 999);
  engine::RequestId last = 0;
  std::map<engine::RequestId, engine::OpenRequests::node_type> held;
  const auto push = [&](const std::shared_ptr<const std::vector<float>>& picture, int times = 1, const char* key = "") {
    engine::Request request = make_request(++last, {.prompt = {}});
    request.pin_payer = key;
    for (int i = 0; i < times; ++i) request.prompt.append({.name = {.digest = {}, .rows = 5}, .embeddings = picture});
    mailbox->push(std::move(request));
    engine::Commands commands;
    mailbox->drain(commands);
    auto& node = held[last] = std::move(commands.requests.at(0));
    return node.mapped().charge > 0;
  };
  EXPECT_TRUE(push(one, 2)) << "twice in a prompt";
  EXPECT_FALSE(push(other)) << "another one counts for itself";
  mailbox->give_back(held.at(2).mapped());
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(push(one));
  mailbox->give_back(held.at(1).mapped());
  EXPECT_FALSE(push(other)) << "others still hold it";
  for (engine::RequestId id = 3; id <= last; ++id) mailbox->give_back(held.at(id).mapped());
  EXPECT_TRUE(push(other)) << "nobody does";
  mailbox.emplace(100'000);
  std::size_t n = 0;
  while (push(one, 1, "a")) ++n;
  EXPECT_EQ(n, 7 * (100'000 - 10'000) / (own + 10'000 + 7 * own)) << "a key has seven times of what is left, at most";
}

/// A compiled grammar of megabytes, that a thousand requests follow.
TEST(Accounting, WhatRequestsShareCountsOnce) {
  const auto shared = [](std::size_t bytes) { return engine::SharedMemory{std::make_shared<int>(), bytes}; };
  const engine::SharedMemory large = shared(4 * 1000), other = shared(4 * 1000);
  engine::Mailbox mailbox(3 * kNoPrompt + 1000 + 10);
  engine::RequestId last = 0;
  std::map<engine::RequestId, engine::OpenRequests::node_type> held;
  const auto push = [&](const engine::SharedMemory& what, std::size_t n_tokens = 0) {
    engine::Request request = make_request(++last, {.prompt = tokens(n_tokens)});
    request.shared = what;
    mailbox.push(std::move(request));
    engine::Commands commands;
    mailbox.drain(commands);
    auto& node = held[last] = std::move(commands.requests.at(0));
    return node.mapped().charge > 0;
  };
  const auto end = [&](engine::RequestId id) { mailbox.give_back(held.at(id).mapped()); };
  EXPECT_TRUE(push(large));
  EXPECT_EQ(held.at(1).mapped().weight, kNoPrompt + 1000) << "alone";
  EXPECT_FALSE(push(other)) << "another one counts for itself";
  end(2);
  EXPECT_TRUE(push(large));
  EXPECT_TRUE(push(large));
  EXPECT_FALSE(push({}));
  end(4);
  for (const engine::RequestId id : {1U, 3U}) {
    EXPECT_FALSE(push(other)) << "who came later still holds it";
    end(last);
    end(id);
  }
  end(5);
  EXPECT_TRUE(push(other)) << "nobody does";
  EXPECT_TRUE(push(other, kNoPrompt + 10));
  EXPECT_FALSE(push({}));
}

}  // namespace
}  // namespace coppice::testing
