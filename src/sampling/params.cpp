// A new sampling option:
//  - its field in SamplingParams and its range in check();
//  - its effect in Sampler::filter() (sampler.cpp), in the order documented at SamplingParams. Name it in filtered(),
//    too: draw() skips the filters without it. A penalty's effect: apply_edits(). Statistics of a row: logit_scan.*. If
//    a filter may keep tokens that a later one's threshold would drop (typical-p), no threshold may be set while it is
//    on.
//  - its JSON field in parse_sampling_fields() (server/api/base/sampling_fields.cpp), for all APIs. There, delete its
//    line in kUnbuiltSamplers, if any, and give a filter its place in check_samplers(). llama-server's echo of it:
//    llama_settings() (server/api/llama/llama_dialect.cpp). Fuzzers know its name: tests/fuzz/request.dict,
//    stretch.dict.
//  - an operator's default: GenerationDefaults (server/api/base/generation_defaults.h), apply_defaults() and
//    cli/serve_access_options.cpp.
//  - SamplerSpec (sampler_spec.h), filled in sampler.cpp, carries it to a GPU: executor/cuda/sample_memory.cpp copies
//    it, and the sampler there (executor/cuda/sampler.*) keeps the same order. docs/api.md gets a row.
#include "sampling/params.h"

#include <fmt/format.h>

#include <cmath>

#include "text/utf8_stream.h"

namespace coppice::sampling {

namespace {

void require(bool good, const char* field, const std::string& message) {
  if (!good) throw ParamError(field, message);
}

/// NaN is in no range.
void require_range(float value, float low, float high, const char* field) {
  require(value >= low && value <= high, field, fmt::format("must be between {} and {}, not {}", low, high, value));
}

}  // namespace

void check(const SamplingParams& params, std::int32_t n_vocab) {
  require(std::isfinite(params.temperature) && params.temperature >= 0, "temperature",
          fmt::format("must be a number of at least 0, not {}", params.temperature));
  require(params.top_p > 0 && params.top_p <= 1, "top_p",
          fmt::format("must be above 0 and at most 1, not {}", params.top_p));
  require_range(params.min_p, 0, 1, "min_p");
  require(std::isfinite(params.repeat_penalty) && params.repeat_penalty > 0, "repeat_penalty",
          fmt::format("must be a number above 0, not {}", params.repeat_penalty));
  require_range(params.frequency_penalty, -2, 2, "frequency_penalty");
  require_range(params.presence_penalty, -2, 2, "presence_penalty");
  require(params.logit_bias.size() <= kMaxLogitBias, "logit_bias",
          fmt::format("of {} tokens, at most {} may have one", params.logit_bias.size(), kMaxLogitBias));
  for (const auto& [token, bias] : params.logit_bias) {
    require(token >= 0 && token < n_vocab, "logit_bias",
            fmt::format("token {} is not in the vocabulary of {} tokens", token, n_vocab));
    if (bias != kNever) require_range(bias, -100, 100, "logit_bias");
  }
  const auto require_tokens = [n_vocab](const std::vector<kv::Token>& tokens, const char* field) {
    for (const kv::Token token : tokens)
      require(token >= 0 && token < n_vocab, field,
              fmt::format("token {} is not in the vocabulary of {} tokens", token, n_vocab));
  };
  require_tokens(params.allowed_tokens, "allowed_token_ids");
  require_tokens(params.stop_tokens, "stop_token_ids");
  require(params.stop_tokens.size() <= kMaxStopTokens, "stop_token_ids",
          fmt::format("at most {} tokens, not {}", kMaxStopTokens, params.stop_tokens.size()));
  require(params.bad_words.size() <= kMaxBadWords, "bad_words",
          fmt::format("at most {}, not {}", kMaxBadWords, params.bad_words.size()));
  for (const auto& word : params.bad_words) {
    require(!word.empty() && word.size() <= kMaxBadWordTokens, "bad_words",
            fmt::format("each has 1 to {} tokens, not {}", kMaxBadWordTokens, word.size()));
    require_tokens(word, "bad_words");
  }
  require(params.min_tokens >= 0, "min_tokens", fmt::format("must be at least 0, not {}", params.min_tokens));
  require(!params.ignore_eos || !params.grammar.grammar, "ignore_eos",
          "a text that follows a grammar must end where the grammar does");
  for (const std::string& stop : params.stop) {
    require(!stop.empty(), "stop", "a stop string must not be empty");
    require(stop.size() <= kMaxStopBytes, "stop",
            fmt::format("a stop string of {} bytes is longer than {}", stop.size(), kMaxStopBytes));
    require(text::is_utf8(stop), "stop", "a stop string must be valid UTF-8");
  }
  require(params.logprobs >= -1 && params.logprobs <= kMaxTopLogprobs, "top_logprobs",
          fmt::format("must be between 0 and {}, not {}", kMaxTopLogprobs, params.logprobs));
}

}  // namespace coppice::sampling
