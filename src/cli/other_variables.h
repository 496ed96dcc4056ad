// llama-server's variables (LLAMA_ARG_...) that no option reads by itself.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace coppice::cli {

/// Flags of `coppice serve` that such variables stand for: "--no-slots" of LLAMA_ARG_ENDPOINT_SLOTS=0. None whose
/// contrary is among the arguments: an option goes before a variable.
std::vector<std::string> flags_of_variables(const CLI::App& command, const std::vector<std::string>& arguments);

/// A line of the log for each that is set without effect here; not for one that asks for what is so anyway.
std::vector<std::string> complaints_about_variables(const CLI::App& command);

}  // namespace coppice::cli
