#include "grammar/schema/schema_refs.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstddef>
#include <optional>

#include "grammar/schema/json_schema.h"

namespace coppice::grammar {

using boost::json::value;

namespace {

std::string percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0) {
      out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string unescaped(std::string_view token) {
  std::string out;
  for (std::size_t i = 0; i < token.size(); ++i) {
    const bool escape = token[i] == '~' && i + 1 < token.size() && (token[i + 1] == '0' || token[i + 1] == '1');
    out += escape ? (token[++i] == '1' ? '/' : '~') : token[i];
  }
  return out;
}

std::optional<std::size_t> index_of(std::string_view token, std::size_t size) {
  if (token.empty() || token.size() > 6) return std::nullopt;
  std::size_t index = 0;
  for (const char c : token) {
    if (c < '0' || c > '9') return std::nullopt;
    index = index * 10 + static_cast<std::size_t>(c - '0');
  }
  return index < size ? std::optional(index) : std::nullopt;
}

const value* child(const value& parent, const std::string& name) {
  if (const auto* object = parent.if_object()) return object->if_contains(name);
  if (const auto* array = parent.if_array()) {
    if (const auto index = index_of(name, array->size())) return &(*array)[*index];
  }
  return nullptr;
}

std::string string_field(const value& schema, std::string_view name) {
  const auto* object = schema.if_object();
  const value* field = object == nullptr ? nullptr : object->if_contains(name);
  return field != nullptr && field->is_string() ? std::string(field->get_string()) : "";
}

}  // namespace

std::string under(const std::string& place, std::string_view name) {
  std::string out = place + '/';
  for (const char c : name) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

std::string under(const std::string& place, std::size_t index) {
  return place + '/' + std::to_string(index);
}

SchemaRefs::SchemaRefs(const value& root) : root_(root), id_(string_field(root, "$id")) {
  if (id_.empty()) id_ = string_field(root, "id");
  if (id_.ends_with('#')) id_.pop_back();
  learn_anchors(root, "");
}

void SchemaRefs::learn_anchors(const value& parent, const std::string& place) {
  if (const auto* object = parent.if_object()) {
    for (const char* keyword : {"$anchor", "$id", "id"}) {
      std::string name = string_field(parent, keyword);
      if (std::string_view(keyword) != "$anchor") {
        if (!name.starts_with('#')) continue;
        name.erase(0, 1);
      }
      if (!name.empty()) anchors_.try_emplace(name, Target{&parent, place});
    }
    for (const auto& field : *object) learn_anchors(field.value(), under(place, field.key()));
  } else if (const auto* array = parent.if_array()) {
    for (std::size_t i = 0; i < array->size(); ++i) learn_anchors((*array)[i], under(place, i));
  }
}

SchemaRefs::Target SchemaRefs::resolve(std::string_view ref, const std::string& place) const {
  if (!id_.empty() && ref.starts_with(id_) && (ref.size() == id_.size() || ref[id_.size()] == '#'))
    ref.remove_prefix(id_.size());
  if (!ref.empty() && ref[0] != '#')
    throw SchemaError("$ref", place, "only references within the schema (\"#...\") are followed");
  if (!ref.empty()) ref.remove_prefix(1);
  const std::string fragment = percent_decoded(ref);
  if (!fragment.empty() && fragment[0] != '/') {
    const auto anchor = anchors_.find(fragment);
    if (anchor == anchors_.end()) throw SchemaError("$ref", place, "there is no anchor '" + fragment + "'");
    return anchor->second;
  }
  Target target{&root_, ""};
  for (std::size_t at = 0; at < fragment.size();) {
    const std::size_t end = std::min(fragment.find('/', at + 1), fragment.size());
    const std::string name = unescaped(std::string_view(fragment).substr(at + 1, end - at - 1));
    target.schema = child(*target.schema, name);
    if (target.schema == nullptr) throw SchemaError("$ref", place, "there is nothing at '#" + fragment + "'");
    target.pointer = under(target.pointer, name);
    at = end;
  }
  return target;
}

}  // namespace coppice::grammar
