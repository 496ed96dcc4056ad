// JSON schemas through the walk, and what is accepted through the compiler; regexes, GBNF and structural tags through
// the compiler. An input's first byte picks which.
//
// The walk's own result must pass the walk, and compile or be refused with a reason. A text is then written by the
// masks, which must allow nothing that the parser refuses.
#include <boost/json/parse.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.h"
#include "grammar/matcher.h"
#include "grammar/schema/json_schema.h"

namespace coppice::testing {
namespace {

/// Bytes, and words that go beyond a sign, a string or a whole value: what masks say of these is computed another way.
const grammar::Words& words() {
  static const grammar::Words words = [] {
    grammar::Words all{.ends = {0}};
    for (int byte = 0; byte < 256; ++byte) all.pieces.emplace_back(1, static_cast<char>(byte));
    for (const char* text : {"{\"",  "\":",   "\": ", "\",", "\", \"", "\"}", "\"]", "[\"",    "\"\"",   "},",
                             "}}",   "]}",    "{}",   "[]",  "a\"",    "ab",  "abc", "abcd",   "the",    "\\n",
                             "\\u",  "00",    "0e",   "12",  "123",    "-1",  "1.5", "1,",     "2]",     "3}",
                             "true", "false", "null", ", ",  ": ",     "  ",  "-0",  "\u00e9", "\u20ac", "\u00e9\""})
      all.pieces.emplace_back(text);
    return all;
  }();
  return words;
}

const grammar::Compiler& compiler() {
  static const grammar::Compiler compiler(words());
  return compiler;
}

bool allowed(std::span<const std::int32_t> mask, int token) {
  return ((static_cast<unsigned>(mask[static_cast<std::size_t>(token) / 32]) >> (token % 32)) & 1U) != 0;
}

/// The mask must allow no token that the parser refuses. (XGrammar 0.2.8 leaves out some that are right.)
void check_mask(const grammar::Matcher& matcher, std::span<const std::int32_t> mask, bool json, unsigned seed) {
  const auto n = static_cast<int>(words().pieces.size());
  for (int token = 1; token < n; ++token) {
    if (token < ' ' && json) continue;  // no token of these is ever allowed
    if (token < 256 && static_cast<unsigned>(token) % 16 != seed % 16) continue;
    const auto& piece = words().pieces[static_cast<std::size_t>(token)];
    if (allowed(mask, token) && !matcher.clone().accept_text(piece))
      finding("the mask allows what isn't accepted: " + piece);
  }
}

void write_some(const std::shared_ptr<const grammar::Grammar>& grammar, bool json, unsigned seed) {
  grammar::Matcher matcher(grammar);
  const auto n = static_cast<unsigned>(words().pieces.size());
  for (int i = 0; i < 40; ++i) {
    const auto allows = matcher.mask();
    if (allows.empty()) return;
    const std::vector<std::int32_t> mask(allows.begin(), allows.end());
    if (i % 4 == 0) check_mask(matcher, mask, json, seed);
    int token = -1;
    for (unsigned j = 0; j < n && token < 0; ++j) {
      const auto candidate = static_cast<int>((seed + j * 37U) % n);
      if (allowed(mask, candidate)) token = candidate;
    }
    if (token <= 0) return;  // ended, or a grammar of the client's own that leads nowhere
    if (!matcher.accept(token)) finding("the mask allows what is not accepted");
    seed = seed * 1664525U + 1013904223U;
  }
}

void run(unsigned first, std::string_view rest) {
  grammar::Source source{.kind = static_cast<grammar::Kind>(first % 4), .text = std::string(rest)};
  if (source.kind == grammar::Kind::kJsonSchema) {
    boost::system::error_code error;
    const boost::json::value schema = boost::json::parse(rest, error, {}, {.max_depth = 64});
    if (error) return;
    try {
      source.text = grammar::enforceable_schema(schema);
    } catch (const grammar::SchemaError& e) {
      if (e.what()[0] == '\0') finding("a refusal without a reason");
      return;
    }
  }
  try {
    write_some(compiler().compile(source), source.kind == grammar::Kind::kJsonSchema, first);
  } catch (const grammar::GrammarError& e) {
    if (e.what()[0] == '\0') finding("a refusal without a reason");
  }
}

}  // namespace
}  // namespace coppice::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 0) coppice::testing::run(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
