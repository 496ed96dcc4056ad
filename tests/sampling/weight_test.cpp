// What a sample weighs that waits: thousands may, and a request of a few KiB must not bring hundreds of MiB.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "sampling/make_generation.h"
#include "text/fixtures.h"

namespace {

thread_local std::size_t allocated = 0;  // bytes, what was given back included

}  // namespace

void* operator new(std::size_t size) {
  allocated += size;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace coppice::sampling {
namespace {

/// A request with as much as it may have of all that samples can share.
SamplingParams heaviest() {
  SamplingParams params{.repeat_penalty = 1.1F, .logprobs = kMaxTopLogprobs};
  for (kv::Token token = 0; std::cmp_less(token, kMaxLogitBias); ++token) params.logit_bias[token] = 1;
  for (char c = 'a'; c < 'a' + 16; ++c) params.stop.emplace_back(kMaxStopBytes, c);
  return params;
}

TEST(Weight, WaitingSamplesShareAllButAKiB) {
  std::vector<kv::Token> prompt(10000);
  std::iota(prompt.begin(), prompt.end(), 0);
  const auto shared = std::make_shared<const SharedParams>(heaviest(), test::vocabulary()->size());
  const auto bytes_of = [&](int n) {
    const std::size_t before = allocated;
    const auto samples = make_generations(test::vocabulary(), shared, n, prompt);
    EXPECT_EQ(samples.size(), static_cast<std::size_t>(n));
    return allocated - before;
  };
  bytes_of(1);  // what is made once in a process
  const std::size_t one = bytes_of(1), many = bytes_of(101);
  EXPECT_LT(many - one, 100 * std::size_t{1024});
}

}  // namespace
}  // namespace coppice::sampling
