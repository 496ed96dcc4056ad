#include "engine/harness.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <utility>

#include "engine/oracle.h"
#include "engine/piece_names.h"
#include "support/fake_generation.h"
#include "support/kept_answer.h"

namespace coppice::testing {

std::vector<kv::GroupSpec> make_groups(Groups groups) {
  const kv::GroupSpec full{.kind = kv::GroupKind::kFull, .layers = {0}, .bytes_per_token = 16};
  const auto sliding = [](int window, int layer) {
    return kv::GroupSpec{.kind = kv::GroupKind::kSliding, .window = window, .layers = {layer}, .bytes_per_token = 16};
  };
  switch (groups) {
    case Groups::kFull:
      return {full};
    case Groups::kFullAndSliding:
      return {full, sliding(20, 1)};
    case Groups::kFullAndFiveSliding:
      return {full, sliding(12, 1), sliding(12, 2), sliding(12, 3), sliding(12, 4), sliding(12, 5)};
    case Groups::kFullAndRecurrent:
      return {full, {.kind = kv::GroupKind::kRecurrent, .layers = {1}, .state_pages = 3}};
  }
  std::abort();
}

static std::string name_of(Groups groups) {
  switch (groups) {
    case Groups::kFull:
      return "full";
    case Groups::kFullAndSliding:
      return "full_and_sliding";
    case Groups::kFullAndFiveSliding:
      return "full_and_five_sliding";
    case Groups::kFullAndRecurrent:
      return "full_and_recurrent";
  }
  std::abort();
}

std::string name_of(const ::testing::TestParamInfo<Groups>& info) {
  return name_of(info.param);
}

std::string name_of_both(const ::testing::TestParamInfo<std::tuple<Groups, int>>& info) {
  return name_of(std::get<0>(info.param)) + (std::get<1>(info.param) > 0 ? "_ahead" : "");
}

namespace {

/// By what happened to the request. None but a sample's last piece and a refusal may end it.
struct Collector {
  Result& result;
  const engine::Event& event;

