// What is said of a command line that CLI11 can't read, in plainer words than its own.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace coppice::cli {

/// The lines for standard error. An option that a command doesn't have is named with those that it is nearest to, and
/// a value that a variable gave with the variable. `app`: the whole program; `given`: its arguments, of which the first
/// may be none of its commands; `error`: what its parse() threw, or what was thrown of the arguments before.
std::string error_text(const CLI::App& app, const std::vector<std::string>& given, const CLI::Error& error);

}  // namespace coppice::cli
