#include "text/special_names.h"

#include <gtest/gtest.h>

namespace coppice::text {
namespace {

SpecialNames names(const std::vector<std::string>& all) {
  SpecialNames names;
  for (std::size_t i = 0; i < all.size(); ++i) names.add(all[i], {.token = static_cast<kv::Token>(i)});
  return names;
}

/// "begin-end:token", one after the other.
std::string matches(const SpecialNames& names, std::string_view text) {
  std::string out;
  std::size_t at = 0;
  while (const auto match = names.find(text, at)) {
    out += std::to_string(match->begin) + "-" + std::to_string(match->end) + ":" +
           std::to_string(match->special.token) + " ";
    at = match->end;
  }
  return out;
}

TEST(SpecialNames, LeftmostThenLongest) {
  const SpecialNames some = names({"<a>", "<a><b>", "a>", "<c", "\xff"});
  EXPECT_EQ(matches(some, ""), "");
  EXPECT_EQ(matches(some, "<<a"), "");
  EXPECT_EQ(matches(some, "x<a>y"), "1-4:0 ");
  EXPECT_EQ(matches(some, "<a><a><b><b>"), "0-3:0 3-9:1 ");
  EXPECT_EQ(matches(some, "<<a>a>"), "1-4:0 4-6:2 ");
  EXPECT_EQ(matches(some, "<c\xff"), "0-2:3 2-3:4 ");
}

TEST(SpecialNames, WhatSharesAByteWithPlainTextDoesNotCount) {
  const SpecialNames some = names({"<a>", "<a><b>", "<c>"});
  const auto first = [&](const std::vector<TextSpan>& plain) {
    const auto match = some.find("<a><b><c>", 0, plain);
    return match ? std::to_string(match->begin) + "-" + std::to_string(match->end) : "";
  };
  EXPECT_EQ(first({}), "0-6");
  EXPECT_EQ(first({{3, 6}}), "0-3");
  EXPECT_EQ(first({{2, 3}}), "6-9");
  EXPECT_EQ(first({{0, 1}, {0, 3}, {8, 9}}), "");
  EXPECT_EQ(some.longest(), 6U);
}

TEST(SpecialNames, EmptyAndRepeatedNames) {
  EXPECT_EQ(matches(names({}), "text"), "");
  EXPECT_EQ(matches(names({"", "x", "x"}), "xx"), "0-1:1 1-2:1 ");
}

}  // namespace
}  // namespace coppice::text
