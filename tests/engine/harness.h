// Harness: an engine on the fake executor, stepped by hand. After each step it checks what must always hold:
// the cache's integrity, no fault of the fake, the token budget. Requests' results are collected from the
// events and compared with the oracle.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "engine/engine.h"
#include "support/fake_executor.h"
#include "support/fake_store.h"
#include "support/kv_words.h"

namespace coppice::testing {

using kv::Token;
using Prompt = std::vector<Token>;

/// Layer groups that every engine test runs with.
enum class Groups : std::uint8_t { kFull, kFullAndSliding, kFullAndFiveSliding, kFullAndRecurrent };
std::vector<kv::GroupSpec> make_groups(Groups groups);
/// A pool of so many blocks for each of the groups, and the null block.
inline std::int32_t scaled(Groups groups, int blocks) {
  return blocks * static_cast<std::int32_t>(make_groups(groups).size()) + 1;
}
std::string name_of(const ::testing::TestParamInfo<Groups>& info);

/// A `state_stride` with which no step ends for a state but where texts part, and states are kept at ends and branches
/// only.
inline constexpr std::int32_t kNoStride = 1 << 20;

struct HarnessConfig {
  Groups groups = Groups::kFull;
  int block_size = 8;
  std::int32_t num_blocks = 4000;
  int max_batch = 32;
  int step_tokens = 64;
  int alone_tokens = 0;
  double alone_seconds = engine::EngineConfig{}.alone_seconds;
  int scored_rows = 0;
  std::int32_t max_extend = 64;
  std::int32_t context_length = 0;
  std::size_t max_waiting = 4096;
  std::size_t max_weight = engine::EngineConfig{}.max_weight;
  int state_pages = 3;
  std::int32_t state_stride = 0;  ///< 0: two blocks
  bool keep_ends = false;
  bool share = true;
  bool growth_room = true;
  int patience = engine::EngineConfig{}.patience;
  double pin_share = engine::EngineConfig{}.pin_share;
  double pin_share_of_key = engine::EngineConfig{}.pin_share_of_key;
  engine::Clock::duration sleep_after{};
  int check_every = 0;
  int depth = 0;           ///< of the executor
  std::uint64_t seed = 1;  ///< for the moments at which one of depth 1 runs its steps
  kv::HashFn hash = kv::sha256;
  engine::Pooling pooling = engine::Pooling::kLast;  ///< of a server's embeddings
};

kv::CacheConfig cache_config(const HarnessConfig& config);
engine::EngineConfig engine_config(const HarnessConfig& config);

struct Submission {
  Prompt prompt;                ///< words (support/kv_words.h)
  std::int32_t max_tokens = 0;  ///< 0: no limit
  bool only_prompt = false;     ///< no answer
  int n = 1;
  std::uint64_t seed = 1;        ///< of sample 0; sample i has seed + i
  int stop_after = 0;            ///< each sample ends with kStop at this token; 0: never
  int throw_at = -1;             ///< the sampler of sample 0 throws after so many tokens; -1: never
  bool throw_bad_alloc = false;  ///< that, and not a runtime_error
  bool unsatisfiable = false;    ///< that, and not a runtime_error
  int late = 0;                  ///< how often a token's sample isn't ready when the engine looks
  bool fail_flush = false;       ///< the sampler of sample 0 throws instead of giving the text it holds back
  std::string salt, adapter;
  std::int32_t priority = 0;
  bool cache_report = false;
  bool progress = false;
  bool match_cache = true;
  std::optional<engine::Clock::time_point> deadline;
  std::optional<std::int32_t> scored_from;  ///< of the prompt
  int n_top = 0;
  std::optional<engine::Pooling> pooling;
  std::vector<engine::PinWish> pins;
  std::string payer;
};

struct SampleResult {
  std::vector<Token> tokens;
  std::string text;
  std::optional<sampling::Finish> finish;
};

struct Result {
  Submission submission;
  std::vector<SampleResult> samples;
  std::vector<sampling::PromptToken> prompt;
  std::vector<float> embedding;
  std::vector<engine::Progress> progress;
  std::vector<engine::Usage> so_far;  ///< with each token that has it
  bool done = false;
  engine::Usage usage;
  std::optional<engine::Refusal> refusal;
  std::string message;
  double retry_seconds = 0;
  std::shared_ptr<const engine::CacheReport> report;
  int submitted_step = 0, first_step = -1, done_step = -1;  ///< steps of the harness
};

/// Adds an event to the result it belongs to. Violations of the event protocol fail the test.
void collect(Result& result, const engine::Event& event);

/// What is wrong with a result, or an empty string: the tokens and the text of every sample are those of the
/// oracle, as far as they go, and usage fits. Likewise the prompt's log-probabilities, all if there was to be an
/// answer, and its embedding.
std::string error_in(const Result& result, const std::vector<kv::GroupSpec>& groups);

engine::Request make_request(engine::RequestId id, const Submission& submission);

/// A medium's grid (0: it has none), and a row of it as the fake executor gets it.
std::int32_t columns_of(const test::FakeMedium& medium);
std::vector<float> embedding_of(const test::FakeMedium& medium, std::int32_t row);
/// Words as a request has them.
engine::Prompt to_prompt(std::span<const Token> words);

/// n random tokens below `vocabulary`.
Prompt random_prompt(std::mt19937_64& random, std::size_t n, int vocabulary = 1000);
Prompt operator+(Prompt a, const Prompt& b);

/// COPPICE_SEED or `fallback`, and a line that says which.
std::uint64_t test_seed(std::uint64_t fallback);

/// How long a random load shall be: COPPICE_OPERATIONS or `fallback`.
std::int64_t operations_wanted(std::int64_t fallback);

/// How often a load met what it is for.
using Transitions = std::map<std::string, std::int64_t>;
bool all_met(const Transitions& transitions, std::int64_t least);
/// Prints them. Each must have been met `least` times.
void expect_met(const Transitions& transitions, std::int64_t least);

class Harness {
 public:
  explicit Harness(const HarnessConfig& config);

