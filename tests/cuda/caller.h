// Caller: an AheadCaller whose texts are drawn with random options, some of whose batches are refused. What was drawn
// is drawn again on the host.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "support/ahead_caller.h"
#include "support/drawn_again.h"

namespace coppice::test {

inline kv::CacheConfig cache_config(const executor::ExecutorInfo& info, std::int32_t max_extend) {
  return {.block_size = info.block_size,
          .num_blocks = info.num_blocks,
          .bytes_per_block = info.bytes_per_block,
          .groups = info.groups,
          .max_extend = max_extend,
          .model = info.model_digest,
          .layout = info.layout};
}

inline Tokens random_tokens(std::mt19937_64& random, std::size_t n, int n_vocab) {
  Tokens tokens;
  for (std::size_t i = 0; i < n; ++i)
    tokens.push_back(static_cast<kv::Token>(random() % static_cast<unsigned>(n_vocab)));
  return tokens;
}

struct CallerLoad {
  int talks = 7;
  std::size_t shared = 70, own = 40;
  bool greedy = false;
  AheadLoad steps;
};

class Caller final : public AheadCaller {
 public:
  Caller(executor::Executor& device, const CallerLoad& load, std::uint64_t seed)
      : AheadCaller(device, cache_config(device.info(), 2 * load.steps.chunk), load.steps, seed),
        load_(load),
        n_vocab_(device.info().n_vocab),
        shared_(random_tokens(random_, load.shared, n_vocab_)) {
    add(load.talks);
  }

  std::vector<Tokens> texts;  ///< that have ended
  int refused = 0;
  DrawnAgain again;
  executor::Executor* reference = nullptr;

 private:
  struct Voice {
    std::shared_ptr<const sampling::SamplingParams> params;
    std::uint64_t seed = 0;
    std::optional<sampling::Sampler> sampler;
  };

  /// What the executor doesn't take leaves the step under way as it is.
  void before_submit(const executor::Batch& batch) override {
    if (load_.steps.leaves_in == 0 || random_() % 10 != 0) return;
    executor::Batch bad = batch;
    bad.rows.back() = n_vocab_;
    try {
      device_.submit(bad);
    } catch (const executor::StepError&) {
      ++refused;
    }
  }

  void begin(Talk& talk) override {
    voices_.resize(std::max(voices_.size(), talk.number + 1));
    talk.prompt = shared_;
    const Tokens own = random_tokens(random_, 1 + random_() % load_.own, n_vocab_);
    talk.prompt.insert(talk.prompt.end(), own.begin(), own.end());
    Voice& voice = voices_[talk.number];
    voice.params = random_params(random_);
    if (load_.greedy) {
      sampling::SamplingParams p;
      p.temperature = 0;
      voice.params = std::make_shared<sampling::SamplingParams>(p);
    }
    voice.seed = random_();
    voice.sampler = make_sampler(voice.params, voice.seed, talk.prompt, n_vocab_);
  }
  sampling::SamplerSpec spec(const Talk& talk) override { return voices_[talk.number].sampler->spec(); }
  void took(Talk& talk, kv::Token token) override { voices_[talk.number].sampler->take(token); }
  void ended(const Talk& talk) override {
    texts.push_back(talk.out);
    if (reference == nullptr) return;
    const Voice& voice = voices_[talk.number];
    again.check(*reference, talk.prompt, talk.out, make_sampler(voice.params, voice.seed, talk.prompt, n_vocab_));
  }

  CallerLoad load_;
  int n_vocab_;
  Tokens shared_;
  std::vector<Voice> voices_;  ///< of talks, by number
};

}  // namespace coppice::test