  void operator()(const engine::Refused& refused) const {
    EXPECT_TRUE(event.ended);
    EXPECT_TRUE(std::ranges::all_of(result.samples, [](const auto& sample) { return sample.tokens.empty(); }));
    EXPECT_FALSE(refused.message.empty());
    result.refusal = refused.why;
    result.message = refused.message;
    result.retry_seconds = refused.retry_seconds;
  }
  void operator()(const engine::ScoredTokens& scored) const {
    EXPECT_FALSE(event.ended);
    EXPECT_TRUE(std::ranges::all_of(result.samples, [](const auto& sample) { return sample.tokens.empty(); }));
    result.prompt.insert(result.prompt.end(), scored.tokens.begin(), scored.tokens.end());
  }
  void operator()(const engine::Progress& progress) const {
    EXPECT_FALSE(event.ended);
    EXPECT_TRUE(result.submission.progress) << "nobody asked";
    result.progress.push_back(progress);
  }
  void operator()(const engine::Embedding& embedding) const {
    EXPECT_FALSE(event.ended);
    EXPECT_TRUE(result.embedding.empty()) << "a second embedding";
    result.embedding = embedding.values;
  }
  void operator()(const engine::Sampled& sampled) const {
    auto& sample = result.samples.at(static_cast<std::size_t>(sampled.sample));
    EXPECT_FALSE(sample.finish) << "a piece after the sample's last one, request " << event.request;
    if (sampled.piece.token >= 0) sample.tokens.push_back(sampled.piece.token);
    if (sampled.so_far) result.so_far.push_back(*sampled.so_far);
    EXPECT_EQ(sampled.so_far.has_value(), result.submission.progress && sampled.piece.token >= 0);
    sample.text += sampled.piece.text;
    sample.finish = sampled.piece.finish;
    if (!sampled.message.empty()) result.message = sampled.message;
    const bool all = std::ranges::all_of(result.samples, [](const auto& each) { return each.finish.has_value(); });
    EXPECT_EQ(event.ended.has_value(), all) << "a request ends with the last sample's last piece";
  }
};

}  // namespace

void collect(Result& result, const engine::Event& event) {
  EXPECT_FALSE(result.done) << "an event after the last one, request " << event.request;
  std::visit(Collector{result, event}, event.news);
  if (event.report) {
    EXPECT_FALSE(result.report) << "a second report, request " << event.request;
    result.report = event.report;
  }
  result.done = event.ended.has_value();
  if (event.ended) result.usage = *event.ended;
}

namespace {

/// error_in(), of the prompt's log-probabilities.
std::string error_in_prompt(const Result& result, const std::vector<kv::GroupSpec>& groups) {
  const auto& asked = result.submission;
  const bool answered = std::ranges::any_of(
      result.samples, [](const SampleResult& s) { return !s.tokens.empty() || s.finish == sampling::Finish::kLength; });
  const auto n_tokens =
      asked.prompt.size() - static_cast<std::size_t>(std::ranges::count_if(asked.prompt, test::is_piece));
  const std::size_t wanted = asked.scored_from ? n_tokens : 0;
  if (result.prompt.size() > wanted || (answered && result.prompt.size() < wanted))
    return fmt::format("{} of {} tokens of the prompt came", result.prompt.size(), wanted);
  Oracle oracle(groups);
  std::vector<std::uint64_t> hashes(asked.prompt.size());
  if (!result.prompt.empty()) oracle.feed_all(asked.prompt, [&](std::size_t i) { hashes[i] = oracle.logits_hash(); });
  for (std::size_t i = 0, nth = 0; nth < result.prompt.size(); ++i) {
    const kv::Token token = asked.prompt[i];
    if (test::is_piece(token)) continue;
    const auto& [entry, rank] = result.prompt[nth++];
    const bool scored = i > 0 && std::cmp_greater_equal(i, *asked.scored_from);
    const std::uint64_t hash = i > 0 ? hashes[i - 1] : 0;
    if (entry.chosen.token != token || rank != (scored ? fake_rank(hash, token) : 0) ||
        entry.top.size() != (scored ? static_cast<std::size_t>(asked.n_top) : 0) ||
        (scored && entry.chosen.logprob != fake_logprob(hash, token))) {
      return fmt::format("token {} of the prompt is wrong", i);
    }
  }
  return {};
}

/// error_in(), of the prompt's embedding.
std::string error_in_embedding(const Result& result, const std::vector<kv::GroupSpec>& groups) {
  const auto& asked = result.submission;
  const bool ended = result.samples.front().finish == sampling::Finish::kLength;
  if (result.embedding.empty()) return ended && asked.pooling ? "it has no embedding" : "";
  if (!asked.pooling) return "an embedding that nobody asked for";
  Oracle oracle(groups);
  std::vector<double> sum(kFakeEmbd);
  oracle.feed_all(asked.prompt, [&](std::size_t i) {
    std::vector<float> state(kFakeEmbd);
    write_hash(mix(oracle.logits_hash(), 1), state);
    const bool last = i + 1 == asked.prompt.size();
    if (last || asked.pooling == engine::Pooling::kMean) std::ranges::transform(sum, state, sum.begin(), std::plus<>());
  });
  const double n = asked.pooling == engine::Pooling::kMean ? static_cast<double>(asked.prompt.size()) : 1;
  const auto right = [n](double total, float x) { return static_cast<float>(total / n) == x; };
  return std::ranges::equal(sum, result.embedding, right) ? "" : "the embedding is wrong";
}

}  // namespace

std::string error_in(const Result& result, const std::vector<kv::GroupSpec>& groups) {
  if (!result.done) return "it never ended";
  if (std::string error = error_in_prompt(result, groups); !error.empty()) return error;
  if (std::string error = error_in_embedding(result, groups); !error.empty()) return error;
  if (result.refusal) return {};
  const auto& asked = result.submission;
  std::int32_t total = 0;
  for (std::size_t i = 0; i < result.samples.size(); ++i) {
    const auto& sample = result.samples[i];
    const auto length = static_cast<int>(sample.tokens.size());
    const auto expected = expected_tokens(groups, asked.prompt, asked.seed + i, length);
    const auto at = std::ranges::mismatch(sample.tokens, expected).in1 - sample.tokens.begin();
    if (at != length) return fmt::format("sample {}: token {} of {} is wrong", i, at, length);
    std::string text;
    for (const auto token : expected) text += fake_text(token);
    if (!sample.finish) return fmt::format("sample {} has no end", i);
    // A failed sample isn't asked for the text it held back, its last token's.
    if (sample.finish == sampling::Finish::kError && length > 0)
      text.resize(text.size() - fake_text(expected.back()).size());
    if (sample.text != text) return fmt::format("sample {}: the text is not that of its tokens", i);
    if (asked.only_prompt && length > 0) return fmt::format("sample {} has an answer", i);
    if (asked.max_tokens > 0 && length > asked.max_tokens) return fmt::format("sample {} is too long", i);
    if (*sample.finish == sampling::Finish::kStop && length != asked.stop_after) {
      return fmt::format("sample {} stopped after {} tokens, not {}", i, length, asked.stop_after);
    }
    total += length;
  }
  const auto& usage = result.usage;
  if (usage.prompt_tokens != static_cast<std::int32_t>(asked.prompt.size()) || usage.completion_tokens != total ||
      usage.cached_tokens >= usage.prompt_tokens) {
    return fmt::format("usage is {} prompt, {} cached, {} completion", usage.prompt_tokens, usage.cached_tokens,
                       usage.completion_tokens);
  }
  return {};
}

std::int32_t columns_of(const test::FakeMedium& medium) {
  return medium.which >= 4 ? 5 : 0;
}

std::vector<float> embedding_of(const test::FakeMedium& medium, std::int32_t row) {
  return {static_cast<float>(medium.which), static_cast<float>(medium.rows), medium.whole ? 1.0F : 0.0F,
          static_cast<float>(row)};
}

engine::Prompt to_prompt(std::span<const Token> words) {
  engine::Prompt prompt;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!test::is_piece(words[i])) {
      prompt.append(words.subspan(i, 1));
      continue;
    }
    const test::FakeMedium medium = test::medium_of(words[i]);
    std::vector<float> rows;
    for (std::int32_t row = 0; row < medium.rows; ++row) {
      const std::vector<float> embedding = embedding_of(medium, row);
      rows.insert(rows.end(), embedding.begin(), embedding.end());
    }
    prompt.append({.name = test::to_kv(medium),
                   .embeddings = std::make_shared<const std::vector<float>>(std::move(rows)),
                   .columns = columns_of(medium)});
    i += static_cast<std::size_t>(medium.rows) - 1;
  }
  return prompt;
}

