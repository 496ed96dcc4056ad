// ThoughtSplitter: parts an answer's reasoning from what follows, where the model writes it between two tags, as its
// text comes.
//
// Not thread safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "text/answer_format.h"

namespace coppice::text {

/// How a model marks its reasoning. It may leave it out, tags and all.
struct ThoughtTags {
  std::string begin;  ///< "<think>"
  std::string end;    ///< "</think>"; empty: there is no reasoning
  bool open = false;  ///< the prompt has begun it: the text goes on behind `begin`

  bool operator==(const ThoughtTags&) const = default;
};

class ThoughtSplitter {
 public:
  explicit ThoughtSplitter(ThoughtTags tags)
      : tags_(std::move(tags)), phase_(tags_.open ? Phase::kThinking : Phase::kBefore) {}

  /// Only what may be the beginning of a tag, and white space beside one, is held back.
  AnswerParts push(std::string_view text);
  /// The rest. Called once.
  AnswerParts finish();

 private:
  enum class Phase : std::uint8_t { kBefore, kThinking, kAfter, kContent };
  /// False: it is to be called again when there is more text.
  bool step(AnswerParts& parts);
  bool begin();
  bool think(AnswerParts& parts);

  ThoughtTags tags_;
  Phase phase_;
  bool said_ = false;  ///< some reasoning was passed on
  std::string held_;
};

}  // namespace coppice::text
