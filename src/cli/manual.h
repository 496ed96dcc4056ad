// The man page, made from the options.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace coppice::cli {

/// coppice(1), in the man macros that groff and mandoc know: all commands, with all options that --help shows.
std::string manual(const CLI::App& app);

}  // namespace coppice::cli
