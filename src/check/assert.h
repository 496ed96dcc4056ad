// COPPICE_ASSERT: a contract that is checked in every build. What breaks one has a fault, and what it would do next is
// unknown: the process ends with the file, the line and the contract, and a supervisor starts it anew.
//
// For what costs O(1) beside what it guards: REQUIRES: lines, invariants between members. Not for inner loops of
// kernels, and not for what a client, a file or the system can bring about: that gets an error.
//
// Any thread. The contract is evaluated once, in every build.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace coppice::check {

/// Writes one line to standard error and ends the process by SIGABRT.
[[noreturn]] [[gnu::cold]] inline void broken(const char* contract, const char* file, int line) {
  std::fprintf(stderr, "coppice: %s:%d: broken contract: %s\n", file, line, contract);
  std::abort();
}

}  // namespace coppice::check

// The file's name without its path, which would tell where it was compiled.
#define COPPICE_ASSERT(contract) \
  (static_cast<bool>(contract) ? void(0) : ::coppice::check::broken(#contract, __FILE_NAME__, __LINE__))
