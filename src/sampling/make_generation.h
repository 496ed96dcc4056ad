// Makes one Generation per sample of a request. The samples share what never changes: a request that waits with
// thousands of samples must not take thousands of times the memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/types.h"
#include "sampling/generation.h"
#include "sampling/mask_pool.h"
#include "sampling/params.h"
#include "sampling/stop_matcher.h"
#include "text/vocabulary.h"

namespace coppice::sampling {

/// What all samples of a request share, also those of different prompts. Never changed.
struct SharedParams {
  /// Throws ParamError: see check().
  SharedParams(SamplingParams p, std::int32_t n_vocab);
  const SamplingParams params;
  const std::shared_ptr<const StopStrings> stops;
};

/// The Generations of one prompt's samples. `prompt` is read here only.
///
/// After a piece with `finish`, or after flush(), next() throws std::logic_error and flush() returns nothing. Logits
/// beyond the vocabulary (a padded output head) are never drawn.
///
/// An end token ends the sample with kStop; it has no text, and no logprobs entry unless that is asked for. Of the
/// tokens that make up a stop string, those that also brought text before it have an entry, the others none. `pool`: it
/// makes the masks of grammars; null: next() does.
std::vector<std::unique_ptr<Generation>> make_generations(const std::shared_ptr<const text::Vocabulary>& vocabulary,
                                                          const std::shared_ptr<const SharedParams>& shared, int n,
                                                          std::span<const kv::Token> prompt,
                                                          const std::shared_ptr<MaskPool>& pool = nullptr);

}  // namespace coppice::sampling
