#include "text/origin_marks.h"

#include <utility>

namespace coppice::text {

namespace {

using jinja::is_val;

void mark(const jinja::value& value) {
  if (is_val<jinja::value_string>(value)) {
    value->val_str.mark_input();
  } else if (is_val<jinja::value_array>(value)) {
    for (const jinja::value& item : value->as_array()) mark(item);
  } else if (is_val<jinja::value_object>(value)) {
    for (const auto& [key, item] : value->as_ordered_object()) {
      mark(key);
      mark(item);
    }
  }
}

std::string key_of(const std::pair<jinja::value, jinja::value>& field) {
  return field.first->as_string().str();
}

bool is_assistant(const jinja::value& message) {
  for (const auto& field : message->as_ordered_object())
    if (key_of(field) == "role") return field.second->as_string().str() == "assistant";
  return false;
}

/// The texts wherever they stand in strings.
void mark_texts(const jinja::value& value, std::span<const std::string> texts) {
  if (is_val<jinja::value_array>(value)) {
    for (const jinja::value& item : value->as_array()) mark_texts(item, texts);
  } else if (is_val<jinja::value_object>(value)) {
    for (const auto& [key, item] : value->as_ordered_object()) mark_texts(item, texts);
  } else if (is_val<jinja::value_string>(value)) {
    for (const std::string& text : texts) {
      jinja::string parts;
      for (const jinja::string_part& part : value->val_str.parts) {
        std::size_t at = 0;
        const auto add = [&](std::size_t end, bool input) {
          if (end > at) parts.parts.push_back({part.is_input || input, part.val.substr(at, end - at)});
          at = end;
        };
        for (std::size_t next = 0; !text.empty() && (next = part.val.find(text, at)) != std::string::npos;) {
          add(next, false);
          add(next + text.size(), true);
        }
        add(part.val.size(), false);
      }
      value->val_str = parts;
    }
  }
}

/// Roles stay unmarked: templates make names of special tokens of them.
void mark_message(const jinja::value& message, std::span<const std::string> quoted) {
  const bool assistant = is_assistant(message);
  for (const auto& field : message->as_ordered_object()) {
    const std::string key = key_of(field);
    if (assistant && key == "content") mark_texts(field.second, quoted);
    if (assistant ? key == "tool_calls" || key == "tool_responses" : key != "role") mark(field.second);
  }
}

void mark_last(const jinja::value& message, bool reasoning) {
  for (const auto& field : message->as_ordered_object()) {
    const std::string key = key_of(field);
    const bool thoughts = key == "reasoning_content" || key == "reasoning" || key == "thinking" || key == "thought";
    if (reasoning ? thoughts : key == "content") mark(field.second);
  }
}

}  // namespace

void mark_origin(jinja::context& context, Origin origin, std::span<const std::string> quoted) {
  const jinja::value messages = context.get_val("messages");
  if (is_val<jinja::value_array>(messages)) {
    const auto& list = messages->as_array();
    for (const jinja::value& message : list) {
      if (!is_val<jinja::value_object>(message)) continue;
      if (origin == Origin::kClient) mark_message(message, quoted);
      if (origin != Origin::kClient && &message == &list.back()) mark_last(message, origin == Origin::kLastReasoning);
    }
  }
  if (origin != Origin::kClient) return;
  for (const char* name : {"tools", "documents"}) mark(context.get_val(name));
}

}  // namespace coppice::text
