// The door of sampling for the server: one Generation per sample of a request.
#pragma once

#include <memory>
#include <span>

#include "kv/types.h"
#include "sampling/generation.h"
#include "sampling/params.h"
#include "text/vocabulary.h"

namespace coppice::sampling {

/// The Generation of sample `sample_index`. Throws ParamError (see check()). `prompt` is read here only.
///
/// Its next() throws std::logic_error after a piece with `finish` or after flush(); flush() has nothing more to say
/// then. Logits beyond the vocabulary (a padded output head) are never drawn.
///
/// An end token ends the sample with kStop: it has no text, and no logprobs entry. Of the tokens of a stop string,
/// those that put text before it have an entry, the others none.
std::unique_ptr<Generation> make_generation(std::shared_ptr<const text::Vocabulary> vocabulary,
                                            const SamplingParams& params, int sample_index,
                                            std::span<const kv::Token> prompt);

}  // namespace coppice::sampling
