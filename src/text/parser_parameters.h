// A tool's parameters in a form from which llama.cpp's chat library makes a parser of calls. Where a template writes
// each argument by itself, the library looks for properties at the top of the schema, and for a type in each: what
// stands elsewhere ($ref, anyOf, allOf) it would not read.
//
// For this folder's .cpp files. Functions without state.
#pragma once

#include <string>

#include "text/tool_chat.h"

namespace coppice::text {

/// All properties that a call may have, whichever alternative has them, at the top. Nothing is required where there are
/// alternatives. Patterns are left out: the library holds none, and names those that it can't read on standard error.
std::string parser_parameters(const ToolSpec& tool);

}  // namespace coppice::text
