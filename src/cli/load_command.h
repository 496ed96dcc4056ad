// `coppice load`: the demo's requests against any running OpenAI-compatible server, measured at the client.
#pragma once

#include <CLI/CLI.hpp>

namespace coppice::cli {

/// Adds the command to `app`; when it is chosen, parsing runs it and sets `exit_code`.
void add_load(CLI::App& app, int& exit_code);

}  // namespace coppice::cli
