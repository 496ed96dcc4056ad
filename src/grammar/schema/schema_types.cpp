// Strings, numbers and arrays.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "grammar/schema/schema_walk.h"
#include "grammar/schema/search_pattern.h"
#include "grammar/schema/values.h"
#include "grammar/source.h"

namespace coppice::grammar {

namespace {

using boost::json::object;
using boost::json::value;

/// XGrammar has a regex for each of them. Its others (json-pointer, uri-template) let quotes through.
constexpr std::array<std::string_view, 11> kFormats = {"email", "date",     "time", "date-time", "duration",     "ipv4",
                                                       "ipv6",  "hostname", "uuid", "uri",       "uri-reference"};
constexpr std::string_view kIpv4 =  // XGrammar's lets leading zeros through
    R"(((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9]))";
constexpr std::uint64_t kMostMultiples = 10'000;  ///< XGrammar lists those between two bounds
constexpr std::int64_t kMostRests = 4096;         ///< rules of multiples in a wider range: 0.1 s
using Integers = std::numeric_limits<std::int64_t>;

std::optional<double> bound_of(const object& flat, const char* name) {
  const value* b = flat.if_contains(name);
  return b == nullptr ? std::nullopt : std::optional(b->to_number<double>());
}

/// The least integer of 64 bits that a lower bound leaves, the greatest that an upper one does; nullopt: there is none.
std::optional<std::int64_t> whole_bound(const value& b, bool lower, bool exclusive) {
  std::int64_t whole = 0;
  if (const auto* known = b.if_int64()) {
    whole = *known;
  } else {
    constexpr double kBeyond = 0x1p63;  // the first double above all int64; its negative is the least of them
    const double exact = b.to_number<double>(), rounded = lower ? std::ceil(exact) : std::floor(exact);
    if (rounded >= kBeyond) return lower ? std::nullopt : std::optional(Integers::max());
    if (rounded < -kBeyond) return lower ? std::optional(Integers::min()) : std::nullopt;
    whole = static_cast<std::int64_t>(rounded);
    exclusive = exclusive && rounded == exact;
  }
  if (!exclusive) return whole;
  if (whole == (lower ? Integers::max() : Integers::min())) return std::nullopt;
  return lower ? whole + 1 : whole - 1;
}

/// Rules that multiples in the range take, about (grammar/multiples.cpp): one for each rest and place of a digit.
std::int64_t n_rests(const object& number) {
  const auto bound = [&](const char* name) { return number.if_contains(name) ? number.at(name).if_int64() : nullptr; };
  const auto *least = bound("minimum"), *most = bound("maximum");
  if (least == nullptr && most == nullptr) return 0;
  if (least != nullptr && most != nullptr &&
      static_cast<std::uint64_t>(*most) - static_cast<std::uint64_t>(*least) < kMostMultiples)
    return 0;
  std::size_t digits = 0;
  for (const auto* one : {least, most})
    if (one != nullptr) digits = std::max(digits, fmt::to_string(*one).size());
  return number.at("multipleOf").get_int64() * static_cast<std::int64_t>(digits + 1);
}

}  // namespace

const JsonPattern& SchemaWalk::pattern(const std::string& whole, const std::string& keyword, const Location& place) {
  const auto it = patterns_.find(whole);
  if (it != patterns_.end()) return it->second;
  constexpr std::size_t kMost = 32;  // each may take megabytes, and pairs of them are compared
  if (patterns_.size() == kMost)
    throw SchemaError(keyword, place.pointer, fmt::format("there are more than {} different patterns", kMost));
  try {
    return patterns_.emplace(whole, JsonPattern(whole)).first->second;
  } catch (const GrammarError& e) {
    throw SchemaError(keyword, place.pointer, fmt::format("not supported: {}", e.what()));
  }
}

bool SchemaWalk::overlap(const JsonPattern& a, const JsonPattern& b, const Location& place) {
  constexpr std::size_t kWork = 20000;  // milliseconds, at worst
  const auto [known, fresh] = overlaps_.try_emplace({&a, &b});
  if (!fresh) return known->second;
  charge(kWork, place);
  return known->second = a.overlaps(b);
}

bool SchemaWalk::match(const JsonPattern& pattern, std::string_view name, const Location& place) {
  charge(16 * (1 + name.size()), place);
  return pattern.matches(name);
}

value SchemaWalk::rewrite_string(const Object& flat, const Location& place) {
  const long least = count_of(flat, "minLength", 0, place.pointer),
             most = count_of(flat, "maxLength", -1, place.pointer);
  if (most >= 0 && least > most) throw UnsatisfiableError("minLength", place.pointer, "is above maxLength");
  const Value *regex = flat.if_contains("pattern"), *format = flat.if_contains("format");
  if (format != nullptr && !is_listed(kFormats, format->get_string())) {  // an annotation
    unheld_.insert(fmt::format("format '{}'", std::string_view(format->get_string())));
    format = nullptr;
  }
  Object out{{"type", "string"}};
  if (format != nullptr) {
    const std::string_view name = format->get_string();
    if (regex != nullptr) throw SchemaError("format", place.pointer, "not together with 'pattern'");
    if (most >= 0 || least > (name == "uri-reference" ? 0 : 1))
      throw SchemaError("format", place.pointer, "not together with a length");
    if (name == "ipv4") {
      pattern(std::string(kIpv4), "format", place);
      out["pattern"] = kIpv4;
    } else {
      out["format"] = name;
    }
    return out;
  }
  if (regex != nullptr) {
    std::string whole;
    try {
      whole = whole_pattern(regex->get_string());
      if (least > 0 || most >= 0) {
        std::string counted = with_lengths(whole, least, most);
        if (counted.empty())
          throw SchemaError("pattern", place.pointer, "with a length, only a repeated single character is supported");
        whole = std::move(counted);
      }
    } catch (const GrammarError& e) {
      throw SchemaError("pattern", place.pointer, fmt::format("not supported: {}", e.what()));
    }
    if (whole == ".*" || whole == ".*.*") return out;
    pattern(whole, "pattern", place);
    out["pattern"] = whole;
    return out;
  }
  if (least > 0) out["minLength"] = least;
  if (most >= 0) out["maxLength"] = most;
  return out;
}

value SchemaWalk::rewrite_number(const Object& flat, bool integer, const Location& place) {
  Object out;
  if (const auto step = bound_of(flat, "multipleOf")) {
    if (!(*step > 0) || *step != std::trunc(*step) || *step > 1024)
      throw SchemaError("multipleOf", place.pointer, "only whole numbers up to 1024 are supported");
    integer = true;  // there are no others
    if (*step > 1) out["multipleOf"] = static_cast<std::int64_t>(*step);
  }
  out["type"] = integer ? "integer" : "number";
  for (const std::string_view name : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
    const Value* bound = flat.if_contains(name);
    if (bound == nullptr) continue;
    if (!integer) {
      if (!std::isfinite(bound->to_number<double>()))
        throw SchemaError(std::string(name), place.pointer, "is no number of 64 bits");
      out[name] = bound->to_number<double>();
      continue;
    }
    const bool lower = name.ends_with("inimum");
    const auto limit = whole_bound(*bound, lower, name.starts_with("exclusive"));
    if (!limit) throw SchemaError(std::string(name), place.pointer, "is beyond the integers of 64 bits");
    const std::string_view plain = lower ? "minimum" : "maximum";
    const Value* known = out.if_contains(plain);
    if (known == nullptr || (lower ? known->get_int64() < *limit : known->get_int64() > *limit)) out[plain] = *limit;
  }
  if (integer && out.contains("minimum") && out.contains("maximum") &&
      out.at("minimum").get_int64() > out.at("maximum").get_int64())
    throw UnsatisfiableError("minimum", place.pointer, "is above maximum");
  if (out.contains("multipleOf") && n_rests(out) > kMostRests)
    throw SchemaError("multipleOf", place.pointer,
                      fmt::format("with such bounds it takes more than {} rules", kMostRests));
  return out;
}

value SchemaWalk::rewrite_array(const Object& flat, const Location& place) {
  Object out{{"type", "array"}};
  const long least = count_of(flat, "minItems", 0, place.pointer);
  long most = count_of(flat, "maxItems", -1, place.pointer);
  const Value *items = flat.if_contains("items"), *prefix = flat.if_contains("prefixItems");
  Array first;
  if (prefix != nullptr) {
    for (const Value& item : prefix->get_array()) {
      if (most >= 0 && std::cmp_greater_equal(first.size(), most)) break;
      try {
        first.push_back(rewrite(item, place.inside("prefixItems")));
      } catch (const UnsatisfiableError&) {  // the array must end before it
        most = static_cast<long>(first.size());
      }
    }
  }
  Value rest = Object{};
  try {
    if (items != nullptr) rest = rewrite(*items, place.inside("items"));
    if (prefix != nullptr && items == nullptr && std::cmp_less_equal(least, first.size()))
      most = static_cast<long>(first.size());
  } catch (const UnsatisfiableError&) {
    if (most < 0 || std::cmp_greater(most, first.size())) most = static_cast<long>(first.size());
  }
  if (most >= 0 && least > most)
    throw UnsatisfiableError("minItems", place.pointer, "is above what the array may hold");
  const bool closed = most >= 0 && std::cmp_equal(most, first.size());
  if (!first.empty()) out["prefixItems"] = std::move(first);
  if (closed && out.contains("prefixItems")) {
    out["items"] = false;
  } else {
    out["items"] = std::move(rest);
    if (most >= 0) out["maxItems"] = most;
  }
  if (least > 0) out["minItems"] = least;
  return out;
}

}  // namespace coppice::grammar
