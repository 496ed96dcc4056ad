// Options of llama-server and vllm serve that CLI11 can't read, or that coppice does otherwise.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace coppice::cli {

/// Takes and gives the arguments behind `coppice serve`, in their order. llama-server's short options of several
/// letters become its long ones: CLI11 would read "-np 4" as "-n p". Underscores in long names become dashes. Values
/// stay as they are. What has a Meaning becomes the option of ours. Throws CLI::ValidationError for an option of the
/// other servers that coppice has under another name or form, and says which; for any other short option of several
/// letters; and for two models.
std::vector<std::string> read_other_servers(std::vector<std::string> arguments, const CLI::App& command);

/// What an option of the other servers asks for by its value, where another value would be refused.
struct Meaning {
  std::string option;   ///< ours that does it
  std::string value;    ///< its value; empty: whatever that is does it
  std::string refusal;  ///< not empty: nothing here does it, and what to write, as part of a sentence
};
/// Nothing: its value doesn't matter.
std::optional<Meaning> meaning_of(const std::string& name, std::string_view value);

/// What coppice has instead of this option of the other servers, as part of a sentence. Empty: it is none of these.
std::string_view instead_of(std::string_view name);

}  // namespace coppice::cli
