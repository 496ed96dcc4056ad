#include "text/template_inputs.h"

#include <chat-auto-parser.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <ctime>

#include "port/turn.h"

namespace coppice::text {

namespace {

std::string date(std::chrono::system_clock::time_point now, const char* form) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm local{};
  localtime_r(&seconds, &local);
  std::array<char, 64> text{};
  return {text.data(), std::strftime(text.data(), text.size(), form, &local)};
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpaces = " \t\n\v\f\r";
  const std::size_t begin = text.find_first_not_of(kSpaces);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

/// StepFun's models go round in circles behind white space at a message's end.
bool wants_trimmed(const common_chat_template& t) {
  return t.src.find("You have access to the following functions in JSONSchema format") != std::string::npos;
}

void parse_arguments(common_json& message) {
  if (!message.contains("tool_calls")) return;
  for (auto& call : message["tool_calls"]) {
    common_json& arguments = call["function"]["arguments"];
    if (arguments.is_string()) arguments = common_json::parse(arguments.get<std::string>());
  }
}

/// Whether the template reads a field of this name: a.name, a['name'] or a.get('name').
bool reads(const std::string& source, const std::string& name) {
  for (const char* before : {".", "['", "[\"", "get('", "get(\""}) {
    const std::string field = before + name;
    for (std::size_t at = 0; (at = source.find(field, at)) != std::string::npos; ++at) {
      const std::size_t end = at + field.size();
      const char next = end < source.size() ? source[end] : ' ';
      if (std::isalnum(static_cast<unsigned char>(next)) == 0 && next != '_') return true;
    }
  }
  return false;
}

/// By which names a template reads thoughts, where it doesn't know the usual one, reasoning_content.
std::vector<std::string> names_of_thoughts(const common_chat_template& t) {
  std::vector<std::string> names;
  if (reads(t.src, "reasoning_content")) return names;
  for (const char* name : {"reasoning", "thinking", "thought"})
    if (reads(t.src, name)) names.emplace_back(name);
  return names;
}

common_json message_of(const common_chat_template& t, common_chat_msg message,
                       const std::vector<std::string>& thoughts) {
  if (wants_trimmed(t)) {
    message.content = trimmed(message.content);
    message.reasoning_content = trimmed(message.reasoning_content);
  }
  common_json json = message.to_json_oaicompat();
  if (!message.reasoning_content.empty())
    for (const std::string& name : thoughts) json[name] = message.reasoning_content;
  if (t.caps.supports_typed_content && !t.caps.supports_string_content) {
    common_json part = {{"type", "text"}, {"text", message.content}};
    json["content"] = common_json::array();
    json["content"].push_back(part);
  }
  if (message.role == "developer" && t.src.find("<|channel|>") == std::string::npos) json["role"] = "system";
  if (t.caps.supports_object_arguments) parse_arguments(json);
  return json;
}

common_json messages_of(const common_chat_template& t, const std::vector<common_chat_msg>& messages) {
  common_json list = common_json::array();
  const std::vector<std::string> thoughts = names_of_thoughts(t);
  std::string system;  // of a template that has none: it goes before the next message's text
  bool joined = false;
  for (const common_chat_msg& message : messages) {
    port::between_steps();
    const bool first = &message == &messages.front();
    if (first && !t.caps.supports_system_role && (message.role == "system" || message.role == "developer")) {
      system = wants_trimmed(t) ? trimmed(message.content) : message.content;
      joined = true;
      continue;
    }
    common_chat_msg own = message;
    if (std::exchange(joined, false)) own.content = system + "\n" + own.content;
    list.push_back(message_of(t, std::move(own), thoughts));
  }
  return list;
}

common_json context_of(const common_chat_templates_inputs& inputs) {
  common_json context = common_json::object();
  context["datetime"] = date(inputs.now, "%b %d %Y");
  context["date_string"] = date(inputs.now, "%d %b %Y");
  for (const auto& [name, value] : inputs.chat_template_kwargs) context[name] = common_json::parse(value);
  return context;
}

}  // namespace

std::string template_prompt(const common_chat_template& its_template, const common_chat_templates_inputs& inputs,
                            bool adds_bos, bool adds_eos, std::optional<common_chat_params>* special) {
  autoparser::generation_params params;
  params.messages = messages_of(its_template, inputs.messages);
  params.tools = common_chat_tools_to_json_oaicompat(inputs.tools);
  params.tool_choice = COMMON_CHAT_TOOL_CHOICE_NONE;  // prompts don't depend on it, and no grammar is made
  params.parallel_tool_calls = inputs.parallel_tool_calls;
  params.reasoning_format = inputs.reasoning_format;
  params.add_generation_prompt = inputs.add_generation_prompt;
  params.enable_thinking = inputs.enable_thinking;
  params.now = inputs.now;
  params.extra_context = context_of(inputs);
  params.add_bos = adds_bos;
  params.add_eos = adds_eos;
  params.mark_input = false;  // it would mark everything
  if (!inputs.force_pure_content) {
    if (auto known = common_chat_try_specialized_template(its_template, its_template.src, params)) {
      std::string prompt = known->prompt;
      if (special != nullptr) *special = std::move(known);
      return prompt;
    }
  }
  return common_chat_template_direct_apply(its_template, params);
}

}  // namespace coppice::text
