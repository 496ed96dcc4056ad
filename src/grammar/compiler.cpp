// XGrammar's private headers: its public ones put no grammar in place of a rule of GBNF (FromLark() does, in its own
// notation), change no expression, and optimise rules only as part of compiling them.
#include "grammar/compiler.h"

#include <fmt/format.h>
#include <grammar_builder.h>
#include <grammar_functor.h>
#include <grammar_impl.h>
#include <xgrammar/compiler.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "check/mutex.h"
#include "grammar/bare_text.h"
#include "grammar/gbnf.h"
#include "grammar/impl.h"
#include "grammar/memory.h"
#include "grammar/name_tree.h"
#include "grammar/regex_dialect.h"
#include "grammar/sound_regex.h"
#include "grammar/source_check.h"
#include "grammar/state_count.h"
#include "grammar/unfold.h"
#include "grammar/work.h"
#include "grammar/xgrammar_log.h"

namespace coppice::grammar {

namespace {

int count_characters(const std::string& piece) {
  return static_cast<int>(
      std::ranges::count_if(piece, [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80; }));
}

/// Shorter tokens make up the same text: runs of blanks and dashes, and a few words. Marks of calls are not among
/// these. Where characters are counted, each one that the longest token has takes a mask (unfold.h).
bool is_needless(const std::string& piece) {
  constexpr int kUsual = 16, kMost = 32;
  const int n = count_characters(piece);
  if (n <= kUsual || n > kMost) return n > kMost;
  const std::string_view rest = std::string_view(piece).substr(1);
  return rest.find_first_not_of(rest.front()) == rest.npos ||
         std::ranges::all_of(piece, [](unsigned char c) { return std::isspace(c) != 0; }) ||
         std::ranges::all_of(rest, [](unsigned char c) { return std::isalpha(c) != 0 || c >= 0x80; });
}

/// What grammars see of a model's words.
std::vector<std::string> useful_pieces(const Words& words) {
  std::vector<std::string> pieces = words.pieces;
  for (std::string& piece : pieces)
    if (is_needless(piece)) piece.clear();
  return pieces;
}

/// What a token without a text is to XGrammar: bytes that are in no text. No string, class or regex lets it in.
std::string bytes_of_mark(kv::Token token) {
  std::string bytes = "\xff";
  for (int i = 0; i < 5; ++i) bytes += static_cast<char>(0x80 | (token >> 7 * i & 0x7f));
  return bytes;
}

/// The same words, and tokens without a text as marks. No bytes spell these.
xgrammar::TokenizerInfo with_marks(const xgrammar::TokenizerInfo& info) {
  std::vector<std::string> pieces = info.GetDecodedVocab();
  for (std::string& piece : pieces)
    if (piece.find('\xff') != piece.npos) piece.clear();
  for (const std::int32_t token : info.GetSpecialTokenIds())
    pieces.at(static_cast<std::size_t>(token)) = bytes_of_mark(token);
  return {pieces, xgrammar::VocabType::RAW, info.GetVocabSize(), info.GetStopTokenIds()};
}

xgrammar::TokenizerInfo tokenizer_info(const Words& words) {
  const auto n_vocab = static_cast<int>(words.pieces.size());
  return {useful_pieces(words), xgrammar::VocabType::RAW, n_vocab,
          std::vector<std::int32_t>(words.ends.begin(), words.ends.end())};
}

int longest_piece(const Words& words) {
  int most = 1;
  for (const std::string& piece : useful_pieces(words)) most = std::max(most, count_characters(piece));
  return most;
}

/// Strings of bounded length let control characters through, which JSON forbids there (XGrammar 0.2.8): their sign is
/// any but a quote, a backslash, \r and \n.
void forbid_control(const xgrammar::Grammar& grammar) {
  constexpr std::array<std::int32_t, 9> kSign = {1, '"', '"', '\\', '\\', '\r', '\r', '\n', '\n'};
  constexpr int kReturn = 5;
  for (int i = 0; i < grammar->NumGrammarExprs(); ++i) {
    auto expr = grammar->GetGrammarExpr(i);
    if (expr.type != xgrammar::Grammar::Impl::GrammarExprType::kCharacterClass || !std::ranges::equal(expr, kSign))
      continue;
    expr.SetData(kReturn, 0);
    expr.SetData(kReturn + 1, 0x1f);
  }
}

/// White space without a bound would let a model write nothing else.
xgrammar::Grammar schema_rules(const std::string& schema, bool spaced) {
  auto grammar = spaced ? xgrammar::Grammar::FromJSONSchema(schema, false)
                        : xgrammar::Grammar::FromJSONSchema(schema, true, std::nullopt, std::nullopt, true, 1);
  forbid_control(grammar);
  return grammar;
}

xgrammar::Grammar converted(const Source& source, const xgrammar::TokenizerInfo& info);

/// The rules that are JSON schemas, bare texts, other forms or tokens get these.
xgrammar::Grammar with_parts(const xgrammar::Grammar& text, const Source& source, const xgrammar::TokenizerInfo& info) {
  xgrammar::GrammarBuilder builder(text);
  const auto fill = [&](const std::string& rule, std::int32_t part) {
    const std::int32_t id = builder.GetRuleId(rule);
    if (id < 0) throw GrammarError(fmt::format("there is no rule '{}'", rule));
    builder.UpdateRuleBody(id, builder.AddChoices({builder.AddSequence({part})}));
  };
  const auto json = [&](const std::string& schema) {
    return xgrammar::SubGrammarAdder::Apply(&builder, schema_rules(schema, source.spaced));
  };
  for (const auto& [rule, schema] : source.schemas) fill(rule, builder.AddRuleRef(json(schema)));
  for (const auto& [rule, bare] : source.bare)
    if (!may_hold_end(bare)) fill(rule, between_quotes(builder, json(bare.schema)));
  for (const auto& [rule, form] : source.forms) {
    const auto part = converted({.kind = form.kind, .text = form.text, .spaced = form.spaced}, info);
    fill(rule, builder.AddRuleRef(xgrammar::SubGrammarAdder::Apply(&builder, part)));
  }
  for (const auto& [rule, token] : source.tokens) fill(rule, builder.AddByteString(bytes_of_mark(token)));
  return builder.Get(text->GetRootRuleId());
}

xgrammar::Grammar converted(const Source& source, const xgrammar::TokenizerInfo& info) {
  switch (source.kind) {
    case Kind::kJsonSchema:
      return schema_rules(source.text, source.spaced);
    case Kind::kRegex:
      return xgrammar::Grammar::FromRegex(source.text);
    case Kind::kStructuralTag: {
      auto result = xgrammar::Grammar::FromStructuralTag(source.text, info);
      if (const auto* error = std::get_if<xgrammar::StructuralTagError>(&result))
        throw GrammarError(std::visit([](const auto& e) { return std::string(e.what()); }, *error));
      return std::get<xgrammar::Grammar>(std::move(result));
    }
    case Kind::kGbnf:
      break;
  }
  const auto grammar = xgrammar::Grammar::FromEBNF(source.text);
  const bool parts = !source.schemas.empty() || !source.bare.empty() || !source.tokens.empty() || !source.forms.empty();
  return parts ? with_parts(grammar, source, info) : grammar;
}

/// The rules to compile, written as masks are fast with. Throws GrammarError for what would take too long or hold less
/// than it says.
xgrammar::Grammar checked(const Source& source, const xgrammar::TokenizerInfo& info, int longest) {
  const Warnings warnings;
  xgrammar::Grammar grammar = converted(source, info);
  if (!warnings.first().empty()) throw GrammarError(warnings.first());
  if (source.kind != Kind::kStructuralTag) {
    grammar = with_name_trees(grammar).value_or(grammar);
    grammar = unfolded(grammar, longest).value_or(grammar);
  }
  const StateCount n = count_states(xgrammar::GrammarOptimizer::Apply(grammar));
  if (n.all > kMaxStates || n.wide > kMaxWideStates)
    throw GrammarError(
        fmt::format("it is too large: {} states, {} of them with many ways to go on; {} and {} are the most", n.all,
                    n.wide, kMaxStates, kMaxWideStates));
  return grammar;
}

/// The text as XGrammar reads it rightly.
std::string spelled(Kind kind, const std::string& text) {
  if (kind == Kind::kGbnf) return with_empty_strings(text);
  return kind == Kind::kRegex ? with_known_escapes(plain_regex(text, false)) : text;
}

void check(Kind kind, const std::string& text) {
  check_size(text, kind == Kind::kRegex ? kMaxRegexBytes : kMaxSourceBytes, kind);
  if (kind == Kind::kGbnf) refuse_extensions(text);
}

/// Throws GrammarError: too long, nested too deep, and so on.
void check(const Source& source) {
  check(source.kind, source.text);
  for (const auto& [rule, form] : source.forms) check(form.kind, form.text);
  std::size_t bytes = 0;
  const auto count = [&](const std::string& schema) {
    check_size(schema, kMaxSourceBytes, Kind::kJsonSchema);
    bytes += schema.size();
  };
  for (const auto& [rule, schema] : source.schemas) count(schema);
  for (const auto& [rule, bare] : source.bare) count(bare.schema);
  if (bytes > kMaxSchemasBytes)
    throw GrammarError(fmt::format("its schemas have {} bytes, and {} is the most", bytes, kMaxSchemasBytes));
}

}  // namespace

Grammar::Grammar(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Grammar::~Grammar() = default;

std::size_t Grammar::bytes() const {
  return impl_->bytes;
}

/// XGrammar's masks that grammars have in common. It counts a mask's tokens and not the entry, so that a million small
/// masks count for nothing: entries are counted here, and all are forgotten when they are too many.
struct MaskCache {
  // It takes a third for masks, the rest for a cache of grammars that stays empty (cmake/xgrammar).
  MaskCache(const xgrammar::TokenizerInfo& its_info, std::size_t bytes)
      : info(its_info), compiler(info, 1, true, static_cast<std::int64_t>(bytes / 4 * 3)) {}

  void forget_if_many(std::size_t n_new, std::size_t most_bytes) {
    // Each is entered for up to two contexts; some were there already.
    entry_bytes += n_new * 2 * kMaskEntryBytes;
    if (entry_bytes > most_bytes) forget();
  }
  void forget() {
    compiler.ClearCache();
    entry_bytes = 0;
  }

  xgrammar::TokenizerInfo info;
  xgrammar::GrammarCompiler compiler;
  std::atomic<std::size_t> entry_bytes = 0;  ///< about: several compilations may be under way
};

struct Compiler::Impl {
  Impl(const Words& words, std::size_t bytes)
      : n_vocab(static_cast<std::int32_t>(words.pieces.size())),
        cache_bytes(bytes),
        longest(longest_piece(words)),
        plain_masks(tokenizer_info(words), bytes) {}

  struct Entry {
    std::string key;
    std::shared_ptr<const Grammar> grammar;
    std::string payer;      ///< Source::payer of who compiled it
    std::size_t bytes = 0;  ///< about
  };

  /// Of equal sources only it is the same: each text stands behind its length.
  static std::string key_of(const Source& source) {
    std::string key = fmt::format("{}{}", static_cast<int>(source.kind), source.spaced ? '+' : '-');
    const auto add = [&key](const std::string& text) { key += fmt::format("{}:{}", text.size(), text); };
    const auto add_count = [&key](std::size_t n) { key += fmt::format("#{}:", n); };
    add(source.text);
    add_count(source.schemas.size());
    for (const auto& [rule, schema] : source.schemas) add(rule), add(schema);
    add_count(source.forms.size());
    for (const auto& [rule, form] : source.forms)
      add(rule), add(fmt::format("{}{}", static_cast<int>(form.kind), form.spaced ? '+' : '-')), add(form.text);
    add_count(source.tokens.size());
    for (const auto& [rule, token] : source.tokens) add(rule), add(fmt::to_string(token));
    for (const auto& [rule, bare] : source.bare) {
      add(rule), add(bare.schema), add_count(bare.ends.size());
      for (const std::string& end : bare.ends) add(end);
    }
    return key;
  }

  std::shared_ptr<const Grammar> find(const std::string& key) {
    const check::Lock lock(mutex);
    const auto it = entries.find(key);
    if (it == entries.end()) return nullptr;
    recent.splice(recent.begin(), recent, it->second);
    return it->second->grammar;
  }

  void remember(std::string key, std::shared_ptr<const Grammar> grammar, const std::string& payer) {
    constexpr std::size_t kNodes = 256;  // of the list and the map, with malloc's own bytes
    const std::size_t size = kNodes + key.size() + payer.size() + grammar->bytes();
    const check::Lock lock(mutex);
    if (size > cache_bytes || entries.contains(key)) return;
    cached += size;
    held[payer] += size;
    recent.push_front({std::move(key), std::move(grammar), payer, size});
    entries.emplace(recent.front().key, recent.begin());
    while (cached > cache_bytes) forget_one();
  }

  /// What was not used for longest by whose grammars take most. REQUIRES: there is one.
  void forget_one() COPPICE_REQUIRES(mutex) {
    const auto most = std::ranges::max_element(held, {}, [](const auto& entry) { return entry.second; });
    const auto oldest = std::prev(std::find_if(recent.rbegin(), recent.rend(), [&](const Entry& entry) {
                                    return entry.payer == most->first;
                                  }).base());
    cached -= oldest->bytes;
    if ((most->second -= oldest->bytes) == 0) held.erase(most);
    entries.erase(oldest->key);
    recent.erase(oldest);
  }

  MaskCache& masks_for(const Source& source) {
    if (!source.tokens.empty()) {
      std::call_once(marked_made, [this] { marked_masks.emplace(with_marks(plain_masks.info), cache_bytes); });
      return *marked_masks;
    }
    return plain_masks;
  }

  /// Some repeated patterns have no name in XGrammar's cache of masks (0.2.8), and fail there. Without it they work,
  /// slowly.
  xgrammar::CompiledGrammar compile(const xgrammar::Grammar& grammar, const Source& source) {
    MaskCache& masks = masks_for(source);
    try {
      auto compiled = masks.compiler.CompileGrammar(grammar);
      masks.forget_if_many(n_masks(compiled), cache_bytes / 4);
      return compiled;
    } catch (const WorkError&) {
      masks.forget();
      throw;
    } catch (const GrammarError&) {
      masks.forget();
      xgrammar::GrammarCompiler simple(masks.info, 1, false);
      return simple.CompileGrammar(grammar);
    }
  }

  std::int32_t n_vocab;
  std::size_t cache_bytes;
  int longest;                            ///< characters of a piece
  MaskCache plain_masks;                  ///< it has locks of its own
  std::once_flag marked_made;             ///< guards the making of the next
  std::optional<MaskCache> marked_masks;  ///< made for the first grammar with tokens: it takes time and memory

  check::Mutex mutex;
  std::list<Entry> recent COPPICE_GUARDED_BY(mutex);
  /// Keys: recent's.
  std::unordered_map<std::string_view, std::list<Entry>::iterator> entries COPPICE_GUARDED_BY(mutex);
  /// Bytes of each payer's; none is 0.
  std::map<std::string, std::size_t> held COPPICE_GUARDED_BY(mutex);
  std::size_t cached COPPICE_GUARDED_BY(mutex) = 0;
};

Compiler::Compiler(const Words& words, std::size_t cache_bytes) : impl_(std::make_unique<Impl>(words, cache_bytes)) {}
Compiler::~Compiler() = default;

std::shared_ptr<const Grammar> Compiler::find(const Source& source) const {
  return impl_->find(Impl::key_of(source));
}

std::shared_ptr<const Grammar> Compiler::compile(const Source& written, double seconds) const {
  std::string key = Impl::key_of(written);
  if (auto known = impl_->find(key)) return known;
  check(written);
  Source source = written;
  source.text = spelled(source.kind, source.text);
  for (auto& [rule, form] : source.forms) form.text = spelled(form.kind, form.text);
  try {
    const WorkLimit limit(seconds);
    const xgrammar::Grammar rules = checked(source, impl_->plain_masks.info, impl_->longest);
    xgrammar::CompiledGrammar compiled = impl_->compile(rules, source);
    const std::size_t bytes = memory_of(compiled);
    auto grammar = std::make_shared<const Grammar>(
        std::make_unique<const Grammar::Impl>(Grammar::Impl{std::move(compiled), impl_->n_vocab, bytes}));
    impl_->remember(std::move(key), grammar, written.payer);
    return grammar;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const WorkError&) {
    throw;
  } catch (const std::exception& e) {
    throw GrammarError(reason_of(e));
  }
}

std::size_t Compiler::cached_bytes() const {
  const check::Lock lock(impl_->mutex);
  return impl_->cached;
}

}  // namespace coppice::grammar
