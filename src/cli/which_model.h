// What to tell somebody who has not said which model, or named one that isn't there.
#pragma once

#include <string>

namespace coppice::cli {

/// The models of this machine that can be served, some twenty of them, by the names to give; or how to get one. Lines
/// without a last line break. Reads the headers of what local_models() finds.
std::string models_to_choose();

}  // namespace coppice::cli
