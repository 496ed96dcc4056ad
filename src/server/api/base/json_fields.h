// JsonFields: reads typed fields of a JSON object; what is wrong is named in a RequestError (400).
//
// It refers to the object, which must outlive it. A field that is null counts as absent, as OpenAI's clients mean it.
//
// Thread safety: none is needed for const methods; the object must not change meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv/types.h"
#include "server/api/base/json.h"

namespace coppice::server {

/// How much a body may hold. Unless said otherwise: what any request may, besides what grows with the model's context.
/// Numbers cost least, so they have a limit of their own.
struct JsonLimits {
  std::size_t parts = 4096;     ///< strings (names of fields are some), lists and objects
  std::size_t elements = 4096;  ///< commas between values
};

/// Enough for as many messages as the context has tokens, and for `prompts` token arrays as long as the context.
JsonLimits json_limits(std::int32_t context_length, int prompts = 1);

/// Parses a request body. Throws RequestError (400) unless it is a JSON object, in UTF-8, within `limits` and nested no
/// deeper than kMaxJsonDepth. `what`: its name in errors.
JsonObject parse_body(std::string_view body, const JsonLimits& limits = {}, std::string_view what = "The body");
inline constexpr int kMaxJsonDepth = 64;

/// The value of an integer, which may be written as 2.0: some clients write all numbers so. None: it is something else,
/// or 64 bits cannot hold it.
std::optional<std::int64_t> whole_number(const Json& value);

class JsonFields {
 public:
  /// `path` goes before the names in errors: "messages[0].".
  explicit JsonFields(const JsonObject& object, std::string path = "") : object_(object), path_(std::move(path)) {}

  /// Null when absent. Valid as long as the object.
  const Json* find(const char* name) const;
  bool has(const char* name) const { return find(name) != nullptr; }
  /// The field's name in errors: "messages[0].role".
  std::string path(const char* name) const { return path_ + name; }

  // Each gives none when the field is absent, and throws RequestError on a wrong type, or on a value outside [min,
  // max].
  std::optional<std::int64_t> integer(const char* name, std::int64_t min, std::int64_t max) const;
  std::optional<double> number(const char* name, double min, double max) const;
  std::optional<bool> boolean(const char* name) const;
  std::optional<std::string> string(const char* name) const;
  /// Throws RequestError when it is absent, too.
  std::string required_string(const char* name) const;

 private:
  const JsonObject& object_;
  std::string path_;
};

/// The object, or the list, that `value` is. Throws a RequestError that names `path` if it isn't there (nullptr), or is
/// something else.
const JsonObject& object_of(const Json* value, const std::string& path);
const JsonArray& array_of(const Json* value, const std::string& path);

/// The ids of an array of tokens, each in [0, n_vocab). Throws a RequestError that names `path`.
std::vector<kv::Token> token_array(const Json& value, const std::string& path, std::int32_t n_vocab);

/// Whether it is an array whose first element is a number: else it holds strings or arrays. Throws nothing.
bool looks_like_tokens(const Json& value);

}  // namespace coppice::server