engine::Request make_request(engine::RequestId id, const Submission& submission) {
  engine::Request request;
  request.id = id;
  request.prompt = to_prompt(submission.prompt);
  if (submission.max_tokens > 0) request.max_tokens = submission.max_tokens;
  if (submission.only_prompt) request.max_tokens = 0;
  if (submission.scored_from)
    request.scoring = {std::make_shared<FakeScorer>(), *submission.scored_from, submission.n_top};
  if (submission.pooling) request.pooling = {*submission.pooling, std::vector<double>(kFakeEmbd)};
  request.ns = {.salt = submission.salt, .adapter = submission.adapter};
  request.priority = submission.priority;
  request.cache_report = submission.cache_report;
  request.progress = submission.progress;
  request.match_cache = submission.match_cache;
  request.deadline = submission.deadline;
  request.pins = submission.pins;
  request.pin_payer = submission.payer;
  for (int i = 0; i < submission.n; ++i) {
    auto generation =
        std::make_unique<FakeGeneration>(submission.seed + static_cast<std::uint64_t>(i), submission.stop_after);
    generation->be_late(submission.late);
    if (i == 0) generation->throw_at(submission.throw_at, submission.throw_bad_alloc);
    if (i == 0 && submission.unsatisfiable) generation->be_unsatisfiable();
    if (i == 0 && submission.fail_flush) generation->fail_flush();
    request.samples.push_back(std::move(generation));
  }
  return request;
}

