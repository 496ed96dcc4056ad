// A new form of answers: its field here makes a grammar::Constraint; a notation goes to grammar::Kind and
// grammar/compiler.cpp. A keyword of schemas (grammar/schema): read in schema_flat.cpp, merged in schema_merge.cpp,
// written by its type's file, and a row in docs/api.md. Only what XGrammar enforces may be written: `make
// bench-structured` shows whether it does.
#include "server/api/base/structured_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/pattern.h"
#include "grammar/schema/json_schema.h"
#include "grammar/sound_regex.h"
#include "server/api/base/ignored_fields.h"
#include "server/api/base/sampling_fields.h"
#include "server/base/request_error.h"

namespace coppice::server {

namespace {

using grammar::Constraint;
using grammar::Kind;

constexpr std::size_t kMaxChoices = 1000;

std::string string_value(const Json& value, const std::string& field) {
  if (!value.is_string()) throw RequestError::bad_field(field, "must be a string", "invalid_type");
  return std::string(value.get_string());
}

/// Nothing is said: absent, null or "". An empty object is a schema that allows everything; an empty list is no form.
bool is_blank(const Json* value) {
  if (value == nullptr) return true;
  const auto* text = value->if_string();
  return text != nullptr && text->empty();
}

/// Clients send a schema as JSON, or as text that holds it.
grammar::Source schema_of(const Json& value, const std::string& field, bool strict = false) {
  if (!value.is_string()) return schema_source(value, field, strict);
  try {
    return schema_source(parse_body(value.get_string(), {}, "the schema's text"), field, strict);
  } catch (const RequestError& e) {
    if (e.field() == field) throw;
    throw RequestError::bad_field(field, e.what());
  }
}

grammar::Source any_object(const std::string& field) {
  return schema_source(JsonObject{{"type", "object"}}, field);
}

grammar::Source choice_of(const Json& value, const std::string& field) {
  const JsonArray* list = value.if_array();
  if (list == nullptr) throw RequestError::bad_field(field, "must be a list of strings", "invalid_type");
  if (list->empty()) throw RequestError::bad_field(field, "must name at least one choice");
  if (list->size() > kMaxChoices) throw RequestError::bad_field(field, fmt::format("at most {} choices", kMaxChoices));
  std::vector<std::string> texts;
  for (const Json& text : *list) texts.push_back(string_value(text, field));
  for (const std::string& text : texts)
    if (text.empty()) throw RequestError::bad_field(field, "a choice must not be empty");
  return grammar::choice_of(texts);
}

grammar::Source gbnf_of(const Json& value, const std::string& field) {
  std::string text = string_value(value, field);
  if (text.find("::=") == std::string::npos)
    throw RequestError::bad_field(field, "must be a grammar in GBNF, with rules like 'root ::= \"a\" | \"b\"'",
                                  "invalid_grammar");
  return {.kind = Kind::kGbnf, .text = std::move(text)};
}

grammar::Source regex_of(const Json& value, const std::string& field) {
  return {.kind = Kind::kRegex, .text = string_value(value, field)};
}

std::optional<grammar::Source> response_format(const Json& format) {
  constexpr const char* kName = "response_format";
  const JsonObject* object = format.if_object();
  const Json* type = object == nullptr ? nullptr : object->if_contains("type");
  if (type == nullptr || !type->is_string())
    throw RequestError::bad_field(kName, "must be an object with a \"type\"", "invalid_type");
  const std::string_view name = type->get_string();
  if (name == "text") return std::nullopt;
  const Json* direct = object->if_contains("schema");  // llama-server's way
  if (name == "json_object") return is_blank(direct) ? any_object(kName) : schema_of(*direct, kName);
  if (name != "json_schema")
    throw RequestError::unsupported(kName,
                                    "only the types \"text\", \"json_object\" and \"json_schema\" are supported");
  const Json* wrapped = object->if_contains("json_schema");
  if (wrapped != nullptr && wrapped->is_object()) {
    if (const Json* schema = wrapped->get_object().if_contains("schema"))
      return schema_of(*schema, kName, is_strict(wrapped->get_object()));
  }
  if (is_blank(direct)) throw RequestError::bad_field(kName, "'json_schema.schema' is required", "missing_field");
  return schema_of(*direct, kName);
}

grammar::Source plain_schema(const Json& value, const std::string& field) {
  return schema_of(value, field);
}

using Parse = grammar::Source (*)(const Json&, const std::string&);
struct Way {
  const char* name;
  Parse parse;
};
constexpr Way kPlain[] = {{"json_schema", plain_schema}, {"grammar", gbnf_of},         {"guided_json", plain_schema},
                          {"guided_regex", regex_of},    {"guided_choice", choice_of}, {"guided_grammar", gbnf_of}};
constexpr Way kNested[] = {{"json", plain_schema}, {"regex", regex_of}, {"choice", choice_of}, {"grammar", gbnf_of}};

/// Another name would go unseen, and the answer have no form.
constexpr std::string_view kNestedNames[] = {"json",
                                             "regex",
                                             "choice",
                                             "grammar",
                                             "json_object",
                                             "disable_any_whitespace",
                                             "whitespace_pattern",
                                             "disable_additional_properties",
                                             "disable_fallback"};

class Collector {
 public:
  void add(grammar::Source source, std::string field) {
    if (found_)
      throw RequestError::bad_field(field,
                                    fmt::format("only one form can be asked for, and '{}' is another", found_->field));
    found_ = Constraint{.source = std::move(source), .field = std::move(field)};
  }
  /// White space only behind commas and colons.
  void space() {
    if (found_ && found_->source.kind == Kind::kJsonSchema) found_->source.spaced = true;
  }
  std::optional<Constraint> take() { return std::move(found_); }

