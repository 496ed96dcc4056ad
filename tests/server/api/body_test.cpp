// Bodies: what is JSON, what its errors say, and how much of it there may be.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/api/parsed.h"

namespace coppice::server {
namespace {

TEST(Body, NestingIsLimited) {
  const auto nested = [](int depth) {
    const auto n = static_cast<std::size_t>(depth);
    return "{\"a\":" + std::string(n, '[') + std::string(n, ']') + "}";
  };
  EXPECT_NO_THROW(parse_body(nested(kMaxJsonDepth - 1)));
  EXPECT_THROW(parse_body(nested(kMaxJsonDepth)), RequestError);
  EXPECT_THROW(parse_body(std::string(1000000, '[')), RequestError);
  EXPECT_NO_THROW(parse_body(R"({"brackets in \" text": ")" + std::string(100, '[') + "\"}"));
}

std::string body_error(const std::string& body) {
  try {
    parse_body(body);
  } catch (const RequestError& e) {
    return e.what();
  }
  return "";
}

TEST(Body, ErrorsSayWhere) {
  const std::string blank(10000, ' ');
  for (const auto& [body, place] : {std::pair<std::string, const char*>{R"({"a": 1, "b" 2})", "(line 1, column 14)"},
                                    {blank + R"({"a": x})", "(line 1, column 10007)"},
                                    {"{\n  \"über\": \"\xff\"}", "(line 2, column 12)"},
                                    {"{}" + blank + "{}", "(line 1, column 10003)"},
                                    {"\n\n" + blank + "{", "(line 3, column 10002)"},
                                    {"\xef\xbb\xbf{x", "(line 1, column 2)"},
                                    {"", "(line 1, column 1)"}})
    EXPECT_THAT(body_error(body), ::testing::HasSubstr(place));
}

TEST(Body, ErrorsQuoteNamesWithZeroBytes) {
  using namespace std::string_literals;
  EXPECT_STREQ(RequestError::bad_field("a\0b"s, "no").what(), "'a\\u0000b': no");
  EXPECT_STREQ(RequestError::bad_field("a", "there is no tool \"x\0\""s).what(), "'a': there is no tool \"x\\u0000\"");
}

TEST(Body, ErrorsSayWhy) {
  for (const auto& [body, why] : {
           std::pair<std::string, const char*>{R"({'a': 1})", "single quotes"},
           {R"({"a": 'b'})", "single quotes"},
           {R"({"a": 1,})", "a comma before the '}'"},
           {R"({"a": [1, 2,]})", "a comma before the ']'"},
           {"{\"a\": \"b\nc\"}", "a line break in a string"},
           {"{\"a\": \"b\tc\"}", "write it as \\u0009"},
           {R"({"a": NaN})", "NaN is no number in JSON"},
           {R"({"a": nan})", "nan is no number in JSON"},
           {R"({"a": [-Infinity]})", "-Infinity is no number in JSON"},
           {R"({"a": .5})", ".5 is no number in JSON"},
           {R"({"a": 01})", "01 is no number in JSON"},
           {R"({"a": True})", "True is written true"},
           {R"({"a": None})", "None is written null"},
           {R"({a: 1})", "the name a without double quotes"},
           {R"({"a": 1, b_c: 1})", "the name b_c without double quotes"},
           {R"({"a": b})", "the text b without double quotes"},
           {R"({"a" 1})", "no colon behind a name"},
           {R"({"a": "b" "c": 1})", "no comma between two values"},
           {R"({"a": [1] "c": 1})", "no comma between two values"},
           {R"({"a": 1 "c": 1})", "no comma between two values (line 1, column 9)"},
           {R"({"a": true "c": 1})", "no comma between two values"},
           {R"({"a": [1 2]})", "no comma between two values"},
           {R"({"a": null {}})", "no comma between two values"},
           {R"({"a": nul "b": 1})", "the text nul without double quotes"},
           {R"({"a": 1; "b": 2})", "a ';' can't stand here"},
           {R"({"a": 1.})", "1. is no number in JSON"},
           {"<html>", "a '<' can't stand here"},
           {R"({"a": "\d"})", "a backslash itself is written as"},
           {R"({"a": "\ud800"})", "half of a pair"},
           {R"({"a": "\u12x4"})", "without four hexadecimal digits"},
           {"{\"a\": \"\xff\"}", "no UTF-8"},
           {"{\"a\": \"\xe9\"}", "bytes that are no UTF-8 (line 1, column 8)"},
           {"{\"a\": \"\u00e9\xe9t\xe9\"}", "bytes that are no UTF-8 (line 1, column 9)"},
           {"{\"a\": \"\u00e9\" 1}", "no comma between two values (line 1, column 11)"},
           {"\xff\xfe{\0", "UTF-16"},
           {"{\xe2\x80\x9c"
            "a\xe2\x80\x9d: 1}",
            "typographic quotes"},
           {R"({"a": 1} // so)", "more text behind the end"},
           {R"({"a": 1 /* so */})", "a comment"},
           {R"({"a": "b)", "in a string that nothing closes"},
           {R"({"a": [1)", "without a ']'"},
           {R"({"a": [1])", "without a '}'"},
           {R"({"a":)", "without a '}'"},
           {"model=m&prompt=hi", "form data"},
           {"--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1", "form data"},
           {"\x1f\x8b\x08 and more", "compressed"},
           {" \n", "it is empty"},
           {R"(["a"])", "must be a JSON object"},
       })
    EXPECT_THAT(body_error(body), ::testing::HasSubstr(why)) << body;
}

TEST(Body, AByteOrderMarkIsSkipped) {
  EXPECT_EQ(parse_body("\xef\xbb\xbf{\"a\": 1}").at("a"), 1);
}

/// A body of n times `what`, separated by commas.
std::string many(std::size_t n, const std::string& what) {
  std::string body = R"({"x":[)" + what;
  for (std::size_t i = 1; i < n; ++i) body += "," + what;
  return body + "]}";
}

TEST(Body, ValuesAreLimited) {
  constexpr JsonLimits kFew{.parts = 103, .elements = 199};
  for (const char* part : {"{}", "[]", "\"\"", R"("[{,\",")"}) {
    EXPECT_NO_THROW(parse_body(many(100, part), kFew)) << part << ": and {, \"x\" and [";
    EXPECT_THROW(parse_body(many(101, part), kFew), RequestError) << part;
  }
  for (const char* element : {"0", "-1.5e3", "null"}) {
    EXPECT_NO_THROW(parse_body(many(200, element), kFew)) << element;
    EXPECT_THROW(parse_body(many(201, element), kFew), RequestError) << element;
  }
  EXPECT_THROW(parse_body(R"({"x":)" + std::string(1000000, ',')), RequestError) << "no JSON";
  try {
    parse_body(many(101, "{}"), kFew);
    FAIL();
  } catch (const RequestError& e) {
    EXPECT_EQ(e.status(), 400);
    EXPECT_EQ(e.code(), "too_many_values");
    EXPECT_NE(std::string(e.what()).find("103"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace coppice::server
