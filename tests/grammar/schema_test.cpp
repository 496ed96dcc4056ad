// JSON Schemas: what is refused, by which keyword and where, and what becomes of the rest. That nothing else can be
// written is tested by validators in Python: tests/e2e/test_structured.py, bench/structured.py.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <string>

#include "grammar/schema/json_schema.h"
#include "grammar/schema/search_pattern.h"
#include "grammar/source.h"

namespace coppice::grammar {
namespace {

using boost::json::parse;

/// With single quotes for double ones.
std::string double_quoted(std::string text) {
  for (char& c : text) c = c == '\'' ? '"' : c;
  return text;
}

struct Refused {
  const char *schema, *keyword, *place;
};
void PrintTo(const Refused& refused, std::ostream* out) {
  *out << refused.schema;
}

class RefusedSchemas : public ::testing::TestWithParam<Refused> {};
TEST_P(RefusedSchemas, NameTheKeywordAndThePlace) {
  const auto& [schema, keyword, place] = GetParam();
  try {
    FAIL() << "became " << enforceable_schema(parse(double_quoted(schema)), true);
  } catch (const SchemaError& e) {
    EXPECT_EQ(e.keyword(), keyword) << e.what();
    EXPECT_EQ(e.place(), place) << e.what();
    EXPECT_NE(std::string(e.what()).find(keyword), std::string::npos);
  }
}

TEST(SchemaErrors, NamesMayHaveZeroBytes) {
  try {
    enforceable_schema(parse(R"({"properties": {"a\u0000b": {"not": {}}}})"));
    FAIL();
  } catch (const SchemaError& e) {
    EXPECT_STREQ(e.what(), "the schema's 'not' at '#/properties/a\\u0000b': not supported");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Keywords, RefusedSchemas,
    ::testing::Values(
        Refused{"{'not': {'type': 'null'}}", "not", ""},  //
        Refused{"{'not': {}}", "not", ""},                //
        Refused{"{'contains': {}}", "contains", ""},      //
        Refused{"{'properties': {'a': {'if': {'type': 'null'}, 'then': {'type': 'null'}}}}", "if", "/properties/a"},
        Refused{"{'dependentRequired': {'a': ['b']}}", "dependentRequired", ""},  //
        Refused{"{'dependentSchemas': {'a': {'minProperties': 2}}}", "dependentSchemas", ""},
        Refused{"{'dependencies': {'a': ['b']}}", "dependencies", ""},
        Refused{"{'type': 'array', 'uniqueItems': true}", "uniqueItems", ""},
        Refused{"{'type': 'array', 'contains': {'type': 'null'}}", "contains", ""},
        Refused{"{'items': {'$dynamicRef': '#x'}}", "$dynamicRef", "/items"},
        Refused{"{'properties': {'a/b': {'$ref': 'https://example.com/s.json'}}}", "$ref", "/properties/a~1b"},
        Refused{"{'$ref': '#/nowhere'}", "$ref", ""},  //
        Refused{"{'$ref': '#'}", "$ref", ""},
        Refused{"{'anyOf': [{'$ref': '#'}, {'type': 'null'}]}", "$ref", "/anyOf/0"},
        Refused{"{'type': 'string', 'format': 'uri', 'maxLength': 20}", "format", ""},
        Refused{"{'type': 'string', 'pattern': 'a(?!b)'}", "pattern", ""},
        Refused{"{'type': 'string', 'pattern': 'a^b'}", "pattern", ""},
        Refused{"{'type': 'string', 'pattern': '^a+b$', 'maxLength': 3}", "pattern", ""},
        Refused{"{'type': 'number', 'multipleOf': 0.01}", "multipleOf", ""},
        Refused{"{'type': 'integer', 'minimum': 9223372036854775808}", "minimum", ""},
        Refused{"{'type': 'integer', 'exclusiveMinimum': 9223372036854775807}", "exclusiveMinimum", ""},
        Refused{"{'type': 'integer', 'exclusiveMaximum': -9223372036854775808}", "exclusiveMaximum", ""},
        Refused{"{'type': 'integer', 'maximum': -1e20}", "maximum", ""},
        Refused{"{'multipleOf': 1000, 'minimum': 100000}", "multipleOf", ""},
        Refused{"{'multipleOf': 300, 'minimum': -1e30, 'maximum': 1e30}", "multipleOf", ""},
        Refused{"{'const': 18446744073709551615}", "enum", ""}, Refused{"{'enum': [{'a': [1e400]}]}", "enum", ""},
        Refused{"{'type': 'number', 'minimum': 1e400}", "minimum", ""},
        Refused{"{'pattern': '\\\\p{L}'}", "pattern", ""}, Refused{"{'pattern': '(a)\\\\1'}", "pattern", ""},
        Refused{"{'pattern': '(?x)a b'}", "pattern", ""}, Refused{"{'pattern': 'a++'}", "pattern", ""},
        Refused{"{'pattern': '(?>a|b)c'}", "pattern", ""}, Refused{"{'pattern': 'a\\\\Ab'}", "pattern", ""},
        Refused{"{'oneOf': [{'type': 'integer'}, {'type': 'number'}]}", "oneOf", ""},
        Refused{"{'oneOf': [{'properties': {'a': {}}}, {'properties': {'a': {}, 'b': {}}}]}", "oneOf", ""},
        Refused{"{'type': 'object', 'minProperties': 2, 'additionalProperties': true}", "minProperties", ""},
        Refused{"{'patternProperties': {'^a': {'type': 'null'}, 'b$': {'type': 'string'}}}", "patternProperties", ""},
        Refused{"{'unevaluatedItems': false}", "unevaluatedItems", ""},
        Refused{"{'properties': {'a': false}, 'additionalProperties': true}", "properties", "/a"}));

INSTANTIATE_TEST_SUITE_P(
    Forms, RefusedSchemas,
    ::testing::Values(Refused{"7", "schema", ""}, Refused{"{'type': 'text'}", "type", ""},
                      Refused{"{'type': []}", "type", ""}, Refused{"{'required': [1]}", "required", ""},
                      Refused{"{'required': true}", "required", ""}, Refused{"{'enum': []}", "enum", ""},
                      Refused{"{'properties': []}", "properties", ""},
                      Refused{"{'items': {'minLength': 'x'}}", "minLength", "/items"},
                      Refused{"{'type': 'string', 'minLength': 1.5}", "minLength", ""},
                      Refused{"{'type': 'string', 'minLength': 3, 'maxLength': 2}", "minLength", ""},
                      Refused{"{'allOf': {}}", "allOf", ""}, Refused{"{'anyOf': [3]}", "schema", "/anyOf/0"},
                      Refused{"false", "enum", ""}, Refused{"{'type': 'string', 'enum': [1]}", "enum", ""}));

struct Written {
  const char *schema, *becomes;
};
void PrintTo(const Written& written, std::ostream* out) {
  *out << written.schema;
}

class Schemas : public ::testing::TestWithParam<Written> {};
TEST_P(Schemas, BecomeWhatIsEnforced) {
  const auto& [schema, becomes] = GetParam();
  EXPECT_EQ(parse(enforceable_schema(parse(double_quoted(schema)))), parse(double_quoted(becomes)));
}

INSTANTIATE_TEST_SUITE_P(
    Rewritten, Schemas,
    ::testing::Values(
        Written{"{'type': 'string', 'format': 'json-pointer', 'maxLength': 3}", "{'type': 'string', 'maxLength': 3}"},
        Written{"{'type': 'array', 'uniqueItems': true}", "{'type': 'array', 'items': {}}"}, Written{"true", "{}"},
        Written{"{'title': 'x', 'x-whatever': 1}", "{}"},
        Written{"{'type': 'object'}", "{'type': 'object', 'additionalProperties': true}"},
        Written{"{'type': ['string', 'null']}", "{'anyOf': [{'type': 'string'}, {'type': 'null'}]}"},
        Written{"{'properties': {'a': {'type': 'null'}}}",
                "{'type': 'object', 'properties': {'a': {'type': 'null'}}, 'additionalProperties': false}"},
        Written{"{'minLength': 2}", "{'type': 'string', 'minLength': 2}"}, Written{"{'const': 3}", "{'enum': [3]}"},
        Written{"{'type': 'string', 'enum': ['a', 'abc', 1, null], 'maxLength': 2}", "{'enum': ['a']}"},
        Written{"{'allOf': [{'type': 'number', 'minimum': 1}, {'type': 'integer', 'maximum': 4.5}, {'minimum': 2}]}",
                "{'type': 'integer', 'minimum': 2, 'maximum': 4}"},
        Written{"{'minimum': 3, 'exclusiveMinimum': true, 'type': 'integer'}", "{'type': 'integer', 'minimum': 4}"},
        Written{"{'type': 'integer', 'minimum': 9007199254740993, 'exclusiveMaximum': 9007199254740995}",
                "{'type': 'integer', 'minimum': 9007199254740993, 'maximum': 9007199254740994}"},
        Written{"{'type': 'integer', 'minimum': -9223372036854775808, 'maximum': 9223372036854775807}",
                "{'type': 'integer', 'minimum': -9223372036854775808, 'maximum': 9223372036854775807}"},
        Written{"{'type': 'integer', 'minimum': -1e30, 'exclusiveMaximum': 18446744073709551615}",
                "{'type': 'integer', 'minimum': -9223372036854775808, 'maximum': 9223372036854775807}"},
        Written{"{'type': 'integer', 'exclusiveMinimum': 4.5, 'exclusiveMaximum': 9.0}",
                "{'type': 'integer', 'minimum': 5, 'maximum': 8}"},
        Written{"{'multipleOf': 7, 'minimum': 0, 'maximum': 9999}",
                "{'multipleOf': 7, 'type': 'integer', 'minimum': 0, 'maximum': 9999}"},
        Written{"{'type': 'number', 'multipleOf': 5}", "{'multipleOf': 5, 'type': 'integer'}"},
        Written{"{'multipleOf': 7, 'minimum': 0}", "{'multipleOf': 7, 'type': 'integer', 'minimum': 0}"},
        Written{"{'type': 'string', 'pattern': '\\\\Aab\\\\Z'}", "{'type': 'string', 'pattern': 'ab'}"},
        Written{"{'items': [{'type': 'null'}], 'additionalItems': false}",
                "{'type': 'array', 'prefixItems': [{'type': 'null'}], 'items': false}"},
        Written{"{'type': 'object', 'required': ['a'], 'additionalProperties': {'type': 'null'}}",
                "{'type': 'object', 'properties': {'a': {'type': 'null'}}, 'required': ['a'],"
                " 'additionalProperties': {'type': 'null'}}"},
        Written{"{'type': 'integer', 'anyOf': [{'minimum': 10}, {'maximum': 3}, {'type': 'string'}]}",
                "{'anyOf': [{'type': 'integer', 'minimum': 10}, {'type': 'integer', 'maximum': 3}]}"},
        Written{"{'oneOf': [{'required': ['a'], 'properties': {'a': {'type': 'null'}}},"
                " {'required': ['b'], 'properties': {'b': {'type': 'null'}}}]}",
                "{'anyOf': [{'type': 'object', 'properties': {'a': {'type': 'null'}}, 'required': ['a'],"
                " 'additionalProperties': false}, {'type': 'object', 'properties': {'b': {'type': 'null'}}, "
                "'required': ['b'],"
                " 'additionalProperties': false}]}"},
        Written{"{'properties': {'x-a': {'type': 'string'}, 'b': {'type': 'null'}}, 'patternProperties': {'^x-': "
                "{'minLength': 1}}}",
                "{'type': 'object', 'properties': {'x-a': {'type': 'string', 'minLength': 1}, 'b': {'type': 'null'}},"
                " 'additionalProperties': false}"}));

INSTANTIATE_TEST_SUITE_P(
    References, Schemas,
    ::testing::Values(
        Written{"{'properties': {'next': {'$ref': '#'}}}",
                "{'type': 'object', 'properties': {'next': {'$ref': '#/$defs/r0'}}, 'additionalProperties': false, "
                "'$defs': {'r0':"
                " {'type': 'object', 'properties': {'next': {'$ref': '#/$defs/r0'}}, 'additionalProperties': false}}}"},
        Written{"{'$defs': {'a/b': {'type': 'null'}}, 'items': {'$ref': '#/$defs/a~1b'}}",
                "{'type': 'array', 'items': {'$ref': '#/$defs/r0'}, '$defs': {'r0': {'type': 'null'}}}"},
        Written{"{'$defs': {'n': {'$anchor': 'here', 'type': 'null'}}, '$ref': '#here'}",
                "{'anyOf': [{'$ref': '#/$defs/r0'}], '$defs': {'r0': {'type': 'null'}}}"},
        Written{"{'$defs': {'s': {'type': 'string'}}, '$ref': '#/$defs/s', 'minLength': 3}",
                "{'type': 'string', 'minLength': 3}"}));

TEST(SearchPattern, BecomesOneOfTheWholeString) {
  EXPECT_EQ(whole_pattern("^abc$"), "abc");
  EXPECT_EQ(whole_pattern("abc"), ".*abc.*");
  EXPECT_EQ(whole_pattern("^a|b$"), "(a.*|.*b)");
  EXPECT_EQ(whole_pattern("^[|$^]$"), "[|$^]");
  EXPECT_THROW(whole_pattern("(^a)|b"), GrammarError);
  EXPECT_EQ(whole_pattern("^(a|b)$"), "(a|b)");
  EXPECT_EQ(whole_pattern("(^a|b$)"), "(a.*|.*b)");
  EXPECT_EQ(whole_pattern("^caf\xc3\xa9$"), "caf\\u{e9}");
}

/// As Python, JavaScript and Perl write them.
TEST(SearchPattern, TakesOtherDialects) {
  EXPECT_EQ(whole_pattern("\\A[a-z]+\\Z"), "[a-z]+");
  EXPECT_EQ(whole_pattern("^a\\z"), "a");
  EXPECT_EQ(whole_pattern("^a(?#why (b)*$"), "a*");
  EXPECT_EQ(whole_pattern("^(?P<y>\\d{4})-(?<m>\\d\\d)$"), "(?:\\d{4})-(?:\\d\\d)");
  EXPECT_EQ(whole_pattern("^(?i:ab)c$"), "(?:[Aa][Bb])c");
  EXPECT_EQ(whole_pattern("(?i)^[a-c-]$"), "[\\x2dA-Ca-c]");
  EXPECT_EQ(whole_pattern("^(?i:a(?-i:b))c$"), "(?:[Aa](?:b))c");
  EXPECT_EQ(whole_pattern("^\\x41\\u00e9\\u{1f600}\\ud83d\\ude00\\U0001F600$"),
            "A\\u{e9}\\u{1f600}\\u{1f600}\\u{1f600}");
  EXPECT_EQ(whole_pattern("^(?s)a(?m:b)$"), "a(?:b)");
  EXPECT_EQ(whole_pattern("^[^\\W\\d_]+\\w$"), "[^\\W\\d_]+\\w") << "known as it is";
  for (const char* refused :
       {"\\p{Lu}", "\\P{L}", "a++", "(?>a)", "(?(1)a|b)", "(?x)a", "\\ud83d", "\\xg0", "(?#", "[^\\p{L}]", "\\G"})
    EXPECT_THROW(whole_pattern(refused), GrammarError) << refused;
}

TEST(SearchPattern, BracesThatOpenNothingAreSigns) {
  EXPECT_EQ(whole_pattern("^\\[[0-9]+]$"), "\\[[0-9]+\\]");
  EXPECT_EQ(whole_pattern("^{x}[{\\]]{2,3}$"), "\\{x}[{\\]]{2,3}");
}

TEST(SearchPattern, TakesLengthsWhereOneCharacterIsRepeated) {
  EXPECT_EQ(with_lengths("[a-z]+", 0, 5), "[a-z]{1,5}");
  EXPECT_EQ(with_lengths("\\d*", 2, -1), "\\d{2,}");
  EXPECT_EQ(with_lengths("[a-z]+[0-9]", 0, 5), "");
}

TEST(Schema, HasAtMostSoManyPatterns) {
  std::string properties;
  const auto schema = [&properties] { return parse(double_quoted("{'properties':{" + properties + "}}")); };
  for (int i = 0; i < 32; ++i)
    properties += (i ? "," : "") + double_quoted(fmt::format("'p{0}':{{'pattern':'^a{{{0}}}$'}}", i));
  EXPECT_NO_THROW(enforceable_schema(schema()));
  properties += double_quoted(",'q':{'pattern':'^b$'}");
  EXPECT_THROW(enforceable_schema(schema()), SchemaError);
}

TEST(SearchPattern, QuantifiersAreThoseThatWork) {
  // XGrammar takes "T8" for whole without it: grammar/sound_regex.h.
  EXPECT_EQ(whole_pattern("^(T([0-9]+H)?)?$"), "(T([0-9]+H){0,1}){0,1}");
}

/// Schemas of up to 64 KiB that would take minutes or gigabytes, if nobody counted.
TEST(Schema, WorkIsBounded) {
  const auto list = [](int n, auto&& item) {
    std::string text;
    for (int i = 0; i < n; ++i) text += (i ? "," : "") + item(i);
    return "[" + text + "]";
  };
  const std::string numbers = list(6000, [](int i) { return std::to_string(i); });
  const std::string names = list(6000, [](int i) { return fmt::format("'a{}'", i); });
  for (const std::string& schema : {
           // Each alternative takes a copy of the values.
           "{'enum': " + numbers + ", 'anyOf': " + list(9000, [](int) { return std::string("{}"); }) + "}",
           // Each reference compares all values, or names, with all.
           "{'$defs': {'e': {'enum': " + numbers + "}}, 'allOf': " +
               list(1000, [](int i) { return i % 2 ? std::string("{'$ref':'#/$defs/e'}") : std::string("{}"); }) + "}",
           "{'$defs': {'e': {'required': " + names +
               "}}, 'allOf': " + list(600, [](int) { return std::string("{'$ref':'#/$defs/e'}"); }) + "}",
           // Each alternative is compared with each.
           "{'oneOf': " + list(4000, [](int i) { return fmt::format("{{'const':{}}}", i); }) + "}",
           // A deep place with a long name is copied to all that stand under it.
           "{'$defs': {'" + std::string(24000, 'n') + "': {'$anchor': 'a', 'items': {'$anchor': 'b', 'properties': {" +
               "'x': {'$ref': '#a'}}}}}, 'anyOf': " +
               list(800, [](int i) { return fmt::format("{{'allOf':[{{'$ref':'#a'}}],'minItems':{}}}", i); }) + "}",
       }) {
    ASSERT_LE(schema.size(), std::size_t{64} << 10);
    try {
      EXPECT_FALSE(enforceable_schema(parse(double_quoted(schema))).empty());
      ADD_FAILURE() << "taken: " << schema.substr(0, 80);
    } catch (const SchemaError& e) {
      EXPECT_EQ(e.keyword(), "schema") << e.what();
    }
  }
}

TEST(Schema, LargeOnesOfTheUsualKindAreTaken) {
  std::string schema = "{'type': 'object', 'properties': {";
  for (int i = 0; i < 350; ++i)
    schema += fmt::format(
        "'field_{}': {{'type': 'object', 'description': 'What is meant by it.', 'properties': {{'a': "
        "{{'enum': ['one', 'two', 'three']}}, 'b': {{'type': 'string', 'maxLength': 20}}}}}},",
        i);
  schema += "'last': {'enum': [";
  for (int i = 0; i < 300; ++i) schema += fmt::format("'country-{}',", i);
  schema += "'none']}}}";
  ASSERT_LE(schema.size(), std::size_t{64} << 10);
  EXPECT_NO_THROW(enforceable_schema(parse(double_quoted(schema))));
}

TEST(Schema, ManyReferencesToEachOtherEnd) {
  // Each merges two of the next: 2^40 in all, if somebody counted.
  std::string text = "{'$defs': {";
  for (int i = 0; i < 40; ++i) {
    const std::string next = std::to_string(i + 1);
    text += "'" + std::to_string(i) + "': {'allOf': [{'$ref': '#/$defs/" + next + "'}, {'$ref': '#/$defs/" + next +
            "'}]}, ";
  }
  text += "'40': {'type': 'null'}}, '$ref': '#/$defs/0', 'minLength': 1}";
  EXPECT_THROW(enforceable_schema(parse(double_quoted(text))), SchemaError);
}

}  // namespace
}  // namespace coppice::grammar
