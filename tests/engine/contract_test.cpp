// The contract of an executor that works ahead, and of the cache under it, without an engine: each step is planned and submitted before
// the last one's tokens are known. Sequences come, go and come back while steps run, and steps fail; all tokens must be the oracle's.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "engine/harness.h"
#include "engine/oracle.h"
#include "support/fake_executor.h"

namespace coppice::testing {
namespace {

struct Talk {
  Prompt prompt, out;
  std::uint64_t seed = 0;
  std::optional<kv::SeqId> seq;
  std::int32_t planned = 0;  ///< tokens that have a slot
  int draw = -1;  ///< the sample of the last step that gives its next token; -1: that is known, or not asked for

  Prompt tokens() const { return prompt + out; }
};

class Caller {
 public:
  Caller(Groups groups, std::uint64_t seed)
      : random_(seed),
        config_(cache_config({.groups = groups, .num_blocks = 300, .max_extend = 2 * kChunk})),
        cache_(config_),
        device_(config_, 0, /*depth=*/1, seed),
        groups_(make_groups(groups)),
        shared_(random_prompt(random_, 37)) {
    for (int i = 0; i < 40; ++i) device_.fail_at(20 + static_cast<int>(random_() % 2000));
    for (int i = 0; i < 5; ++i) begin(*talks_.emplace_back(std::make_unique<Talk>()));
  }

  void step() {
    Planned next = plan();
    next.step = device_.submit(batch_);
    if (last_ && !collect()) return fail(next);
    std::vector<sampling::SamplerSpec> specs;
    for (const Part& part : next.parts) {
      if (part.sampled) specs.push_back({.seed = part.talk->seed, .counter = part.talk->out.size()});
    }
    device_.sample(*next.step, specs);
    last_ = std::move(next);
  }

  void check() {
    ASSERT_EQ(cache_.check_integrity(), "");
    for (const std::string& fault : device_.faults()) FAIL() << fault;
    for (const auto& talk : talks_) {
      ASSERT_EQ(talk->out, expected_tokens(groups_, talk->prompt, talk->seed, static_cast<int>(talk->out.size())));
    }
  }

  int failed = 0, left = 0, drawn = 0;

 private:
  static constexpr int kChunk = 8;
  struct Part {
    Talk* talk = nullptr;  ///< null: it has left
    std::int32_t first = 0, n = 0;
    bool sampled = false;
  };
  struct Planned {
    std::optional<executor::Step> step;
    std::vector<Part> parts;
  };

  Planned plan() {
    batch_ = {};
    Planned next;
    int samples = 0;
    for (const auto& talk : talks_) {
      if (talk->seq && random_() % 12 == 0) leave(*talk);
      if (talk->out.size() >= 60) begin(*talk);
      if (!talk->seq) come(*talk);
      const Prompt tokens = talk->tokens();
      const auto known = static_cast<std::int32_t>(tokens.size()) - talk->planned;
      const std::int32_t n = std::min(known > 0 ? known : talk->draw >= 0 ? 1 : 0, kChunk);
      if (n == 0) continue;
      EXPECT_TRUE(cache_.extend(*talk->seq, n, batch_.block_ops));
      if (known > 0) {
        batch_.rows.insert(batch_.rows.end(), tokens.begin() + talk->planned, tokens.begin() + talk->planned + n);
      } else {
        batch_.rows.push_back(executor::RowSource::drawn(talk->draw));
        ++drawn;
      }
      const bool sampled = n >= known;
      next.parts.push_back({talk.get(), talk->planned, n, sampled});
      talk->draw = sampled ? samples++ : -1;
      talk->planned += n;
      if (sampled) batch_.sample_rows.push_back(batch_.n_rows() - 1);
    }
    std::size_t at = 0;
    for (const Part& part : next.parts) {
      executor::BatchSequence s{.n_rows = part.n, .first_position = part.first};
      for (int g = 0; g < config_.n_groups(); ++g) s.tables.push_back(cache_.table(*part.talk->seq, g));
      batch_.sequences.push_back(std::move(s));
      at += static_cast<std::size_t>(part.n);
    }
    EXPECT_EQ(at, batch_.rows.size());
    return next;
  }

  /// False: the step has failed.
  bool collect() {
    const Planned step = *std::exchange(last_, std::nullopt);
    executor::Result result;
    try {
      result = device_.wait(*step.step);
    } catch (const executor::StepError&) {
      fail(step);
      return false;
    }
    std::size_t sample = 0;
    for (const Part& part : step.parts) {
      const Token token = part.sampled ? result.tokens[sample++] : -1;
      if (part.talk == nullptr) continue;
      const Prompt tokens = part.talk->tokens();
      cache_.publish(*part.talk->seq,
                     std::span(tokens).subspan(static_cast<std::size_t>(part.first), static_cast<std::size_t>(part.n)));
      if (part.sampled) part.talk->out.push_back(token);
    }
    return true;
  }

  void fail(const Planned& step) {
    ++failed;
    for (const Part& part : step.parts) {
      if (part.talk != nullptr && part.talk->seq) leave(*part.talk);
    }
  }

  void begin(Talk& talk) {
    if (talk.seq) leave(talk);
    talk.prompt = shared_ + random_prompt(random_, 1 + random_() % 30);
    talk.out.clear();
    talk.seed = random_() % 1000;
  }

  void come(Talk& talk) {
    const Prompt tokens = talk.tokens();
    talk.seq = cache_.admit({.prompt = tokens}).value();
    talk.planned = cache_.lengths(*talk.seq).cached_len;
    talk.draw = -1;
  }

  void leave(Talk& talk) {
    cache_.finish(*std::exchange(talk.seq, std::nullopt));
    ++left;
    if (!last_) return;
    for (Part& part : last_->parts) {
      if (part.talk == &talk) part.talk = nullptr;
    }
  }

  std::mt19937_64 random_;
  kv::CacheConfig config_;
  kv::Cache cache_;
  FakeExecutor device_;
  std::vector<kv::GroupSpec> groups_;
  Prompt shared_;
  std::vector<std::unique_ptr<Talk>> talks_;
  executor::Batch batch_;
  std::optional<Planned> last_;
};

class ContractTest : public PerGroups {};

TEST_P(ContractTest, TokensAreTheSameWhateverTheOrderOfEvents) {
  Caller caller(GetParam(), test_seed(26));
  for (int i = 0; i < 2500 && !HasFailure(); ++i) {
    caller.step();
    if (i % 50 == 0) caller.check();
  }
  caller.check();
  EXPECT_GE(caller.failed, 30);
  EXPECT_GE(caller.left, 500);
  EXPECT_GE(caller.drawn, 2000);
}

COPPICE_FOR_ALL_GROUPS(ContractTest);

}  // namespace
}  // namespace coppice::testing
