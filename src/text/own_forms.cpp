#include "text/own_forms.h"

#include <chat-peg-parser.h>
#include <fmt/format.h>

namespace coppice::text {

namespace {

constexpr const char *kPlainBegin = "<tool_call>", *kPlainEnd = "</tool_call>";
constexpr const char *kMistralBegin = "[TOOL_CALLS]", *kMistralId = "[CALL_ID]", *kMistralArguments = "[ARGS]";
constexpr const char *kSolarBegin = "<|tool_calls|>", *kSolarName = "<|tool_call:name|>";
constexpr const char* kGraniteBegin = "<|tool_call|>";

bool has(const std::string& source, const char* text) {
  return source.find(text) != source.npos;
}

common_peg_parser mistral_calls(common_chat_peg_builder& p, const common_json& tools) {
  common_peg_parser some = p.choice();
  for (const common_json& tool : tools) {
    const common_json& function = tool.at("function");
    const std::string name = function.at("name").get<std::string>();
    const auto id = p.literal(kMistralId) + p.tool_id(p.until(kMistralArguments));
    const auto open = p.tool_open(p.tool_name(p.literal(name)) + p.optional(id) + p.literal(kMistralArguments));
    some |= p.rule("tool-" + name, p.tool(open + p.tool_args(p.schema(p.json(), "tool-" + name + "-schema",
                                                                      common_chat_tool_parameters(function)))));
  }
  return p.literal(kMistralBegin) + some;
}

common_peg_parser solar_calls(common_chat_peg_builder& p, const common_json& tools) {
  common_peg_parser some = p.choice();
  for (const common_json& tool : tools) {
    const common_json& function = tool.at("function");
    const std::string name = function.at("name").get<std::string>();
    const auto open =
        p.tool_open(p.literal("<|tool_call:begin|>") + p.tool_id(p.until(kSolarName)) + p.literal(kSolarName) +
                    p.tool_name(p.literal(name)) + p.literal("<|tool_call:args|>"));
    const auto arguments =
        p.tool_args(p.schema(p.json(), "tool-" + name + "-schema", common_chat_tool_parameters(function)));
    some |= p.rule("tool-" + name, p.tool(open + arguments + p.tool_close(p.literal("<|tool_call:end|>"))));
  }
  return p.literal(kSolarBegin) + p.one_or_more(some) + p.optional(p.literal("<|calls|>"));
}

std::string json_call(const ChatCall& call) {
  return fmt::format(R"({{"name": {}, "arguments": {}}})", common_json(call.name).dump(), call.arguments);
}

std::string python_arguments(const std::string& json) {
  std::string arguments;
  for (const auto& argument : common_json::parse(json).items())
    arguments += fmt::format("{}{}={}", arguments.empty() ? "" : ", ", argument.key(), argument.value().dump());
  return arguments;
}

}  // namespace

CallForm call_form(const std::string& source, bool lists, bool writes) {
  if (lists && writes) {
    const bool mistral = has(source, kMistralBegin) && has(source, kMistralId) && has(source, kMistralArguments);
    if (has(source, kSolarBegin) && has(source, kSolarName)) return CallForm::kSolar;
    return mistral ? CallForm::kMistral : CallForm::kLibrary;
  }
  if (lists && has(source, kGraniteBegin)) return CallForm::kGranite;
  if (lists && (has(source, "<|tool_list_start|>") || has(source, "List of tools: ["))) return CallForm::kLfm2;
  return CallForm::kPlain;
}

common_chat_params own_params(CallForm form, const std::vector<common_chat_tool>& tools, const ThoughtTags& thoughts,
                              bool must_call) {
  const common_json json = common_chat_tools_to_json_oaicompat(tools);
  const char* begin = form == CallForm::kPlain     ? kPlainBegin
                      : form == CallForm::kMistral ? kMistralBegin
                      : form == CallForm::kSolar   ? kSolarBegin
                                                   : kGraniteBegin;
  common_chat_params params;
  params.format = COMMON_CHAT_FORMAT_PEG_NATIVE;
  params.generation_prompt = thoughts.open ? thoughts.begin : "";
  params.grammar_triggers = {{COMMON_GRAMMAR_TRIGGER_TYPE_WORD, begin}};
  const common_peg_arena parser = build_chat_peg_parser([&](common_chat_peg_builder& p) {
    common_peg_parser reasoning = p.eps();
    if (!thoughts.end.empty())
      reasoning = p.optional(p.literal(thoughts.begin) + p.space() + p.reasoning(p.until(thoughts.end)) +
                             p.literal(thoughts.end)) +
                  p.space();
    const common_peg_parser call = form == CallForm::kMistral ? mistral_calls(p, json)
                                   : form == CallForm::kSolar
                                       ? solar_calls(p, json)
                                       : p.standard_json_tools(begin, form == CallForm::kPlain ? kPlainEnd : "", json,
                                                               form == CallForm::kGranite, true, "", "",
                                                               /*array_wrapped=*/form == CallForm::kGranite);
    const bool several = form == CallForm::kPlain || form == CallForm::kMistral;
    const common_peg_parser calls =
        p.trigger_rule("calls", several ? p.one_or_more(call + p.space()) : call + p.space());
    return reasoning + p.optional(p.content(p.until(begin))) + (must_call ? calls : p.optional(calls)) + p.end();
  });
  params.parser = parser.save();
  return params;
}

std::vector<ChatMessage> with_written_calls(CallForm form, std::span<const ChatMessage> messages) {
  std::vector<ChatMessage> written(messages.begin(), messages.end());
  for (ChatMessage& message : written) {
    std::string calls;
    for (const ChatCall& call : message.calls) {
      const bool python = form == CallForm::kLfm2;
      message.quoted.push_back(python ? python_arguments(call.arguments) : call.arguments);
      calls += calls.empty() ? "" : ", ";
      calls += python ? fmt::format("{}({})", call.name, message.quoted.back()) : json_call(call);
    }
    if (calls.empty()) continue;
    message.content += form == CallForm::kLfm2 ? fmt::format("<|tool_call_start|>[{}]<|tool_call_end|>", calls)
                                               : fmt::format("{}[{}]", kGraniteBegin, calls);
    message.calls.clear();
  }
  return written;
}

}  // namespace coppice::text
