// OpenAI's tools: the request's `tools`, `tool_choice`, `parallel_tool_calls`, `chat_template_kwargs` and `reasoning_effort`, and
// messages that make calls or answer them.
#pragma once

#include <string>
#include <vector>

#include "server/api/json_fields.h"
#include "server/jobs/generation_request.h"

namespace coppice::server {

/// Schemas of tools that must be called, and of strict ones, are walked: for the worker. Throws RequestError.
Tools parse_tools(const JsonFields& f);

/// A tool as OpenAI's `function` has it: {"name", "description", "parameters", "strict"}. `path`: of the object, for errors.
text::ToolSpec parse_tool(const JsonObject& function, const std::string& path);

/// What a grammar can't enforce is refused, by its keyword.
void check_enforceable(const text::ToolSpec& tool, const std::string& field);

/// An assistant message's `tool_calls`. `f`: the message.
std::vector<text::ChatCall> parse_calls(const JsonFields& f);

}  // namespace coppice::server
