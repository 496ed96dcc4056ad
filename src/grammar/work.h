// A limit of CPU time: XGrammar counts its steps (cmake/xgrammar), and is stopped by an exception.
#pragma once

#include <cstdint>

#include "grammar/source.h"

namespace coppice::grammar {

class WorkError : public GrammarError {
 public:
  using GrammarError::GrammarError;
};

/// What XGrammar does on this thread may take so much CPU time while it lives; beyond it that throws WorkError. They
/// don't nest. Where the thread works in turns (port/turn.h), others have theirs meanwhile.
class WorkLimit {
 public:
  explicit WorkLimit(double seconds);
  ~WorkLimit();
  WorkLimit(const WorkLimit&) = delete;
  WorkLimit& operator=(const WorkLimit&) = delete;

  void count(int steps);

 private:
  double seconds_, until_;
  std::int64_t unchecked_ = 0;  ///< steps since the clock was read
};

/// CPU time of the calling thread.
double cpu_seconds();

}  // namespace coppice::grammar
