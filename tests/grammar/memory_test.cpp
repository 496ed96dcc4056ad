// What a stream of different grammars leaves behind. COPPICE_GRAMMARS=1000000 draws as many (an hour).
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
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

TEST(GrammarMemory, IsBoundedOverManyGrammars) {
  if (test::kSanitized) GTEST_SKIP() << "another malloc";
  const char* many = std::getenv("COPPICE_GRAMMARS");
  const int n = many == nullptr ? 6000 : std::atoi(many);
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

}  // namespace
}  // namespace coppice::grammar
