#include "text/bare_strings.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace coppice::text {

namespace {

/// Rules of a text whose first characters are counted one by one, whatever they are: one for each of them and each
/// letter of its end.
constexpr std::size_t kMostCounting = 400;

/// What the grammar's engine allows of an address has quotes and backslashes, as JSON escapes them.
constexpr const char* kEmail =
    R"re([A-Za-z0-9_!#$%&'*+/=?^`{|}~\-]+(\.[A-Za-z0-9_!#$%&'*+/=?^`{|}~\-]+)*@[A-Za-z0-9]([A-Za-z0-9.\-]*[A-Za-z0-9])?)re";

/// The schema's own and its alternatives' that allow strings.
void add_strings(const HeldSchema& held, const common_json* schema, int depth, std::vector<const common_json*>& to) {
  constexpr int kMostDepth = 8;
  const common_json* own = held.resolved(schema);
  if (own == nullptr || depth > kMostDepth) return to.push_back(nullptr);
  if (own->contains("anyOf") && own->at("anyOf").is_array()) {
    for (const common_json& one : own->at("anyOf")) add_strings(held, &one, depth + 1, to);
    return;
  }
  const std::vector<std::string> texts = HeldSchema::texts(own);
  const bool other = own->contains("enum") ? texts.empty() : own->contains("type") && own->at("type") != "string";
  if (!other) to.push_back(own);
}

bool is_bounded(const common_json* schema) {
  return schema != nullptr && std::ranges::any_of(std::vector{"enum", "pattern", "format", "minLength", "maxLength"},
                                                  [&](const char* keyword) { return schema->contains(keyword); });
}

/// Empty: none is left out, or the schema is of no strings, which are read as such anyhow.
std::vector<const common_json*> bounded_strings(const HeldSchema& held, const common_json* schema) {
  std::vector<const common_json*> all;
  add_strings(held, schema, 0, all);
  if (!std::ranges::all_of(all, is_bounded)) all.clear();
  return all;
}

/// A character of a text with a greatest length.
std::string sign(const BareStrings::Ends& ends) {
  std::set<std::string> none;
  for (const std::string& end : ends.texts) none.insert(characters(end).front());
  if (!ends.not_first.empty()) none.insert(characters(ends.not_first).front());
  std::erase_if(none, [](const std::string& c) { return static_cast<unsigned char>(c.front()) < ' '; });
  std::string others = char_class(none, true);
  others.insert(2, "\\u0000-\\u001f");
  return others;
}

bool is_few(std::size_t least, const BareStrings::Ends& ends) {
  std::size_t letters = 1;
  for (const std::string& end : ends.texts) letters += end.size();
  return (least + letters) * letters <= kMostCounting;
}

}  // namespace

std::string BareStrings::rule(const HeldSchema& held, const common_json* schema, const Ends& ends) {
  std::string body;
  for (const common_json* some : bounded_strings(held, schema))
    if (const std::string text = one(*some, ends); !text.empty()) body += (body.empty() ? "" : " | ") + text;
  return body.empty() ? rules_.until(ends.texts, ends.closed, ends.not_first) : rules_.add(body);
}

/// Empty: no text is left.
std::string BareStrings::one(const common_json& schema, const Ends& ends) {
  std::string body;
  if (schema.contains("enum")) {
    for (const std::string& text : HeldSchema::texts(&schema)) {
      const bool ended =
          std::ranges::any_of(ends.texts, [&](const std::string& end) { return (text + end).find(end) < text.size(); });
      if (!ended) body += (body.empty() ? "" : " | ") + gbnf_literal(text);
    }
  } else if (schema.contains("pattern") || schema.contains("format")) {
    body = of_regex(schema, ends);
  } else {
    const auto least = static_cast<std::size_t>(std::max(schema.value("minLength", 0), 0));
    const common_json* most = schema.contains("maxLength") ? &schema.at("maxLength") : nullptr;
    if (most == nullptr && is_few(least, ends)) return rules_.until(ends.texts, ends.closed, ends.not_first, least);
    if (most == nullptr) return fmt::format("{}{{{}}} {}", sign(ends), least, rules_.until(ends.texts, ends.closed));
    const auto bound = most->get<std::size_t>();
    body = bound == 0 ? "\"\"" : fmt::format("{}{{{},{}}}", sign(ends), least, bound);
  }
  if (body.empty() || !ends.closed) return body;
  std::string all;
  for (const std::string& end : ends.texts) all += (all.empty() ? "" : " | ") + rules_.literal(end);
  return fmt::format("({}) ({})", body, all);
}

std::string BareStrings::of_regex(const common_json& schema, const Ends& ends) {
  BareText text{.schema = schema.dump(), .pattern = schema.value("pattern", ""), .ends = ends.texts};
  if (schema.value("format", "") == "email") {
    text.pattern = kEmail;
    text.schema = common_json{{"type", "string"}, {"pattern", kEmail}}.dump();
  }
  std::string& name = known_[{text.schema, ends.texts, ends.not_first}];
  if (!ends.not_first.empty()) text.ends.push_back(ends.not_first);
  if (name.empty()) {
    name = rules_.reserve();
    rules_.define(name, rules_.until(ends.texts, false, ends.not_first));
    bare_[name] = std::move(text);
  }
  return name;
}

}  // namespace coppice::text
