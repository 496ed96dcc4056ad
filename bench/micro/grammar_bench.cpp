// Reads JSON schemas, one a line as {"name": ..., "schema": ...}, and writes a line about each: whether it is accepted,
// how long that and its masks took, and texts that were drawn at random from what the masks allow. bench/structured.py
// validates the texts.
//
//   build/bench/grammar_bench MODEL.gguf TEXTS TOKENS <schemas.jsonl >results.jsonl
//
// Or compiles so many different grammars, regexes, choices and schemas in turn, and says how much memory the process
// has then:
//
//   build/bench/grammar_bench MODEL.gguf many GRAMMARS
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "grammar/matcher.h"
#include "grammar/schema/json_schema.h"
#include "text/vocabulary.h"

namespace coppice {
namespace {

/// The thread's own time: others on the machine don't count.
class Clock {
 public:
  static double now() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
  }
};

double micros_since(double start) {
  return Clock::now() - start;
}

grammar::Words words_of(const text::Vocabulary& vocabulary) {
  grammar::Words words;
  for (kv::Token token = 0; token < vocabulary.size(); ++token) words.pieces.push_back(vocabulary.piece(token));
  words.ends.assign(vocabulary.end_tokens().begin(), vocabulary.end_tokens().end());
  return words;
}

/// Draws texts. Evenly drawn tokens would never end a string or a list: those that are short and close something are
/// preferred half of the time.
class Writer {
 public:
  Writer(const grammar::Words& words, unsigned seed) : words_(words), random_(seed) {
    closing_.resize(words.pieces.size());
    for (std::size_t i = 0; i < closing_.size(); ++i) {
      const std::string& piece = words.pieces[i];
      closing_[i] = piece.size() <= 2 && piece.find_first_of("\"}]") != std::string::npos;
    }
  }

  struct Text {
    std::string bytes;
    bool ended = false, stuck = false;
  };

  Text write(grammar::Matcher matcher, int n_tokens, boost::json::array& mask_us, boost::json::array& accept_us) {
    Text text;
    for (int i = 0; i < n_tokens; ++i) {
      auto start = Clock::now();
      const auto mask = matcher.mask();
      mask_us.emplace_back(micros_since(start));
      const kv::Token token = draw(mask);
      if (token < 0) {
        text.stuck = true;
        return text;
      }
      start = Clock::now();
      if (!matcher.accept(token)) {
        text.stuck = true;
        return text;
      }
      accept_us.emplace_back(micros_since(start));
      if (std::ranges::find(words_.ends, token) != words_.ends.end()) {
        text.ended = true;
        return text;
      }
      text.bytes += words_.pieces[static_cast<std::size_t>(token)];
    }
    return text;
  }

 private:
  kv::Token draw(std::span<const std::int32_t> mask) {
    std::vector<kv::Token> all, closing;
    const auto allow = [&](std::size_t token) {
      all.push_back(static_cast<kv::Token>(token));
      if (closing_[token]) closing.push_back(all.back());
    };
    if (mask.empty()) {
      for (std::size_t i = 0; i < closing_.size(); ++i) allow(i);
    }
    for (std::size_t i = 0; i < mask.size(); ++i) {
      for (auto bits = static_cast<std::uint32_t>(mask[i]); bits != 0; bits &= bits - 1)
        allow(i * 32 + static_cast<std::size_t>(std::countr_zero(bits)));
    }
    if (all.empty()) return -1;
    for (const kv::Token end : words_.ends)
      if (std::ranges::find(all, end) != all.end() && random_() % 4 != 0) return end;
    const auto& from = closing.empty() || random_() % 2 == 0 ? all : closing;
    return from[random_() % from.size()];
  }

