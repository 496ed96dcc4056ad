#include "support/drawn_again.h"

#include <utility>

#include "support/executor_rig.h"

namespace coppice::test {

std::shared_ptr<const sampling::SamplingParams> random_params(std::mt19937_64& random) {
  const auto share = [&] { return std::uniform_real_distribution<float>(0.0F, 1.0F)(random); };
  sampling::SamplingParams p;
  p.temperature = random() % 3 == 0 ? 0.0F : 0.3F + 0.7F * share();
  if (random() % 3 == 0) p.top_k = 1 + static_cast<int>(random() % 40);
  if (random() % 3 == 0) p.top_p = 0.5F + 0.49F * share();
  if (random() % 3 == 0) p.min_p = 0.1F * share();
  if (random() % 3 == 0) p.repeat_penalty = 1.1F, p.frequency_penalty = 0.2F;
  if (random() % 4 == 0) p.logit_bias = {{11, 2.0F}, {12, sampling::kNever}};
  return std::make_shared<sampling::SamplingParams>(std::move(p));
}

sampling::Sampler make_sampler(std::shared_ptr<const sampling::SamplingParams> params, std::uint64_t seed,
                               std::span<const kv::Token> prompt, std::int32_t n_vocab) {
  return {
      std::move(params), seed, std::make_shared<sampling::PromptTokens>(sampling::prompt_tokens(prompt)), {}, n_vocab};
}

void DrawnAgain::check(executor::Executor& executor, std::span<const kv::Token> prompt, std::span<const kv::Token> out,
                       sampling::Sampler first) {
  if (out.empty()) return;
  std::vector<kv::Token> text(prompt.begin(), prompt.end());
  text.insert(text.end(), out.begin(), out.end() - 1);
  ExecutorRig rig(executor);
  RigSequence sequence;
  std::vector<Row> rows = rig.feed(sequence, text, 64, Want::kAll);
  for (std::size_t i = 0; i < out.size(); ++i) {
    sampling::Sampler once = first;
    others += once.pick(rows[prompt.size() - 1 + i]) == out[i] ? 0 : 1;
    ++tokens;
    first.take(out[i]);
  }
}

}  // namespace coppice::test
