// How models write calls and reasoning: llama.cpp's chat library learns it from the template (tool_chat.h). What it
// doesn't know: some forms of calls (own_forms.h; in prompts chat_history.h writes the plain one); tags of reasoning,
// find_thoughts(), read by thought_splitter.h. What a model may write that must call is call_grammar.h's.
//
// A template's quirk: a find_...() tries out what the template takes when it is loaded, ChatTemplate::Impl
// (chat_template_impl.h) keeps that, and render() heeds it; what becomes of the conversation is in chat_history.cpp.
// What is known by a template's text, such as its fields' names: template_inputs.cpp. docs/templates.md says what comes
// of it, for all that llama.cpp has.
#include "text/tool_chat.h"

#include <chat.h>
#include <fmt/format.h>
#include <json-schema-to-grammar.h>

#include <algorithm>
#include <functional>
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

/// make(tools), which gives the parser of answers with calls of these tools. The library refuses some schemas: names
/// alone are enough then.
template <class Make>
common_chat_params params_of(std::vector<common_chat_tool>& tools, Make&& make) {
  try {
    return make();
  } catch (const std::exception&) {
    for (common_chat_tool& tool : tools) tool.parameters = with_types(names_alone(tool.parameters), true);
    return make();
  }
}

std::shared_ptr<const AnswerFormat> format_of(const common_chat_params& params, OwnMarks own, bool one_call = false,
                                              bool continued = false) {
  auto impl = std::make_unique<AnswerFormat::Impl>();
  impl->thoughts = std::move(own.thoughts);
  impl->text = std::move(own.text);
  impl->text_end = std::move(own.text_end);
  impl->one_call = one_call;
  impl->continued = continued;
  impl->params = common_chat_parser_params(params);
  impl->params.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
  if (!params.parser.empty()) impl->params.parser.load(params.parser);
  return std::make_shared<const AnswerFormat>(std::move(impl));
}

/// The text by which the model begins a call; empty: there is none.
std::string trigger_of(const common_chat_params& params) {
  const auto trigger =
      std::ranges::find(params.grammar_triggers, COMMON_GRAMMAR_TRIGGER_TYPE_WORD, &common_grammar_trigger::type);
  return trigger == params.grammar_triggers.end() ? "" : trigger->value;
}

/// What comes of the grammar of calls: of all of the answer (`whole`), else from where the model begins one. `beside`:
/// call_grammar()'s.
void add_grammar(const ToolChat& chat, const common_chat_params& params, std::span<const ToolSpec> tools, bool whole,
                 const SpecialNames& marks, const std::function<std::string(GbnfRules&)>& beside, ToolPrompt& to) {
  const std::string trigger = trigger_of(params);
  if (params.parser.empty() || (!whole && trigger.empty())) return;  // the model calls as it can
  common_peg_arena parser;
  parser.load(params.parser);
  CallGrammar grammar = call_grammar(parser, tools, whole, chat.parallel, marks, beside);
  to.grammar = std::move(grammar.text);
  to.schemas = std::move(grammar.schemas);
  to.tokens = std::move(grammar.tokens);
  to.bare = std::move(grammar.bare);
  to.spaced = grammar.spaced;
  if (to.grammar.empty()) return;
  if (!whole) to.from = trigger;
  to.begun = whole ? params.generation_prompt : trigger;
  to.holds_form = beside != nullptr;
}

/// Is the text by which a call begins a part of the thoughts, if it comes in these?
bool leaves_in_thoughts(const std::shared_ptr<const AnswerFormat>& format, const ThoughtBounds& thoughts,
                        const std::string& from) {
  if (from.empty() || thoughts.end.empty()) return false;
  AnswerReader reader(format);
  AnswerParts parts = reader.push((thoughts.open ? "" : thoughts.begin) + "a " + from + " b" + thoughts.end + "c");
  const AnswerParts rest = reader.finish();
  return parts.calls.empty() && rest.calls.empty() &&
         (parts.reasoning + rest.reasoning).find(from) != std::string::npos;
}

