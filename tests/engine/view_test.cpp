// Who watches: what they are shown of the tree and the requests, and that nobody else notices.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/harness.h"
#include "engine/mailbox.h"
#include "support/kept_answer.h"

namespace coppice::testing {
namespace {

using engine::RequestStage;
using engine::RequestView;
using engine::View;
using Watching = PerGroups;

/// An engine without the harness's collector, which knows no views.
class Watched {
 public:
  explicit Watched(Groups groups, HarnessConfig config = {}) {
    config.groups = groups;
    executor_ = std::make_unique<FakeExecutor>(cache_config(config));
    engine::EngineConfig engine = engine_config(config);
    engine.now = [this] { return now += per_look; };
    engine_ = std::make_unique<engine::Engine>(
        kv::Cache(cache_config(config)), *executor_, engine,
        [this](std::vector<engine::Event>&& events) { events_ += static_cast<int>(events.size()); });
  }

  engine::RequestId submit(const Submission& submission) {
    const auto id = engine_->next_id();
    engine_->submit(make_request(id, submission));
    return id;
  }
  void run() {
    while (engine_->step()) {
    }
  }
  bool step() { return engine_->step(); }
  /// Takes a step, if anybody runs.
  View look(kv::Namespace ns = {}, kv::PictureLimits limits = {.nodes = 99, .depth = 99, .head_tokens = 99}) {
    const auto asker = ask({.ns = std::move(ns), .limits = limits});
    EXPECT_TRUE(engine_->step());
    EXPECT_TRUE(asker->answer);
    return asker->answer ? *asker->answer : View{};
  }
  /// Null: too many wait.
  std::shared_ptr<KeptAnswer<View>> ask(engine::Question question = {}) {
    auto asker = KeptAnswer<View>::make();
    if (!engine_->ask(std::move(question), asker->reply())) return nullptr;
    questions_.push_back(asker);
    return asker;
  }
  std::shared_ptr<KeptAnswer<engine::PrefixAnswer>> order(engine::PrefixCommand order) {
    auto asker = KeptAnswer<engine::PrefixAnswer>::make();
    if (!engine_->ask(std::move(order), asker->reply())) return nullptr;
    orders_.push_back(asker);
    return asker;
  }
  engine::Engine& engine() { return *engine_; }
  int events() const { return events_; }
  std::size_t views() const { return answered(questions_); }
  std::size_t obeyed() const { return answered(orders_); }  ///< orders about prefixes

  engine::Clock::time_point now{std::chrono::hours(1)};
  engine::Clock::duration per_look{0};  ///< that passes between two looks at the clock

 private:
  static std::size_t answered(const auto& askers) {
    return static_cast<std::size_t>(
        std::ranges::count_if(askers, [](const auto& asker) { return asker->answer != nullptr; }));
  }

