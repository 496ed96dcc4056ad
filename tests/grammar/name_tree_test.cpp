// Objects with many optional properties: which texts are allowed, and how long that takes.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "grammar/compiler.h"
#include "grammar/matcher.h"
#include "grammar/work.h"
#include "support/sanitized.h"

namespace coppice::grammar {
namespace {

constexpr kv::Token kTheEnd = 256;

const Compiler& byte_compiler() {
  static const Compiler compiler([] {
    Words words{.ends = {kTheEnd}};
    for (int byte = 0; byte < 256; ++byte) words.pieces.emplace_back(1, static_cast<char>(byte));
    words.pieces.insert(words.pieces.end(), {"<end>", "\":", "\", \"", ",\"", "\",\"a", " \"", "aa", "{\""});
    return words;
  }());
  return compiler;
}

struct Object {
  std::vector<std::string> names;
  std::set<std::string> required;
  bool open = false;

  std::string schema() const {
    std::string properties, needed;
    for (const std::string& name : names)
      properties += fmt::format(R"({}"{}":{{"type":"boolean"}})", properties.empty() ? "" : ",", name);
    for (const std::string& name : required) needed += fmt::format(R"({}"{}")", needed.empty() ? "" : ",", name);
    return fmt::format(R"({{"type":"object","properties":{{{}}},"required":[{}],"additionalProperties":{}}})",
                       properties, needed, open ? R"({"type":"null"})" : "false");
  }
};

bool takes(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  Matcher matcher(grammar);
  for (const char c : text) {
    const kv::Token byte = static_cast<unsigned char>(c);
    const auto mask = matcher.mask();
    const bool allowed = ((static_cast<unsigned>(mask[static_cast<std::size_t>(byte) / 32]) >> (byte % 32)) & 1U) != 0;
    EXPECT_EQ(matcher.accept(byte), allowed) << text;
    if (!allowed) return false;
  }
  return matcher.whole();
}

class RandomObject {
 public:
  explicit RandomObject(unsigned seed) : random_(seed) {}

  Object object() {
    std::set<std::string> names;
    const std::size_t n = 30 + random_() % 60;
    while (names.size() < n) {
      std::string name;
      for (unsigned i = random_() % 6; i > 0; --i) name += pick({"a", "b", "ab", "\\\"", "\u00fc", "\U0001f600", " "});
      names.insert(name);
    }
    Object made{.names = {names.begin(), names.end()}, .open = random_() % 4 == 0};
    std::ranges::shuffle(made.names, random_);
    const std::size_t one_in = 2 + random_() % 100;
    for (const std::string& name : made.names)
      if (random_() % one_in == 0) made.required.insert(name);
    return made;
  }

  /// Those that are required, and others: few or many.
  std::vector<std::string> some(const Object& object) {
    const std::size_t one_in = 1 + random_() % 40;
    std::vector<std::string> names;
    std::ranges::copy_if(object.names, std::back_inserter(names), [&](const std::string& name) {
      return object.required.contains(name) || random_() % one_in == 0;
    });
    return names;
  }

  std::string text(const std::vector<std::string>& names) {
    std::string all;
    for (const std::string& name : names)
      all += fmt::format("{}{}\"{}\"{}:{}{}", all.empty() ? "" : blank() + ",", blank(), name, blank(), blank(),
                         pick({"true", "false"}));
    return "{" + all + blank() + "}";
  }

  std::string pick(std::initializer_list<const char*> from) { return from.begin()[random_() % from.size()]; }
  std::size_t below(std::size_t n) { return random_() % n; }

 private:
  std::string blank() { return pick({"", "", " ", "\n"}); }
  std::mt19937 random_;
};

TEST(NameTree, AllowsEachPropertyOnceInOrderAndTheRequiredOnesAlways) {
  const char* given = std::getenv("COPPICE_SEED");
  const unsigned seed = given == nullptr ? std::random_device()() : static_cast<unsigned>(std::atol(given));
  RecordProperty("seed", static_cast<int>(seed));
  SCOPED_TRACE(fmt::format("COPPICE_SEED={}", seed));
  RandomObject random(seed);
  for (int i = 0; i < 20; ++i) {
    const Object object = random.object();
    const std::string schema = object.schema();
    const auto grammar = byte_compiler().compile({.kind = Kind::kJsonSchema, .text = schema});
    for (int k = 0; k < 20; ++k) {
      std::vector<std::string> names = random.some(object);
      ASSERT_TRUE(takes(grammar, random.text(names))) << schema << "\n" << random.text(names);
      if (names.empty()) continue;
      std::vector<std::string> wrong = names;
      const std::size_t at = random.below(names.size());
      const bool needed = object.required.contains(names[at]);
      wrong.insert(wrong.begin() + static_cast<std::ptrdiff_t>(random.below(names.size() + 1)), names[at]);
      EXPECT_FALSE(takes(grammar, random.text(wrong))) << "twice: " << random.text(wrong) << "\n" << schema;
      wrong = names;
      wrong.erase(wrong.begin() + static_cast<std::ptrdiff_t>(at));
      EXPECT_EQ(takes(grammar, random.text(wrong)), !needed) << random.text(wrong) << "\n" << schema;
      wrong = names;
      wrong[at] += "b?";
      EXPECT_FALSE(takes(grammar, random.text(wrong))) << "unknown: " << random.text(wrong) << "\n" << schema;
      if (names.size() < 2) continue;
      wrong = names;
      std::swap(wrong[at], wrong[(at + 1) % names.size()]);
      EXPECT_FALSE(takes(grammar, random.text(wrong))) << "order: " << random.text(wrong) << "\n" << schema;
    }
  }
}

TEST(NameTree, TakesFreeNamesBehindTheNamedOnes) {
  Object object{.open = true};
  for (int i = 0; i < 50; ++i) object.names.push_back(fmt::format("k{}", i));
  const auto grammar = byte_compiler().compile({.kind = Kind::kJsonSchema, .text = object.schema()});
  EXPECT_TRUE(takes(grammar, R"({"x":null})"));
  EXPECT_TRUE(takes(grammar, R"({"k1":true,"x":null,"k":null})"));
  EXPECT_FALSE(takes(grammar, R"({"x":null,"k1":true})"));
  EXPECT_FALSE(takes(grammar, R"({"k1":null})"));
}

double seconds_to_compile(int n_properties) {
  Object object;
  for (int i = 0; i < n_properties; ++i) object.names.push_back(fmt::format("k{}", i));
  const double start = cpu_seconds();
  const auto grammar = byte_compiler().compile({.kind = Kind::kJsonSchema, .text = object.schema()});
  return cpu_seconds() - start;
}

TEST(NameTree, CompilesInLinearTime) {
  const int n = test::kEmulated ? 50 : 200;  // so that the most need less than the limit, with sanitizers too
  seconds_to_compile(n / 2);
  // The least of three: another program may have the processor's caches meanwhile. A text that it knows takes no time.
  double few = 1e9, many = 1e9;
  for (int i = 0; i < 3; ++i) {
    few = std::min(few, seconds_to_compile(n + i));
    many = std::min(many, seconds_to_compile(4 * (n + i)));
  }
  EXPECT_LT(many, 8 * few) << "four times as many take four times as long; if each looked at all others, sixteen times";
}

}  // namespace
}  // namespace coppice::grammar
