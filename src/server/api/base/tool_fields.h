// OpenAI's tools: the request's `tools`, `tool_choice`, `parallel_tool_calls`, `chat_template_kwargs` and
// `reasoning_effort`, and messages that make calls or answer them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/source.h"
#include "server/api/base/json_fields.h"
#include "server/jobs/generation_request.h"

namespace coppice::server {

/// Schemas of tools that must be called, and of strict ones, are walked: for the worker. Throws RequestError.
Tools parse_tools(const JsonFields& f);

/// What the chat itself sets, or what templates call.
bool is_reserved_variable(std::string_view name);

/// Variables of the template, and the ways in which clients say how much a model should think: `chat_template_kwargs`,
/// `reasoning_format` and `reasoning_effort`.
void parse_variables(const JsonFields& f, Tools& tools);

/// {"name", "description", `schema`, "strict"}. `path`: of the object, for errors.
text::ToolSpec parse_tool(const JsonObject& function, const std::string& path, const char* schema = "parameters");

/// `tools` of APIs whose tools have their fields side by side: {"type", "name", "description", `schema`}. Those of
/// another type than `type` run elsewhere: `ignore` hears of each.
void parse_flat_tools(const JsonFields& f, std::string_view type, const char* schema,
                      const std::function<void(const std::string&)>& ignore, Tools& to);

/// Refuses a choice without a tool, and tools that must be called and whose schemas no grammar enforces. `field`: what
/// names the tool; `schema`: a tool's field, for errors. Holds each tool that must be called (ToolSpec::held), whatever
/// the others take.
void check_choice(Tools& tools, const std::string& field, const char* schema);

/// {"mode": "auto" | "required", "tools": [...]}: calls are restricted to those tools. `name_of`: of one of them, as
/// the API names it; empty: it runs elsewhere. Throws RequestError.
void allow_tools(const JsonFields& choice, const std::function<std::string(const JsonFields&)>& name_of, Tools& tools);

/// What becomes of a form of the answer beside tools. The form is the text's: where a tool must be called there is no
/// text, and the form goes. Where one may be called the answer is a call or JSON of that form; other forms are refused.
void settle_form(const Tools& tools, std::optional<grammar::Constraint>& form);

/// A call's arguments, under this name: JSON, as text or as it is. None, blanks, null and an empty list are no
/// arguments. Text that is no object's stays text: the call was cut off, perhaps by this server.
void parse_arguments(const JsonFields& f, const char* name, text::ChatCall& to);

/// An assistant message's `tool_calls`. `f`: the message.
std::vector<text::ChatCall> parse_calls(const JsonFields& f);

}  // namespace coppice::server