  std::unique_ptr<FakeExecutor> executor_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<std::shared_ptr<KeptAnswer<View>>> questions_;
  std::vector<std::shared_ptr<KeptAnswer<engine::PrefixAnswer>>> orders_;
  int events_ = 0;
};

const RequestView& row(const View& view, engine::RequestId id) {
  const auto found = std::ranges::find(view.requests, id, &RequestView::id);
  EXPECT_NE(found, view.requests.end()) << id;
  static const RequestView none;
  return found == view.requests.end() ? none : *found;
}

TEST_P(Watching, AnIdleEngineAnswers) {
  Watched w(GetParam());
  const View view = w.look();
  EXPECT_TRUE(view.tree.nodes.empty());
  EXPECT_TRUE(view.requests.empty());
  EXPECT_FALSE(w.step()) << "there is nothing left to do";
  EXPECT_EQ(w.engine().snapshot().steps, 0);
}

TEST_P(Watching, ABurstIsAStemWithBranches) {
  std::mt19937_64 random(1);
  Watched w(GetParam(), {.step_tokens = 256, .max_extend = 256});
  const auto stem = random_prompt(random, 64);
  std::vector<engine::RequestId> ids;
  for (int i = 0; i < 8; ++i) ids.push_back(w.submit({.prompt = stem + random_prompt(random, 24), .max_tokens = 40}));
  View view;
  const auto all_decode = [&] {
    return std::ranges::all_of(ids, [&](auto id) { return row(view, id).stage == RequestStage::kDecode; });
  };
  for (int i = 0; i < 30 && (view.requests.empty() || !all_decode()); ++i) view = w.look();
  ASSERT_TRUE(all_decode());
  ASSERT_EQ(view.tree.nodes.size(), 9U);
  EXPECT_EQ(view.tree.nodes[0].head, stem);
  EXPECT_EQ(view.tree.nodes[0].holders, 8);
  EXPECT_EQ(view.tree.nodes[0].hits, 7U);
  std::set<std::uint64_t> stands;
  for (const auto id : ids) {
    const RequestView& r = row(view, id);
    EXPECT_EQ(r.prompt_tokens, 88);
    EXPECT_EQ(r.cached_tokens, id == ids[0] ? 0 : 64);
    ASSERT_EQ(r.stands_on.size(), 1U);
    stands.insert(r.stands_on[0]);
  }
  EXPECT_EQ(stands.size(), 8U);
  EXPECT_FALSE(stands.contains(view.tree.nodes[0].serial));
  EXPECT_GT(w.engine().snapshot().saved_seconds, 0.0);
  w.run();
}

TEST_P(Watching, TimesOfARequest) {
  Watched w(GetParam(), {.max_batch = 1});
  std::mt19937_64 random(2);
  const auto first = w.submit({.prompt = random_prompt(random, 20), .max_tokens = 3});
  const auto second = w.submit({.prompt = random_prompt(random, 20), .max_tokens = 3, .n = 1});
  w.step();
  w.now += std::chrono::seconds(5);
  const View early = w.look();
  EXPECT_EQ(row(early, second).stage, RequestStage::kQueued);
  EXPECT_EQ(row(early, second).queue_seconds, 5.0);
  EXPECT_EQ(row(early, second).first_token_seconds, 0.0);
  EXPECT_EQ(row(early, first).queue_seconds, 0.0);
  EXPECT_EQ(row(early, first).seconds, 5.0);
  w.run();
  w.now += std::chrono::seconds(7);
  const View late = w.look();
  ASSERT_EQ(late.requests.size(), 2U);
  EXPECT_EQ(late.requests[0].id, second) << "the last to end is first";
  EXPECT_EQ(row(late, second).stage, RequestStage::kEnded);
  EXPECT_TRUE(row(late, second).answered);
  EXPECT_EQ(row(late, second).completion_tokens, 3);
  EXPECT_EQ(row(late, second).queue_seconds, 5.0);
  EXPECT_EQ(row(late, second).total_seconds, 5.0);
  EXPECT_EQ(row(late, second).seconds, 7.0);
}

TEST_P(Watching, NobodySeesAnotherNamespace) {
  std::mt19937_64 random(3);
  Watched w(GetParam());
  const auto mine = w.submit({.prompt = random_prompt(random, 40), .max_tokens = 30, .salt = "mine"});
  const auto ended = w.submit({.prompt = random_prompt(random, 40), .max_tokens = 1, .salt = "mine"});
  for (int i = 0; i < 3; ++i) w.step();
  EXPECT_TRUE(w.look().requests.empty());
  EXPECT_TRUE(w.look({.salt = "min"}).tree.nodes.empty());
  const View view = w.look({.salt = "mine"});
  EXPECT_EQ(view.requests.size(), 2U);
  EXPECT_EQ(row(view, mine).stage, RequestStage::kDecode);
  EXPECT_EQ(row(view, ended).stage, RequestStage::kEnded);
  EXPECT_FALSE(view.tree.nodes.empty());
}

TEST_P(Watching, AnAdapterIsANamespaceOfItsOwn) {
  std::mt19937_64 random(3);
  Watched w(GetParam());
  const kv::Namespace plain{.salt = "mine"}, lora{.salt = "mine", .adapter = "lora"};
  const auto prompt = random_prompt(random, 40);
  const auto runs = w.submit({.prompt = prompt, .max_tokens = 30, .salt = "mine"});
  const auto of_lora = w.submit({.prompt = prompt, .max_tokens = 1, .salt = "mine", .adapter = "lora"});
  for (int i = 0; i < 3; ++i) w.step();
  const View without = w.look(plain), with = w.look(lora);
  ASSERT_EQ(without.requests.size(), 1U);
  EXPECT_EQ(without.requests[0].id, runs);
  ASSERT_EQ(with.requests.size(), 1U);
  EXPECT_EQ(with.requests[0].id, of_lora);
  EXPECT_EQ(with.requests[0].stage, RequestStage::kEnded);
  EXPECT_EQ(with.tree.nodes.size(), 1U);
  EXPECT_TRUE(w.look({.salt = "mine", .adapter = "lor"}).tree.nodes.empty());
}

// What is kept of it besides says little, but not to others.
TEST_P(Watching, WhoIsTooHeavyStaysInItsNamespace) {
  Watched w(GetParam(), {.max_weight = 400});
  const auto declined = w.submit({.prompt = Prompt(1000, 1), .max_tokens = 1, .salt = "mine"});
  w.step();
  EXPECT_TRUE(w.look().requests.empty());
  EXPECT_EQ(row(w.look({.salt = "mine"}), declined).stage, RequestStage::kEnded);
}

// Reports cost a hash of the prompt: they are made for those who watch, and for nobody else.
TEST_P(Watching, SaysWhyAPrefixMissed) {
  std::mt19937_64 random(4);
  Watched w(GetParam());
  const auto stem = random_prompt(random, 40);
  const auto unseen = w.submit({.prompt = stem + random_prompt(random, 20), .max_tokens = 1});
  w.run();
  EXPECT_FALSE(row(w.look(), unseen).report);
  const auto seen = w.submit({.prompt = stem + Prompt{2000} + random_prompt(random, 20), .max_tokens = 1});
  w.run();
  const View view = w.look();
  ASSERT_TRUE(row(view, seen).report);
  EXPECT_EQ(row(view, seen).report->ended, engine::MatchEnded::kDiffers);
  EXPECT_EQ(row(view, seen).report->asked[0], 2000);
  w.now += std::chrono::minutes(1);
  const auto later = w.submit({.prompt = stem, .max_tokens = 1});
  w.run();
  EXPECT_FALSE(row(w.look(), later).report);
}

TEST_P(Watching, ManyRequestsAreCutShort) {
  std::mt19937_64 random(5);
  Watched w(GetParam(), {.max_batch = 2});
  for (int i = 0; i < 150; ++i) w.submit({.prompt = random_prompt(random, 9), .max_tokens = 2});
  const View view = w.look();
  EXPECT_EQ(view.requests.size(), 96U);
  EXPECT_EQ(view.left_out, 150 - 96);
  w.run();
  EXPECT_EQ(w.look().requests.size(), 48U) << "of those who ended, the last";
}

TEST_P(Watching, ManyQuestionsTakeManySteps) {
  Watched w(GetParam());
  for (int i = 0; i < 7; ++i) w.ask();
  int steps = 0;
  while (w.step()) ++steps;
  EXPECT_EQ(steps, 7);
  EXPECT_EQ(w.views(), 7U);
}

TEST_P(Watching, QuestionsAreCountedAndDroppedWithTheirAsker) {
  Watched w(GetParam());
  for (int i = 0; i < 10'000; ++i) {
    const auto asker = w.ask();
    ASSERT_TRUE(asker) << i;
    asker->waiting = false;
  }
  EXPECT_FALSE(w.step()) << "nobody asks any more";
  for (std::size_t i = 0; i < engine::kMostQuestions; ++i) EXPECT_TRUE(w.ask()) << i;
  EXPECT_FALSE(w.ask());
  w.run();
  EXPECT_EQ(w.views(), engine::kMostQuestions);
  const auto asker = w.ask();
  ASSERT_TRUE(asker);
  w.engine().stop();
  EXPECT_TRUE(asker->is_told && !asker->answer) << "nobody waits for an engine that ends";
  EXPECT_TRUE(w.ask()->is_told) << "nor for one that has ended";
  w.run();
}

TEST_P(Watching, OrdersAboutPrefixesAreCountedAndAFewAreObeyedInAStep) {
  using Kind = engine::PrefixCommand::Kind;
  Watched w(GetParam());
  for (int i = 0; i < 10'000; ++i) {
    const auto asker = w.order({.kind = Kind::kList});
    ASSERT_TRUE(asker) << i;
    asker->waiting = false;
  }
  EXPECT_FALSE(w.step()) << "nobody asks any more";
  for (std::size_t i = 0; i < engine::kMostOrders; ++i) {
    const auto asker = w.order({.kind = Kind::kEnd});
    ASSERT_TRUE(asker) << i;
    asker->waiting = false;  // what was ordered is done, though nobody waits for the answer
  }
  EXPECT_FALSE(w.order({.kind = Kind::kEnd}));
  const auto urgent = w.order({.kind = Kind::kKeepPayers});
  ASSERT_TRUE(urgent) << "a key that goes is not to stay for want of room";
  EXPECT_TRUE(w.step());
  EXPECT_EQ(w.obeyed(), 4U);
  EXPECT_TRUE(urgent->answer);
  w.run();
  EXPECT_EQ(w.obeyed(), engine::kMostOrders + 1);
}

/// Reads the figures when it has its answer, as a client does.
class LooksAtFigures final : public engine::Asker<engine::PrefixAnswer> {
 public:
  explicit LooksAtFigures(engine::Engine& engine) : engine_(engine) {}
  void told(std::shared_ptr<const engine::PrefixAnswer>) noexcept override { pinned = engine_.snapshot().cache.pinned; }
  bool waits() const noexcept override { return true; }
  std::int64_t pinned = -1;

