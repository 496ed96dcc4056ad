// What a stream of different grammars leaves behind. COPPICE_GRAMMARS=1000000 draws as many, and prints along the way
// what the process holds.
#include "port/memory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar/compiler.h"
#include "support/sanitized.h"

namespace coppice::grammar {
namespace {

Words byte_words() {
  Words words{.ends = {256}};
  for (int byte = 0; byte < 256; ++byte) words.pieces.emplace_back(1, static_cast<char>(byte));
  words.pieces.emplace_back("<end>");
  return words;
}

/// Bytes that are in use of what malloc gave out.
std::size_t in_use() {
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

Source drawn(int i) {
  const std::string n = std::to_string(i);
  switch (i % 4) {
    case 0:
      return {.kind = Kind::kRegex, .text = "[a-z]{2}x" + n};
    case 1:
      return choice_of(std::vector<std::string>{"yes " + n, "no " + n, "é" + n});
    case 2:
      return {
          .kind = Kind::kJsonSchema,
          .text = R"({"type":"object","properties":{"k)" + n + R"(":{"type":"string"}},"additionalProperties":false})"};
    default:
      return {.text = "root ::= x{3}\nx ::= \"" + n + "\" [a-f]+"};
  }
}

TEST(GrammarMemory, IsWhatIsStated) {
  if (test::kSanitized) GTEST_SKIP() << "another malloc";
  const Compiler none(byte_words(), 1 << 16);  // of which little stays in the compiler itself
  none.compile(drawn(2));
  for (int kind = 0; kind < 4; ++kind) {
    std::vector<std::shared_ptr<const Grammar>> kept;
    kept.reserve(200);
    const std::size_t before = in_use();
    std::size_t stated = 0;
    for (int i = 0; i < 200; ++i) {
      kept.push_back(none.compile(drawn(4 * (1000 + i) + kind)));
      stated += kept.back()->bytes();
    }
    const auto held = static_cast<double>(in_use() - before);
    EXPECT_GT(static_cast<double>(stated), 0.8 * held) << "kind " << kind << ", each " << held / 200;
    EXPECT_LT(static_cast<double>(stated), 1.8 * held) << "kind " << kind << ", each " << held / 200;
  }
}

/// COPPICE_GRAMMARS, or else `usual`.
int how_many(int usual) {
  const char* many = std::getenv("COPPICE_GRAMMARS");
  return many == nullptr ? usual : std::atoi(many);
}

TEST(GrammarMemory, IsBoundedOverManyGrammars) {
  if (test::kSanitized) GTEST_SKIP() << "another malloc";
  const int n = how_many(6000);
  constexpr std::size_t kCache = std::size_t{1} << 20;
  const Compiler compiler(byte_words(), kCache);
  const std::size_t before = in_use();
  for (int i = 0; i < n; ++i) {
    compiler.compile(drawn(i));
    if (i % 500 != 0) continue;
    ASSERT_LE(compiler.cached_bytes(), kCache);
    ASSERT_LE(in_use() - before, 2 * kCache + (kCache / 2)) << "after " << i;
  }
}

/// The smallest forms: of these most fit, and what is not counted weighs most.
Source smallest(int i) {
  const std::string n = std::to_string(i);
  if (i % 2 == 0) return {.kind = Kind::kRegex, .text = n};
  return choice_of(std::vector<std::string>{n});
}

/// What the process holds, not only what malloc counts: pages that are torn to pieces are held, too.
TEST(GrammarMemory, OfTheProcessIsBoundedOverManyOfTheSmallest) {
  if (test::kSanitized) GTEST_SKIP() << "another malloc";
  const int n = how_many(12'000);
  constexpr std::size_t kCache = std::size_t{4} << 20;
  const Compiler compiler(byte_words(), kCache);
  compiler.compile(smallest(0));
  malloc_trim(0);  // or it would grow into what other tests have left
  const auto resident = [] { return static_cast<std::int64_t>(port::resident_memory()); };
  const std::int64_t before = resident(), most = kCache;
  std::optional<std::int64_t> full;  // what was held when the cache was, for the first time
  for (int i = 0; i < n; ++i) {
    compiler.compile(smallest(i));
    if (i % 1000 != 0) continue;
    const std::size_t cached = compiler.cached_bytes();
    const std::int64_t held = resident() - before;
    if (!full && cached > kCache - (kCache / 16)) full = held;
    if (i % 50'000 == 0) fmt::print(stderr, "{}: {} KiB counted, {} KiB held\n", i, cached >> 10, held / 1024);
    ASSERT_LE(cached, kCache);
    ASSERT_LE(held, 2 * most + (most / 2)) << "after " << i;
    ASSERT_LT(held, full.value_or(held) + (most / 2)) << "it grows on after " << i;
  }
  EXPECT_TRUE(full) << "too few to fill the cache";
}

}  // namespace
}  // namespace coppice::grammar
