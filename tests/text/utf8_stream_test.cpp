#include "text/utf8_stream.h"

#include <gmock/gmock.h>

#include <set>

#include "support/sanitized.h"
#include "text/fixtures.h"

namespace coppice::text {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

std::string encode(char32_t c) {
  const auto byte = [](char32_t bits) { return static_cast<char>(bits); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | c >> 6), byte(0x80 | (c & 0x3F))};
  if (c < 0x10000) return {byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 0x3F)), byte(0x80 | (c & 0x3F))};
  return {byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 0x3F)), byte(0x80 | (c >> 6 & 0x3F)), byte(0x80 | (c & 0x3F))};
}

/// The definition itself, by enumeration: all characters that exist, and all beginnings of them.
class ByDefinition {
 public:
  ByDefinition() {
    for (char32_t c = 0; c <= 0x10FFFF; ++c) {
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      const std::string bytes = encode(c);
      if (bytes.size() < 4) whole_.insert(bytes);
      for (std::size_t n = 1; n < bytes.size(); ++n) beginnings_.insert(bytes.substr(0, n));
      if (bytes.size() == 4) whole4_.insert(bytes.substr(0, 3));  // any last byte 80..BF is fine
    }
  }

  std::string repair(const std::string& in) const {
    std::string out;
    std::size_t i = 0;
    while (i < in.size()) {
      std::size_t n = whole_at(in, i);
      if (n > 0) {
        out += in.substr(i, n);
      } else {
        n = 1;
        for (std::size_t m = 2; m <= 3 && i + m <= in.size(); ++m) {
          if (beginnings_.contains(in.substr(i, m))) n = m;
        }
        out += kBad;
      }
      i += n;
    }
    return out;
  }

 private:
  std::size_t whole_at(const std::string& in, std::size_t i) const {
    for (std::size_t n = 1; n <= 3 && i + n <= in.size(); ++n) {
      if (whole_.contains(in.substr(i, n))) return n;
    }
    const bool four = i + 4 <= in.size() && whole4_.contains(in.substr(i, 3)) &&
                      (static_cast<unsigned char>(in[i + 3]) & 0xC0) == 0x80;
    return four ? 4 : 0;
  }

  std::set<std::string> whole_, whole4_, beginnings_;
};

TEST(Utf8Stream, KeepsTextAndHoldsBackHalfCharacters) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xE2\x82"), "a");
  EXPECT_EQ(stream.pending(), 2U);
  EXPECT_EQ(stream.push("\xAC!"), "\xE2\x82\xAC!");
  EXPECT_EQ(stream.pending(), 0U);
  EXPECT_EQ(stream.flush(), "");
  EXPECT_EQ(stream.push("\xF0\x9F\x99"), "");
  EXPECT_EQ(stream.flush(), kBad);
  EXPECT_EQ(stream.push("\x82z"), kBad + "z") << "after a flush the stream is as new";
}

// The examples of the Unicode standard, table 3-8 to 3-11.
TEST(Utf8Stream, ReplacesMaximalSubparts) {
  EXPECT_EQ(to_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            kBad + kBad + kBad + kBad + kBad + kBad + kBad + kBad + "A");
  EXPECT_EQ(to_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            kBad + kBad + kBad + kBad + kBad + kBad + kBad + kBad + "A");
  EXPECT_EQ(to_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            kBad + kBad + kBad + kBad + kBad + "A" + kBad + kBad + "B");
  EXPECT_EQ(to_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), kBad + kBad + kBad + kBad + "A");
  EXPECT_FALSE(is_utf8("\xF4\x90\x80\x80"));
  EXPECT_TRUE(is_utf8("\xF4\x8F\xBF\xBF"));
}

// Random bytes, biased towards the borders of the rules, in random pieces: always what the definition says.
TEST(Utf8Stream, EqualsTheDefinitionForEverySplit) {
  const ByDefinition definition;
  std::mt19937_64 random = test::seeded_random();
  const std::string borders =
      "\x7F\x80\x8F\x90\x9F\xA0\xBF\xC0\xC1\xC2\xDF\xE0\xE1\xEC\xED\xEE\xEF\xF0\xF1\xF3\xF4\xF5\xFF";
  for (int round = 0; round < (test::kSanitized ? 5000 : 20000); ++round) {
    std::string in;
    const std::size_t n = test::pick_below(random, 24);
    while (in.size() < n) {
      const std::size_t kind = test::pick_below(random, 4);
      if (kind == 0) {
        in += static_cast<char>(test::pick_below(random, 256));
      } else if (kind == 1) {
        in += encode(static_cast<char32_t>(test::pick_below(random, 0xD800)));
      } else {
        in += borders[test::pick_below(random, borders.size())];
      }
    }
    Utf8Stream stream;
    std::string out;
    for (std::size_t i = 0; i < in.size();) {
      const std::size_t step = 1 + test::pick_below(random, 5);
      const std::string piece = stream.push(std::string_view(in).substr(i, step));
      ASSERT_EQ(definition.repair(piece), piece) << "a piece that is not whole characters";
      ASSERT_LE(stream.pending(), 3U);
      out += piece;
      i += step;
    }
    out += stream.flush();
    ASSERT_EQ(out, definition.repair(in)) << "round " << round;
  }
}

}  // namespace
}  // namespace coppice::text
