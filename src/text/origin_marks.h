// The marks of a template's inputs: which strings are a client's.
//
// For this folder's .cpp files. A function without state.
#pragma once

#include <chat.h>

#include <span>
#include <string>

#include "text/template_origins.h"

namespace coppice::text {

/// Marks strings of `origin` in the variables that a template gets. `quoted`: as MarkedTemplate::render() has it.
void mark_origin(jinja::context& context, Origin origin, std::span<const std::string> quoted);

}  // namespace coppice::text
