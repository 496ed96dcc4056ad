// The form that an answer shall have: what is taken, by which of the fields' names, and what is refused.
#include "server/api/base/structured_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "grammar/source.h"
#include "server/api/parsed.h"

namespace coppice::server {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Forms, BadFields,
    ::testing::Values(
        BadField{"{" MESSAGES R"(,"response_format":"json"})", "response_format", "invalid_type"},  //
        BadField{"{" MESSAGES R"(,"response_format":{"type":"xml"}})", "response_format", "unsupported_parameter"},
        BadField{"{" MESSAGES R"(,"response_format":{"type":"json_schema"}})", "response_format", "missing_field"},
        BadField{"{" MESSAGES
                 R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{"not":{"type":"null"}}}}})",
                 "response_format", "invalid_json_schema"},
        BadField{"{" MESSAGES R"(,"json_schema":{"contains":{"const":1}}})", "json_schema", "invalid_json_schema"},
        BadField{"{" MESSAGES R"(,"structured_outputs":{"json":{},"whitespace_pattern":"  "}})",
                 "structured_outputs.whitespace_pattern", "unsupported_parameter"},
        BadField{
            "{" MESSAGES
            R"(,"response_format":{"type":"json_schema","json_schema":{"strict":true,"schema":{"uniqueItems":true}}}})",
            "response_format", "invalid_json_schema"},
        BadField{"{" MESSAGES R"(,"guided_json":"{"})", "guided_json"},
        BadField{"{" MESSAGES R"(,"grammar":"[a-z]"})", "grammar", "invalid_grammar"},
        BadField{"{" MESSAGES R"(,"grammar":7})", "grammar", "invalid_type"},
        BadField{"{" MESSAGES R"(,"structured_outputs":{"choice":[]}})", "structured_outputs.choice"},
        BadField{"{" MESSAGES R"(,"guided_choice":[]})", "guided_choice"},
        BadField{"{" MESSAGES R"(,"structured_outputs":{"choice":[1]}})", "structured_outputs.choice", "invalid_type"},
        BadField{"{" MESSAGES R"(,"structured_outputs":{"choice":[""]}})", "structured_outputs.choice"},
        BadField{"{" MESSAGES R"(,"structured_outputs":{"regex":"a","json":{}}})", "structured_outputs.regex"},
        BadField{"{" MESSAGES R"(,"response_format":{"type":"json_object"},"grammar":"root ::= \"a\""})", "grammar"},
        BadField{"{" MESSAGES R"(,"structured_outputs":{"jsn":{"type":"object"}}})", "structured_outputs.jsn",
                 "unsupported_parameter"},
        BadField{"{" MESSAGES R"(,"structured_outputs":{"structural_tag":"x"}})", "structured_outputs.structural_tag",
                 "unsupported_parameter"}));

TEST(StructuredOutput, TellsTheFormOfTheAnswer) {
  using grammar::Kind;
  const auto source = [](const std::string& more) { return chat(", " + more).grammar.value().source; };
  const grammar::Source object{Kind::kJsonSchema, R"({"type":"object","additionalProperties":true})"};
  const grammar::Source null{Kind::kJsonSchema, R"({"type":"null"})"};
  EXPECT_EQ(source(R"("response_format": {"type": "json_object"})"), object);
  EXPECT_EQ(source(R"("response_format": {"type": "json_object", "schema": {"type": "null"}})"), null);
  EXPECT_EQ(
      source(R"("response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}})"),
      null);
  EXPECT_EQ(source(R"("json_schema": {"type": "null"})"), null);
  EXPECT_EQ(source(R"("structured_outputs": {"json": {"type": "null"}})"), null);
  EXPECT_EQ(source(R"("structured_outputs": {"json": "{\"type\": \"null\"}"})"), null);
  EXPECT_EQ(source(R"("structured_outputs": {"json_object": true})"), object);
  for (const char* more : {R"("disable_any_whitespace": true)", R"("whitespace_pattern": "[\n\t ]*")"}) {
    const auto spaced = source(R"("structured_outputs": {"json": {"type": "null"}, )" + std::string(more) + "}");
    EXPECT_EQ(spaced, (grammar::Source{.kind = Kind::kJsonSchema, .text = null.text, .spaced = true}));
  }
  EXPECT_EQ(source(R"("guided_json": {"type": "null"})"), null);
  EXPECT_EQ(source(R"("structured_outputs": {"regex": "a+"})"), (grammar::Source{Kind::kRegex, "a+"}));
  EXPECT_EQ(source(R"("guided_regex": "a+")"), (grammar::Source{Kind::kRegex, "a+"}));
  EXPECT_EQ(source(R"("structured_outputs": {"choice": ["a", "b\"c"]})"),
            (grammar::Source{Kind::kGbnf, R"(root ::= "a" | "b\"c")"}));
  EXPECT_EQ(source(R"("grammar": "root ::= \"a\"")"), (grammar::Source{Kind::kGbnf, "root ::= \"a\""}));
  EXPECT_EQ(complete(R"(, "guided_grammar": "root ::= \"a\"")").grammar.value().source,
            (grammar::Source{Kind::kGbnf, "root ::= \"a\""}));
  EXPECT_EQ(chat(R"(, "json_schema": {"type": "null"})").grammar.value().field, "json_schema");
  const std::string large(grammar::kMaxSourceBytes, 'x');  // refused before anything is compared
  EXPECT_THROW(chat(R"(, "json_schema": {"const": ")" + large + "\"}"), RequestError);
  try {
    FAIL() << chat(R"(, "guided_json": "{'type': 'null'}")").grammar->source.text;
  } catch (const RequestError& e) {  // of what it speaks
    EXPECT_THAT(e.what(), ::testing::StartsWith("'guided_json': the schema's text is not valid JSON: single quotes"));
  }
  EXPECT_EQ(chat(R"(, "response_format": {"type": "text"}, "grammar": "", "structured_outputs": {})").grammar,
            std::nullopt);
}

}  // namespace
}  // namespace coppice::server
