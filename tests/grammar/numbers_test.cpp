// Numbers in JSON: as they are written in enumerations, and multiples in a range. COPPICE_SEED=n replays a run.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "grammar/compiler.h"
#include "grammar/matcher.h"

namespace coppice::grammar {
namespace {

std::shared_ptr<const Grammar> compiled(const std::string& schema) {
  static const Compiler compiler([] {
    Words words{.ends = {0}};
    for (int byte = 0; byte < 256; ++byte) words.pieces.emplace_back(1, static_cast<char>(byte));
    return words;
  }());
  return compiler.compile({.kind = Kind::kJsonSchema, .text = schema});
}

bool takes_number(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  Matcher matcher(grammar);
  return matcher.accept_text(text) && matcher.whole();
}

TEST(Numbers, OfAnEnumerationAreWrittenInTheShortestWay) {
  for (const char* number :
       {"1.1", "0.1", "-0.3", "1e+23", "5e-324", "1.7976931348623157e+308", "9007199254740993", "-7", "3"}) {
    EXPECT_TRUE(takes_number(compiled(fmt::format(R"({{"enum":[{}]}})", number)), number)) << number;
    EXPECT_TRUE(takes_number(compiled(fmt::format(R"({{"enum":[[{0}]]}})", number)), fmt::format("[{}]", number)))
        << number;
  }
  EXPECT_TRUE(takes_number(compiled(R"({"const":1.0})"), "1"));
  EXPECT_TRUE(takes_number(compiled(R"({"const":1.1E0})"), "1.1"));
  EXPECT_FALSE(takes_number(compiled(R"({"const":1.1})"), "1.1000000000000001"));
}

/// Those near the bounds, near zero, and any.
TEST(Numbers, MultiplesAreHeldInAnyRange) {
  const char* given = std::getenv("COPPICE_SEED");
  const unsigned seed =
      given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device()();
  std::cout << "COPPICE_SEED=" << seed << "\n";
  std::mt19937_64 random(seed);
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const auto any = [&] {
    const auto n = static_cast<std::int64_t>(random() >> (1 + random() % 62));
    return random() % 2 == 0 ? n : -n;
  };
  for (int i = 0; i < 60; ++i) {
    const std::int64_t step = 2 + static_cast<std::int64_t>(random() % 40);
    std::optional<std::int64_t> least, most;
    if (random() % 3 != 0) least = any();
    if (!least || random() % 2 == 0) most = any();
    if (least && most && *least > *most) std::swap(*least, *most);
    std::string schema = fmt::format(R"({{"type":"integer","multipleOf":{})", step);
    if (least) schema += fmt::format(R"(,"minimum":{})", *least);
    if (most) schema += fmt::format(R"(,"maximum":{})", *most);
    schema += "}";
    SCOPED_TRACE(schema);
    // A narrow range may have none.
    if (least && most && *most - *least < 100) continue;
    const auto grammar = compiled(schema);
    const auto check = [&](std::int64_t n) {
      const bool wanted = n % step == 0 && (!least || n >= *least) && (!most || n <= *most);
      ASSERT_EQ(takes_number(grammar, std::to_string(n)), wanted) << n;
    };
    for (int k = 0; k < 300; ++k) {
      const std::int64_t around = static_cast<std::int64_t>(random() % 100) - 50;
      for (const auto& bound : {least, most})
        if (bound && *bound < kMost - 100 && *bound > 100 - kMost) check(*bound + around);
      check(around);
      const std::int64_t n = any();
      check(n);
      check(n - n % step);
    }
    EXPECT_FALSE(takes_number(grammar, "-0"));
    EXPECT_FALSE(takes_number(grammar, "00"));
    EXPECT_FALSE(takes_number(grammar, ""));
  }
}

TEST(Numbers, MultiplesReachTheEndsOfSixtyFourBits) {
  const auto up =
      compiled(R"({"type":"integer","multipleOf":2,"minimum":-9223372036854775808,"maximum":9223372036854775807})");
  EXPECT_TRUE(takes_number(up, "-9223372036854775808"));
  EXPECT_FALSE(takes_number(up, "-9223372036854775810"));
  EXPECT_TRUE(takes_number(up, "9223372036854775806"));
  EXPECT_FALSE(takes_number(up, "9223372036854775808"));
  const auto open = compiled(R"({"type":"integer","multipleOf":5,"minimum":0})");
  EXPECT_TRUE(takes_number(open, "123456789012345678901234567890"));
  EXPECT_FALSE(takes_number(open, "123456789012345678901234567891"));
  EXPECT_FALSE(takes_number(open, "-5"));
}

}  // namespace
}  // namespace coppice::grammar