/// The tags as they stand behind `opening`, the prompt's end, which opens the assistant's turn: it may have begun the
/// reasoning. Without an end: it has closed it.
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
    if (const ThoughtTags own = unknown_tags(source()); !params.supports_thinking && !own.end.empty()) {
      impl_->own_thoughts = true;
      impl_->thoughts = own;
      impl_->thought_marks = thought_marks(source(), own.begin, own.end);
      impl_->marked = !impl_->thought_marks.text.empty();
    }
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
  return form == CallForm::kLibrary || form == CallForm::kMistral || form == CallForm::kSolar;
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
  bool shows = false;
  const auto takes = [&](const std::vector<std::string>& ids) {
    std::vector<ChatMessage> messages = {{.role = "user", .content = "?"}, {.role = "assistant", .content = ""}};
    for (const std::string& id : ids) {
      messages[1].calls.push_back({id, "f", fmt::format(R"({{"a":"of {}"}})", id)});
      messages.push_back({.role = "tool", .content = "!", .call_id = id});
    }
    try {
      const MarkedText prompt =
          impl_->writer->write(inputs_of(messages, {.messages = messages, .tools = tools}, {}, tools));
      shows = std::ranges::all_of(
          ids, [&](const std::string& id) { return prompt.text.find("of " + id) != std::string::npos; });
      return true;
    } catch (const std::exception&) {
      return shows = false;
    }
  };
  if (!takes({"call_0123456789"}) && takes({"012345678"})) impl_->call_ids = CallIds::kNine;
  const bool one = takes({"012345678"}), shows_one = shows, two = takes({"012345678", "123456789"});
  impl_->parallel = !one || two;
  impl_->one_call = shows_one && !shows;
}

/// By conversations of two messages in a row, and with two system messages.
void ChatTemplate::find_turns() {
  const ChatMessage user{.role = "user", .content = "?"}, assistant{.role = "assistant", .content = "!"};
  const ChatMessage system{.role = "system", .content = "Rule one"}, more{.role = "system", .content = "Rule two"};
  const auto takes = [&](const std::vector<ChatMessage>& messages) {
    try {
      const std::string prompt = impl_->writer->write(inputs_of(messages, {.messages = messages}, {}, {})).text;
      return std::ranges::all_of(messages,
                                 [&](const ChatMessage& m) { return prompt.find(m.content) != std::string::npos; });
    } catch (const std::exception&) {
      return false;
    }
  };
  impl_->alternates = !takes({user, user}) && takes({user, assistant, user});
  impl_->system.several = takes({system, more, user}) || !takes({system, user});
  const bool leads = takes({system, user});  // some write the last one alone
  impl_->system.later = leads ? takes({system, user, assistant, more, user})
                              : takes({user, assistant, more, user}) || !takes({user, assistant, user});
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

void add_stops(const std::vector<std::string>& more, ToolPrompt& to) {
  to.stops.insert(to.stops.end(), more.begin(), more.end());
}

/// Those that may be called, as the library is told of them.
std::vector<ToolSpec> callable_tools(const ToolChat& chat, std::span<const ToolSpec> tools, bool asks_types) {
  std::vector<ToolSpec> callable(tools.begin(), tools.end());
  if (!chat.only.empty()) std::erase_if(callable, [&](const ToolSpec& tool) { return tool.name != chat.only; });
  if (!chat.allowed.empty())
    std::erase_if(callable, [&](const ToolSpec& tool) {
      return std::ranges::find(chat.allowed, tool.name) == chat.allowed.end();
    });
  bound_schemas(callable);
  for (ToolSpec& tool : callable) {
    tool.parameters = parser_parameters(tool);
    if (asks_types) tool.parameters = with_types(tool.parameters, true);
  }
  return callable;
}

}  // namespace

OwnMarks ChatTemplate::Impl::own_marks(const std::string& opening) const {
  if (!own_thoughts) return {};
  return {tags_behind(opening, thoughts), thought_marks.text, thought_marks.text_end};
}

void ChatTemplate::Impl::read_continued(common_chat_templates_inputs inputs, const std::string& opening,
                                        ToolPrompt& to) const {
  if (marked) {
    to.bounded = thought_bounds(opening, thought_marks);
    if (to.bounded.open) to.frame = form_frame(opening, thought_marks, marks);
    inputs.tools.clear();
    inputs.continue_final_message =
        to.bounded.open ? COMMON_CHAT_CONTINUATION_REASONING : COMMON_CHAT_CONTINUATION_CONTENT;
    const common_chat_params params = common_chat_templates_apply(templates.get(), inputs);
    to.format = format_of(params, own_marks(opening), false, true);
    add_stops(params.additional_stops, to);
  } else if (opening.find(thoughts.begin) != std::string::npos) {
    add_thoughts(opening, thoughts, to);
    if (!to.thoughts.end.empty()) to.bounded = thought_bounds(opening, thought_marks);
  }
}

void ChatTemplate::Impl::read_text(const common_chat_templates_inputs& inputs,
                                   std::optional<common_chat_params>&& known, const std::string& opening,
                                   ToolPrompt& to) const {
  to.bounded = thought_bounds(opening, thought_marks);
  if (marked) {
    to.frame = form_frame(opening, thought_marks, marks);
    const common_chat_params params = known ? *std::move(known) : common_chat_templates_apply(templates.get(), inputs);
    to.format = format_of(params, own_marks(opening));
    add_stops(params.additional_stops, to);
  } else if (!thoughts.end.empty()) {
    add_thoughts(opening, thoughts, to);
  }
}