  const grammar::Words& words_;
  std::mt19937 random_;
  std::vector<bool> closing_;
};

boost::json::object measure(const boost::json::value& schema, const grammar::Compiler& compiler, Writer& writer,
                            int n_texts, int n_tokens) {
  boost::json::object out;
  try {
    auto start = Clock::now();
    const grammar::Source source{.kind = grammar::Kind::kJsonSchema, .text = grammar::enforceable_schema(schema)};
    out["walk_us"] = micros_since(start);
    start = Clock::now();
    const auto grammar = compiler.compile(source);
    out["compile_us"] = micros_since(start);
    out["bytes"] = grammar->bytes();
    if (std::getenv("SHOW") != nullptr) out["source"] = source.text;
    boost::json::array texts, masks, accepts;
    for (int i = 0; i < n_texts; ++i) {
      Writer::Text text = writer.write(grammar::Matcher(grammar), n_tokens, masks, accepts);
      texts.push_back(
          boost::json::object{{"text", std::move(text.bytes)}, {"ended", text.ended}, {"stuck", text.stuck}});
    }
    out["texts"] = std::move(texts);
    out["mask_us"] = std::move(masks);
    out["accept_us"] = std::move(accepts);
  } catch (const grammar::SchemaError& e) {
    out["keyword"] = e.keyword();
    out["error"] = e.what();
  } catch (const grammar::GrammarError& e) {
    out["keyword"] = "(grammar)";
    out["error"] = e.what();
  }
  return out;
}

int run(const std::string& gguf, int n_texts, int n_tokens) {
  const text::Vocabulary vocabulary(gguf);
  const grammar::Words words = words_of(vocabulary);
  const auto start = Clock::now();
  const grammar::Compiler compiler(words);
  fmt::print(stderr, "{} words taken in within {:.0f} ms\n", words.pieces.size(), micros_since(start) / 1000);
  const char* seed = std::getenv("COPPICE_SEED");
  Writer writer(words, seed == nullptr ? 1 : static_cast<unsigned>(std::atoi(seed)));
  for (std::string line; std::getline(std::cin, line);) {
    const boost::json::value parsed = boost::json::parse(line, {}, {.max_depth = 256});
    boost::json::object out = measure(parsed.at("schema"), compiler, writer, n_texts, n_tokens);
    out["name"] = parsed.at("name");
    std::cout << boost::json::serialize(out) << std::endl;
  }
  return 0;
}

/// Bytes that the process has in memory.
std::size_t resident() {
  std::ifstream file("/proc/self/statm");
  std::size_t all = 0, here = 0;
  file >> all >> here;
  return here * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

int run_many(const std::string& gguf, int n) {
  const text::Vocabulary vocabulary(gguf);
  const grammar::Compiler compiler(words_of(vocabulary));
  const auto source = [](int i) -> grammar::Source {
    if (i % 3 == 0) return {.kind = grammar::Kind::kRegex, .text = fmt::format("[a-z]{{3}}-{}", i)};
    if (i % 3 == 1)
      return grammar::choice_of(std::vector<std::string>{fmt::format("yes{}", i), fmt::format("no{}", i)});
    return {.kind = grammar::Kind::kJsonSchema,
            .text = fmt::format(R"({{"type":"object","properties":{{"p{}":{{"type":"string"}}}}}})", i)};
  };
  const double mib = 1 << 20;
  const int step = std::max(n / 10, 1);
  const auto start = Clock::now();
  for (int i = 0; i <= n; ++i) {
    compiler.compile(source(i));
    if (i % step == 0)
      fmt::print("{:8} grammars: RSS {:4.0f} MiB, cached {:3.0f} MiB, {:4.0f} s of CPU\n", i,
                 static_cast<double>(resident()) / mib, static_cast<double>(compiler.cached_bytes()) / mib,
                 micros_since(start) / 1e6);
    if (i % step == 0) std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: grammar_bench MODEL.gguf TEXTS TOKENS <schemas.jsonl\n");
    return 2;
  }
  if (std::string(argv[2]) == "many") return coppice::run_many(argv[1], std::atoi(argv[3]));
  return coppice::run(argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
}
