// What each fuzz target defines, and what they share. libFuzzer calls the entry point with input after input; in other
// builds replay_main.cpp calls it with the committed corpus. A finding is a crash, an abort or a sanitizer's report.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace coppice::testing {

/// Ends the process with a finding.
[[noreturn]] inline void finding(const std::string& what) {
  std::fprintf(stderr, "finding: %s\n", what.c_str());
  std::abort();
}

/// Bytes of a script that can be written by hand: '0' stands for 0. After the last one comes 0 for ever.
class Script {
 public:
  explicit Script(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  char letter() { return static_cast<char>(byte()); }
  /// 0 <= number < end
  int number(int end) { return static_cast<std::uint8_t>(byte() - '0') % end; }

 private:
  std::uint8_t byte() {
    if (bytes_.empty()) return '0';
    const std::uint8_t first = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return first;
  }
  std::span<const std::uint8_t> bytes_;
};

}  // namespace coppice::testing
