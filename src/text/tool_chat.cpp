// How models write calls and reasoning: llama.cpp's chat library learns it from the template (tool_chat.h). What it doesn't know:
// some forms of calls (own_forms.h; in prompts chat_history.h writes the plain one); tags of reasoning, find_thoughts(), read by
// thought_splitter.h. What a model may write that must call is call_grammar.h's.
#include "text/tool_chat.h"

#include <chat.h>
#include <fmt/format.h>
#include <json-schema-to-grammar.h>

#include <algorithm>
#include <regex>
#include <utility>

#include "text/answer_format_impl.h"
#include "text/bounded_schemas.h"
#include "text/call_grammar.h"
#include "text/chat_history.h"
#include "text/chat_template_impl.h"
#include "text/own_forms.h"
#include "text/parser_parameters.h"
#include "text/template_limits.h"
#include "text/typed_properties.h"

namespace coppice::text {

namespace {

/// Ours come from call_grammar.h.
const bool kOwnGrammars = (common_builds_grammars = false, true);

common_chat_templates_inputs inputs_of(std::span<const ChatMessage> messages, const ToolChat& chat,
                                       const ChatDefaults& defaults, std::span<const ToolSpec> tools) {
  common_chat_templates_inputs inputs;
  inputs.use_jinja = true;
  inputs.add_generation_prompt = chat.end == TurnEnd::kOpenTurn;
  for (const ChatMessage& message : messages) {
    common_chat_msg& m = inputs.messages.emplace_back();
    m.role = message.role;
    m.content = message.content;
    m.reasoning_content = message.reasoning;
    m.tool_call_id = message.call_id;
    for (const ChatCall& call : message.calls) m.tool_calls.push_back({call.name, call.arguments, call.id});
  }
  for (const ToolSpec& tool : tools) inputs.tools.push_back({tool.name, tool.description, tool.parameters});
  inputs.tool_choice = !chat.may_call   ? COMMON_CHAT_TOOL_CHOICE_NONE
                       : chat.must_call ? COMMON_CHAT_TOOL_CHOICE_REQUIRED
                                        : COMMON_CHAT_TOOL_CHOICE_AUTO;
  inputs.parallel_tool_calls = chat.parallel;
  inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
  inputs.enable_thinking = chat.thinks.value_or(defaults.thinks);
  inputs.chat_template_kwargs = chat.variables;
  inputs.chat_template_kwargs.insert(defaults.variables.begin(), defaults.variables.end());
  return inputs;
}

/// make(tools), which gives the parser of answers with calls of these tools. The library refuses some schemas: names alone are enough then.
template <class Make>
common_chat_params params_of(std::vector<common_chat_tool>& tools, Make&& make) {
  try {
    return make();
  } catch (const std::exception&) {
    for (common_chat_tool& tool : tools) tool.parameters = with_types(names_alone(tool.parameters), true);
    return make();
  }
}

std::shared_ptr<const AnswerFormat> format_of(const common_chat_params& params, bool one_call = false) {
  auto impl = std::make_unique<AnswerFormat::Impl>();
  impl->one_call = one_call;
  impl->params = common_chat_parser_params(params);
  impl->params.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
  if (!params.parser.empty()) impl->params.parser.load(params.parser);
  return std::make_shared<const AnswerFormat>(std::move(impl));
}

/// What comes of the grammar of calls: from the beginning where one must be made, else from where the model begins one.
void add_grammar(const ToolChat& chat, const common_chat_params& params, std::span<const ToolSpec> tools,
                 const SpecialNames& marks, ToolPrompt& to) {
  if (params.parser.empty()) return;
  const auto trigger =
      std::ranges::find(params.grammar_triggers, COMMON_GRAMMAR_TRIGGER_TYPE_WORD, &common_grammar_trigger::type);
  if (!chat.must_call && trigger == params.grammar_triggers.end()) return;  // the model calls as it can
  common_peg_arena parser;
  parser.load(params.parser);
  CallGrammar grammar = call_grammar(parser, tools, chat.must_call, chat.parallel, marks);
  to.grammar = std::move(grammar.text);
  to.schemas = std::move(grammar.schemas);
  to.tokens = std::move(grammar.tokens);
  to.bare = std::move(grammar.bare);
  to.spaced = grammar.spaced;
  if (to.grammar.empty()) return;
  if (!chat.must_call) to.from = trigger->value;
  to.begun = chat.must_call ? params.generation_prompt : trigger->value;
}

/// The tags as they stand behind `opening`, the prompt's end, which opens the assistant's turn: it may have begun the reasoning.
/// Without an end: it has closed it.
ThoughtTags tags_behind(const std::string& opening, ThoughtTags tags) {
  const std::size_t begun = tags.end.empty() ? opening.npos : opening.rfind(tags.begin);
  tags.open = begun != opening.npos;
  return tags.open && opening.find(tags.end, begun) != opening.npos ? ThoughtTags() : tags;
}

/// How an answer without calls is read.
void add_thoughts(const std::string& opening, const ThoughtTags& tags, ToolPrompt& to) {
  const ThoughtTags behind = tags_behind(opening, tags);
  if (behind.end.empty()) return;
  to.thoughts = behind;
  auto impl = std::make_unique<AnswerFormat::Impl>();
  impl->thoughts = to.thoughts;
  to.format = std::make_shared<const AnswerFormat>(std::move(impl));
}

}  // namespace

/// Tags around thoughts, with plain text behind them. Other marks are left to the library's parser.
void ChatTemplate::find_thoughts() {
  static const std::regex tag(R"([<\[](\w+:)?think(:\w+)?[>\]])", std::regex::icase);
  const std::vector<ChatMessage> question = {{.role = "user", .content = "?"}};
  try {
    const common_chat_params params =
        common_chat_templates_apply(impl_->templates.get(), inputs_of(question, {.messages = question}, {}, {}));
    if (!params.supports_thinking) return;
    const std::string& begin = params.thinking_start_tag;
    impl_->marked = !std::regex_match(begin, tag);
    const std::vector<std::string>& ends = params.thinking_end_tags;
    std::string end = ends.empty() ? "" : ends.front();
    if (!impl_->marked) {
      end = begin.substr(0, 1) + "/" + begin.substr(1);
      impl_->thoughts = {.begin = begin, .end = end};
    }
    impl_->thought_marks = thought_marks(source(), begin, end);
  } catch (const std::exception&) {  // it refuses the question, or the library cannot read its answers
  }
}

namespace {

/// In which form it hears of tools, and calls.
CallForm form_of_template(const common_chat_templates* its) {
  auto caps = common_chat_templates_get_caps(its);
  return call_form(common_chat_templates_source(its), caps["supports_tools"], caps["supports_tool_calls"]);
}

/// Does the template write calls and their results?
bool writes_calls(CallForm form) {
  return form == CallForm::kLibrary || form == CallForm::kMistral;
}

bool needs_objects(const common_chat_templates* its) {
  return common_chat_templates_get_caps(its)["supports_object_arguments"];
}

}  // namespace

/// By a tool without properties, by one whose property has no type, and by one with a list and an object.
void ChatTemplate::find_untyped() {
  const std::vector<ChatMessage> question = {{.role = "user", .content = "?"}};
  const auto takes = [&](const char* properties) {
    const std::vector<ToolSpec> tools = {
        {"f", "A function", fmt::format(R"({{"type":"object","properties":{}}})", properties)}};
    try {
      impl_->writer->write(inputs_of(question, {.messages = question, .tools = tools}, {}, tools));
      return true;
    } catch (const std::exception&) {
      return false;
    }
  };
  impl_->asks_types = !takes(R"({"a":{}})") && takes("{}");
  impl_->plain_types =
      !takes(R"({"a":{"type":"array","items":{"type":"string"}},"b":{"type":"object","properties":{}}})") &&
      takes(R"({"a":{"type":null,"description":"?"}})");
}

/// By a conversation with one call, whose id is of one form and then of the other; and by one with two calls in a turn.
void ChatTemplate::find_call_ids() {
  impl_->form = form_of_template(impl_->templates.get());
  if (source().find("<|tool_calls_section_begin|>") != std::string::npos) impl_->call_ids = CallIds::kFunction;
  if (!writes_calls(impl_->form)) return;
  const std::vector<ToolSpec> tools = {{"f", "A function", R"({"type":"object","properties":{}})"}};
  const auto takes = [&](const std::vector<std::string>& ids) {
    std::vector<ChatMessage> messages = {{.role = "user", .content = "?"}, {.role = "assistant", .content = ""}};
    for (const std::string& id : ids) {
      messages[1].calls.push_back({id, "f", "{}"});
      messages.push_back({.role = "tool", .content = "!", .call_id = id});
    }
    try {
      impl_->writer->write(inputs_of(messages, {.messages = messages, .tools = tools}, {}, tools));
      return true;
    } catch (const std::exception&) {
      return false;
    }
  };
  if (!takes({"call_0123456789"}) && takes({"012345678"})) impl_->call_ids = CallIds::kNine;
  impl_->parallel = !takes({"012345678"}) || takes({"012345678", "123456789"});
}

/// By a conversation of two messages in a row.
void ChatTemplate::find_turns() {
  const ChatMessage user{.role = "user", .content = "?"}, assistant{.role = "assistant", .content = "!"};
  const auto takes = [&](const std::vector<ChatMessage>& messages) {
    try {
      impl_->writer->write(inputs_of(messages, {.messages = messages}, {}, {}));
      return true;
    } catch (const std::exception&) {
      return false;
    }
  };
  impl_->alternates = !takes({user, user}) && takes({user, assistant, user});
}

namespace {

/// Bytes that the template is given; a message or call is more than its texts.
std::size_t size_of(const ToolChat& chat) {
  constexpr std::size_t kEach = 1024;
  std::size_t bytes = 0;
  for (const ChatMessage& message : chat.messages) {
    bytes += message.role.size() + message.content.size() + message.reasoning.size() + message.call_id.size() + kEach;
    for (const ChatCall& call : message.calls)
      bytes += call.id.size() + call.name.size() + call.arguments.size() + kEach;
  }
  for (const ToolSpec& tool : chat.tools) bytes += tool.name.size() + tool.description.size() + tool.parameters.size();
  for (const auto& [name, value] : chat.variables) bytes += name.size() + value.size();
  return bytes;
}

}  // namespace

ToolPrompt ChatTemplate::render(const ToolChat& asked) const {
  const TemplateWork work(TemplateWork::At::kRequest, size_of(asked));
  try {
    const common_chat_templates* own = impl_->templates.get();
    const CallForm form = impl_->form;
    const bool knows = writes_calls(form), lists = form != CallForm::kPlain;
    std::vector<ChatMessage> messages =
        fitted(asked.messages, {.objects = !knows || needs_objects(own),
                                .ids = impl_->call_ids,
                                .reads_results = source().find("'<|tool_call>call:'") != std::string::npos});
    if (!knows) messages = lists ? with_written_calls(form, messages) : in_plain_form(messages, asked.tools);
    if (impl_->alternates) messages = in_turns(std::move(messages));
    ToolChat chat = asked;
    chat.parallel = asked.parallel && impl_->parallel;
    chat.messages = messages;
    std::vector<ToolSpec> typed;
    if (impl_->asks_types || impl_->plain_types) {
      typed.assign(chat.tools.begin(), chat.tools.end());
      for (ToolSpec& tool : typed)
        tool.parameters = impl_->asks_types ? with_types(tool.parameters, false) : with_plain_types(tool.parameters);
      chat.tools = typed;
    }
    common_chat_templates_inputs inputs =
        inputs_of(messages, chat, defaults_, lists ? chat.tools : std::span<const ToolSpec>());
    inputs.force_pure_content = inputs.tools.empty() && !impl_->marked;
    std::vector<std::string> quoted;
    for (const ChatMessage& message : messages)
      quoted.insert(quoted.end(), message.quoted.begin(), message.quoted.end());
    ToolPrompt result;
    result.call_ids = impl_->call_ids;
    for (const ChatMessage& message : asked.messages) result.calls_before += message.calls.size();
    // Of a vocabulary that may not have it as a token: an answer would go on behind it.
    if (impl_->assumed) result.stops.emplace_back("<|im_end|>");
    const auto add_stops = [&](const auto& more) { result.stops.insert(result.stops.end(), more.begin(), more.end()); };
    const auto take = [&](MarkedText&& prompt) {
      result.prompt = std::move(prompt.text);
      result.plain = std::move(prompt.plain);
    };
    if (chat.end == TurnEnd::kContinue) {
      PromptWriter::Continued continued = impl_->writer->write_continued(inputs, quoted);
      take(std::move(continued.prompt));
      if (continued.opening.find(impl_->thoughts.begin) != std::string::npos) {
        add_thoughts(continued.opening, impl_->thoughts, result);
        if (!result.thoughts.end.empty())
          result.bounded = thought_bounds(continued.opening, impl_->thought_marks, false);
      }
      return result;
    }
    std::optional<common_chat_params> special;
    take(impl_->writer->write(inputs, quoted, &special));
    // It takes as long as the prompt itself.
    const auto opening_of_turn = [&] {
      const bool needed = impl_->marked || !impl_->thoughts.end.empty() || !impl_->thought_marks.end.empty();
      return needed ? impl_->writer->opening(inputs, result.prompt) : std::string();
    };
    if (chat.tools.empty() || !chat.may_call) {
      if (chat.end != TurnEnd::kOpenTurn) return result;
      const std::string opening = opening_of_turn();
      result.bounded = thought_bounds(opening, impl_->thought_marks, false);
      if (impl_->marked) {
        result.frame = form_frame(opening, impl_->thought_marks, impl_->marks);
        const common_chat_params params = special ? *std::move(special) : common_chat_templates_apply(own, inputs);
        result.format = format_of(params);
        add_stops(params.additional_stops);
      } else if (!impl_->thoughts.end.empty()) {
        add_thoughts(opening, impl_->thoughts, result);
      }
      return result;
    }
    std::vector<ToolSpec> callable(asked.tools.begin(), asked.tools.end());
    if (!chat.only.empty()) std::erase_if(callable, [&](const ToolSpec& tool) { return tool.name != chat.only; });
    if (!chat.allowed.empty())
      std::erase_if(callable, [&](const ToolSpec& tool) {
        return std::ranges::find(chat.allowed, tool.name) == chat.allowed.end();
      });
    bound_schemas(callable);
    for (ToolSpec& tool : callable) {
      tool.parameters = parser_parameters(tool);
      if (impl_->asks_types) tool.parameters = with_types(tool.parameters, true);
    }
    common_chat_templates_inputs calls = inputs_of(chat.messages, chat, defaults_, callable);
    calls.parallel_tool_calls = true;  // all are read; the grammar writes no more than are asked for
    common_chat_params params;
    const std::string opening = opening_of_turn();
    if (form == CallForm::kLibrary || form == CallForm::kLfm2) {
      params = params_of(calls.tools, [&] { return common_chat_templates_apply(own, calls); });
      if (!impl_->marked) result.thoughts = tags_behind(params.generation_prompt, impl_->thoughts);
    } else {
      if (!impl_->thoughts.end.empty()) add_thoughts(opening, impl_->thoughts, result);
      params = params_of(calls.tools, [&] { return own_params(form, calls.tools, result.thoughts, chat.must_call); });
    }
    result.format = format_of(params, !chat.parallel);
    add_stops(params.additional_stops);
    add_grammar(chat, params, callable, impl_->marks, result);
    result.bounded = thought_bounds(opening, impl_->thought_marks, true);
    if (chat.must_call) result.bounded.last.clear();  // the grammar has thoughts once
    return result;
  } catch (const std::exception& e) {
    if (work.ended() != nullptr) throw TemplateError(fmt::format("chat template: {}", work.ended()));
    throw template_fault(e.what());
  }
}

}  // namespace coppice::text
