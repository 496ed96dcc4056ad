// What a client says about the answer's form: OpenAI's response_format, vLLM's structured_outputs (and guided_*, its
// older names), llama-server's json_schema and grammar.
#pragma once

#include <optional>

#include "grammar/source.h"
#include "server/api/base/json_fields.h"

namespace coppice::server {

/// None: any text. Walks schemas, which takes up to some milliseconds: for the worker. Throws RequestError: of a wrong
/// form, two at once, or a schema that can't be enforced.
std::optional<grammar::Constraint> parse_structured_output(const JsonFields& f);

/// A grammar for what satisfies the schema. `field`: of the request, for errors and for the log, which says what isn't
/// held; `strict`: as in enforceable_schema(). Throws RequestError.
grammar::Source schema_source(const Json& schema, const std::string& field, bool strict = false);

/// The same of a tool's arguments (enforceable_arguments()). `whose`: for the log.
grammar::Source arguments_source(const Json& schema, const std::string& field, bool strict, const std::string& whose);

/// The `strict` beside a schema.
bool is_strict(const JsonObject& fields);

}  // namespace coppice::server