  /// A store behind the pool; it has its turn before each step. `model`: who has another can't use what this one
  /// stores.
  void attach(std::shared_ptr<FakeStore> store, std::uint8_t model = 1, std::size_t n_buffers = 8,
              bool load_always = false, bool all_evicted = false, bool lasting = true);

  const tier::Buffers& loads() const { return *loads_; }
  const tier::Buffers& stores() const { return *stores_; }

  engine::RequestId submit(Submission submission);
  /// Steps until the answer is there.
  engine::PrefixAnswer ask(engine::PrefixCommand command);
  void cancel(engine::RequestId id) { engine_->cancel(id); }
  bool step();
  /// Steps until nothing is open. Fails after `limit` steps.
  void run(int limit = 20000);
  /// run(), then: all done, every result right, no block in use but by pins.
  void finish();

  const Result& result(engine::RequestId id) const { return results_.at(id); }
  const std::map<engine::RequestId, Result>& results() const { return results_; }
  const std::vector<kv::GroupSpec>& groups() const { return groups_; }
  engine::Snapshot snapshot() const { return engine_->snapshot(); }
  engine::Engine& engine() { return *engine_; }
  FakeExecutor& executor() { return *executor_; }
  const kv::Cache& cache() const { return engine_->cache(); }
  int steps() const { return steps_; }
  /// The step log of the last forward().
  const FakeExecutor::StepLog& last() const { return executor_->steps().back(); }
  bool check_faults = true;
  /// The engine's clock stands still unless the test moves it.
  engine::Clock::time_point now{std::chrono::hours(1)};

 private:
  void expect_nothing_lost(const Result& result) const;

  HarnessConfig config_;
  std::vector<kv::GroupSpec> groups_;
  std::unique_ptr<FakeExecutor> executor_;
  std::shared_ptr<FakeStore> store_;
  std::shared_ptr<tier::Buffers> loads_, stores_;
  std::unique_ptr<engine::Engine> engine_;
  std::map<engine::RequestId, Result> results_;
  int steps_ = 0;
};

class PerGroups : public ::testing::TestWithParam<Groups> {};

/// Over an executor that works one step ahead, too: a token is known a step later, and all else holds.
class PerDepth : public ::testing::TestWithParam<std::tuple<Groups, int>> {
 protected:
  static Groups groups() { return std::get<0>(GetParam()); }
  static int depth() { return std::get<1>(GetParam()); }
};
std::string name_of_both(const ::testing::TestParamInfo<std::tuple<Groups, int>>& info);

#define COPPICE_FOR_ALL_GROUPS(Suite) \
  INSTANTIATE_TEST_SUITE_P(           \
      Groups, Suite, ::testing::Values(Groups::kFull, Groups::kFullAndSliding, Groups::kFullAndFiveSliding), name_of)

/// With recurrent layers, too: for tests that don't count what is found or needed to a token or block.
#define COPPICE_FOR_ALL_GROUPS_AND_STATES(Suite)                                                                  \
  INSTANTIATE_TEST_SUITE_P(Groups, Suite,                                                                         \
                           ::testing::Values(Groups::kFull, Groups::kFullAndSliding, Groups::kFullAndFiveSliding, \
                                             Groups::kFullAndRecurrent),                                          \
                           name_of)

#define COPPICE_FOR_ALL_DEPTHS(Suite)                                                                           \
  INSTANTIATE_TEST_SUITE_P(                                                                                     \
      Depths, Suite,                                                                                            \
      ::testing::Combine(::testing::Values(Groups::kFull, Groups::kFullAndSliding, Groups::kFullAndFiveSliding, \
                                           Groups::kFullAndRecurrent),                                          \
                         ::testing::Values(0, 1)),                                                              \
      name_of_both)

}  // namespace coppice::testing
