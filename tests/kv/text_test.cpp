// Texts: tokens and media, against the same rules a word at a time (kv_words.h).
#include "kv/text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "kv/block_bytes.h"
#include "support/dice.h"
#include "support/kv_known_prefixes.h"
#include "support/kv_words.h"

namespace coppice::test {
namespace {

using Words = std::vector<kv::Token>;

TEST(TextTest, NoPieceEqualsAToken) {
  const kv::Medium medium = to_kv({.which = 3, .rows = 400});
  for (int i = 0; i < medium.rows; ++i) {
    EXPECT_EQ(kv::Symbol(medium, i).token(), std::nullopt);
    EXPECT_NE(kv::Symbol(medium, i), kv::Symbol(medium, i + 1));
  }
  EXPECT_EQ(kv::Symbol(7).token(), 7);
}

TEST(TextTest, TokensAreATextWithoutMedia) {
  const Words words = {1, 2, 3};
  const kv::Text text = words;
  EXPECT_TRUE(text.spans().empty());
  EXPECT_EQ(text.view().tokens(), words);
  EXPECT_EQ(text, kv::Text(kv::TextView(words)));
}

TEST(TextTest, TokensAloneAreWhatOthersRead) {
  kv::Text text = Words{1, 2};
  text.append(to_kv({.which = 1, .rows = 3}));
  text.append(Words{5});
  EXPECT_EQ(text.size(), 6U);
  EXPECT_EQ(text.view().tokens(), (Words{1, 2, 5}));
  EXPECT_EQ(text.view().token_from(2), 5);
  EXPECT_EQ(text.view().medium_from(0), 2);
  EXPECT_EQ(text.view().medium_from(5), 6) << "there is none";
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : dice_(seed) {}

  Words words() {
    Words words;
    for (std::int64_t n = dice_.below(6); n > 0; --n) {
      Words more = {static_cast<kv::Token>(dice_.below(2))};
      if (dice_.chance(60)) {
        more = words_of({.which = static_cast<int>(dice_.below(4)),
                         .rows = static_cast<std::int32_t>(dice_.between(1, 4)),
                         .whole = dice_.chance(50)});
      }
      words.insert(words.end(), more.begin(), more.end());
    }
    return words;
  }
  std::size_t up_to(std::size_t n) { return static_cast<std::size_t>(dice_.between(0, static_cast<std::int64_t>(n))); }
  bool chance(int percent) { return dice_.chance(percent); }

 private:
  Dice dice_;
};

// Parts of parts, appended, shortened, compared.
TEST(TextTest, RandomTextsAreTheirWords) {
  const char* const text = std::getenv("COPPICE_SEED");
  const std::uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device{}();
  fmt::print("COPPICE_SEED={}\n", seed);
  Random random(seed);
  std::int64_t less = 0, inside = 0, equal = 0;
  for (int i = 0; i < 100'000 && !testing::Test::HasFailure(); ++i) {
    Words a = random.words(), b = a;
    b.resize(random.up_to(b.size()));
    const Words more = random.words();
    if (random.chance(80)) b.insert(b.end(), more.begin(), more.end());
    kv::Text x = to_kv(a), y = to_kv(Words(b.begin(), b.end() - static_cast<std::ptrdiff_t>(random.up_to(b.size()))));
    y.append(to_kv(b).view().subspan(y.size()));  // cut anywhere, and put together again
    EXPECT_EQ(y, to_kv(b));
    EXPECT_EQ(y.spans().size(), to_kv(b).spans().size());
    const std::int32_t common = test::common_prefix(a, b);
    EXPECT_EQ(kv::common_prefix(x, y), common);
    EXPECT_EQ(x == y, a == b);
    equal += a == b;
    EXPECT_EQ((x.view() < y.view()) + (y.view() < x.view()), a == b ? 0 : 1);
    less += x.view() < y.view();

    const std::size_t begin = random.up_to(a.size()), n = random.up_to(a.size() - begin);
    const kv::TextView part = x.view().subspan(begin, n);
    const Words own(a.begin() + static_cast<std::ptrdiff_t>(begin), a.begin() + static_cast<std::ptrdiff_t>(begin + n));
    EXPECT_EQ(part, to_kv(own).view());
    EXPECT_EQ(part.n_spans(), to_kv(own).spans().size());
    const auto bytes = kv::spell(part);
    EXPECT_EQ(kv::read_text(bytes, n), to_kv(own));
    EXPECT_EQ(kv::read_text(bytes, n + 1), std::nullopt);
    for (std::int32_t at = 0; std::cmp_less_equal(at, n); ++at) {
      const auto there = static_cast<std::int32_t>(begin) + at;
      const std::int32_t before = cut_before(a, there), behind = cut_behind(a, there);
      inside += before != behind;
      EXPECT_EQ(part.cuts(at).before, before - static_cast<std::int32_t>(begin));
      EXPECT_EQ(part.cuts(at).behind, behind - static_cast<std::int32_t>(begin));
    }
    kv::Text shorter = x;
    shorter.truncate(begin);
    EXPECT_EQ(shorter, to_kv(Words(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(begin))));
  }
  EXPECT_GE(less, 10'000);
  EXPECT_GE(equal, 1'000);
  EXPECT_GE(inside, 10'000);
}

// Whoever is between two neighbours has more in common with both than they with each other: how children are found.
TEST(TextTest, NeighboursInOrderBeginAlike) {
  Random random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::array<kv::Text, 3> texts = {to_kv(random.words()), to_kv(random.words()), to_kv(random.words())};
    std::ranges::sort(texts, [](const kv::Text& a, const kv::Text& b) { return a.view() < b.view(); });
    EXPECT_EQ(kv::common_prefix(texts[0], texts[2]),
              std::min(kv::common_prefix(texts[0], texts[1]), kv::common_prefix(texts[1], texts[2])));
  }
}

// What a file says of itself may be anything.
TEST(TextTest, BytesThatAreNoTextAreRefused) {
  kv::Text text = Words{1, 2};
  text.append(to_kv({.which = 1, .rows = 3}));
  const auto bytes = kv::spell(text.view());
  ASSERT_EQ(kv::read_text(bytes, 5), text);
  Random random(1);
  int refused = 0;
  for (std::size_t i = 0; i < 40; ++i) {  // symbols, and the numbers of the span
    auto other = bytes;
    other[i] ^= std::byte{1} << random.up_to(7);
    const auto read = kv::read_text(other, 5);
    EXPECT_NE(read, text);
    refused += read ? 0 : 1;
  }
  EXPECT_GE(refused, 20);
  for (std::size_t n = 0; n < bytes.size(); ++n) EXPECT_EQ(kv::read_text(std::span(bytes).first(n), 5), std::nullopt);
}

TEST(TextTest, AnOriginIsReadAsItWasSpelled) {
  const kv::BlockOrigin origin{.parent = {1, 2, 3}, .is_first = true, .ns = {.salt = "salt", .adapter = "adapter"}};
  const auto bytes = kv::spell(origin);
  EXPECT_EQ(kv::read_origin(bytes), origin);
  EXPECT_EQ(kv::read_origin(std::span(bytes).first(43)), std::nullopt);
}

}  // namespace
}  // namespace coppice::test
