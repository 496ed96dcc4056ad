// Pool: an engine whose prefixes are pinned, listed and flooded out.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/harness.h"

namespace coppice::testing {
using engine::PinRefusal;
using engine::PinWish;
using engine::PrefixCommand;
using std::chrono::seconds;
using Kind = PrefixCommand::Kind;

inline constexpr int kBlock = 8;  // HarnessConfig's

/// A pool of so many blocks of tokens, however many groups there are.
inline HarnessConfig small(Groups groups, int blocks = 60) {
  const auto n = static_cast<std::int32_t>(make_groups(groups).size());
  return {.groups = groups, .num_blocks = blocks * n + 1, .max_batch = 2, .context_length = 10 * kBlock};
}

inline PinWish object(std::size_t tokens, int ttl = 60, std::string name = "") {
  return {.tokens = static_cast<std::int32_t>(tokens), .ttl = seconds(ttl), .object = true, .name = std::move(name)};
}
inline PinWish mark(std::size_t tokens, int ttl = 60) {
  return {.tokens = static_cast<std::int32_t>(tokens), .ttl = seconds(ttl)};
}

class Pool : public Harness {
 public:
  explicit Pool(const HarnessConfig& config) : Harness(config) {}

  /// Computes a prefix, pins it, and says what came of that.
  engine::PinOutcome pin(const Prompt& prompt, PinWish wish, const std::string& salt = "",
                         const std::string& payer = "") {
    const auto id =
        submit({.prompt = prompt, .only_prompt = true, .salt = salt, .pins = {std::move(wish)}, .payer = payer});
    finish();
    EXPECT_EQ(result(id).usage.pins.size(), 1U);
    return result(id).usage.pins.empty() ? engine::PinOutcome{} : result(id).usage.pins[0];
  }
  /// Tokens of a prompt's beginning that are found.
  std::int32_t cached(const Prompt& prompt, const std::string& salt = "", std::vector<PinWish> pins = {}) {
    const auto id = submit({.prompt = prompt, .max_tokens = 1, .salt = salt, .pins = std::move(pins)});
    finish();
    return result(id).usage.cached_tokens;
  }
  /// Other texts, four times as many as the pool holds.
  void flood(std::mt19937_64& random) {
    const auto wanted = 4 * snapshot().cache.total * kBlock;
    for (std::int64_t i = 0; i < wanted; i += 72) {
      submit({.prompt = random_prompt(random, 72), .max_tokens = 2});
      if (i % 720 == 0) finish();
    }
    finish();
  }
  std::vector<engine::PrefixInfo> list(const std::string& payer = "", const std::string& salt = "") {
    return ask({.kind = Kind::kList, .owner = {.payer = payer, .ns = {.salt = salt}}}).prefixes;
  }
};

}  // namespace coppice::testing