Prompt random_prompt(std::mt19937_64& random, std::size_t n, int vocabulary) {
  std::uniform_int_distribution<Token> token(0, vocabulary - 1);
  Prompt prompt(n);
  for (auto& t : prompt) t = token(random);
  return prompt;
}

Prompt operator+(Prompt a, const Prompt& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::uint64_t test_seed(std::uint64_t fallback) {
  const char* given = std::getenv("COPPICE_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : fallback;
  std::cout << "COPPICE_SEED=" << seed << " replays this test\n";
  return seed;
}

std::int64_t operations_wanted(std::int64_t fallback) {
  const char* given = std::getenv("COPPICE_OPERATIONS");
  return given != nullptr ? std::strtoll(given, nullptr, 10) : fallback;
}

bool all_met(const Transitions& transitions, std::int64_t least) {
  return std::ranges::all_of(transitions, [least](const auto& each) { return each.second >= least; });
}

void expect_met(const Transitions& transitions, std::int64_t least) {
  for (const auto& [what, times] : transitions) {
    std::cout << "  " << times << " " << what << "\n";
    EXPECT_GE(times, least) << what << ": this load no longer meets what it is for";
  }
}

kv::CacheConfig cache_config(const HarnessConfig& config) {
  auto groups = make_groups(config.groups);
  if (groups.back().kind == kv::GroupKind::kRecurrent) groups.back().state_pages = config.state_pages;
  return {.block_size = config.block_size,
          .num_blocks = config.num_blocks,
          .bytes_per_block = 128,
          .groups = std::move(groups),
          .state_stride = config.state_stride > 0 ? config.state_stride : 2 * config.block_size,
          .max_extend = config.max_extend,
          .keep_ends = config.keep_ends,
          .share = config.share,
          .model = "fake",
          .layout = "fake",
          .hash = config.hash};
}

engine::EngineConfig engine_config(const HarnessConfig& config) {
  return {.max_batch = config.max_batch,
          .step_tokens = config.step_tokens,
          .alone_tokens = config.alone_tokens,
          .alone_seconds = config.alone_seconds,
          .scored_rows = config.scored_rows,
          .context_length = config.context_length,
          .max_waiting = config.max_waiting,
          .max_weight = config.max_weight,
          .pin_share = config.pin_share,
          .pin_share_of_key = config.pin_share_of_key,
          .sleep_after = config.sleep_after,
          .growth_room = config.growth_room,
          .patience = config.patience,
          .check_every = config.check_every};
}

Harness::Harness(const HarnessConfig& config) : config_(config), groups_(make_groups(config.groups)) {
  executor_ = std::make_unique<FakeExecutor>(cache_config(config), config.context_length, config.depth, config.seed);
  engine::EngineConfig with_clock = engine_config(config);
  with_clock.now = [this] { return now; };
  engine_ = std::make_unique<engine::Engine>(
      kv::Cache(cache_config(config)), *executor_, with_clock, [this](std::vector<engine::Event>&& events) {
        EXPECT_FALSE(events.empty());
        for (const auto& event : events) {
          Result& result = results_.at(event.request);
          collect(result, event);
          const auto* sampled = std::get_if<engine::Sampled>(&event.news);
          if (sampled != nullptr && sampled->piece.token >= 0 && result.first_step < 0) result.first_step = steps_;
          if (event.ended) result.done_step = steps_;
        }
      });
}

void Harness::attach(std::shared_ptr<FakeStore> store, std::uint8_t model, std::size_t n_buffers, bool load_always,
                     bool all_evicted, bool lasting) {
  store_ = std::move(store);
  const std::size_t bytes = engine::largest_piece(executor_->info());
  loads_ = std::make_shared<tier::Buffers>(n_buffers, bytes);
  stores_ = std::make_shared<tier::Buffers>(n_buffers, bytes);
  engine_->attach({.store = store_,
                   .loads = loads_,
                   .stores = stores_,
                   .model = {model},
                   .about = "fake",
                   .load_always = load_always,
                   .lasting = lasting,
                   .all_evicted = all_evicted});
}

engine::RequestId Harness::submit(Submission submission) {
  const auto id = engine_->next_id();
  auto request = make_request(id, submission);
  Result& result = results_[id];
  result.samples.resize(static_cast<std::size_t>(submission.n));
  result.submission = std::move(submission);
  result.submitted_step = steps_;
  engine_->submit(std::move(request));
  return id;
}

engine::PrefixAnswer Harness::ask(engine::PrefixCommand command) {
  const auto asker = KeptAnswer<engine::PrefixAnswer>::make();
  engine_->ask(std::move(command), asker->reply());
  step();
  if (asker->answer) return *asker->answer;
  ADD_FAILURE() << "no answer";
  return {};
}

bool Harness::step() {
  ++steps_;
  if (store_ != nullptr) store_->turn();
  const auto forwards = executor_->steps().size();
  const bool more = engine_->step();
  EXPECT_EQ(cache().check_integrity(), "") << "after step " << steps_ << "\n" << cache().dump();
  if (check_faults) EXPECT_TRUE(executor_->faults().empty()) << executor_->faults().front();
  EXPECT_LE(executor_->steps().size(), forwards + 1);
  if (executor_->steps().size() > forwards) {
    EXPECT_LE(last().n_rows, std::max({config_.step_tokens, config_.alone_tokens, config_.max_batch + 1}));
    EXPECT_TRUE(last().n_rows > 0 || last().n_copies > 0);
    for (const auto& sequence : last().sequences) EXPECT_LE(sequence.n_rows, config_.max_extend);
  }
  return more;
}

void Harness::run(int limit) {
  for (int i = 0; i < limit; ++i) {
    const bool rests = !step();
    if (rests && snapshot().running_requests + snapshot().waiting_requests == 0) return;
    if (::testing::Test::HasFatalFailure()) return;
    if (check_faults && ::testing::Test::HasNonfatalFailure()) return;  // one report is enough
  }
  FAIL() << "requests are still open after " << limit << " steps: " << snapshot().running_requests << " running, "
         << snapshot().waiting_requests << " waiting";
}

void Harness::finish() {
  run();
  for (const auto& [id, result] : results_) {
    EXPECT_EQ(error_in(result, groups_), "") << "request " << id;
    expect_nothing_lost(result);
  }
  const auto figures = snapshot();
  EXPECT_EQ(figures.cache.in_use, figures.cache.pinned);
  EXPECT_EQ(figures.cache.reserved, 0);
  EXPECT_EQ(figures.cache.sequences, 0);
  EXPECT_EQ(figures.running_requests + figures.waiting_requests + figures.following_requests, 0);
}

// A sample that ends by length has its max_tokens, unless the context, or the pool with no other sample in it, ends
// it.
void Harness::expect_nothing_lost(const Result& result) const {
  const auto& asked = result.submission;
  const std::int64_t longest = std::ssize(asked.prompt) + asked.max_tokens;
  if (asked.max_tokens <= 0 || asked.only_prompt || (config_.context_length > 0 && longest > config_.context_length))
    return;
  if (cache().blocks_needed(static_cast<std::int32_t>(longest), 1) > snapshot().cache.total) return;
  for (const auto& sample : result.samples) {
    if (sample.finish != sampling::Finish::kLength) continue;
    EXPECT_EQ(static_cast<std::int32_t>(sample.tokens.size()), asked.max_tokens);
  }
}

}  // namespace coppice::testing
