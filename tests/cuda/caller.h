// Caller: plays the engine over an executor that works ahead: each step is planned and submitted before the last one's tokens are known,
// sequences come, go and come back, and batches are refused. A seed says what happens.
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

#include "kv/cache.h"
#include "support/drawn_again.h"

namespace coppice::test {

using Tokens = std::vector<kv::Token>;

inline kv::CacheConfig cache_config(const executor::ExecutorInfo& info, std::int32_t max_extend) {
  return {.block_size = info.block_size,
          .num_blocks = info.num_blocks,
          .bytes_per_block = info.bytes_per_block,
          .groups = info.groups,
          .max_extend = max_extend,
          .model = info.model_digest,
          .layout = info.layout};
}

struct Talk {
  Tokens prompt, out;
  std::shared_ptr<const sampling::SamplingParams> params;
  std::uint64_t seed = 0;
  std::optional<sampling::Sampler> sampler;
  std::optional<kv::SeqId> seq;
  std::int32_t planned = 0;  ///< tokens that have a slot
  int draw = -1;  ///< the sample of the last step that gives its next token; -1: that is known, or not asked for

  Tokens tokens() const {
    Tokens all = prompt;
    all.insert(all.end(), out.begin(), out.end());
    return all;
  }
};

inline Tokens random_tokens(std::mt19937_64& random, std::size_t n, int n_vocab) {
  Tokens tokens;
  for (std::size_t i = 0; i < n; ++i)
    tokens.push_back(static_cast<kv::Token>(random() % static_cast<unsigned>(n_vocab)));
  return tokens;
}

struct CallerLoad {
  int talks = 7, chunk = 24;
  std::size_t shared = 70, own = 40, longest = 90;
  unsigned leaves_in = 12;  ///< one in so many steps; 0: nobody leaves
  bool ahead = true, greedy = false;
};

class Caller {
 public:
  Caller(executor::Executor& device, const CallerLoad& load, std::uint64_t seed)
      : random_(seed),
        load_(load),
        device_(device),
        n_vocab_(device.info().n_vocab),
        cache_(cache_config(device.info(), 2 * load.chunk)),
        shared_(random_tokens(random_, load.shared, n_vocab_)) {
    add(load.talks);
  }

  void add(int talks) {
    for (int i = 0; i < talks; ++i) begin(*talks_.emplace_back(std::make_unique<Talk>()));
  }

  void step() {
    Planned next = plan();
    if (load_.leaves_in > 0 && random_() % 10 == 0) refuse();
    next.step = device_.submit(batch_);
    if (last_) collect();
    std::vector<sampling::SamplerSpec> specs;
    for (const Part& part : next.parts) {
      if (!part.sampled) continue;
      specs.push_back(part.talk != nullptr ? part.talk->sampler->spec() : sampling::SamplerSpec{});
    }
    device_.sample(*next.step, specs);
    last_ = std::move(next);
    if (!load_.ahead) collect();
  }
  void end() {
    if (last_) collect();
    for (const auto& talk : talks_) finish(*talk);
  }

  std::vector<Tokens> texts;  ///< that have ended
  int left = 0, drawn = 0, refused = 0;
  DrawnAgain again;
  executor::Executor* reference = nullptr;
  std::string fault() const { return cache_.check_integrity(); }

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
      const std::int32_t n = std::min({known > 0         ? known
                                       : talk->draw >= 0 ? 1
                                                         : 0,
                                       load_.chunk, kMostRows - batch_.n_rows()});
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

  /// What the executor doesn't take leaves the step under way as it is.
  void refuse() {
    executor::Batch bad = batch_;
    bad.rows.back() = n_vocab_;
    try {
      device_.submit(bad);
    } catch (const executor::StepError&) {
      ++refused;
    }
  }

  void collect() {
    const Planned step = *std::exchange(last_, std::nullopt);
    const executor::Result result = device_.wait(*step.step);
    std::size_t sample = 0;
    for (const Part& part : step.parts) {
      const kv::Token token = part.sampled ? result.tokens[sample++] : -1;
      if (part.talk == nullptr) continue;
      const Tokens tokens = part.talk->tokens();
      cache_.publish(*part.talk->seq,
                     std::span(tokens).subspan(static_cast<std::size_t>(part.first), static_cast<std::size_t>(part.n)));
      if (!part.sampled) continue;
      part.talk->out.push_back(token);
      part.talk->sampler->take(token);
    }
  }

  void finish(Talk& talk) {
    if (talk.seq) leave(talk);
    texts.push_back(talk.out);
    if (reference != nullptr) {
      again.check(*reference, talk.prompt, talk.out, make_sampler(talk.params, talk.seed, talk.prompt, n_vocab_));
    }
    begin(talk);
  }

  void begin(Talk& talk) {
    talk.prompt = shared_;
    const Tokens own = random_tokens(random_, 1 + random_() % load_.own, n_vocab_);
    talk.prompt.insert(talk.prompt.end(), own.begin(), own.end());
    talk.out.clear();
    talk.params = random_params(random_);
    if (load_.greedy) {
      sampling::SamplingParams p;
      p.temperature = 0;
      talk.params = std::make_shared<sampling::SamplingParams>(p);
    }
    talk.seed = random_();
    talk.sampler = make_sampler(talk.params, talk.seed, talk.prompt, n_vocab_);
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

  std::mt19937_64 random_;
  CallerLoad load_;
  executor::Executor& device_;
  int n_vocab_;
  kv::Cache cache_;
  Tokens shared_;
  std::vector<std::unique_ptr<Talk>> talks_;
  executor::Batch batch_;
  std::optional<Planned> last_;
};

}  // namespace coppice::test
