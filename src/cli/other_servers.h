// Options of llama-server and vllm serve that CLI11 can't read, or that coppice does otherwise.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace coppice::cli {

/// Takes and gives the arguments behind `coppice serve`, in their order. llama-server's short options of several
/// letters become its long ones: CLI11 would read "-np 4" as "-n p". Throws CLI::ValidationError for an option of the
/// other servers that coppice has under another name or form, and says which; and for any other short option of several
/// letters.
std::vector<std::string> read_other_servers(std::vector<std::string> arguments);

/// llama-server's variables (LLAMA_ARG_...) that are set, and that no option of the command reads.
std::vector<std::string> unread_variables(const CLI::App& command);

}  // namespace coppice::cli
