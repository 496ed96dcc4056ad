// Options of other servers for what this one always does.
#pragma once

namespace CLI {
class App;
}

namespace coppice::cli {

/// Their heading in --help.
inline constexpr const char* kNeedlessGroup = "Of other servers";

/// They are taken, and without effect.
void add_needless_flags(CLI::App& command);

}  // namespace coppice::cli