void ChatTemplate::Impl::read_calls(const ToolChat& chat, const ChatDefaults& defaults, std::span<const ToolSpec> tools,
                                    const std::string& opening, ToolPrompt& to) const {
  const std::vector<ToolSpec> callable = callable_tools(chat, tools, asks_types);
  common_chat_templates_inputs calls = inputs_of(chat.messages, chat, defaults, callable);
  calls.parallel_tool_calls = true;  // all are read; the grammar writes no more than are asked for
  const bool librarys = form == CallForm::kLibrary || form == CallForm::kLfm2;
  if (!librarys && !thoughts.end.empty()) add_thoughts(opening, thoughts, to);
  const auto params_for = [&](bool must_call) {
    if (must_call) calls.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    return params_of(calls.tools, [&] {
      return librarys ? common_chat_templates_apply(templates.get(), calls)
                      : own_params(form, calls.tools, to.thoughts, must_call);
    });
  };
  const common_chat_params params = params_for(chat.must_call);
  if (librarys && !marked) to.thoughts = tags_behind(params.generation_prompt, thoughts);
  OwnMarks own = own_marks(opening);
  if (!librarys) own.thoughts = {};  // own_params() has these
  if (chat.must_call || (chat.forms && marked)) to.ahead = own.thoughts;
  to.format = format_of(params, std::move(own), !chat.parallel);
  add_stops(params.additional_stops, to);
  const bool beside_form = chat.forms && !chat.must_call;
  if (!beside_form || !marked) add_grammar(chat, params, callable, chat.must_call, marks, {}, to);
  if (beside_form && to.grammar.empty()) {  // no text tells a call from the form
    const auto framed = [&](GbnfRules& rules) {
      const std::string& begun = params.generation_prompt;
      const std::string before = !to.ahead.end.empty() ? thought_marks.begin + thought_marks.end : opening;
      return (begun.empty() ? "" : rules.literal(begun) + " ") + framed_form(before, thought_marks, rules);
    };
    add_grammar(chat, params_for(true), callable, true, marks, framed, to);
  }
  std::vector<std::string> names;
  for (const ToolSpec& tool : callable) names.push_back(tool.name);
  to.bounded = thought_bounds(opening, thought_marks, names);
  if (!to.grammar.empty()) to.bounded.ways.clear();
  if (leaves_in_thoughts(to.format, to.bounded, to.from))
    to.skipped = {to.bounded.begin, to.bounded.end, to.bounded.open};
  if (chat.must_call || to.holds_form) to.bounded.last.clear();  // the grammar has thoughts once
}

ToolPrompt ChatTemplate::render(const ToolChat& asked) const {
  const TemplateWork work(TemplateWork::At::kRequest, size_of(asked));
  try {
    const CallForm form = impl_->form;
    const bool knows = writes_calls(form), lists = form != CallForm::kPlain;
    std::vector<ChatMessage> messages =
        fitted(asked.messages, {.objects = !knows || needs_objects(impl_->templates.get()),
                                .ids = impl_->call_ids,
                                .reads_results = source().find("'<|tool_call>call:'") != std::string::npos});
    if (!knows) messages = lists ? with_written_calls(form, messages) : in_plain_form(messages, asked.tools);
    if (impl_->one_call) messages = with_one_call_a_turn(std::move(messages));
    messages = with_system_in_place(std::move(messages), impl_->system);
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
    const auto take = [&](MarkedText&& prompt) {
      result.prompt = std::move(prompt.text);
      result.plain = std::move(prompt.plain);
    };
    if (chat.end == TurnEnd::kContinue) {
      PromptWriter::Continued continued = impl_->writer->write_continued(inputs, quoted);
      take(std::move(continued.prompt));
      impl_->read_continued(std::move(inputs), continued.opening, result);
      return result;
    }
    std::optional<common_chat_params> special;
    take(impl_->writer->write(inputs, quoted, &special));
    // It takes as long as the prompt itself.
    const auto opening_of_turn = [&] {
      const bool needed = impl_->marked || !impl_->thoughts.end.empty() || !impl_->thought_marks.end.empty();
      return needed ? impl_->writer->opening(inputs, result.prompt) : std::string();
    };
    if (!chat.tools.empty() && chat.may_call) {
      impl_->read_calls(chat, defaults_, asked.tools, opening_of_turn(), result);
    } else if (chat.end == TurnEnd::kOpenTurn) {
      impl_->read_text(inputs, std::move(special), opening_of_turn(), result);
    }
    return result;
  } catch (const std::exception& e) {
    if (work.ended() != nullptr) throw TemplateError(fmt::format("chat template: {}", work.ended()));
    throw template_fault(e.what());
  }
}

}  // namespace coppice::text
