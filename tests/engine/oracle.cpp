#include "engine/oracle.h"

#include <algorithm>
#include <utility>

#include "engine/harness.h"
#include "support/fake_executor.h"
#include "support/fake_generation.h"
#include "support/kv_words.h"

namespace coppice::testing {

Oracle::Oracle(std::vector<kv::GroupSpec> groups) : groups_(std::move(groups)), state_(kStateRoot) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    shallow_.hashed.push_back(g);
    deep_.hashed.push_back(g);
  }
}

void Oracle::feed(kv::Token token) {
  add_rows(std::span(&token, 1), false, {});
}

void Oracle::add_key(Layer& layer, Key key) {
  layer.keys.push_back(key);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].kind != kv::GroupKind::kFull) continue;
    layer.hashed[g] = mix(layer.hashed[g], key.key);
    if (key.rotation != 0) layer.hashed[g] = mix(layer.hashed[g], key.rotation);
  }
}

// Full groups see all keys that are there: those of rows behind only where these are seen.
std::uint64_t Oracle::attend(const Layer& layer, std::size_t position, std::size_t end, std::uint64_t state) const {
  std::uint64_t all = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].kind == kv::GroupKind::kFull) {
      all = mix(all, layer.hashed[g]);
      continue;
    }
    if (groups_[g].kind == kv::GroupKind::kRecurrent) {
      all = mix(all, state);
      continue;
    }
    const auto window = std::min(position + 1, static_cast<std::size_t>(groups_[g].window));
    std::uint64_t seen = g;
    for (std::size_t i = position + 1 - window; i < end; ++i) {
      seen = mix(seen, layer.keys[i].key);
      if (layer.keys[i].rotation != 0) seen = mix(seen, layer.keys[i].rotation);
    }
    all = mix(all, seen);
  }
  return all;
}

// A layer is done for all of them before the next one starts, where they see each other.
void Oracle::add_rows(std::span<const kv::Token> symbols, bool both_ways,
                      const std::function<void(std::size_t)>& after) {
  if (!both_ways && symbols.size() > 1) {
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      add_rows(symbols.subspan(i, 1), false, {});
      if (after) after(i);
    }
    return;
  }
  const std::size_t first = shallow_.keys.size();
  std::vector<std::uint64_t> states;
  for (const kv::Token symbol : symbols) {
    const auto index = static_cast<std::uint32_t>(shallow_.keys.size());
    const std::int32_t at = static_cast<std::int32_t>(index) + shift_;
    const std::uint64_t rotation = rotation_ ? rotation_(static_cast<std::int32_t>(index))
                                             : rotation_of({at, at, at}, static_cast<std::int32_t>(index));
    add_key(shallow_, {std::uint64_t{static_cast<std::uint32_t>(symbol)} << 32 | index, rotation});
    states.push_back(state_ = mix(state_, static_cast<std::uint32_t>(symbol)));
  }
  const std::size_t end = shallow_.keys.size();
  for (std::size_t i = 0; i < symbols.size(); ++i) add_key(deep_, {attend(shallow_, first + i, end, states[i]), 0});
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    logits_ = attend(deep_, first + i, end, states[i]);
    if (after) after(i);
  }
}

void Oracle::feed_all(std::span<const kv::Token> words, const std::function<void(std::size_t)>& after) {
  for (std::size_t i = 0; i < words.size();) {
    const auto told = [&, i](std::size_t row) {
      if (after) after(i + row);
    };
    if (!test::is_piece(words[i])) {
      add_rows(words.subspan(i, 1), false, told);
      ++i;
      continue;
    }
    const test::FakeMedium medium = test::medium_of(words[i]);
    const auto first = static_cast<std::int32_t>(shallow_.keys.size());
    const std::int32_t columns = columns_of(medium), begin = first + shift_;
    std::vector<kv::Token> symbols;
    for (std::int32_t row = 0; row < medium.rows; ++row) symbols.push_back(embedding_symbol(embedding_of(medium, row)));
    if (columns > 0) {
      rotation_ = [=](std::int32_t index) {
        const std::int32_t row = index - first;
        return rotation_of({begin, begin + row / columns, begin + row % columns}, index);
      };
    }
    add_rows(symbols, medium.whole, told);
    rotation_ = {};
    if (columns > 0) shift_ += std::max(columns, (medium.rows + columns - 1) / columns) - medium.rows;
    i += symbols.size();
  }
}

std::vector<kv::Token> expected_tokens(const std::vector<kv::GroupSpec>& groups, std::span<const kv::Token> prompt,
                                       std::uint64_t seed, int n_tokens) {
  Oracle oracle(groups);
  oracle.feed_all(prompt);
  std::vector<kv::Token> tokens;
  while (static_cast<int>(tokens.size()) < n_tokens) {
    tokens.push_back(fake_token(oracle.logits_hash(), seed, static_cast<int>(tokens.size())));
    oracle.feed(tokens.back());
  }
  return tokens;
}

}  // namespace coppice::testing
