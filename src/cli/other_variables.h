// llama-server's variables (LLAMA_ARG_...) that no option reads by itself.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace coppice::cli {

/// Flags and options of `coppice serve` that such variables stand for: "--no-slots" of LLAMA_ARG_ENDPOINT_SLOTS=0,
/// "--device", "cpu" of LLAMA_ARG_N_GPU_LAYERS=0. They go before the arguments, and none is given whose contrary is
/// among these: an option goes before a variable. Throws CLI::ValidationError for a value that is neither on nor off.
std::vector<std::string> flags_of_variables(const CLI::App& command, const std::vector<std::string>& arguments);

/// A line of the log for each that is set without effect here; not for one that asks for what is so anyway.
/// Throws CLI::ParseError where the model was said by such a variable alone.
std::vector<std::string> complaints_about_variables(const CLI::App& command);

}  // namespace coppice::cli
