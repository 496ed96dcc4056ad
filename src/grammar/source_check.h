// Checks before XGrammar sees a text, and its errors in a client's words. For this folder's .cpp files only.
#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <string_view>

#include "grammar/source.h"

namespace coppice::grammar {

/// Throws GrammarError: too long, nested too deep, or with a zero byte.
void check_size(std::string_view text, std::size_t most_bytes, Kind kind);

/// The end of the string, character class, comment or escape that begins at `at`; `at` where none does.
std::size_t end_of_quoted(std::string_view text, std::size_t at, Kind kind);

/// The error's message, without what only XGrammar's authors need.
std::string reason_of(const std::exception& e);

}  // namespace coppice::grammar