 private:
  engine::Engine& engine_;
};

TEST_P(Watching, AnswersComeBehindTheFiguresThatTheyMade) {
  std::mt19937_64 random(1);
  Watched w(GetParam(), {.share = true});
  w.submit({.prompt = random_prompt(random, 40),
            .only_prompt = true,
            .pins = {{.tokens = 40, .ttl = std::chrono::hours(1)}},
            .payer = "me"});
  w.run();
  ASSERT_GT(w.engine().snapshot().cache.pinned, 0);
  const auto asker = std::make_shared<LooksAtFigures>(w.engine());
  w.engine().ask(engine::PrefixCommand{.kind = engine::PrefixCommand::Kind::kReset},
                 engine::Reply<engine::PrefixAnswer>(asker));
  w.run();
  EXPECT_EQ(asker->pinned, 0);
}

/// However many ask without end: of the time that passes between the first answer and the last a twentieth goes to
/// answers.
TEST_P(Watching, AnswersTakeASmallPartOfTheTimeOfThoseWhoRun) {
  Watched w(GetParam());
  w.per_look = std::chrono::milliseconds(1);  // so an answer takes one
  w.submit({.prompt = Prompt{1, 2, 3}, .max_tokens = 400});
  const auto start = w.now;
  while (w.step()) {
    while (w.ask()) {
    }
    if (w.engine().snapshot().running_requests == 0 && w.events() > 0) break;
  }
  const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(w.now - start).count();
  EXPECT_GT(w.views(), 10U);
  EXPECT_LE(w.views(), static_cast<std::size_t>(passed / 20 + 2));
}

/// However long they take.
TEST_P(Watching, AnswersComeEverySecond) {
  Watched w(GetParam());
  w.per_look = std::chrono::milliseconds(500);
  w.submit({.prompt = Prompt{1, 2, 3}, .max_tokens = 400});
  const auto start = w.now;
  for (int i = 0; i < 10; ++i) w.ask();
  while (w.views() < 10 && w.step()) w.now += std::chrono::milliseconds(10);
  EXPECT_EQ(w.views(), 10U);
  EXPECT_LE(w.now - start, std::chrono::seconds(40));
  w.run();
}

/// The same load with and without somebody who looks after each step: the same answers.
TEST_P(Watching, ChangesNothing) {
  const auto play = [&](bool watched) {
    Watched w(GetParam(), {.num_blocks = 160});
    std::mt19937_64 random(6);
    const auto stem = random_prompt(random, 50);
    for (int i = 0; i < 20; ++i) w.submit({.prompt = stem + random_prompt(random, 30), .max_tokens = 8});
    for (int i = 0; i < 5000; ++i) {
      if (watched) w.look();
      if (!w.step()) break;
    }
    const auto s = w.engine().snapshot();
    return std::tuple(w.events(), s.prompt_tokens, s.cached_tokens, s.computed_tokens, s.generated_tokens,
                      s.cache.evictions);
  };
  EXPECT_EQ(play(true), play(false));
}

COPPICE_FOR_ALL_GROUPS(Watching);

}  // namespace
}  // namespace coppice::testing
