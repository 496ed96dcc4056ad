// A compilation's limit: XGrammar counts its steps (cmake/xgrammar), and is stopped by an exception. For this folder's .cpp files only.
#pragma once

#include <cstdint>

#include "grammar/source.h"

namespace coppice::grammar {

class WorkError : public GrammarError {
 public:
  using GrammarError::GrammarError;
};

/// This thread's compilations may take so much CPU time while it lives; beyond it they throw WorkError. They don't nest.
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
