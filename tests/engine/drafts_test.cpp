// Drafts, on the cache and the fake executor, without an engine: a step computes a token and four guesses of what
// follows it, all of them are verified, and the cache goes back to the last one that was right. Tokens must be the
// oracle's, and no wrong guess may ever be found.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "engine/harness.h"
#include "engine/oracle.h"
#include "support/fake_executor.h"
#include "support/fake_generation.h"

namespace coppice::testing {
namespace {

constexpr int kDrafts = 4;
constexpr int kAnswer = 60;
constexpr Token kWrong = 5000;  // no sample is such a token

struct Guesser {
  Prompt prompt, out, drafts;
  Prompt answer;  ///< the oracle's
  std::uint64_t seed = 0;
  std::optional<kv::SeqId> seq;

  Prompt tokens() const { return prompt + out; }
};

class DraftVerifier {
 public:
  DraftVerifier(Groups groups, std::uint64_t seed)
      : random_(seed),
        config_(cache_config({.groups = groups, .num_blocks = 400})),
        cache_(config_),
        executor_(config_),
        groups_(make_groups(groups)),
        shared_(random_prompt(random_, 37)) {
    talks_.resize(5);
    for (Guesser& talk : talks_) begin(talk);
  }

  void step() {
    executor::Batch batch;
    for (Guesser& talk : talks_) add_rows(talk, batch);
    const executor::Result result = executor_.forward(batch);
    std::size_t row = 0;
    for (std::size_t i = 0; i < talks_.size(); ++i) {
      const auto n = static_cast<std::size_t>(batch.sequences[i].n_rows);
      verify(talks_[i], result.logits.rows(row, n));
      row += n;
    }
    ASSERT_EQ(cache_.check_integrity(), "");
    ASSERT_EQ(executor_.faults(), std::vector<std::string>{});
  }

  int accepted = 0, rejected = 0, answers = 0;

 private:
  void begin(Guesser& talk) {
    if (talk.seq) cache_.finish(*talk.seq);
    talk.prompt = shared_ + random_prompt(random_, 1 + random_() % 20);
    talk.out.clear();
    talk.seed = random_() % 1000;
    talk.answer = expected_tokens(groups_, talk.prompt, talk.seed, kAnswer + kDrafts);
    talk.seq = cache_.admit({.prompt = talk.prompt}).value();
  }

  // What is known and not computed; behind that the guesses. Logits are wanted of all rows: each sequence has several.
  void add_rows(Guesser& talk, executor::Batch& batch) {
    const Prompt text = talk.tokens();
    const auto first = cache_.lengths(*talk.seq).computed_len;
    Prompt rows(text.begin() + first, text.end());
    talk.drafts.clear();
    for (int i = 0; i < kDrafts && !talk.out.empty(); ++i)
      talk.drafts.push_back(random_() % 4 == 0 ? kWrong : talk.answer[talk.out.size() + static_cast<std::size_t>(i)]);
    rows = rows + talk.drafts;
    ASSERT_TRUE(cache_.extend(*talk.seq, static_cast<std::int32_t>(rows.size()), batch.block_ops, /*draft=*/true));
    executor::BatchSequence part{.n_rows = static_cast<int>(rows.size()), .first_position = first};
    for (int g = 0; g < static_cast<int>(cache_.config().groups.size()); ++g)
      part.tables.push_back(cache_.table(*talk.seq, g));
    const kv::StatePages state = cache_.state(*talk.seq);
    part.state_in = state.in;
    part.state_out = state.out;
    for (const Token token : rows) {
      batch.logit_rows.push_back(batch.n_rows());
      batch.rows.push_back(token);
    }
    batch.sequences.push_back(std::move(part));
  }

  void verify(Guesser& talk, executor::Logits logits) {
    const auto rows = logits.data.size() / static_cast<std::size_t>(logits.n_vocab);
    const std::size_t known = rows - talk.drafts.size();
    std::size_t right = 0;
    for (;; ++right) {
      const auto hash = read_hash(logits.row(known - 1 + right));
      const Token token = fake_token(hash, talk.seed, static_cast<int>(talk.out.size()));
      talk.out.push_back(token);
      if (right == talk.drafts.size() || talk.drafts[right] != token) break;
    }
    accepted += static_cast<int>(right);
    rejected += static_cast<int>(talk.drafts.size() - right);
    settle(talk, known + right, right == talk.drafts.size());
    const auto n = static_cast<int>(talk.out.size());
    ASSERT_EQ(talk.out, Prompt(talk.answer.begin(), talk.answer.begin() + std::min(n, kAnswer + kDrafts)));
    if (n < kAnswer) return;
    ++answers;
    begin(talk);
  }

  // A state stands behind the step's last row. If that isn't accepted, the rows that are come again in the next step.
  void settle(const Guesser& talk, std::size_t rows, bool all) {
    const auto first = cache_.lengths(*talk.seq).computed_len;
    const Prompt text = talk.tokens();
    const bool again = cache_.config().state_pages > 0 && !all;
    cache_.publish(*talk.seq, std::span(text).subspan(static_cast<std::size_t>(first), again ? 0 : rows));
    cache_.rewind(*talk.seq, cache_.lengths(*talk.seq).computed_len);
    EXPECT_EQ(cache_.lengths(*talk.seq).len, first + (again ? 0 : static_cast<std::int32_t>(rows)));
    if (all) return;
    const Prompt guessed = Prompt(text.begin(), text.end() - 1) + Prompt{kWrong};
    EXPECT_LT(cache_.match(guessed, {}), std::ssize(guessed)) << "a wrong guess is in the tree";
  }

  std::mt19937_64 random_;
  kv::CacheConfig config_;
  kv::Cache cache_;
  FakeExecutor executor_;
  std::vector<kv::GroupSpec> groups_;
  Prompt shared_;
  std::vector<Guesser> talks_;
};

class Drafts : public PerGroups {};

TEST_P(Drafts, FourOfASequenceAreVerifiedAndTheWrongOnesTakenBack) {
  DraftVerifier verifier(GetParam(), test_seed(44));
  for (int i = 0; i < 600 && !HasFailure(); ++i) verifier.step();
  EXPECT_GE(verifier.accepted, 1000);
  EXPECT_GE(verifier.rejected, 1000);
  EXPECT_GE(verifier.answers, 30);
}

COPPICE_FOR_ALL_GROUPS_AND_STATES(Drafts);

}  // namespace
}  // namespace coppice::testing