 private:
  std::optional<Constraint> found_;
};

/// Is a pattern of white space there? One blank behind commas and colons and none elsewhere is what most allow; others
/// are refused.
bool takes_blanks(const JsonFields& f, const char* name) {
  const Json* value = f.find(name);
  if (is_blank(value)) return false;
  std::string regex;
  for (const char c : string_value(*value, f.path(name))) {
    if (c == '\n' || c == '\t' || c == '\r') {
      regex += c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r";
    } else {
      regex += c;
    }
  }
  try {
    const grammar::JsonPattern pattern(grammar::sound_regex(regex));
    if (pattern.matches("") && pattern.matches(" ")) return true;
  } catch (const grammar::GrammarError& e) {
    throw RequestError::bad_field(f.path(name), e.what());
  }
  throw RequestError::unsupported(f.path(name), "must allow no white space, and a single blank");
}

void structured_outputs(const JsonFields& f, Collector& found) {
  const Json* value = f.find("structured_outputs");
  if (is_blank(value)) return;
  const JsonObject* object = value->if_object();
  if (object == nullptr) throw RequestError::bad_field("structured_outputs", "must be an object", "invalid_type");
  const JsonFields inner(*object, "structured_outputs.");
  for (const Way& way : kNested) {
    if (const Json* wanted = inner.find(way.name); !is_blank(wanted))
      found.add(way.parse(*wanted, inner.path(way.name)), inner.path(way.name));
  }
  if (inner.boolean("json_object").value_or(false))
    found.add(any_object(inner.path("json_object")), inner.path("json_object"));
  for (const auto& [name, wanted] : *object) {
    if (std::ranges::find(kNestedNames, std::string_view(name)) == std::end(kNestedNames) && !is_empty(wanted))
      throw RequestError::unsupported(inner.path(std::string(name).c_str()));
  }
  if (inner.boolean("disable_any_whitespace").value_or(false)) found.space();
  if (takes_blanks(inner, "whitespace_pattern")) found.space();
  // Asked to be stricter than by default. Objects with properties are strict already.
  inner.boolean("disable_additional_properties");
}

}  // namespace

bool is_strict(const JsonObject& fields) {
  const Json* strict = fields.if_contains("strict");
  return strict != nullptr && *strict == Json(true);
}

namespace {

/// enforce(schema, strict, unheld): which text is held.
template <class Enforce>
grammar::Source source_by(Enforce&& enforce, const Json& schema, const std::string& field, bool strict,
                          const std::string& whose) {
  // Before the walk, which compares values with each other.
  if (const std::size_t bytes = dump(schema).size(); bytes > grammar::kMaxSourceBytes)
    throw RequestError::bad_field(
        field, fmt::format("a schema has at most {} bytes, and this one has {}", grammar::kMaxSourceBytes, bytes));
  try {
    std::set<std::string> unheld;
    grammar::Source source{.kind = Kind::kJsonSchema, .text = enforce(schema, strict, &unheld)};
    for (const std::string& keyword : unheld) log_not_held(whose, keyword);
    return source;
  } catch (const grammar::SchemaError& e) {
    throw RequestError::bad_field(field, e.what(), "invalid_json_schema");
  }
}

}  // namespace

grammar::Source schema_source(const Json& schema, const std::string& field, bool strict) {
  return source_by(grammar::enforceable_schema, schema, field, strict, field);
}

grammar::Source arguments_source(const Json& schema, const std::string& field, bool strict, const std::string& whose) {
  return source_by(grammar::enforceable_arguments, schema, field, strict, whose);
}

std::optional<grammar::Constraint> parse_structured_output(const JsonFields& f) {
  Collector found;
  if (const Json* format = f.find("response_format")) {
    if (auto source = response_format(*format)) found.add(*std::move(source), "response_format");
  }
  for (const Way& way : kPlain) {
    if (const Json* value = f.find(way.name); !is_blank(value)) found.add(way.parse(*value, way.name), way.name);
  }
  structured_outputs(f, found);
  if (takes_blanks(f, "guided_whitespace_pattern")) found.space();
  if (const Json* value = f.find("grammar_triggers"); value && !is_empty(*value))
    throw RequestError::unsupported("grammar_triggers");
  if (const auto lazy = f.find("grammar_lazy"); lazy && *lazy == Json(true))
    throw RequestError::unsupported("grammar_lazy");
  return found.take();
}

}  // namespace coppice::server
