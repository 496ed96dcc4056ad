// `coppice chat`: a conversation in the terminal, with a server that runs or with one of its own for a model.
#pragma once

namespace CLI {
class App;
}

namespace coppice::cli {

/// Adds the command to `app`; when it is chosen, parsing runs it and sets `exit_code`.
void add_chat(CLI::App& app, int& exit_code);

}  // namespace coppice::cli
