// AheadCaller: plays the engine over an executor that works ahead: each step is planned and submitted before the last
// one's tokens are known. Sequences come, go and come back while steps run, and steps may fail. A seed says what
// happens. Who derives from it says what texts are about and how their tokens are drawn.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "executor/executor.h"
#include "kv/cache.h"

namespace coppice::test {

using Tokens = std::vector<kv::Token>;

struct Talk {
  std::size_t number = 0;  ///< of the caller's
  Tokens prompt, out;
  std::optional<kv::SeqId> seq;
  std::int32_t planned = 0;  ///< tokens that have a slot
  int draw = -1;  ///< the sample of the last step that gives its next token; -1: that is known, or not asked for

  Tokens tokens() const {
    Tokens all = prompt;
    all.insert(all.end(), out.begin(), out.end());
    return all;
  }
};

struct AheadLoad {
  int chunk = 24;
  std::size_t longest = 90;  ///< tokens, then the text ends and another one begins
  unsigned leaves_in = 12;   ///< one in so many steps; 0: nobody leaves
  bool ahead = true;
  bool may_fail = false;  ///< steps may; else what the executor throws is the caller's end
};

class AheadCaller {
 public:
  AheadCaller(executor::Executor& device, kv::CacheConfig config, const AheadLoad& load, std::uint64_t seed)
      : random_(seed), device_(device), cache_(std::move(config)), load_(load) {}
  virtual ~AheadCaller() = default;
  AheadCaller(const AheadCaller&) = delete;
  AheadCaller& operator=(const AheadCaller&) = delete;

  void add(int talks) {
    for (int i = 0; i < talks; ++i) {
      Talk& talk = *talks_.emplace_back(std::make_unique<Talk>());
      talk.number = talks_.size() - 1;
      begin(talk);
    }
  }

  void step() {
    Planned next = plan();
    before_submit(batch_);
    next.step = device_.submit(batch_);
    if (last_ && !collect()) return fail(next);  // what was submitted behind it has failed, too
    std::vector<sampling::SamplerSpec> specs;
    for (const Part& part : next.parts) {
      if (part.sampled) specs.push_back(part.talk != nullptr ? spec(*part.talk) : sampling::SamplerSpec{});
    }
    device_.sample(*next.step, specs);
    last_ = std::move(next);
    if (!load_.ahead) collect();
  }
  void end() {
    if (last_) collect();
    for (const auto& talk : talks_) finish(*talk);
  }

  int left = 0, drawn = 0, failed = 0;
  std::string fault() const { return cache_.check_integrity(); }

 protected:
  /// Gives the talk another prompt. Its last text is gone.
  virtual void begin(Talk& talk) = 0;
  virtual sampling::SamplerSpec spec(const Talk& talk) = 0;
  virtual void took(Talk& /*talk*/, kv::Token /*token*/) {}
  virtual void ended(const Talk& /*talk*/) {}
  virtual void before_submit(const executor::Batch& /*batch*/) {}

  const std::vector<std::unique_ptr<Talk>>& talks() const { return talks_; }
  std::mt19937_64 random_;
  executor::Executor& device_;

 private:
  static constexpr int kMostRows = 512;
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
      if (talk->seq && load_.leaves_in > 0 && random_() % load_.leaves_in == 0) leave(*talk);
      if (talk->out.size() >= load_.longest) finish(*talk);
      if (!talk->seq) come(*talk);
      const Tokens tokens = talk->tokens();
      const auto known = static_cast<std::int32_t>(tokens.size()) - talk->planned;
      const std::int32_t wanted = known > 0 ? known : talk->draw >= 0 ? 1 : 0;
      const std::int32_t n = std::min({wanted, load_.chunk, kMostRows - batch_.n_rows()});
      if (n == 0) continue;
      if (!cache_.extend(*talk->seq, n, batch_.block_ops)) throw std::runtime_error("the pool is too small");
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
    for (const Part& part : next.parts) {
      executor::BatchSequence s{.n_rows = part.n, .first_position = part.first};
      for (int g = 0; g < cache_.config().n_groups(); ++g) s.tables.push_back(cache_.table(*part.talk->seq, g));
      batch_.sequences.push_back(std::move(s));
    }
    return next;
  }

  /// False: the step has failed.
  bool collect() {
    const Planned step = *std::exchange(last_, std::nullopt);
    executor::Result result;
    try {
      result = device_.wait(*step.step);
    } catch (const executor::StepError&) {
      if (!load_.may_fail) throw;
      fail(step);
      return false;
    }
    std::size_t sample = 0;
    for (const Part& part : step.parts) {
      const kv::Token token = part.sampled ? result.tokens[sample++] : -1;
      if (part.talk == nullptr) continue;
      const Tokens tokens = part.talk->tokens();
      cache_.publish(*part.talk->seq,
                     std::span(tokens).subspan(static_cast<std::size_t>(part.first), static_cast<std::size_t>(part.n)));
      if (!part.sampled) continue;
      part.talk->out.push_back(token);
      took(*part.talk, token);
    }
    return true;
  }

  void fail(const Planned& step) {
    ++failed;
    for (const Part& part : step.parts) {
      if (part.talk != nullptr && part.talk->seq) leave(*part.talk);
    }
  }

  void finish(Talk& talk) {
    if (talk.seq) leave(talk);
    ended(talk);
    talk.out.clear();
    begin(talk);
  }

  void come(Talk& talk) {
    const Tokens tokens = talk.tokens();
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

  kv::Cache cache_;
  AheadLoad load_;
  std::vector<std::unique_ptr<Talk>> talks_;
  executor::Batch batch_;
  std::optional<Planned> last_;
};

}  // namespace coppice::test
