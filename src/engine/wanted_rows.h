// WantedRows: of which rows of a sequence's part in a step something is wanted, and what for. Plain data. Not thread
// safe; the engine's thread owns it.
//
// A source of drafts is not built. kVerify waits for it, and these files must change:
//  - scheduler.cpp: rows for drafts, Cache::extend() with `draft`; computed() must publish only what is accepted;
//  - step_loop_compute.cpp: collect() publishes before it reads; row_reader.cpp; sequence.h: invariant 2;
//  - where a device draws: executor/base/batch_check.cpp, StepPart::drawn in planned_step.h, and batch_builder.cpp: a
//    drawn row is a part's only one;
//  - sampling/generation.h: several tokens are accepted, one mask is made.
// The source itself is a file of this folder, or a second executor that cli/serve.cpp makes. How Cache::rewind() is
// used: tests/engine/drafts_test.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "check/assert.h"

namespace coppice::engine {

/// What a row's result is for.
enum class Purpose : std::uint8_t {
  kScore,   ///< logits: how likely the next token of the prompt is
  kVerify,  ///< logits: whether the guess behind it would have been drawn. Nobody plans such rows yet
  kSample,  ///< logits, for the host to draw the next token from; or that token, which the device draws
  kPool,    ///< the hidden state, for an embedding
};

/// Neighbours that are wanted for one purpose.
struct WantedRows {
  Purpose purpose = Purpose::kSample;
  int first = 0;  ///< of the part's rows
  int n = 1;      ///< at least 1
  int draw = -1;  ///< kSample: the token is this one of those that the device draws in the step; -1: the host draws it
};

/// At most one entry for each purpose, those that give logits in the order of their rows. Takes no memory besides
/// itself.
class WantedList {
 public:
  /// Nothing for no rows.
  void add(WantedRows rows) {
    if (rows.n == 0) return;
    COPPICE_ASSERT(rows.first >= 0 && rows.n > 0 && size_ < rows_.size() && find(rows.purpose) == nullptr);
    rows_[size_++] = rows;
  }
  const WantedRows* find(Purpose purpose) const {
    for (const WantedRows& rows : *this) {
      if (rows.purpose == purpose) return &rows;
    }
    return nullptr;
  }
  const WantedRows* begin() const { return rows_.data(); }
  const WantedRows* end() const { return rows_.data() + size_; }

 private:
  std::array<WantedRows, 4> rows_;
  std::size_t size_ = 0;
};

}  // namespace coppice::engine
