// Part of the tests' precompiled header, and included nowhere else: the compiler keeps what templates are instantiated
// here, which takes a quarter of the time of each test that reads JSON.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace coppice::test {

inline bool instantiate_what_tests_use(const std::string& text) {
  nlohmann::json json = nlohmann::json::parse(text);
  const nlohmann::json other = {{"a", 1}, {"b", "c"}, {"d", {1, 2}}};
  json["text"] = text;
  json["number"] = 1;
  json["flag"] = true;
  json["list"][0] = "abc";
  json.push_back(other);
  std::size_t n = 0;
  for (const auto& element : json) n += element.size();
  EXPECT_EQ(json, other) << json.dump();
  EXPECT_EQ(json["text"], "abc");
  EXPECT_EQ(json["text"], text);
  EXPECT_EQ(json["number"], 1);
  EXPECT_EQ(json["flag"], true);
  EXPECT_EQ(json.at("text").get<std::string>(), text);
  EXPECT_EQ(json.value("number", 1), 1);
  EXPECT_EQ(n, json.size());
  EXPECT_EQ(text, text);
  EXPECT_TRUE(json.contains("text"));
  return json == other;
}

}  // namespace coppice::test
