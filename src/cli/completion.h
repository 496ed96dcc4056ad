// Completion of the command line in shells, made from the options.
#pragma once

#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace coppice::cli {

/// A script that the shell reads. REQUIRES: shell is "bash", "zsh" or "fish".
std::string completion(const CLI::App& app, std::string_view shell);

}  // namespace coppice::cli
