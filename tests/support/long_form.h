// Whether tests run in their long form (COPPICE_LONG is set, as make everything does): they ask the same at greater
// length.
#pragma once

#include <cstdlib>

namespace coppice::test {

inline bool long_form() {
  return std::getenv("COPPICE_LONG") != nullptr;
}

}  // namespace coppice::test
