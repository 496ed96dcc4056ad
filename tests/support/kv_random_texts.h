// What the random driver of kv asks for, and what it watches: Texts and Probes. Not thread safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "kv/cache.h"
#include "support/dice.h"
#include "support/kv_known_prefixes.h"

namespace coppice::test {

using Tokens = std::vector<kv::Token>;

inline std::int64_t size(const Tokens& tokens) {
  return static_cast<std::int64_t>(tokens.size());
}

/// A text that was or will be asked for.
struct Text {
  kv::Namespace ns;
  Tokens tokens;
};

/// Makes texts whose prefixes meet at every depth.
class Texts {
 public:
  Texts(Dice& dice, int block_size, int vocabulary, int longest)
      : dice_(dice), bs_(block_size), vocabulary_(vocabulary), longest_(longest) {}

  Tokens noise(std::int64_t n) {
    Tokens tokens;
    for (std::int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<kv::Token>(dice_.below(vocabulary_)));
    return tokens;
  }

  /// Mostly an old text, cut somewhere, with a new end.
  Text make() {
    static const std::vector<kv::Namespace> kNamespaces = {{}, {}, {}, {.salt = "tenant"}, {.adapter = "lora"}};
    Text text{.ns = dice_.one_of(kNamespaces)};
    if (!known_.empty() && dice_.chance(85)) {
      text = dice_.one_of(known_);
      const std::int64_t n = size(text.tokens);
      const std::int64_t cut = dice_.chance(30) ? n / bs_ * bs_ : dice_.chance(40) ? n : dice_.below(n + 1);
      text.tokens.resize(static_cast<std::size_t>(cut));
      if (dice_.chance(5)) text.ns = dice_.one_of(kNamespaces);
    }
    const Tokens tail = noise(dice_.between(0, 2 * bs_));
    text.tokens.insert(text.tokens.end(), tail.begin(), tail.end());
    if (text.tokens.empty()) text.tokens = noise(1);
    if (size(text.tokens) > longest_) text.tokens.resize(static_cast<std::size_t>(longest_));
    remember(text);
    return text;
  }

  void remember(const Text& text) {
    if (known_.size() >= 20) known_.pop_front();
    known_.push_back(text);
  }
  const std::deque<Text>& known() const { return known_; }

 private:
  Dice& dice_;
  const int bs_, vocabulary_, longest_;
  std::deque<Text> known_;
};

/// Published histories that are watched for what eviction takes of them.
class Probes {
 public:
  struct Probe {
    Text text;
    std::int32_t last_match = 0;
    bool branches = false;  ///< another probe leaves its path at or after a whole block
  };

  void watch(const Text& text, const kv::Cache& cache) {
    Probe probe{.text = text, .last_match = cache.match(text.tokens, text.ns)};
    for (Probe& other : probes_) {
      if (other.text.ns != text.ns) continue;
      const std::int32_t common = common_prefix(text.tokens, other.text.tokens);
      if (common < cache.config().block_size || common == size(text.tokens) || common == size(other.text.tokens))
        continue;
      probe.branches = other.branches = true;
    }
    if (probes_.size() >= 8) probes_.pop_front();
    probes_.push_back(std::move(probe));
  }

  /// Looks at all of them. Whether one that branches matches less than it did.
  bool lost_a_branch(const kv::Cache& cache) {
    bool met = false;
    for (Probe& p : probes_) {
      const std::int32_t now = cache.match(p.text.tokens, p.text.ns);
      met = met || (p.branches && now < p.last_match);
      p.last_match = now;
    }
    return met;
  }

  bool empty() const { return probes_.empty(); }
  const std::deque<Probe>& all() const { return probes_; }

 private:
  std::deque<Probe> probes_;
};

}  // namespace coppice::test
