// Prompt: what a request begins with: tokens and encoded media (pictures) between them, and by what positions a model
// rotates their heads that knows more than a running number. Nobody can say one without the others: a medium's rows
// come in one piece, with an embedding each. Any thread; what is appended is never changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "executor/executor.h"
#include "kv/text.h"

namespace coppice::engine {

/// An encoded medium. Prompts share its embeddings.
struct Medium {
  kv::Medium name;
  std::shared_ptr<const std::vector<float>> embeddings;  ///< [name.rows][embedding_size]
  /// Its rows lie on a grid so wide, line by line, at one time; 0: they have running positions, as tokens have.
  std::int32_t columns = 0;
};

class Prompt {
 public:
  Prompt() = default;
  /// A list of tokens converts to a prompt. REQUIRES: none is negative.
  Prompt(std::vector<kv::Token> tokens) : text_(std::move(tokens)) {}  // NOLINT(google-explicit-constructor)

  void append(std::span<const kv::Token> tokens) { text_.append(tokens); }
  /// REQUIRES: rows > 0, and as many embeddings of one size.
  void append(Medium medium);

  const kv::Text& text() const { return text_; }
  kv::TextView view() const { return text_; }
  operator kv::TextView() const { return text_; }  // NOLINT(google-explicit-constructor)
  std::size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }
  std::size_t n_media() const { return media_.size(); }
  /// In their order; one may be there several times.
  const Medium& medium(std::size_t i) const { return media_[i].medium; }

  /// [embedding_size], of a piece of a medium. REQUIRES: at `index` stands one.
  std::span<const float> embedding(std::int32_t index) const;
  /// Some rows have other positions than their indices.
  bool has_positions() const { return shift_ != 0 || grids_; }
  /// Of the row with this index, in the prompt or behind it: what follows a grid goes on behind its greatest number.
  executor::RopePosition position(std::int32_t index) const;

 private:
  struct Placed {
    std::int32_t first = 0;     // index of its first row
    std::int32_t position = 0;  // of that row
    Medium medium;
    std::int32_t end() const { return first + medium.name.rows; }
    std::int32_t next_position() const;
  };
  /// The last one that begins at or before `index`; null: there is none.
  const Placed* before(std::int32_t index) const;

  kv::Text text_;
  std::vector<Placed> media_;  // one for each span of the text
  std::int32_t shift_ = 0;     // positions behind the prompt, less their indices
  bool grids_ = false;
};

}  // namespace coppice::engine
