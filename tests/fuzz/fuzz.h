// What each fuzz target defines, and what they share. libFuzzer calls the entry point with input after input; in other
// builds replay_main.cpp calls it with the committed corpus. A finding is a crash, an abort or a sanitizer's report.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace coppice::testing {

/// Ends the process with a finding.
[[noreturn]] inline void finding(const std::string& what) {
  std::fprintf(stderr, "finding: %s\n", what.c_str());
  std::abort();
}

}  // namespace coppice::testing
