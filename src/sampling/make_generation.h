// The door of sampling for the server: one Generation per sample of a request. What the samples need not have for
// themselves they share: a request that waits with thousands of samples must not weigh thousands of times as much.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/types.h"
#include "sampling/generation.h"
#include "sampling/params.h"
#include "sampling/stop_matcher.h"
#include "text/vocabulary.h"

namespace coppice::sampling {

/// What all samples of a request share, of whichever of its prompts. Never changed.
struct SharedParams {
  /// Throws ParamError: see check().
  SharedParams(SamplingParams p, std::int32_t n_vocab);
  const SamplingParams params;
  const std::shared_ptr<const StopStrings> stops;
};

/// The Generations of one prompt's samples. `prompt` is read here only.
///
/// A Generation's next() throws std::logic_error after a piece with `finish` or after flush(); flush() has nothing more to say
/// then. Logits beyond the vocabulary (a padded output head) are never drawn.
///
/// An end token ends the sample with kStop: it has no text, and no logprobs entry. Of the tokens of a stop string,
/// those that put text before it have an entry, the others none.
std::vector<std::unique_ptr<Generation>> make_generations(const std::shared_ptr<const text::Vocabulary>& vocabulary,
                                                          const std::shared_ptr<const SharedParams>& shared, int n,
                                                          std::span<const kv::Token> prompt);

}  // namespace coppice::sampling
