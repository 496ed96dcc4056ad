// JSON schemas through the walk, and what is accepted through the compiler; regexes, GBNF and structural tags through the
// compiler. An input's first byte picks which.
//
// The walk's own result must pass the walk, and compile or be refused with a reason. A text is then written by the masks: it must
// never get stuck.
#include <algorithm>
#include <boost/json/parse.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "fuzz/fuzz.h"
#include "grammar/matcher.h"
#include "server/schema/json_schema.h"

namespace coppice::testing {
namespace {

const grammar::Compiler& compiler() {
  static const grammar::Compiler compiler([] {
    grammar::Words words{.ends = {0}};
    for (int byte = 0; byte < 256; ++byte) words.pieces.emplace_back(1, static_cast<char>(byte));
    return words;
  }());
  return compiler;
}

void write_some(const std::shared_ptr<const grammar::Grammar>& grammar, unsigned seed) {
  grammar::Matcher matcher(grammar);
  for (int i = 0; i < 40; ++i) {
    const auto mask = matcher.mask();
    if (mask.empty()) return;
    int token = -1;
    for (int j = 0; j < 256 && token < 0; ++j) {
      const int candidate = static_cast<int>((seed + static_cast<unsigned>(j) * 37U) % 256U);
      if (((static_cast<unsigned>(mask[static_cast<std::size_t>(candidate) / 32]) >> (candidate % 32)) & 1U) != 0)
        token = candidate;
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
      source.text = server::enforceable_schema(schema);
    } catch (const server::SchemaError& e) {
      if (e.what()[0] == '\0') finding("a refusal without a reason");
      return;
    }
  }
  try {
    write_some(compiler().compile(source), first);
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
