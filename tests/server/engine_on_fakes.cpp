#include "server/engine_on_fakes.h"

#include <utility>

#include "engine/oracle.h"
#include "support/fake_generation.h"

namespace coppice::testing {

EngineOnFakes::EngineOnFakes(engine::EventSink sink, const HarnessConfig& config)
    : groups_(make_groups(config.groups)),
      facts_{.attention = "fake",
             .kv_format = "f16",
             .n_vocab = 1000,
             .n_embd = kFakeEmbd,
             .pooling = config.pooling,
             .context_length = config.context_length,
             .max_batch = config.max_batch,
             .share = config.share},
      texts_([](std::vector<engine::Event>&&) {}),
      executor_(cache_config(config), config.context_length),
      engine_(kv::Cache(cache_config(config)), executor_, engine_config(config), std::move(sink)) {}

std::string EngineOnFakes::expected_text(const Prompt& prompt, std::uint64_t seed, int n_tokens) const {
  std::string text;
  for (const auto token : expected_tokens(groups_, prompt, seed, n_tokens)) text += fake_text(token);
  return text;
}

std::vector<std::unique_ptr<sampling::Generation>> EngineOnFakes::make_generations(
    const std::shared_ptr<const sampling::SharedParams>& shared, int n, std::span<const kv::Token>) const {
  const std::uint64_t seed = shared->params.seed.value_or(0);
  std::vector<std::unique_ptr<sampling::Generation>> generations;
  for (int i = 0; i < n; ++i)
    generations.push_back(std::make_unique<FakeGeneration>(seed + static_cast<std::uint64_t>(i)));
  return generations;
}

}  // namespace coppice::testing
