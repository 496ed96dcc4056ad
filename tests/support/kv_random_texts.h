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
#include "support/kv_words.h"

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
  /// media_percent: how many texts get one more.
  Texts(Dice& dice, int block_size, int vocabulary, int longest, std::vector<FakeMedium> media, int media_percent)
      : dice_(dice),
        bs_(block_size),
        vocabulary_(vocabulary),
        longest_(longest),
        media_percent_(media_percent),
        media_(std::move(media)) {}

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
      shorten(text.tokens, cut);
      if (dice_.chance(25)) swap_twins(text.tokens);
      if (dice_.chance(5)) text.ns = dice_.one_of(kNamespaces);
    }
    const auto add = [&](const Tokens& more) { text.tokens.insert(text.tokens.end(), more.begin(), more.end()); };
    add(noise(dice_.between(0, 2 * bs_)));
    if (!media_.empty() && dice_.chance(media_percent_)) {
      for (std::int64_t n = dice_.between(1, 2); n > 0; --n) add(words_of(dice_.one_of(media_)));
      if (dice_.chance(70)) add(noise(dice_.between(1, bs_)));
    }
    if (size(text.tokens) > longest_) shorten(text.tokens, longest_);
    if (text.tokens.empty()) text.tokens = noise(1);
    remember(text);
    return text;
  }

  /// A medium in the other one's place that has the same symbols.
  void swap_twins(Tokens& tokens) {
    for (kv::Token& word : tokens) {
      if (!is_piece(word)) continue;
      FakeMedium twin = medium_of(word);
      twin.which ^= 1;
      if (std::ranges::find(media_, twin) != media_.end()) word = word_of(twin, index_of(word));
    }
  }

  /// Media that can't be cut stay whole.
  static void shorten(Tokens& tokens, std::int64_t length) {
    tokens.resize(static_cast<std::size_t>(cut_before(tokens, static_cast<std::int32_t>(length))));
  }

  void remember(const Text& text) {
    if (known_.size() >= 20) known_.pop_front();
    known_.push_back(text);
  }
  const std::deque<Text>& known() const { return known_; }

 private:
  Dice& dice_;
  const int bs_, vocabulary_, longest_, media_percent_;
  const std::vector<FakeMedium> media_;
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
    Probe probe{.text = text, .last_match = cache.match(to_kv(text.tokens), text.ns)};
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
      const std::int32_t now = cache.match(to_kv(p.text.tokens), p.text.ns);
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
