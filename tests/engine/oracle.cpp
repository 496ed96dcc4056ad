#include "engine/oracle.h"

#include <algorithm>
#include <utility>

#include "support/fake_executor.h"
#include "support/fake_generation.h"

namespace coppice::testing {

Oracle::Oracle(std::vector<kv::GroupSpec> groups) : groups_(std::move(groups)), state_(kStateRoot) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    shallow_full_.push_back(g);
    deep_full_.push_back(g);
  }
}

void Oracle::feed(kv::Token token) {
  const auto position = static_cast<std::uint32_t>(shallow_.size());
  shallow_.push_back(std::uint64_t{static_cast<std::uint32_t>(token)} << 32 | position);
  state_ = mix(state_, static_cast<std::uint32_t>(token));
  deep_.push_back(attend(shallow_, shallow_full_));
  logits_ = attend(deep_, deep_full_);
}

std::uint64_t Oracle::attend(const std::vector<std::uint64_t>& keys, std::vector<std::uint64_t>& running) {
  std::uint64_t all = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].kind == kv::GroupKind::kFull) {
      running[g] = mix(running[g], keys.back());
      all = mix(all, running[g]);
      continue;
    }
    if (groups_[g].kind == kv::GroupKind::kRecurrent) {
      all = mix(all, state_);
      continue;
    }
    const auto window = std::min(keys.size(), static_cast<std::size_t>(groups_[g].window));
    std::uint64_t seen = g;
    for (std::size_t i = keys.size() - window; i < keys.size(); ++i) seen = mix(seen, keys[i]);
    all = mix(all, seen);
  }
  return all;
}

std::vector<kv::Token> expected_tokens(const std::vector<kv::GroupSpec>& groups, std::span<const kv::Token> prompt,
                                       std::uint64_t seed, int n_tokens) {
  Oracle oracle(groups);
  for (const auto token : prompt) oracle.feed(token);
  std::vector<kv::Token> tokens;
  while (static_cast<int>(tokens.size()) < n_tokens) {
    tokens.push_back(fake_token(oracle.logits_hash(), seed, static_cast<int>(tokens.size())));
    oracle.feed(tokens.back());
  }
  return tokens;
}

}  // namespace coppice::testing
